"""A stand-in for the model in tests of reading: its class is the number of bytes, so that every row proves its file."""

from __future__ import annotations

from pyspark.sql import functions as F

from sparkinfer.core.schema import RESULT_COLUMNS
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.frames import column
from sparkinfer.driver.read import finish, read_source
from sparkinfer.driver.shard import shard

STAMPS = {"model_name": "bytes", "model_version": None, "model_digest": "abc", "run_id": "run-1"}


def measured(content, source):
    """`content_keys` and `RESULT_COLUMNS` for every row of `content`."""
    length = F.octet_length(F.col(source.content_column)).alias("predicted_class_idx")
    nothing = (F.lit(None).cast(c.ddl).alias(c.name) for c in RESULT_COLUMNS[1:])
    return content.select(*map(column, source.content_keys), length, *nothing)


def table_of(spark, mode="auto", cores=2, **source):
    """The whole way from a `source:` block to the prediction table, as a list of rows; and the input."""
    found = read_source(spark, SourceSpec(**source))
    sharding = shard(spark, found, mode, cores)
    table = finish(found, measured(sharding.content, found), STAMPS)
    with sharding.applied(spark):
        return table.collect(), found


def outcome(rows):
    """path -> number of bytes, or the error code."""
    return {row[0]: row.predicted_class_idx if row.error_code is None else row.error_code for row in rows}
