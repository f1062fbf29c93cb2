"""The checkpoint folder of a resumable job: whose it is, and small files that appear whole or not at all. Driver side.

CHECKPOINT/job.json                 what the checkpoint belongs to (`fingerprint`), and its id
CHECKPOINT/owner.json, lock         which run holds it (`lock`)
CHECKPOINT/inputs/000000.parquet    the inputs of snapshot 0, written before it runs (`ledger`)
CHECKPOINT/done/000000.json         snapshot 0 is in the output: what came of it
CHECKPOINT/stream/                  Spark's own streaming checkpoint, for tables
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkinfer.core.errors import SpecError, UserError
from sparkinfer.driver.checkpoints.fingerprint import differences
from sparkinfer.driver.listing import (
    JAVA_ERRORS,
    hadoop_conf,
    hadoop_path,
    is_missing,
    java_reason,
    read_bytes,
)

__all__ = ["KEY", "Checkpoint", "damaged"]

KEY = "resume.checkpoint"
_VERSION = 1
_MAX_DIFFERENCES = 8


def damaged(file: str, why: str, remedy: str) -> SpecError:
    """What to say of a checkpoint's file that is not what was written."""
    return SpecError(f"the checkpoint is damaged: {file} {why}", key=KEY, hint=remedy)


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
        return not self.exists("job.json")

    def claim(self, fingerprint: Mapping[str, Any]) -> None:
        """Makes the checkpoint this job's, or finds that it is.

        Raises:
            SpecError: it is another job's; shows the difference. Or `job.json` is damaged.
        """
        if self.is_new:
            self.id = uuid.uuid4().hex
            self.write("job.json", {"version": _VERSION, "id": self.id, "job": fingerprint})
            return
        known = self.read("job.json", remedy="restore job.json; a new checkpoint needs a new output too")
        if known.get("version") != _VERSION or not isinstance(known.get("job"), dict) or not known.get("id"):
            raise damaged(
                self.path("job.json"),
                f"is not of version {_VERSION}",
                "restore job.json, or use the version of sparkinfer that wrote it",
            )
        different = differences(known["job"], fingerprint)
        if different:
            shown = different[:_MAX_DIFFERENCES]
            if len(different) > len(shown):
                shown.append(f"... and {len(different) - len(shown)} more")
            raise SpecError(
                f"{self.folder!r} belongs to another job:\n    " + "\n    ".join(shown),
                key=KEY,
                hint="put these back as they were, or give this job a checkpoint and an output of its own",
            )
        self.id = str(known["id"])

    def exists(self, name: str) -> bool:
        """Whether the checkpoint has this file."""
        path, fs = hadoop_path(self._spark, self.path(name))
        return bool(fs.exists(path))

    def names(self, folder: str, *, remedy: str) -> list[str]:
        """Names of the files in a folder of the checkpoint, sorted; none where there is no folder.

        Raises:
            SpecError: one of them is empty, which `put` never leaves and Spark would pass over.
        """
        path, fs = hadoop_path(self._spark, self.path(folder))
        try:
            entries = [(status.getPath().getName(), status.getLen()) for status in fs.listStatus(path)]
        except JAVA_ERRORS as error:
            if is_missing(error):
                return []
            raise UserError(f"{path.toString()!r} cannot be listed: {java_reason(error)}", key=KEY) from error
        lengths = {name: length for name, length in entries if not name.startswith((".", "_"))}
        for name, length in lengths.items():
            if not length:
                raise damaged(self.path(f"{folder}/{name}"), "is empty", remedy)
        return sorted(lengths)

    def read(self, name: str, *, remedy: str) -> dict[str, Any]:
        """A JSON file of the checkpoint.

        Raises:
            SpecError: it is damaged; `remedy` says what to do.
        """
        content = read_bytes(self._spark, self.path(name), KEY)
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise damaged(self.path(name), f"holds no JSON object ({len(content)} bytes)", remedy)
        return found

    def tail(self, name: str, count: int) -> bytes:
        """The last bytes of a file of the checkpoint."""
        path, fs = hadoop_path(self._spark, self.path(name))
        start = max(0, fs.getFileStatus(path).getLen() - count)
        stream = fs.open(path)
        try:
            stream.seek(start)
            return bytes(stream.readNBytes(count))
        finally:
            stream.close()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file, whole or not at all; see `put`."""
        with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
            file = Path(folder) / "content"
            file.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")
            self.put(file, name)

    def put(self, file: Path, name: str) -> None:
        """Copies a local file into the checkpoint, under its name only when it is whole; an older one is replaced.

        Raises:
            UserError: the folder cannot be written.
        """
        target, fs = hadoop_path(self._spark, self.path(name))
        jvm: Any = self._spark.sparkContext._jvm
        gateway: Any = self._spark.sparkContext._gateway
        path_of = jvm.org.apache.hadoop.fs.Path
        aside = path_of(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        rename = jvm.org.apache.hadoop.fs.Options.Rename
        options = gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        try:
            fs.mkdirs(target.getParent())
            fs.copyFromLocalFile(False, True, path_of(f"file://{file}"), aside)
            context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), hadoop_conf(self._spark))
            context.rename(aside, target, options)
        except JAVA_ERRORS as error:
            raise UserError(f"{target.toString()!r} cannot be written: {java_reason(error)}", key=KEY) from error

    def delete(self, name: str) -> None:
        """Removes a file of the checkpoint, if it is there."""
        path, fs = hadoop_path(self._spark, self.path(name))
        fs.delete(path, False)
