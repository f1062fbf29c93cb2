"""Who takes part, and how each was tuned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CONTESTANTS", "OURS", "REFERENCE", "Contestant"]

OURS = "sparkinfer"
REFERENCE = "bare-loop"
"""Its output is what the others' outputs are compared with."""


@dataclass(frozen=True)
class Contestant:
    """One engine.

    Attributes:
        name: for `--only`, tables and file names.
        title: what it is.
        module: under `tests.benchmarks.contestants`.
        tuning: how it departs from its documentation's example, and why.
        goal: sparkinfer's images/s in a warm job should be at least so many times this one's; where a contestant takes
            part twice, it stands beside the form that its documentation shows.
        own_environment: runs in sparkinfer's environment instead of the peers'.
        arguments: of the module, after the job file.
        default: takes part when nobody is chosen.
    """

    name: str
    title: str
    module: str
    tuning: str
    goal: float | None
    own_environment: bool = False
    arguments: tuple[str, ...] = ()
    default: bool = True

    def command(self, peers: Path, own: Path, job: Path) -> list[str]:
        """Its command line, given both environments' `python`."""
        python = own if self.own_environment else peers
        return [str(python), "-m", f"tests.benchmarks.contestants.{self.module}", str(job), *self.arguments]


CONTESTANTS = (
    Contestant(
        REFERENCE,
        "bare loop (multiprocessing)",
        "bare_loop",
        "one process per core, row groups handed out as processes come free",
        0.95,
    ),
    Contestant(
        "daft",
        "Daft",
        "daft_udf",
        "class UDF with a batch method, one process per core (`use_process`, `max_concurrency`)",
        1.15,
    ),
    Contestant(
        "ray-data",
        "Ray Data",
        "ray_data",
        "fixed pool of one actor per core; one logical CPU more than cores, so that reading and writing need not wait "
        "for the actors; 8 blocks per actor, for which Parquet needs the older reader (`use_datasource_v2` off: the "
        "newer one puts a small data set into one block, which keeps one actor busy)",
        None,
    ),
    Contestant(
        "ray-data-guide",
        "Ray Data, as in its guide",
        "ray_data",
        "reader and blocks as they come; pool of one actor per core and one logical CPU more, as above",
        3.0,
        arguments=("guide",),
    ),
    Contestant(
        "spark-batch-udf",
        "stock Spark, predict_batch_udf",
        "spark_batch_udf",
        "decoding inside make_predict_fn (tensors as columns are far slower); 64 rows an Arrow batch",
        None,
    ),
    Contestant(
        "spark-pandas-udf",
        "stock Spark, iterator pandas UDF",
        "spark_pandas_udf",
        "TorchScript by broadcast, torchvision transforms, DataLoader without processes, which only cost beside one "
        "task per core; one thread per task, 64 rows an Arrow batch",
        None,
    ),
    Contestant(
        "spark-pandas-udf-published",
        "stock Spark, iterator pandas UDF, as published",
        "spark_pandas_udf",
        "as above, and the 8 loader processes of the published recipe",
        5.0,
        arguments=("published",),
    ),
    Contestant(
        OURS,
        "sparkinfer",
        "sparkinfer_job",
        "none: a job's defaults",
        None,
        own_environment=True,
    ),
    Contestant(
        "sparkinfer-fast",
        "sparkinfer, decode: fast",
        "sparkinfer_job",
        "`decode: fast`: large JPEGs are decoded at a fraction of their size, so confidences move a little",
        None,
        own_environment=True,
        arguments=("fast",),
        default=False,
    ),
)
