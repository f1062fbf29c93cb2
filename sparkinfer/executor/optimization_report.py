"""What `sparkinfer model optimize` is asked and what it answers: plain data, JSON between two processes. Both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from sparkinfer.core.preprocess_spec import PreprocessSpec

__all__ = ["REPORT", "REQUEST", "Attempt", "OptimizeReport", "OptimizeRequest", "Variant"]


@dataclass(frozen=True)
class OptimizeRequest:
    """One run.

    Attributes:
        model: local `.onnx` file.
        images: local image files to calibrate on and to compare with.
        preprocess: what the model's input is made by; may be a weights enum. None: what the file says of itself, or
            the default.
        outputs: where to write: from `optimized`, `fp16` or `int8` to a path.
        fold: move normalisation into the graph.
        labels: to store in the new files, one a class.
        input: name of the image input; the only one by default.
        output: name of the scores; the first two-dimensional output by default.
        min_agreement: share of images in [0, 1] that must keep their best class.
        threads: intra-op threads of the speed measurement.
    """

    model: str
    images: tuple[str, ...]
    preprocess: PreprocessSpec | None
    outputs: dict[str, str]
    fold: bool = True
    labels: tuple[str, ...] | None = None
    input: str | None = None
    output: str | None = None
    min_agreement: float = 0.98
    threads: int = 1


@dataclass(frozen=True)
class Variant:
    """One form of the model, compared with the original.

    Attributes:
        name: original, optimized, fp16 or int8.
        path: its file.
        bytes: its size, with weights in files beside it.
        images_per_second: from pictures of the model's size in memory to scores: normalisation and model.
        agreement: share of compared images in [0, 1] whose best class is the original's.
        max_confidence_change: largest change of any class's confidence on any compared image, in [0, 1].
        settings: how it was made.
        options: `model.options` that it needs on a CPU.
    """

    name: str
    path: str
    bytes: int
    images_per_second: float
    agreement: float
    max_confidence_change: float
    settings: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One INT8 setting that was tried, and how it did."""

    settings: str
    agreement: float
    max_confidence_change: float


@dataclass(frozen=True)
class OptimizeReport:
    """What was made and how it compares.

    Attributes:
        source_digest: SHA-256 of the model; every output carries it.
        variants: the original first.
        preprocess: the block to use with the outputs.
        scores: the output that was compared: name, dtype, shape.
        nodes: of the graph: before, in the outputs, once ONNX Runtime has fused them for a CPU.
        compared: images that the comparison used.
        calibrated: images that INT8 ranges come from.
        held_out: whether the two are apart; too few images make them the same.
        unreadable: image files left out because they do not decode.
        attempts: INT8 settings tried, in order; the last one is what was kept.
        batch_size: images a call in the speed measurement.
        threads: likewise.
    """

    source_digest: str
    variants: tuple[Variant, ...]
    preprocess: PreprocessSpec
    scores: str
    nodes: tuple[int, int, int]
    compared: int
    calibrated: int
    held_out: bool
    unreadable: int
    attempts: tuple[Attempt, ...]
    batch_size: int
    threads: int


REQUEST = TypeAdapter(OptimizeRequest)
REPORT = TypeAdapter(OptimizeReport)
