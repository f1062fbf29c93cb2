"""A plan for a person (rich) and for a program (JSON). Driver side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkinfer.core.errors import SpecError
from sparkinfer.core.secrets import redacted_data
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.plan import JobPlan, make_plan
from sparkinfer.driver.planning.input import parse_assumed
from sparkinfer.driver.planning.memory import total
from sparkinfer.driver.planning.resource_rule import parse_cluster
from sparkinfer.driver.planning.settings import Setting
from sparkinfer.driver.sources.inputs import size_text
from sparkinfer.driver.splits.sharding import tasks

__all__ = ["plan_command", "plan_json", "show_plan"]

PIPE_COLUMNS = 160
"""Where nobody looks but grep: names of settings stay whole."""


def plan_command(
    spec: JobSpec, *, profile: str | None, cluster: str | None, files: int | None, mean_size: str, as_json: bool
) -> None:
    """Plans and prints: the `sparkinfer plan` command. The arguments are its options.

    Raises:
        UserError: also where something was found that cannot work; by then the plan is printed.
    """
    plan = make_plan(
        spec,
        profile=profile,
        cluster=None if cluster is None else parse_cluster(cluster),
        assumed=None if files is None else parse_assumed(files, mean_size),
    )
    if as_json:
        Console().print(plan_json(plan), soft_wrap=True, markup=False, highlight=False)
    else:
        show_plan(plan, Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS))
    errors = [finding for finding in plan.findings if finding.level == "error"]
    if errors:
        count = "one setting" if len(errors) == 1 else f"{len(errors)} settings"
        raise SpecError(f"this cannot work: {count} above", key=errors[0].setting, hint=errors[0].hint)


def plan_json(plan: JobPlan) -> str:
    """The plan as JSON: the fields of `JobPlan`, sizes in bytes."""
    content: dict[str, Any] = {"can_work": plan.can_work, **asdict(plan)}
    return json.dumps(redacted_data(content), indent=2, ensure_ascii=False)


def show_plan(plan: JobPlan, console: Console) -> None:
    """Prints the plan."""
    summary = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    summary.add_column(style="bold")
    summary.add_column(overflow="fold")
    for name, text in _summary(plan):
        summary.add_row(name, Text(text))
    console.print(summary)
    console.print(_memory(plan))
    console.print(_settings("The job sets", plan.settings))
    if plan.suggested:
        console.print(_settings("For this cluster, by the resource rule", plan.suggested))
    for finding in plan.findings:
        line = Text(f"{finding.level} ", style="bold red" if finding.level == "error" else "bold yellow")
        console.print(line.append(f"{finding.setting}: {finding.message} -> {finding.hint}", style="not bold default"))
    if not plan.findings:
        console.print("nothing was found that does not fit")


def _summary(plan: JobPlan) -> Iterator[tuple[str, str]]:
    cuts, fleet = plan.cuts, plan.fleet
    yield "job", f"{plan.name}; settings: {plan.profile}"
    yield "input", cuts.said
    yield "model", plan.model
    yield "sharding", cuts.reason
    if cuts.snapshots is not None:
        yield "snapshots", f"{cuts.snapshots:,}" + (f" with {cuts.tasks:,} tasks in all" if cuts.tasks else "")
    yield "tasks", _tasks(plan)
    yield "batch", f"at most {plan.batch:,}; {plan.batch_reason}"
    count = "an unknown number of" if fleet.executors is None else f"{fleet.executors:,}"
    most = f", at most {fleet.most:,}" if fleet.most not in {None, fleet.executors} else ""
    cores = "unknown" if fleet.cores is None else fleet.cores
    gpus = f", {fleet.gpus} GPU{'s' if fleet.gpus > 1 else ''}" if fleet.gpus else ""
    at_once = "unknown tasks" if fleet.slots is None else tasks(fleet.slots)
    each = f"each {cores} cores{gpus}: {at_once} at once, {plan.decoders or 'no'} decoder threads"
    yield "executors", f"{count}{most} ({fleet.manager}), {each}; the input is cut for {fleet.parallelism:,} at once"
    if plan.gpu_stages is not None:
        yield "GPUs", plan.gpu_stages


def _tasks(plan: JobPlan) -> str:
    cuts, slots = plan.cuts, plan.fleet.total_slots
    if cuts.partitions is None:
        return "only running tells"
    said = f"{cuts.partitions:,}"
    if cuts.bytes is not None and cuts.tasks:
        mean = cuts.bytes / cuts.tasks
        heaviest = mean * (cuts.heaviest_over_mean or 1)
        said += (
            f", {size_text(mean)} and {(cuts.rows or 0) / cuts.tasks:,.0f} images each, heaviest {size_text(heaviest)}"
        )
    if slots:
        rounds = -(-cuts.partitions // slots)
        said += f"; {slots:,} at once, {rounds:,} round{'s' if rounds > 1 else ''}"
    return said


def _memory(plan: JobPlan) -> Table:
    table = Table(title="Memory of one executor", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("part")
    table.add_column("at most", justify="right")
    table.add_column("how", overflow="fold")
    for part in (plan.heap, *plan.memory):
        table.add_row(part.name, size_text(part.bytes), part.formula)
    least = f"{size_text(total(plan.memory, certain=True))} of it in any case"
    table.add_row("beside the heap", size_text(total(plan.memory)), least, style="bold")
    return table


def _settings(title: str, settings: Iterable[Setting]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("setting", overflow="fold")
    table.add_column("value")
    table.add_column("why", overflow="fold")
    for setting in settings:
        table.add_row(setting.name, "unset" if setting.value is None else setting.value, setting.reason)
    return table
