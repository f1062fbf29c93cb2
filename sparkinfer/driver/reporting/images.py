"""Thumbnails of a few rows of the prediction table, from their images, read again. Driver side; nothing pickles.

Files are read by their paths. Rows of a Parquet file or a table are looked up by the column that names them, in one
Spark job with a limit on its time. A query may cost anything and give other rows the second time: it is left alone.
Images are decoded by a process of their own (`executor.thumbnails`), which is started again after one that kills it.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sparkinfer.core.errors import UserError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.helper_process import environment
from sparkinfer.driver.listing import JAVA_ERRORS, hadoop_path, is_missing, java_reason
from sparkinfer.driver.sources.row_input import open_rows
from sparkinfer.driver.sources.selection import named_column

__all__ = ["EDGE", "Thumbnails", "draw", "drawing_process", "thumbnails"]

log = logging.getLogger(__name__)

EDGE = 192
"""Longest side of a thumbnail, pixels: some 8 kB of JPEG, sharp at half that size on a phone."""

MAX_JPEG_CHARS = 64 << 10
"""Of one thumbnail in base64; noise of `EDGE` pixels has less."""

MAX_FILE_BYTES = 32 << 20
"""Of an image file that is read again."""

MAX_ROW_BYTES = 4 << 20
"""Of an image in a row: all of them are in the driver's memory at once."""

SECONDS = 30.0
"""For drawing all of them."""

SECONDS_EACH = 5.0
"""For drawing one: a photograph of 12 megapixels takes 0.1 s."""

LOOK_UP_SECONDS = 20.0
"""For finding rows again; a table that is not ordered by their names may have to be read as a whole."""

_READERS = 8
"""Files that are fetched at once from a remote store."""

_RESTARTS = 8


@dataclass
class Thumbnails:
    """What could be drawn.

    Attributes:
        jpegs: path of a row -> JPEG file in base64.
        problems: path of a row -> why there is no picture.
        note: why there is none at all; None where there is.
    """

    jpegs: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    note: str | None = None


@contextmanager
def drawing_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is going to draw: it imports its packages, 0.3 s, while the caller does something else."""
    with _process() as process:
        try:
            yield process
        finally:
            process.kill()


def thumbnails(
    spark: SparkSession,
    source: SourceSpec,
    preprocess: PreprocessSpec,
    paths: Sequence[str],
    process: subprocess.Popen[bytes] | None = None,
) -> Thumbnails:
    """Reads the images of some rows again and draws them.

    Args:
        spark: the session.
        source: the job's input.
        preprocess: the job's block, which says how its model sees an image.
        paths: of the rows, some fifty at most: the first key column of the prediction table.
        process: from `drawing_process`; a new one by default.
    """
    distinct = list(dict.fromkeys(paths))
    if not distinct:
        return Thumbnails(note="there are no rows to show")
    if source.kind == "query":
        return Thumbnails(note="the input is a query, which is not run again for pictures")
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
        try:
            if source.kind in {"images", "paths"}:
                files, problems = _fetch_files(spark, distinct, Path(folder))
            else:
                files, problems = _fetch_rows(spark, source, distinct, Path(folder))
        except (UserError, *JAVA_ERRORS) as error:
            reason = error.message if isinstance(error, UserError) else java_reason(error)
            return Thumbnails(note=f"the images could not be read again: {reason}")
        drawn = draw(list(files.values()), preprocess, process)
    found = Thumbnails(problems=problems)
    for path, answer in zip(files, drawn, strict=True):
        jpeg = answer.get("jpeg", "")
        if jpeg and len(jpeg) <= MAX_JPEG_CHARS:
            found.jpegs[path] = jpeg
        else:
            found.problems[path] = answer.get("problem", "the thumbnail is too large")
    return found


def _fetch_files(spark: SparkSession, paths: Sequence[str], folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Local copies of files, or the files themselves where they are local; and what cannot be read."""
    jvm: Any = spark.sparkContext._jvm

    def fetch(numbered: tuple[int, str]) -> Path | str:
        number, name = numbered
        try:
            path, fs = hadoop_path(spark, name)
            status = fs.getFileStatus(path)
            if status.getLen() > MAX_FILE_BYTES:
                return f"{status.getLen():,} bytes are too many for a thumbnail"
            if path.toUri().getScheme() == "file":
                return Path(path.toUri().getPath())
            copy = folder / str(number)
            fs.copyToLocalFile(False, path, jvm.org.apache.hadoop.fs.Path(f"file://{copy}"), True)
        except UserError as error:
            return error.message
        except JAVA_ERRORS as error:
            return "the file is gone" if is_missing(error) else java_reason(error)
        return copy

    with ThreadPoolExecutor(_READERS) as pool:
        fetched = dict(zip(paths, pool.map(fetch, enumerate(paths)), strict=True))
    files = {path: found for path, found in fetched.items() if isinstance(found, Path)}
    return files, {path: found for path, found in fetched.items() if isinstance(found, str)}


def _fetch_rows(
    spark: SparkSession, source: SourceSpec, names: Sequence[str], folder: Path
) -> tuple[dict[str, Path], dict[str, str]]:
    """Local files with the contents of rows; and which rows have none."""
    frame = open_rows(spark, source)
    path = named_column(frame, source.path_column, "source.path_column")
    content = named_column(frame, source.content_column, "source.content_column")
    # Parquet skips what cannot hold these names, if they are compared as they are stored.
    named = path if isinstance(frame.select(path).schema[0].dataType, StringType) else path.cast("string")
    size = F.octet_length(content)
    small = F.when(size <= MAX_ROW_BYTES, content)
    wanted = frame.where(named.isin(list(names))).select(
        named.alias("path"), size.alias("size"), small.alias("content")
    )
    with _at_most(spark, LOOK_UP_SECONDS):
        rows = wanted.limit(2 * len(names)).collect()  # several rows may have one name
    files: dict[str, Path] = {}
    problems = dict.fromkeys(names, "the row was not found again")
    for number, row in enumerate(rows):
        if row["content"] is not None and row["path"] not in files:
            files[row["path"]] = folder / str(number)
            files[row["path"]].write_bytes(row["content"])
            problems.pop(row["path"], None)
        elif row["path"] in problems:
            size_text = "no content" if row["size"] is None else f"{row['size']:,} bytes are too many for a thumbnail"
            problems[row["path"]] = size_text
    return files, problems


@contextmanager
def _at_most(spark: SparkSession, seconds: float) -> Iterator[None]:
    """Stops the Spark jobs inside when they take longer.

    Raises:
        UserError: they did.
    """
    context = spark.sparkContext
    tag = f"sparkinfer-report-{uuid.uuid4().hex}"
    timer = Timer(seconds, context.cancelJobsWithTag, [tag])
    timer.daemon = True
    started = time.monotonic()
    context.addJobTag(tag)
    timer.start()
    try:
        yield
    except JAVA_ERRORS as error:
        if time.monotonic() - started < seconds:
            raise
        raise UserError(f"to find them takes more than {seconds:g} s") from error
    finally:
        timer.cancel()
        context.removeJobTag(tag)


def draw(
    files: Sequence[Path], preprocess: PreprocessSpec, process: subprocess.Popen[bytes] | None = None
) -> list[dict[str, str]]:
    """Draws local files.

    Args:
        files: of images.
        preprocess: the job's block.
        process: from `drawing_process`; a new one by default.

    Returns:
        For each file `jpeg` (base64) or `problem`.
    """
    answers: list[dict[str, str]] = []
    end = time.monotonic() + SECONDS
    for _ in range(_RESTARTS):
        if len(answers) == len(files):
            break
        with process or _process() as drawing:
            answers += _draw_some(drawing, files[len(answers) :], preprocess, end - time.monotonic())
        process = None
    return answers + [{"problem": "not drawn: others took too long"}] * (len(files) - len(answers))


def _process() -> subprocess.Popen[bytes]:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each thread would take address space
    return subprocess.Popen(
        [sys.executable, "-m", "sparkinfer.executor.thumbnails"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment() | one_thread,
    )


def _draw_some(
    process: subprocess.Popen[bytes], files: Sequence[Path], preprocess: PreprocessSpec, seconds: float
) -> list[dict[str, str]]:
    """The answers of one process, with one for the file that it died of; fewer than files then, or out of time."""
    request = {
        "files": [str(file) for file in files],
        "preprocess": preprocess.model_dump(mode="json", exclude_unset=True),
        "edge": EDGE,
        "seconds": SECONDS_EACH,
    }
    try:
        output, _ = process.communicate(json.dumps(request).encode(), timeout=max(0.0, seconds))
        reason = _how_it_ended(process.returncode)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        reason = "took too long"
    lines = [json.loads(line) for line in output.splitlines() if line.endswith(b"}")]
    answers = [line for line in lines if "index" in line]
    if len(answers) < len(files):
        log.info("drawing thumbnails ended early: %s", reason)
        # Without a first line it is no image's fault.
        answers += [{"problem": f"drawing it {reason}"}] * (1 if lines else len(files))
    return answers


def _how_it_ended(status: int) -> str:
    if status == -signal.SIGALRM:
        return "took too long"
    return f"ended the process ({signal.Signals(-status).name})" if status < 0 else f"failed with exit status {status}"
