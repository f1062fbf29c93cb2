"""Checks and numpy work on model inputs and outputs, shared by the runtimes. Executor side; nothing pickles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sparkinfer.core.errors import ModelError
from sparkinfer.core.model_spec import TensorInfo
from sparkinfer.core.preprocess_spec import PreprocessSpec

__all__ = [
    "SCORES_RANK",
    "Array",
    "as_embedding",
    "as_scores",
    "check_input",
    "given_input",
    "run_in_chunks",
    "zero_batch",
]

Array = npt.NDArray[np.generic]

SCORES_RANK = 2
"""Scores are [batch, num_classes]."""
_PREPROCESS_DTYPES = ("float32", "float16", "uint8")
_TRIAL_SIDE = 224
"""Pixels: height and width of a trial image where neither the spec nor the model fixes them."""


def given_input(preprocess: PreprocessSpec, name: str = "input") -> TensorInfo:
    """What the spec's preprocess block gives, in a model's words."""
    return TensorInfo(name=name, shape=preprocess.batch_shape(None), dtype=preprocess.dtype)


def check_input(wanted: TensorInfo, preprocess: PreprocessSpec) -> None:
    """Compares the input that a model declares with the one that the preprocess block gives.

    A dimension that either side leaves open fits anything; the batch dimension is the runtime's affair.

    Raises:
        ModelError: they differ; names both sides, the preprocess key to change and to what.
    """
    given = given_input(preprocess, wanted.name)
    difference = _difference(wanted, given, preprocess)
    if difference is not None:
        key, hint = difference
        raise ModelError(
            f"the model wants {wanted}, the spec's preprocess gives {given.dtype}{_dims(given)} "
            f"(layout {preprocess.layout}, channels {preprocess.channels})",
            key=key,
            hint=hint,
        )


def _dims(info: TensorInfo) -> str:
    return str(info).partition(info.dtype)[2]


def _difference(wanted: TensorInfo, given: TensorInfo, preprocess: PreprocessSpec) -> tuple[str, str] | None:
    """The first key that does not fit, and a hint."""
    if len(wanted.shape) != len(given.shape):
        return "model.path", "an image input has four dimensions: batch, channels, height, width in either layout"
    if not _fit(wanted.shape[1:], given.shape[1:]):
        other = preprocess.model_copy(update={"layout": "nhwc" if preprocess.layout == "nchw" else "nchw"})
        if _fit(wanted.shape[1:], other.batch_shape(None)[1:]):
            return "preprocess.layout", f"set preprocess.layout: {other.layout}"
        by_axis = dict(zip(preprocess.layout, wanted.shape, strict=True))
        if not _fit((by_axis["c"],), (preprocess.num_channels,)):
            return "preprocess.channels", _channels_hint(by_axis["c"])
        size = f"[{by_axis['h'] or 'any height'}, {by_axis['w'] or 'any width'}]"
        square = by_axis["h"] is not None and by_axis["h"] == by_axis["w"]
        return "preprocess.crop", f"set preprocess.crop: {by_axis['h'] if square else size}"
    if isinstance(preprocess.resize, int) and preprocess.crop is None:
        by_axis = dict(zip(preprocess.layout, wanted.shape, strict=True))
        if by_axis["h"] is not None and by_axis["w"] is not None:  # only the shorter side of each picture is set
            square = by_axis["h"] == by_axis["w"]
            return "preprocess.crop", f"set preprocess.crop: {by_axis['h'] if square else [by_axis['h'], by_axis['w']]}"
    if wanted.dtype != given.dtype:
        if wanted.dtype in _PREPROCESS_DTYPES:
            return "preprocess.dtype", f"set preprocess.dtype: {wanted.dtype}"
        return "preprocess.dtype", f"preprocess gives {', '.join(_PREPROCESS_DTYPES)}; convert the model's input"
    return None


def _fit(wanted: Sequence[int | None], given: Sequence[int | None]) -> bool:
    return all(w is None or g is None or w == g for w, g in zip(wanted, given, strict=True))


def _channels_hint(wanted: int | None) -> str:
    value = {1: "grey", 3: "rgb (or bgr)"}.get(wanted or 0)
    return f"set preprocess.channels: {value}" if value else "the model's input is not an image of 1 or 3 channels"


def zero_batch(preprocess: PreprocessSpec, wanted: TensorInfo | None = None, rows: int = 2) -> Array:
    """A batch of zero images to try a model with: the sizes come from the spec, else the model, else 224 pixels."""
    shape = list(preprocess.batch_shape(rows))
    for axis, side in enumerate(shape):
        if side is None:
            known = wanted.shape[axis] if wanted is not None else None
            shape[axis] = known or _TRIAL_SIDE
    return np.zeros([side or 1 for side in shape], dtype=preprocess.dtype)


def run_in_chunks(batch: Array, size: int, run: Callable[[Array], Sequence[Array]]) -> list[Array]:
    """Runs a model whose batch dimension is fixed to `size`: chunks of exactly that size, the last one padded.

    The padding repeats the last image, which every model can take; its results are dropped.
    """
    rows = len(batch)
    parts = []
    for start in range(0, rows, size):
        chunk = batch[start : start + size]
        missing = size - len(chunk)
        if missing:
            chunk = np.concatenate([chunk, np.repeat(chunk[-1:], missing, axis=0)])
        parts.append(run(chunk))
    return [np.concatenate(outputs)[:rows] for outputs in zip(*parts, strict=True)]


def as_scores(output: Array, rows: int, name: str) -> npt.NDArray[np.float32]:
    """An output as float32 [rows, num_classes]; trailing dimensions of one element are dropped.

    Raises:
        ModelError: it has another shape.
    """
    shape = output.shape
    if len(shape) < SCORES_RANK or shape[0] != rows or any(side != 1 for side in shape[2:]):
        raise ModelError(
            f"output {name} gives {output.dtype}{list(shape)} for {rows} images, not [{rows}, num_classes]",
            key="model.output",
            hint="name the output that holds the class scores",
        )
    return output.reshape(rows, -1).astype(np.float32, copy=False)


def as_embedding(output: Array, rows: int, name: str) -> npt.NDArray[np.float32]:
    """An output flattened to float32 [rows, width].

    Raises:
        ModelError: its first dimension is not the batch.
    """
    if output.ndim == 0 or output.shape[0] != rows:
        raise ModelError(
            f"embedding {name} gives {output.dtype}{list(output.shape)} for {rows} images, not [{rows}, width]",
            key="postprocess.embedding",
        )
    return output.reshape(rows, -1).astype(np.float32, copy=False)
