"""A Spark program that has its executors made, and waits until Spark ends, which closes its standard input."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    SparkSession.builder.getOrCreate()
    sys.stdin.read()
