"""Cores per task: GPU slots must not cap decoding. And whether a failed task is tried again."""

from __future__ import annotations

import pytest

from sparkinfer.driver.spark.resources import decode_cores, guard_mode

GPU = "spark.task.resource.gpu.amount"
MODEL_GPU = "spark.sparkinfer.model.gpus"
GPUS = "spark.executor.resource.gpu.amount"


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
        ({"spark.executor.cores": "12", GPU: "0.4", GPUS: "2"}, 3),  # two tasks on either GPU, not five on both
        ({"spark.executor.cores": "8", GPU: "2", GPUS: "4"}, 4),
        ({"spark.executor.cores": "4", MODEL_GPU: "1"}, 4),
        ({"spark.executor.cores": "4", MODEL_GPU: "0.5"}, 2),
        ({"spark.executor.cores": "4", GPU: "0"}, None),
        ({GPU: "1"}, None),
        ({"spark.master": "local[16]", GPU: "1"}, 16),
        ({"spark.master": "local[16,4]", GPU: "1"}, 16),
    ],
)
def test_the_task_that_holds_the_gpu_gets_the_idle_cores(conf: dict[str, str], expected: int | None) -> None:
    assert decode_cores(conf, default_parallelism=16) == expected


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.master": "local"}, "always"),
        ({"spark.master": "local[2]"}, "always"),
        ({"spark.master": "local[*]", "spark.task.maxFailures": "4"}, "always"),  # which local masters ignore
        ({"spark.master": "local[2,1]"}, "always"),
        ({"spark.master": "local[2,4]"}, "auto"),
        ({"spark.master": "local[*, 4]"}, "auto"),
        ({"spark.master": "local[2,4]", "spark.task.maxFailures": "1"}, "auto"),
        ({"spark.master": "local-cluster[2,1,1024]"}, "auto"),
        ({"spark.master": "yarn"}, "auto"),
        ({"spark.master": "yarn", "spark.task.maxFailures": "1"}, "always"),
        ({}, "auto"),
    ],
)
def test_a_task_that_may_not_fail_is_guarded_from_the_start(conf: dict[str, str], expected: str) -> None:
    assert guard_mode(conf) == expected
