"""`paths:` tables of paths: every row comes out, whatever its path is or names."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from sparkinfer.core.errors import SourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.listing import FileSystems
from sparkinfer.driver.paths import parse, qualify
from sparkinfer.driver.read import read_source
from tests.spark.inputs import outcome, table_of

pytestmark = pytest.mark.spark


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for size, name in enumerate(["a b.jpg", "100%.jpg", "фото*[1].jpg", "c.jpg"], start=1):
        (folder / name).write_bytes(b"x" * size)
    return folder


@pytest.fixture
def table(spark, request):
    """A catalogue table of the given rows; dropped afterwards."""
    names = []

    def make(rows, schema):
        name = f"paths_{len(names)}"
        spark.createDataFrame(rows, schema).write.mode("overwrite").saveAsTable(name)
        names.append(name)
        return name

    yield make
    for name in names:
        spark.sql(f"DROP TABLE {name}")


def test_each_row_comes_out_once_more_often_null_or_hopeless_ones_too(spark, photos, table):
    (photos / "large.jpg").write_bytes(b"x" * 11)
    (photos / "empty.jpg").touch()
    paths = [
        f"{photos}/a b.jpg",
        f"file:{photos}/a b.jpg",  # the same file, spelled otherwise
        f"file://{photos}//./100%.jpg",
        f"{photos}/100%.jpg",
        f"{photos}/100%.jpg",  # a duplicate
        f"{photos}/фото*[1].jpg",  # literal, no glob
        f"{photos}/empty.jpg",
        f"{photos}/large.jpg",
        f"{photos}/*.jpg",
        f"{photos}",
        f"{photos}/nowhere.jpg",
        "foo://x/y.jpg",
        "",
        None,
        None,
    ]
    name = table([(path, i, [i]) for i, path in enumerate(paths)], "path string, id long, list array<long>")
    rows, source = table_of(spark, paths=name, keep=("list", "id"), max_bytes=10)
    assert source.keys == ("path", "list", "id")
    by_id = {row.id: row for row in rows}
    assert sorted(row.id for row in rows) == list(range(len(paths)))
    assert [by_id[i].path for i in range(len(paths))] == paths
    assert all(row.list == [row.id] for row in rows)
    found = [by_id[i].error_code or by_id[i].predicted_class_idx for i in range(len(paths))]
    assert found == [1, 1, 2, 2, 2, 3, 0, "TOO_LARGE", *["READ_FAILED"] * 7]
    messages = [by_id[i].error_message for i in range(8, len(paths))]
    assert messages[:3] == ["no such file", "is a folder", "no such file"]
    assert "No FileSystem for scheme" in messages[3]
    assert messages[4:] == ["the path is empty", "the path is null", "the path is null"]


def test_a_file_is_read_once_however_often_it_is_named(spark, photos, table):
    name = table([(f"{photos}/c.jpg",)] * 50 + [(f"file:{photos}/c.jpg",)] * 50, "path string")
    rows, source = table_of(spark, paths=name)
    assert len(rows) == 100
    assert {row.predicted_class_idx for row in rows} == {4}
    assert source.files.paths.to_pylist() == [f"file:{photos}/c.jpg"]


@pytest.mark.parametrize("suffix", ["txt", "csv", "json", "parquet"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_lists_in_files(spark, photos, tmp_path, suffix, in_folder):
    wished = {f"{photos}/a b.jpg": 1, f"{photos}/фото*[1].jpg": 3, f'{photos}/"quoted", and more.jpg': "READ_FAILED"}
    target = tmp_path / "lists" / f"list.{suffix}"
    target.parent.mkdir()
    if suffix == "txt":
        target.write_text("\r\n".join([*wished, ""]))
    elif suffix == "csv":
        quoted = ['"' + path.replace('"', '""') + '"' for path in wished]
        target.write_text("\n".join(["id,path", *(f"{i},{path}" for i, path in enumerate(quoted))]))
    elif suffix == "json":
        target.write_text("\n".join(json.dumps({"path": path}) for path in wished))
    else:
        spark.createDataFrame([(path,) for path in wished], "path string").write.parquet(str(target))
    rows, source = table_of(spark, paths=str(target.parent if in_folder and suffix != "parquet" else target))
    assert outcome(rows) == wished
    assert len(rows) == 3
    assert source.kind == "paths"


def test_where_sample_and_limit_choose_rows_of_the_table(spark, photos, table):
    name = table([(f"{photos}/c.jpg?{i}", i) for i in range(200)] + [(None, 1000)], "uri string, id long")
    chosen = {"paths": name, "path_column": "uri", "keep": ("id",)}
    rows, _ = table_of(spark, **chosen, where="id >= 190")
    assert sorted(row.id for row in rows) == [*range(190, 200), 1000]
    rows, source = table_of(spark, **chosen, limit=7)
    assert len(rows) == 7
    assert source.known == {"READ_FAILED": 7}  # seven paths looked up, no more
    assert source.keys == ("uri", "id")
    share = [len(table_of(spark, **chosen, sample=0.3, seed=seed)[0]) for seed in (1, 1, 2)]
    assert share[0] == share[1]
    assert 30 <= share[0] <= 90  # 60 expected, standard deviation 6.5


@pytest.mark.parametrize(
    ("source", "key", "message", "hint"),
    [
        ({"paths": "no_such_table"}, "source.paths", "no_such_table", None),
        ({"paths": "/no/such/list.txt"}, "source.paths", "/no/such/list.txt", None),
        ({"paths": "/no/such/folder"}, "source.paths", "does not exist", None),
        ({"paths": "{table}", "path_column": "pth"}, "source.path_column", "no column 'pth'", "did you mean 'path'?"),
        ({"paths": "{table}", "path_column": "id"}, "source.path_column", "no text", None),
        ({"paths": "{table}", "keep": ("label",)}, "source.keep", "'label' cannot be kept", "AS input_label"),
        ({"paths": "{table}", "keep": ("ids",)}, "source.keep", "no column 'ids'", "did you mean 'id'?"),
        ({"paths": "{table}", "where": "id > 5"}, "source.paths", "no rows", "where"),
        ({"paths": "{table}", "where": "nope > 5"}, "source.where", "nope", None),
    ],
)
def test_what_a_person_got_wrong(spark, table, source, key, message, hint):
    name = table([("/x", 1, "cat")], "path string, id long, label string")
    with pytest.raises(SourceError) as caught:
        read_source(spark, SourceSpec(**{k: name if v == "{table}" else v for k, v in source.items()}))
    assert caught.value.key == key
    assert message in caught.value.message
    assert hint is None or hint in caught.value.hint
    assert len(caught.value.render().splitlines()) <= 10


def test_a_folder_without_lists_is_told(spark, photos):
    with pytest.raises(SourceError, match="has no list of paths") as caught:
        read_source(spark, SourceSpec(paths=str(photos)))
    assert "*.csv" in caught.value.allowed


def test_paths_mean_what_hadoop_says(spark):
    """Our reading of a path against `org.apache.hadoop.fs.Path` itself."""
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    systems = FileSystems(spark)
    for text in [
        "/a/b.jpg",
        "a/b.jpg",
        "./a/./b/../c",
        "../../x",
        "/../x",
        "//host/x",
        "///x",
        "/a//b///c/",
        "/",
        "file:///a b/100%/%20/q?x#y.jpg",
        "file:/a/10:30.jpg",
        "/a/10:30.jpg",
        "/.hidden/..x/...",
        "file:////x",
        "/a\\b/c",
        "/tab\t/new\nline/\x01",
        "/日本/😀",
        " / lead",
    ]:
        path = hadoop.Path(text)
        scheme, authority, plain = parse(text)
        uri = path.toUri()
        assert (scheme, authority, plain) == (uri.getScheme(), uri.getAuthority(), uri.getPath()), text
        if authority is None:
            assert qualify(text, systems.root_of) == path.getFileSystem(conf).makeQualified(path).toString(), text


def test_a_view_with_a_path_column_of_another_name(spark, photos):
    frame = spark.createDataFrame([(f"{photos}/c.jpg", 1)], "uri string, n int")
    frame.select(F.struct("uri").alias("image"), "n").createOrReplaceTempView("a_view")
    rows, source = table_of(spark, paths="a_view", path_column="image.uri", keep=("N",))
    assert [(row.uri, row.N, row.predicted_class_idx) for row in rows] == [(f"{photos}/c.jpg", 1, 4)]
    assert source.keys == ("uri", "N")
