"""What a job would do, and on what, without doing it. Driver side; starts Spark only where it must list the input.

    spec + settings -> executors and tasks at once -> input -> tasks -> memory -> what does not fit

Input, tasks and Arrow limits come from the functions that `run` calls, so that both say the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyspark
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SpecError
from sparkinfer.core.spec import JobSpec, SparkSpec
from sparkinfer.driver.model import Inspected, Model
from sparkinfer.driver.paths import local_path
from sparkinfer.driver.planning.checks import check
from sparkinfer.driver.planning.facts import Facts, Finding
from sparkinfer.driver.planning.fleet import Fleet, fleet_of
from sparkinfer.driver.planning.input import Assumed, Cuts, assume, cut_files, cut_rows, find_local, find_with_spark
from sparkinfer.driver.planning.memory import PIXELS_PER_BYTE, SHARED_ABOVE, Part, Worker, beside_heap, heap, total
from sparkinfer.driver.planning.profile import Settings, read_profile
from sparkinfer.driver.planning.resource_rule import CPU, GPU, Cluster, Sizing, size_executors
from sparkinfer.driver.planning.settings import Setting, job_settings, suggested_settings
from sparkinfer.driver.session import get_session
from sparkinfer.driver.shard import spark_split_settings
from sparkinfer.driver.sources.inputs import size_text
from sparkinfer.driver.spark.gpu_requests import place
from sparkinfer.driver.spark.resources import decode_cores
from sparkinfer.driver.splits.file_tasks import SparkSplit
from sparkinfer.executor.batch_size import CPU_CANDIDATES, FIXED_ON_CPU, LARGEST_PROBED
from sparkinfer.executor.batching import MAX_BATCH_BYTES, slots_that_fit
from sparkinfer.executor.device import read_gpu_facts

__all__ = ["JobPlan", "make_plan"]

UNKNOWN_IMAGE = 5_000_000
"""Bytes of the largest image where nobody knows: a camera's photograph."""

_OF_THE_INPUT = ("spark.sql.", "spark.hadoop.", "spark.jars")
"""Settings that a session needs to list the input of a job that will run elsewhere."""


@dataclass(frozen=True)
class JobPlan:
    """What a run would do.

    Attributes:
        name: the job's.
        profile: where the settings came from.
        cuts: the input and its tasks.
        model: one line.
        batch: images per model call, at most; and why.
        fleet: executors and tasks at once.
        gpu_stages: which stages ask for GPUs, and why; None where none does.
        decoders: threads of a Python worker that decode; 0 where one thread does everything.
        heap: of one executor, what it needs.
        memory: beside its heap, part by part.
        settings: what the run sets by itself.
        suggested: a profile by the resource rule, for a known cluster.
        sizing: the rule's answer.
        findings: what does not fit, errors first.
    """

    name: str
    profile: str
    cuts: Cuts
    model: str
    batch: int
    batch_reason: str
    fleet: Fleet
    gpu_stages: str | None
    decoders: int
    heap: Part
    memory: list[Part]
    settings: list[Setting]
    suggested: list[Setting]
    sizing: Sizing | None
    findings: list[Finding]

    @property
    def can_work(self) -> bool:
        """Whether nothing was found that cannot work."""
        return all(finding.level != "error" for finding in self.findings)


def make_plan(
    spec: JobSpec, *, profile: str | None = None, cluster: Cluster | None = None, assumed: Assumed | None = None
) -> JobPlan:
    """Plans a job.

    Args:
        spec: the job.
        profile: file for `spark-submit --properties-file`; the running session's settings, or `spark-defaults.conf` in
            `SPARK_CONF_DIR`, or Spark's defaults where there is none.
        cluster: the nodes, where they are known.
        assumed: an input to plan for in place of the job's.

    Raises:
        UserError: something in the spec, the profile, the model or the input that the person can mend.
    """
    settings, where, master = _settings(spec, profile)
    active = SparkSession.getActiveSession()
    running = active.sparkContext.defaultParallelism if active is not None and profile is None else None
    fleet = fleet_of(settings, master, cluster, running)
    spark = active if running is not None else None
    found_files = assume(assumed, spec.source) if assumed else find_local(spec.source)
    if spark is None and (found_files is None or not _is_local(spec)):
        spark = active or _session(spec, settings, fleet)
    found = Model(spec.model, spec.preprocess, spec.postprocess, spec.batch).inspected
    if found_files is None:
        assert spark is not None
        found_files = find_with_spark(spark, spec.source)
    if found_files is not None:
        split = spark_split_settings(spark) if spark is not None else _split(settings, fleet)
        cuts = cut_files(found_files, spec, fleet.parallelism, split)
    else:
        assert spark is not None
        cuts = cut_rows(spark, spec, fleet.parallelism)
    on_gpu = _on_gpu(spec, fleet)
    batch, batch_reason = _batch(spec, found, on_gpu=on_gpu)
    decoders = _decoders(settings, fleet, on_gpu=on_gpu)
    worker = _worker(spec, found, cuts, batch, decoders, on_gpu=on_gpu)
    slots = fleet.slots or 1
    heap_set = settings.size("spark.driver.memory" if fleet.manager == "local" else "spark.executor.memory", "1g")
    memory, heap_needed = beside_heap(worker, slots, heap_set), heap(worker, slots)
    sizing, suggested = _suggestion(worker, cluster)
    facts = Facts(
        settings=settings,
        master=master,
        fleet=fleet,
        device=spec.model.wanted_device,
        on_gpu=on_gpu,
        spark_version=pyspark.__version__,
        heap=heap_needed,
        beside=memory,
        partitions=cuts.partitions,
        rows=cuts.rows,
        cluster=cluster,
        machine=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        submitted=profile is not None,
        local=_local_paths(spec),
    )
    return JobPlan(
        name=spec.name,
        profile=where,
        cuts=cuts,
        model=f"{found.spec.display_name} ({found.spec.format}, {found.signature.num_classes} classes)",
        batch=batch,
        batch_reason=batch_reason,
        fleet=fleet,
        gpu_stages=place({**settings.values, "spark.master": master}, spec.engine, pyspark.__version__).reason,
        decoders=decoders,
        heap=heap_needed,
        memory=memory,
        settings=job_settings(spec.batch.max_bytes, cuts.mean_bytes, led=cuts.led),
        suggested=suggested,
        sizing=sizing,
        findings=check(facts),
    )


def _settings(spec: JobSpec, profile: str | None) -> tuple[Settings, str, str]:
    """Settings, where they came from, and the master."""
    own = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in spec.spark.conf.items()}
    active = SparkSession.getActiveSession()
    folder = os.environ.get("SPARK_CONF_DIR")
    defaults = Path(folder) / "spark-defaults.conf" if folder else None
    if profile is not None:
        base, where = read_profile(profile), profile
    elif active is not None:
        running = Settings(dict(active.sparkContext.getConf().getAll()))
        return running, "the running session", running.text("spark.master")
    elif defaults is not None and defaults.exists():
        base, where = read_profile(str(defaults)), str(defaults)
    else:
        base, where = {"spark.master": "local[*]"}, "Spark's defaults"
    settings = Settings({**base, **own})
    if profile is None:
        return settings, where, spec.spark.master or settings.text("spark.master")
    # As spark-submit has it: the job file's master does not count, but may stand for --master.
    on_kubernetes = "spark.kubernetes.container.image" in settings
    return settings, where, settings.text("spark.master") or ("k8s://" if on_kubernetes else spec.spark.master or "")


def _local_paths(spec: JobSpec) -> dict[str, str]:
    """Key -> path, where it is on this machine."""
    source = [(f"source.{spec.source.kind}", path) for path in reversed(spec.source.locations)]
    named = dict(
        [*source, ("model.path", spec.model.path), ("model.labels", spec.model.labels), ("sink.path", spec.sink.path)]
    )
    return {key: path for key, path in named.items() if path and local_path(path) is not None}


def _is_local(spec: JobSpec) -> bool:
    return all(local_path(uri) is not None for uri in (spec.model.path, spec.model.labels) if uri)


def _session(spec: JobSpec, settings: Settings, fleet: Fleet) -> SparkSession:
    """A local session that lists the input as the job's own will, and cuts it for the job's cores."""
    conf: dict[str, str | int | float | bool] = {
        key: value for key, value in settings.values.items() if key.startswith(_OF_THE_INPUT)
    }
    conf["spark.default.parallelism"] = str(fleet.parallelism)
    return get_session(spec.model_copy(update={"spark": SparkSpec(master="local[*]", conf=conf)}))


def _split(settings: Settings, fleet: Fleet) -> SparkSplit:
    leaves = settings.whole("spark.sql.leafNodeDefaultParallelism", fleet.parallelism)
    return SparkSplit(
        max_bytes=settings.size("spark.sql.files.maxPartitionBytes", "128m", 1),
        open_cost=settings.size("spark.sql.files.openCostInBytes", "4m", 1),
        least=settings.whole("spark.sql.files.minPartitionNum", leaves),
    )


def _on_gpu(spec: JobSpec, fleet: Fleet) -> bool:
    """Where `auto` will put the model: on a GPU that executors are given, or that this machine has."""
    if spec.model.wanted_device != "auto":
        return spec.model.wanted_device != "cpu"
    return fleet.gpus > 0 or (fleet.manager == "local" and bool(read_gpu_facts().visible))


def _batch(spec: JobSpec, found: Inspected, *, on_gpu: bool) -> tuple[int, str]:
    """Images per model call, at most."""
    fit = slots_that_fit(found.preprocess)
    padded = found.spec.format in _PADDED and not on_gpu
    if spec.batch.size != "auto":
        most, reason = spec.batch.size, "batch.size"
    elif on_gpu:
        most, reason = LARGEST_PROBED, f"auto: found in the GPU's memory by each worker, at most {LARGEST_PROBED:,}"
    else:
        tried = ", ".join(map(str, CPU_CANDIDATES))
        most, reason = (
            max(CPU_CANDIDATES),
            f"auto: each worker times {tried} on its first batches and keeps the fastest",
        )
    if padded and most > FIXED_ON_CPU:
        most, reason = FIXED_ON_CPU, "partial batches of torch are padded, and more at once is no faster on a CPU"
    return (most, reason) if most <= fit else (fit, f"what {size_text(MAX_BATCH_BYTES)} of inputs hold")


_PADDED = {"torch", "torchscript"}
"""Formats whose runtimes have `fixed_batches` on a CPU."""


def _decoders(settings: Settings, fleet: Fleet, *, on_gpu: bool) -> int:
    cores = decode_cores({**settings.values, "spark.master": _master_of(fleet)}, fleet.cores or 1)
    cores = cores or settings.whole("spark.task.cpus", 1)
    return 0 if cores == 1 and not on_gpu else cores


def _master_of(fleet: Fleet) -> str:
    return "local" if fleet.manager == "local" else ""


def _worker(spec: JobSpec, found: Inspected, cuts: Cuts, batch: int, decoders: int, *, on_gpu: bool) -> Worker:
    recipe, largest = found.preprocess, UNKNOWN_IMAGE if cuts.largest is None else cuts.largest
    height, width = recipe.output_size or (0, 0)
    pixels = height * width or min(recipe.max_pixels, PIXELS_PER_BYTE * largest)
    size = found.artifact.size
    # Eager torch maps the weights as they are in the file; ONNX models are laid out anew for all, if it is worth it.
    maps = found.spec.format == "torch" and found.spec.precision == "fp32"
    return Worker(
        format=found.spec.format,
        on_gpu=on_gpu,
        model=size,
        shared=not on_gpu and (maps or (found.spec.format == "onnx" and size > SHARED_ABOVE)),
        batch=batch,
        tensor=pixels * recipe.num_channels * np.dtype(recipe.dtype).itemsize,
        values=pixels * recipe.num_channels,
        largest=largest,
        total=cuts.bytes,
        max_pixels=recipe.max_pixels,
        arrow=spec.batch.max_bytes,
        decoders=decoders,
    )


def _suggestion(worker: Worker, cluster: Cluster | None) -> tuple[Sizing | None, list[Setting]]:
    """Executors by the resource rule."""
    if cluster is None:
        return None, []
    kind, gpu = (GPU, True) if worker.on_gpu else (CPU, False)
    cores = kind.cores or cluster.cores
    sized = replace(worker, batch=kind.batch, decoders=cores if gpu else worker.decoders)
    parts = beside_heap(sized, 1 if gpu else cores, kind.heap)
    sizing = size_executors(cluster, gpu=gpu, outside=total(parts))
    if not sizing.executors:
        raise SpecError(
            f"no executor fits on a node: one needs {size_text(sizing.heap + sizing.outside)} and {sizing.cores} cores"
            f"{' and a GPU' if gpu else ''}; {sizing.bound} end first",
            key="--cluster",
            hint="larger nodes; or a smaller batch.size",
        )
    return sizing, suggested_settings(cluster, sizing, parts)
