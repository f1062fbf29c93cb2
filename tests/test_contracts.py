"""The walls between rooms. `make check` runs the contracts; these tests show that they would catch a breach."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the contracts as `make check` does; a wide terminal keeps each chain on one line."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        check=False,
    )


def imports_of(file: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute here"
            yield node.module or ""


@pytest.fixture
def copy_of_package(tmp_path):
    shutil.copytree(ROOT / "sparkinfer", tmp_path / "sparkinfer", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_are_kept():
    answer = lint_imports(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("module", "planted", "chain"),
    [
        ("driver.config", "import torch", "sparkinfer.driver.config -> torch"),
        ("driver.config", "def late():\n    import torchvision", "sparkinfer.driver.config -> torchvision"),
        ("executor.rows", "import torch", "sparkinfer.executor.rows -> torch"),
        ("executor.rows", "from onnxruntime import InferenceSession", "sparkinfer.executor.rows -> onnxruntime"),
        ("executor.rows", "import pyspark.sql", "sparkinfer.executor.rows -> pyspark"),
        ("executor.rows", "import sparkinfer.driver.config", "sparkinfer.executor.rows -> sparkinfer.driver.config"),
        ("executor.rows", "import sparkinfer.runtimes.fake", "sparkinfer.executor.rows -> sparkinfer.runtimes.fake"),
        ("core.schema", "import numpy", "sparkinfer.core.schema -> numpy"),
        ("core.schema", "import sparkinfer.executor.rows", "sparkinfer.core.schema -> sparkinfer.executor.rows"),
        (
            "runtimes.fake",
            "import sparkinfer.runtimes.torchscript",
            "sparkinfer.runtimes.fake -> sparkinfer.runtimes.torchscript",
        ),
        ("runtimes.onnx_runtime", "import torch", "sparkinfer.runtimes.onnx_runtime -> torch"),
        ("runtimes.torch_eager", "import onnx", "sparkinfer.runtimes.torch_eager -> onnx"),
    ],
)
def test_a_planted_import_fails_with_its_chain(copy_of_package, module, planted, chain):
    file = copy_of_package / "sparkinfer" / f"{module.replace('.', '/')}.py"
    file.write_text(f"{file.read_text('utf-8')}\n\n{planted}\n", "utf-8")
    answer = lint_imports(copy_of_package)
    assert answer.returncode == 1
    assert chain in answer.stdout
    assert "BROKEN" in answer.stdout


def test_a_planted_import_behind_another_module_fails_with_the_whole_chain(copy_of_package):
    package = copy_of_package / "sparkinfer"
    (package / "core" / "hidden.py").write_text("import torch\n", "utf-8")
    with (package / "driver" / "config.py").open("a", encoding="utf-8") as file:
        file.write("\nimport sparkinfer.core.hidden\n")
    answer = lint_imports(copy_of_package)
    assert answer.returncode == 1
    lines = [line.strip(" -") for line in answer.stdout.splitlines()]
    first = next(
        n for n, line in enumerate(lines) if line.startswith("sparkinfer.driver.config -> sparkinfer.core.hid")
    )
    assert lines[first + 1].startswith("sparkinfer.core.hidden -> torch")


def test_core_imports_the_standard_library_and_pydantic_only():
    allowed = sys.stdlib_module_names | {"pydantic", "sparkinfer"}
    for file in (ROOT / "sparkinfer" / "core").glob("*.py"):
        for name in imports_of(file):
            assert name.split(".")[0] in allowed, f"{file.name} imports {name}"
            assert not name.startswith("sparkinfer") or name.startswith("sparkinfer.core"), f"{file.name}: {name}"


def test_jobs_import_sparkinfer_only_and_define_nothing():
    for file in (ROOT / "jobs").glob("*.py"):
        for name in imports_of(file):
            assert name.split(".")[0] in sys.stdlib_module_names | {"sparkinfer"}, f"{file.name} imports {name}"
        # A function or class of __main__ would be pickled by value.
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        assert not [n for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, definitions)], file.name


def test_every_runtime_is_under_the_contract_of_independence():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (independence,) = [contract for contract in contracts if contract["type"] == "independence"]
    found = {f"sparkinfer.runtimes.{file.stem}" for file in (ROOT / "sparkinfer/runtimes").glob("[!_]*.py")}
    assert found == set(independence["modules"])


def test_no_module_is_longer_than_a_person_reads():
    for room in ("sparkinfer", "tests", "jobs", "deploy"):
        for file in (ROOT / room).rglob("*.py"):
            assert len(file.read_text("utf-8").splitlines()) <= 400, file
