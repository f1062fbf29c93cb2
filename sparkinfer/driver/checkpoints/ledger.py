"""Which inputs are finished: a small Parquet file for each snapshot, and a mark when its output is there. Driver side.

A snapshot's inputs are written down before it runs and stay the same, so a run that goes on after a crash does the
very same snapshot again; only the facts of a file change when a retry reads it again. Each file says itself which
snapshot of which checkpoint it is of: one in another's place is found before anything is done twice. Comparing the
ledger with a listing is a join in Spark: what is finished never sits in the driver's memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.driver.checkpoints.checkpoint import Checkpoint, damaged, explained_io
from sparkinfer.driver.frames import local_frame, to_arrow
from sparkinfer.driver.listing import JAVA_ERRORS
from sparkinfer.driver.paths import literal

__all__ = ["LOOK_UP", "UNITS", "Compared", "Ledger"]

UNITS = pa.schema([("unit", pa.string()), ("length", pa.int64()), ("modified", pa.timestamp("us", tz="UTC"))])
"""One input: its path as the input names it (null for the rows of a path table that have none), bytes, last change."""

_INPUTS, _DONE = "inputs", "done"
_RESTORE = (
    "restore it from a backup; without one, delete it with its mark in done/ and its snapshot in the output: its "
    "inputs are then predicted again"
)
LOOK_UP = "delete this file and run again: the snapshot is looked up in the output, which stays as it is"
"""What to do about a damaged mark."""

_NEW, _SAME, _CHANGED = range(3)
_INPUTS_FILE = re.compile(r"([0-9]{6,})\.parquet")
_DONE_FILE = re.compile(r"([0-9]{6,})\.json")

_OF_CHECKPOINT, _OF_SNAPSHOT = b"sparkinfer.checkpoint", b"sparkinfer.snapshot"
_FOOTER_BYTES = 8192
"""The footer of a file of three columns and few row groups; of more, the rest is read in a second step."""

_CHECKED = {"parquet.page.verify-checksum.enabled": "true"}


@dataclass(frozen=True)
class Compared:
    """A listing against the ledger.

    Attributes:
        new: positions in the listing of inputs that no snapshot has.
        finished: how many of the listing's inputs are in finished snapshots.
        changed: names of some of those that have another length or time than when they were read.
        changed_count: how many there are.
    """

    new: Any
    finished: int
    changed: tuple[str, ...] = ()
    changed_count: int = 0


class Ledger:
    """The snapshots of one checkpoint.

    Args:
        spark: the session.
        checkpoint: claimed and locked.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self.planned = _numbers(_INPUTS_FILE, checkpoint.names(_INPUTS, _INPUTS_FILE, remedy=_RESTORE))
        """Numbers of the snapshots whose inputs are written down."""
        self.done = _numbers(_DONE_FILE, checkpoint.names(_DONE, _DONE_FILE, remedy=LOOK_UP))
        """Numbers of the snapshots whose output is there."""

    def check(self) -> None:
        """Finds files that are not what was written down for their snapshots.

        Reads the end of every file, not its units: damage there is met when they are compared.

        Raises:
            SpecError: names the first of them.
        """
        for number in self.planned:
            why = self._problem(number)
            if why is not None:
                raise damaged(self._checkpoint.path(_file(_INPUTS, number, "parquet")), why, _RESTORE)

    def _problem(self, number: int) -> str | None:
        name = _file(_INPUTS, number, "parquet")
        end = self._checkpoint.tail(name, _FOOTER_BYTES)
        needed = int.from_bytes(end[-8:-4], "little") + 8
        if end[-4:] == b"PAR1" and needed > len(end):
            end = self._checkpoint.tail(name, needed)
        try:
            schema = pq.read_schema(pa.BufferReader(b"PAR1" + end[-needed:]))
        except (pa.ArrowException, OSError):
            return "is no Parquet file"
        said = schema.metadata or {}
        if not schema.remove_metadata().equals(UNITS) or _OF_SNAPSHOT not in said:
            return "holds something else than a snapshot's inputs"
        if said.get(_OF_CHECKPOINT) != self._checkpoint.id.encode():
            return "holds inputs of another checkpoint"
        if said[_OF_SNAPSHOT] != str(number).encode():
            return f"holds the inputs of snapshot {said[_OF_SNAPSHOT].decode(errors='replace')}"
        return None

    def rows_of(self, number: int) -> int:
        """How many rows a finished snapshot has in the output.

        Raises:
            SpecError: its mark is damaged.
        """
        name = _file(_DONE, number, "json")
        rows = self._checkpoint.read(name, remedy=LOOK_UP).get("rows")
        if not isinstance(rows, int):
            raise damaged(self._checkpoint.path(name), "names no number of rows", LOOK_UP)
        return rows

    @property
    def unfinished(self) -> list[int]:
        """Snapshots that were begun and not finished: at most one, unless a person has deleted marks."""
        return sorted(set(self.planned) - set(self.done))

    @property
    def next_number(self) -> int:
        """Of a new snapshot."""
        return max([*self.planned, *self.done], default=-1) + 1

    def plan(self, number: int, units: pa.Table) -> None:
        """Writes down what a snapshot will read.

        Args:
            number: `next_number`.
            units: `UNITS`.
        """
        self._write_units(number, units.cast(UNITS))
        self.planned.append(number)

    def learn(self, units: pa.Table) -> None:
        """Keeps what is known now of files that a retry has read again: they have changed no more.

        Args:
            units: `UNITS`, each unit once, none null.
        """
        if not self.planned:
            return
        units = units.cast(UNITS)
        known = self._known(F.input_file_name().alias("file"))
        now = local_frame(self._spark, units)
        stale = now.join(known, (now["unit"] == known["known"]) & _differs()).select("file").distinct()
        files = self._asked(stale, self.planned)["file"].to_pylist()
        for number in _numbers(_INPUTS_FILE, [name.rsplit("/", 1)[-1] for name in files]):
            then = self.units(number)
            at = pc.index_in(then["unit"], value_set=units["unit"].combine_chunks())
            for name in ("length", "modified"):
                facts = pc.if_else(pc.is_valid(at), units[name].take(at), then[name])
                then = then.set_column(then.column_names.index(name), UNITS.field(name), facts)
            self._write_units(number, then)

    def _write_units(self, number: int, units: pa.Table) -> None:
        of = {_OF_CHECKPOINT: self._checkpoint.id.encode(), _OF_SNAPSHOT: str(number).encode()}
        with self._checkpoint.writing(_file(_INPUTS, number, "parquet")) as file:
            pq.write_table(units.replace_schema_metadata(of), file, compression="zstd", write_page_checksum=True)

    def units(self, number: int) -> pa.Table:
        """What a snapshot reads: `UNITS`.

        Raises:
            SpecError: its file is damaged or gone.
        """
        return self._asked(self._frame([number]), [number]).cast(UNITS)

    def finish(self, number: int, outcome: dict[str, Any]) -> None:
        """Marks a snapshot whose output is there."""
        self._checkpoint.write(_file(_DONE, number, "json"), outcome)
        self.done.append(number)

    def compare(self, listing: pa.Table) -> Compared:
        """Finds what is new and what has changed.

        Args:
            listing: `UNITS`, each unit once.

        Raises:
            SpecError: a file of the ledger cannot be read, or two of them hold the same input.
        """
        if not self.planned:
            return Compared(np.arange(listing.num_rows), 0)
        numbered = listing.cast(UNITS).append_column("position", pa.array(np.arange(listing.num_rows)))
        known = self._known(F.lit(True).alias("seen"))
        now = local_frame(self._spark, numbered)
        joined = now.join(known, now["unit"].eqNullSafe(known["known"]), "left")
        state = F.when(F.col("seen").isNull(), _NEW).when(_differs(), _CHANGED).otherwise(_SAME).cast("byte")
        found = self._asked(joined.select("position", state.alias("state")), self.planned)
        states = found["state"].to_numpy()
        positions = found["position"].to_numpy()
        if len(positions) > listing.num_rows:
            self._refuse_double(listing["unit"][int(np.bincount(positions).argmax())].as_py())
        changed = np.sort(positions[states == _CHANGED])
        names = pc.take(listing["unit"], pa.array(changed[:3])).to_pylist()
        return Compared(
            np.sort(positions[states == _NEW]), int((states != _NEW).sum()), tuple(map(str, names)), len(changed)
        )

    def _refuse_double(self, unit: str | None) -> None:
        """Raises SpecError: one input stands in several snapshots."""
        known = self._known(F.input_file_name().alias("file"))
        files = self._asked(known.where(F.col("known").eqNullSafe(F.lit(unit))).select("file"), self.planned)
        names = sorted(name.rsplit("/", 1)[-1] for name in files["file"].to_pylist())
        raise damaged(
            self._checkpoint.path(f"{_INPUTS}/{names[-1]}"), f"holds {unit!r}, which {names[0]} holds too", _RESTORE
        )

    def _known(self, more: Column) -> DataFrame:
        """All units as `known`, with their facts `then` and `since`, and one more column."""
        return self._frame(self.planned).toDF("known", "then", "since").select("*", more)

    def _frame(self, numbers: list[int]) -> DataFrame:
        """The inputs of some snapshots as one DataFrame."""
        files = (self._checkpoint.path(_file(_INPUTS, number, "parquet")) for number in numbers)
        reader = self._spark.read.schema("unit string, length bigint, modified timestamp").options(**_CHECKED)
        return reader.parquet(*map(literal, files))

    def _asked(self, frame: DataFrame, numbers: list[int]) -> pa.Table:
        """The rows of a query over the inputs of some snapshots.

        Raises:
            SpecError: a file of them is damaged.
        """
        try:
            return to_arrow(frame)
        except JAVA_ERRORS as error:
            names = [_file(_INPUTS, number, "parquet") for number in numbers]
            for name in names:
                if name in str(error):
                    raise damaged(self._checkpoint.path(name), "cannot be read", _RESTORE) from error
            with explained_io(self._checkpoint.path(_INPUTS), "read"):
                raise


def _differs() -> Column:
    """Whether an input's `length` and `modified` are others than `then` and `since`."""
    return ~F.col("length").eqNullSafe(F.col("then")) | ~F.col("modified").eqNullSafe(F.col("since"))


def _numbers(of: re.Pattern[str], names: list[str]) -> list[int]:
    return sorted(int(found[1]) for name in names if (found := of.fullmatch(name)))


def _file(folder: str, number: int, suffix: str) -> str:
    return f"{folder}/{number:06d}.{suffix}"
