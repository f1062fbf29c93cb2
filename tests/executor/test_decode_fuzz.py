"""Damaged files by the hundred: an image or a coded row, never another exception, never a warning."""

import functools

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from sparkinfer.core.errors import ErrorCode, RowError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.decode import decode
from tests.images import encode, exif, noise, png, png_chunk, tiff

CODES = {
    ErrorCode.EMPTY,
    ErrorCode.UNSUPPORTED_FORMAT,
    ErrorCode.TRUNCATED,
    ErrorCode.CORRUPT,
    ErrorCode.TOO_MANY_PIXELS,
    ErrorCode.OUT_OF_MEMORY,
}
SPEC = PreprocessSpec(max_pixels=1_000_000)  # a mutated header must not make the test itself large
GREY = PreprocessSpec(max_pixels=1_000_000, channels="grey", mean=(0.5,), std=(0.5,))


@functools.cache
def seeds() -> list[bytes]:
    """Small valid files of every format and of the kinds that are decoded in different ways."""
    picture, other = noise((24, 17)), noise((24, 17), seed=1)
    frames = {"save_all": True, "append_images": [other]}
    return [
        encode(picture, "JPEG", exif=exif(6)),
        encode(picture, "JPEG", progressive=True),
        encode(picture.convert("CMYK"), "JPEG"),
        encode(picture, "MPO", **frames),
        encode(picture, "PNG", exif=exif(6)),
        encode(picture.quantize(9), "PNG", transparency=3),
        encode(picture, "PNG", **frames),
        png(2, 2, 16, 0, b"\0\0\1\0\2" * 2, png_chunk(b"tRNS", b"\0\1")),
        encode(picture, "GIF", **frames),
        encode(picture, "WEBP", exif=exif(6)),
        encode(picture, "WEBP", lossless=True),
        encode(picture, "WEBP", **frames),
        encode(picture, "TIFF"),
        encode(picture, "TIFF", compression="tiff_lzw"),
        encode(picture, "TIFF", compression="jpeg"),
        encode(picture.convert("1"), "TIFF", compression="group4"),
        tiff(np.arange(12, dtype="<f4").reshape(3, 4)),
        tiff(np.arange(12, dtype=">u2").reshape(3, 4), photometric=0, tags={274: 6}),
        encode(picture, "BMP"),
        encode(picture.quantize(9), "BMP"),
        encode(picture, "AVIF", exif=exif(6)),
        encode(picture, "JPEG2000"),
        encode(picture, "JPEG2000", no_jp2=True),
        encode(picture, "PPM"),
        b"P2\n3 2\n15\n1 2 3 4 5 6\n",
        encode(picture, "ICO", sizes=[(16, 16)]),
        encode(picture, "ICO", sizes=[(16, 16)], bitmap_format="bmp"),
    ]


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """A valid file with bytes changed, cut out, doubled, or spliced with another file."""
    data = bytearray(draw(st.sampled_from(seeds())))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.sampled_from([1, 1, 2, 4, 8, 40]))
        match draw(st.sampled_from(["set", "set", "random", "cut out", "double", "end", "splice"])):
            case "set":
                data[at : at + length] = bytes([draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))]) * length
            case "random":
                data[at : at + length] = draw(st.binary(min_size=length, max_size=length))
            case "cut out":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
            case "end":
                del data[at:]
            case _:
                data[at:] = draw(st.sampled_from(seeds()))[at:]
    return bytes(data)


def survives(data: bytes) -> None:
    for spec, mode in ((SPEC, "RGB"), (GREY, "L")):
        try:
            picture = decode(data, spec)
        except RowError as error:
            refused = error
        else:
            assert isinstance(picture, Image.Image)
            assert picture.mode == mode
            assert picture.tobytes()
            continue
        assert refused.code in CODES, refused.code
        assert refused.message


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damaged_files())
def test_damaged_files(data: bytes) -> None:
    survives(data)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
@example(b"\xff\xd8\xff")
@example(b"RIFF\0\0\0\0WEBP")
@example(b"GIF89a")
@example(b"II*\0")
@example(b"II*\0\x08\0\0\0")
@example(b"MM\0+\0\x08\0\0" + b"\xff" * 8)
@example(b"BM" + bytes(12) + b"\x28\0\0\0")
@example(b"\0\0\1\0\1\0")
@example(b"\0\0\0\x0cftypavif")
@example(b"P6 1")
def test_any_bytes(data: bytes) -> None:
    survives(data)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 25), st.binary(max_size=120))
def test_a_signature_and_anything_behind(index: int, tail: bytes) -> None:
    survives(seeds()[index][:24] + tail)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "WEBP"]), st.binary(max_size=80))
def test_no_exif_block_costs_a_picture(kind: str, block: bytes) -> None:
    picture = decode(encode(noise((24, 17)), kind, exif=exif(1)[:14] + block), SPEC)
    assert sorted(picture.size) == [17, 24]
