"""A long run as a series of committed snapshots. Driver side.

    listing - ledger = new inputs -> snapshot N: inputs written down -> output/snapshot=N, whole -> marked as done

Snapshot N of a folder is the folder `snapshot=N` in the output, written aside by Spark and renamed; of a Delta or
Iceberg table a transaction that carries N. Either way it can be done twice and is there once: that, and the order of
the three steps, is all that exactly-once rests on. A run that goes on after a crash finishes the snapshot that was
begun, with the inputs that were written down, or adopts it when its output turns out to be whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from sparkinfer.core.errors import EmptySourceError, SourceError
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.spec import JobSpec, ResumeSpec
from sparkinfer.driver.checkpoints.checkpoint import Checkpoint
from sparkinfer.driver.checkpoints.fingerprint import fingerprint
from sparkinfer.driver.checkpoints.ledger import Ledger
from sparkinfer.driver.checkpoints.lock import Lock, locked
from sparkinfer.driver.checkpoints.snapshots import Found, find, is_streamed, snapshots
from sparkinfer.driver.checkpoints.streaming import stream_snapshots
from sparkinfer.driver.execution import Run, cut, predict_into
from sparkinfer.driver.listing import hadoop_path
from sparkinfer.driver.phases import Phases
from sparkinfer.driver.sinks.snapshot_sink import SnapshotSink
from sparkinfer.driver.sources.inputs import Input
from sparkinfer.driver.sources.row_input import open_rows, rows_of
from sparkinfer.driver.wording import counted
from sparkinfer.driver.write import check_format, write
from sparkinfer.executor.report import Tally

__all__ = ["Progress", "held_for_retry", "run_snapshots"]

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """What a resumable run has done so far.

    Attributes:
        counts: of the snapshots of this run, adopted ones included.
        finished_before: inputs that earlier runs have finished.
        changed: inputs that have changed since they were read; their rows stay as they are.
        snapshots: how many this run has committed.
        sharding: of the last one.
    """

    counts: Tally = field(default_factory=Tally)
    finished_before: int = 0
    changed: int = 0
    snapshots: int = 0
    sharding: str = ""
    left_out: dict[str, int] = field(default_factory=dict)


class _Series:
    """The snapshots of one run on a locked checkpoint."""

    def __init__(
        self,
        run: Run,
        sink: SnapshotSink,
        ledger: Ledger,
        lock: Lock,
        say: Callable[[str], None],
        after_snapshot: Callable[[Tally, int | None, float | None], None],
        committed: Callable[[pa.ChunkedArray | None, int, float], None],
    ) -> None:
        self.progress = Progress()
        self._rows: int | None = None  # of the whole run
        self._share: float | None = None  # of the run's inputs that are done
        self._run, self._spark, self._spec = run, run.spark, run.spec
        self._sink, self._ledger, self._lock = sink, ledger, lock
        self._say, self._after_snapshot, self._committed = say, after_snapshot, committed

    def files(self, found: Found) -> None:
        """Does all that is to do for the files there are now."""
        self._finish_begun(found)
        units = found.units
        compared = self._ledger.compare(units)
        self.progress.finished_before = max(self.progress.finished_before, compared.finished)
        if compared.changed_count > self.progress.changed:
            self.progress.changed = compared.changed_count
            names = ", ".join(compared.changed)
            self._say(f"{compared.changed_count:,} inputs have changed since they were read, for example {names}")
            log.warning("%d inputs have changed since they were read: %s, ...", compared.changed_count, names)
        if not len(compared.new):
            return
        new = found.take(compared.new)
        parts = snapshots(self._spark, new, self._spec, _resume(self._spec).snapshot)
        self._say(
            f"{compared.finished:,} inputs are finished, {len(compared.new):,} to do in "
            f"{len(parts):,} snapshot{'s' if len(parts) > 1 else ''}"
        )
        new_units = new.units
        self._rows = None if new.row_count is None else self.progress.counts.rows + new.row_count
        for part in parts:
            number = self._ledger.next_number
            self._lock.check()
            self._ledger.plan(number, new_units.take(part))
            self._share = float(part[-1] + 1) / len(compared.new)
            self.one(number, new.take(part).to_input(self._spark), new_units.take(part)["modified"])

    def _finish_begun(self, found: Found) -> None:
        """Finishes what an earlier run has begun; a file that is gone by now gives the row that says so."""
        for number in self._ledger.unfinished:
            if self._adopted(number):
                continue
            wanted = self._ledger.units(number)["unit"]
            known = found.units["unit"].combine_chunks()
            gone = wanted.filter(pc.invert(pc.is_in(wanted, known))).to_pylist()
            if gone:
                self._say(f"{len(gone):,} inputs of snapshot {number} are gone since it was begun")
            restored = found.restored(gone)
            positions = pc.index_in(wanted, restored.units["unit"].combine_chunks()).drop_null()
            if len(positions):
                begun = restored.take(np.sort(positions.to_numpy()))
                self.one(number, begun.to_input(self._spark), begun.units["modified"])
            else:
                self._commit(number, Tally(), 0.0)

    def _adopted(self, number: int) -> bool:
        """Whether the output of a snapshot without a mark is there: then it is marked."""
        with self._run.phases.phase("recovery", f"snapshot {number}"):
            counts = self._sink.written(number)
        if counts is None:
            return False
        self._say(f"snapshot {number} was finished but not marked: adopted")
        self._commit(number, counts, 0.0)
        return True

    def one(self, number: int, source: Input, modified: pa.ChunkedArray | None = None) -> None:
        """Predicts one snapshot and commits it.

        Args:
            number: of the snapshot.
            source: its rows.
            modified: when its files were last modified; None for the rows of a streamed table.
        """
        started = time.monotonic()
        snapshot = f"snapshot {number}"
        try:
            sharding = cut(self._run, source, snapshot)
        except EmptySourceError:  # where and sample chose none of these files' rows
            self._commit(number, Tally(), 0.0)
            return
        self.progress.sharding = sharding.reason
        target = self._sink.of(number)
        self._lock.check()
        counts = predict_into(
            lambda table: write(table, target, self._run.run_id, alone=True),
            self._run,
            source,
            sharding,
            snapshot,
            rows=self._rows,
            before=self.progress.counts,
        )
        seconds = time.monotonic() - started
        self._commit(number, counts, seconds)
        self._committed(modified, counts.rows, seconds)

    def batch(self, frame: DataFrame, number: int) -> None:
        """Predicts one batch of a streamed table, unless it is done."""
        if number in self._ledger.done or self._adopted(number):
            return
        self.one(number, rows_of(frame, self._spec.source))

    def _commit(self, number: int, counts: Tally, seconds: float) -> None:
        outcome: dict[str, Any] = {
            "run_id": self._run.run_id,
            "rows": counts.rows,
            "errors": counts.errors,
            "seconds": round(seconds, 3),
        }
        self._ledger.finish(number, outcome)
        self.progress.counts.add(counts)
        self.progress.snapshots += 1
        self._say(f"snapshot {number}: {counts.rows:,} rows, {counted(counts.failed, 'error')} in {seconds:.1f} s")
        self._after_snapshot(self.progress.counts, self._rows, self._share)


def run_snapshots(
    run: Run,
    *,
    say: Callable[[str], None],
    after_snapshot: Callable[[Tally, int | None, float | None], None],
    committed: Callable[[pa.ChunkedArray | None, int, float], None],
    stop: Event | None = None,
) -> Progress:
    """Runs a job with `resume:` until nothing is left to do, or for ever with `resume.trigger`.

    Args:
        run: of the job.
        say: told what happens.
        after_snapshot: told the counts of this run so far, the rows of the whole run and the share of its inputs that
            is done, where they are known; what it raises ends the run, committed output stays.
        committed: told of each snapshot that this run has predicted, when it is committed (`Latency.committed`).
        stop: ends a run with `resume.trigger` after its present snapshot.

    Raises:
        SpecError: the checkpoint is another job's, in use, or damaged; or such an input cannot be resumed.
    """
    spark, spec = run.spark, run.spec
    resume = _resume(spec)
    streamed = is_streamed(spark, spec)
    checkpoint = Checkpoint(spark, resume.checkpoint)
    with locked(checkpoint, run.run_id, say) as lock:
        found = None if streamed else _found(spark, spec, run.phases)
        keys = rows_of(open_rows(spark, spec.source), spec.source).keys if streamed else _keys(found, spec)
        check_format(spark, spec.sink, [*keys, *(c.name for c in PREDICTION_COLUMNS)])
        sink = SnapshotSink(spark, spec.sink, checkpoint, keys)
        if checkpoint.is_new:
            sink.check_new()
        checkpoint.claim(_fingerprint(run, keys))
        ledger = Ledger(spark, checkpoint)
        ledger.check()
        sink.recover(ledger, planned=not streamed)
        series = _Series(run, sink, ledger, lock, say, after_snapshot, committed)
        if streamed:
            stream_snapshots(spark, spec, checkpoint, series.batch, stop)
            return series.progress
        while True:
            if found is not None:
                series.progress.left_out = dict(found.left_out)
                series.files(found)
            if resume.trigger_seconds is None:
                return series.progress
            if (stop or Event()).wait(resume.trigger_seconds):
                return series.progress
            found = _found(spark, spec, run.phases)


def _fingerprint(run: Run, keys: tuple[str, ...]) -> dict[str, Any]:
    return fingerprint(run.spec, run.model.inspected, keys, partial(_qualified, run.spark))


def _qualified(spark: SparkSession, path: str) -> str:
    return str(hadoop_path(spark, path)[0].toString())


@contextmanager
def held_for_retry(run: Run, say: Callable[[str], None]) -> Iterator[Ledger]:
    """Holds the checkpoint while failed rows of its output run again, and puts the output in order after a crash.

    Args:
        run: of a job with `resume:`.
        say: told when there is something to wait for.

    Yields:
        The ledger, which wants to know what has been read again (`Ledger.learn`).

    Raises:
        SpecError: the checkpoint is no job's, another job's, in use, or damaged; or a finished snapshot is gone.
    """
    checkpoint = Checkpoint(run.spark, _resume(run.spec).checkpoint)
    checkpoint.check_used()
    with locked(checkpoint, run.run_id, say):
        checkpoint.claim_for_retry(_fingerprint(run, ()))
        ledger = Ledger(run.spark, checkpoint)
        ledger.check()
        sink = SnapshotSink(run.spark, run.spec.sink, checkpoint, ())
        sink.recover(ledger, planned=not is_streamed(run.spark, run.spec))
        yield ledger


def _found(spark: SparkSession, spec: JobSpec, phases: Phases) -> Found | None:
    """The files there are; None where a run that waits for files has none yet."""
    try:
        with phases.phase("listing"):
            return find(spark, spec)
    except EmptySourceError:
        if _resume(spec).trigger is None:
            raise
        return None


def _keys(found: Found | None, spec: JobSpec) -> tuple[str, ...]:
    if found is None:
        raise SourceError(
            "there is nothing yet",
            key=f"source.{spec.source.kind}",
            hint="a first file must be there before a run with resume.trigger starts",
        )
    return found.keys


def _resume(spec: JobSpec) -> ResumeSpec:
    assert spec.resume is not None
    return spec.resume
