"""What a worker still holds of images that are done with."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pyarrow as pa
import pytest

from sparkinfer.core.errors import ErrorCode, RowError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor import batching
from sparkinfer.executor.batching import BatchFactory, slots_that_fit
from sparkinfer.executor.preprocess import Preprocessor
from sparkinfer.executor.rows import Chunk
from tests.executor.chain import RAW, batch, png_of


@pytest.mark.parametrize(
    ("spec", "images"),
    [
        (PreprocessSpec(), 2**30 // (3 * 224 * 224 * 4)),
        (PreprocessSpec(dtype="uint8", layout="nhwc", mean=(0.0,), std=(1.0,), rescale=1.0), 2**30 // (3 * 224 * 224)),
        (PreprocessSpec(resize=None, crop=16_384), 1),
        (PreprocessSpec(resize=None, crop=None), sys.maxsize),
    ],
)
def test_a_batchs_inputs_take_a_gibibyte_at_most(spec, images):
    assert slots_that_fit(spec) == images


class Picture:
    """Stands for pixels; tells when it is gone."""


@pytest.mark.parametrize("raised", [ValueError("damaged"), MemoryError()])
def test_a_row_that_failed_holds_no_pixels_while_its_neighbours_wait(monkeypatch, raised):
    alive = weakref.WeakSet()

    def decoder(data, spec):
        picture = Picture()
        alive.add(picture)
        raise raised

    monkeypatch.setattr(batching, "decoder_of", lambda spec: decoder)
    factory = BatchFactory(RAW, 1 << 30)
    waiting = factory.new(8)
    chunk = Chunk(batch(b"1", b"2"), "content", ("path",))
    for row, data in enumerate(chunk.images()):
        factory.fill(waiting, waiting.reserve(chunk, row), data)
    raised.__traceback__ = None
    gc.collect()
    assert not alive
    waiting.settle_failures()
    assert chunk.pending == 0


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("sliced", [False, True])
def test_images_are_views_into_the_batch(kind, sliced):
    contents = [b"one", None, b"", b"four" * 100]
    column = pa.array([b"before", *contents], kind)[1:] if sliced else pa.array(contents, kind)
    rows = pa.RecordBatch.from_arrays([pa.array(list("abcd")), column], names=["path", "content"])
    images = list(Chunk(rows, "content", ("path",)).images())
    assert [image and bytes(image) for image in images] == [b"one", None, b"", b"four" * 100]
    buffer = column.buffers()[2]
    for image in filter(None, images):
        at = np.frombuffer(image, np.uint8).ctypes.data
        assert buffer.address <= at <= buffer.address + buffer.size - len(image)


@pytest.mark.parametrize("contents", [[None, None], [b"", b""], [b"", None]])
def test_images_of_a_batch_without_bytes(contents):
    rows = batch(*contents)
    images = list(Chunk(rows, "content", ("path",)).images())
    assert [None if image is None else bytes(image) for image in images] == contents


def test_an_image_longer_than_a_copy_is_worth_is_read_in_place(monkeypatch):
    """The same pictures and the same errors either way, whatever the buffer."""
    from sparkinfer.executor import decode
    from tests.images import FORMATS, bad_inputs, good_image

    def outcome(data):
        try:
            return np.asarray(decode.decode(pa.py_buffer(data), RAW)).tobytes()
        except RowError as error:
            return error.code, error.message

    images = [good_image(kind, (32, 32)) for kind in FORMATS] + [data for data, _ in bad_inputs().values() if data]
    copied = [outcome(data) for data in images]
    monkeypatch.setattr(decode, "COPIED_BYTES", 0)
    assert [outcome(data) for data in images] == copied
    assert {found[0] for found in copied if isinstance(found, tuple)} >= {ErrorCode.TRUNCATED, ErrorCode.CORRUPT}
    assert isinstance(outcome(png_of(1, 2, 3)), bytes)


def test_strips_make_the_same_picture_as_the_whole(monkeypatch):
    from PIL import Image

    from sparkinfer.executor import decode
    from tests.images import encode, noise, tiff

    picture = noise((24, 17))
    alpha = Image.linear_gradient("L").resize(picture.size)
    see_through = Image.merge("RGBA", (*picture.split(), alpha))
    floats = np.random.default_rng(0).normal(0, 9, (17, 24)).astype("<f4")
    with_gaps = floats.copy()
    with_gaps[0], with_gaps[5, 3], with_gaps[16, 2] = np.nan, np.inf, -np.inf
    images = [
        encode(see_through, "PNG"),
        encode(see_through.convert("LA"), "PNG"),
        encode(picture.quantize(9), "PNG", transparency=3),
        encode(see_through, "WEBP", lossless=True),
        tiff(np.dstack([np.asarray(alpha), np.asarray(alpha) // 2]), extra_sample=1),
        tiff(floats),
        tiff(with_gaps),
        tiff(np.full((17, 24), np.nan, "<f4")),
        tiff(np.arange(17 * 24, dtype="<i4").reshape(17, 24)),
    ]
    whole = [np.asarray(decode.decode(data, RAW)) for data in images]
    monkeypatch.setattr(decode, "STRIP_PIXELS", 50)
    for data, expected in zip(images, whole, strict=True):
        np.testing.assert_array_equal(np.asarray(decode.decode(data, RAW)), expected)


def test_pillows_settings_hold_until_a_picture_is_in_its_slot(monkeypatch):
    """Pillow's `crop` reads its pixel limit twice: another thread must not put it back in between."""
    from PIL import Image

    seen = []
    write = Preprocessor.write

    def watched(self, image, out):
        seen.append(Image.MAX_IMAGE_PIXELS)
        write(self, image, out)

    monkeypatch.setattr(Preprocessor, "write", watched)
    before = Image.MAX_IMAGE_PIXELS
    factory = BatchFactory(RAW, 1 << 30)
    waiting = factory.new(1)
    chunk = Chunk(batch(png_of(1, 2, 3)), "content", ("path",))
    factory.fill(waiting, waiting.reserve(chunk, 0), next(chunk.images()))
    assert seen == [None]
    assert Image.MAX_IMAGE_PIXELS == before is not None
