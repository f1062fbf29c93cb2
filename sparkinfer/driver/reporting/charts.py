"""Charts of the report as SVG and HTML text, without a script. Driver side; no Spark.

Shapes are SVG that is stretched to the width there is; words and numbers are HTML, so that they keep their size on a
phone. Nothing has a `style` attribute: the page forbids it. All texts that come in are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkinfer.driver.reporting.text import esc

__all__ = ["axis", "bar", "columns", "plot", "timeline"]

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_INTERVALS = 4
_HEIGHT = 100.0
"""Of the drawing, in its own units."""


def axis(largest: float, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to at least `largest`, evenly spaced: five of them.

    Args:
        largest: value on the axis, 0 or more.
        whole: only whole numbers.
    """
    least = max(largest, 1e-9) / _INTERVALS
    decade = 10.0 ** math.floor(math.log10(least))
    step = next(s * decade for s in _STEPS if s * decade >= least * (1 - 1e-9))
    if whole:
        step = max(1.0, math.ceil(step))
    return [round(step * i, 12) for i in range(_INTERVALS + 1)]


def plot(drawing: str, y_ticks: Sequence[float], x_labels: Sequence[str], y_title: str, x_title: str) -> str:
    """A drawing between its axes.

    Args:
        drawing: from `timeline` or `columns`.
        y_ticks: from `axis`.
        x_labels: evenly spaced from the left edge to the right one.
        y_title: what is measured, with its unit.
        x_title: of the other axis.
    """
    ys = "".join(f"<span>{tick:,.12g}</span>" for tick in reversed(y_ticks))
    xs = "".join(f"<span>{esc(label)}</span>" for label in x_labels)
    return (
        f'<div class="plot"><p class="axis-title">{esc(y_title)}</p><div class="y" aria-hidden="true">{ys}</div>'
        f'{drawing}<div class="x" aria-hidden="true">{xs}</div><p class="axis-title x-title">{esc(x_title)}</p></div>'
    )


def timeline(points: Sequence[tuple[float, float]], top: float, *, label: str, level: float | None = None) -> str:
    """A line over a filled area.

    Args:
        points: (x, y), ascending in x.
        top: y at the upper edge.
        label: the chart in a sentence, for those who do not see it.
        level: a dashed line across.
    """
    first, last = (points[0][0], points[-1][0]) if points else (0.0, 1.0)
    width = max(last - first, 1e-9)
    places = [(1000 * (x - first) / width, _y(y, top)) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.2f}" for x, y in places)
    area = f'<polygon class="area" points="0,{_HEIGHT:g} {line} 1000,{_HEIGHT:g}"/>' if places else ""
    stroke = f'<polyline class="line" points="{line}"/>' if places else ""
    dashed = (
        ""
        if level is None
        else f'<line class="level" x1="0" x2="1000" y1="{_y(level, top):.2f}" y2="{_y(level, top):.2f}"/>'
    )
    return _svg(1000, label, f"{area}{stroke}{dashed}")


def columns(values: Sequence[float], top: float, titles: Sequence[str], *, label: str) -> str:
    """Upright bars side by side.

    Args:
        values: heights, 0 or more.
        top: height at the upper edge.
        titles: what each bar says when pointed at.
        label: the chart in a sentence.
    """
    gap = 0.1 if len(values) <= 60 else 0.0
    drawn = "".join(
        f'<rect class="fill" x="{i + gap:g}" y="{_y(value, top):.2f}" width="{1 - 2 * gap:g}" '
        f'height="{_HEIGHT - _y(value, top):.2f}"><title>{esc(title)}</title></rect>'
        for i, (value, title) in enumerate(zip(values, titles, strict=True))
    )
    return _svg(max(1, len(values)), label, drawn)


def bar(share: float, kind: str = "fill") -> str:
    """A lying bar that fills a share in [0, 1] of its place."""
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/>'
        f'<rect class="{esc(kind)}" width="{100 * share:.2f}" height="10"/>'
        "</svg>"
    )


def _y(value: float, top: float) -> float:
    return _HEIGHT * (1 - min(1.0, max(0.0, value / top if top else 0.0)))


def _svg(width: float, label: str, inside: str) -> str:
    lines = "".join(
        f'<line class="grid" x1="0" x2="{width:g}" y1="{y:g}" y2="{y:g}"/>'
        for y in (_HEIGHT * i / _INTERVALS for i in range(_INTERVALS + 1))
    )
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{esc(label)}">{lines}{inside}</svg>'
    )
