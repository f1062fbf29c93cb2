"""The `preprocess:` block: how an upright RGB image becomes one model input. Data, not code. Driver and executors.

Presets are named after training recipes. The defaults give the tensor that torchvision's
`Resize -> CenterCrop -> ToTensor -> Normalize` gives for the same image.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["PRESETS", "PreprocessSpec"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Channel means of ImageNet in [0, 1], RGB: the constants of torchvision's reference training recipe."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Channel standard deviations of ImageNet in [0, 1], RGB: same source."""

PRESETS: dict[str, dict[str, Any]] = {
    # torchvision's reference recipe (references/classification): 256 -> 224, bilinear.
    "imagenet": {},
    # TF-slim's Inception recipe: 87.5 % central crop (342 -> 299), bicubic, values in [-1, 1].
    "imagenet-inception": {
        "resize": 342,
        "crop": 299,
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
    },
    # No resizing, no normalisation: images already have the model's size; values in [0, 1].
    "none": {"resize": None, "crop": None, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)},
}

_WEIGHTS_ENUM = re.compile(r"[A-Za-z0-9_]+_Weights\.[A-Za-z0-9_]+")

Side = Annotated[int, Field(ge=1, le=16_384)]
Colour = Annotated[int, Field(ge=0, le=255)]


class PreprocessSpec(BaseModel):
    """Geometry, arithmetic and layout of one model input.

    The order is fixed: decode, EXIF orientation, alpha over `background`, `resize`, centre `crop`, channel order,
    times `rescale`, minus `mean`, divided by `std` (per channel, in `channels` order), cast, layout.
    With `dtype: uint8` the arithmetic is left out: the model normalises for itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str = Field("imagenet", description="recipe that the other keys start from")
    resize: Side | tuple[Side, Side] | None = Field(
        256, description="shorter side in pixels, or [height, width], or null for none"
    )
    crop: Side | tuple[Side, Side] | None = Field(
        224, description="centre crop in pixels: one side or [height, width], or null for none"
    )
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = Field(
        "bilinear", description="resampling filter, antialiased as in Pillow"
    )
    rescale: float = Field(1 / 255, description="factor from [0, 255]", gt=0)
    mean: tuple[float, ...] = Field(IMAGENET_MEAN, description="per channel, after `rescale`")
    std: tuple[float, ...] = Field(IMAGENET_STD, description="per channel, after `rescale`")
    channels: Literal["rgb", "bgr", "grey"] = Field("rgb", description="channel order of the model input")
    dtype: Literal["float32", "float16", "uint8"] = Field("float32", description="element type of the model input")
    layout: Literal["nchw", "nhwc"] = Field("nchw", description="axis order of the model input")
    exif: bool = Field(True, description="turn the image upright by its EXIF orientation")
    background: tuple[Colour, Colour, Colour] = Field((255, 255, 255), description="RGB behind transparent pixels")
    decode: Literal["exact", "fast"] = Field(
        "exact", description="fast: JPEGs many times too large are decoded at 1/2, 1/4 or 1/8 scale; exact: never"
    )
    decoder: str = Field("pillow", description='pillow, or "module:function" of your own: (bytes, spec) to a PIL image')
    max_pixels: int = Field(178_956_970, description="larger images get TOO_MANY_PIXELS, undecoded", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, value: object) -> object:
        """Accepts a preset's name instead of a block, and starts a block from its preset."""
        if isinstance(value, str):
            value = {"preset": value}
        if not isinstance(value, dict):
            return value
        name = value.get("preset", "imagenet")
        if not isinstance(name, str) or not (name in PRESETS or _WEIGHTS_ENUM.fullmatch(name)):
            raise ValueError(
                f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}, "
                "or a torchvision weights enum such as ResNet50_Weights.IMAGENET1K_V2"
            )
        return {**PRESETS.get(name, {}), **value}

    @model_validator(mode="after")
    def _channels_agree(self) -> PreprocessSpec:
        wanted = self.num_channels
        for key in ("mean", "std"):
            if len(getattr(self, key)) not in (1, wanted):
                raise ValueError(f"{key} needs {wanted} numbers for channels: {self.channels}")
        if any(s <= 0 for s in self.std):
            raise ValueError("std must be above 0")
        return self

    @property
    def num_channels(self) -> int:
        """1 for grey, else 3."""
        return 1 if self.channels == "grey" else 3

    @property
    def is_weights_enum(self) -> bool:
        """True when the preset is a torchvision weights enum, which only a process with torchvision can resolve."""
        return self.preset not in PRESETS

    def resolved(self, recipe: dict[str, Any]) -> PreprocessSpec:
        """This spec with a weights enum's `recipe` underneath: keys that the person set win over it."""
        own = {key: getattr(self, key) for key in self.model_fields_set if key != "preset"}
        return PreprocessSpec.model_validate({**recipe, **own, "preset": "imagenet"})

    def folded(self) -> PreprocessSpec:
        """What is left to do when the model normalises for itself: the same geometry, uint8 NHWC, RGB or grey."""
        changes: dict[str, Any] = {"dtype": "uint8", "layout": "nhwc"}
        if self.channels == "bgr":
            changes |= {"channels": "rgb", "mean": self.mean[::-1], "std": self.std[::-1]}
        return self.model_copy(update=changes)

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) in pixels of every model input, or None when it follows the image."""
        if self.crop is not None:
            return (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        return self.resize if isinstance(self.resize, tuple) else None

    def batch_shape(self, rows: int | None) -> tuple[int | None, ...]:
        """Shape of a batch of `rows` images, with None where it follows the image."""
        height, width = self.output_size or (None, None)
        if self.layout == "nchw":
            return (rows, self.num_channels, height, width)
        return (rows, height, width, self.num_channels)
