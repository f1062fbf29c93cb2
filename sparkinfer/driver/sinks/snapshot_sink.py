"""Where the snapshots of a resumable job go. Driver side.

A folder gets one partition, `snapshot=N`, for each: readers see one more column. A Delta or Iceberg table gets one
transaction each, which says in the table's own history that it was snapshot N of this checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import SparkSession

from sparkinfer.core.errors import SinkError, SpecError
from sparkinfer.core.spec import TRANSACTIONAL, SinkSpec
from sparkinfer.driver.checkpoints.checkpoint import KEY, Checkpoint, damaged
from sparkinfer.driver.checkpoints.ledger import Ledger
from sparkinfer.driver.execution import count_table
from sparkinfer.driver.listing import child, hadoop_path, names_in
from sparkinfer.driver.names import quoted, table_name
from sparkinfer.driver.paths import is_hidden, literal
from sparkinfer.driver.write import put_back
from sparkinfer.executor.report import Tally

__all__ = ["COLUMN", "SnapshotSink"]

COLUMN = "snapshot"
"""Partition column of an output that was written in snapshots."""

_FOLDER = re.compile(rf"{COLUMN}=(0|[1-9][0-9]*)")


class SnapshotSink:
    """The output of one checkpoint.

    Args:
        spark: the session.
        sink: the job's.
        checkpoint: whose snapshots these are.
        keys: columns that lead the prediction table.

    Raises:
        SpecError: such a sink cannot take one snapshot exactly once.
    """

    def __init__(self, spark: SparkSession, sink: SinkSpec, checkpoint: Checkpoint, keys: Sequence[str]) -> None:
        self._spark = spark
        self._sink = sink
        self._checkpoint = checkpoint
        if sink.table and sink.format not in TRANSACTIONAL:
            raise SpecError(
                f"a {sink.format} table cannot take a snapshot exactly once",
                key="sink.table",
                allowed=["sink.path", "sink.format: delta", "sink.format: iceberg"],
                hint="write to sink.path; CREATE TABLE ... USING parquet LOCATION makes a table of it",
            )
        if sink.mode == "merge":
            raise SpecError(
                "a resumable job adds rows and merges none",
                key="sink.mode",
                allowed=["error", "overwrite", "append"],
                hint="leave resume out, or merge its table into the other one with SQL",
            )
        if self._in_folders and COLUMN in map(str.lower, keys):
            raise SpecError(
                f"the column {COLUMN!r} cannot be kept: the output of a resumable job has one of that name",
                key="source.keep",
                hint=f"rename it in the input, as input_{COLUMN}",
            )

    @property
    def _in_folders(self) -> bool:
        return self._sink.format not in TRANSACTIONAL

    def of(self, number: int) -> SinkSpec:
        """The sink of one snapshot."""
        if self._in_folders:
            return self._sink.model_copy(update={"path": self._folder(number), "mode": "overwrite"})
        mark = {
            "delta": {
                "txnAppId": self._checkpoint.id,
                "txnVersion": str(number),
                "userMetadata": self._mark(number),  # what `written` finds in the history
            },
            "iceberg": {f"snapshot-property.{_ICEBERG_MARK}": self._mark(number)},
        }[self._sink.format]
        return self._sink.model_copy(update={"mode": "append", "options": {**self._sink.options, **mark}})

    def written(self, number: int) -> Tally | None:
        """What a snapshot without a mark has in the output; None where it is not whole.

        A folder is whole when it has the `_SUCCESS` that Spark's committer writes last.
        """
        if not self._in_folders:
            # To write it again would not do: Delta passes over the query, and nobody would count its rows.
            has = {"delta": self._delta_has, "iceberg": self._iceberg_has}[self._sink.format]
            return Tally() if has(number) else None
        path, fs = hadoop_path(self._spark, f"{self._folder(number)}/_SUCCESS")
        if not fs.exists(path):
            return None
        table = self._spark.read.format(self._sink.format).load(literal(self._folder(number)))
        return count_table(table) if table.columns else None

    def check_new(self) -> None:
        """Refuses an output that is there before the checkpoint is.

        Raises:
            SinkError: it would hold rows twice.
        """
        if not self._in_folders:
            return
        names = [name for name in self._names() if not is_hidden(name)]
        if names:
            raise SinkError(
                f"{self._sink.path!r} is already there, but the checkpoint {self._checkpoint.folder!r} is new",
                key="sink.path",
                hint="name the checkpoint that the output was written with, or choose another output",
            )

    def recover(self, ledger: Ledger, *, planned: bool) -> None:
        """Puts the output in order after a crash: what stepped aside returns, what was written aside goes.

        Args:
            ledger: what is in the output.
            planned: whether every snapshot has its inputs written down: of files, not of streamed tables.

        Raises:
            SpecError: a finished snapshot is gone from the output, or the inputs of one from the checkpoint.
            SinkError: the output has something that no snapshot is, and that readers would count.
        """
        if not self._in_folders:
            return
        path, fs = hadoop_path(self._spark, str(self._sink.path))
        aside = [name for name in self._names() if name.startswith(f".{COLUMN}=") and name.endswith((".new", ".old"))]
        for name in aside:
            if name.endswith(".old"):
                put_back(self._spark, f"{str(self._sink.path).rstrip('/')}/{name[1:].split('.', 1)[0]}")
        there = set(self._names())
        for name in aside:
            if name.endswith(".old") and name[1:].split(".", 1)[0] not in there:
                continue  # nobody knows why it has no successor
            fs.delete(child(self._spark, path, name), True)
        visible = [name for name in self._names() if not is_hidden(name)]
        strange = [name for name in visible if not _FOLDER.fullmatch(name)]
        if strange:
            raise SinkError(
                f"{self._sink.path!r} holds {min(strange)!r}, which is no snapshot, and readers count its rows",
                key="sink.path",
                hint="move it out of the folder, or give it a name that begins with a dot, which readers pass over",
            )
        numbers = {int(name.removeprefix(f"{COLUMN}=")) for name in visible}
        unknown = sorted((numbers | set(ledger.done)) - set(ledger.planned)) if planned else []
        if unknown:
            raise damaged(
                self._checkpoint.path(f"inputs/{unknown[0]:06d}.parquet"),
                "is missing, so nobody knows which inputs its snapshot holds",
                f"restore it; or delete {COLUMN}={unknown[0]} in the output and done/{unknown[0]:06d}.json in the "
                "checkpoint: its inputs are then predicted again",
            )
        empty = {
            number
            for number in ledger.done
            if (number not in numbers or not self._has_files(number)) and ledger.rows_of(number)
        }
        if empty:
            shown = ", ".join(map(str, sorted(empty)[:5]))
            raise SpecError(
                f"the checkpoint says that snapshot {shown} is finished, but {self._sink.path!r} has no "
                f"rows in {COLUMN}={min(empty)}",
                key=KEY,
                hint=f"put the folder back; or delete the checkpoint's done/{min(empty):06d}.json: it is done again",
            )

    def _has_files(self, number: int) -> bool:
        """Whether a snapshot's folder holds any data."""
        path, fs = hadoop_path(self._spark, self._folder(number))
        files = fs.listFiles(path, True)
        while files.hasNext():
            if not is_hidden(files.next().getPath().getName()):
                return True
        return False

    def _folder(self, number: int) -> str:
        return f"{str(self._sink.path).rstrip('/')}/{COLUMN}={number}"

    def _names(self) -> list[str]:
        return names_in(self._spark, str(self._sink.path)) or []

    def _mark(self, number: int) -> str:
        return f"{self._checkpoint.id}:{number}"

    def _delta_has(self, number: int) -> bool:
        """Whether the table's history has the snapshot."""
        path, fs = hadoop_path(self._spark, self._sink.path) if self._sink.path else (None, None)
        if path is None or fs is None:
            name = table_name(self._sink.target, "sink.table")
            there = self._spark.catalog.tableExists(name)
        else:
            name, there = f"delta.{quoted(path.toString())}", fs.exists(path)
        if not there:
            return False
        history = self._spark.sql(f"DESCRIBE HISTORY {name}")
        return not history.where(history["userMetadata"] == self._mark(number)).isEmpty()

    def _iceberg_has(self, number: int) -> bool:
        """Whether the table's history has the snapshot."""
        if not self._sink.table or not self._spark.catalog.tableExists(self._sink.table):
            return False
        self._spark.catalog.refreshTable(self._sink.table)  # a catalogue keeps what it knew for half a minute
        history = self._spark.table(f"{self._sink.table}.snapshots")
        return not history.where(history["summary"][_ICEBERG_MARK] == self._mark(number)).isEmpty()


_ICEBERG_MARK = "sparkinfer-snapshot"
