"""How large executors should be, and how many of them a cluster holds. Driver side; pure arithmetic.

The rule: an executor with a GPU gets 8 GB of heap and batches of 256, as many of its node's cores as its GPU's share,
and there is one for each GPU; an executor without gets 4 cores, 4 GB of heap and batches of 64. Their number is bounded
by the GPUs, the cores and the memory of the nodes, whichever ends first. Heap holds images on their way to Python, so
it goes with the cores that decode; the batch goes with what keeps the device busy (a CPU gains nothing above some tens,
see `executor.batch_size`). What lies beside the heap depends on the model: `planning.memory` computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.planning.profile import size_bytes

__all__ = ["CPU", "GPU", "Cluster", "Kind", "Sizing", "parse_cluster", "size_executors"]

GIB = 1 << 30

RESERVED_MEMORY = 1 * GIB
"""Of a node, for the system and the cluster's own daemons (YARN's guides leave 1 GB and more)."""

RESERVED_CORES = 1
"""Of a node with more than one core, for the same."""


@dataclass(frozen=True)
class Kind:
    """One kind of executor.

    Attributes:
        heap: bytes.
        batch: images per model call that its memory is sized for.
        cores: at most; None takes an equal share of the node.
    """

    heap: int
    batch: int
    cores: int | None


GPU = Kind(heap=8 * GIB, batch=256, cores=None)
CPU = Kind(heap=4 * GIB, batch=64, cores=4)


@dataclass(frozen=True)
class Cluster:
    """Equal nodes.

    Attributes:
        nodes: how many.
        cores: of each.
        memory: of each, bytes.
        gpus: of each.
    """

    nodes: int
    cores: int
    memory: int
    gpus: int = 0


@dataclass(frozen=True)
class Sizing:
    """Executors for a cluster.

    Attributes:
        executors: in the whole cluster; 0 where not one fits.
        per_node: on each node.
        cores: of each executor.
        heap: of each, bytes.
        outside: beside the heap of each, bytes.
        batch: images per model call.
        gpus: of each executor.
        bound: what ends first: GPUs, cores or memory.
    """

    executors: int
    per_node: int
    cores: int
    heap: int
    outside: int
    batch: int
    gpus: int
    bound: str


def size_executors(cluster: Cluster, *, gpu: bool, outside: int) -> Sizing:
    """Applies the rule.

    Args:
        cluster: the nodes.
        gpu: the model runs on GPUs.
        outside: bytes beside the heap that an executor of this kind needs.
    """
    kind = GPU if gpu else CPU
    cores = max(1, cluster.cores - RESERVED_CORES)
    memory = max(0, cluster.memory - RESERVED_MEMORY)
    limits = {"memory": memory // (kind.heap + outside), "cores": max(1, cores // (kind.cores or 1))}
    if gpu:
        limits["GPUs"] = cluster.gpus
    # Where two end together, the one that is hardest to add to is named.
    bound = min(limits, key=lambda name: (limits[name], ("GPUs", "cores", "memory").index(name)))
    per_node = limits[bound]
    share = max(1, cores // max(1, per_node))
    return Sizing(
        executors=cluster.nodes * per_node,
        per_node=per_node,
        cores=share if kind.cores is None else min(kind.cores, share),
        heap=kind.heap,
        outside=outside,
        batch=kind.batch,
        gpus=int(gpu),
        bound=bound,
    )


def parse_cluster(text: str) -> Cluster:
    """Reads `nodes=5,cores=16,memory=64g,gpus=2`; gpus may be left out.

    Raises:
        SpecError: something else.
    """
    try:
        pairs = dict(part.strip().split("=") for part in text.split(","))
        memory = size_bytes(pairs.pop("memory"))
        found = Cluster(memory=memory, **{name: int(value) for name, value in pairs.items()})
    except (KeyError, TypeError, ValueError):
        found = Cluster(0, 0, 0)
    if min(found.nodes, found.cores) < 1 or found.memory < GIB or found.gpus < 0:
        raise SpecError(
            f"{text!r} describes no cluster", key="--cluster", allowed=["nodes=5,cores=16,memory=64g,gpus=2"]
        )
    return found
