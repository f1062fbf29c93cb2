"""GPU requests that no cluster of the kind can honour are refused; the rest go to the model's stage. No JVM."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import UserError
from sparkinfer.driver.spark.gpu_requests import check_requests, place

MASTER = "spark.master"
TASK = "spark.task.resource.gpu.amount"
EXECUTOR = "spark.executor.resource.gpu.amount"
SCRIPT = "spark.executor.resource.gpu.discoveryScript"
VENDOR = "spark.executor.resource.gpu.vendor"
DYNAMIC = "spark.dynamicAllocation.enabled"

STANDALONE = {MASTER: "spark://host:7077"}
YARN = {MASTER: "yarn", SCRIPT: "./gpu_discovery.sh"}
KUBERNETES = {MASTER: "k8s://https://host:6443", SCRIPT: "/opt/gpu_discovery.sh", VENDOR: "nvidia.com"}
ONE = {TASK: "1", EXECUTOR: "1"}


@pytest.mark.parametrize(
    ("conf", "device"),
    [
        (STANDALONE, "auto"),
        (STANDALONE, "cpu"),
        (STANDALONE, "cuda:0"),  # by its number, without Spark's say
        (STANDALONE | ONE, "cuda"),
        (STANDALONE | ONE, "cpu"),
        (STANDALONE | {TASK: "0.5", EXECUTOR: "1"}, "auto"),
        (STANDALONE | {TASK: ".25", EXECUTOR: "4"}, "auto"),
        (STANDALONE | {TASK: "2", EXECUTOR: "2"}, "auto"),
        (STANDALONE | {TASK: "2.0", EXECUTOR: "4"}, "auto"),
        (STANDALONE | {TASK: "0", EXECUTOR: "0"}, "auto"),
        (STANDALONE | {EXECUTOR: "1"}, "cpu"),
        (YARN | ONE, "cuda"),
        ({MASTER: "yarn", "spark.resources.discoveryPlugin": "org.example.Plugin"} | ONE, "cuda"),
        (KUBERNETES | ONE, "cuda"),
        (KUBERNETES | {EXECUTOR: "1"}, "cuda"),  # all tasks of a pod share its only GPU
        ({MASTER: "local[*]"}, "cuda"),  # looked for elsewhere
        ({}, "auto"),
    ],
)
def test_what_can_be_had_is_not_refused(conf: dict[str, str], device: str) -> None:
    check_requests(conf, device, "4.3.0")


@pytest.mark.parametrize(
    ("conf", "device", "key", "words", "allowed"),
    [
        ({MASTER: "local[2,4]"} | ONE, "auto", TASK, "'local[2,4]', which has no GPUs to give", ""),
        ({MASTER: "local[2,4]", EXECUTOR: "1"}, "auto", EXECUTOR, "no executors that could hold GPUs", ""),
        (STANDALONE | {TASK: "1"}, "auto", EXECUTOR, "executors have none", "whole number"),
        (STANDALONE | {TASK: "1", EXECUTOR: "0"}, "auto", EXECUTOR, "executors have none", "whole number"),
        (STANDALONE | {TASK: "2", EXECUTOR: "1"}, "auto", TASK, "asks for 2 GPUs, and an executor has 1", "at most 1"),
        (STANDALONE | {TASK: "1.5", EXECUTOR: "2"}, "auto", TASK, "'1.5' is no number of GPUs", "at most 1"),
        (STANDALONE | {TASK: "-1", EXECUTOR: "1"}, "auto", TASK, "'-1' is no number", "whole number"),
        (STANDALONE | {TASK: "one", EXECUTOR: "1"}, "auto", TASK, "'one' is no number", "whole number"),
        (STANDALONE | {TASK: "1", EXECUTOR: "1.0"}, "auto", EXECUTOR, "'1.0' is no number", "whole number"),
        (STANDALONE | {EXECUTOR: "2"}, "auto", TASK, "all tasks of a node would use its first", "0.5"),
        (STANDALONE, "cuda", "model.device", "nothing asks the cluster for one", "cuda:N"),
        ({MASTER: "yarn"}, "cuda", "model.device", "nothing asks the cluster for one", "cpu"),
        ({MASTER: "yarn"} | ONE, "auto", SCRIPT, "cannot tell tasks which one is theirs", "script"),
        (KUBERNETES | {EXECUTOR: "2"}, "auto", TASK, "no task asks for one", "1"),
        ({k: v for k, v in KUBERNETES.items() if k != VENDOR} | ONE, "auto", VENDOR, "vendor", "nvidia.com"),
    ],
)
def test_what_cannot_be_had_is_refused_with_key_and_hint(
    conf: dict[str, str], device: str, key: str, words: str, allowed: str
) -> None:
    with pytest.raises(UserError) as caught:
        check_requests(conf, device, "4.3.0")
    assert caught.value.exit_status == 2
    assert caught.value.key == key
    assert words in caught.value.message
    assert allowed in ", ".join(caught.value.allowed)
    assert caught.value.hint


@pytest.mark.parametrize(("version", "refused"), [("3.5.8", True), ("4.0.0", False), ("4.3.0", False)])
def test_shares_above_a_half_are_known_to_spark_4_only(version: str, refused: bool) -> None:
    conf = STANDALONE | {TASK: "0.8", EXECUTOR: "1"}
    if not refused:
        check_requests(conf, "auto", version)
        return
    with pytest.raises(UserError) as caught:
        check_requests(conf, "auto", version)
    assert "a share, at most 0.5" in caught.value.allowed


@pytest.mark.parametrize(
    ("conf", "engine", "version", "amount", "words"),
    [
        (STANDALONE, "arrow", "4.3.0", None, None),
        (STANDALONE | {TASK: "0"}, "arrow", "4.3.0", None, None),
        (STANDALONE | ONE, "arrow", "4.3.0", "1", "only the stage that runs the model"),
        (STANDALONE | {TASK: "0.5", EXECUTOR: "1"}, "pandas", "4.0.1", "0.5", "0.5 a task"),
        (YARN | ONE | {DYNAMIC: "false"}, "arrow", "4.3.0", "1", "only"),
        (KUBERNETES | ONE, "arrow", "4.3.0", "1", "only"),
        (YARN | ONE | {DYNAMIC: "true"}, "arrow", "4.3.0", None, f"with {DYNAMIC} it would need executors of its own"),
        (STANDALONE | ONE, "predict_batch_udf", "4.3.0", None, "engine predict_batch_udf"),
        (STANDALONE | ONE, "arrow", "3.5.8", None, "Spark 3.5.8 gives no stage"),
        ({MASTER: "other://x"} | ONE, "arrow", "4.3.0", None, "'other://x' is none of"),
    ],
)
def test_the_models_stage_asks_alone_where_it_can(
    conf: dict[str, str], engine: str, version: str, amount: str | None, words: str | None
) -> None:
    placement = place(conf, engine, version)
    assert placement.model_gpus == amount
    assert (placement.reason is None) if words is None else (words in str(placement.reason))


def test_without_a_master_nothing_is_said_of_it():
    reason = place({TASK: "1"}, "arrow", "4.3.0").reason
    assert reason == (
        "every stage asks for 1 GPU a task, also those without the model: nothing names the master; only standalone, "
        "YARN and Kubernetes can give one stage GPUs of its own"
    )
