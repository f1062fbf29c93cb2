"""The report: one Markdown page of what was measured, how, and on what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.agreement import MAX_CONFIDENCE_DIFFERENCE, Agreement
from tests.benchmarks.figures import Spread, ratios, spread
from tests.benchmarks.roster import OURS, REFERENCE, Contestant
from tests.benchmarks.rounds import Outcome

__all__ = ["Measured", "markdown", "table"]


@dataclass(frozen=True)
class Measured:
    """Everything that a report tells.

    Attributes:
        setting: what was run, by name: model, images, rows, ...
        rows: images of one job.
        outcomes, agreements: by contestant's name.
        stages: milliseconds per image by stage, on one core; empty when not measured.
        stages_problem: why not.
        machine, versions: facts by name.
    """

    setting: Mapping[str, str]
    rows: int
    contestants: Sequence[Contestant]
    outcomes: Mapping[str, Outcome]
    agreements: Mapping[str, Agreement]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    stages: Mapping[str, float] = field(default_factory=dict)
    stages_problem: str | None = None

    def rates(self, name: str, job: str) -> list[float]:
        """Images per second, a value for each round.

        Args:
            job: first (process start included) or warm.
        """
        return [self.rows / getattr(run, job) for run in self.outcomes[name].runs]

    def against(self, contestant: Contestant, job: str) -> Spread | None:
        """How many times a contestant's images/s ours are; None where one of the two has no figures."""
        if OURS not in self.outcomes or contestant.name == OURS:
            return None
        ours, theirs = self.rates(OURS, job), self.rates(contestant.name, job)
        return ratios(ours, theirs) if ours and theirs else None


def markdown(measured: Measured, chart: str) -> str:
    """The page.

    Args:
        chart: file name of the picture beside it.
    """
    parts = [
        f"# Benchmark: {measured.setting['model']}, {measured.setting['images']}",
        table(("setting", "value"), measured.setting.items()),
        _results(measured),
        f"![images per second and peak memory]({chart})",
        _ratio_section(measured),
        _agreement_section(measured),
        _stage_section(measured),
        _how(measured),
        "## Machine\n\n" + table(("fact", "value"), measured.machine.items()),
        "## Versions\n\n" + table(("package", "version"), measured.versions.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _results(measured: Measured) -> str:
    rows: list[list[str]] = []
    for contestant in measured.contestants:
        outcome = measured.outcomes[contestant.name]
        if not outcome.runs:
            rows.append([contestant.title, outcome.failed or "did not run", "", "", "", ""])
            continue
        first, warm = (spread([getattr(run, job) for run in outcome.runs]) for job in ("first", "warm"))
        rows.append(
            [
                contestant.title + _remark(outcome),
                spread(measured.rates(contestant.name, "warm")).text(1),
                warm.text(1),
                first.text(1),
                f"{spread([run.first - run.warm for run in outcome.runs]).median:.1f}",
                spread([run.peak / 1e9 for run in outcome.runs]).text(2),
            ]
        )
    head = ("contestant", "images/s, warm", "warm job, s", "first job, s", "start-up, s", "peak memory, GB")
    return (
        "## Results\n\nMedian (smallest to largest) over the rounds. First: from the start of the process to the end "
        "of its first job. Warm: the median of the later jobs in the same session. Start-up: first minus warm. Peak "
        "memory: largest sum of the proportional set sizes of all processes, JVM included.\n\n" + table(head, rows)
    )


def _remark(outcome: Outcome) -> str:
    """What went wrong with a contestant that has figures all the same."""
    crashed = [run.exit_status for run in outcome.runs if run.exit_status]
    remarks = [f"exit status {crashed[0]} after its jobs in {len(crashed)} rounds"] if crashed else []
    if outcome.failed:
        remarks.append(f"{outcome.failed}; {len(outcome.runs)} rounds")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _ratio_section(measured: Measured) -> str:
    rows: list[list[str]] = []
    for contestant in measured.contestants:
        warm, first = measured.against(contestant, "warm"), measured.against(contestant, "first")
        if warm is None or first is None:
            continue
        goal = f"{contestant.goal:g}" if contestant.goal else ""
        met = "" if not contestant.goal else "yes" if warm.median >= contestant.goal else "no"
        rows.append([contestant.title, warm.text(2), goal, met, first.text(2)])
    if not rows:
        return ""
    return (
        "## sparkinfer against the others\n\nImages/s of sparkinfer divided by the other's, round by round; above 1 "
        "sparkinfer is faster.\n\n" + table(("against", "warm job", "goal", "met", "first job"), rows)
    )


def _agreement_section(measured: Measured) -> str:
    rows = [
        [
            contestant.title,
            f"{found.rows:,}",
            str(found.top1_different),
            f"{found.confidence_difference:.1e}",
            found.problem or "yes",
        ]
        for contestant in measured.contestants
        if (found := measured.agreements.get(contestant.name)) is not None
    ]
    if not rows:
        return ""
    return (
        f"## Same outputs\n\nEvery job of every round was compared with the first output of the {REFERENCE}: the same "
        f"best class on every row, confidence within {MAX_CONFIDENCE_DIFFERENCE:g}. Shown is the largest difference of "
        "all jobs.\n\n" + table(("contestant", "rows", "other best class", "largest difference", "agrees"), rows)
    )


def _stage_section(measured: Measured) -> str:
    if measured.stages_problem:
        return f"## Where the time goes\n\nNot measured: {measured.stages_problem}"
    if not measured.stages:
        return ""
    total = sum(measured.stages.values())
    rows = [[stage, f"{ms:.2f}", f"{100 * ms / total:.0f} %"] for stage, ms in measured.stages.items()]
    rows.append(["all", f"{total:.2f}", "100 %"])
    return (
        "## Where the time goes\n\nsparkinfer's executor chain alone, with no Spark, on one core: processor time for "
        f"each image. {1000 / total:.1f} images/s a core.\n\n" + table(("stage", "ms an image", "share"), rows)
    )


def _how(measured: Measured) -> str:
    notes = [(contestant.title, contestant.tuning) for contestant in measured.contestants]
    return (
        "## How\n\nAll contestants read the same files, run the same model with one intra-op thread in as many workers "
        "as there are cores, and write Parquet. All but the iterator pandas UDF (TorchScript) have the same ONNX "
        "session options; the peers that take Python code share one decoding function (Pillow). In every round each "
        "contestant runs in a process of its own, alone, in shuffled order.\n\n"
        + table(("contestant", "tuning"), notes)
    )
