"""Hadoop file systems through Spark's JVM: `file:`, `hdfs:`, `s3a:` and all others alike. Driver side.

A call through py4j costs some 0.1 ms and more, so whatever is asked of many files is asked in bulk: a folder is one
`listStatus` and a few long strings.
"""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkinfer.core.errors import UserError
from sparkinfer.driver.paths import Root, local_path

__all__ = [
    "JAVA_ERRORS",
    "FileSystems",
    "Status",
    "child",
    "copy_to_local",
    "file_name_charset",
    "hadoop_conf",
    "hadoop_path",
    "is_missing",
    "java_reason",
    "local_path",
    "names_in",
    "read_bytes",
    "refusal",
    "statuses",
    "strings",
    "write_text",
]

JAVA_ERRORS = (Py4JJavaError, PySparkException)
"""What a Java exception becomes in Python: pyspark turns some into its own."""

_CHUNK = 50_000
"""Files whose description crosses from the JVM as one string: some 15 MB."""

_STATUS = re.compile(
    r"path=(?P<path>.*); isDirectory=(?P<folder>true|false)(?:; length=(?P<length>-?\d+); .*?)?"
    r"; modification_time=(?P<modified>-?\d+); access_time=.*; owner=(?P<owner>.*); group=(?P<group>.*)"
    r"; permission=(?P<permission>\S+); isSymlink=",
    re.DOTALL,
)
"""`org.apache.hadoop.fs.FileStatus.toString`, Hadoop 2.8 and later; subclasses put more before and after it."""


class Status(NamedTuple):
    """One entry of a listing.

    Attributes:
        path: qualified.
        length: bytes; 0 for a folder.
        modified: milliseconds since 1970.
        rights: owner, group and permission (`rw-r-----`): what decides who may read it.
    """

    path: str
    is_folder: bool
    length: int
    modified: int
    rights: tuple[str, str, str]

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]


def hadoop_path(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """The `org.apache.hadoop.fs.Path` of `uri`, qualified, and its `FileSystem`, with the session's Hadoop settings.

    Raises:
        UserError: not a path, or of a file system that Hadoop does not know or cannot reach.
    """
    try:
        path = _jvm(spark).org.apache.hadoop.fs.Path(uri)
        fs = path.getFileSystem(hadoop_conf(spark))
        return fs.makeQualified(path), fs
    except JAVA_ERRORS as error:
        raise UserError(f"{uri!r} cannot be opened: {java_reason(error)}") from error


def child(spark: SparkSession, folder: Any, name: str) -> Any:
    """The Hadoop path of something in a folder, or below it: `part=1/a.parquet`."""
    return _jvm(spark).org.apache.hadoop.fs.Path(folder, name)


def copy_to_local(spark: SparkSession, uri: str, target: Path, key: str) -> None:
    """Copies one file of any Hadoop file system to a local path.

    Raises:
        UserError: it is missing, a folder, or cannot be read; `key` is the setting that named it.
    """
    path, fs = hadoop_path(spark, uri)
    try:
        if fs.getFileStatus(path).isDirectory():
            raise UserError(f"{uri!r} is a folder", key=key)
        fs.copyToLocalFile(False, path, _jvm(spark).org.apache.hadoop.fs.Path(f"file://{target}"), True)
    except JAVA_ERRORS as error:
        raise UserError(f"{uri!r} {'does not exist' if is_missing(error) else java_reason(error)}", key=key) from error


def read_bytes(spark: SparkSession, uri: str, key: str) -> bytes:
    """All bytes of one file of any Hadoop file system.

    Raises:
        UserError: as `copy_to_local`.
    """
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
        copy = Path(folder) / "copy"
        copy_to_local(spark, uri, copy, key)
        return copy.read_bytes()


def write_text(spark: SparkSession, uri: str, text: str) -> None:
    """Writes a small UTF-8 file to any Hadoop file system; an older one is replaced.

    Raises:
        UserError: it cannot be written.
    """
    path, fs = hadoop_path(spark, uri)
    try:
        stream = fs.create(path, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
    except JAVA_ERRORS as error:
        raise UserError(f"{uri!r} cannot be written: {java_reason(error)}") from error


def names_in(spark: SparkSession, folder: str) -> list[str] | None:
    """Names of all entries of a folder, hidden ones too; None where there is no such folder.

    Raises:
        UserError: it cannot be listed.
    """
    path, fs = hadoop_path(spark, folder)
    try:
        found = _jvm(spark).org.apache.hadoop.fs.FileUtil.stat2Paths(fs.listStatus(path))
    except JAVA_ERRORS as error:
        if is_missing(error):
            return None
        raise UserError(f"{folder!r} cannot be listed: {java_reason(error)}") from error
    return [name.rsplit("/", 1)[-1] for name in strings(spark, found)]


def statuses(spark: SparkSession, array: Any) -> Iterator[Status]:
    """A Java array of `FileStatus` as Python values, in long strings instead of call by call.

    Not for `file:`: there the permission alone forks an `ls` for every file.
    """
    for text in strings(spark, array):
        found = _STATUS.search(text)
        if found is None:
            raise RuntimeError(f"unknown form of a Hadoop FileStatus: {text[:200]!r}")
        yield Status(
            path=found["path"],
            is_folder=found["folder"] == "true",
            length=int(found["length"] or 0),
            modified=int(found["modified"]),
            rights=(found["owner"], found["group"], found["permission"]),
        )


def strings(spark: SparkSession, array: Any) -> Iterator[str]:
    """`toString` of every element of a Java array, in few calls."""
    jvm = _jvm(spark)
    # Names may hold any character, newlines too: no fixed separator is safe.
    separator = f"|{uuid.uuid4().hex}|"
    for start in range(0, len(array), _CHUNK):
        part = array[start : min(start + _CHUNK, len(array))]
        # A Scala method: py4j passes an array of Path to no Java method that takes Object[].
        yield from jvm.scala.Predef.genericWrapArray(part).mkString(separator).split(separator)


def java_reason(error: Exception) -> str:
    """One of `JAVA_ERRORS` in a line: its class and the first line of its message."""
    text = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    lines = str(text or "").strip().splitlines()
    return ": ".join([_java_class(error), *lines[:1]])


def is_missing(error: Exception) -> bool:
    """Whether one of `JAVA_ERRORS` says that a file is not there."""
    return _java_class(error) == "FileNotFoundException"


def _java_class(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getClass().getSimpleName())
    return type(error).__name__


def refusal(spark: SparkSession, fs: Any, path: str) -> str | None:
    """Why a file may not be read; None when it may, or when its file system does not say."""
    hadoop = _jvm(spark).org.apache.hadoop.fs
    try:
        fs.access(hadoop.Path(path), hadoop.permission.FsAction.READ)
    except JAVA_ERRORS as error:
        if _java_class(error) == "AccessControlException":
            return "permission denied"
    return None


def file_name_charset(spark: SparkSession) -> str:
    """In what Java reads names of local files: from the locale it was started in, and no setting changes it."""
    return str(_jvm(spark).java.lang.System.getProperty("sun.jnu.encoding"))


class FileSystems:
    """The file systems behind schemes and authorities, each asked once.

    Args:
        spark: its Hadoop settings count.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[tuple[str | None, str | None], Root | str] = {}

    def root_of(self, scheme: str | None, authority: str | None) -> Root:
        """Prefix and working folder.

        Raises:
            ValueError: Hadoop knows no such file system, or cannot reach it.
        """
        key = scheme, authority
        if key not in self._known:
            self._known[key] = self._ask(scheme, authority)
        found = self._known[key]
        if isinstance(found, str):
            raise ValueError(found)  # noqa: TRY004 - the value is an earlier failure's text
        return found

    def _ask(self, scheme: str | None, authority: str | None) -> Root | str:
        start = f"{scheme}:" if scheme else ""
        start += f"//{authority}/" if authority else "/"
        try:
            path, fs = hadoop_path(self._spark, start)
            prefix = path.toString().removesuffix("/")
            return Root(prefix, fs.getWorkingDirectory().toUri().getPath())
        except UserError as error:
            return error.message
        except JAVA_ERRORS as error:
            return java_reason(error)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def hadoop_conf(spark: SparkSession) -> Any:
    """The session's Hadoop settings, a Java object."""
    session: Any = spark._jsparkSession
    return session.sessionState().newHadoopConf()
