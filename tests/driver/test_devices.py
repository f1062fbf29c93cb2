"""What a run remembers of its devices, by hand-made messages."""

from __future__ import annotations

import pytest

from sparkinfer.core.telemetry import DeviceFigures, Figures, TaskMessage, TaskState
from sparkinfer.driver.watching.telemetry import Telemetry
from sparkinfer.executor.report import Tally

GIB = 1 << 30


def told(attempt, seconds, busy, device, *, state=TaskState.RUNNING, pass_number=1, sequence=1):
    return TaskMessage(
        run_id="run-1",
        pass_number=pass_number,
        stage=pass_number,
        partition=attempt,
        attempt=attempt,
        attempt_number=0,
        host="node",
        pid=attempt,
        sequence=sequence,
        state=state,
        started=0.0,
        seconds=seconds,
        engine="arrow",
        cores=1,
        batch_size=8,
        figures=Figures(busy_seconds=busy),
        device=device,
    )


def gpu(uuid, used, utilisation):
    return DeviceFigures("cuda:0", uuid, used, 8 * GIB, utilisation)


def test_devices_are_remembered_when_their_tasks_and_their_passes_are_over():
    run = Telemetry("run-1")
    run.begin(None, {})
    run.take(told(1, 5.0, 1.0, gpu("GPU-a", 3 * GIB, 0.2)))
    run.take(told(1, 10.0, 6.0, gpu("GPU-a", 1 * GIB, 0.6), state=TaskState.ENDED, sequence=2))
    run.take(told(2, 10.0, 1.0, gpu("GPU-b", None, None)))
    run.settle(Tally())
    run.begin(None, {})
    run.take(told(3, 10.0, 4.0, gpu("GPU-a", 2 * GIB, 0.1), pass_number=2))
    first, second = run.devices()
    assert (first.host, first.kind, first.name, first.uuid) == ("node", "cuda", "cuda:0", "GPU-a")
    assert (first.memory_total_bytes, first.peak_memory_used_bytes) == (8 * GIB, 3 * GIB)
    assert first.mean_utilisation == pytest.approx(0.3)  # of 0.2, 0.6, 0.1
    assert first.busy_share == pytest.approx(0.5)  # 6 of 10 s, 4 of 10 s: one task is over, one runs
    assert (second.uuid, second.peak_memory_used_bytes, second.mean_utilisation) == ("GPU-b", None, None)
    assert second.busy_share == pytest.approx(0.1)


def test_a_task_that_has_not_chosen_has_no_device():
    run = Telemetry("run-1")
    run.begin(None, {})
    run.take(told(1, 1.0, 0.0, None))
    assert run.devices() == []
