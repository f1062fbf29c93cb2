"""Looks for INT8 settings that keep the model's answers. Helper process only; knows no framework.

The quantiser and the judge are handed in: this module decides what to try next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from sparkinfer.executor.optimization_report import Attempt
from sparkinfer.executor.trial import Difference

__all__ = ["Int8Settings", "Quantizer", "Search", "search_int8"]


@dataclass(frozen=True)
class Int8Settings:
    """Arguments of the quantiser.

    Attributes:
        calibration: minmax, entropy or percentile: how an activation's range follows from the images.
        activations: uint8 or int8; weights are int8.
        reduce_range: 7-bit weights.
        layers_only: additions, pooling and the like stay in float.
        exclude: layers that stay in float.
    """

    calibration: str = "minmax"
    activations: str = "uint8"
    reduce_range: bool = False
    layers_only: bool = False
    exclude: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [self.calibration, "U8S8" if self.activations == "uint8" else "S8S8", "per channel"]
        parts += ["7-bit weights"] if self.reduce_range else []
        parts += ["layers with weights only"] if self.layers_only else []
        parts += [f"{len(self.exclude)} most sensitive layers in float"] if self.exclude else []
        return ", ".join(parts)


class Quantizer(Protocol):
    """What `runtimes.onnx_optimize.Quantizer` offers."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers with weights."""

    def quantize(self, target: Path, **settings: object) -> None:
        """Writes a variant; takes the fields of `Int8Settings`."""

    def quantize_alone(self, target: Path, layer: str, *, calibration: str) -> None:
        """Writes the variant in which one layer alone is quantised."""


@dataclass
class Search:
    """Outcome.

    Attributes:
        found: settings that keep enough answers; the variant made with them is the last one written. Or None.
        attempts: all that were tried, in order.
    """

    found: Int8Settings | None = None
    attempts: list[Attempt] = field(default_factory=list)


_FIRST = (
    Int8Settings(),
    Int8Settings(layers_only=True),
    Int8Settings(calibration="entropy"),
    Int8Settings(calibration="percentile"),
    Int8Settings(activations="int8"),
    Int8Settings(reduce_range=True),
)
"""Everything quantised first, the fastest kind; then what transformers need (their softmax and normalisation layers
lose most); then calibrations that take longer; then what suits other processors (int8 ARM, 7-bit weights x86 without
VNNI)."""


def search_int8(
    quantizer: Quantizer,
    target: Path,
    *,
    judge: Callable[[Path], Difference],
    error: Callable[[Path], float],
    min_agreement: float,
    say: Callable[[str], None],
) -> Search:
    """Tries settings until one keeps enough answers.

    First whole-model settings; then, with the one of least error, the layers that suffer most stay in float, more and
    more of them, up to half.

    Args:
        quantizer: made for the model.
        target: file for variants; holds the last one tried.
        judge: compares a variant with the original on images that were not calibrated on.
        error: `Difference.error` of a variant, to rank layers by.
        min_agreement: share in [0, 1] that is enough.
        say: told about progress.
    """
    search = Search()
    tried: list[tuple[Difference, Int8Settings]] = []

    def passes(settings: Int8Settings) -> bool:
        quantizer.quantize(target, **asdict(settings))
        found = judge(target)
        tried.append((found, settings))
        search.attempts.append(Attempt(str(settings), found.agreement, found.max_confidence_change))
        say(f"INT8 {settings}: agreement {found.agreement:.1%}")
        if found.agreement >= min_agreement:
            search.found = settings
        return search.found is not None

    if any(passes(settings) for settings in _FIRST):
        return search
    _, best = min(tried, key=lambda pair: pair[0].error)
    say(f"ranking {len(quantizer.layers)} layers by what INT8 costs each of them")
    ranking = _ranking(quantizer, target, best, error)
    any(passes(Int8Settings(**{**asdict(best), "exclude": tuple(ranking[:count])})) for count in _counts(len(ranking)))
    return search


def _ranking(quantizer: Quantizer, target: Path, best: Int8Settings, error: Callable[[Path], float]) -> list[str]:
    """Layers by the error that quantising each of them alone brings, the worst first."""
    errors = {}
    for layer in quantizer.layers:
        quantizer.quantize_alone(target, layer, calibration=best.calibration)
        errors[layer] = error(target)
    return sorted(errors, key=lambda layer: -errors[layer])


def _counts(layers: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ... up to half the layers."""
    count = 1
    while count <= layers // 2:
        yield count
        count += 1 if count < 4 else max(1, 1 << (count.bit_length() - 2))
