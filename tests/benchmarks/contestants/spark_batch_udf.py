"""Stock Spark, the recipe of `pyspark.ml.functions.predict_batch_udf`: decoding and model inside make_predict_fn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.ml.functions import predict_batch_udf
from pyspark.sql.functions import col
from pyspark.sql.types import FloatType, IntegerType, StructField, StructType

from tests.benchmarks.contestants.job import Job, RunJob, contend
from tests.benchmarks.contestants.spark_session import local_session, read_images

RESULT = StructType([StructField("predicted_class_idx", IntegerType()), StructField("confidence", FloatType())])


def _udf(job: Job) -> Any:
    def make_predict_fn() -> Callable[[Any], dict[str, Any]]:
        from tests.benchmarks.contestants.kernel import Classifier

        classifier = Classifier(job.onnx, job.recipe, job.batch_size)

        def predict(contents: Any) -> dict[str, Any]:
            best, confidence = classifier(contents)
            return {"predicted_class_idx": best, "confidence": confidence}

        return predict

    return predict_batch_udf(make_predict_fn, return_type=RESULT, batch_size=job.batch_size)


@contextmanager
def _open_session(job: Job) -> Iterator[RunJob]:
    with local_session(job) as spark:
        udf = _udf(job)

        def run(output: Path) -> None:
            predictions = read_images(spark, job).withColumn("prediction", udf(col("content")))
            predictions.select("path", "prediction.*").write.parquet(str(output))

        yield run


if __name__ == "__main__":
    contend(_open_session)
