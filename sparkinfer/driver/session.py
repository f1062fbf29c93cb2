"""The SparkSession and the Java below it. Driver side."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SpecError
from sparkinfer.core.secrets import SETTING_PATTERN
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.spark.gateway import effective, has_context, start_context, start_java, without
from sparkinfer.driver.spark.gpu_requests import MODEL_GPUS, SETTINGS, TASK_GPUS, check_requests, place
from sparkinfer.driver.spark.jvm import archive_options
from sparkinfer.driver.spark.standalone import check_workers

__all__ = ["arrow_limits", "find_java", "get_session", "is_local_master", "named_master", "own_arrow_limits"]

log = logging.getLogger(__name__)

SUPPORTED_JAVA = (17, 21)
"""What Spark 4 is built and tested with; 3.5 runs on 17 too."""

_JVM_FOLDER = Path("/usr/lib/jvm")

# Only where the person has not said otherwise. The UI's progress bar would garble our own lines.
_DEFAULT_CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A native crash says where it was, instead of only that the worker is gone.
    "spark.python.worker.faulthandler.enabled": "true",
    # Counting every error code makes a wide plan, which Spark would else complain of not printing.
    "spark.sql.debug.maxToStringFields": "200",
    # Of Spark's own pages, event logs and explained plans.
    "spark.redaction.regex": SETTING_PATTERN,
}


LOCAL_FAILURES = 4
"""Attempts at a task of a local master of ours, as `spark.task.maxFailures` allows elsewhere: Spark's own local[N]
ends a job at the first. The second attempt is the one that finds rows which end their process (`executor.guard`)."""

_LIGHT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that hands images to a model on the same cores. Java's second compiler takes 5 s of a core in the first
job and 1 s in each later one, for code that does 0.3 ms of work an image: measured on 2 cores, 1,000 images, first job
14.8 to 12.9 s, later ones 7.6 to 7.3 s. What lives long is small, so the serial collector keeps the heap small at the
same speed: peak of all processes 2.1 GB at 1,000 images and 2.2 at 10,000, with G1 2.4 and 2.9. Executors keep Java's
defaults: they live longer and have more cores."""


def get_session(spec: JobSpec) -> SparkSession:
    """The running session (Databricks, a notebook, spark-submit with one), or a new one from `spec.spark`.

    Raises:
        SpecError: no usable Java; or GPUs are asked for that the master cannot give.
        DeviceError: the model needs a GPU, and nothing asks the cluster for one.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if spec.spark.master is None or spec.spark.master.startswith("local"):
        # Workers start `python3` from PATH otherwise, which has none of our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.app.name": spec.name, **_DEFAULT_CONF}
    if not submitted:
        if master := _master(spec):
            settings["spark.master"] = _with_retries(master)
        quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
        options = [quiet, archive_options(find_java()), _LIGHT_JAVA if is_local_master(spec) else ""]
        settings["spark.driver.extraJavaOptions"] = " ".join(options)
    for key, value in spec.spark.conf.items():
        if key != "spark.master":
            settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
    if not has_context():
        start_java(settings)
        _place_gpus(settings, spec)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    with without([TASK_GPUS] if MODEL_GPUS in settings else []):
        if not submitted:
            start_context(settings)
        session = builder.getOrCreate()
    try:
        check_workers(session)
    except SpecError:
        session.stop()
        raise
    return session


def _place_gpus(settings: dict[str, str], spec: JobSpec) -> None:
    """Has only the model's stage ask for GPUs, where that can be; refuses what cannot be honoured at all."""
    conf = effective(settings, SETTINGS)
    check_requests(conf, spec.model.wanted_device, pyspark.__version__)
    placement = place(conf, spec.engine, pyspark.__version__)
    if placement.model_gpus:
        settings.pop(TASK_GPUS, None)
        settings[MODEL_GPUS] = placement.model_gpus
        log.info(placement.reason)
    elif placement.reason:
        log.warning(placement.reason)


def named_master(spec: JobSpec) -> str:
    """The master that the job file names; empty where it names none."""
    return spec.spark.master or str(spec.spark.conf.get("spark.master", ""))


def is_local_master(spec: JobSpec) -> bool:
    """Whether a session that is yet to be made will run its tasks on this machine; False where that is not known."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None:
        return False
    master = named_master(spec)
    return master.startswith("local") or (not master and "SPARK_CONF_DIR" not in os.environ)


def _master(spec: JobSpec) -> str | None:
    """The master that the job file names; Spark's default where nothing else can name one; else None."""
    named = named_master(spec)
    if not named and os.environ.keys().isdisjoint(_NAME_A_MASTER):
        return "local[*]"
    return named or None


_NAME_A_MASTER = ("SPARK_CONF_DIR", "SPARK_HOME", "MASTER", "PYSPARK_SUBMIT_ARGS")
"""Variables by which a machine may say what its Spark's master is."""


def _with_retries(master: str) -> str:
    """A local master that tries a failed task again; any other, and one with a number of its own, as it is."""
    cores = re.fullmatch(r"local(?:\[\s*([^,\]]+?)\s*\])?", master)
    return f"local[{cores[1] or 1},{LOCAL_FAILURES}]" if cores else master


def own_arrow_limits(spark: SparkSession, max_bytes: int, mean_image_bytes: float | None) -> None:
    """Bounds Spark's Arrow batches by bytes as well as by rows; the rows' default of 10,000 images is gigabytes.

    Args:
        max_bytes: image bytes of one batch; a single larger image travels alone.
        mean_image_bytes: of the input, where it is known.
    """
    for key, value in arrow_limits(max_bytes, mean_image_bytes).items():
        spark.conf.set(key, value)


def arrow_limits(max_bytes: int, mean_image_bytes: float | None) -> dict[str, str]:
    """The settings of `own_arrow_limits`."""
    # Spark 3.5 knows no limit in bytes, so the rows must be few enough by themselves.
    mean = mean_image_bytes or 256 * 1024
    rows = str(max(1, min(512, int(max_bytes / mean))))
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": rows,
        "spark.sql.execution.arrow.maxBytesPerBatch": str(max_bytes),
        # So many rows Spark's vectorised readers hold at once: their default of 4,096 photographs is gigabytes too.
        "spark.sql.parquet.columnarReaderBatchSize": rows,
        "spark.sql.orc.columnarReaderBatchSize": rows,
    }


def find_java(environment: Mapping[str, str] | None = None, folder: Path = _JVM_FOLDER) -> Path:
    """Finds a Java that Spark supports and points JAVA_HOME at it.

    Looks at JAVA_HOME, then at `java` on PATH, then into `folder`.

    Raises:
        SpecError: none found; says what was seen.
    """
    env = os.environ if environment is None else environment
    seen: list[str] = []
    for home in _java_homes(env, folder):
        version = _java_version(home)
        if version in SUPPORTED_JAVA:
            os.environ["JAVA_HOME"] = str(home)
            return home
        seen.append(f"{home} (Java {version or 'unknown'})")
    raise SpecError(
        f"Spark needs Java; found {', '.join(seen) or 'none'}",
        allowed=[f"Java {v}" for v in SUPPORTED_JAVA],
        hint="apt-get install openjdk-17-jre-headless, or set JAVA_HOME",
    )


def _java_homes(env: Mapping[str, str], folder: Path) -> Iterator[Path]:
    if env.get("JAVA_HOME"):
        yield Path(env["JAVA_HOME"])
    on_path = shutil.which("java", path=env.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent.parent
    if folder.is_dir():
        yield from sorted(home for home in folder.iterdir() if (home / "bin" / "java").exists())


def _java_version(home: Path) -> int | None:
    """Major version, from the `release` file where there is one: starting a JVM to ask takes half a second."""
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else _ask_java(home)
    found = re.search(r'(?:JAVA_VERSION=|version )"(\d+)(?:\.(\d+))?', text)
    if not found:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def _ask_java(home: Path) -> str:
    try:
        command = [str(home / "bin" / "java"), "-version"]
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except OSError:
        return ""
    return answer.stderr + answer.stdout
