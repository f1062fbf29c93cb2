"""Stock Spark, the published reference recipe: iterator pandas UDF, TorchScript, torchvision transforms, DataLoader.

With the argument `published` it loads with processes, as published; without, in the task itself, which is faster here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import Broadcast
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import pandas_udf

from tests.benchmarks.contestants.job import Job, Recipe, RunJob, contend
from tests.benchmarks.contestants.spark_session import local_session, read_images

PUBLISHED_LOADERS = 8
"""Loader processes of a task in Databricks' notebook on distributed inference with PyTorch and pandas UDFs."""

RESULT = "predicted_class_idx int, confidence float"


def _transform(recipe: Recipe) -> Any:
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.Resize(recipe.resize, transforms.InterpolationMode(recipe.interpolation)),
            transforms.CenterCrop(recipe.crop),
            transforms.ToTensor(),
            transforms.Normalize(recipe.mean, recipe.std),
        ]
    )


def _udf(job: Job, model: Broadcast[bytes]) -> Any:
    loaders = PUBLISHED_LOADERS if "published" in sys.argv[2:] else 0

    @pandas_udf(RESULT)  # type: ignore[call-overload, untyped-decorator]
    def predict(series: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        import io

        import torch
        from PIL import Image
        from torch.utils.data import DataLoader, Dataset

        class Images(Dataset[torch.Tensor]):
            def __init__(self, contents: pd.Series) -> None:
                self._contents = contents

            def __len__(self) -> int:
                return len(self._contents)

            def __getitem__(self, index: int) -> torch.Tensor:
                picture = Image.open(io.BytesIO(self._contents.iloc[index])).convert("RGB")
                return transform(picture)

        torch.set_num_threads(1)  # as many tasks as cores: more threads would fight
        transform = _transform(job.recipe)
        network = torch.jit.load(io.BytesIO(model.value)).eval()
        with torch.inference_mode():
            for contents in series:
                best: list[int] = []
                confidence: list[float] = []
                for batch in DataLoader(Images(contents), batch_size=job.batch_size, num_workers=loaders):
                    highest, index = torch.softmax(network(batch), dim=1).max(dim=1)
                    best += index.tolist()
                    confidence += highest.tolist()
                yield pd.DataFrame({"predicted_class_idx": best, "confidence": confidence})

    return predict


@contextmanager
def _open_session(job: Job) -> Iterator[RunJob]:
    with local_session(job) as spark:
        udf = _udf(job, spark.sparkContext.broadcast(Path(job.torchscript).read_bytes()))

        def run(output: Path) -> None:
            predictions = read_images(spark, job).withColumn("prediction", udf(col("content")))
            predictions.select("path", "prediction.*").write.parquet(str(output))

        yield run


if __name__ == "__main__":
    contend(_open_session)
