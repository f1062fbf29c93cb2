"""The preprocessor against torchvision's own transforms on the same PIL image, and against arithmetic."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sparkinfer.core.errors import ErrorCode, RowError, Stage
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.preprocess import Preprocessor
from tests.images import noise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def prepared(image: Image.Image, **options: object) -> np.ndarray:
    """One slot written by the preprocessor, poisoned before so that a pixel left out shows."""
    preprocessor = Preprocessor(PreprocessSpec(**options))
    slot = np.full(preprocessor.slot_shape(image), 77, preprocessor.dtype)
    preprocessor.write(image, slot)
    return slot


def by_torchvision(
    image: Image.Image, *, resize: object = 256, crop: object = 224, interpolation: str = "bilinear"
) -> np.ndarray:
    from torchvision import transforms as t

    steps: list = []
    if resize is not None:
        size = list(resize) if isinstance(resize, tuple) else resize
        steps.append(t.Resize(size, t.InterpolationMode(interpolation)))
    if crop is not None:
        steps.append(t.CenterCrop(crop))
    return t.Compose([*steps, t.ToTensor(), t.Normalize(MEAN, STD)])(image).numpy()


# ---- geometry, bit for bit ------------------------------------------------------------------------------------------

SIZES = [
    (256, 256), (224, 224), (500, 375), (375, 500), (257, 255), (255, 257), (100, 80), (33, 47), (1, 1), (2, 1),
    (640, 427), (427, 640), (1000, 224), (224, 1000), (223, 225), (300, 300), (1, 90), (90, 1), (1024, 31), (31, 1024),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_the_default_recipe_is_torchvision_s(size: tuple[int, int]) -> None:
    image = noise(size)
    assert np.array_equal(prepared(image), by_torchvision(image))


@pytest.mark.parametrize(
    ("resize", "crop"),
    [
        (None, 224),
        (None, (224, 100)),
        (None, None),
        ((224, 224), None),
        ((64, 200), None),
        ((200, 64), (96, 96)),
        (32, 48),
        (33, 48),
        (48, 33),
        (64, (31, 90)),
        (64, (90, 31)),
        (57, (57, 57)),
        (3, 1),
        (1, 1),
        (40, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(90, 61), (61, 90), (224, 224), (225, 223), (50, 50), (7, 300)], ids=str)
def test_every_kind_of_resize_and_crop_is_torchvision_s(size: tuple[int, int], resize: object, crop: object) -> None:
    image = noise(size)
    assert np.array_equal(prepared(image, resize=resize, crop=crop), by_torchvision(image, resize=resize, crop=crop))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"])
@pytest.mark.parametrize("size", [(301, 200), (200, 301), (40, 30), (30, 40)], ids=str)
def test_every_filter_is_torchvision_s(size: tuple[int, int], interpolation: str) -> None:
    image = noise(size)
    options = {"resize": 96, "crop": 83, "interpolation": interpolation}
    assert np.array_equal(prepared(image, **options), by_torchvision(image, **options))


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 200),
    height=st.integers(1, 200),
    resize=st.one_of(st.none(), st.integers(1, 90), st.tuples(st.integers(1, 90), st.integers(1, 90))),
    crop=st.one_of(st.none(), st.integers(1, 90), st.tuples(st.integers(1, 90), st.integers(1, 90))),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
)
def test_any_geometry_is_torchvision_s(
    width: int, height: int, resize: object, crop: object, interpolation: str
) -> None:
    image = noise((width, height))
    options = {"resize": resize, "crop": crop, "interpolation": interpolation}
    assert np.array_equal(prepared(image, **options), by_torchvision(image, **options))


def test_small_pictures_are_padded_with_black_before_the_arithmetic() -> None:
    slot = prepared(Image.new("RGB", (2, 2), (255, 255, 255)), resize=None, crop=5)
    black, white = (
        [-m / s for m, s in zip(MEAN, STD, strict=True)],
        [(1 - m) / s for m, s in zip(MEAN, STD, strict=True)],
    )
    inside = np.zeros((5, 5), bool)
    inside[1:3, 1:3] = True  # 3 to share: 1 before, 2 behind
    assert np.allclose(slot[:, inside].T, white, atol=1e-6)
    assert np.allclose(slot[:, ~inside].T, black, atol=1e-6)


def test_odd_differences_round_half_to_even() -> None:
    ramp = Image.fromarray(np.arange(7, dtype=np.uint8)[np.newaxis].repeat(7, 0))
    options = {"resize": None, "dtype": "uint8", "channels": "grey", "mean": (0.5,), "std": (0.5,)}
    for crop, left in ((6, 0), (4, 2), (2, 2), (5, 1)):  # differences 1, 3, 5, 2: halves 0.5, 1.5, 2.5, 1
        assert prepared(ramp, crop=crop, **options)[0, 0].tolist() == list(range(left, left + crop))


# ---- long and narrow -------------------------------------------------------------------------------------------------


def test_a_wide_line_of_pixels() -> None:
    """1 x 5000 grows to 256 x 1,280,000 in torchvision: 1.3 GB. Here the crop comes before the second step."""
    ramp = np.linspace(0, 255, 5000).astype(np.uint8)
    image = Image.fromarray(ramp[np.newaxis, :, np.newaxis].repeat(3, 2))
    slot = prepared(image, dtype="uint8")
    assert slot.shape == (3, 224, 224)
    assert set(np.unique(slot)) <= {126, 127, 128}, "the middle of the ramp"


@pytest.mark.parametrize("size", [(1, 100_000), (100_000, 1)], ids=["tall", "wide"])
def test_what_would_grow_too_large_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(RowError) as caught:
        prepared(Image.new("RGB", size))
    assert (caught.value.code, caught.value.stage) == (ErrorCode.PREPROCESS_FAILED, Stage.PREPROCESS)
    assert f"{size[0]} x {size[1]}" in caught.value.message
    assert "max_pixels" in caught.value.message


def test_one_size_for_all_takes_any_shape() -> None:
    assert prepared(Image.new("RGB", (100_000, 1)), resize=(64, 64), crop=None).shape == (3, 64, 64)


# ---- arithmetic and layout ------------------------------------------------------------------------------------------


def one_pixel(colour: tuple[int, ...] | int, **options: object) -> list[float]:
    mode = "L" if isinstance(colour, int) else "RGB"
    return prepared(Image.new(mode, (1, 1), colour), resize=None, crop=None, **options).ravel().tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_rescale_mean_and_std(dtype: str, layout: str) -> None:
    found = one_pixel((10, 100, 250), rescale=0.5, mean=(1, 2, 3), std=(2, 4, 5), dtype=dtype, layout=layout)
    assert found == pytest.approx([(5 - 1) / 2, (50 - 2) / 4, (125 - 3) / 5], rel=1e-3 if dtype == "float16" else 1e-6)


def test_one_mean_and_std_serve_all_channels() -> None:
    assert one_pixel((0, 51, 255), mean=(0.5,), std=(0.5,)) == pytest.approx([-1, -0.6, 1], abs=1e-6)


def test_bgr_takes_mean_and_std_in_its_own_order() -> None:
    assert one_pixel((10, 20, 30), channels="bgr", rescale=1, mean=(1, 2, 3), std=(1, 1, 1)) == [29, 18, 7]


def test_grey() -> None:
    assert one_pixel(51, channels="grey", mean=(0.1,), std=(0.5,)) == pytest.approx([0.2], abs=1e-6)


def test_uint8_leaves_the_arithmetic_to_the_model() -> None:
    assert one_pixel((10, 20, 30), dtype="uint8", mean=(9,), std=(9,), rescale=9) == [10, 20, 30]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_layouts_hold_the_same_numbers(dtype: str, channels: str) -> None:
    image = noise((60, 40))
    options = {"resize": None, "crop": (30, 50), "dtype": dtype, "channels": channels}
    planes, rows = prepared(image, layout="nchw", **options), prepared(image, layout="nhwc", **options)
    assert planes.shape == (3, 30, 50)
    assert np.array_equal(planes, rows.transpose(2, 0, 1))
    centre = np.asarray(image)[5:35, 5:55]
    expected = prepared(image, layout="nhwc", **{**options, "dtype": "uint8"})
    assert np.array_equal(expected, centre if channels == "rgb" else centre[..., ::-1])


def test_float16_is_float32_rounded_once() -> None:
    image = noise((300, 260))
    assert np.array_equal(prepared(image, dtype="float16"), by_torchvision(image).astype(np.float16))


@pytest.mark.parametrize("level", [0, 1, 127, 128, 254, 255])
def test_every_element_type_is_near_exact_arithmetic(level: int) -> None:
    exact = [(level / 255 - m) / s for m, s in zip(MEAN, STD, strict=True)]
    assert one_pixel((level,) * 3) == pytest.approx(exact, abs=1e-6)


# ---- the batch ------------------------------------------------------------------------------------------------------


def test_shapes_and_types() -> None:
    preprocessor = Preprocessor(PreprocessSpec(layout="nhwc", dtype="float16"))
    assert preprocessor.batch_shape(8) == (8, 224, 224, 3)
    assert preprocessor.dtype == np.float16
    assert preprocessor.slot_shape(Image.new("RGB", (3, 900))) == (224, 224, 3)
    free = Preprocessor(PreprocessSpec(resize=10, crop=None))
    assert free.batch_shape(8) == (8, 3, None, None)
    assert free.slot_shape(Image.new("RGB", (20, 55))) == (3, 27, 10)


def test_only_its_own_slot_is_written() -> None:
    preprocessor = Preprocessor(PreprocessSpec(dtype="uint8"))
    batch = np.full(preprocessor.batch_shape(3), 9, np.uint8)
    preprocessor.write(Image.new("RGB", (300, 300), (1, 2, 3)), batch[1])
    assert (batch[[0, 2]] == 9).all()
    assert [np.unique(plane).tolist() for plane in batch[1]] == [[1], [2], [3]]


def test_the_picture_is_left_as_it_was() -> None:
    image = noise((300, 260))
    before = image.tobytes()
    prepared(image)
    prepared(image, resize=None, crop=None)
    assert (image.size, image.tobytes()) == ((300, 260), before)


def test_threads_may_share_one() -> None:
    preprocessor = Preprocessor(PreprocessSpec())
    images = [noise((120 + i, 100), seed=i) for i in range(24)]
    batch = np.empty(preprocessor.batch_shape(len(images)), np.float32)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(preprocessor.write, images, batch))
    assert all(np.array_equal(slot, by_torchvision(image)) for slot, image in zip(batch, images, strict=True))


@pytest.mark.parametrize(
    ("image", "options", "slot"),
    [
        (Image.new("RGB", (30, 20)), {"resize": None, "crop": None}, (3, 224, 224)),
        (Image.new("RGB", (30, 20)), {"resize": 8, "crop": None}, (3, 8, 8)),
        (Image.new("RGB", (30, 20)), {"layout": "nhwc"}, (3, 224, 224)),
    ],
    ids=["other size", "follows the picture", "other layout"],
)
def test_a_slot_of_another_shape_is_refused_with_both_shapes(image: Image.Image, options: dict, slot: tuple) -> None:
    preprocessor = Preprocessor(PreprocessSpec(**options))
    with pytest.raises(RowError) as caught:
        preprocessor.write(image, np.empty(slot, preprocessor.dtype))
    assert caught.value.code == ErrorCode.PREPROCESS_FAILED
    assert str(list(slot)) in caught.value.message
    assert str(list(preprocessor.slot_shape(image))) in caught.value.message


def test_other_failures_are_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((MemoryError(), ErrorCode.OUT_OF_MEMORY), (ValueError("odd"), ErrorCode.PREPROCESS_FAILED)):

        def resize(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(Image.Image, "resize", resize)
        with pytest.raises(RowError) as caught:
            prepared(Image.new("RGB", (30, 20)))
        assert (caught.value.code, caught.value.stage) == (code, Stage.PREPROCESS)
        assert pickle.loads(pickle.dumps(caught.value)).code == code


def test_a_picture_of_the_wrong_mode_is_refused() -> None:
    with pytest.raises(RowError) as caught:
        prepared(Image.new("L", (30, 20)))
    assert caught.value.code == ErrorCode.PREPROCESS_FAILED
