"""A user's pictures, ready to be put before several forms of one model, and how these compare. Helper process only.

Pictures are decoded, resized and cropped once; what differs between forms (element type, layout, normalisation) is
done by each form's own `Preprocessor`, as in a job. Nothing here pickles.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sparkinfer.core.errors import ModelError, RowError, SourceError, SpecError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import LoadRequest, Runtime
from sparkinfer.core.registry import create_runtime
from sparkinfer.executor.decode import decode
from sparkinfer.executor.postprocess import confidences
from sparkinfer.executor.preprocess import Preprocessor

__all__ = ["BATCH_SIZE", "Difference", "Form", "Pictures", "compare", "read_pictures", "speeds", "split"]

Scores = NDArray[np.float32]

BATCH_SIZE = 8
"""Images a call, unless the model fixes it: enough to fill a core, few enough for any memory."""
MOST_BYTES = 256 << 20
"""Of pictures in memory: 1,700 at 224 x 224 pixels."""
MOST_PICTURES = 512
MOST_CALIBRATION = 100
"""Images; ranges hardly change beyond."""
FEWEST_TO_SPLIT = 20
"""With fewer images, calibration and comparison use the same ones."""
_ROUNDS = 7
_SECONDS_PER_FORM = 3.0
_SUM_TOLERANCE = 1e-3


class Pictures(NamedTuple):
    """Pictures of the model's size, and how many files did not become one."""

    pictures: list[Image.Image]
    unreadable: int


class Difference(NamedTuple):
    """Between a form's scores and the original's.

    Attributes:
        agreement: share of pictures in [0, 1] with the same best class.
        max_confidence_change: largest change of any confidence, in [0, 1].
        error: mean variance of a picture's changes of score. What all classes gain alike changes no answer and does
            not count. Steadier than `agreement`, which turns on the few pictures that are near a tie.
    """

    agreement: float
    max_confidence_change: float
    error: float


@dataclass(frozen=True)
class Form:
    """One form of the model, opened.

    Attributes:
        runtime: loaded.
        fill: turns pictures into its input.
    """

    runtime: Runtime
    fill: Callable[[Sequence[Image.Image]], NDArray[np.generic]]

    @classmethod
    def open(cls, path: Path, spec: PreprocessSpec, model: ModelSpec, threads: int) -> Form:
        """Opens a file with the preprocess block that belongs to it."""
        runtime = create_runtime(model.format)
        runtime.load(LoadRequest(path=str(path), model=model, preprocess=spec, threads=threads))
        return cls(runtime, filler(spec))

    def scores(self, pictures: Sequence[Image.Image]) -> Scores:
        """Scores of any number of pictures: float32 [pictures, classes].

        Raises:
            ModelError: they are not all finite.
        """
        starts = range(0, len(pictures), BATCH_SIZE)
        parts = [self.runtime.infer(self.fill(pictures[start : start + BATCH_SIZE])).scores for start in starts]
        scores: Scores = np.concatenate(parts)
        if not np.isfinite(scores).all():
            raise ModelError("the model answers NaN or infinity", key="model.path")
        return scores


def read_pictures(files: Sequence[str], spec: PreprocessSpec) -> Pictures:
    """Decodes, resizes and crops; of more files than fit, a random choice that is the same every time.

    Raises:
        SpecError: the block leaves the size open.
        SourceError: not one file decodes.
    """
    if spec.output_size is None:
        raise SpecError(
            "optimising needs pictures of one size", key="preprocess.crop", hint="set preprocess.crop or resize: [h, w]"
        )
    most = min(MOST_PICTURES, max(1, MOST_BYTES // (spec.output_size[0] * spec.output_size[1] * spec.num_channels)))
    files = sorted(files)
    chosen = files if len(files) <= most else random.Random(0).sample(files, most)  # noqa: S311 (no secret)
    channels = "grey" if spec.channels == "grey" else "rgb"
    fitted = spec.model_copy(update={"dtype": "uint8", "layout": "nhwc", "channels": channels})
    preprocessor = Preprocessor(fitted)
    pictures = []
    for file in chosen:
        try:
            image = decode(Path(file).read_bytes(), fitted)
            slot = np.empty(preprocessor.slot_shape(image), np.uint8)
            preprocessor.write(image, slot)
        except (RowError, OSError):
            continue
        pictures.append(Image.fromarray(slot[..., 0] if channels == "grey" else slot))
    if not pictures:
        raise SourceError(f"none of {len(chosen)} files is an image that decodes", key="images")
    return Pictures(pictures, len(chosen) - len(pictures))


def split(pictures: Sequence[Image.Image], *, calibrate: bool) -> tuple[list[Image.Image], list[Image.Image], bool]:
    """Pictures to calibrate on (none unless asked), pictures to compare with, and whether the two are apart."""
    if not calibrate:
        return [], list(pictures), True
    if len(pictures) < FEWEST_TO_SPLIT:
        return list(pictures), list(pictures), False
    shuffled = random.Random(0).sample(list(pictures), len(pictures))  # noqa: S311 (no secret)
    count = min(MOST_CALIBRATION, len(pictures) // 3)
    return shuffled[:count], shuffled[count:], True


def filler(spec: PreprocessSpec) -> Callable[[Sequence[Image.Image]], NDArray[np.generic]]:
    """Makes model inputs of pictures that have the model's size already."""
    preprocessor = Preprocessor(spec.model_copy(update={"resize": None, "crop": None}))

    def fill(pictures: Sequence[Image.Image]) -> NDArray[np.generic]:
        batch = np.empty((len(pictures), *preprocessor.slot_shape(pictures[0])), preprocessor.dtype)
        for picture, slot in zip(pictures, batch, strict=True):
            preprocessor.write(picture, slot)
        return batch

    return fill


def compare(scores: Scores, original: Scores) -> Difference:
    """How far a form's scores are from the original's, both [pictures, classes]."""
    activation = "none" if _are_probabilities(original) else "softmax"
    change = np.abs(confidences(scores, activation) - confidences(original, activation)).max()
    return Difference(
        agreement=float((scores.argmax(1) == original.argmax(1)).mean()),
        max_confidence_change=float(change),
        error=float((scores - original).var(axis=1, dtype=np.float64).mean()),
    )


def speeds(forms: Mapping[str, Form], pictures: Sequence[Image.Image]) -> dict[str, float]:
    """Images a second of each form, from pictures of its size in memory to scores.

    Forms take turns, so that what else the machine does falls on all of them; the median round counts.
    """
    batch = [pictures[index % len(pictures)] for index in range(BATCH_SIZE)]
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        form.runtime.infer(form.fill(batch))
    spent = 0.0
    for _ in range(_ROUNDS):
        for name, form in forms.items():
            start = time.perf_counter()
            form.runtime.infer(form.fill(batch))
            seconds[name].append(time.perf_counter() - start)
            spent += seconds[name][-1]
        if spent > _SECONDS_PER_FORM * len(forms):
            break
    return {name: BATCH_SIZE / median(times) for name, times in seconds.items()}


def _are_probabilities(scores: Scores) -> bool:
    return bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=_SUM_TOLERANCE))
