"""Which inputs are finished: a small Parquet file for each snapshot, and a mark when its output is there. Driver side.

A snapshot's inputs are written down before it runs and never changed, so a run that goes on after a crash does the
very same snapshot again. Comparing the ledger with a listing is a join in Spark: what is finished never sits in the
driver's memory.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.driver.checkpoints.checkpoint import Checkpoint, damaged
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
_NUMBER = re.compile(r"(\d{6,})\.(?:parquet|json)")


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
        self.planned = _numbers(checkpoint.names(_INPUTS, remedy=_RESTORE))
        """Numbers of the snapshots whose inputs are written down."""
        self.done = _numbers(checkpoint.names(_DONE, remedy=LOOK_UP))
        """Numbers of the snapshots whose output is there."""

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
        with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
            file = Path(folder) / "units.parquet"
            pq.write_table(units.cast(UNITS), file, compression="zstd")
            self._checkpoint.put(file, _file(_INPUTS, number, "parquet"))
        self.planned.append(number)

    def units(self, number: int) -> pa.Table:
        """What a snapshot reads: `UNITS`.

        Raises:
            SpecError: its file is damaged or gone.
        """
        return self._asked(self._frame([number]), [number])

    def finish(self, number: int, outcome: dict[str, Any]) -> None:
        """Marks a snapshot whose output is there."""
        self._checkpoint.write(_file(_DONE, number, "json"), outcome)
        self.done.append(number)

    def compare(self, listing: pa.Table) -> Compared:
        """Finds what is new and what has changed.

        Args:
            listing: `UNITS`, each unit once.
        """
        if not self.planned:
            return Compared(np.arange(listing.num_rows), 0)
        numbered = listing.cast(UNITS).append_column("position", pa.array(np.arange(listing.num_rows)))
        known = self._frame(self.planned).toDF("known", "then", "since").withColumn("seen", F.lit(True))
        self._check_content()
        now = local_frame(self._spark, numbered)
        joined = now.join(known, now["unit"].eqNullSafe(known["known"]), "left")
        differs = ~F.col("length").eqNullSafe(F.col("then")) | ~F.col("modified").eqNullSafe(F.col("since"))
        state = F.when(F.col("seen").isNull(), _NEW).when(differs, _CHANGED).otherwise(_SAME).cast("byte")
        found = self._asked(joined.select("position", state.alias("state")), self.planned)
        states = found["state"].to_numpy()
        positions = found["position"].to_numpy()
        changed = np.sort(positions[states == _CHANGED])
        names = pc.take(listing["unit"], pa.array(changed[:3])).to_pylist()
        return Compared(
            np.sort(positions[states == _NEW]), int((states != _NEW).sum()), tuple(map(str, names)), len(changed)
        )

    def _check_content(self) -> None:
        """Finds files that are no ledger's: their units read as null, of which one file has one at most.

        Raises:
            SpecError: names one of them.
        """
        for number in self.planned:  # before Spark meets it, which would print a page for each try
            if self._checkpoint.tail(_file(_INPUTS, number, "parquet"), 4) != b"PAR1":
                raise damaged(self._checkpoint.path(_file(_INPUTS, number, "parquet")), "is no Parquet file", _RESTORE)
        nulls = self._frame(self.planned).where("unit IS NULL").groupBy(F.input_file_name().alias("file")).count()
        for name in self._asked(nulls.where("count > 1").select("file").limit(1), self.planned)["file"].to_pylist():
            raise damaged(str(name), "holds something else than a snapshot's inputs", _RESTORE)

    def _frame(self, numbers: list[int]) -> DataFrame:
        """The inputs of some snapshots as one DataFrame."""
        files = (self._checkpoint.path(_file(_INPUTS, number, "parquet")) for number in numbers)
        return self._spark.read.schema("unit string, length bigint, modified timestamp").parquet(*map(literal, files))

    def _asked(self, frame: DataFrame, numbers: list[int]) -> pa.Table:
        """The rows of a query over the inputs of some snapshots.

        Raises:
            SpecError: a file of them is damaged.
        """
        try:
            return to_arrow(frame)
        except JAVA_ERRORS as error:
            names = [_file(_INPUTS, number, "parquet") for number in numbers]
            at_fault = next((name for name in names if name in str(error)), f"{_INPUTS}/")
            raise damaged(
                self._checkpoint.path(at_fault),
                "cannot be read",
                _RESTORE,
            ) from error


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(found.group(1)) for name in names if (found := _NUMBER.fullmatch(name)))


def _file(folder: str, number: int, suffix: str) -> str:
    return f"{folder}/{number:06d}.{suffix}"
