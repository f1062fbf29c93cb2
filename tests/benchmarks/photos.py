"""The benchmark's images: distinct JPEGs made from a few photographs, stored as files or as Parquet.

Every picture is another crop of a photograph (mirrored or not), so that no two files are equal; the same arguments
always give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import multiprocessing
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageOps

__all__ = ["SIZES", "PhotoSet", "prepare_photos"]

log = logging.getLogger(__name__)

SIZES = {"imagenet": (500, 375), "12mp": (4000, 3000), "12mp-smooth": (4000, 3000)}
"""Longer and shorter side, pixels: the mean of ImageNet's photographs, and a telephone's 12 megapixels; smooth ones are
photographs enlarged and no more."""

QUALITY = 92
NOISE = {"imagenet": 0.0, "12mp": 6.0, "12mp-smooth": 0.0}
"""Standard deviation, levels. Enlarged pictures are too smooth; with a sensor's noise they weigh what a camera's do."""

SUFFIXES = {".jpg", ".jpeg", ".png"}
FILES = 8
MAX_ROWS_PER_FILE = 500
MAX_ROWS_PER_GROUP = 64
MAX_BYTES_PER_GROUP = 16 << 20


@dataclass(frozen=True)
class PhotoSet:
    """What was made.

    Attributes:
        path: folder of files named `*.jpg` or `*.parquet`; Parquet has `path` string and `content` binary.
        stored: parquet or folder.
        size: key of `SIZES`.
        image_bytes: of all images together.
        photographs: how many they were made from.
    """

    path: str
    stored: str
    size: str
    rows: int
    image_bytes: int
    photographs: int


def prepare_photos(sources: Path, into: Path, *, rows: int, size: str, stored: str, workers: int) -> PhotoSet:
    """Makes the images, or finds them made before.

    Args:
        sources: folder of photographs.
        into: where sets of images are kept.
        workers: processes to encode with.

    Raises:
        FileNotFoundError: `sources` holds no photograph.
    """
    photographs = sorted(path for path in sources.glob("*") if path.suffix.lower() in SUFFIXES)
    if not photographs:
        raise FileNotFoundError(f"no photographs (*.jpg, *.jpeg, *.png) in {sources}")
    origin = repr([QUALITY, NOISE[size], *((path.name, path.stat().st_size) for path in photographs)])
    folder = into / f"{size}-{rows}-{stored}-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"
    manifest = folder / "_photos.json"
    if manifest.exists():
        return PhotoSet(**json.loads(manifest.read_text("utf-8")))
    log.info("making %d images (%s, %s) ...", rows, size, stored)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with multiprocessing.Pool(workers) as pool:
        encoded = pool.imap(partial(_encode, photographs, size), range(rows), chunksize=4)
        write = _write_files if stored == "folder" else _write_parquet
        image_bytes = write(encoded, rows, folder)
    made = PhotoSet(str(folder), stored, size, rows, image_bytes, len(photographs))
    manifest.write_text(json.dumps(asdict(made)), "utf-8")
    return made


def _encode(photographs: list[Path], size: str, number: int) -> bytes:
    """Image `number` as JPEG: a crop of at least 8 tenths of a photograph, in portrait where the photograph is."""
    random = np.random.default_rng(number)
    photograph = _opened(photographs[number % len(photographs)])
    longer, shorter = SIZES[size]
    target = (longer, shorter) if photograph.width >= photograph.height else (shorter, longer)
    fit = min(photograph.width / target[0], photograph.height / target[1]) * random.uniform(0.8, 1.0)
    width, height = target[0] * fit, target[1] * fit
    left = random.uniform(0, photograph.width - width)
    top = random.uniform(0, photograph.height - height)
    picture = photograph.resize(target, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    if random.random() < 0.5:
        picture = ImageOps.mirror(picture)
    if NOISE[size]:
        pixels = np.asarray(picture) + np.roll(_noise(size, picture.size), random.integers(1 << 20))
        picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


@cache
def _opened(path: Path) -> Image.Image:
    with Image.open(path) as photograph:
        return ImageOps.exif_transpose(photograph.convert("RGB"))


@cache
def _noise(size: str, shape: tuple[int, int]) -> NDArray[np.int16]:
    random = np.random.default_rng(0)
    return (random.standard_normal((shape[1], shape[0], 3), np.float32) * NOISE[size]).astype(np.int16)


def _name(number: int) -> str:
    return f"photo-{number:06d}.jpg"


def _write_files(encoded: Iterator[bytes], rows: int, folder: Path) -> int:
    """One file an image."""
    return sum((folder / _name(number)).write_bytes(next(encoded)) for number in range(rows))


def _write_parquet(encoded: Iterator[bytes], rows: int, folder: Path) -> int:
    """Equal files, in row groups that are small in rows and in bytes; JPEG is not compressed again."""
    files = max(FILES, -(-rows // MAX_ROWS_PER_FILE))
    schema = pa.schema([("path", pa.string()), ("content", pa.binary())])
    total = 0
    for file in range(files):
        numbers = range(rows * file // files, rows * (file + 1) // files)
        with pq.ParquetWriter(folder / f"part-{file:04d}.parquet", schema, compression="none") as writer:
            group: list[tuple[int, bytes]] = []
            for number in numbers:
                group.append((number, next(encoded)))
                size = sum(len(content) for _, content in group)
                if len(group) == MAX_ROWS_PER_GROUP or size >= MAX_BYTES_PER_GROUP or number == numbers[-1]:
                    names, contents = [_name(n) for n, _ in group], [content for _, content in group]
                    writer.write_table(pa.table([names, contents], schema=schema))
                    total += size
                    group = []
    return total
