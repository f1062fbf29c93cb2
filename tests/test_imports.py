"""`import sparkinfer` is light, and its public names are these."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import sparkinfer

PUBLIC_NAMES = ["Model", "__version__", "model", "predict", "predict_udf", "read_images", "register_sql", "run_job"]
HEAVY = ["numpy", "onnx", "onnxruntime", "pandas", "py4j", "pyarrow", "pyspark", "torch", "torchvision"]


def loaded_after(statement: str) -> set[str]:
    """Which of the heavy packages a statement loads, in a process of its own."""
    code = f"import json, sys\n{statement}\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout))


@pytest.mark.parametrize("statement", ["import sparkinfer", "import sparkinfer.cli", "import sparkinfer.driver.config"])
def test_loads_nothing_heavy(statement):
    assert loaded_after(statement) == set()


def test_core_loads_nothing_heavy():
    modules = [f"sparkinfer.core.{module.name}" for module in pkgutil.iter_modules([f"{sparkinfer.__path__[0]}/core"])]
    assert "sparkinfer.core.spec" in modules
    assert loaded_after(f"import {', '.join(modules)}") == set()


def test_public_names_load_no_framework_and_start_no_session():
    statement = (
        "import sparkinfer\n"
        "for name in sparkinfer.__all__: getattr(sparkinfer, name)\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._gateway is None and SparkContext._active_spark_context is None"
    )
    assert loaded_after(statement) & {"onnx", "onnxruntime", "torch", "torchvision"} == set()


def test_public_names_are_pinned():
    assert sparkinfer.__all__ == PUBLIC_NAMES
    assert all(getattr(sparkinfer, name) is not None for name in PUBLIC_NAMES)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'prdict'"):
        _ = sparkinfer.prdict


@pytest.mark.parametrize("file", sorted(Path(sparkinfer.__path__[0]).rglob("[!_]*.py")), ids=lambda file: file.stem)
def test_every_module_lists_its_names(file):
    """That the lists are sorted and name nothing unknown is ruff's to check."""
    assigned = [node.targets for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.Assign)]
    assert "__all__" in [target.id for targets in assigned for target in targets if isinstance(target, ast.Name)]
