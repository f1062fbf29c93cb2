"""The script that tells Spark which GPUs a machine has, against what nvidia-smi prints on machines of every kind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "conf" / "gpu_discovery.sh"

H200 = """\
GPU 0: NVIDIA H200 (UUID: GPU-3ad5c1c2-4b8e-9f30-6c11-2f0d8e7a9b01)
GPU 1: NVIDIA H200 (UUID: GPU-7be0d9f4-1c2d-8e3f-5a6b-4c9d0e1f2a03)
GPU 2: NVIDIA H200 (UUID: GPU-7be1aa10-90cd-12ef-3456-7890abcdef05)
"""
SLICED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0c1d2e3f-1111-2222-3333-444455556666)
  MIG 3g.20gb     Device  0: (UUID: MIG-11aa22bb-5678-5afc-978f-d2f129440911)
  MIG 3g.20gb     Device  1: (UUID: MIG-22bb33cc-5678-56dd-84fc-0a0b96edc522)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-9a8b7c6d-1111-2222-3333-444455556666)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-5e4d3c2b-1111-2222-3333-444455556666)
"""
"""GPU 0 has two slices; 1 is whole; 2 is in MIG mode without a slice."""
MODES = "0, Enabled\n1, Disabled\n2, Enabled\n"


@pytest.fixture
def discover(tmp_path):
    """Runs the script on a machine whose nvidia-smi answers so; None: it has none."""

    def run(listed, modes="", *, status=0, modes_status=0, **environment):
        tools = tmp_path / "bin"
        tools.mkdir(exist_ok=True)
        for tool in ("bash", "cat", "env"):
            found = shutil.which(tool)
            assert found
            (tools / tool).unlink(missing_ok=True)
            (tools / tool).symlink_to(found)
        if listed is not None:
            (tmp_path / "listed").write_text(listed)
            (tmp_path / "modes").write_text(modes)
            (tools / "nvidia-smi").write_text(
                f'#!{tools / "bash"}\nif [[ $1 == -L ]]; then cat "{tmp_path}/listed"; exit {status}; fi\n'
                f'cat "{tmp_path}/modes"; exit {modes_status}\n'
            )
            (tools / "nvidia-smi").chmod(0o755)
        return subprocess.run(
            [SCRIPT], env={"PATH": str(tools), **environment}, capture_output=True, text=True, check=False
        )

    return run


def addresses(done):
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert told["name"] == "gpu"
    assert set(told) == {"name", "addresses"}
    return told["addresses"]


def test_it_can_be_run_as_spark_runs_it():
    assert os.access(SCRIPT, os.X_OK)


def test_whole_gpus_are_named_by_their_numbers(discover):
    assert addresses(discover(H200, "0, Disabled\n1, Disabled\n2, Disabled\n")) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("modes", "modes_status"), [("0, [N/A]\n1, [N/A]\n2, [N/A]\n", 0), ('Field "mig.mode.current" is not valid.\n', 2)]
)
def test_cards_and_drivers_that_know_no_slices(discover, modes, modes_status):
    assert addresses(discover(H200, modes, modes_status=modes_status)) == ["0", "1", "2"]


def test_slices_are_named_by_their_uuids(discover):
    done = discover(SLICED, MODES)
    slices = ["MIG-11aa22bb-5678-5afc-978f-d2f129440911", "MIG-22bb33cc-5678-56dd-84fc-0a0b96edc522"]
    assert addresses(done) == [*slices, "1"]
    assert done.stderr == "gpu_discovery: GPU 2 is in MIG mode and has no slice: left out\n"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0", ["0"]),
        ("2,0", ["2", "0"]),
        ("2, 1", ["2", "1"]),
        ("GPU-7be1,GPU-3ad5c1c2-4b8e-9f30-6c11-2f0d8e7a9b01", ["2", "0"]),
        ("1,9,0", ["1"]),  # CUDA stops at what names no GPU
    ],
)
def test_what_cuda_is_not_to_see_is_not_told(discover, visible, expected):
    assert addresses(discover(H200, CUDA_VISIBLE_DEVICES=visible)) == expected


def test_a_visible_slice(discover):
    done = discover(SLICED, MODES, CUDA_VISIBLE_DEVICES="MIG-22bb33cc-5678-56dd-84fc-0a0b96edc522")
    assert addresses(done) == ["MIG-22bb33cc-5678-56dd-84fc-0a0b96edc522"]


@pytest.mark.parametrize(
    ("listed", "status", "environment", "words"),
    [
        (None, 0, {}, "there is no nvidia-smi on PATH"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9, {}, "with the NVIDIA"),
        ("No devices found.\n", 0, {}, "lists no GPU that can be used; it says: No devices found."),
        ("", 0, {}, "lists no GPU that can be used; it says: nothing"),
        (H200, 0, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is '', which names no GPU of: 0 1 2"),
        (H200, 0, {"CUDA_VISIBLE_DEVICES": "-1"}, "'-1', which names no GPU"),
        (H200, 0, {"CUDA_VISIBLE_DEVICES": "7"}, "'7', which names no GPU"),
    ],
)
def test_a_machine_without_a_gpu_is_one_clear_line(discover, listed, status, environment, words):
    done = discover(listed, status=status, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu_discovery: ")
    assert words in line
