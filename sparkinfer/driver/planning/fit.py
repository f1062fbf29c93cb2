"""Whether an application fits: memory of its executors, nodes of the cluster, tasks at once. Driver side."""

from __future__ import annotations

from collections.abc import Iterator

from sparkinfer.driver.planning.facts import Facts, Finding
from sparkinfer.driver.planning.memory import total
from sparkinfer.driver.planning.profile import Settings, size_bytes
from sparkinfer.driver.planning.resource_rule import RESERVED_MEMORY
from sparkinfer.driver.sources.inputs import size_text

__all__ = ["check_fit", "overhead_of"]

MIB = 1 << 20

LEAST_HEAP = 450 * MIB
"""`UnifiedMemoryManager` refuses less: 1.5 times what it reserves."""

FULL_ROUNDS = 0.75
"""Share of the tasks at once that must be busy on average over all rounds."""

DRIVER_BASE, DRIVER_PER_FILE = 512 * MIB, 1000
"""Heap of the driver: Spark itself, and a file on its way into tasks."""


def check_fit(facts: Facts) -> Iterator[Finding]:
    """What does not fit."""
    for one in (_heap, _python_limit, _memory, _nodes, _tasks, _driver):
        yield from one(facts)


def overhead_of(settings: Settings, manager: str, heap: int) -> int:
    """Bytes beside the heap that a container gets on YARN and Kubernetes."""
    if "spark.executor.memoryOverhead" in settings:
        return settings.size("spark.executor.memoryOverhead", "0")
    share = settings.number("spark.executor.memoryOverheadFactor", 0.4 if manager == "kubernetes" else 0.1)
    if manager == "kubernetes":
        share = settings.number("spark.kubernetes.memoryOverheadFactor", share)
    return max(settings.size("spark.executor.minMemoryOverhead", "384m"), int(share * heap))


def _heap(facts: Facts) -> Iterator[Finding]:
    key = "spark.driver.memory" if facts.fleet.manager == "local" else "spark.executor.memory"
    have = facts.settings.size(key, "1g")
    if have < LEAST_HEAP:
        yield Finding("error", key, f"Spark starts with {size_text(LEAST_HEAP)} and more", "1g")
    elif have < facts.heap.bytes:
        yield Finding(
            "warning",
            key,
            f"{size_text(have)}, and the job may need {size_text(facts.heap.bytes)}: {facts.heap.formula}",
            _gigabytes(facts.heap.bytes),
        )


def _python_limit(facts: Facts) -> Iterator[Finding]:
    key = "spark.executor.pyspark.memory"
    if key not in facts.settings:
        return
    workers = facts.fleet.cores or 1
    each = facts.settings.size(key, "0") // workers
    if facts.on_gpu:
        yield Finding(
            "error",
            key,
            f"limits the address space of each Python worker to {size_text(each)}, of which CUDA reserves far more",
            "leave it out and raise spark.executor.memoryOverhead",
        )
        return
    need = total(part for part in facts.beside if part.name not in {"JVM beside its heap", "Arrow buffers"})
    if each < need // max(1, facts.fleet.slots or 1):
        yield Finding(
            "warning",
            key,
            f"{size_text(each)} of address space for each of {workers} Python workers, and one may need more",
            "leave it out and raise spark.executor.memoryOverhead",
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    """Beside the heap: what YARN and Kubernetes enforce, or this machine has."""
    least, most = total(facts.beside, certain=True), total(facts.beside)
    if facts.fleet.manager == "local":
        heap = facts.settings.size("spark.driver.memory", "1g")
        have, key, whose = facts.machine - heap, "spark.master", f"this machine beside {size_text(heap)} of heap"
        hint = "fewer cores: local[2]; or a smaller batch.size"
    elif facts.fleet.manager in {"yarn", "kubernetes"}:
        heap = facts.settings.size("spark.executor.memory", "1g")
        have = overhead_of(facts.settings, facts.fleet.manager, heap)
        have += facts.settings.size("spark.executor.pyspark.memory", "0")
        key, whose, hint = "spark.executor.memoryOverhead", "the container beside its heap", _gigabytes(most)
    else:
        return
    if have < most:
        worst = "the container is killed when it takes more" if facts.fleet.manager != "local" else "it would swap"
        yield Finding(
            "error" if have < least else "warning",
            key,
            f"{size_text(max(0, have))} for {whose}; the job needs {size_text(least)} and may take {size_text(most)}: "
            f"{worst}",
            hint,
        )


def _nodes(facts: Facts) -> Iterator[Finding]:
    """Whether executors fit on the nodes."""
    fleet, cluster = facts.fleet, facts.cluster
    if cluster is None or fleet.manager == "local":
        return
    heap = facts.settings.size("spark.executor.memory", "1g")
    beside = total(facts.beside)
    if fleet.manager in {"yarn", "kubernetes"}:
        beside = overhead_of(facts.settings, fleet.manager, heap)
        beside += facts.settings.size("spark.executor.pyspark.memory", "0")
    memory = cluster.memory - RESERVED_MEMORY
    if heap + beside > memory:
        yield Finding(
            "error",
            "spark.executor.memory",
            f"an executor takes {size_text(heap + beside)} and a node has {size_text(max(0, memory))} for it",
            "no executor could start: lower it, or spark.executor.memoryOverhead",
        )
        return
    limits = {"memory": memory // (heap + beside), "cores": cluster.cores // (fleet.cores or 1)}
    if fleet.gpus:
        limits["GPUs"] = cluster.gpus // fleet.gpus
    bound = min(limits, key=lambda name: limits[name])
    fits = cluster.nodes * limits[bound]
    wanted = fleet.most if fleet.most is not None else fleet.executors
    if wanted is not None and 0 < fits < wanted:
        yield Finding(
            "warning",
            "spark.executor.instances",
            f"{wanted} executors are asked for and {fits} fit on {cluster.nodes} nodes, bounded by {bound}",
            f"the others are waited for in vain; {fits} or fewer",
        )


def _tasks(facts: Facts) -> Iterator[Finding]:
    fleet, slots, partitions = facts.fleet, facts.fleet.total_slots, facts.partitions
    key = "spark.default.parallelism"
    if not fleet.told:
        aim = f"{slots}" if slots else "executors x tasks at once on each"
        yield Finding(
            "warning",
            key,
            f"the input is cut for the cores that are there at that moment, here taken for {fleet.parallelism}",
            aim,
        )
    if not slots or not partitions:
        return
    if partitions < slots:
        few = facts.rows is not None and facts.rows < slots
        yield Finding(
            "warning",
            f"source, {key}" if few else key,
            f"{partitions:,} tasks for {slots:,} at once: the rest idles"
            + (", as there are no more rows" if few else ""),
            "fewer executors" if few else f"{slots}",
        )
        return
    rounds = -(-partitions // slots)
    # Else the tasks are either full rounds or so short that nobody minds one more.
    if fleet.parallelism % slots and partitions / (rounds * slots) < FULL_ROUNDS:
        yield Finding(
            "warning",
            key,
            f"{partitions:,} tasks in {rounds} rounds of {slots:,}: the last round leaves most of them idle",
            f"a multiple of {slots}",
        )


def _driver(facts: Facts) -> Iterator[Finding]:
    if facts.rows is None:
        return
    need = DRIVER_BASE + facts.rows * DRIVER_PER_FILE
    have = facts.settings.size("spark.driver.memory", "1g")
    if facts.submitted and have < need:
        yield Finding(
            "warning",
            "spark.driver.memory",
            f"{size_text(have)}, and the list of {facts.rows:,} files may take {size_text(need)}",
            _gigabytes(need),
        )


def _gigabytes(count: int) -> str:
    """As a setting: whole GiB, rounded up."""
    return f"{-(-count // size_bytes('1g'))}g"
