"""Files of a remote Hadoop file system (WebHDFS over HTTP): the same as local ones, one question and one read each."""

from __future__ import annotations

from collections import Counter

import pytest

from sparkinfer.core.errors import SourceError, UserError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.listing import copy_to_local, read_bytes
from sparkinfer.driver.read import read_images, read_source
from tests.spark.inputs import outcome, table_of
from tests.spark.webhdfs import MODIFIED_MS, FakeWebHdfs

pytestmark = pytest.mark.spark

FILES = {
    "/photos/a b.jpg": b"1",
    "/photos/100%.jpg": b"22",
    "/photos/фото?#[1].jpg": b"333",
    "/photos/sub/er/semi; isDirectory=false; length=9.jpg": b"4444",
    "/photos/sub/empty.jpg": b"",
    "/photos/_SUCCESS": b"",
    "/photos/.hidden/x.jpg": b"1",
}
SIZES = {path: len(content) for path, content in FILES.items() if "/_" not in path and "/." not in path}


@pytest.fixture
def node():
    with FakeWebHdfs(dict(FILES)) as running:
        yield running


def sizes(node, rows):
    return {path.removeprefix(node.uri): found for path, found in outcome(rows).items()}


def test_a_folder_is_listed_once_and_every_file_read_once(spark, node):
    rows, source = table_of(spark, images=f"{node.uri}/photos", keep=("modificationTime",))
    assert sizes(node, rows) == SIZES
    assert source.left_out == {"hidden": 1, "hidden folders": 1}
    assert {row.modificationTime.timestamp() * 1000 for row in rows} == {MODIFIED_MS}
    asked = Counter()
    for (operation, _), count in node.calls.items():
        asked[operation] += count
    # Each open is two requests: the name node's, and the data node's that it leads to.
    assert asked == {"GETFILESTATUS": 1 + len(SIZES), "LISTSTATUS": 3, "OPEN": 2 * len(SIZES)}


def test_only_chosen_files_are_touched(spark, node):
    rows, _ = table_of(spark, images=f"{node.uri}/photos", limit=1)
    assert sizes(node, rows) == {"/photos/100%.jpg": 2}
    assert {path for operation, path in node.calls if operation == "OPEN"} == {"/photos/100%.jpg"}


def test_globs_and_single_files(spark, node):
    assert sizes(node, table_of(spark, images=f"{node.uri}/photos/[a1]*")[0]) == {
        "/photos/a b.jpg": 1,
        "/photos/100%.jpg": 2,
    }
    assert sizes(node, table_of(spark, images=f"{node.uri}/photos/*")[0]) == SIZES
    assert sizes(node, table_of(spark, images=f"{node.uri}/photos/фото?#[1].jpg")[0]) == {"/photos/фото?#[1].jpg": 3}
    assert read_images(spark, f"{node.uri}/photos").count() == len(SIZES)
    with pytest.raises(SourceError, match="does not exist"):
        read_source(spark, SourceSpec(images=f"{node.uri}/nowhere"))


def test_files_that_may_not_be_read_or_are_gone_are_coded_rows(spark, node):
    """Spark fails the task that meets a file it may not read, `ignoreCorruptFiles` or not: so none must."""
    node.denied = {"/photos/a b.jpg"}
    node.gone = {"/photos/sub/empty.jpg"}
    rows, source = table_of(spark, images=f"{node.uri}/photos", max_bytes=3)
    assert sizes(node, rows) == {
        **SIZES,
        "/photos/a b.jpg": "READ_FAILED",
        "/photos/sub/empty.jpg": "READ_FAILED",
        "/photos/sub/er/semi; isDirectory=false; length=9.jpg": "TOO_LARGE",
    }
    assert source.known == {"READ_FAILED": 1, "TOO_LARGE": 1}
    assert node.calls["CHECKACCESS", "/photos/a b.jpg"] == 1
    assert node.calls["OPEN", "/photos/a b.jpg"] == 0


def test_a_table_of_remote_paths(spark, node, tmp_path):
    node.denied = {"/photos/a b.jpg"}
    wished = {
        "/photos/a b.jpg": "READ_FAILED",
        "/photos//100%.jpg": 2,
        "/photos/фото?#[1].jpg": 3,
        "/photos/sub/empty.jpg": 0,
        "/photos/nowhere.jpg": "READ_FAILED",
        "/photos/sub": "READ_FAILED",
        "/photos/sub/er/semi; isDirectory=false; length=9.jpg": "TOO_LARGE",
    }
    (tmp_path / "list.txt").write_text("\n".join(node.uri + path for path in wished))
    rows, source = table_of(spark, paths=str(tmp_path / "list.txt"), max_bytes=3)
    assert sizes(node, rows) == wished
    assert source.known == {"READ_FAILED": 2, "TOO_LARGE": 1}
    assert node.calls["OPEN", "/photos/a b.jpg"] == 0


def test_a_folder_that_cannot_be_listed_ends_the_job(spark, node):
    del node.files["/photos/sub/empty.jpg"]
    node.broken = {"/photos/sub"}
    with pytest.raises(SourceError, match=r"the folder '.*/photos/sub' cannot be listed") as caught:
        read_source(spark, SourceSpec(images=f"{node.uri}/photos"))
    assert caught.value.key == "source.images"


def test_single_files_come_to_the_driver(spark, node, tmp_path):
    assert read_bytes(spark, f"{node.uri}/photos/фото?#[1].jpg", "model.path") == b"333"
    copy_to_local(spark, f"{node.uri}/photos/100%.jpg", tmp_path / "a b%.jpg", "model.path")
    assert (tmp_path / "a b%.jpg").read_bytes() == b"22"
    assert [path.name for path in tmp_path.iterdir()] == ["a b%.jpg"]  # no checksum file beside it
    for path, message in (("/photos", "is a folder"), ("/nowhere", "does not exist")):
        with pytest.raises(UserError, match=message) as caught:
            read_bytes(spark, node.uri + path, "model.path")
        assert caught.value.key == "model.path"
        assert caught.value.exit_status == 2
