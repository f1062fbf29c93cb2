"""Which rows and columns of an input count: `where`, `sample`, `keep` and the names of columns. Driver side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sparkinfer.core.errors import SourceError
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.frames import column
from sparkinfer.driver.sql_errors import closest, explained, quiet

__all__ = ["check_keys", "filtered", "named_column", "short_name"]

_SHARES = 1 << 30


def filtered(frame: DataFrame, source: SourceSpec, path: Column) -> DataFrame:
    """`where` and `sample`.

    The sample goes by a hash of the path and the seed: the same rows however Spark cuts the input, and still the same
    when files are added.

    Args:
        frame: the input with all its columns.
        source: the spec.
        path: what names a row.

    Raises:
        SourceError: the condition is no SQL, names an unknown column, or is no condition.
    """
    if source.where is not None:
        with explained("source.where", allowed=frame.columns):
            frame = frame.where(source.where)
    if source.sample is not None:
        share = F.pmod(F.xxhash64(path, F.lit(source.seed)), F.lit(_SHARES))
        frame = frame.where(share < int(source.sample * _SHARES))
    return frame


def named_column(frame: DataFrame, name: str, key: str, hint: str | None = None) -> Column:
    """A column by its name, or a field of a struct column by its dotted name.

    Raises:
        SourceError: there is none; `key` is the setting that named it.
    """
    if name in frame.columns:
        return column(name)
    with quiet(), suppress(PySparkException):
        if len(frame.select(name).columns) == 1 and "*" not in name:
            return F.col(name)
    raise SourceError(f"no column {name!r}", key=key, allowed=frame.columns, hint=closest(name, frame.columns) or hint)


def short_name(name: str) -> str:
    """The name that a column has in the prediction table: of `image.path`, `path`."""
    return name.rsplit(".", 1)[-1]


def check_keys(keys: Sequence[str]) -> None:
    """Refuses key columns that the prediction table cannot have.

    Raises:
        SourceError: two of one name, or one named as a column of the prediction table. Case does not count in Spark.
    """
    lower = [key.lower() for key in keys]
    taken = {c.name for c in PREDICTION_COLUMNS}
    for position, name in enumerate(lower):
        if name in taken or name in lower[:position]:
            whose = "the prediction table has one of that name" if name in taken else "it is there already"
            raise SourceError(
                f"the column {keys[position]!r} cannot be kept: {whose}",
                key="source.keep",
                hint=f"leave it out, or rename it in a query: SELECT ..., `{keys[position]}` AS input_{name}",
            )
