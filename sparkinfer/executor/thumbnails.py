"""Small pictures of some images: `python -m sparkinfer.executor.thumbnails`, JSON on stdin, lines of JSON on stdout.

The driver runs this in a process of its own (`driver.reporting.images`), so that an image which takes a native decoder
down costs its own thumbnail and nothing else. Imports no framework.

Request: `files` (local paths), `preprocess` (the job's block, as plain data), `edge` and `seconds`. Answer, for each
file: `{"begin": i}`, then `{"index": i, "jpeg": base64}` or `{"index": i, "problem": text}`. A file that takes longer
than `seconds` ends the process with SIGALRM.
"""

from __future__ import annotations

import base64
import io
import json
import os
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile

from sparkinfer.core.errors import ErrorCode, RowError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.decode import decoder_of

__all__ = ["MAX_PIXELS", "main", "thumbnail"]

MAX_PIXELS = 64_000_000
"""Of an image that is drawn, by its header: 200 MB of pixels."""

MEMORY_BYTES = 4 << 30
"""Address space of the process."""

JPEG_QUALITY = 75


def thumbnail(data: bytes, spec: PreprocessSpec, edge: int) -> bytes:
    """A JPEG file of the image, upright and as a whole, drawn by the decoder that the model saw it through.

    A damaged file, which that decoder refuses, is drawn as far as Pillow can read it.

    Args:
        data: the file.
        spec: the job's block.
        edge: longest side of the thumbnail, pixels.

    Raises:
        RowError: it cannot be drawn at all.
    """
    pixels = min(spec.max_pixels, MAX_PIXELS)
    drawn = spec.model_copy(update={"max_pixels": pixels, "decode": "fast", "resize": edge})
    try:
        picture = decoder_of(spec)(data, drawn)
    except RowError as error:
        if error.code is ErrorCode.TOO_MANY_PIXELS:  # whose message names the limit of the job
            raise RowError(error.code, "too many pixels to be drawn here") from None
        picture = _as_far_as_it_goes(data, pixels, error)
    picture.thumbnail((edge, edge))
    # On a fresh canvas: comments and profiles of the original stay behind.
    clean = Image.new("RGB", picture.size)
    clean.paste(picture.convert("RGB"))
    file = io.BytesIO()
    clean.save(file, "JPEG", quality=JPEG_QUALITY, optimize=True)
    return file.getvalue()


def _as_far_as_it_goes(data: bytes, pixels: int, error: RowError) -> Image.Image:
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # this process decodes for nobody else
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = Image.open(io.BytesIO(data))
            if picture.width * picture.height > pixels:
                raise error
            return picture.convert("RGB")
    except Exception:
        raise error from None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def _answer(path: str, spec: PreprocessSpec, edge: int) -> dict[str, Any]:
    try:
        return {"jpeg": base64.b64encode(thumbnail(Path(path).read_bytes(), spec, edge)).decode()}
    except Exception as error:
        return {"problem": str(error) or type(error).__name__}


def main() -> None:
    """Answers the request on stdin. What decoders print meanwhile goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    request = json.load(sys.stdin)
    spec = PreprocessSpec.model_validate(request["preprocess"])
    for index, path in enumerate(request["files"]):
        print(json.dumps({"begin": index}), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        answer = _answer(path, spec, request["edge"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"index": index, **answer}), file=answers, flush=True)


if __name__ == "__main__":
    main()
