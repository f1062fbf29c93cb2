"""`images:` folders, files and globs: every file is one row, whatever its name and fate."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from sparkinfer.core.errors import SourceError, UserError
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.listing import write_text
from sparkinfer.driver.read import finish, read_images, read_source
from sparkinfer.driver.shard import shard
from sparkinfer.driver.sources import files
from tests.spark.inputs import STAMPS, measured, outcome, table_of

pytestmark = pytest.mark.spark

ODD_NAMES = [
    "a b.jpg",
    "100%.jpg",
    "50%25.jpg",
    "фото.jpg",
    "日本.jpg",
    "e\u0301.jpg",  # decomposed and composed: two names
    "\u00e9.jpg",
    "😀.jpg",
    "a[1].jpg",
    "{x,y}.jpg",
    "star*.jpg",
    "q?q.jpg",
    "h#h.jpg",
    "a+b&c=d.jpg",
    "q'uo\"te.jpg",
    "back\\slash.jpg",
    "10:30.jpg",
    "new\nline.jpg",
    "tab\t.jpg",
    "semi; isDirectory=false; length=9.jpg",
    "label=cat/x.jpg",
    "deep/er/y.jpg",
]


@pytest.fixture
def photos(tmp_path):
    """Files of 1, 2, 3, ... bytes; a folder whose own name is odd and hidden."""
    folder = tmp_path / "_my [photos] {x} 100%"
    for size, name in enumerate(ODD_NAMES, start=1):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    return folder


@pytest.mark.parametrize("mode", ["auto", "files", "bytes", "hybrid", "none"])
def test_every_file_is_one_row_with_its_own_bytes(spark, photos, mode):
    (photos / "empty.jpg").touch()
    rows, source = table_of(spark, mode, images=str(photos))
    expected = {f"file:{photos}/{name}": size for size, name in enumerate(ODD_NAMES, start=1)}
    assert outcome(rows) == {**expected, f"file:{photos}/empty.jpg": 0}
    assert len(rows) == len(ODD_NAMES) + 1
    assert source.keys == ("path",)


def test_columns_types_and_stamps(spark, photos):
    source = read_source(spark, SourceSpec(images=f"file:{photos}/label=cat", keep=("length", "modificationTime")))
    table = finish(source, measured(shard(spark, source, "none", 2).content, source), STAMPS)
    types = [(field.name, field.dataType.simpleString()) for field in table.schema]
    assert types == [
        ("path", "string"),
        ("length", "bigint"),
        ("modificationTime", "timestamp"),
        *((c.name, c.ddl) for c in PREDICTION_COLUMNS),
    ]
    (row,) = table.collect()
    assert row.length == row.predicted_class_idx == ODD_NAMES.index("label=cat/x.jpg") + 1
    assert row.modificationTime.timestamp() == pytest.approx((photos / "label=cat/x.jpg").stat().st_mtime, abs=1e-3)
    assert [row[name] for name in STAMPS] == list(STAMPS.values())


def test_hidden_names_are_no_rows_but_are_told(spark, photos, caplog):
    for name in ("_SUCCESS", ".DS_Store", "deep/._x.jpg", ".git/config"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        rows, source = table_of(spark, images=str(photos))
    assert len(rows) == len(ODD_NAMES)
    assert source.left_out == {"hidden": 3, "hidden folders": 1}
    assert "left out of the input: 3 hidden, 1 hidden folders" in caplog.text
    assert "left out: 3 hidden, 1 hidden folders" in source.describe()


def test_files_globs_and_lists(spark, photos):
    def paths(*locations):
        rows, source = table_of(spark, images=locations)
        return {row.path.removeprefix(f"file:{photos}/") for row in rows}, source.left_out

    escaped = str(photos).translate({ord(c): f"\\{c}" for c in "[]{}"})
    with pytest.raises(SourceError, match="Relative path in absolute URI: 10:30") as caught:
        paths(f"{escaped}/*")
    assert caught.value.hint == "name the folder instead of a glob"
    (photos / "10:30.jpg").unlink()
    (photos / ".hidden.jpg").touch()
    (photos / "deep" / "z.png").touch()
    # A name that exists as it stands is no glob, even where it looks like one; the folder's own name does.
    assert paths(f"{photos}/star*.jpg") == ({"star*.jpg"}, {})
    assert paths(f"{photos}/.hidden.jpg") == ({".hidden.jpg"}, {})
    assert paths(f"{escaped}/[a1]*.jpg") == ({"a b.jpg", "a[1].jpg", "a+b&c=d.jpg", "100%.jpg"}, {})
    found, left_out = paths(f"{escaped}/*")
    assert found == {*ODD_NAMES, "deep/z.png"} - {"10:30.jpg"}
    assert left_out == {"hidden": 1}
    assert paths(f"{escaped}/{{deep,label=cat}}/*/*.jpg", f"{photos}/a b.jpg")[0] == {"deep/er/y.jpg", "a b.jpg"}
    # Overlapping locations name a file once.
    assert paths(f"{photos}/deep", f"file://{photos}/deep/er", f"{photos}/deep/z.png") == (
        {"deep/er/y.jpg", "deep/z.png"},
        {"named twice": 2},
    )


def test_where_sample_and_limit_act_on_the_listing(spark, photos):
    rows, source = table_of(spark, images=str(photos), where="length > 5 AND path LIKE '%.jpg'", limit=3)
    assert len(rows) == 3
    assert all(row.predicted_class_idx > 5 for row in rows)
    assert len(source.files.lengths) == 3  # nothing else is in the plan, so nothing else is opened
    first = outcome(table_of(spark, images=str(photos), sample=0.5, seed=1)[0])
    assert first == outcome(table_of(spark, images=str(photos), sample=0.5, seed=1)[0])
    assert first != outcome(table_of(spark, images=str(photos), sample=0.5, seed=2)[0])
    assert 3 <= len(first) <= 19  # 22 files; outside with a chance of 1 in 4,000 for a fair hash


def test_a_file_that_is_gone_grown_or_unreadable_costs_only_its_own_row(spark, tmp_path):
    for name in ("good", "gone", "grown", "folder", "also_good"):
        (tmp_path / name).write_bytes(b"123")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "large").write_bytes(b"x" * 11)
    source = read_source(spark, SourceSpec(images=str(tmp_path), max_bytes=10))
    sharding = shard(spark, source, "auto", 2)
    (tmp_path / "gone").unlink()
    (tmp_path / "grown").write_bytes(b"x" * 11)
    (tmp_path / "folder").unlink()
    (tmp_path / "folder").mkdir()
    with sharding.applied(spark):
        rows = finish(source, measured(sharding.content, source), STAMPS).collect()
    assert {path.rsplit("/", 1)[-1]: found for path, found in outcome(rows).items()} == {
        "good": 3,
        "also_good": 3,
        "gone": "READ_FAILED",
        "grown": "READ_FAILED",
        "folder": "READ_FAILED",
        "dangling": "READ_FAILED",
        "large": "TOO_LARGE",
    }
    failed = {row.path.rsplit("/", 1)[-1]: row for row in rows if row.error_code}
    assert all(row.error_stage == "read" and row.model_name == "bytes" for row in failed.values())
    assert failed["large"].error_message == "11 bytes, allowed are 10 (source.max_bytes)"
    assert failed["dangling"].error_message == "no such file"
    assert "could not be read" in failed["gone"].error_message
    assert source.known == {"TOO_LARGE": 1, "READ_FAILED": 1}
    assert "1 TOO_LARGE without reading" in source.describe()


def test_nothing_worth_reading_still_gives_its_rows(spark, tmp_path):
    (tmp_path / "large").write_bytes(b"x" * 11)
    rows, source = table_of(spark, images=str(tmp_path), max_bytes=10)
    assert outcome(rows) == {f"file:{tmp_path}/large": "TOO_LARGE"}
    assert source.mean_bytes is None


@pytest.mark.parametrize(
    ("source", "key", "message", "hint"),
    [
        ({"images": "{dir}/nowhere"}, "source.images", "does not exist", "relative paths"),
        ({"images": "{dir}/*.png"}, "source.images", "matches nothing", "globs"),
        ({"images": "{dir}/empty"}, "source.images", "no files in", "nothing is there"),
        ({"images": "{dir}/hidden"}, "source.images", "no files in", "1 hidden"),
        ({"images": "{dir}/[a"}, "source.images", "cannot be listed", None),
        ({"images": "foo://x/y"}, "source.images", "No FileSystem for scheme", None),
        ({"images": "{dir}", "where": "length > 99"}, "source.where", "none of 1 files", None),
        ({"images": "{dir}", "where": "lenght > 9"}, "source.where", "lenght", None),
        ({"images": "{dir}", "where": "length >"}, "source.where", "Syntax error", None),
        ({"images": "{dir}", "where": "length + 1"}, "source.where", "BIGINT", None),
        ({"images": "{dir}", "keep": ("size",)}, "source.keep", "no column 'size'", None),
        ({"images": "{dir}", "keep": ("path",)}, "source.keep", "there already", None),
    ],
)
def test_what_a_person_got_wrong_is_told_in_a_screen(spark, tmp_path, source, key, message, hint):
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "_SUCCESS").touch()
    given = {k: v.replace("{dir}", str(tmp_path)) if k == "images" else v for k, v in source.items()}
    with pytest.raises(SourceError) as caught:
        read_source(spark, SourceSpec(**given))
    assert caught.value.key == key
    assert message in caught.value.message
    assert hint is None or hint in caught.value.hint
    assert len(caught.value.render().splitlines()) <= 10
    assert "java." not in caught.value.render().lower()


def test_read_images_is_a_dataframe_of_every_file(spark, photos):
    (photos / "empty.jpg").touch()
    images = read_images(spark, str(photos))
    assert images.columns == ["path", "modificationTime", "length", "content"]
    rows = images.collect()
    assert {row.path.removeprefix(f"file:{photos}/"): row.content for row in rows} == {
        **{name: b"x" * size for size, name in enumerate(ODD_NAMES, start=1)},
        "empty.jpg": b"",
    }
    assert all(row.length == len(row.content) for row in rows)
    assert read_images(spark, [f"{photos}/deep"], recursive=True).count() == 1
    with pytest.raises(SourceError, match="no files in"):
        read_images(spark, [f"{photos}/deep"], recursive=False)


def test_a_java_without_utf8_is_told_how_to_get_it(spark, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "file_name_charset", lambda _: "ANSI_X3.4-1968")
    (tmp_path / "list.txt").write_text(f"{photos}/фото.jpg\n")
    for source in ({"images": str(photos)}, {"paths": str(tmp_path / "list.txt")}):
        with pytest.raises(SourceError, match="file names need UTF-8") as caught:
            read_source(spark, SourceSpec(**source))
        assert "LC_ALL=C.UTF-8" in caught.value.hint
    assert len(table_of(spark, images=f"{photos}/a b.jpg")[0]) == 1


def test_the_session_is_left_as_it_was(spark, photos):
    before = spark.sql("SET").collect()
    table_of(spark, images=str(photos), where="length > 1", sample=0.9)
    assert spark.sql("SET").collect() == before


def test_many_files(spark, tmp_path):
    sizes = np.random.default_rng(5).integers(0, 50, 3000)
    for i, size in enumerate(sizes.tolist()):
        folder = tmp_path / f"d{i % 40}"
        folder.mkdir(exist_ok=True)
        (folder / f"{i}.jpg").write_bytes(b"x" * size)
    rows, source = table_of(spark, images=str(tmp_path))
    found = {int(row.path.rsplit("/", 1)[-1][:-4]): row.predicted_class_idx for row in rows}
    assert found == dict(enumerate(sizes.tolist()))
    assert source.mean_bytes == pytest.approx(sizes.mean())


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_the_model_never_runs_inside_a_broadcast(spark, photos, mode):
    """Spark would broadcast a side that it takes for small, under a time-out of five minutes."""
    source = read_source(spark, SourceSpec(images=str(photos)))
    sharding = shard(spark, source, mode, 2)
    plan = finish(source, measured(sharding.content, source), STAMPS)._jdf.queryExecution().executedPlan().toString()
    assert "SortMergeJoin" in plan
    assert "BroadcastExchange" not in plan


def test_a_text_file_is_written_and_replaced(spark, tmp_path):
    target = tmp_path / "new folder" / "report 100%.json"
    for text in ("{}", '{"größe": "1 µm"}\n'):
        write_text(spark, str(target), text)
        assert target.read_text("utf-8") == text
    with pytest.raises(UserError, match="cannot be written"):
        write_text(spark, str(target / "inside a file"), "")
