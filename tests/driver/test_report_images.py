"""Pictures for the report, drawn by a process that may die of them."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from sparkinfer.core.errors import ErrorCode, RowError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.driver.reporting import images as report_images
from sparkinfer.driver.reporting.images import EDGE, MAX_JPEG_CHARS, draw
from sparkinfer.executor.thumbnails import thumbnail
from tests.executor import deadly
from tests.images import CORNERS, corners, encode, exif, good_image, png, quarters


def opened(jpeg: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(jpeg)))


@pytest.fixture
def files(tmp_path):
    def write(*contents: bytes):
        paths = [tmp_path / f"{number}.bin" for number in range(len(contents))]
        for path, data in zip(paths, contents, strict=True):
            path.write_bytes(data)
        return paths

    return write


def test_a_picture_is_whole_upright_and_small(files):
    photo = good_image("JPEG", size=(800, 600))
    turned = encode(quarters((600, 800)).transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif(6))
    sizes = [(EDGE, EDGE * 3 // 4), (EDGE * 3 // 4, EDGE)]
    for answer, size in zip(draw(files(photo, turned), PreprocessSpec()), sizes, strict=True):
        picture = opened(answer["jpeg"])
        assert picture.size == size
        assert np.abs(np.subtract(corners(picture), CORNERS)).max() < 12


def test_nothing_of_the_file_but_its_pixels_is_kept():
    data = good_image("JPEG", size=(400, 300), comment=b"taken at home", exif=exif(1))
    small = thumbnail(data, PreprocessSpec(), EDGE)
    assert b"taken at home" not in small
    assert Image.open(io.BytesIO(small)).info.keys() == {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_a_truncated_picture_is_drawn_as_far_as_it_goes():
    data = good_image("JPEG", size=(800, 600))
    small = Image.open(io.BytesIO(thumbnail(data[: len(data) * 3 // 4], PreprocessSpec(), EDGE)))
    assert np.abs(np.subtract(corners(small)[:2], CORNERS[:2])).max() < 12


def test_what_cannot_be_drawn_says_why(files):
    answers = draw(files(b"", b"no image", png(50_000, 50_000, 8, 2, b"\0"), good_image()), PreprocessSpec())
    assert [max(answer) for answer in answers] == ["problem", "problem", "problem", "jpeg"]
    assert answers[0]["problem"] == "zero bytes"
    assert answers[2]["problem"] == "too many pixels to be drawn here"


def test_a_deadly_picture_costs_only_itself(files):
    spec = PreprocessSpec(decoder="tests.executor.deadly:decode")
    answers = draw(files(good_image(), deadly.SEGV, good_image()), spec)
    assert ["jpeg" in answer for answer in answers] == [True, False, True]
    assert answers[1]["problem"] == "drawing it ended the process (SIGSEGV)"


def test_a_picture_without_end_costs_only_itself(files, monkeypatch):
    monkeypatch.setattr(report_images, "SECONDS_EACH", 1.0)
    spec = PreprocessSpec(decoder="tests.executor.deadly:decode")
    answers = draw(files(deadly.HOLD, good_image()), spec)
    assert answers[0]["problem"] == "drawing it took too long"
    assert "jpeg" in answers[1]


def test_a_process_that_does_not_start_is_no_pictures_fault(files, monkeypatch):
    monkeypatch.setattr(report_images, "environment", lambda: {"PYTHONSAFEPATH": "1", "PYTHONHOME": "nowhere"})
    answers = draw(files(good_image(), good_image()), PreprocessSpec())
    assert answers == [{"problem": "drawing it failed with exit status 1"}] * 2


def test_noise_is_small_enough_for_the_page():
    pixels = np.random.default_rng(0).integers(0, 256, (EDGE, EDGE, 3), dtype=np.uint8)
    small = thumbnail(encode(Image.fromarray(pixels), "PNG"), PreprocessSpec(), EDGE)
    assert len(base64.b64encode(small)) < MAX_JPEG_CHARS


def test_the_pixels_of_a_header_are_believed():
    with pytest.raises(RowError) as caught:
        thumbnail(png(9_000, 9_000, 8, 2, b"\0"), PreprocessSpec(), EDGE)
    assert caught.value.code is ErrorCode.TOO_MANY_PIXELS
