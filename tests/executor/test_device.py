from __future__ import annotations

import logging
import os

import pytest

from sparkinfer.core.errors import DeviceError
from sparkinfer.core.protocols import Device
from sparkinfer.executor.device import GpuFacts, read_gpu_facts, resolve_device

UUIDS = ("GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbcc-3", "GPU-dddd-4")
CPU = Device("cpu")


def cuda(index):
    return Device("cuda", index)


def node(visible=None, uuids=UUIDS):
    return GpuFacts(uuids=uuids, visible_devices=visible)


@pytest.mark.parametrize(
    ("requested", "addresses", "facts", "expected"),
    [
        ("cpu", (), node(), CPU),
        ("cpu", ("3",), node("2,3"), CPU),
        ("auto", (), GpuFacts(), CPU),
        ("auto", (), node(), cuda(0)),
        ("auto", (), node(""), CPU),
        ("auto", (), node("-1"), CPU),
        ("cuda", (), node("2,3"), cuda(0)),
        ("cuda:1", (), node("2,3"), cuda(1)),
        ("cuda:3", (), node(), cuda(3)),
        ("cuda:1", ("2",), node("2,3"), cuda(1)),
        # the absolute address under a remapped CUDA_VISIBLE_DEVICES
        ("auto", ("3",), node("2,3"), cuda(1)),
        ("cuda", ("3",), node("2,3"), cuda(1)),
        ("cuda", ("2",), node("2,3"), cuda(0)),
        ("cuda", ("0",), node("3, 1 ,0"), cuda(2)),
        ("cuda", ("3",), node(), cuda(3)),
        ("cuda", ("1", "2"), node(), cuda(1)),
        # UUIDs on either side, whole or abbreviated
        ("cuda", ("GPU-dddd-4",), node("GPU-bbbb-2,GPU-dddd-4"), cuda(1)),
        ("cuda", ("GPU-dddd-4",), node("2,3"), cuda(1)),
        ("cuda", ("3",), node("GPU-bbbb,GPU-d"), cuda(1)),
        ("cuda", ("GPU-dddd-4",), node(), cuda(3)),
        # slices of a GPU have names of their own
        ("cuda", ("MIG-x",), node("MIG-y,MIG-x"), cuda(1)),
        # no UUID is known: numbers still work
        ("cuda", ("1",), node("1", uuids=("", "")), cuda(0)),
    ],
)
def test_resolution(requested, addresses, facts, expected):
    assert resolve_device(requested, addresses, facts=facts) == expected


@pytest.mark.parametrize(
    ("requested", "addresses", "facts", "words"),
    [
        ("cuda", (), GpuFacts(), "sees none"),
        ("cuda", (), node(""), "CUDA_VISIBLE_DEVICES ''"),
        ("cuda", (), GpuFacts(visible_devices="0"), "sees none"),
        ("cuda:0", (), GpuFacts(), "sees 0 GPUs"),
        ("cuda:2", (), node("2,3"), "sees 2 GPUs"),
        ("auto", ("0",), node("2,3"), "GPU '0', which this process does not see"),
        ("cuda", ("GPU-zzzz",), node(), "GPU 'GPU-zzzz'"),
        ("cuda", ("GPU-bb",), node(), "GPU 'GPU-bb'"),
        # CUDA stops at the first entry that is no GPU
        ("cuda", ("3",), node("2,9,3"), "GPU '3'"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(requested, addresses, facts, words):
    with pytest.raises(DeviceError) as caught:
        resolve_device(requested, addresses, facts=facts)
    assert words in caught.value.message
    assert caught.value.key == "model.device"
    assert caught.value.allowed[:2] == ("auto", "cpu")


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_a_slice_that_spark_gives_becomes_the_only_device(monkeypatch, requested):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "to be put back")
    assert resolve_device(requested, ("MIG-c738",), facts=node()) == cuda(0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-c738"
    # The next task of this process: CUDA has read the variable by then.
    assert resolve_device(requested, ("MIG-c738",), facts=node("MIG-c738")) == cuda(0)
    with pytest.raises(DeviceError, match="MIG-a28a"):
        resolve_device(requested, ("MIG-a28a",), facts=node("MIG-c738"))


def test_auto_says_what_it_chose(caplog):
    with caplog.at_level(logging.INFO):
        resolve_device("auto", facts=GpuFacts())
        resolve_device("auto", facts=node())
    assert [record.getMessage() for record in caplog.records] == [
        "device auto: cpu, of 0 visible GPUs",
        "device auto: cuda:0, of 4 visible GPUs",
    ]


def gpu(root, bus, minor, uuid):
    folder = root / "proc/driver/nvidia/gpus" / bus
    folder.mkdir(parents=True)
    (folder / "information").write_text(
        f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 97\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nDevice Minor: \t {minor}\n"
    )


def device_nodes(root, *names):
    (root / "dev").mkdir()
    for name in names:
        (root / "dev" / name).touch()


def test_facts_come_in_the_order_of_the_bus(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu(tmp_path, "0000:65:00.0", 0, "GPU-far")
    gpu(tmp_path, "0000:17:00.0", 1, "GPU-near")
    device_nodes(tmp_path, "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
    assert read_gpu_facts(tmp_path) == GpuFacts(("GPU-near", "GPU-far"), None)


def test_a_container_has_the_gpus_it_has_nodes_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for minor in range(3):
        gpu(tmp_path, f"0000:0{minor}:00.0", minor, f"GPU-{minor}")
    device_nodes(tmp_path, "nvidia2")
    assert read_gpu_facts(tmp_path) == GpuFacts(("GPU-2",), "0")


def test_without_the_drivers_files_the_nodes_count(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    device_nodes(tmp_path, "nvidia0", "nvidia10", "nvidia2", "null")
    assert read_gpu_facts(tmp_path).uuids == ("", "", "")


def test_no_gpu(tmp_path):
    assert read_gpu_facts(tmp_path).uuids == ()
