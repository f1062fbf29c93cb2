"""The README's Python, line for line, with the demo's files in place of the reader's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_reference import DEMO, demo  # noqa: F401 - the fixture that asks for the demo's model

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


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
        assert spark.table("predictions").where("path LIKE '%chelsea%'").first()["label"] in {
            "Egyptian cat",
            "tabby",
            "tiger cat",
        }
        names["images"].createOrReplaceTempView("photos")
        lines = second.strip().splitlines()
        exec("\n".join([*lines[:-1], f"answer = {lines[-1]}"]), names)
        assert names["answer"].where("path LIKE '%coffee%'").first()["label"] in {"espresso", "cup"}
    finally:
        spark.sql("DROP TABLE IF EXISTS predictions")
