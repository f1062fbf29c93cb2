"""`parquet:`, `table:` and `query:` rows that carry their bytes."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from sparkinfer.core.errors import EmptySourceError, SourceError
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.read import finish, read_source
from sparkinfer.driver.shard import shard
from tests.spark.inputs import STAMPS, measured, outcome, table_of

pytestmark = pytest.mark.spark

SCHEMA = "path string, content binary, id long, label string, text string, image struct<bytes:binary,path:string>"
ROWS = [
    *((f"p{i}", b"x" * i, i, "cat", "eA==", (b"y" * (i + 1), f"q{i}")) for i in range(10)),
    ("null", None, 10, None, None, None),
    (None, b"xxx", 11, None, None, None),
]


@pytest.fixture(scope="module")
def parquet(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("rows") / "images 100%.parquet")
    spark.createDataFrame(ROWS, SCHEMA).repartition(3).write.parquet(path)
    return path


@pytest.fixture(scope="module")
def table(spark, parquet):
    spark.read.parquet(parquet).write.mode("overwrite").saveAsTable("images_of_rows")
    yield "images_of_rows"
    spark.sql("DROP TABLE images_of_rows")


def expected(rows=ROWS):
    return {path: None if content is None else len(content) for path, content, *_ in rows}


@pytest.mark.parametrize("mode", ["auto", "files", "bytes", "hybrid", "none"])
def test_every_row_comes_out_once(spark, parquet, mode):
    rows, source = table_of(spark, mode, parquet=parquet, keep=("id",))
    assert len(rows) == len(ROWS)
    assert outcome(rows) == expected()
    assert {row.path: row.id for row in rows} == {path: i for path, _, i, *_ in ROWS}
    assert source.keys == source.content_keys == ("path", "id")
    assert source.mean_bytes is None
    assert parquet in source.describe()


def test_columns(spark, parquet):
    source = read_source(spark, SourceSpec(parquet=parquet, keep=("id", "image")))
    table = finish(source, measured(shard(spark, source, "none", 2).content, source), STAMPS)
    assert table.columns == ["path", "id", "image", *(c.name for c in PREDICTION_COLUMNS)]
    assert table.schema["image"].dataType.simpleString() == "struct<bytes:binary,path:string>"


def test_tables_and_queries(spark, table):
    assert outcome(table_of(spark, table=table)[0]) == expected()
    query = f"SELECT concat(path, '!') AS name, unbase64(text) AS bytes FROM {table} WHERE id < 3"
    rows, source = table_of(spark, query=query, path_column="name", content_column="bytes")
    assert outcome(rows) == {"p0!": 1, "p1!": 1, "p2!": 1}
    assert source.keys == ("name",)


def test_fields_of_an_image_struct(spark, parquet):
    rows, source = table_of(
        spark, parquet=parquet, content_column="image.bytes", path_column="image.path", where="image IS NOT NULL"
    )
    assert outcome(rows) == {f"q{i}": i + 1 for i in range(10)}
    assert source.keys == ("path",)


def test_columns_with_dots_and_of_the_same_name_as_ours(spark, tmp_path):
    schema = "path string, bytes binary, content string, `x.y` string"
    frame = spark.createDataFrame([("a", b"12", "kept", "dotted")], schema)
    frame.write.parquet(str(tmp_path / "t"))
    rows, _ = table_of(spark, parquet=str(tmp_path / "t"), content_column="bytes", keep=("content", "x.y"))
    found = [(row.path, row["content"], row["x.y"], row.predicted_class_idx) for row in rows]
    assert found == [("a", "kept", "dotted", 2)]


def test_partition_folders_and_lists_of_paths(spark, tmp_path):
    for label in ("cat", "dog"):
        spark.createDataFrame([(f"{label}1", b"1")], "path string, content binary").write.parquet(
            str(tmp_path / "t" / f"kind={label}")
        )
    rows, _ = table_of(spark, parquet=str(tmp_path / "t"), keep=("kind",))
    assert {row.path: row.kind for row in rows} == {"cat1": "cat", "dog1": "dog"}
    both = (f"{tmp_path}/t/kind=cat", f"{tmp_path}/t/kind=d*")
    assert set(outcome(table_of(spark, parquet=both)[0])) == {"cat1", "dog1"}


@pytest.fixture
def counted(spark):
    """A way to count how many rows' bytes reach the model: only those may be worked on."""
    counter = spark.sparkContext.accumulator(0)

    def count(content, source):
        def see(batches):
            for batch in batches:
                counter.add(batch.num_rows)
                yield batch

        return measured(content.mapInArrow(see, content.schema), source)

    return counter, count


def test_where_sample_and_limit_act_before_the_model(spark, tmp_path, counted):
    path = str(tmp_path / "t")
    spark.range(1000).select(
        F.col("id").cast("string").alias("path"), F.encode(F.lit("abc"), "utf-8").alias("content"), "id"
    ).repartition(4).write.parquet(path)

    def rows(**options):
        counter, count = counted
        before = counter.value
        source = read_source(spark, SourceSpec(parquet=path, **options))
        sharding = shard(spark, source, "auto", 2)
        with sharding.applied(spark):
            found = finish(source, count(sharding.content, source), STAMPS).collect()
        assert counter.value - before == len(found)
        return {int(row.path) for row in found}

    assert rows(where="id % 100 = 7") == {7 + 100 * i for i in range(10)}
    assert len(rows(limit=10)) == 10
    third = rows(sample=1 / 3, seed=3)
    assert third == rows(sample=1 / 3, seed=3)
    assert third != rows(sample=1 / 3, seed=4)
    assert 260 <= len(third) <= 410  # 333 expected, standard deviation 15
    assert rows(sample=1.0) == set(range(1000))
    assert rows(where="id < 100", sample=0.5, limit=5) <= set(range(100))


def test_no_rows_are_told(spark, parquet):
    for mode in ("auto", "files", "bytes", "none"):
        with pytest.raises(EmptySourceError, match="has 0 rows"):
            table_of(spark, mode, parquet=parquet, where="id > 99")


@pytest.mark.parametrize(
    ("source", "key", "message", "hint"),
    [
        ({"parquet": "/no/such/place"}, "source.parquet", "does not exist", None),
        ({"parquet": "{dir}"}, "source.parquet", "", None),
        ({"table": "no_such_table"}, "source.table", "no_such_table", None),
        ({"query": "SELEC 1"}, "source.query", "Syntax error", None),
        ({"query": "SELECT * FROM no_such_table"}, "source.query", "no_such_table", None),
        ({"parquet": "{ok}", "content_column": "contnt"}, "source.content_column", "no column", "'content'?"),
        ({"parquet": "{ok}", "path_column": "name"}, "source.path_column", "no column 'name'", "names a row"),
        ({"parquet": "{ok}", "keep": ("idd",)}, "source.keep", "no column 'idd'", "did you mean 'id'?"),
        ({"parquet": "{ok}", "keep": ("*",)}, "source.keep", "no column '*'", None),
        ({"parquet": "{ok}", "keep": ("label",)}, "source.keep", "prediction table has one", "AS input_label"),
        ({"parquet": "{ok}", "keep": ("id", "ID")}, "source.keep", "there already", None),
        ({"parquet": "{ok}", "content_column": "text"}, "source.content_column", "string, not", "unbase64(text)"),
        ({"parquet": "{ok}", "content_column": "image"}, "source.content_column", "not binary", "image.bytes"),
        ({"parquet": "{ok}", "content_column": "id"}, "source.content_column", "bigint, not binary", "binary"),
        ({"parquet": "{ok}", "where": "idd > 3"}, "source.where", "idd", None),
        ({"parquet": "{ok}", "where": "id >"}, "source.where", "Syntax error", None),
    ],
)
def test_what_a_person_got_wrong_is_told_in_a_screen(spark, parquet, tmp_path, capfd, source, key, message, hint):
    (tmp_path / "a.parquet").write_bytes(b"this is no Parquet file")
    places = {"{ok}": parquet, "{dir}": str(tmp_path)}
    with pytest.raises(SourceError) as caught:
        read_source(spark, SourceSpec(**{k: places.get(v, v) if isinstance(v, str) else v for k, v in source.items()}))
    error = caught.value
    assert error.key == key
    assert message in error.message
    assert hint is None or hint in error.hint
    assert len(error.render().splitlines()) <= 10
    assert not any(noise in error.render() for noise in ("SQLSTATE", "\tat ", "Traceback", "Relation ["))
    assert "QueryContextLogger" not in capfd.readouterr().err  # nor has Spark said it before us, with its Java stack
