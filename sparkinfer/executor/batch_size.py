"""How many images the model sees at once. Executor side.

A size from the spec stays as it is, within what is sensible: bounded bytes, and little padding on a CPU. `auto`
measures: on an accelerator its memory, once, before the first batch; on a CPU the time per image, on the first real
batches, so that measuring costs nothing. Running out of memory, the device's or the worker's own, halves the size for
good, in any case. What was learned, later tasks of the process start with.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

from sparkinfer.core.protocols import Runtime

__all__ = ["BatchSize"]

log = logging.getLogger(__name__)

SMALLEST_PROBED, LARGEST_PROBED = 16, 1024
"""Bounds of the formula: below 16 a GPU idles, above 1,024 nothing is gained and latency grows."""

MEMORY_SHARE = 0.9
"""Of the free device memory: allocators round up, and other images may take a little more."""

CPU_CANDIDATES = (2, 4, 8, 16, 32)
"""Sizes that are tried. Measured on efficientnet-lite0 with one thread: 9.3 ms an image at 2, 9.9 at 8, 10.9 at 64,
since larger batches leave the caches; ResNet-50 gains a few per cent up to 32."""

FIXED_ON_CPU = 8
"""For runtimes whose results depend on the size of a batch: `auto`, and the most. Each task's last batch is padded to
the size, and torch on a CPU only loses with more: ResNet-50 takes 107 ms an image at 8, 144 at 16, 178 at 32 (one
thread of a busy machine). On a GPU the spec's size stays: there padding costs less than one more shape, for which
kernels must be chosen or built."""

CPU_TRIALS = 2
"""Batches of each candidate, of which the faster one counts: a core is often busy with something else for a while."""


class BatchSize:
    """The size of the next batch.

    Args:
        size: from the spec.
        on_cpu: the model runs on the CPU.
        most: images whose inputs take the memory that a batch may take.
    """

    def __init__(self, size: int | Literal["auto"], *, on_cpu: bool, most: int = sys.maxsize) -> None:
        self._on_cpu = on_cpu
        self._most = most
        self._fixed = size != "auto"
        self._candidates = list(CPU_CANDIDATES) * CPU_TRIALS if size == "auto" and on_cpu else []
        self._seconds: dict[int, float] = {}
        self._warm = self._probed = False
        if size != "auto":
            self.current = min(size, most)
            if size > most:
                log.warning("batch.size %d takes more memory than is sensible: batch size is %d", size, most)
        else:
            self._candidates = [each for each in self._candidates if each <= most]
            self.current = self._candidates[0] if self._candidates else min(SMALLEST_PROBED, most)

    def probe(self, runtime: Runtime) -> None:
        """Asks the loaded runtime; once. Sets the size from the accelerator's memory, where there is one.

        size = share x (device memory - what the model and others hold) / memory per image, within 16 and 1,024.
        """
        if self._probed:
            return
        self._probed = True
        if self._on_cpu:
            if runtime.fixed_batches:
                self._fix_on_cpu()
            return
        if self._fixed:
            return
        memory = runtime.measure_memory(min(SMALLEST_PROBED, self._most))
        if memory is None or memory.bytes_per_image <= 0:
            return
        fits = int(MEMORY_SHARE * memory.free_bytes / memory.bytes_per_image)
        self.current = min(self._most, max(SMALLEST_PROBED, min(LARGEST_PROBED, fits)))
        log.info(
            "batch size %d: %d MB free, %.1f MB an image",
            self.current,
            memory.free_bytes >> 20,
            memory.bytes_per_image / (1 << 20),
        )

    def _fix_on_cpu(self) -> None:
        """One size for every batch: one found by timing would make the last bits depend on the weather."""
        self._candidates = []
        wanted = self.current if self._fixed else self._most
        self.current = min(wanted, FIXED_ON_CPU)
        if self._fixed and self.current < wanted:
            log.info("batch size %d: partial batches are padded, and more at once is no faster", self.current)

    def ran(self, rows: int, seconds: float) -> None:
        """Learns from a batch that ran. The first one warms up; a last, partial one tells nothing."""
        if not self._candidates or rows != self.current:
            return
        if not self._warm:
            self._warm = True
            return
        self._seconds[rows] = min(seconds / rows, self._seconds.get(rows, seconds))
        self._candidates.pop(0)
        if self._candidates:
            self.current = self._candidates[0]
            return
        self.current = min(self._seconds, key=self._seconds.__getitem__)
        log.info("batch size %d: %s", self.current, {n: f"{s * 1e3:.1f} ms" for n, s in self._seconds.items()})

    def out_of_memory(self, rows: int) -> bool:
        """Halves, unless it is as small already: a batch of `rows` did not fit. Says whether it did."""
        half = max(1, rows // 2)
        if half >= self.current:
            return False
        log.warning("out of memory with %d images: batch size is now %d", rows, half)
        self.current = half
        self._candidates = []
        self._fixed = True
        return True
