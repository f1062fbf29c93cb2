"""Image files as disks, networks and attackers leave them: real photographs, damaged. No sparkinfer, no Spark.

`seeds(folder)` makes small files of every kind out of the photographs of a folder; `mutated(rng, seeds)` damages one.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

__all__ = ["MUTATIONS", "Seed", "mutated", "seeds"]

SIDE = 160
"""Pixels of a seed's longer side: what a decoder does wrong, it does on small pictures too."""

EXTREMES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)

_KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("JPEG", "RGB", {}),
    ("JPEG", "RGB", {"progressive": True, "quality": 95}),
    ("JPEG", "CMYK", {}),
    ("JPEG", "L", {"restart_marker_rows": 1}),
    ("PNG", "RGB", {}),
    ("PNG", "RGBA", {}),
    ("PNG", "P", {}),
    ("PNG", "I;16", {}),
    ("GIF", "P", {}),
    ("GIF", "P", {"save_all": True, "interlace": 0}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("WEBP", "RGB", {"save_all": True}),
    ("TIFF", "RGB", {}),
    ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    ("TIFF", "RGB", {"compression": "jpeg"}),
    ("TIFF", "1", {"compression": "group4"}),
    ("TIFF", "F", {"compression": "tiff_adobe_deflate"}),
    ("TIFF", "RGB", {"save_all": True}),
    ("BMP", "RGB", {}),
    ("BMP", "P", {}),
    ("BMP", "1", {}),
)
"""Format, mode and Pillow's options of the seeds."""


@dataclass(frozen=True)
class Seed:
    """One good file."""

    kind: str
    data: bytes


def seeds(folder: Path) -> list[Seed]:
    """Files of every kind: each kind of three photographs, each photograph in some kinds.

    Args:
        folder: holds photographs, JPEG or PNG.

    Raises:
        FileNotFoundError: it holds none.
    """
    names = sorted(path for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg", ".png"})
    if not names:
        raise FileNotFoundError(f"{folder} holds no photographs; `make demo` brings some")
    photos = [_small(path) for path in names[:: max(1, len(names) // 12)]]
    return [
        Seed(kind, _file(photos[(number * 3 + turn) % len(photos)], kind, mode, options))
        for number, (kind, mode, options) in enumerate(_KINDS)
        for turn in range(3)
    ]


def _small(path: Path) -> Image.Image:
    with Image.open(path) as photo:
        photo.thumbnail((SIDE, SIDE))
        return photo.convert("RGB")


def _file(photo: Image.Image, kind: str, mode: str, options: dict[str, Any]) -> bytes:
    if mode == "P":
        picture = photo.quantize(64)
    elif mode == "I;16":
        picture = photo.convert("I").convert(mode)
    else:
        picture = photo.convert(mode)
    if options.get("save_all"):
        options = {**options, "append_images": [picture.rotate(180), picture.rotate(90)]}
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    if mode == "RGB" and kind in {"JPEG", "PNG", "WEBP"}:
        options = {**options, "exif": exif}
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def mutated(rng: random.Random, originals: Sequence[Seed]) -> tuple[str, bytes]:
    """One file, damaged in one to three ways.

    Returns:
        What was done (`PNG swap+flip`), and the file.
    """
    seed = rng.choice(originals)
    names = [rng.choice(list(MUTATIONS)) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    data = seed.data
    for name in names:
        data = MUTATIONS[name](rng, data, originals)
    return f"{seed.kind} {'+'.join(names)}", data


def _at(rng: random.Random, data: bytes) -> int:
    """A place: half of the time near the start, where the headers are."""
    size = len(data) + 1
    return rng.randrange(min(size, 64)) if rng.random() < 0.5 else rng.randrange(size)


def _kept(_rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    return data


def _flip(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    changed = bytearray(data)
    for _bit in range(rng.choice([1, 1, 4, 30])):
        if changed:
            changed[_at(rng, data) % len(changed)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _extreme(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    at, length = _at(rng, data), rng.choice([1, 2, 4, 8])
    return data[:at] + bytes([rng.choice(EXTREMES)]) * min(length, len(data) - at) + data[at + length :]


def _noise(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    at, length = _at(rng, data), rng.choice([1, 4, 16, 200])
    return data[:at] + rng.randbytes(min(length, len(data) - at)) + data[at + length :]


def _cut_end(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    return data[: _at(rng, data)]


def _cut_out(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    at = _at(rng, data)
    return data[:at] + data[at + rng.choice([1, 2, 8, 100, 2000]) :]


def _double(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    at, length = _at(rng, data), rng.choice([1, 2, 8, 100, 2000])
    return data[: at + length] + data[at:]


def _splice(rng: random.Random, data: bytes, originals: Sequence[Seed]) -> bytes:
    other = rng.choice(originals).data
    return data[: _at(rng, data)] + other[_at(rng, other) :]


def _swap(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    pieces = _pieces(rng, data)
    if len(pieces) > 2:
        one, other = rng.sample(range(1, len(pieces)), 2)
        pieces[one], pieces[other] = pieces[other], pieces[one]
    return b"".join(pieces)


def _drop(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    pieces = _pieces(rng, data)
    del pieces[rng.randrange(len(pieces))]
    return b"".join(pieces)


def _foreign(rng: random.Random, data: bytes, originals: Sequence[Seed]) -> bytes:
    """A chunk of another file put between two chunks."""
    pieces = _pieces(rng, data)
    pieces.insert(rng.randrange(1, len(pieces) + 1), rng.choice(_pieces(rng, rng.choice(originals).data)))
    return b"".join(pieces)


def _huge(rng: random.Random, data: bytes, _: Sequence[Seed]) -> bytes:
    """Another width and height in the header: none, 1, or what a bomb claims."""
    side = rng.choice([0, 1, 3, 5_000, 13_000, 20_000, 65_535, 1 << 24, 0xFFFFFFFF])
    if data.startswith(b"\x89PNG"):
        return data[:16] + side.to_bytes(4, "big") * rng.choice([1, 2]) + data[20:]
    if data.startswith(b"BM"):
        return data[:18] + side.to_bytes(4, "little") * 2 + data[26:]
    if data.startswith(b"GIF"):
        return data[:6] + (side & 0xFFFF).to_bytes(2, "little") * 2 + data[10:]
    at = data.find(b"\xff\xc0")
    if data.startswith(b"\xff\xd8") and at != -1:
        return data[: at + 5] + (side & 0xFFFF).to_bytes(2, "big") * 2 + data[at + 9 :]
    if data.startswith(b"II*\0"):
        tag = data.find(b"\x00\x01\x04\x00\x01\x00\x00\x00")
        return data if tag == -1 else data[: tag + 8] + side.to_bytes(4, "little") + data[tag + 12 :]
    return _extreme(rng, data, ())


MUTATIONS: dict[str, Callable[[random.Random, bytes, Sequence[Seed]], bytes]] = {
    "kept": _kept,
    "flip": _flip,
    "extreme": _extreme,
    "noise": _noise,
    "cut end": _cut_end,
    "cut out": _cut_out,
    "double": _double,
    "splice": _splice,
    "swap": _swap,
    "drop": _drop,
    "foreign": _foreign,
    "huge": _huge,
}


def _pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """Signature and chunks (PNG), segments (JPEG) or chunks (WebP); of other files six slices. Joined, the file."""
    ends: list[int] = []
    if data.startswith(b"\x89PNG"):
        at = 8
        while at < len(data):
            ends.append(at)
            at += 12 + int.from_bytes(data[at : at + 4], "big")
    elif data.startswith(b"\xff\xd8"):
        at = 2
        while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
            ends.append(at)
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        ends.append(min(at, len(data)))
    elif data.startswith(b"RIFF"):
        at = 12
        while at < len(data):
            ends.append(at)
            size = int.from_bytes(data[at + 4 : at + 8], "little")
            at += 8 + size + size % 2
    else:
        ends = sorted(rng.randrange(len(data) + 1) for _ in range(5))
    edges = [0, *ends, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]
