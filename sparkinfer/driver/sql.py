"""A model as a SQL function. Driver side; the function runs on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import pandas_udf

from sparkinfer.core.schema import RESULT_COLUMNS
from sparkinfer.driver.model import Model
from sparkinfer.driver.session import own_arrow_limits
from sparkinfer.executor import engines

__all__ = ["register_sql"]


def register_sql(spark: SparkSession, name: str, model: Model) -> None:
    """Registers `name(content)` for Spark SQL: a struct with `core.schema.RESULT_COLUMNS`.

    Example:
        `si.register_sql(spark, "classify", model)`, then `SELECT path, classify(content).label FROM photos`

    Raises:
        ModelError, SpecError: the model is missing or does not fit its description.
    """
    plan = model.plan(spark, content="content", keys=())
    own_arrow_limits(spark, model.batch.max_bytes, None)

    def classify(contents: Any) -> Any:
        return engines.run_series(plan, contents)

    # Spark reads from the types what kind of function this is, and wants them as objects.
    classify.__annotations__ = {"contents": Iterator[pd.Series], "return": Iterator[pd.DataFrame]}
    make_udf: Any = pandas_udf
    spark.udf.register(name, make_udf(classify, f"struct<{_struct_ddl()}>"))


def _struct_ddl() -> str:
    return ", ".join(f"{column.name}:{column.ddl}" for column in RESULT_COLUMNS)
