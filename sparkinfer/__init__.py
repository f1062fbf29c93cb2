"""sparkinfer: a Spark job that turns images into a prediction table, at the speed of the hardware.

    import sparkinfer as si
    images = si.read_images(spark, "hdfs:///photos")
    table = si.predict(images, si.model("resnet50.onnx", labels="imagenet.txt"))
    table.write.saveAsTable("predictions")

Importing this package loads neither pyspark nor a framework: the names below are looked up when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.driver.job import run_job
    from sparkinfer.driver.model import Model, model
    from sparkinfer.driver.predict import predict, predict_udf
    from sparkinfer.driver.read import read_images
    from sparkinfer.driver.sql import register_sql

__all__ = ["Model", "__version__", "model", "predict", "predict_udf", "read_images", "register_sql", "run_job"]

__version__ = "0.1.0"

_HOME = {
    "Model": "sparkinfer.driver.model",
    "model": "sparkinfer.driver.model",
    "predict": "sparkinfer.driver.predict",
    "predict_udf": "sparkinfer.driver.predict",
    "read_images": "sparkinfer.driver.read",
    "register_sql": "sparkinfer.driver.sql",
    "run_job": "sparkinfer.driver.job",
}


def __getattr__(name: str) -> Any:
    """Imports a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'sparkinfer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
