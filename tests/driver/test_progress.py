"""What a person sees of a run: figures by hand, frames in a terminal, lines elsewhere, nothing on a quiet console."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from sparkinfer.core.telemetry import DeviceFigures, Figures, TaskMessage, TaskState
from sparkinfer.driver.watching.progress import Progress, Window, duration_text
from sparkinfer.driver.watching.telemetry import Snapshot, TaskCounts, Telemetry
from sparkinfer.executor.report import Tally

ERRORS = {"EMPTY": 8, "CORRUPT": 30}


def at(seconds, rows, **changes):
    values = {"run_id": "run-1", "seconds": seconds, "active_seconds": seconds, "rows": rows, "total_rows": 2_000}
    return Snapshot(**{**values, **changes})


def after(*snapshots):
    """The view of the last one, when all of them were looked at."""
    window = Window()
    return [window.view(snapshot) for snapshot in snapshots][-1]


def busy(seconds, task_seconds):
    return {"figures": Figures(busy_seconds=seconds), "task_seconds": task_seconds}


@pytest.fixture
def telemetry():
    """A run that has done 812 of 2,000 rows in 9 s, and has more to do."""
    clock = [0.0]
    run = Telemetry("run-1", lambda: clock[0])
    run.begin(2_000, {})
    clock[0] = 1.0
    run.take(_told(1, 12, 1.0))
    clock[0] = 9.0
    run.take(_told(2, 812, 9.0))
    run.hear_spark(1, TaskCounts(total=12, done=3, running=2, failed=1), Tally(400))
    return run


def _told(sequence, rows, seconds):
    figures = Figures(rows=rows, errors=ERRORS if rows > 38 else {}, busy_seconds=0.87 * seconds)
    return TaskMessage(
        run_id="run-1",
        pass_number=1,
        stage=0,
        partition=0,
        attempt=0,
        attempt_number=0,
        host="node",
        pid=1,
        sequence=sequence,
        state=TaskState.RUNNING,
        started=0.0,
        seconds=seconds,
        engine="arrow",
        cores=1,
        batch_size=8,
        figures=figures,
        device=DeviceFigures("cpu"),
    )


@pytest.mark.parametrize("every_s", [0.5, 5.0, 9.9, 10.001, 30.0, 300.0])
def test_speed_now_is_told_however_seldom_one_looks(every_s):
    """20 rows a second at first, then 10; the model is busy half of the time."""
    looks = [at(every_s * look, round(every_s * 20 * look)) for look in range(1, 50)]
    then = every_s * 49
    looks += [
        at(then + every_s * look, round(20 * then + every_s * 10 * look), **busy(every_s * look / 2, every_s * look))
        for look in range(1, 50)
    ]
    view = after(*looks)
    assert view.rate == pytest.approx(10, rel=0.01)
    assert view.busy_share == pytest.approx(0.5)


def test_speed_now_is_that_of_the_last_seconds_and_the_rest_goes_as_before():
    """50 rows a second for 60 s, then 100."""
    slow = [at(float(second), 50 * second) for second in range(1, 21)]
    fast = [at(20.0 + second, 1_000 + 10 * second) for second in range(1, 21)]
    view = after(at(0.0, 0), *slow, *fast)
    assert view.rate == pytest.approx(10)
    assert view.mean_rate == pytest.approx(1_200 / 40)
    # From the first rows on, 50 after 1 s: 1,150 rows in 39 s.
    assert view.left_s == pytest.approx(800 / (1_150 / 39))
    assert view.rows_text() == "1,200 of 2,000 rows (60 %)"


def test_what_is_long_past_is_forgotten_when_looking_ahead():
    start = [at(float(second), second, total_rows=100_000) for second in range(1, 101)]
    then = [at(100.0 + second, 100 + 10 * second, total_rows=100_000) for second in range(1, 301)]
    assert after(*start, *then).left_s == pytest.approx((100_000 - 3_100) / 10)


def test_the_start_is_not_taken_for_slowness():
    """Nothing for 30 s, while workers start; then 20 rows a second."""
    looks = [at(float(second), max(0, 20 * (second - 30))) for second in range(51)]
    assert after(*looks).left_s == pytest.approx(1_600 / 20)


def test_without_a_number_of_rows_tasks_tell_the_end():
    view = after(at(0.0, 0), at(30.0, 600, total_rows=None, tasks=TaskCounts(total=12, done=3)))
    assert view.left_s == pytest.approx(90)
    assert view.rows_text() == "600 rows so far"


def test_before_the_first_row_nothing_is_made_up():
    view = after(at(0.0, 0), at(3.0, 0))
    assert (view.mean_rate, view.left_s, view.busy_share) == (None, None, None)
    assert view.speed_text() == "0.0 images/s now, - mean; time left unknown, 3 s so far"
    assert view.errors_text() == "0 errors"
    assert view.tasks_text() == "0 running, 0 of 0 done, 0 failed"


def test_errors_are_told_by_code_the_most_frequent_first():
    assert after(at(1.0, 800, errors=ERRORS)).errors_text() == "38 errors (4.8 %): 30 CORRUPT, 8 EMPTY"
    many = dict.fromkeys(["EMPTY", "CORRUPT", "TIMEOUT", "TRUNCATED", "READ_FAILED", "MODEL_FAILED"], 100)
    text = after(at(1.0, 800, errors={**many, "TIMEOUT": 101})).errors_text()
    assert text == "601 errors (75 %): 101 TIMEOUT, 100 CORRUPT, 100 EMPTY, 100 MODEL_FAILED, 2 more"


def test_tasks_and_how_busy_the_model_is():
    tasks = TaskCounts(total=1_200, done=30, running=16, failed=2)
    devices = (("a", DeviceFigures("cuda:0")), ("b", DeviceFigures("cuda:1")))
    first = at(10.0, 1, **busy(8.0, 10.0))
    then = at(15.0, 2, tasks=tasks, devices=devices, batch_size=64, **busy(12.0, 15.0))
    expected = "16 running, 30 of 1,200 done, 2 failed; model busy 80 %, batch 64 on cuda"
    assert after(first, then).tasks_text() == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (6_000, "1 h 40 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


def test_lines_where_there_is_no_terminal(telemetry):
    out = io.StringIO()
    progress = Progress(Console(file=out, width=80), telemetry, every_s=3600)
    with progress:
        progress.write_line()
    assert out.getvalue() == (
        "progress  812 of 2,000 rows (41 %); - images/s now, 90.2 mean; time left unknown, 9 s so far; "
        "38 errors (4.7 %): 30 CORRUPT, 8 EMPTY; "
        "tasks: 2 running, 3 of 12 done, 1 failed\n"
    )


def test_a_line_comes_by_itself(telemetry):
    class Told(io.StringIO):
        def write(self, text):
            lines.put(text)
            return len(text)

    import queue

    lines = queue.Queue()
    with Progress(Console(file=Told(), width=80), telemetry, every_s=0.001):
        assert lines.get(timeout=30).startswith("progress  812 of 2,000 rows")


def test_a_note_is_told_once(telemetry):
    out = io.StringIO()
    progress = Progress(Console(file=out), telemetry, every_s=3600)
    telemetry.degrade("no live figures: [network]")
    with progress:
        progress.write_line()
        progress.write_line()
    assert out.getvalue().count("no live figures: [network]\n") == 1
    assert out.getvalue().count("812 of") == 2


def test_a_run_that_ends_before_its_first_line_tells_the_note_too(telemetry):
    out = io.StringIO()
    telemetry.degrade("progress.live is off")
    with Progress(Console(file=out), telemetry, every_s=3600):
        telemetry.degrade("no messages come")
    assert out.getvalue() == "progress  progress.live is off\nprogress  no messages come\n"


def test_a_frame_fits_80_columns():
    out = io.StringIO()
    clock = [0.0]
    run = Telemetry("run-1", lambda: clock[0])
    run.begin(1_200_000_000, {})
    clock[0] = 360_000.0
    run.take(_told(1, 812_000_000, 360_000.0))
    run.hear_spark(1, TaskCounts(total=12_000, done=8_120, running=1_200, failed=12), Tally(400))
    with Progress(Console(file=out, width=80, force_terminal=True, color_system=None), run, every_s=1):
        pass
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue()).splitlines()
    starts = [line.split(" ", 1)[0] for line in shown[-4:]]
    assert starts == ["progress", "speed", "errors", "tasks"]


def test_a_terminal_shows_frames_and_keeps_the_last(telemetry):
    out = io.StringIO()
    telemetry.degrade("no live figures")
    with Progress(Console(file=out, width=100, force_terminal=True, color_system=None), telemetry, every_s=0.001):
        pass
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue()).splitlines()
    lines = [line.rstrip() for line in shown[-5:]]
    assert re.fullmatch(r"progress +[━╸╺ ]+ 812 of 2,000 rows \(41 %\)", lines[0])
    assert lines[1].startswith("speed     - images/s now, 90.2 mean;") or "images/s now" in lines[1]
    assert lines[2] == "errors    38 errors (4.7 %): 30 CORRUPT, 8 EMPTY"
    assert lines[3].startswith("tasks     2 running, 3 of 12 done, 1 failed")
    assert lines[4] == "no live figures"


def test_before_the_first_pass_a_terminal_stays_empty():
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, color_system=None), Telemetry("run-1"), every_s=1):
        pass
    assert not re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue()).strip()


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_quiet(telemetry, terminal):
    out = io.StringIO()
    with Progress(Console(file=out, quiet=True, force_terminal=terminal), telemetry, every_s=0.001):
        pass
    assert out.getvalue() == ""
