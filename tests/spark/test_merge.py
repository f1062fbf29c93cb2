"""The MERGE statement is SQL to the Spark that is installed; `tests/older_spark` runs it on Delta and on Iceberg."""

from __future__ import annotations

import pytest

from sparkinfer.core.spec import SinkSpec
from sparkinfer.driver.sinks.merge import Replaced, _statement

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("sink", "target"),
    [
        ({"table": "lake.my-db.t", "format": "iceberg"}, "[lake, my-db, t]"),
        ({"path": "/out/a `b` 100%", "format": "delta"}, "[delta, file:/out/a `b` 100%]"),
    ],
)
def test_any_name_is_quoted(spark, sink, target):
    rows = spark.createDataFrame([], "`a.b` string, `c``d` int, error_code string")
    replaced = Replaced("a.b", rows.select("`a.b`"), "old.error_code IS NOT NULL")
    statement = _statement(spark, SinkSpec(**sink), rows.schema, "some_view", replaced)
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(statement).toString()
    assert "MergeIntoTable" in plan
    assert target in plan
    assert "'old.`a.b` <=> 'new.`a.b`" in plan
