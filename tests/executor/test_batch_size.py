"""Automatic batch sizes: arithmetic and learning, with made-up memories and times."""

from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.core.model_spec import Signature
from sparkinfer.core.protocols import DeviceMemory, LoadRequest, Outputs, Runtime
from sparkinfer.executor.batch_size import CPU_CANDIDATES, BatchSize


class Accelerator(Runtime):
    """Says what memory it has."""

    def __init__(self, memory: DeviceMemory | None, *, fixed: bool = False) -> None:
        self.memory = memory
        self.fixed = fixed

    @property
    def fixed_batches(self) -> bool:
        return self.fixed

    def load(self, request: LoadRequest) -> None: ...

    def infer(self, batch: Any) -> Outputs:
        raise NotImplementedError

    def signature(self) -> Signature:
        raise NotImplementedError

    def measure_memory(self, rows: int) -> DeviceMemory | None:
        return self.memory


@pytest.mark.parametrize(
    ("free", "per_image", "expected"),
    [(100_000, 1_000, 90), (10_000, 1_000, 16), (10**9, 1_000, 1024), (40_000, 1_000, 36)],
)
def test_accelerators_size_follows_the_formula(free: int, per_image: int, expected: int) -> None:
    size = BatchSize("auto", on_cpu=False)
    size.probe(Accelerator(DeviceMemory(free, per_image)))
    assert size.current == expected


def test_a_runtime_that_cannot_measure_keeps_the_smallest() -> None:
    size = BatchSize("auto", on_cpu=False)
    size.probe(Accelerator(None))
    assert size.current == 16


def test_a_size_from_the_spec_is_not_measured() -> None:
    size = BatchSize(7, on_cpu=False)
    size.probe(Accelerator(DeviceMemory(10**9, 1)))
    size.ran(7, 0.1)
    assert size.current == 7


def tried(*seconds: float) -> BatchSize:
    """A CPU's size after one batch to warm up, and one with each of these seconds an image."""
    size = BatchSize("auto", on_cpu=True)
    size.ran(size.current, 99.0)
    for each in seconds:
        size.ran(size.current, size.current * each)
    return size


def test_a_cpu_takes_the_fastest_candidate_after_warming_up() -> None:
    times = [0.003, 0.002, 0.001, 0.002, 0.004]
    assert tried(times[0]).current == CPU_CANDIDATES[1]
    size = tried(*times, *times)
    assert size.current == CPU_CANDIDATES[2]
    size.ran(size.current, 99.0)
    assert size.current == CPU_CANDIDATES[2]


def test_a_partial_batch_tells_nothing() -> None:
    size = tried()
    size.ran(size.current - 1, 0.0)
    assert size.current == CPU_CANDIDATES[0]


def test_of_two_trials_the_faster_counts() -> None:
    assert tried(0.001, 0.002, 0.003, 0.004, 0.005, *[0.9] * 5).current == CPU_CANDIDATES[0]


@pytest.mark.parametrize(("asked", "used"), [("auto", 8), (128, 8), (8, 8), (6, 6)])
def test_where_size_matters_a_cpu_never_takes_more_than_eight(asked: Any, used: int) -> None:
    size = BatchSize(asked, on_cpu=True)
    size.probe(Accelerator(None, fixed=True))
    size.ran(size.current, 0.1)
    assert size.current == used


def test_where_size_matters_an_accelerator_keeps_what_the_spec_says() -> None:
    size = BatchSize(128, on_cpu=False)
    size.probe(Accelerator(None, fixed=True))
    assert size.current == 128


@pytest.mark.parametrize(("asked", "on_cpu"), [("auto", True), ("auto", False), (64, True), (64, False)])
@pytest.mark.parametrize("fixed", [True, False])
def test_inputs_that_take_much_memory_bound_every_size(asked: Any, on_cpu: bool, fixed: bool) -> None:
    size = BatchSize(asked, on_cpu=on_cpu, most=3)
    seen = [size.current]
    size.probe(Accelerator(DeviceMemory(10**9, 1), fixed=fixed))
    for _ in range(9):
        seen.append(size.current)
        size.ran(size.current, 0.1)
    assert max(seen) <= 3
    assert seen[1] == 3 or (asked, on_cpu, fixed) == ("auto", True, False)


def test_what_did_not_fit_before_the_probe_is_remembered() -> None:
    size = BatchSize("auto", on_cpu=True)
    size.out_of_memory(2)
    size.probe(Accelerator(None, fixed=True))
    assert size.current == 1


def test_out_of_memory_halves_down_to_one_and_stays() -> None:
    size = BatchSize("auto", on_cpu=False)
    for rows, expected in [(8, 4), (4, 2), (2, 1), (1, 1), (64, 1)]:
        size.out_of_memory(rows)
        assert size.current == expected
    size.probe(Accelerator(DeviceMemory(10**9, 1)))
    assert size.current == 1
