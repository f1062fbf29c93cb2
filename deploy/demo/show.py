"""Asks SQL about a prediction table and prints the answer: the last step of `make demo`. Driver side.

spark-submit deploy/demo/show.py build/demo/predictions
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

QUERY = """
SELECT substring_index(path, '/', -1) AS path, label,
       cast(confidence AS decimal(4, 3)) AS confidence, error_code AS error
FROM parquet.`{table}`
ORDER BY error IS NOT NULL, path
"""


def main(table_path: str) -> None:
    """Prints every row: path, label, confidence, error."""
    query = QUERY.format(table=table_path)
    spark = SparkSession.builder.appName("show").getOrCreate()
    answer = spark.sql(query)
    table = Table(*answer.columns)
    for row in answer.collect():
        table.add_row(*("" if value is None else str(value) for value in row))
    console = Console()
    console.print(query.strip(), markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
