"""The bare loop: as many processes as cores, each with its own model, fed through `multiprocessing.Pool`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.contestants.job import OUTPUT_COLUMNS, Job, RunJob, contend
from tests.benchmarks.contestants.kernel import Classifier

FILES_PER_UNIT = 64

Unit = tuple[str, int] | list[str]
"""A piece of work: a row group of a Parquet file, or some JPEG files."""

_classifier: Classifier


def _load(job: Job) -> None:
    global _classifier  # noqa: PLW0603  a pool's initialiser has no other place
    _classifier = Classifier(job.onnx, job.recipe, job.batch_size)


def _predict(unit: Unit) -> pa.Table:
    if isinstance(unit, list):
        paths = unit
        contents = [Path(path).read_bytes() for path in unit]
    else:
        table = pq.ParquetFile(unit[0]).read_row_group(unit[1], columns=["path", "content"], use_threads=False)
        paths, contents = table["path"].to_pylist(), table["content"].to_pylist()
    best, confidence = _classifier(contents)
    return pa.table([pa.array(paths), pa.array(best), pa.array(confidence)], names=list(OUTPUT_COLUMNS))


def _units(job: Job) -> list[Unit]:
    if job.stored == "folder":
        files = sorted(str(path) for path in Path(job.images).glob("*.jpg"))
        return [files[start : start + FILES_PER_UNIT] for start in range(0, len(files), FILES_PER_UNIT)]
    parts = sorted(str(path) for path in Path(job.images).glob("*.parquet"))
    return [(part, group) for part in parts for group in range(pq.ParquetFile(part).num_row_groups)]


@contextmanager
def _open_session(job: Job) -> Iterator[RunJob]:
    with multiprocessing.Pool(job.workers, _load, (job,)) as pool:

        def run(output: Path) -> None:
            output.mkdir(parents=True)
            results = list(pool.imap_unordered(_predict, _units(job)))
            pq.write_table(pa.concat_tables(results), output / "predictions.parquet")

        yield run


if __name__ == "__main__":
    contend(_open_session)
