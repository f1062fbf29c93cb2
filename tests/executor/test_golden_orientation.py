"""EXIF orientations 1 to 8 in every format that carries one, against the definition of the tag.

EXIF 2.32: the tag says which side of the upright picture the stored row 0 and the stored column 0 are.
"""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.decode import decode
from tests.images import CORNERS, corners, encode, exif, png, png_chunk, quarters, tiff

SPEC = PreprocessSpec()
AS_STORED = PreprocessSpec(exif=False)

SIZE = (64, 32)  # quarters of whole JPEG blocks, so that lossy codecs blur no border
UPRIGHT = np.asarray(quarters(SIZE))
ROWS = UPRIGHT.transpose(1, 0, 2)
STORED = {
    1: UPRIGHT,  # row 0 is the top, column 0 the left side
    2: UPRIGHT[:, ::-1],  # top, right
    3: UPRIGHT[::-1, ::-1],  # bottom, right
    4: UPRIGHT[::-1],  # bottom, left
    5: ROWS,  # left, top
    6: ROWS[::-1],  # right, top
    7: ROWS[::-1, ::-1],  # right, bottom
    8: ROWS[:, ::-1],  # left, bottom
}

OPTIONS = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "MPO": {"quality": 95, "subsampling": 0, "save_all": True, "append_images": [quarters((32, 32))]},
    "PNG": {},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": 100, "subsampling": "4:4:4"},
}

everyway = pytest.mark.parametrize("orientation", list(STORED))


def stored(orientation: int) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(STORED[orientation]))


@everyway
@pytest.mark.parametrize("order", [">", "<"], ids=["big endian", "little endian"])
@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("JPEG", 2), ("MPO", 2), ("PNG", 0), ("WEBP", 0), ("AVIF", 6)],
)
def test_exif(orientation: int, order: str, kind: str, tolerance: int) -> None:
    picture = decode(encode(stored(orientation), kind, exif=exif(orientation, order), **OPTIONS[kind]), SPEC)
    assert picture.size == SIZE
    assert np.abs(np.asarray(picture, int) - UPRIGHT).max() <= tolerance


@everyway
def test_tiff_by_its_own_tag(orientation: int) -> None:
    data = tiff(np.ascontiguousarray(STORED[orientation]), photometric=2, tags={274: orientation})
    assert np.array_equal(decode(data, SPEC), UPRIGHT)
    assert np.array_equal(decode(data, AS_STORED), UPRIGHT), "it is part of the format, not EXIF"


@everyway
def test_compressed_tiff(orientation: int) -> None:
    data = encode(stored(orientation), "TIFF", compression="tiff_lzw", tiffinfo={274: orientation})
    assert np.array_equal(decode(data, SPEC), UPRIGHT)


@everyway
def test_exif_false_leaves_pixels_as_stored(orientation: int) -> None:
    data = encode(stored(orientation), "PNG", exif=exif(orientation))
    assert np.array_equal(decode(data, AS_STORED), STORED[orientation])


@everyway
def test_grey_and_transparent_pictures_turn_too(orientation: int) -> None:
    grey = np.ascontiguousarray(STORED[orientation][..., 0])
    spec = PreprocessSpec(channels="grey", mean=(0.5,), std=(0.5,))
    assert np.array_equal(decode(encode(Image.fromarray(grey), "PNG", exif=exif(orientation)), spec), UPRIGHT[..., 0])
    half = Image.merge("LA", (Image.fromarray(grey), Image.new("L", grey.shape[::-1], 0)))
    turned = decode(encode(half, "PNG", exif=exif(orientation)), SPEC)
    assert turned.size == SIZE
    assert np.asarray(turned).min() == 255


def test_exif_behind_the_pixels_of_a_png() -> None:
    """The standard allows the eXIf chunk after the pixels."""
    line = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(STORED[6]))
    data = png(32, 64, 8, 2, line)
    at = data.index(b"IEND") - 4
    late = data[:at] + png_chunk(b"eXIf", exif(6)[6:]) + data[at:]
    assert np.array_equal(decode(late, SPEC), UPRIGHT)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0garbage, not a TIFF header",
        b"Exif\0\0II*\0",
        b"Exif\0\0MM\0*\xff\xff\xff\xff",
        b"Exif\0\0II+\0\x08\0\0\0" + b"\xff" * 28,
        exif(6)[:20],
        exif(9),
        exif(0),
        exif(6).replace(struct.pack(">HHI", 0x0112, 3, 1), struct.pack(">HHI", 0x0112, 2, 70_000)),
        exif(6).replace(struct.pack(">HHI", 0x0112, 3, 1), struct.pack(">HHI", 0x0112, 99, 1)),
    ],
    ids=["bare", "garbage", "short", "far", "big TIFF", "cut", "9", "0", "long text", "unknown type"],
)
def test_a_damaged_exif_block_leaves_a_good_picture_alone(kind: str, block: bytes) -> None:
    picture = decode(encode(quarters(SIZE), kind, exif=block, **OPTIONS[kind]), SPEC)
    assert picture.size == SIZE
    assert np.abs(np.array(corners(picture)) - CORNERS).max() <= 3


def test_a_tiff_with_a_lost_exif_directory() -> None:
    data = tiff(UPRIGHT, photometric=2, tags={34665: 0x7FFFFFFF, 34853: 3})
    assert np.array_equal(decode(data, SPEC), UPRIGHT)


def test_orientation_does_not_reach_the_image_after_it() -> None:
    """Two files in one buffer object: nothing is remembered between calls."""
    turned = encode(stored(6), "PNG", exif=exif(6))
    plain = encode(quarters(SIZE), "PNG")
    for data in (turned, plain, turned, plain):
        assert np.array_equal(decode(io.BytesIO(data).getbuffer(), SPEC), UPRIGHT)
