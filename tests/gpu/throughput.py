"""Images a second and GPU utilisation of ResNet-50 with real JPEG decoding: `python -m tests.gpu.throughput`."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from sparkinfer.core.spec import BatchSpec
from tests.gpu.models import batches, chain, resnet50

ROWS = 4096


def main() -> None:
    """Prints one line per format and precision; the first run of each warms up."""
    with tempfile.TemporaryDirectory() as folder:
        models = resnet50(Path(folder))
        images = list(batches(ROWS))
        for format_, precision in [("onnx", "fp32"), ("torchscript", "fp32"), ("torchscript", "fp16")]:
            for size in (64, 256):
                run = {"device": "cuda", "precision": precision, "batch": BatchSpec(size=size)}
                chain(models[format_], format_, images[:8], **run)
                with Utilisation() as gpu:
                    started = time.perf_counter()
                    rows = len(chain(models[format_], format_, images, **run))
                    seconds = time.perf_counter() - started
                print(f"{format_} {precision} batch {size}: {rows / seconds:.0f} images/s, GPU busy {gpu.mean:.0f} %")


class Utilisation:
    """Mean of nvidia-smi's utilization.gpu while it is open, in per cent."""

    def __enter__(self) -> Self:
        self._samples: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.mean = sum(self._samples) / max(1, len(self._samples))

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._done.wait(0.2):
            answer = subprocess.run(query, capture_output=True, text=True, check=True)
            self._samples.append(float(answer.stdout.split()[0]))


if __name__ == "__main__":
    main()
