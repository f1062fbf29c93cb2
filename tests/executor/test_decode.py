"""What decode accepts, which code each bad input gets, and that it leaves the process as it found it."""

import io
import logging
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from PIL import AvifImagePlugin, Image, ImageFile, PngImagePlugin, WebPImagePlugin

from sparkinfer.core.errors import ErrorCode, RowError, Stage
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.decode import decode
from tests.images import (
    CORNERS,
    FORMATS,
    bad_inputs,
    corners,
    encode,
    exif,
    good_image,
    jpeg_segment_end,
    noise,
    png_chunk,
    quarters,
    tiff,
)

SPEC = PreprocessSpec()
BAD = {name: row for name, row in bad_inputs().items() if row[0] is not None}


def refusal(data: bytes, spec: PreprocessSpec = SPEC) -> RowError:
    with pytest.raises(RowError) as caught:
        decode(data, spec)
    return caught.value


# ---- good input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_its_colours(kind: str) -> None:
    size = (48, 48) if kind == "ICO" else (64, 48)
    picture = decode(good_image(kind, size), SPEC)
    assert (picture.mode, picture.size) == ("RGB", size)
    assert np.abs(np.array(corners(picture)) - CORNERS).max() <= 3


def test_grey_channels_give_mode_l() -> None:
    picture = decode(good_image("PNG"), PreprocessSpec(channels="grey", mean=(0.5,), std=(0.5,)))
    assert picture.mode == "L"
    assert corners(picture) == [(round(0.299 * r + 0.587 * g + 0.114 * b),) for r, g, b in CORNERS]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF", "JPEG2000"])
def test_any_buffer_will_do(kind: str) -> None:
    data = good_image(kind)
    column = pa.array([b"before", data, b"behind"], pa.large_binary())
    start, end = 6, 6 + len(data)
    inside = memoryview(column.buffers()[2])[start:end]  # of format "b": signed bytes
    expected = np.asarray(decode(data, SPEC))
    for buffer in (memoryview(data), bytearray(data), pa.py_buffer(data), inside, memoryview(b"x" + data)[1:]):
        assert np.array_equal(decode(buffer, SPEC), expected)


def test_bytes_behind_the_end_do_not_matter() -> None:
    for kind in FORMATS:
        data = good_image(kind, (48, 48))
        assert np.array_equal(decode(data + b"\0trailing" * 9, SPEC), decode(data, SPEC)), kind


def test_the_picture_outlives_the_buffer() -> None:
    buffer = bytearray(good_image("BMP"))
    picture = decode(buffer, SPEC)
    buffer[:] = bytes(len(buffer))
    assert corners(picture) == list(CORNERS)


@pytest.mark.parametrize("chunk", [b"zTXt", b"iCCP"])
def test_metadata_that_pillow_refuses_does_not_cost_the_picture(chunk: bytes) -> None:
    """A text of 2 MB, packed: above Pillow's limit for PNG texts and profiles."""
    data = encode(quarters(), "PNG", exif=exif(3))
    packed = png_chunk(chunk, b"name\0\0" + zlib.compress(bytes(2 << 20)))
    with pytest.raises(ValueError, match="too large"):
        Image.open(io.BytesIO(data[:33] + packed + data[33:]))
    assert corners(decode(data[:33] + packed + data[33:], SPEC)) == list(CORNERS[::-1])


@pytest.mark.parametrize(
    "chunk", [png_chunk(b"tEXt", b"Comment\0hello"), png_chunk(b"eXIf", exif(6)[6:])], ids=["tEXt", "eXIf"]
)
def test_a_wrong_checksum_of_metadata_does_not_cost_the_picture(chunk: bytes) -> None:
    data = good_image("PNG")
    damaged = chunk[:-1] + bytes([chunk[-1] ^ 1])
    assert corners(decode(data[:33] + damaged + data[33:], SPEC)) == list(CORNERS)
    assert set(corners(decode(data[:-12] + damaged + data[-12:], SPEC))) == set(CORNERS)


def test_a_damaged_exif_item_does_not_cost_an_avif_picture() -> None:
    block = Image.Exif()
    block[0x010F] = "Maker of cameras"
    block[0x0112] = 3
    data = encode(quarters((64, 32)), "AVIF", quality=100, subsampling="4:4:4", exif=block.tobytes())
    at = data.rindex(b"MM\0*", 0, data.index(b"Maker"))
    found = corners(decode(data[:at] + b"??" + data[at + 2 :], SPEC))
    assert np.abs(np.array(found) - CORNERS[::-1]).max() <= 4, "and it is still turned"


def test_a_short_colour_profile_does_not_cost_the_picture() -> None:
    data = encode(quarters((64, 32)), "JPEG", quality=95, subsampling=0, exif=exif(3))
    at = jpeg_segment_end(data, 0xE1)
    segment = b"\xff\xe2" + struct.pack(">H", 14) + b"ICC_PROFILE\0"
    with pytest.raises(OSError, match="cannot identify"):
        Image.open(io.BytesIO(data[:at] + segment + data[at:]))
    found = corners(decode(data[:at] + segment + data[at:], SPEC))
    assert np.abs(np.array(found) - CORNERS[::-1]).max() <= 3


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_gets_its_code(name: str) -> None:
    data, code = BAD[name]
    error = refusal(data)
    assert error.code == code
    assert error.stage == (Stage.READ if code == ErrorCode.EMPTY else Stage.DECODE)
    assert error.message
    assert "0x" not in error.message, "no addresses of objects: messages can be grouped by"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate", "big_tiff": True}),
        ("BMP", {}),
        ("AVIF", {}),
        ("JPEG2000", {}),
        ("JPEG2000", {"no_jp2": True}),
        ("PPM", {}),
        ("ICO", {"sizes": [(32, 32)]}),
        ("ICO", {"sizes": [(32, 32)], "bitmap_format": "bmp"}),
    ],
    ids=str,
)
def test_a_file_cut_anywhere_is_truncated_or_complete(kind: str, options: dict[str, object]) -> None:
    data = encode(noise(), kind, **options)
    whole = np.asarray(decode(data, SPEC))
    complete = []
    for cut in {*range(32, 220), *range(220, len(data), 97), *range(len(data) - 30, len(data))}:
        try:
            picture = decode(data[:cut], SPEC)
        except RowError as error:
            refused = error
        else:
            assert np.array_equal(picture, whole), f"cut at {cut}: a partial picture passed for the whole"
            complete.append(cut)
            continue
        assert refused.code == ErrorCode.TRUNCATED, f"cut at {cut}: {refused.code} {refused.message}"
    assert all(cut > len(data) * 0.9 for cut in complete), "only what stands behind the pixels may be missing"


@pytest.mark.parametrize("kind", ["GIF", "PNG", "MPO"])
def test_a_later_frame_that_is_cut_does_not_matter(kind: str) -> None:
    data = encode(noise(), kind, save_all=True, append_images=[noise(seed=1)])
    assert np.array_equal(decode(data[: len(data) * 4 // 5], SPEC), decode(data, SPEC))


def test_a_flipped_bit_in_png_pixels_is_corrupt() -> None:
    data = encode(noise(), "PNG")
    first, last = data.index(b"IDAT") + 4, data.index(b"IEND") - 8
    for at in range(first, last, 41):
        assert refusal(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]).code == ErrorCode.CORRUPT


def test_the_pixel_cap_is_the_spec_s() -> None:
    at_cap, below = PreprocessSpec(max_pixels=64 * 48), PreprocessSpec(max_pixels=64 * 48 - 1)
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM"):
        assert decode(good_image(kind), at_cap).size == (64, 48)
        error = refusal(good_image(kind), below)
        assert error.code == ErrorCode.TOO_MANY_PIXELS
        assert "64 x 48" in error.message
        assert "max_pixels" in error.message
    assert refusal(good_image("ICO", (32, 32)), PreprocessSpec(max_pixels=1000)).code == ErrorCode.TOO_MANY_PIXELS


@pytest.mark.parametrize("options", [{"lossless": True}, {}, {"exif": exif(1)}], ids=["VP8L", "VP8", "VP8X"])
def test_the_size_of_a_webp_canvas_is_known_before_pillow_opens_it(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "__init__", _must_not_be_called)
    error = refusal(encode(noise((50, 37)), "WEBP", **options), PreprocessSpec(max_pixels=100))
    assert "50 x 37" in error.message


def _must_not_be_called(*_: object) -> None:
    raise AssertionError("opened")


def test_a_picture_above_pillow_s_own_limit_is_decoded_when_the_spec_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for kind in FORMATS:
        assert decode(good_image(kind, (48, 48)), SPEC).size == (48, 48)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize(
    "error",
    [
        OSError("odd"),
        ValueError("odd"),
        SyntaxError("odd"),
        RuntimeError("odd"),
        struct.error("odd"),
        zlib.error("odd"),
        EOFError(),
        IndexError("odd"),
        KeyError("odd"),
        TypeError("odd"),
        OverflowError("odd"),
        AssertionError(),
        SystemError("odd"),
        RecursionError("odd"),
        ZeroDivisionError("odd"),
        UnicodeDecodeError("utf-8", b"", 0, 1, "odd"),
        Image.DecompressionBombError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_whatever_pillow_raises_becomes_corrupt(error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: object) -> None:
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    caught = refusal(good_image(kind))
    assert caught.code == ErrorCode.CORRUPT
    assert "odd" in caught.message or type(error).__name__ in caught.message


@pytest.mark.parametrize("error", [MemoryError(), OSError("out of memory error when reading image file")], ids=str)
def test_out_of_memory(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: object) -> None:
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    caught = refusal(good_image("PNG"))
    assert (caught.code, caught.stage) == (ErrorCode.OUT_OF_MEMORY, Stage.DECODE)


def test_an_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(KeyboardInterrupt):
        decode(good_image("PNG"), SPEC)
    assert Image.MAX_IMAGE_PIXELS is not None


@pytest.mark.parametrize(
    "data",
    [
        tiff(np.zeros((2, 2, 3), np.float32), photometric=2),
        tiff(np.zeros((2, 2), np.uint8), tags={259: 50_002}),
        b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 1\nMAXVAL 255\nTUPLTYPE GRAYSCALE\nENDHDR\n\0",
    ],
    ids=["float RGB TIFF", "TIFF with JPEG XL inside", "PAM"],
)
def test_kinds_that_pillow_does_not_know_are_unsupported(data: bytes) -> None:
    assert refusal(data).code == ErrorCode.UNSUPPORTED_FORMAT


def test_a_pillow_without_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    files = good_image("AVIF"), good_image("WEBP"), good_image("TIFF", compression="tiff_lzw")
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    monkeypatch.delattr(WebPImagePlugin, "_webp")
    monkeypatch.delattr("PIL.Image.core.libtiff_decoder")
    assert [refusal(data).code for data in files] == [ErrorCode.UNSUPPORTED_FORMAT] * 3


# ---- the process ----------------------------------------------------------------------------------------------------


def _with(data: bytes, start: int, end: int, patch: bytes) -> bytes:
    return data[:start] + patch + data[end:]


ODD_BUT_GOOD = {
    "EXIF that ends early": encode(quarters(), "JPEG", exif=exif(6)[:20]),
    "TIFF with a tag that ends early": tiff(np.zeros((4, 4), np.uint8), tags={270: 1, 34665: 0x7FFFFFF0}),
    "PNG with an animation of no frames": _with(good_image("PNG"), 33, 33, png_chunk(b"acTL", bytes(8))),
    "icon of another size than it says": _with(good_image("ICO", (32, 32)), 6, 8, b"\x07\x07"),
    "palette with alphas": encode(quarters().quantize(4), "PNG", transparency=b"\0\x80\xff\xff"),
}


@pytest.mark.parametrize("name", list(ODD_BUT_GOOD))
def test_no_warning_leaves(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        decode(ODD_BUT_GOOD[name], SPEC)
    assert [str(w.message) for w in caught] == []
    assert caplog.records == []


def test_pillow_warns_again_when_others_use_it() -> None:
    decode(ODD_BUT_GOOD["EXIF that ends early"], SPEC)
    with pytest.warns(UserWarning, match="Corrupt|Truncated|corrupt|EXIF|read"):
        Image.open(io.BytesIO(ODD_BUT_GOOD["EXIF that ends early"]))


def _switches() -> tuple[object, ...]:
    return (
        Image.MAX_IMAGE_PIXELS,
        AvifImagePlugin.DEFAULT_MAX_THREADS,
        ImageFile.LOAD_TRUNCATED_IMAGES,
        PngImagePlugin.MAX_TEXT_CHUNK,
        warnings.showwarning,
        list(warnings.filters),
    )


def test_nothing_of_pillow_s_or_python_s_settings_stays_changed() -> None:
    before = _switches()
    for kind in FORMATS:
        decode(good_image(kind, (48, 48)), SPEC)
    for data, _ in BAD.values():
        refusal(data)
    assert _switches() == before


def test_threads_do_not_disturb_each_other() -> None:
    """Good and bad rows in eight threads: the same pictures and codes as one by one, settings back afterwards."""
    before = _switches()
    rows = [good_image(kind, (48, 48)) for kind in FORMATS] + [data for data, _ in BAD.values()]
    rows += list(ODD_BUT_GOOD.values())

    def outcome(data: bytes) -> object:
        try:
            return np.asarray(decode(data, SPEC)).tobytes()
        except RowError as error:
            return error.code, error.message

    expected = [outcome(data) for data in rows]
    barrier = threading.Barrier(8)

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(rows))
        barrier.wait()
        return all(outcome(rows[i]) == expected[i] for i in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert _switches() == before


def test_importing_decode_reads_no_other_plugin_and_no_framework() -> None:
    code = (
        "import sys, sparkinfer.executor.decode, sparkinfer.executor.preprocess;"
        "print([m for m in ('torch', 'onnxruntime', 'pyspark', 'PIL.EpsImagePlugin', 'PIL.PdfImagePlugin')"
        " if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
