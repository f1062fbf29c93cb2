"""What a master's URL says: who gives out executors, and cores of this machine. Driver side; pure."""

from __future__ import annotations

import os
import re

from sparkinfer.core.errors import SpecError

__all__ = ["check_master", "local_cores", "manager_of"]

_LOCAL = re.compile(r"local(?:\[\s*(?P<cores>\*|0*[1-9]\d*)\s*(?:,\s*\d+\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")


def manager_of(master: str) -> str:
    """What gives out executors, by the master's URL: local, standalone, yarn, kubernetes, or other."""
    if _LOCAL.fullmatch(master):
        return "local"
    if master.startswith(("spark://", "local-cluster[")):  # the latter starts a master and Workers of its own
        return "standalone"
    return "yarn" if master == "yarn" else "kubernetes" if master.startswith("k8s://") else "other"


def local_cores(master: str) -> int:
    """Cores of a local master on this machine.

    Raises:
        SpecError: it is no local master that Spark would take.
    """
    form = _LOCAL.fullmatch(master)
    if form is None:
        raise _wrong(master)
    cores = form["cores"] or "1"
    return (os.cpu_count() or 1) if cores == "*" else int(cores)


def check_master(master: str) -> None:
    """Refuses what no cluster manager answers to; an empty one is Spark's to choose.

    Raises:
        SpecError: as it says.
    """
    known = not master or manager_of(master) != "other" or (not master.startswith("local") and "://" in master)
    if not known or (master.startswith("local-cluster") and not _LOCAL_CLUSTER.fullmatch(master)):
        raise _wrong(master)


def _wrong(master: str) -> SpecError:
    return SpecError(
        f"{master!r} is no master that Spark knows",
        key="spark.master",
        allowed=["local", "local[CORES]", "local[*]", "yarn", "spark://HOST:PORT", "k8s://https://HOST:PORT"],
    )
