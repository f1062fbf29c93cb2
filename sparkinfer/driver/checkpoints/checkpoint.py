"""The checkpoint folder of a resumable job: whose it is, and small files that appear whole or not at all. Driver side.

CHECKPOINT/job.json                 what the checkpoint belongs to (`fingerprint`), and its id
CHECKPOINT/owner.json, lock         which run holds it (`lock`)
CHECKPOINT/inputs/000000.parquet    the inputs of snapshot 0, written before it runs (`ledger`)
CHECKPOINT/done/000000.json         snapshot 0 is in the output: what came of it
CHECKPOINT/stream/                  Spark's own streaming checkpoint, for tables
"""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkinfer.core.errors import SpecError, UserError
from sparkinfer.driver.checkpoints.fingerprint import RETRY_MAY_CHANGE, differences
from sparkinfer.driver.listing import JAVA_ERRORS, hadoop_conf, hadoop_path, is_missing, java_reason

__all__ = ["KEY", "Checkpoint", "damaged", "explained_io"]

KEY = "resume.checkpoint"
_VERSION = 2
"""1: `inputs/` did not say which snapshot of which checkpoint they are of."""

_JOB = "job.json"
_MAX_DIFFERENCES = 8


def damaged(file: str, why: str, remedy: str) -> SpecError:
    """What to say of a checkpoint's file that is not what was written."""
    return SpecError(f"the checkpoint is damaged: {file} {why}", key=KEY, hint=remedy)


@contextmanager
def explained_io(file: str, done: str) -> Iterator[None]:
    """Turns what a file system says of a checkpoint's file into one message for a person.

    Args:
        file: its path.
        done: `read` or `written`.

    Raises:
        UserError: names the file and the reason.
    """
    try:
        yield
    except JAVA_ERRORS as error:
        raise _refused(file, done, java_reason(error)) from error
    except OSError as error:
        place = f": {error.filename}" if error.filename and str(error.filename) != file else ""
        raise _refused(file, done, f"{error.strerror or str(error).splitlines()[0]}{place}") from error


def _refused(file: str, done: str, reason: str) -> UserError:
    free = "there must be room, and nothing else under its name" if done == "written" else "it must be a file"
    return UserError(
        f"{file!r} cannot be {done}: {reason}",
        key=KEY,
        hint=f"{free}, and this user must have the right; then run the same command again: it goes on where it was",
    )


class Checkpoint:
    """A folder on any Hadoop file system.

    Args:
        spark: its Hadoop settings count.
        folder: `resume.checkpoint`.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self.folder = folder.rstrip("/")
        self.id = ""
        """Of this checkpoint; set by `claim`."""

    def path(self, name: str) -> str:
        """Where a file of the checkpoint is."""
        return f"{self.folder}/{name}"

    @property
    def is_new(self) -> bool:
        """Whether no job has used the folder yet."""
        return not self.exists(_JOB)

    def claim(self, fingerprint: Mapping[str, Any]) -> None:
        """Makes the checkpoint this job's, or finds that it is.

        Raises:
            SpecError: it is another job's; shows the difference. Or `job.json` is damaged.
        """
        if self.is_new:
            self.id = uuid.uuid4().hex
            self.write(_JOB, {"version": _VERSION, "id": self.id, "job": fingerprint})
        else:
            known = self._job()
            self._refuse(differences(known["job"], fingerprint))
            self.id = str(known["id"])

    def check_used(self) -> None:
        """Raises SpecError where no job has used the folder yet."""
        if self.is_new:
            raise SpecError(
                f"{self.folder!r} is no job's checkpoint",
                key=KEY,
                hint="name the checkpoint that the output was written with; leave resume out where there was none",
            )

    def claim_for_retry(self, fingerprint: Mapping[str, Any]) -> None:
        """Finds that the checkpoint is of this job, whose failed rows run again; from then on it has this job's limits.

        Args:
            fingerprint: nothing is said of its `columns`: the output shows them.

        Raises:
            SpecError: as `claim`.
        """
        known = self._job()
        now = {**fingerprint, "columns": known["job"].get("columns")}
        self._refuse(differences(known["job"], now, but=RETRY_MAY_CHANGE))
        self.id = str(known["id"])
        if now != known["job"]:
            self.write(_JOB, {**known, "job": now})

    def _job(self) -> dict[str, Any]:
        """What `claim` wrote, with an id and a job."""
        known = self.read(_JOB, remedy="restore job.json; a new checkpoint needs a new output too")
        if known.get("version") != _VERSION or not isinstance(known.get("job"), dict) or not known.get("id"):
            raise damaged(
                self.path(_JOB),
                f"is not of version {_VERSION}",
                "restore job.json, or use the version of sparkinfer that wrote it",
            )
        return known

    def _refuse(self, different: list[str]) -> None:
        """Raises SpecError where something differs."""
        if different:
            shown = different[:_MAX_DIFFERENCES]
            if len(different) > len(shown):
                shown.append(f"... and {len(different) - len(shown)} more")
            raise SpecError(
                f"{self.folder!r} belongs to another job:\n    " + "\n    ".join(shown),
                key=KEY,
                hint="put these back as they were, or give this job a checkpoint and an output of its own",
            )

    def exists(self, name: str) -> bool:
        """Whether the checkpoint has this file."""
        with explained_io(self.path(name), "read"):
            path, fs = hadoop_path(self._spark, self.path(name))
            return bool(fs.exists(path))

    def names(self, folder: str, wanted: re.Pattern[str], *, remedy: str) -> list[str]:
        """Names of the wanted files in a folder of the checkpoint, sorted; none where there is no folder.

        Raises:
            SpecError: one of them is empty, which `writing` never leaves and Spark would pass over, or a folder.
        """
        with explained_io(self.path(folder), "read"):
            path, fs = hadoop_path(self._spark, self.path(folder))
            try:
                found = {status.getPath().getName(): status for status in fs.listStatus(path)}
            except JAVA_ERRORS as error:
                if is_missing(error):
                    return []
                raise
            names = sorted(filter(wanted.fullmatch, found))
            for name in names:
                if found[name].isDirectory() or not found[name].getLen():
                    what = "is a folder" if found[name].isDirectory() else "is empty"
                    raise damaged(self.path(f"{folder}/{name}"), what, remedy)
        return names

    def read(self, name: str, *, remedy: str) -> dict[str, Any]:
        """A JSON file of the checkpoint.

        Raises:
            SpecError: it is damaged; `remedy` says what to do.
        """
        content = self.tail(name)
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise damaged(self.path(name), f"holds no JSON object ({len(content)} bytes)", remedy)
        return found

    def tail(self, name: str, count: int | None = None) -> bytes:
        """The last bytes of a file of the checkpoint; all by default."""
        with explained_io(self.path(name), "read"):
            path, fs = hadoop_path(self._spark, self.path(name))
            stream = fs.open(path)
            try:
                if count is not None:
                    stream.seek(max(0, fs.getFileStatus(path).getLen() - count))
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file; see `writing`."""
        with self.writing(name) as file:
            file.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A local file to be filled, which then appears in the checkpoint, whole or not at all; an older one goes.

        Raises:
            UserError: it cannot be written.
        """
        with explained_io(self.path(name), "written"), tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
            file = Path(folder) / "content"
            yield file
            self._put(file, name)

    def _put(self, file: Path, name: str) -> None:
        target, fs = hadoop_path(self._spark, self.path(name))
        jvm: Any = self._spark.sparkContext._jvm
        gateway: Any = self._spark.sparkContext._gateway
        path_of = jvm.org.apache.hadoop.fs.Path
        aside = path_of(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        rename = jvm.org.apache.hadoop.fs.Options.Rename
        options = gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), hadoop_conf(self._spark))
        fs.mkdirs(target.getParent())
        try:
            fs.copyFromLocalFile(False, True, path_of(f"file://{file}"), aside)
            context.rename(aside, target, options)
        except JAVA_ERRORS:
            with suppress(*JAVA_ERRORS):
                fs.delete(aside, False)
            raise

    def delete(self, name: str) -> None:
        """Removes a file of the checkpoint, if it is there."""
        with explained_io(self.path(name), "written"):
            path, fs = hadoop_path(self._spark, self.path(name))
            fs.delete(path, False)
