"""The resource rule: figures worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.planning.resource_rule import Cluster, parse_cluster, size_executors

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cluster", "outside", "expected"),
    [
        # Two GPUs a node: two executors share 15 of 16 cores.
        (Cluster(5, 16, 64 * GIB, 2), 4 * GIB, (10, 2, 7, "GPUs")),
        # 31 GiB for executors of 8 + 4: two fit, though there are four GPUs.
        (Cluster(3, 16, 32 * GIB, 4), 4 * GIB, (6, 2, 7, "memory")),
        # Three cores for four GPUs.
        (Cluster(1, 4, 256 * GIB, 4), 4 * GIB, (3, 3, 1, "cores")),
        (Cluster(2, 8, 64 * GIB, 0), 4 * GIB, (0, 0, 7, "GPUs")),
        (Cluster(2, 8, 8 * GIB, 1), 4 * GIB, (0, 0, 7, "memory")),
    ],
)
def test_gpu_executors_get_8g_and_256_images_one_for_each_gpu(cluster, outside, expected):
    found = size_executors(cluster, gpu=True, outside=outside)
    assert (found.executors, found.per_node, found.cores, found.bound) == expected
    assert (found.heap, found.batch, found.gpus) == (8 * GIB, 256, 1)


@pytest.mark.parametrize(
    ("cluster", "outside", "expected"),
    [
        # 15 cores: three executors of 4.
        (Cluster(20, 16, 64 * GIB), 2 * GIB, (60, 3, 4, "cores")),
        # 31 GiB for executors of 4 + 6: three.
        (Cluster(4, 32, 32 * GIB), 6 * GIB, (12, 3, 4, "memory")),
        # A small node has less than four cores to give.
        (Cluster(2, 2, 16 * GIB), 2 * GIB, (2, 1, 1, "cores")),
        # GPUs that the model does not use bound nothing.
        (Cluster(1, 9, 64 * GIB, 1), 2 * GIB, (2, 2, 4, "cores")),
    ],
)
def test_cpu_executors_get_4g_64_images_and_4_cores(cluster, outside, expected):
    found = size_executors(cluster, gpu=False, outside=outside)
    assert (found.executors, found.per_node, found.cores, found.bound) == expected
    assert (found.heap, found.batch, found.gpus) == (4 * GIB, 64, 0)


@given(
    st.builds(
        Cluster, st.integers(1, 50), st.integers(1, 128), st.integers(1, 512).map(GIB.__mul__), st.integers(0, 8)
    ),
    st.booleans(),
    st.integers(0, 64).map(GIB.__mul__),
)
def test_executors_never_take_more_than_a_node_has(cluster, gpu, outside):
    found = size_executors(cluster, gpu=gpu, outside=outside)
    assert found.executors == cluster.nodes * found.per_node
    assert found.per_node * found.cores <= cluster.cores
    assert found.per_node * (found.heap + outside) <= cluster.memory
    assert found.per_node * found.gpus <= cluster.gpus


def test_a_cluster_is_read():
    assert parse_cluster("nodes=5,cores=16,memory=64g,gpus=2") == Cluster(5, 16, 64 * GIB, 2)
    assert parse_cluster("memory=32g, nodes=1, cores=4") == Cluster(1, 4, 32 * GIB, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "nodes=5",
        "nodes=5,cores=16,memory=lots",
        "nodes=0,cores=1,memory=1g",
        "nodes=1,cores=x,memory=1g",
        "nodes=1,cores=1,memory=1g,disks=3",
        "nodes=1,cores=1,memory=1g,gpus=-1",
    ],
)
def test_no_cluster(text):
    with pytest.raises(SpecError) as error:
        parse_cluster(text)
    assert error.value.key == "--cluster"
