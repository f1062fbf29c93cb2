"""The report's picture: images per second, warm and first job, and peak memory. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.figures import spread
from tests.benchmarks.report import Measured
from tests.benchmarks.roster import OURS

__all__ = ["draw_chart"]

HIGHLIGHT, PLAIN, PALE = "#c2410c", "#475569", "#cbd5e1"


def draw_chart(measured: Measured, path: Path) -> None:
    """Writes a PNG: a bar per contestant with the median, whiskers from the smallest to the largest value."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [c for c in reversed(measured.contestants) if measured.outcomes[c.name].runs]
    titles = [c.title for c in shown]
    colours = [HIGHLIGHT if c.name == OURS else PLAIN for c in shown]
    figure, (speed, memory) = plt.subplots(
        1, 2, figsize=(11, 1.6 + 0.55 * len(shown)), width_ratios=(3, 2), sharey=True, layout="constrained"
    )
    warm = [measured.rates(c.name, "warm") for c in shown]
    _bars(speed, titles, warm, colours, height=0.72)
    first = [spread(measured.rates(c.name, "first")).median for c in shown]
    speed.barh(titles, first, color=PALE, height=0.3, label="first job, process start included")
    speed.set_title(f"images/s, warm job ({measured.setting['model']}, {measured.setting['images']})", fontsize=10)
    figure.legend(loc="outside lower left", fontsize=8, frameon=False)
    peaks = [[run.peak / 1e9 for run in measured.outcomes[c.name].runs] for c in shown]
    _bars(memory, titles, peaks, colours, height=0.72)
    memory.set_title("peak memory, GB", fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(axes: Any, titles: list[str], values: list[list[float]], colours: list[str], height: float) -> None:
    spreads = [spread(v) for v in values]
    medians = [s.median for s in spreads]
    whiskers = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    axes.barh(titles, medians, xerr=whiskers, color=colours, height=height, capsize=2, error_kw={"linewidth": 0.8})
    for title, s in zip(titles, spreads, strict=True):
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{s.median:.3g}", (s.high, title), **beside)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
