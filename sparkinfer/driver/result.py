"""What a job did, for its caller and for its report. Driver side; plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["OUTCOME", "JobResult", "Retried"]


@dataclass(frozen=True)
class Retried:
    """What `--retry-errors` did.

    Attributes:
        rows: that ran again. Where several rows have one name, all of them, good ones too.
        failed: of these, rows that had failed.
        mended: by how many fewer fail now.
        stay: failed rows that did not run, as their input is gone or has changed.
        errors: of the rows that ran again, those that fail now, by code.
        samples: one path for each code in `errors`.
    """

    rows: int = 0
    failed: int = 0
    mended: int = 0
    stay: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """30 of 38 failed rows mended, 8 fail again, 2 stay: their input is gone or has changed."""
        again = f", {sum(self.errors.values()):,} fail again" if self.errors else ""
        stay = f", {self.stay:,} stay: their input is gone or has changed" if self.stay else ""
        return f"{self.mended:,} of {self.failed:,} failed rows mended{again}{stay}"

    def outcome(self, table_rows: int, table_errors: dict[str, int] | None) -> dict[str, Any]:
        """For the report.

        Args:
            table_rows: rows of the whole table.
            table_errors: its failed rows by code; None before they are known.
        """
        return {
            "failed": self.failed,
            "mended": None if table_errors is None else self.mended,
            "stay": self.stay,
            "table_rows": table_rows,
            "table_errors": table_errors,
        }


@dataclass(frozen=True)
class JobResult:
    """What a finished job did.

    Attributes:
        rows: rows of the prediction table that this run wrote; after a retry all of them.
        errors: failed rows by code.
        samples: one path for each code in `errors`.
        output: path or table.
        seconds: from the start of `run_job` to the commit.
        left_out: files that are no rows, by reason.
        snapshots: how many this run committed; None without `resume`.
        finished_before: inputs that earlier runs on the checkpoint have finished.
        changed: inputs that have changed since they were read.
        retry: of `--retry-errors`; None where that was not asked for.
    """

    run_id: str
    rows: int
    errors: dict[str, int]
    samples: dict[str, str]
    output: str
    seconds: float
    sharding: str
    partitions: int | None
    model_digest: str
    left_out: dict[str, int] = field(default_factory=dict)
    snapshots: int | None = None
    finished_before: int = 0
    changed: int = 0
    retry: Retried | None = None

    @property
    def failed(self) -> int:
        """Rows with an error code."""
        return sum(self.errors.values())

    @property
    def retried(self) -> int | None:
        """Rows that ran again; None where that was not asked for."""
        return None if self.retry is None else self.retry.rows

    def outcome(self) -> dict[str, Any]:
        """For the report, whose rows and errors are those that this run has handled."""
        found = asdict(self)
        if self.retry is not None:
            found |= {
                "rows": self.retry.rows,
                "errors": self.retry.errors,
                "samples": self.retry.samples,
                "retry": self.retry.outcome(self.rows, self.errors),
            }
        return found


OUTCOME = tuple(one.name for one in fields(JobResult))
"""Keys of `JobResult.outcome`: also those of a report whose run has failed, which may know less."""
