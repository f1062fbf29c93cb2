"""Automatic batch sizes: arithmetic and learning, with made-up memories and times."""

from __future__ import annotations

from typing import Any

import pytest

from sparkinfer.core.model_spec import Signature
from sparkinfer.core.protocols import DeviceMemory, LoadRequest, Outputs, Runtime
from sparkinfer.executor.batch_size import CPU_CANDIDATES, BatchSize


class Accelerator(Runtime):
    """Says what memory it has."""

    def __init__(self, memory: DeviceMemory | None) -> None:
        self.memory = memory

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


def test_a_cpu_takes_the_fastest_candidate_after_warming_up() -> None:
    size = BatchSize("auto", on_cpu=True)
    first, second, third = CPU_CANDIDATES
    size.ran(first, 99.0)
    size.ran(first, first * 0.003)
    assert size.current == second
    size.ran(second - 1, 0.0)
    size.ran(second, second * 0.001)
    size.ran(third, third * 0.002)
    assert size.current == second
    size.ran(second, 99.0)
    assert size.current == second


def test_out_of_memory_halves_down_to_one_and_stays() -> None:
    size = BatchSize("auto", on_cpu=True)
    for rows, expected in [(8, 4), (4, 2), (2, 1), (1, 1), (64, 1)]:
        size.out_of_memory(rows)
        assert size.current == expected
    size.probe(Accelerator(DeviceMemory(10**9, 1)))
    assert size.current == 1
