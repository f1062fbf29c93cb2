"""What one executor takes at its peak: heap, and what lies beside it. Driver side; pure arithmetic.

    beside the heap = JVM's own + Arrow buffers + workers x (interpreter and runtime + images + batches + activations)
                      + model, once for each worker or once for all

The part that images take in a worker is the bound that `tests/chaos/big_rows.py` holds the chain to. Everything is an
upper figure: what it is too high by is left for the page cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkinfer.driver.splits.sharding import tasks
from sparkinfer.executor.pipeline import BATCHES_IN_FLIGHT, MAX_UNDECODED_BYTES

__all__ = ["SHARED_ABOVE", "Part", "Worker", "beside_heap", "heap", "total"]

MIB = 1 << 20

INTERPRETER = 130 * MIB
"""Python with numpy, pandas, pyarrow, Pillow and pyspark's worker: resident size of one on Debian 12, Python 3.11."""

RUNTIMES = {"onnx": 60 * MIB, "torch": 350 * MIB, "torchscript": 350 * MIB}
"""What a framework adds for itself alone, imported and run once on the CPU, without the model (`Anonymous` of
/proc/PID/smaps_rollup; ONNX Runtime 1.31, torch 2.14). Pages of its libraries are the page cache's, for all workers."""

OTHER_RUNTIME = 350 * MIB
"""Of a plugin: as the largest of ours."""

CUDA = 1500 * MIB
"""Host memory of a CUDA process. ONNX Runtime's issue 5801 saw up to 640 MB with a ResNet-50 (CUDA 10); twice that and
more, since the libraries have grown."""

ACTIVATIONS = 25
"""Times the float32 input, which a model holds at once while it runs on the CPU. Peaks of 32 images, measured:
efficientnet-lite0 (ONNX) 17 times, ResNet-50 (torch) 21 times. VGG-16, with its maps in full resolution, takes 64."""

BYTES_PER_PIXEL = 4
"""Of a decoded picture, with its first resized form."""

PIXELS_PER_BYTE = 4
"""Of a compressed image whose size in pixels is not known: photographs take 2 bits a pixel and more."""

SLACK = 64 * MIB
"""What allocators keep, for each worker."""

SHARED_ABOVE = 32 << 20
"""Model size from which an ONNX model on the CPU is laid out once for all workers of a node."""

JVM_LEAST, JVM_SHARE = 384 * MIB, 0.10
"""Spark's own default for what a JVM takes beside its heap (`spark.executor.memoryOverheadFactor`): class data, code,
threads, the collector's tables."""

HEAP_BASE = 512 * MIB
"""Spark itself in an executor: 300 MiB that it reserves (`UnifiedMemoryManager`), classes and buffers."""

COPIES_IN_HEAP = 3
"""Of an image on its way to Python: as read, in the row, and being written to the worker."""

ARROW_GROWTH = 2
"""Arrow's vectors double when they grow, so half may be empty."""


@dataclass(frozen=True)
class Worker:
    """One Python worker: what its memory depends on.

    Attributes:
        format: of the model.
        on_gpu: the model runs on a GPU.
        model: bytes of its file.
        shared: whether the workers of a node share its memory.
        batch: images per model call, at most.
        tensor: bytes of one image as the chain hands it to the model.
        values: numbers in one model input; 0 where it follows the image.
        largest: bytes of the largest image; 0 where it is not known.
        total: bytes of all images; None where it is not known.
        max_pixels: larger images are not decoded.
        arrow: image bytes of one Arrow batch.
        decoders: threads; 0 decodes and predicts in one.
    """

    format: str
    on_gpu: bool
    model: int
    shared: bool
    batch: int
    tensor: int
    values: int
    largest: int
    total: int | None
    max_pixels: int
    arrow: int
    decoders: int


@dataclass(frozen=True)
class Part:
    """A part of the memory.

    Attributes:
        name: what takes it.
        bytes: how much, in the whole executor.
        formula: how that comes about.
        certain: whether it is taken in any case, however small batches and images are.
    """

    name: str
    bytes: int
    formula: str
    certain: bool = False


def heap(worker: Worker, slots: int) -> Part:
    """The heap that an executor needs.

    Args:
        worker: one of its Python workers.
        slots: tasks at once.
    """
    row = max(worker.largest, worker.arrow)
    return Part(
        "JVM heap",
        HEAP_BASE + slots * COPIES_IN_HEAP * row,
        f"{_mb(HEAP_BASE)} for Spark + {tasks(slots)} x {COPIES_IN_HEAP} copies of {_mb(row)} of images",
    )


def beside_heap(worker: Worker, slots: int, heap_set: int) -> list[Part]:
    """What lies beside the heap of an executor.

    Args:
        worker: one of its Python workers.
        slots: tasks at once, each with a worker.
        heap_set: `spark.executor.memory`, bytes.
    """
    jvm = max(JVM_LEAST, int(JVM_SHARE * heap_set))
    batch = max(worker.arrow, worker.largest)
    runtime = INTERPRETER + RUNTIMES.get(worker.format, OTHER_RUNTIME) + (CUDA if worker.on_gpu else 0)
    images = _images(worker)
    tensors = (BATCHES_IN_FLIGHT + 2 if worker.decoders else 1) * worker.batch * worker.tensor
    parts = [
        Part("JVM beside its heap", jvm, f"{JVM_SHARE:.0%} of the heap, at least {_mb(JVM_LEAST)}", certain=True),
        Part(
            "Arrow buffers",
            slots * ARROW_GROWTH * batch,
            f"{tasks(slots)} x {ARROW_GROWTH} (they double) x {_mb(batch)} a batch",
        ),
        Part(
            "Python workers",
            (slots + 1) * INTERPRETER + slots * (runtime - INTERPRETER),
            f"{slots} x {_mb(runtime)} for {worker.format}{' with CUDA' if worker.on_gpu else ''}, and one daemon",
            certain=True,
        ),
        _model(worker, slots),
        Part("images in workers", slots * images, f"{slots} x {_mb(images)} compressed and decoded"),
        Part(
            "batches",
            slots * tensors,
            f"{slots} x {tensors // max(1, worker.batch * worker.tensor)} batches in flight x {worker.batch} images x "
            f"{worker.tensor / 1e3:,.0f} kB",
        ),
    ]
    if not worker.on_gpu:
        one = ACTIVATIONS * worker.values * 4
        parts.append(
            Part(
                "activations",
                slots * worker.batch * one,
                f"{slots} x {worker.batch} images x {ACTIVATIONS} x the float32 input ({_mb(one)})",
            )
        )
    return parts


def total(parts: Iterable[Part], *, certain: bool = False) -> int:
    """Bytes of the parts, or only of those that are taken in any case."""
    return sum(part.bytes for part in parts if part.certain or not certain)


def _model(worker: Worker, slots: int) -> Part:
    if worker.shared:
        return Part("model", worker.model, f"{_mb(worker.model)}, once for all workers of the node", certain=True)
    where = " while it is loaded onto the GPU" if worker.on_gpu else ""
    return Part("model", slots * worker.model, f"{slots} x {_mb(worker.model)}{where}", certain=True)


def _images(worker: Worker) -> int:
    """Bytes that images take in a worker, compressed and decoded."""
    pixels = min(worker.max_pixels, PIXELS_PER_BYTE * worker.largest)
    waiting = MAX_UNDECODED_BYTES + worker.decoders * worker.arrow if worker.decoders else 0
    compressed = max(worker.arrow, worker.largest) + worker.largest + waiting
    if worker.total is not None:
        compressed = min(compressed, 2 * worker.total)
    return compressed + max(1, worker.decoders) * BYTES_PER_PIXEL * pixels + pixels + SLACK


def _mb(count: int) -> str:
    return f"{count / MIB:,.0f} MiB"
