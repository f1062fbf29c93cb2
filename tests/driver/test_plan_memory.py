"""The memory of an executor: sums worked out by hand, and the constants against the code they speak of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkinfer.driver.planning import memory as plan_memory
from sparkinfer.driver.planning.memory import SHARED_ABOVE, Worker, beside_heap, heap, total

MIB = 1 << 20

WORKER = Worker(
    format="onnx",
    on_gpu=False,
    model=20 * MIB,
    shared=False,
    batch=8,
    tensor=224 * 224 * 3,
    values=224 * 224 * 3,
    largest=1 * MIB,
    total=None,
    max_pixels=10**9,
    arrow=16 * MIB,
    decoders=0,
)


@pytest.fixture(autouse=True)
def round_constants(monkeypatch):
    """Figures that can be added up by hand."""
    for name, value in {"INTERPRETER": 100, "CUDA": 1000, "SLACK": 10, "HEAP_BASE": 500, "JVM_LEAST": 400}.items():
        monkeypatch.setattr(plan_memory, name, value * MIB)
    monkeypatch.setattr(plan_memory, "RUNTIMES", {"onnx": 50 * MIB, "torch": 300 * MIB})
    monkeypatch.setattr(plan_memory, "ACTIVATIONS", 10)


def parts(worker, slots=4, heap_set=12_000 * MIB):
    return {part.name: part.bytes for part in beside_heap(worker, slots, heap_set)}


def test_a_cpu_executor():
    found = parts(WORKER)
    # 16 and 1 MiB compressed, one picture of 4 x 1 MiB pixels at 4 bytes and its resized form at 1, and slack.
    images = (16 + 1 + 4 * 4 + 4 + 10) * MIB
    assert found == {
        "JVM beside its heap": 1200 * MIB,
        "Arrow buffers": 4 * 2 * 16 * MIB,
        "Python workers": (5 * 100 + 4 * 50) * MIB,
        "model": 4 * 20 * MIB,
        "images in workers": 4 * images,
        "batches": 4 * 8 * 150_528,
        "activations": 4 * 8 * 10 * 150_528 * 4,
    }


def test_decoder_threads_hold_what_waits_for_them_and_more_batches():
    one, four = parts(WORKER, slots=1), parts(replace(WORKER, decoders=4), slots=1)
    assert four["images in workers"] - one["images in workers"] == (64 + 4 * 16 + 3 * 4 * 4) * MIB
    assert four["batches"] == 4 * one["batches"]  # two in flight, one being filled, one being handed over


def test_a_gpu_holds_activations_and_the_host_holds_cuda():
    found = parts(replace(WORKER, on_gpu=True, decoders=4), slots=1)
    assert "activations" not in found
    assert found["Python workers"] == (2 * 100 + 50 + 1000) * MIB


def test_a_shared_model_counts_once():
    assert parts(replace(WORKER, shared=True))["model"] == 20 * MIB


def test_few_images_take_no_more_than_they_are():
    few = parts(replace(WORKER, total=2 * MIB), slots=1)
    assert parts(WORKER, slots=1)["images in workers"] - few["images in workers"] == (17 - 4) * MIB


def test_an_unknown_format_counts_as_the_largest_framework():
    assert parts(replace(WORKER, format="mine"), slots=1)["Python workers"] == 200 * MIB + plan_memory.OTHER_RUNTIME


def test_heap_holds_three_copies_of_what_is_on_its_way():
    assert heap(WORKER, 4).bytes == (500 + 4 * 3 * 16) * MIB
    assert heap(replace(WORKER, largest=100 * MIB), 1).bytes == (500 + 300) * MIB


def test_what_is_certain_depends_on_no_batch():
    small, large = beside_heap(WORKER, 4, 1), beside_heap(replace(WORKER, batch=999, largest=10**9), 4, 1)
    assert total(small, certain=True) == total(large, certain=True) == (400 + 700 + 80) * MIB
    assert total(large) > total(small) > total(small, certain=True)


def test_a_small_heap_leaves_the_jvm_its_least():
    assert parts(WORKER, heap_set=1000 * MIB)["JVM beside its heap"] == 400 * MIB


def test_models_are_shared_from_the_size_that_the_runtime_says():
    onnx_share = pytest.importorskip("sparkinfer.runtimes._onnx_share")
    assert SHARED_ABOVE == onnx_share.SHARE_ABOVE_BYTES
