"""How unevenly a pass over the input is spread. Driver only; plain arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkinfer.core.telemetry import TaskState
from sparkinfer.driver.watching.telemetry import TaskRecord

__all__ = ["Imbalance", "imbalance"]


@dataclass(frozen=True)
class Imbalance:
    """How far the heaviest part is above the mean: (max - mean) / mean, so 0.2 is a fifth too long.

    Attributes:
        partitions: of the seconds that partitions take.
        hosts: of the rows that hosts have done.
    """

    partitions: float
    hosts: float


def imbalance(records: Iterable[TaskRecord]) -> Imbalance | None:
    """The imbalance of the pass that has run last.

    Args:
        records: of attempts that are over, in the order of their ends (`Telemetry.records`). Of several attempts at a
            partition the last one counts that has not failed.

    Returns:
        None as long as there is none.
    """
    good = [record for record in records if record.state is not TaskState.FAILED]
    newest = max((record.stage for record in good), default=None)
    last = {record.partition: record for record in good if record.stage == newest}
    if not last:
        return None
    rows: dict[str, int] = defaultdict(int)
    for record in last.values():
        rows[record.host] += record.rows
    return Imbalance(
        partitions=_above_mean([record.seconds for record in last.values()]), hosts=_above_mean(list(rows.values()))
    )


def _above_mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return max(values) / mean - 1 if mean else 0.0
