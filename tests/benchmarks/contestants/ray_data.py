"""Ray Data: a callable class in a fixed actor pool, as its guide to offline batch inference recommends.

With the argument `guide` that is all; without it, reader and blocks are tuned too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from tests.benchmarks.contestants.job import OUTPUT_COLUMNS, Job, RunJob, contend
from tests.benchmarks.contestants.kernel import Classifier

BLOCKS_PER_WORKER = 8


class Predictor:
    """The actor: loads the model once."""

    def __init__(self, job: Job) -> None:
        self._classifier = Classifier(job.onnx, job.recipe, job.batch_size)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch of columns in, a batch of predictions out."""
        best, confidence = self._classifier(batch["bytes" if "bytes" in batch else "content"])
        return dict(zip(OUTPUT_COLUMNS, (batch["path"], best, confidence), strict=True))


@contextmanager
def _open_session(job: Job) -> Iterator[RunJob]:
    # One slot more than cores: with none left beside the actors, reading and writing would wait for them.
    ray.init(num_cpus=job.workers + 1, include_dashboard=False, logging_level=logging.WARNING)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    blocks = None
    if "guide" not in sys.argv[2:]:
        blocks = job.workers * BLOCKS_PER_WORKER
        # The newer reader ignores the number of blocks and puts a small data set into one, which keeps one actor busy.
        context.use_datasource_v2 = False

    def run(output: Path) -> None:
        if job.stored == "folder":
            dataset = ray.data.read_binary_files(job.images, include_paths=True, override_num_blocks=blocks)
        else:
            dataset = ray.data.read_parquet(job.images, override_num_blocks=blocks)
        dataset.map_batches(
            Predictor,
            fn_constructor_args=[job],
            batch_size=job.batch_size,
            compute=ray.data.ActorPoolStrategy(size=job.workers),
            num_cpus=1,
        ).write_parquet(str(output))

    try:
        yield run
    finally:
        ray.shutdown()


if __name__ == "__main__":
    contend(_open_session)
