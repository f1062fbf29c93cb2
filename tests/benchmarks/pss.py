"""By how much N workers of a node grow when each opens the same model: `python -m tests.benchmarks.pss`.

Prints one line. A model of the wanted size is made on the spot, of matrix products or of convolutions, which ONNX
Runtime treats differently. Growth is that of the proportional set size (PSS), where a page that N processes share
counts 1/N in each: 1.0 model sizes is one copy for all, N is a copy for each. It counts from when ONNX Runtime is
running in every worker; activations count as growth.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

SIDE = 224
CLASSES = 1000
PATCH = 16
WIDTH = {"gemm": 4096, "conv": 1024}
ROUNDS = 7


def main() -> None:
    """Measures with and without sharing, and prints both."""
    parser = argparse.ArgumentParser(description="Memory growth of N workers that open one model.")
    parser.add_argument("--kind", choices=sorted(WIDTH), default="gemm", help="matrix products or convolutions")
    parser.add_argument("--megabytes", type=int, default=500, help="size of the model")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4, help="images a call")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparkinfer-pss-") as folder:
        model = Path(folder) / "model.onnx"
        onnx.save(make_model(given.kind, given.megabytes << 20), model)
        shared = Path(folder) / "model.shared"
        seconds = _share(model, shared, given.batch)
        size = model.stat().st_size
        groups = [Workers(path, given.workers, given.batch) for path in (shared, model)]
        growth = [group.open() / size for group in groups]
        for _ in range(ROUNDS):
            for group in groups:
                group.time_one()
        for group in groups:
            group.stop()
    one, each = groups
    print(
        f"{given.kind} {size >> 20} MB, {given.workers} workers: PSS grows by {growth[0]:.2f} model sizes "
        f"({growth[1]:.2f} without sharing); {one.milliseconds:.2f} ms/image ({each.milliseconds:.2f}); "
        f"opened in {one.seconds:.2f} s ({each.seconds:.2f}), shared copy made in {seconds:.1f} s"
    )


def make_model(kind: str, size: int) -> onnx.ModelProto:
    """A model of about `size` bytes: a small start, then equal layers of `kind` with ReLU, then a classifier."""
    rng = np.random.default_rng(0)
    width = WIDTH[kind]
    kernel = (width, width, 3, 3) if kind == "conv" else (width, width)
    if kind == "conv":
        first = rng.normal(0, 0.05, (width, 3, PATCH, PATCH))
        nodes = [helper.make_node("Conv", ["input", "first"], ["start"], strides=[PATCH, PATCH])]
    else:
        first = rng.normal(0, 1, (3, width))
        nodes = [
            helper.make_node("ReduceMean", ["input"], ["colour"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["colour", "first"], ["start"]),
        ]
    weights = [numpy_helper.from_array(first.astype(np.float32), "first")]
    last = "start"
    for layer in range(max(1, round(size / (4 * math.prod(kernel))))):
        scale = math.sqrt(2 / math.prod(kernel[1:]))  # He: keeps the variance through ReLU
        weights.append(numpy_helper.from_array(rng.normal(0, scale, kernel).astype(np.float32), f"weight{layer}"))
        attributes: dict[str, Any] = {"transB": 1}
        if kind == "conv":
            attributes = {"pads": [1, 1, 1, 1], "strides": [1, 1] if layer else [2, 2]}
        nodes.append(helper.make_node(kind.title(), [last, f"weight{layer}"], [f"sum{layer}"], **attributes))
        nodes.append(helper.make_node("Relu", [f"sum{layer}"], [f"layer{layer}"]))
        last = f"layer{layer}"
    if kind == "conv":
        nodes.append(helper.make_node("ReduceMean", [last], ["means"], axes=[2, 3], keepdims=0))
        last = "means"
    weights.append(numpy_helper.from_array(rng.normal(0, 0.02, (width, CLASSES)).astype(np.float32), "classes"))
    nodes.append(helper.make_node("MatMul", [last, "classes"], ["logits"]))
    return _as_model(nodes, weights)


def _as_model(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "classes"])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Workers:
    """Processes that do not open the model before they are told to.

    Attributes:
        seconds: what the slowest took to open it.
        milliseconds: an image, the best round of one worker while the others wait.
    """

    def __init__(self, path: Path, count: int, batch: int) -> None:
        self.seconds = 0.0
        self.milliseconds = math.inf
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Any] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            self._processes.append(context.Process(target=_worker, args=(theirs, path, batch)))
            self._processes[-1].start()
        for pipe in self._pipes:
            pipe.recv()

    def open(self) -> int:
        """All open the model and run it twice; gives their growth in bytes."""
        before = sum(self._ask("pss"))
        self.seconds = max(self._ask("open"))
        return sum(self._ask("pss")) - before

    def time_one(self) -> None:
        """One more round of the first worker."""
        self._pipes[0].send("time")
        self.milliseconds = min(self.milliseconds, self._pipes[0].recv())

    def stop(self) -> None:
        """Ends all."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send("stop")
            process.join()

    def _ask(self, what: str) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(what)
        return [pipe.recv() for pipe in self._pipes]


def _worker(pipe: Connection, path: Path, batch: int) -> None:
    """Says when it is ready, then answers questions."""
    import onnxruntime as ort

    from sparkinfer.runtimes._onnx_share import open_shared

    images = _images(batch)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    tiny = ort.InferenceSession(_nothing().SerializeToString(), options, providers=["CPUExecutionProvider"])
    tiny.run(None, {"input": images})
    session: Any = None
    pipe.send("ready")
    while (what := pipe.recv()) != "stop":
        start = time.perf_counter()
        if what == "open":
            if path.suffix == ".shared":
                session = open_shared(path, options)
            else:
                session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            seconds = time.perf_counter() - start
            session.run(None, {"input": images})
            session.run(None, {"input": images})
            pipe.send(seconds)
        elif what == "time":
            session.run(None, {"input": images})
            pipe.send((time.perf_counter() - start) / batch * 1000)
        else:
            pipe.send(_pss())


def _nothing() -> onnx.ModelProto:
    """A model without weights: what ONNX Runtime itself takes is no growth by the model."""
    return _as_model([helper.make_node("Flatten", ["input"], ["logits"])], [])


def _share(model: Path, shared: Path, batch: int) -> float:
    from sparkinfer.runtimes._onnx_share import make_shareable

    start = time.perf_counter()
    make_shareable(model, shared, _images(batch))
    return time.perf_counter() - start


def _images(batch: int) -> Any:
    return np.random.default_rng(0).random((batch, 3, SIDE, SIDE), np.float32)


def _pss() -> int:
    return int(psutil.Process().memory_full_info().pss)


if __name__ == "__main__":
    main()
