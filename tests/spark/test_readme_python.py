"""The README's Python, line for line, with the demo's files in place of the reader's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.test_reference import DEMO, demo  # noqa: F401 - the fixture that asks for the demo's model

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"

CATS = {"Egyptian cat", "tabby", "tiger cat"}


def last_of(frame: DataFrame) -> Any:
    """The last column of the first row."""
    return frame.collect()[0][-1]


def test_the_examples_run(spark: SparkSession) -> None:
    text = README.read_text("utf-8")
    for written, here in {
        "hdfs:///photos": str(DEMO / "images"),
        "resnet50.onnx": str(DEMO / "efficientnet_lite0.onnx"),
        "imagenet.txt": str(DEMO / "labels.txt"),
    }.items():
        text = text.replace(f'"{written}"', repr(here))
    first, second = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"spark": spark}
    try:
        exec(first, names)
        assert spark.table("predictions").count() == len(list((DEMO / "images").iterdir()))
        assert last_of(spark.table("predictions").where("path LIKE '%chelsea%'").select("label")) in CATS
        names["images"].createOrReplaceTempView("photos")
        lines = second.strip().splitlines()
        exec("\n".join([*lines[:-1], f"answer = {lines[-1]}"]), names)
        assert last_of(names["answer"].where("path LIKE '%chelsea%'")) in CATS
    finally:
        spark.sql("DROP TABLE IF EXISTS predictions")
