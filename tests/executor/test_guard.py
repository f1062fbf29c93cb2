"""Rows that end the process they run in: marked one by one, with real deaths; their neighbours are predicted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from sparkinfer.core.errors import DeviceError, ModelError
from sparkinfer.core.model_spec import ModelSpec, PostprocessSpec
from sparkinfer.executor import guard, task, taskcontext
from sparkinfer.executor.plan import TaskPlan
from tests.executor import deadly
from tests.executor.chain import RAW, batch, calls, fake_plan, png_of, run
from tests.images import bad_inputs

DEADLY = RAW.model_copy(update={"decoder": "tests.executor.deadly:decode"})
GOOD = [png_of(10 + 3 * i, 200 - 3 * i, 5) for i in range(60)]
MODEL_POISON = png_of(90, 90, 90)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    guard.close_idle()
    assert _guarded_processes() == []


def _guarded_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if _is_guarded(child)]


def _is_guarded(process: psutil.Process) -> bool:
    try:
        return "sparkinfer.executor.guarded_worker" in process.cmdline()
    except psutil.NoSuchProcess:  # ended meanwhile, or waits for its parent to hear so
        return False


def guarded(folder: Path, **options: Any) -> TaskPlan:
    return fake_plan(folder, **{"guard": "always", "preprocess": DEADLY, "row_timeout": 20.0, **options})


def with_poison(poison: bytes, *places: int) -> list[bytes]:
    rows = list(GOOD)
    for place in places:
        rows[place] = poison
    return rows


def check(folder: Path, rows: list[dict[str, Any]], code: str, *places: int) -> None:
    """Those places failed with the code; everything else is as in a run without a guard and without poison."""
    undisturbed = run(fake_plan(folder, size=4), batch(*GOOD))
    assert {i: row["error_code"] for i, row in enumerate(rows) if row["error_code"]} == dict.fromkeys(places, code)
    assert [row for i, row in enumerate(rows) if i not in places] == [
        row for i, row in enumerate(undisturbed) if i not in places
    ]
    assert [row["path"] for row in rows] == [f"p{i}" for i in range(len(GOOD))]


def test_without_poison_a_guarded_task_gives_what_an_unguarded_one_gives(tmp_path: Path) -> None:
    contents = [*GOOD, *(content for content, _ in bad_inputs().values())]
    keys = {
        "path": pa.array([f"p{i}" for i in range(len(contents))]),
        "tags": pa.array([["x", None]] * len(contents), pa.list_(pa.string())),
    }
    table = pa.record_batch({**keys, "content": pa.array(contents, pa.binary())})
    batches = [table.slice(0, 0), table.slice(0, 1), table.slice(1, 50), table.slice(51)]
    post = PostprocessSpec(activation="none", top_k=2, embedding="channel_means", check=False)
    options: dict[str, Any] = {"preprocess": RAW, "keys": ("tags", "path"), "cores": 2, "postprocess": post}
    plain, tried = (
        pa.Table.from_batches(task.run_task(batches, fake_plan(tmp_path, guard=mode, **options)))
        for mode in ("auto", "always")
    )
    assert tried.schema == plain.schema
    assert tried.to_pylist() == plain.to_pylist()


def test_a_later_attempt_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskcontext, "attempt_number", lambda: 1)
    rows = run(fake_plan(tmp_path, preprocess=DEADLY), batch(GOOD[0], deadly.KILL))
    assert [row["error_code"] for row in rows] == [None, "WORKER_CRASHED"]


@pytest.mark.parametrize(
    ("poison", "said"),
    [
        (deadly.UNSAYABLE, "with exit status 1"),
        (deadly.SEGV, "by SIGSEGV (segmentation fault)"),
        (deadly.ABORT, "by SIGABRT (aborted)"),
        (deadly.KILL, "by SIGKILL (killed, most often by the system for want of memory)"),
        (deadly.EXIT, "with exit status 3"),
    ],
)
@pytest.mark.parametrize("cores", [1, 2])
def test_a_row_that_kills_the_decoder(tmp_path: Path, poison: bytes, said: str, cores: int) -> None:
    rows = run(guarded(tmp_path, cores=cores), batch(*with_poison(poison, 17)))
    check(tmp_path, rows, "WORKER_CRASHED", 17)
    assert rows[17]["error_stage"] == "worker"
    assert rows[17]["error_message"] == f"decoding ended the Python process {said}, twice, alone"


@pytest.mark.parametrize(
    "places", [(0,), (59,), (0, 59), (30, 31, 32, 33), tuple(range(0, 50, 2)), tuple(range(60))], ids=len
)
def test_poison_anywhere_and_everywhere(tmp_path: Path, places: tuple[int, ...]) -> None:
    rows = run(guarded(tmp_path, cores=2), batch(*with_poison(deadly.SEGV, *places)))
    check(tmp_path, rows, "WORKER_CRASHED", *places)


@pytest.mark.parametrize(
    ("hang", "places"), [(deadly.HANG, (3, 40)), (deadly.HOLD, (40,))], ids=["waiting", "holding the lock"]
)
def test_a_row_that_hangs(tmp_path: Path, hang: bytes, places: tuple[int, ...]) -> None:
    rows = run(guarded(tmp_path, cores=2, row_timeout=1.0), batch(*with_poison(hang, *places)))
    check(tmp_path, rows, "TIMEOUT", *places)
    assert (rows[40]["error_stage"], rows[40]["error_message"]) == (
        "decode",
        "decoding took longer than 1 s (errors.row_timeout), alone",
    )


def test_rows_that_kill_the_model(tmp_path: Path) -> None:
    rows = run(guarded(tmp_path, crash_on=[90.0]), batch(*with_poison(MODEL_POISON, 5, 6, 50)))
    check(tmp_path, rows, "WORKER_CRASHED", 5, 6, 50)
    assert rows[5]["error_message"].startswith("decoding or the model ended the Python process by SIGKILL")


def test_a_row_that_hangs_the_model(tmp_path: Path) -> None:
    rows = run(guarded(tmp_path, hang_on=[90.0], row_timeout=1.0), batch(*with_poison(MODEL_POISON, 20)))
    check(tmp_path, rows, "TIMEOUT", 20)
    assert rows[20]["error_stage"] == "infer"


def test_poison_for_decoder_and_model_together(tmp_path: Path) -> None:
    images = with_poison(deadly.SEGV, 4)
    images[5] = MODEL_POISON
    rows = run(guarded(tmp_path, cores=2, crash_on=[90.0]), batch(*images))
    check(tmp_path, rows, "WORKER_CRASHED", 4, 5)


def test_a_process_that_is_killed_from_outside_costs_no_row(tmp_path: Path) -> None:
    images = list(GOOD)
    images[7] = deadly.once(tmp_path / "killed", GOOD[7])
    rows = run(guarded(tmp_path), batch(*images))
    assert (tmp_path / "killed").exists()
    check(tmp_path, rows, "")


def test_many_batches_and_keys_of_their_own(tmp_path: Path) -> None:
    batches = [batch(image, first=i) for i, image in enumerate(with_poison(deadly.KILL, 0, 31, 32, 59))]
    check(tmp_path, run(guarded(tmp_path, cores=2), *batches), "WORKER_CRASHED", 0, 31, 32, 59)


def test_a_model_that_cannot_be_opened_alive_is_no_rows_fault(tmp_path: Path) -> None:
    zeros = 0.0  # what it is warmed up with
    with pytest.raises(ModelError, match="opening the model ended the Python process by SIGKILL"):
        run(guarded(tmp_path, crash_on=[zeros, 90.0]), batch(MODEL_POISON))


def test_errors_that_end_a_task_come_through(tmp_path: Path) -> None:
    plan = guarded(tmp_path, model=ModelSpec(path="m.fake", format="fake", device="cuda"))
    with pytest.raises(DeviceError, match="a GPU was asked for"):
        run(plan, batch(GOOD[0]))


def test_the_next_task_of_the_worker_finds_the_model_open(tmp_path: Path) -> None:
    plan = guarded(tmp_path)
    assert [len(run(plan, batch(*GOOD[:n]))) for n in (1, 5, 2)] == [1, 5, 2]
    assert len(calls(tmp_path, "load")) == 1
    run(guarded(tmp_path, guard="auto"), batch(GOOD[0]))
    assert _guarded_processes() == []  # an unguarded task has no use for them


def test_an_idle_process_that_is_killed_costs_nothing(tmp_path: Path) -> None:
    plan = guarded(tmp_path)
    run(plan, batch(GOOD[0]))
    for process in _guarded_processes()[1:]:  # the first one starts the others
        process.kill()
    check(tmp_path, run(plan, batch(*GOOD)), "")


def test_an_empty_partition_starts_nothing(tmp_path: Path) -> None:
    assert run(guarded(tmp_path)) == []
    assert _guarded_processes() == []


def test_a_reader_that_stops_early_leaves_no_process(tmp_path: Path) -> None:
    outputs = task.run_task((batch(image) for image in GOOD), guarded(tmp_path, size=1))
    next(iter(outputs))
    outputs.close()  # type: ignore[attr-defined]
    assert _guarded_processes() == []


ALONE = """
import sys
from pathlib import Path
from tests.executor.chain import batch, fake_plan, png_of, run
from tests.executor.test_guard import DEADLY

folder, guard, image, cores, limit = sys.argv[1:]
plan = fake_plan(Path(folder), preprocess=DEADLY, guard=guard, cores=int(cores), row_timeout=float(limit))
run(plan, batch(png_of(1, 2, 3), image.encode()))
"""


def _worker(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ALONE, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        stderr=subprocess.PIPE,
        **options,
    )


@pytest.mark.parametrize(
    ("image", "status", "said"),
    [
        ("HANG", -signal.SIGKILL, "decoding one image takes longer than 0.3 s (errors.row_timeout)"),
        ("HOLD", 1, "Timeout (0:00:0"),  # the interpreter's own alarm
    ],
)
@pytest.mark.parametrize("cores", ["1", "2"])
def test_an_unguarded_worker_that_hangs_ends_itself(
    tmp_path: Path, image: str, status: int, said: str, cores: str
) -> None:
    _, stderr = (worker := _worker(str(tmp_path), "auto", image, cores, "0.3")).communicate()
    assert worker.returncode == status
    assert said in stderr
    assert "deadly.py" in stderr  # the traceback


@pytest.mark.parametrize("cores", ["1", "2"])
def test_nothing_outlives_its_worker(tmp_path: Path, cores: str) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    with _worker(str(tmp_path), "always", deadly.held(fifo), cores, "60", stdout=subprocess.PIPE) as worker:
        assert fifo.read_text() == "here"  # a grandchild is stuck, and holds the interpreter's lock
        worker.kill()
        worker.communicate()  # until the last process that holds the pipe is gone
