"""Colours of every kind of picture against arithmetic. The files are written by hand or by Pillow's encoders."""

import struct

import numpy as np
import pytest
from PIL import Image, features

from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.decode import decode
from tests.images import encode, png, png_chunk, quarters, tiff

SPEC = PreprocessSpec()
GREY = PreprocessSpec(channels="grey", mean=(0.5,), std=(0.5,))
BLUE = PreprocessSpec(background=(10, 20, 200))


def pixels(data: bytes, spec: PreprocessSpec = SPEC) -> list:
    return np.asarray(decode(data, spec)).tolist()


def over(colour: tuple[int, ...], alpha: int, background: tuple[int, ...] = (255, 255, 255)) -> list[int]:
    """alpha x colour + (255 - alpha) x background, over 255, to the nearest whole number."""
    return [(2 * (c * alpha + b * (255 - alpha)) + 255) // 510 for c, b in zip(colour, background, strict=True)]


def ink(cyan: int, magenta: int, yellow: int, black: int) -> list[float]:
    return [(255 - x) * (255 - black) / 255 for x in (cyan, magenta, yellow)]


# ---- PNG -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_grey_png_of_every_depth_spans_black_to_white(depth: int) -> None:
    top = 2**depth - 1
    values = [0, top // 3, top // 2, top]
    bits = "".join(format(v, f"0{depth}b") for v in values).ljust(64, "0")
    line = b"\0" + int(bits, 2).to_bytes(8, "big")[: max(1, 4 * depth // 8)]
    found = pixels(png(4, 1, depth, 0, line))[0]
    expected = [v >> 8 if depth == 16 else v * 255 // top for v in values]
    assert found == [[e] * 3 for e in expected]
    assert pixels(png(4, 1, depth, 0, line), GREY)[0] == expected


def test_16_bit_rgb_png_is_scaled_not_clipped() -> None:
    line = b"\0" + struct.pack(">9H", 0, 255, 256, 0x7FFF, 0x80FF, 0xFFFF, 40_000, 20_000, 1_000)
    assert pixels(png(3, 1, 16, 2, line)) == [[[0, 0, 1], [0x7F, 0x80, 0xFF], [156, 78, 3]]]


def test_16_bit_rgb_png_with_alpha() -> None:
    line = b"\0" + struct.pack(">8H", 0x1000, 0x8000, 0xFF00, 0xFFFF, 0x1000, 0x8000, 0xFF00, 0x4000)
    opaque, thin = pixels(png(2, 1, 16, 6, line), BLUE)[0]
    assert opaque == [0x10, 0x80, 0xFF]
    assert thin == over((0x10, 0x80, 0xFF), 0x40, BLUE.background)


def test_16_bit_grey_png_with_alpha() -> None:
    line = b"\0" + struct.pack(">4H", 0x3000, 0xFFFF, 0x3000, 0x8000)
    assert pixels(png(2, 1, 16, 4, line)) == [[[0x30] * 3, over((0x30,) * 3, 0x80)]]


def test_palette_png() -> None:
    palette = png_chunk(b"PLTE", bytes([250, 10, 20, 30, 240, 50, 60, 70, 230]))
    assert pixels(png(3, 1, 2, 3, b"\0\x18", palette)) == [[[250, 10, 20], [30, 240, 50], [60, 70, 230]]]


@pytest.mark.parametrize("alphas", [(255, 0), (255, 128, 7), (0, 0, 0)], ids=["index", "bytes", "all clear"])
def test_palette_png_with_transparency(alphas: tuple[int, ...]) -> None:
    colours = [(250, 10, 20), (30, 240, 50), (60, 70, 230)]
    chunks = png_chunk(b"PLTE", bytes(sum(colours, ()))), png_chunk(b"tRNS", bytes(alphas))
    full = (*alphas, 255, 255)[:3]
    expected = [over(c, a, BLUE.background) for c, a in zip(colours, full, strict=True)]
    assert pixels(png(3, 1, 8, 3, b"\0\0\1\2", *chunks), BLUE) == [expected]


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_grey_png_with_a_transparent_level(depth: int) -> None:
    top = 2**depth - 1
    key = top // 3 if depth > 1 else 0
    bits = "".join(format(v, f"0{depth}b") for v in (key, top)).ljust(32, "0")
    line = b"\0" + int(bits, 2).to_bytes(4, "big")[: max(1, 2 * depth // 8)]
    data = png(2, 1, depth, 0, line, png_chunk(b"tRNS", struct.pack(">H", key)))
    assert pixels(data, BLUE) == [[list(BLUE.background), [255, 255, 255]]]


def test_a_transparent_16_bit_level_is_compared_in_16_bits() -> None:
    line = b"\0" + struct.pack(">2H", 0x5001, 0x5002)
    data = png(2, 1, 16, 0, line, png_chunk(b"tRNS", struct.pack(">H", 0x5002)))
    assert pixels(data, BLUE) == [[[0x50] * 3, list(BLUE.background)]]


@pytest.mark.parametrize("depth", [8, 16])
def test_rgb_png_with_a_transparent_colour(depth: int) -> None:
    key, other = (4, 5, 6), (4, 5, 7)
    scale = 257 if depth == 16 else 1
    line = b"\0" + struct.pack(">6" + ("H" if depth == 16 else "B"), *(v * scale for v in key + other))
    data = png(2, 1, depth, 2, line, png_chunk(b"tRNS", struct.pack(">3H", *(v * scale for v in key))))
    assert pixels(data, BLUE) == [[list(BLUE.background), list(other)]]


def test_alpha_is_composited_exactly() -> None:
    alphas = np.arange(256, dtype=np.uint8)
    rgba = np.stack([np.full_like(alphas, c) for c in (255, 90, 3)] + [alphas], axis=-1)[np.newaxis]
    found = pixels(encode(Image.fromarray(rgba), "PNG"), BLUE)[0]
    assert found == [over((255, 90, 3), a, BLUE.background) for a in range(256)]


def test_grey_and_alpha_png() -> None:
    grey_alpha = np.array([[[40, 255], [40, 100], [40, 0]]], np.uint8)
    data = encode(Image.fromarray(grey_alpha, "LA"), "PNG")
    assert pixels(data) == [[[40] * 3, over((40,) * 3, 100), [255] * 3]]
    assert pixels(data, GREY) == [[40, over((40,), 100, (255,))[0], 255]]


def test_interlaced_png() -> None:
    """Adam7 of 8 x 8: each pass is a coarser grid of the same picture."""
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    passes = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]
    lines = b"".join(b"\0" + row.tobytes() for y, dy, x, dx in passes for row in grey[y::dy, x::dx])
    assert pixels(png(8, 8, 8, 0, lines, interlace=1), GREY) == grey.tolist()


# ---- JPEG: solid colours, so that only rounding is lost (tolerance 2) ------------------------------------------------


def solid(mode: str, colour: int | tuple[int, ...], **options: object) -> bytes:
    return encode(Image.new(mode, (16, 16), colour), "JPEG", quality=100, **options)


def without_adobe(data: bytes) -> bytes:
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"keep_rgb": True}, {"subsampling": 2}], ids=str)
def test_rgb_jpeg(options: dict[str, object]) -> None:
    assert np.abs(np.array(pixels(solid("RGB", (200, 90, 30), **options))) - (200, 90, 30)).max() <= 2


def test_grey_jpeg() -> None:
    assert np.abs(np.array(pixels(solid("L", 77))) - 77).max() <= 2
    assert np.abs(np.array(pixels(solid("L", 77), GREY)) - 77).max() <= 2


@pytest.mark.parametrize("adobe", [True, False], ids=["Adobe", "no marker"])
@pytest.mark.parametrize("colour", [(0, 0, 0, 0), (0, 0, 0, 255), (200, 30, 90, 40), (255, 0, 0, 0)], ids=str)
def test_cmyk_jpeg_is_read_as_inverted(colour: tuple[int, ...], adobe: bool) -> None:
    """Stored are 255 - ink, as Photoshop writes and browsers read, marker or not. Pillow's encoder writes so."""
    data = solid("CMYK", colour)
    found = pixels(data if adobe else without_adobe(data))
    assert np.abs(np.array(found) - ink(*colour)).max() <= 2


@pytest.mark.parametrize("colour", [(200, 30, 90), (255, 255, 255), (0, 0, 0), (10, 250, 120)], ids=str)
@pytest.mark.parametrize("black", [0, 60], ids=["no black", "some black"])
def test_ycck_jpeg(colour: tuple[int, int, int], black: int) -> None:
    """Adobe transform 2: the three inks, stored inverted, are R, G, B turned into Y, Cb, Cr (JFIF's matrix)."""
    red, green, blue = colour
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    ycc = [round(luma), round(128 + (blue - luma) / 1.772), round(128 + (red - luma) / 1.402)]
    # libjpeg turns YCCK into CMYK by C = 255 - R; taken as inverted ink, the picture's red is then 255 - R.
    stored = [*ycc, 255 - black]
    data = solid("CMYK", tuple(255 - min(s, 255) for s in stored))
    at = data.index(b"Adobe") + 11
    assert data[at] == 0, "Pillow writes transform 0: plain CMYK"
    data = data[:at] + b"\x02" + data[at + 1 :]
    expected = [(255 - c) * (255 - black) / 255 for c in colour]
    assert np.abs(np.array(pixels(data)) - expected).max() <= 3


# ---- TIFF ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_16_bit_grey_tiff(dtype: str) -> None:
    values = np.array([[0, 255, 256, 0x80FF, 0xFFFF]], dtype)
    assert pixels(tiff(values), GREY) == [[0, 0, 1, 0x80, 0xFF]]


def test_grey_tiff_whose_zero_is_white() -> None:
    assert pixels(tiff(np.array([[0, 0x80FF, 0xFFFF]], "<u2"), photometric=0), GREY) == [[255, 255 - 0x80, 0]]
    assert pixels(tiff(np.array([[0, 100, 255]], np.uint8), photometric=0), GREY) == [[255, 155, 0]]


def test_12_bit_grey_tiff() -> None:
    packed = np.array([[0x00, 0x0F, 0xFF, 0x80, 0x04, 0x56]], np.uint8)  # 0x000, 0xFFF, 0x800, 0x456
    assert pixels(tiff(packed, packed_bits=12), GREY) == [[0, 0xFF, 0x80, 0x45]]


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<i4", ">i4", "<u4"])
def test_integers_without_a_known_range_are_stretched(dtype: str) -> None:
    low = 1_000 if dtype == "<u4" else -1_000
    values = np.array([[low, low + 200, low + 510]], dtype)
    assert pixels(tiff(values), GREY) == [[0, 100, 255]]


def test_unsigned_32_bit_values_above_2_to_the_31() -> None:
    assert pixels(tiff(np.array([[0, 2**31, 2**32 - 1]], "<u4")), GREY) == [[0, 128, 255]]


def test_floats_between_0_and_1_are_times_255() -> None:
    assert pixels(tiff(np.array([[0.2, 0.4, 0.6]], "<f4")), GREY) == [[51, 102, 153]]


def test_other_floats_are_stretched_and_nan_is_black() -> None:
    values = np.array([[-2, 0, 3, np.nan, np.inf, -np.inf]], "<f4")
    assert pixels(tiff(values), GREY) == [[0, 102, 255, 0, 255, 0]]


@pytest.mark.parametrize("value", [7.0, np.nan])
def test_flat_floats_are_black(value: float) -> None:
    assert pixels(tiff(np.full((1, 3), value, "<f4")), GREY) == [[0, 0, 0]]


def test_rgb_tiff_with_alpha() -> None:
    colour = np.array([[[200, 100, 50, 128]]], np.uint8)
    assert pixels(tiff(colour, photometric=2, extra_sample=2)) == [[over((200, 100, 50), 128)]]


def test_rgb_tiff_with_premultiplied_alpha() -> None:
    """Premultiplied (100, 50, 25) at half alpha is (199, 100, 50); over white, 100 + 127 and so on."""
    colour = np.array([[[100, 50, 25, 128]]], np.uint8)
    expected = np.array([100, 50, 25]) + 127
    assert np.abs(np.array(pixels(tiff(colour, photometric=2, extra_sample=1))) - expected).max() <= 1


def test_grey_tiff_with_premultiplied_alpha() -> None:
    assert np.abs(np.array(pixels(tiff(np.array([[[60, 128]]], np.uint8), extra_sample=1))) - (60 + 127)).max() <= 1


def test_16_bit_rgb_tiff() -> None:
    colour = np.array([[[0x1234, 0x80FF, 0xFFFF]]], "<u2")
    assert pixels(tiff(colour, photometric=2)) == [[[0x12, 0x80, 0xFF]]]


def test_ycbcr_tiff() -> None:
    """JFIF's matrix, for Y 120, Cb - 128 = -20, Cr - 128 = 40."""
    expected = np.array([120 + 1.402 * 40, 120 - 0.344136 * -20 - 0.714136 * 40, 120 + 1.772 * -20])
    found = pixels(tiff(np.array([[[120, 108, 168]]], np.uint8), photometric=6))
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize(
    ("lab", "rgb"), [((255, 0, 0), (255, 255, 255)), ((0, 0, 0), (0, 0, 0))], ids=["white", "black"]
)
def test_lab_tiff(lab: tuple[int, ...], rgb: tuple[int, ...]) -> None:
    assert np.abs(np.array(pixels(tiff(np.array([[lab]], np.uint8), photometric=8))) - rgb).max() <= 2


def test_lab_tiff_has_signed_colour_axes() -> None:
    """sRGB's red is L* 54.29, a* 80.81, b* 69.89 under D50 (ICC's sRGB profile). L* is stored times 2.55."""
    lab = np.array([[[round(54.29 * 2.55), 81, 70]]], np.uint8)
    assert np.abs(np.array(pixels(tiff(lab, photometric=8)))[0, 0] - (255, 0, 0)).max() <= 12


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "zstd", "lzma"])
def test_tiff_compressions(compression: str | None) -> None:
    found = np.array(pixels(encode(quarters(), "TIFF", compression=compression)))
    assert np.abs(found - np.asarray(quarters(), int))[12:36:12, 16:48:16].max() <= 4


@pytest.mark.parametrize("compression", ["group3", "group4"])
def test_fax_tiff(compression: str) -> None:
    picture = quarters().convert("1", dither=Image.Dither.NONE)
    assert pixels(encode(picture, "TIFF", compression=compression), GREY) == np.asarray(picture.convert("L")).tolist()


# ---- other formats ---------------------------------------------------------------------------------------------------


def test_1_bit_pictures() -> None:
    assert pixels(b"P4\n8 1\n" + bytes([0b10100000]), GREY) == [[0, 255, 0, 255, 255, 255, 255, 255]]
    bilevel = Image.frombytes("1", (8, 1), bytes([0b10100000]))
    for kind in ("BMP", "GIF", "PNG"):
        assert pixels(encode(bilevel, kind)) == [[[255] * 3, [0] * 3, [255] * 3] + [[0] * 3] * 5]


def test_netpbm_with_more_than_8_bits() -> None:
    assert pixels(b"P5 3 1 65535\n" + struct.pack(">3H", 0, 0x80FF, 0xFFFF), GREY) == [[0, 0x80, 0xFF]]
    assert pixels(b"P2\n# a comment\n3 1\n1023\n0 512 1023\n", GREY) == [[0, 512 * 65_535 // 1023 >> 8, 255]]


def test_float_netpbm_is_times_255() -> None:
    assert pixels(b"Pf\n2 1\n-1.0\n" + struct.pack("<2f", 0.2, 1.0), GREY) == [[51, 255]]


def test_gif_with_a_transparent_colour() -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([200, 10, 30, 20, 190, 40])
    picture.putpixel((1, 0), 1)
    assert pixels(encode(picture, "GIF", transparency=1), BLUE) == [[[200, 10, 30], list(BLUE.background)]]


@pytest.mark.parametrize("kind", ["WEBP", "AVIF"])
def test_modern_formats_are_in_this_pillow(kind: str) -> None:
    assert features.check(kind.lower()), f"the pinned Pillow wheel must read {kind}"


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("WEBP", {"lossless": True, "exact": True}, 0),
        ("AVIF", {"quality": 100}, 3),
        ("JPEG2000", {}, 0),
        ("ICO", {}, 0),
    ],
)
def test_alpha_in_other_formats(kind: str, options: dict[str, object], tolerance: int) -> None:
    colour, alpha = (200, 100, 50), 102
    data = encode(Image.new("RGBA", (16, 16), (*colour, alpha)), kind, **options)
    assert np.abs(np.array(pixels(data, BLUE)) - over(colour, alpha, BLUE.background)).max() <= tolerance


def test_icon_with_a_bitmap_and_a_mask() -> None:
    picture = Image.new("RGBA", (16, 16), (200, 100, 50, 255))
    picture.putpixel((0, 0), (1, 2, 3, 0))
    found = np.array(pixels(encode(picture, "ICO", sizes=[(16, 16)], bitmap_format="bmp"), BLUE))
    assert found[0, 0].tolist() == list(BLUE.background)
    assert found[1, 1].tolist() == [200, 100, 50]


def test_16_bit_grey_jpeg2000() -> None:
    ramp = np.linspace(0, 65_535, 64, dtype=np.uint16).reshape(8, 8)
    found = np.array(pixels(encode(Image.fromarray(ramp), "JPEG2000"), GREY))
    assert np.abs(found - (ramp >> 8)).max() <= 1


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF", "TIFF", "MPO"])
def test_animations_and_pages_give_the_first_frame(kind: str) -> None:
    first, second = Image.new("RGB", (32, 32), (200, 30, 40)), Image.new("RGB", (32, 32), (20, 30, 210))
    data = encode(first, kind, save_all=True, append_images=[second, first])
    assert np.abs(np.array(pixels(data)) - (200, 30, 40)).max() <= 6


def test_grey_is_the_luma_of_itu_r_601() -> None:
    assert pixels(encode(Image.new("RGB", (1, 1), (200, 100, 50)), "PNG"), GREY) == [
        [round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)]
    ]


def test_colour_profiles_are_not_applied() -> None:
    colour = Image.new("RGB", (2, 2), (200, 100, 50))
    assert pixels(encode(colour, "PNG", icc_profile=b"\0" * 128)) == [[[200, 100, 50]] * 2] * 2
