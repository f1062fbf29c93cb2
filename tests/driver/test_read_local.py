"""What is known to be missing before Spark starts."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.read import check_local_source
from sparkinfer.driver.sources.path_table import file_format
from sparkinfer.driver.sql_errors import closest, sentence


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", ["images", "parquet", "paths"])
def test_a_missing_local_input_is_told_at_once(tmp_path, kind):
    (tmp_path / "photos.parquet").mkdir()
    with pytest.raises(SourceError, match=r"photo\.parquet' does not exist") as caught:
        check_local_source(SourceSpec(**{kind: f"{tmp_path}/photo.parquet"}))
    assert caught.value.key == f"source.{kind}"
    assert caught.value.hint == "did you mean 'photos.parquet'?"


def test_the_nearest_folder_that_exists_is_named(tmp_path):
    with pytest.raises(SourceError) as caught:
        check_local_source(SourceSpec(images=f"file:{tmp_path}/a/b/c"))
    assert caught.value.hint == f"{str(tmp_path)!r} exists"


@pytest.mark.parametrize(
    "source",
    [
        {"images": "hdfs://nn/photos"},
        {"images": "s3a://bucket/x"},
        {"images": "/nowhere/*.jpg"},
        {"table": "no.such.table"},
        {"query": "SELECT nothing"},
        {"paths": "db.paths"},
    ],
)
def test_what_only_spark_can_know_is_left_to_it(source):
    check_local_source(SourceSpec(**source))


def test_a_folder_without_a_file_is_told_at_once(tmp_path):
    (tmp_path / ".hidden.jpg").write_bytes(b"x")
    with pytest.raises(SourceError, match="holds no files but 1 hidden"):
        check_local_source(SourceSpec(images=str(tmp_path)))


def test_what_is_there_is_fine(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    check_local_source(SourceSpec(images=(str(tmp_path), f"file://{tmp_path}")))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/list.txt", "text"),
        ("list.TXT", "text"),
        ("list.csv.gz", "csv"),
        ("x.jsonl", "json"),
        ("x.json.zst", "json"),
        ("out.parquet", "parquet"),
        ("hdfs://nn/lists", "folder"),
        ("db.table", None),
        ("paths", None),
    ],
)
def test_format_of_a_path_list(name, expected):
    assert file_format(name) == expected


def test_spark_s_complaints_become_onesentence():
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. "
        "SQLSTATE: 42703; line 1 pos 0;\n'Filter ('x > 1)\n+- Relation"
    )
    assert sentence(text) == "A column with name `x` cannot be resolved."
    assert sentence("\n[PARSE] Syntax error at 'FROM'. SQLSTATE: 42601 (line 1, pos 3)\n\n== SQL ==") == (
        "Syntax error at 'FROM'."
    )
    assert sentence("") == "Spark gives no reason"


def test_closest():
    assert closest("contnet", ["content", "path"]) == "did you mean 'content'?"
    assert closest("zzz", ["content", "path"]) is None
