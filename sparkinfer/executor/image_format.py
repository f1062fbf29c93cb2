"""Which image format some bytes are, and what Pillow does not say about them. Executor side; nothing here pickles.

A format is in the table when it has a signature (so that text never passes for an image), when its size can be known
before anything is decoded, and when Pillow decodes it inside the process. That leaves out TGA (no signature), EPS, PDF,
WMF and SVG (drawings, or outside programs), and the rare rest of Pillow's list, each one more parser open to damaged
files. HEIC needs a decoder that Pillow does not bring. MPO is JPEG with more frames behind, and is read as JPEG.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    IcoImagePlugin,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.ImageFile import ImageFile

from sparkinfer.core.errors import ErrorCode, RowError

__all__ = ["ImageFormat", "check_pixels", "format_names", "identify"]


@dataclass(frozen=True)
class ImageFormat:
    """One format.

    Attributes:
        name: as people say it.
        signature: matches the first bytes.
        open: Pillow's reader: reads the header only (ICO decodes as well).
        ends_early: True when the container says that bytes are missing at the end. Asked after a failure.
        sizes: (width, height) of the pictures inside, where Pillow's reader would already allocate or refuse them.
        verify: raises a `RowError` for damage that Pillow's decoder lets pass.
        essence: the same image without the metadata that may hinder Pillow. The orientation stays.
    """

    name: str
    signature: re.Pattern[bytes]
    open: Callable[[IO[bytes]], ImageFile]
    ends_early: Callable[[memoryview], bool]
    sizes: Callable[[memoryview], list[tuple[int, int]]] | None = None
    verify: Callable[[memoryview], None] | None = None
    essence: Callable[[memoryview], bytes] | None = None


def identify(data: memoryview) -> ImageFormat | None:
    """The format whose signature the bytes carry, or None."""
    return next((kind for kind in _FORMATS if kind.signature.match(data)), None)


def format_names() -> list[str]:
    """Names of the formats that can be decoded."""
    return [kind.name for kind in _FORMATS]


def check_pixels(width: int, height: int, limit: int) -> None:
    """Raises `RowError` TOO_MANY_PIXELS when width times height is above the limit."""
    if width * height > limit:
        raise RowError(
            ErrorCode.TOO_MANY_PIXELS,
            f"{width} x {height} = {width * height} pixels, preprocess.max_pixels is {limit}",
        )


# JPEG: segments 0xFF, marker, length. 0xFF00 and the restart markers stand inside the compressed data.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
_JPEG_METADATA = {*range(0xE1, 0xEE), 0xEF, 0xFE}
"""Application segments and comments, but for JFIF's (0xE0) and Adobe's (0xEE), which tell colours."""


def _jpeg_segments(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of every segment from the first after the start of image; `end` may lie past the data."""
    at = 2
    while found := _JPEG_MARKER.search(data, at):
        at = found.start()
        marker = data[at + 1]
        length = 0 if marker == _JPEG_END else int.from_bytes(data[at + 2 : at + 4], "big")
        yield marker, at, at + 2 + length
        at += 2 + length


def _jpeg_ends_early(data: memoryview) -> bool:
    return all(marker != _JPEG_END for marker, _, _ in _jpeg_segments(data))


def _jpeg_essence(data: memoryview) -> bytes:
    """Without colour profiles, previews, comments: of the application segments stay JFIF, EXIF and Adobe's."""
    kept = [bytes(data[:2])]
    for marker, start, end in _jpeg_segments(data):
        if marker == _JPEG_SCAN:
            return b"".join([*kept, data[start:]])
        if marker not in _JPEG_METADATA or bytes(data[start + 4 : start + 8]) == b"Exif":
            kept.append(bytes(data[start:end]))
    return b"".join(kept)


_PNG_PICTURE = (b"IHDR", b"PLTE", b"IDAT")


def _png_chunks(data: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """(type, start, end) of every chunk: length, type, body, checksum; the last may end past the data."""
    at = 8
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        yield bytes(data[at + 4 : at + 8]), at, end
        at = end


def _png_ends_early(data: memoryview) -> bool:
    return all(kind != b"IEND" for kind, _, _ in _png_chunks(data))


def _png_sound(data: memoryview, start: int, end: int) -> bool:
    """True when the chunk's checksum is right; an incomplete chunk is not judged."""
    return end > len(data) or zlib.crc32(data[start + 4 : end - 4]) == _u32(data, end - 4, ">")


def _png_verify(data: memoryview) -> None:
    """Checks the checksums of the chunks that make the picture: Pillow decodes damaged pixels without a word."""
    for kind, start, end in _png_chunks(data):
        if kind in _PNG_PICTURE and not _png_sound(data, start, end):
            raise RowError(ErrorCode.CORRUPT, f"PNG: wrong checksum in chunk {kind.decode()} at byte {start}")


def _png_essence(data: memoryview) -> bytes:
    """Without texts and profiles, which Pillow refuses above 1 MiB, and without metadata whose checksum is wrong."""
    kept = [
        data[start:end]
        for kind, start, end in _png_chunks(data)
        if kind in (*_PNG_PICTURE, b"tRNS", b"IEND") or (kind == b"eXIf" and _png_sound(data, start, end))
    ]
    return b"".join([data[:8], *kept])


_GIF_EXTENSION, _GIF_PICTURE = b"!,"


def _gif_ends_early(data: memoryview) -> bool:
    """Walks to the end of the first picture: the rest of an animation is not needed."""

    def table(flags: int) -> int:
        return 3 << ((flags & 7) + 1) if flags & 0x80 else 0

    try:
        at = 13 + table(data[10])
        while data[at] in (_GIF_EXTENSION, _GIF_PICTURE):
            is_picture = data[at] == _GIF_PICTURE
            at += 11 + table(data[at + 9]) if is_picture else 2
            while data[at]:  # blocks, each with its length in front, end with an empty one
                at += data[at] + 1
            at += 1
            if is_picture:
                return False
    except IndexError:
        return True
    return False


_WEBP_HEADER = 30
"""Bytes up to the end of the first frame's header or of the canvas size."""


def _webp_ends_early(data: memoryview) -> bool:
    return len(data) < max(_WEBP_HEADER, 8 + _u32(data, 4))


def _webp_sizes(data: memoryview) -> list[tuple[int, int]]:
    """The canvas. Layout: RFC 9649, sections 2.5 to 2.7."""
    head = bytes(data[:_WEBP_HEADER])
    if len(head) < _WEBP_HEADER:
        return []
    if head[12:16] == b"VP8X":
        return [((_u32(data, 24) & 0xFFFFFF) + 1, (_u32(data, 26) >> 8) + 1)]
    if head[12:16] == b"VP8L" and head[20:21] == b"\x2f":
        bits = _u32(data, 21)
        return [((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)]
    if head[12:16] == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return [(_u32(data, 26) & 0x3FFF, _u32(data, 26) >> 16 & 0x3FFF)]
    return []


def _bmp_ends_early(data: memoryview) -> bool:
    declared, pixels = _u32(data, 2), _u32(data, 10)
    return len(data) < declared or len(data) <= pixels


def _ico_entries(data: memoryview) -> list[tuple[int, int]]:
    """(start, end) of every picture in the directory that is there."""
    count = int.from_bytes(data[4:6], "little")
    records = struct.iter_unpack("<8xII", data[6 : 6 + min(16 * count, (len(data) - 6) // 16 * 16)])
    return [(offset, offset + size) for size, offset in records]


def _ico_ends_early(data: memoryview) -> bool:
    entries = _ico_entries(data)
    return len(entries) < int.from_bytes(data[4:6], "little") or any(end > len(data) for _, end in entries)


def _ico_sizes(data: memoryview) -> list[tuple[int, int]]:
    """Of the PNG and BMP files inside, whatever the directory claims. A BMP's height counts picture and mask."""
    sizes = []
    for start, _ in _ico_entries(data):
        head = data[start : start + 24]
        if len(head) < 24:
            continue
        if bytes(head[:4]) == b"\x89PNG":
            sizes.append((_u32(head, 16, ">"), _u32(head, 20, ">")))
        else:
            sizes.append((_u32(head, 4), _u32(head, 8) // 2))
    return sizes


_AVIF_BOX_HEADER = 8
"""Bytes: size and kind."""
_AVIF_HEADER = 1 << 16
"""Bytes within which the properties of the pictures are looked for."""


def _avif_ends_early(data: memoryview) -> bool:
    """Walks the boxes: one reaches past the end, or the one with the pixels is not there."""
    at, has_pixels = 0, False
    while at + 16 <= len(data):
        size, kind = _u32(data, at, ">"), bytes(data[at + 4 : at + 8])
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        has_pixels |= kind == b"mdat"
        if size == 0:  # to the end of the file
            break
        if size < _AVIF_BOX_HEADER:
            return False
        at += size
    return at > len(data) or not has_pixels


_AVIF_SIZE = re.compile(rb"\x00\x00\x00\x14ispe\x00{4}(.{8})", re.DOTALL)


def _avif_sizes(data: memoryview) -> list[tuple[int, int]]:
    """Of every picture inside: libavif calls those above its own limit damaged. Box: ISO/IEC 23008-12, 6.5.3."""
    return [struct.unpack(">II", found[1]) for found in _AVIF_SIZE.finditer(data[:_AVIF_HEADER])]


def _avif_essence(data: memoryview) -> bytes:
    """With the EXIF item under a name that nobody reads; the turn is in properties of their own (irot, imir)."""
    return bytes(data).replace(b"Exif", b"none")


_JPEG2000_END = re.compile(rb"\xff\xd9")


def _jpeg2000_ends_early(data: memoryview) -> bool:
    return _JPEG2000_END.search(data) is None


def _jpeg2000_verify(data: memoryview) -> None:
    """Pillow makes grey of tiles that are missing."""
    if _jpeg2000_ends_early(data):
        raise RowError(ErrorCode.TRUNCATED, "JPEG 2000: no end of codestream")


_TIFF_TYPE_BYTES = dict(zip((*range(1, 14), 16, 17, 18), (1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 8, 8, 8), strict=True))
_TIFF_UNSIGNED = {3: "H", 4: "I", 16: "Q"}
_TIFF_OFFSETS, _TIFF_COUNTS = (273, 324), (279, 325)
"""Tags of strips and tiles: where they begin and how many bytes they have."""


def _tiff_ends_early(data: memoryview) -> bool:
    """Reads the first directory: it, a value, a strip or a tile lies past the end."""
    head = bytes(data[:4])
    order, big = "<" if head.startswith(b"II") else ">", b"+" in head
    word, count_word, entry = ("Q", "Q", 20) if big else ("I", "H", 12)
    found: dict[int, tuple[int, ...]] = {}
    try:
        (at,) = struct.unpack_from(order + word, data, 8 if big else 4)
        (count,) = struct.unpack_from(order + count_word, data, at)
        at += struct.calcsize(order + count_word)
        for start in range(at, at + count * entry, entry):
            tag, kind, length = struct.unpack_from(f"{order}HH{word}", data, start)
            value_at = start + (12 if big else 8)
            if length * _TIFF_TYPE_BYTES.get(kind, 0) > (8 if big else 4):
                (value_at,) = struct.unpack_from(order + word, data, value_at)
            if value_at + length * _TIFF_TYPE_BYTES.get(kind, 0) > len(data):
                return True
            if tag in _TIFF_OFFSETS + _TIFF_COUNTS and kind in _TIFF_UNSIGNED:
                found[tag] = struct.unpack_from(f"{order}{length}{_TIFF_UNSIGNED[kind]}", data, value_at)
    except (struct.error, OverflowError):
        return True
    pairs = zip(_TIFF_OFFSETS, _TIFF_COUNTS, strict=True)
    return any(
        start + size > len(data)
        for starts, sizes in pairs
        for start, size in zip(found.get(starts, ()), found.get(sizes, ()), strict=False)
    )


def _u32(data: memoryview, at: int, order: str = "<") -> int:
    (value,) = struct.unpack_from(order + "I", data, at)
    return int(value)


def _signature(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


_FORMATS = (
    ImageFormat(
        "JPEG", _signature(rb"\xff\xd8\xff"), JpegImagePlugin.jpeg_factory, _jpeg_ends_early, essence=_jpeg_essence
    ),
    ImageFormat(
        "PNG",
        _signature(rb"\x89PNG\r\n\x1a\n"),
        PngImagePlugin.PngImageFile,
        _png_ends_early,
        verify=_png_verify,
        essence=_png_essence,
    ),
    ImageFormat(
        "WebP", _signature(rb"RIFF....WEBP"), WebPImagePlugin.WebPImageFile, _webp_ends_early, sizes=_webp_sizes
    ),
    ImageFormat("GIF", _signature(rb"GIF8[79]a"), GifImagePlugin.GifImageFile, _gif_ends_early),
    ImageFormat(
        "TIFF",
        _signature(rb"II\*\x00|MM\x00\*|II\+\x00|MM\x00\+"),
        TiffImagePlugin.TiffImageFile,
        _tiff_ends_early,
    ),
    ImageFormat(
        "BMP",
        _signature(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\x00\x00\x00"),
        BmpImagePlugin.BmpImageFile,
        _bmp_ends_early,
    ),
    ImageFormat(
        "AVIF",  # the two general brands count only when an AVIF brand follows: HEIC uses them too
        _signature(rb"....ftyp(?:avi[fs]|m[is]f1.{4}(?:.{4}){0,16}?avi[fs])"),
        AvifImagePlugin.AvifImageFile,
        _avif_ends_early,
        sizes=_avif_sizes,
        essence=_avif_essence,
    ),
    ImageFormat(
        "JPEG 2000",
        _signature(rb"\xff\x4f\xff\x51|\x00\x00\x00\x0cjP  \r\n\x87\n"),
        Jpeg2KImagePlugin.Jpeg2KImageFile,
        _jpeg2000_ends_early,
        verify=_jpeg2000_verify,
    ),
    ImageFormat(
        "ICO",
        _signature(rb"\x00\x00\x01\x00[^\x00]\x00"),
        IcoImagePlugin.IcoImageFile,
        _ico_ends_early,
        sizes=_ico_sizes,
    ),
    ImageFormat(
        "netpbm",  # its header has no lengths: Pillow's message says when the data ends early
        _signature(rb"P[1-6f][ \t\r\n]+(?:#[^\r\n]*[\r\n]+)*\d"),
        PpmImagePlugin.PpmImageFile,
        lambda _: False,
    ),
)
