"""Cores per task: GPU slots must not cap decoding."""

from __future__ import annotations

import pytest

from sparkinfer.driver.resources import decode_cores

GPU = "spark.task.resource.gpu.amount"


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.executor.cores": "4"}, None),
        ({"spark.executor.cores": "4", GPU: "1"}, 4),
        ({"spark.executor.cores": "4", GPU: "0.5"}, 2),
        ({"spark.executor.cores": "4", GPU: "0.25"}, 1),
        ({"spark.executor.cores": "8", GPU: "1", "spark.executor.resource.gpu.amount": "2"}, 4),
        ({"spark.executor.cores": "4", "spark.task.cpus": "4", GPU: "1"}, 4),
        ({"spark.executor.cores": "4", "spark.task.cpus": "2", GPU: "0.1"}, 2),
        ({GPU: "1"}, None),
        ({"spark.master": "local[16]", GPU: "1"}, 16),
    ],
)
def test_the_task_that_holds_the_gpu_gets_the_idle_cores(conf: dict[str, str], expected: int | None) -> None:
    assert decode_cores(conf, default_parallelism=16) == expected
