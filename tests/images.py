"""Test images of every kind, good and bad, made from arithmetic: nothing here uses sparkinfer's own decoder.

`good_image()` is one small picture whose four quarters have known colours, in any format that Pillow writes.
`bad_inputs()` is a table of what must not become a picture, with the code that each row must get. The lower half
writes files that Pillow cannot write.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from sparkinfer.core.errors import ErrorCode

__all__ = [
    "CORNERS",
    "FORMATS",
    "bad_inputs",
    "corners",
    "encode",
    "exif",
    "good_image",
    "jpeg_segment_end",
    "noise",
    "png",
    "png_chunk",
    "quarters",
    "tiff",
]

CORNERS = ((200, 30, 40), (40, 180, 60), (40, 60, 200), (230, 220, 60))
"""Colours of the quarters of an upright picture: top left, top right, bottom left, bottom right."""

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM", "ICO")
"""What Pillow calls the formats that sparkinfer reads; MPO counts as JPEG."""


def quarters(size: tuple[int, int] = (64, 48)) -> Image.Image:
    """An RGB picture, (width, height), of four quarters in the colours of `CORNERS`."""
    width, height = size
    picture = Image.new("RGB", size)
    for index, colour in enumerate(CORNERS):
        left, top = index % 2 * (width // 2), index // 2 * (height // 2)
        right, bottom = (width if index % 2 else width // 2), (height if index // 2 else height // 2)
        picture.paste(colour, (left, top, right, bottom))
    return picture


def corners(picture: Image.Image) -> list[tuple[int, ...]]:
    """The colours in the middle of the four quarters, in the order of `CORNERS`."""
    width, height = picture.size
    places = [(x * width // 4, y * height // 4) for y in (1, 3) for x in (1, 3)]
    return [tuple(np.atleast_1d(picture.getpixel(place)).tolist()) for place in places]


def noise(size: tuple[int, int] = (64, 48), seed: int = 0) -> Image.Image:
    """An RGB picture, (width, height), of smooth random colours: every codec has something to do."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encode(picture: Image.Image, format: str, **options: Any) -> bytes:  # noqa: A002 - as in Pillow
    """The picture as a file of this format, with Pillow's save options."""
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def good_image(format: str = "JPEG", size: tuple[int, int] = (64, 48), **options: Any) -> bytes:  # noqa: A002
    """A file with `quarters(size)`. ICO has at most 256 x 256 pixels and is square."""
    if format == "ICO":
        options = {"sizes": [size], **options}
    return encode(quarters(size), format, **options)


def bad_inputs() -> dict[str, tuple[bytes | None, ErrorCode]]:
    """Name -> content of an image column and the code its row must get, with the default preprocess block."""
    rows: dict[str, tuple[bytes | None, ErrorCode]] = {
        "null": (None, ErrorCode.NULL_CONTENT),
        "empty": (b"", ErrorCode.EMPTY),
    }
    rows |= {name: (data, ErrorCode.UNSUPPORTED_FORMAT) for name, data in _not_images().items()}
    for kind in FORMATS:
        data = encode(noise(), kind, **({"sizes": [(32, 32)]} if kind == "ICO" else {}))
        rows[f"truncated {kind}"] = (data[: len(data) * 2 // 3], ErrorCode.TRUNCATED)
    rows |= {f"corrupt {name}": (data, ErrorCode.CORRUPT) for name, data in _damaged().items()}
    rows |= {f"too many pixels {name}": (data, ErrorCode.TOO_MANY_PIXELS) for name, data in _oversized().items()}
    return rows


def _not_images() -> dict[str, bytes]:
    brands = b"heic\0\0\0\0mif1heic"
    return {
        "text": b"This is not an image.\n" * 20,
        "text that begins like BMP": b"BM is short for bitmap, and this is a letter about it.",
        "text that begins like PPM": b"P6 is the sixth of our pages; see P3.",
        "HTML error page": b"<!DOCTYPE html><html><body><h1>404 Not Found</h1></body></html>",
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
        "PDF": b"%PDF-1.7\n1 0 obj\n<</Type /Catalog>>\nendobj\ntrailer\n%%EOF\n",
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n0 0 9 9 rectfill\nshowpage\n",
        "ZIP": b"PK\x03\x04" + bytes(60),
        "HEIC": struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands + bytes(64),
        "zeros": bytes(4096),
        "one byte": b"\xff",
        "TGA": bytes([0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 24, 0, 1, 2, 3]),
        "12-bit JPEG": _patched(good_image("JPEG"), b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
        "BMP with JPEG inside": _overwritten(good_image("BMP"), 30, struct.pack("<I", 4)),
    }


def _damaged() -> dict[str, bytes]:
    """Files that are all there and wrong inside."""
    jpeg, gif, webp = encode(noise(), "JPEG"), encode(noise(), "GIF"), encode(noise(), "WEBP")
    flipped = bytearray(encode(noise(), "PNG"))
    flipped[len(flipped) // 2] ^= 0x10
    lossless = encode(noise(), "TIFF", compression="tiff_adobe_deflate")
    avif, jpeg2000 = encode(noise(), "AVIF"), encode(noise(), "JPEG2000")
    huffman = jpeg.index(b"\xff\xc4")
    return {
        "JPEG, tables overwritten": _overwritten(jpeg, huffman + 4, b"\xff" * 20),
        "JPEG, zero height": _patched(jpeg, b"\xff\xc0\x00\x11\x08\x00\x30", b"\xff\xc0\x00\x11\x08\x00\x00"),
        "PNG, a bit flipped": bytes(flipped),
        "PNG, header overwritten": _overwritten(encode(noise(), "PNG"), 16, b"\xaa" * 8),
        "GIF, code size overwritten": _overwritten(gif, _gif_code_size_at(gif), b"\x63"),
        "WebP, start code overwritten": _overwritten(webp, 23, b"\xff" * 3),
        "TIFF, strip overwritten": _overwritten(lossless, 200, b"\xff" * 64),
        "AVIF, pixels overwritten": _overwritten(avif, avif.index(b"mdat") + 4, b"\xff" * 40),
        "JPEG 2000, codestream overwritten": _overwritten(jpeg2000, jpeg2000.index(b"\xff\x52"), b"\x00" * 12),
        "BMP, zero width": _overwritten(good_image("BMP"), 18, bytes(4)),
    }


def _oversized() -> dict[str, bytes]:
    """Small files that claim more pixels than the default cap of 178,956,970."""
    jpeg = good_image("JPEG")
    at = jpeg.index(b"\xff\xc0") + 5
    webp_canvas = b"VP8X" + struct.pack("<I4x", 10) + (20_000 - 1).to_bytes(3, "little") * 2
    avif = good_image("AVIF")
    icon = png(50_000, 50_000, 8, 0, b"\0")
    return {
        "PNG": png(50_000, 50_000, 8, 2, b"\0"),
        "JPEG": _overwritten(jpeg, at, struct.pack(">HH", 65_500, 65_500)),
        "GIF": _overwritten(good_image("GIF"), 6, struct.pack("<HH", 65_535, 65_535)),
        "GIF, larger frame": _larger_frame(good_image("GIF")),
        "WebP": b"RIFF" + struct.pack("<I", 4 + len(webp_canvas)) + b"WEBP" + webp_canvas,
        "AVIF": _overwritten(avif, avif.index(b"ispe") + 8, struct.pack(">II", 60_000, 60_000)),
        "BMP": _overwritten(good_image("BMP"), 18, struct.pack("<II", 40_000, 40_000)),
        "TIFF": tiff(np.zeros((1, 1), np.uint8), claimed_size=(40_000, 40_000)),
        "TIFF, large tile": tiff(np.zeros((1, 1), np.uint8), tile=(32_768, 32_768)),
        "ICO": struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(icon), 22) + icon,
        "PPM": b"P6\n40000 40000\n255\n" + bytes(30),
    }


def _overwritten(data: bytes, at: int, patch: bytes) -> bytes:
    return data[:at] + patch + data[at + len(patch) :]


def _patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1, f"{old!r} is there {data.count(old)} times"
    return data.replace(old, new)


def _gif_code_size_at(data: bytes) -> int:
    picture = data.index(b",", 13 + 3 * (2 << (data[10] & 7)))
    return picture + 10 + (3 * (2 << (data[picture + 9] & 7)) if data[picture + 9] & 0x80 else 0)


def _larger_frame(data: bytes) -> bytes:
    picture = data.index(b",", 13 + 3 * (2 << (data[10] & 7)))
    return _overwritten(data, picture + 5, struct.pack("<HH", 65_535, 65_535))


# ---- files that Pillow cannot write --------------------------------------------------------------------------------


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """One PNG chunk: length, kind, body, checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int, height: int, bit_depth: int, colour_type: int, scanlines: bytes, *chunks: bytes, interlace: int = 0
) -> bytes:
    """A PNG file from its scan lines, each with its filter byte in front; `chunks` stand before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, interlace)
    pixels = png_chunk(b"IDAT", zlib.compress(scanlines))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + b"".join(chunks) + pixels + png_chunk(b"IEND", b"")


def exif(orientation: int, order: str = ">") -> bytes:
    """An EXIF block, `Exif` and two zero bytes in front, that holds only the orientation; order as in `struct`."""
    head = (b"MM" if order == ">" else b"II") + struct.pack(order + "HI", 42, 8)
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + head + struct.pack(order + "H", 1) + entry + struct.pack(order + "I", 0)


def tiff(
    samples: np.ndarray,
    *,
    photometric: int = 1,
    packed_bits: int | None = None,
    extra_sample: int | None = None,
    claimed_size: tuple[int, int] | None = None,
    tile: tuple[int, int] | None = None,
    tags: dict[int, int] | None = None,
) -> bytes:
    """An uncompressed TIFF of [height, width] or [height, width, samples] in the array's own type and byte order.

    Args:
        photometric: 0 grey, zero is white; 1 grey; 2 RGB; 6 YCbCr; 8 CIE L*a*b*.
        packed_bits: bits a sample, when the array holds rows of packed bytes.
        extra_sample: what the last sample is: 1 premultiplied alpha, 2 alpha.
        claimed_size: (width, height) to write in place of the true one.
        tile: (width, height) of the one tile; one strip by default.
        tags: more tags of one number each.
    """
    order = ">" if samples.dtype.str.startswith(">") else "<"
    bits = packed_bits or samples.dtype.itemsize * 8
    width, height = claimed_size or (samples.shape[1] * 8 // bits if packed_bits else samples.shape[1], len(samples))
    pixels = samples.tobytes()
    where = {273: 8, 278: height, 279: len(pixels)} if tile is None else {322: tile[0], 323: tile[1], 324: 8, 325: 1}
    directory = {
        256: width,
        257: height,
        258: bits,
        259: 1,
        262: photometric,
        277: 1 if samples.ndim == 2 else samples.shape[2],
        339: {"u": 1, "i": 2, "f": 3}[samples.dtype.kind],
        **where,
        **({} if extra_sample is None else {338: extra_sample}),
        **(tags or {}),
    }
    head = (b"MM" if order == ">" else b"II") + struct.pack(order + "HI", 42, 8 + len(pixels))
    entries = [struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in sorted(directory.items())]
    return b"".join([head, pixels, struct.pack(order + "H", len(entries)), *entries, bytes(4)])


def jpeg_segment_end(data: bytes, marker: int) -> int:
    """Where the first segment with this marker ends: a place to put another one."""
    at = data.index(bytes([0xFF, marker]))
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
