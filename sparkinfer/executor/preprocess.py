"""An upright picture into one slot of a model batch: resize, centre crop, arithmetic, layout. Executor side.

The numbers are those of torchvision's `Resize -> CenterCrop -> ToTensor -> Normalize` on the same PIL image, to the
last bit in float32. A `Preprocessor` is built where it runs; the spec it is built from is what pickles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sparkinfer.core.errors import ErrorCode, RowError, Stage, to_row_error
from sparkinfer.core.preprocess_spec import PreprocessSpec

__all__ = ["Preprocessor", "resized"]

LONGEST_SIDE = 1 << 22
"""Pixels. Pillow keeps 3 to 7 float64 weights per row and column of a resized picture: up to 235 MB at this length."""


class Preprocessor:
    """Turns pictures into model inputs, one at a time. Threads may share one.

    Args:
        spec: geometry, arithmetic and layout; a torchvision weights enum must be resolved before.
    """

    def __init__(self, spec: PreprocessSpec) -> None:
        self._spec = spec
        self._filter = Image.Resampling[spec.interpolation.upper()]
        self._dtype: np.dtype[np.generic] = np.dtype(spec.dtype)
        self._levels = None if spec.dtype == "uint8" else _normalised_levels(spec).astype(self._dtype)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Element type of a batch."""
        return self._dtype

    def batch_shape(self, rows: int) -> tuple[int | None, ...]:
        """Shape of a batch, with None where it follows the picture."""
        return self._spec.batch_shape(rows)

    def slot_shape(self, image: Image.Image) -> tuple[int, ...]:
        """Shape of the slot that this picture fills: [channels, height, width], or as `layout` says. Never raises."""
        left, top, right, bottom = _crop_box(*resized(image.width, image.height, self._spec.resize), self._spec.crop)
        height, width, channels = bottom - top, right - left, self._spec.num_channels
        return (channels, height, width) if self._spec.layout == "nchw" else (height, width, channels)

    def write(self, image: Image.Image, out: NDArray[np.generic]) -> None:
        """Writes one picture into its slot.

        Args:
            image: from `decode` with the same spec: RGB, or L for `channels: grey`.
            out: one slot of a batch: `slot_shape(image)` and `dtype`. Undefined after an error.

        Raises:
            RowError: PREPROCESS_FAILED; OUT_OF_MEMORY when memory did not suffice.
        """
        try:
            shape = self.slot_shape(image)
            if out.shape != shape:
                raise RowError(
                    ErrorCode.PREPROCESS_FAILED,
                    f"the picture gives {list(shape)} where the batch takes {list(out.shape)}; "
                    "set preprocess.resize and preprocess.crop so that all pictures come out in one size",
                )
            pixels = np.asarray(self._fitted(image)).reshape(*self._crop_size(shape), self._spec.num_channels)
            if self._spec.channels == "bgr":
                pixels = pixels[..., ::-1]
            pixels = np.moveaxis(pixels, -1, 0)
            planes = out if self._spec.layout == "nchw" else np.moveaxis(out, -1, 0)
            if self._levels is None:
                np.copyto(planes, pixels)
                return
            for plane, levels, channel in zip(planes, self._levels, pixels, strict=True):
                np.take(levels, channel, out=plane, mode="clip")
        except Exception as error:
            raise to_row_error(error, Stage.PREPROCESS) from error

    def _crop_size(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[1:] if self._spec.layout == "nchw" else shape[:2]

    def _fitted(self, image: Image.Image) -> Image.Image:
        """Resized, then cropped; of a landscape picture, columns that the crop drops go half-way.

        Pillow resizes columns first, rounds to 8 bits, then resizes rows, except where the height shrinks much more
        than the width or the picture is tall (since Pillow 13). So in a landscape picture whose height does not shrink
        more, those columns can go before the rows are resized: a fifth of the time less, and equal to the last bit.
        (Pillow's own `box=` would save more, but rounds its corners to float32: in 19 of 20 photographs some pixel
        differs by one level.)
        """
        width, height = resized(image.width, image.height, self._spec.resize)
        left, top, right, bottom = _crop_box(width, height, self._spec.crop)
        columns_first = image.width >= image.height and height * image.width >= width * image.height
        early = columns_first and right - left < width
        self._check_cost(image, width, height, kept=right - left if early else width)
        if early:
            image = self._scaled(image, width, image.height).crop((left, 0, right, image.height))
            left, right, width = 0, right - left, right - left
        image = self._scaled(image, width, height)
        return image if (left, top, right, bottom) == (0, 0, width, height) else image.crop((left, top, right, bottom))

    def _scaled(self, image: Image.Image, width: int, height: int) -> Image.Image:
        return image if image.size == (width, height) else image.resize((width, height), self._filter)

    def _check_cost(self, image: Image.Image, width: int, height: int, *, kept: int) -> None:
        """Refuses what would grow far beyond the picture: a line of pixels scaled up until its short side fits."""
        pixels = max(width * image.height, kept * height)
        if pixels > self._spec.max_pixels or max(width, height) > LONGEST_SIDE:
            raise RowError(
                ErrorCode.PREPROCESS_FAILED,
                f"too long and narrow: {image.width} x {image.height} would be resized to {width} x {height}, "
                f"{pixels} pixels at once (preprocess.max_pixels is {self._spec.max_pixels}); "
                "preprocess.resize: [height, width] gives every picture the same size",
            )


def _normalised_levels(spec: PreprocessSpec) -> NDArray[np.float32]:
    """[channels, 256]: the model's value for each sample, per channel.

    A picture has no more than 256 levels, so looking values up gives the rounding of torchvision's three float32 steps
    (divide by 255, subtract, divide) in one pass over the pixels, for any element type and layout.
    """
    samples = np.broadcast_to(np.arange(256, dtype=np.float32), (spec.num_channels, 256))
    mean, std = (np.asarray(values, np.float32)[:, np.newaxis] for values in (spec.mean, spec.std))
    return (samples / np.float32(1 / spec.rescale) - mean) / std


def resized(width: int, height: int, size: int | tuple[int, int] | None) -> tuple[int, int]:
    """(width, height) after resizing: as torchvision's `Resize`, which rounds the longer side down."""
    if size is None:
        return width, height
    if isinstance(size, tuple):
        return size[1], size[0]
    if width <= height:
        return size, int(size * height / width)
    return int(size * width / height), size


def _crop_box(width: int, height: int, size: int | tuple[int, int] | None) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of the centre crop: as torchvision's `CenterCrop`.

    Sides longer than the picture begin and end outside it. Odd differences follow torchvision, which rounds half to
    even when it cuts, and down at the left and the top when it pads.
    """
    if size is None:
        return 0, 0, width, height
    crop_height, crop_width = size if isinstance(size, tuple) else (size, size)
    left, top = (
        round((side - crop) / 2) if crop <= side else -((crop - side) // 2)
        for side, crop in ((width, crop_width), (height, crop_height))
    )
    return left, top, left + crop_width, top + crop_height
