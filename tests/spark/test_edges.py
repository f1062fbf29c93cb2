"""Jobs at the edges of their data: nothing, one, odd names, files that change, stores and disks that fail.

Every job runs through the command line, so that what a person sees and the exit status are checked with the table.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sparkinfer import cli
from sparkinfer.driver.sources.inputs import FileSet
from tests.executor.chain import png_of
from tests.spark.models import fake_model_file, worker_calls
from tests.spark.webhdfs import FakeWebHdfs

pytestmark = pytest.mark.spark

RAW = {"resize": None, "crop": [8, 8], "mean": [0], "std": [1], "rescale": 1}
RED, GREEN, BLUE = png_of(200, 10, 20), png_of(20, 210, 10), png_of(10, 20, 220)

ODD_NAMES = (
    "a b", "100%", "50%25", "h#h", "q?q", "a+b&c=d", "q'uo\"te", "back\\slash", "a[1]", "{x,y}", "star*", "10:30",
    "e\u0301", "\u00e9", "\u0444\u043e\u0442\u043e", "\U0001f600", "new\nline", "tab\t", "$HOME", "a;b", "a,b",
    "~", " lead", "trail ", "'", '"', "`", "%2e%2e", "\u200b", "l" * 200,
)  # fmt: skip


class Job:
    """`sparkinfer run` on a job file in a folder of its own."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.out = folder / "out"
        self._capfd = capfd
        fake_model_file(folder)

    def file(self, source: dict[str, Any], **blocks: Any) -> Path:
        spec = {
            "source": source,
            "model": {"path": str(self.folder / "colours.fake")},
            "preprocess": RAW,
            "postprocess": {"activation": "none", "check": False},
            "sink": {"path": str(self.out)},
            "errors": {"max_fraction": 1},
            **blocks,
        }
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(spec, allow_unicode=True))
        return path

    def run(self, source: dict[str, Any], **blocks: Any) -> tuple[int, str]:
        """Exit status, and what was printed on stderr."""
        self._capfd.readouterr()
        status = cli.main(["run", str(self.file(source, **blocks)), "--quiet"])
        return status, self._capfd.readouterr().err

    def rows(self) -> list[dict[str, Any]]:
        return pq.read_table(self.out).to_pylist() if self.out.exists() else []

    def outcomes(self) -> dict[str, str]:
        """Path -> label, or error code; the rows are as many as the paths."""
        rows = self.rows()
        found = {row["path"]: row["error_code"] or row["label"] for row in rows}
        assert len(found) == len(rows)
        return found


@pytest.fixture
def job(spark, tmp_path, capfd):
    return Job(tmp_path, capfd)


def parquet(folder: Path, rows: dict[str, bytes | None], name: str = "in") -> str:
    table = {"path": pa.array(list(rows), pa.string()), "content": pa.array(list(rows.values()), pa.binary())}
    (folder / name).mkdir(exist_ok=True)
    pq.write_table(pa.table(table), folder / name / "part-0.parquet")
    return str(folder / name)


def photos(folder: Path, files: dict[str, bytes]) -> Path:
    place = folder / "photos"
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


# ---- how many rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("parquet", {}, ("has 0 rows", "source.where or source.sample may leave none")),
        ("parquet of one", {"where": "path = 'nowhere'"}, ("has 0 rows", "source.where")),
        ("folder", {}, ("holds no files",)),
        ("folder of one", {"where": "length > 1e9"}, ("source.where", "none of 1 files is chosen")),
        ("list", {}, ("no rows in", "`where` and `sample`")),
        ("list of one", {"where": "path = 'nowhere'"}, ("no rows in", "`where` and `sample`")),
    ],
)
def test_no_rows_are_told_and_nothing_is_written(job, tmp_path, kind, options, said):
    has_one = kind.endswith("one")
    folder = photos(tmp_path, {"red.png": RED} if has_one else {})
    folder.mkdir(exist_ok=True)
    (tmp_path / "list.csv").write_text(f"path\n{folder}/red.png\n" if has_one else "path\n")
    source = {
        "parquet": {"parquet": parquet(tmp_path, {"red": RED} if has_one else {})},
        "folder": {"images": str(folder)},
        "list": {"paths": str(tmp_path / "list.csv")},
    }[kind.split()[0]]
    status, text = job.run({**source, **options})
    assert status == 2
    for part in said:
        assert part in text
    assert len(text.splitlines()) <= 3
    assert not job.out.exists()
    assert worker_calls(tmp_path, "infer") == []


def test_one_row(job, tmp_path):
    folder = photos(tmp_path, {"red.png": RED})
    (tmp_path / "list.txt").write_text(f"{folder}/red.png")
    sources = [
        ({"parquet": parquet(tmp_path, {"red": RED})}, "red"),
        ({"images": str(folder / "red.png")}, f"file:{folder}/red.png"),
        ({"paths": str(tmp_path / "list.txt")}, f"{folder}/red.png"),
    ]
    for source, path in sources:
        assert job.run(source, sink={"path": str(job.out), "mode": "overwrite"}) == (0, "")
        assert job.outcomes() == {path: "red"}


@pytest.mark.parametrize("sharding", ["none", "auto"])
def test_empty_partitions(job, tmp_path, spark, sharding):
    """Five files, of which two have a row: the tasks of the others have nothing."""
    rows = {"red": RED, "blue": BLUE}
    for number in range(5):
        part = dict([list(rows.items())[number]]) if number < len(rows) else {}
        parquet(tmp_path, part)
        (tmp_path / "in" / "part-0.parquet").rename(tmp_path / "in" / f"part-{number + 1}.parquet")
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1k")  # a task for every file
    try:
        assert job.run({"parquet": str(tmp_path / "in")}, sharding=sharding) == (0, "")
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    assert job.outcomes() == {"red": "red", "blue": "blue"}


def test_batches_of_one(job, tmp_path):
    rows = {f"{n}": (RED, GREEN, BLUE)[n % 3] for n in range(7)} | {"bad": b"text"}
    assert job.run({"parquet": parquet(tmp_path, rows)}, batch={"size": 1}) == (0, "")
    colours = ("red", "green", "blue")
    assert job.outcomes() == {**{f"{n}": colours[n % 3] for n in range(7)}, "bad": "UNSUPPORTED_FORMAT"}
    assert worker_calls(tmp_path, "infer") == [1] * 7


def test_a_partition_of_bad_rows_only_opens_no_model(job, tmp_path):
    rows: dict[str, bytes | None] = {"null": None, "empty": b"", "text": b"hello", "cut": RED[:-30]}
    assert job.run({"parquet": parquet(tmp_path, rows)}) == (0, "")
    assert job.outcomes() == {
        "null": "NULL_CONTENT",
        "empty": "EMPTY",
        "text": "UNSUPPORTED_FORMAT",
        "cut": "TRUNCATED",
    }
    assert worker_calls(tmp_path, "load") == []


def test_only_bad_rows_are_over_the_budget(job, tmp_path):
    status, text = job.run({"parquet": parquet(tmp_path, {"null": None})}, errors={"max_fraction": 0.5})
    assert status == 3
    assert "1 x NULL_CONTENT, for example null" in text
    assert job.outcomes() == {"null": "NULL_CONTENT"}


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd_photos(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("odd [%] names"), {f"{name}.png": RED for name in ODD_NAMES})


def test_a_folder_of_odd_names_gives_every_name_back(job, odd_photos):
    assert job.run({"images": str(odd_photos)}) == (0, "")
    assert job.outcomes() == {f"file:{path}": "red" for path in odd_photos.iterdir()}
    assert len(job.rows()) == len(ODD_NAMES)


def test_a_list_of_odd_names_gives_every_path_back_as_it_was_written(job, tmp_path, odd_photos):
    paths = [form + str(path) for path in odd_photos.iterdir() for form in ("", "file:", "file://")]
    pq.write_table(pa.table({"path": paths}), tmp_path / "list.parquet")
    assert job.run({"paths": str(tmp_path / "list.parquet")}) == (0, "")
    assert job.outcomes() == dict.fromkeys(paths, "red")


def test_rows_may_be_named_by_any_text(job, tmp_path):
    names = [*ODD_NAMES, "", "NULL", "x" * 100_000]
    assert job.run({"parquet": parquet(tmp_path, dict.fromkeys(names, RED))}) == (0, "")
    assert job.outcomes() == dict.fromkeys(names, "red")


# ---- files that change ---------------------------------------------------------------------------------------------


def test_files_changed_between_listing_and_reading(job, tmp_path, monkeypatch):
    names = ("good", "deleted", "replaced", "truncated", "emptied", "folder", "text", "grown")
    folder = photos(tmp_path, {f"{name}.png": RED for name in names})

    def change() -> None:
        (folder / "deleted.png").unlink()
        (folder / "replaced.png").write_bytes(BLUE)
        (folder / "truncated.png").write_bytes(RED[: len(RED) // 2])
        (folder / "emptied.png").write_bytes(b"")
        (folder / "folder.png").unlink()
        (folder / "folder.png").mkdir()
        (folder / "text.png").write_text("no image")
        (folder / "grown.png").write_bytes(RED + bytes(5000))

    opened = FileSet.open

    def change_and_open(self, *args, **kwargs):
        monkeypatch.setattr(FileSet, "open", opened)
        change()
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(FileSet, "open", change_and_open)
    assert job.run({"images": str(folder), "max_bytes": 5000}) == (0, "")
    assert {Path(path).stem: outcome for path, outcome in job.outcomes().items()} == {
        "good": "red",
        "deleted": "READ_FAILED",
        "replaced": "blue",
        "truncated": "TRUNCATED",
        "emptied": "EMPTY",
        "folder": "READ_FAILED",
        "text": "UNSUPPORTED_FORMAT",
        "grown": "READ_FAILED",
    }


def test_a_folder_that_may_not_be_listed_ends_the_job_before_the_model(job, tmp_path):
    with FakeWebHdfs({"/photos/a.png": RED, "/photos/sub/b.png": RED}) as node:
        node.broken = {"/photos/sub"}
        status, text = job.run({"images": f"{node.uri}/photos"})
    assert status == 2
    assert "/photos/sub' cannot be listed" in text
    assert "make it readable" in text
    assert worker_calls(tmp_path, "infer") == []


# ---- stores that fail for a while ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["503", "hang up", "half"])
def test_a_store_that_fails_while_files_are_read_loses_no_row(job, how):
    """The first reads of half of the files fail: each is read again, or its row says so."""
    files = {f"/photos/{n:02d}.png": RED for n in range(20)}
    with FakeWebHdfs(files) as node:
        node.failing = dict.fromkeys(list(files)[::2], how)
        assert job.run({"images": f"{node.uri}/photos"})[0] == 0
        found = {path.removeprefix(node.uri): outcome for path, outcome in job.outcomes().items()}
    assert set(found) == set(files)
    assert {found[path] for path in list(files)[1::2]} == {"red"}
    # Half a file is never taken for a whole one.
    assert {found[path] for path in list(files)[::2]} <= {"red", "READ_FAILED"}


# ---- disks that are full -------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)  # the JVM may still hold a file


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def test_a_full_disk_at_the_sink_keeps_the_old_table(job, tmp_path, small_disk):
    job.out = small_disk / "out"
    source = {"parquet": parquet(tmp_path, {"red": RED})}
    assert job.run(source) == (0, "")
    fill(small_disk)
    source = {"parquet": parquet(tmp_path, {f"{n}": GREEN for n in range(2000)})}
    status, text = job.run(source, sink={"path": str(job.out), "mode": "overwrite"})
    assert status in {1, 2}
    assert "No space left on device" in text
    assert len(text.splitlines()) <= 5
    assert job.outcomes() == {"red": "red"}
    assert {path.name for path in small_disk.iterdir()} == {"out", "filler"}


@pytest.mark.slow
def test_a_full_local_disk_ends_the_job_and_writes_nothing(job, tmp_path, small_disk):
    """Spark keeps broadcasts, shipped files and shuffles there."""
    folder = photos(tmp_path, {f"{n:04d}-{'x' * 80}.png": RED for n in range(1500)})
    conf = {"spark.local.dir": str(small_disk), "spark.shuffle.compress": "false", "spark.ui.enabled": "false"}
    file = job.file({"images": str(folder)}, spark={"master": "local[2]", "conf": conf})
    command = [sys.executable, "-c", "import sys; from sparkinfer.cli import main; sys.exit(main())", "run", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert not job.out.exists()
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 5
