"""README.md says what is true: generated parts are up to date, examples parse, commands exist."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

import sparkinfer
from sparkinfer import cli
from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.config import load_job
from sparkinfer.driver.specs.fields import all_keys
from sparkinfer.driver.specs.reference import fill, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """The README's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    """Every command line of a program, without its comment."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.split()[0] == program]


def job_of(text: str) -> JobSpec:
    return load_job("README.md", read_text=lambda _: text)


def test_generated_parts_are_up_to_date():
    assert main(["--check", str(ROOT / "README.md")]) == 0


def test_a_stale_part_is_found_and_mended(tmp_path, capsys):
    file = tmp_path / "README.md"
    file.write_text(README.replace("`source.where`", "`source.were`"), "utf-8")
    assert main(["--check", str(file)]) == 1
    assert "make readme" in capsys.readouterr().err
    assert main(["--write", str(file)]) == 0
    assert file.read_text("utf-8") == README


def test_a_missing_place_is_an_error():
    with pytest.raises(ValueError, match="error-codes"):
        fill(README.replace("<!-- generated: error-codes -->", ""))


def test_every_key_column_and_code_is_documented():
    assert all(f"| `{'.'.join(key)}` |" in README for key in all_keys())
    assert all(f"| `{code}` |" in README for code in ErrorCode)


def test_tables_are_whole():
    for table in re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


@pytest.mark.parametrize("text", blocks("yaml"))
def test_job_files_are_right(text):
    assert isinstance(job_of(text), JobSpec)


def test_the_demos_job_file_is_right():
    assert job_of((ROOT / "conf" / "demo.yaml").read_text("utf-8")).sink.mode == "overwrite"


@pytest.mark.parametrize("text", blocks("python"))
def test_python_examples_use_public_names(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "si":
            assert node.attr in sparkinfer.__all__


@pytest.mark.parametrize("arguments", commands("sparkinfer"), ids=" ".join)
def test_commands_are_taken(arguments, monkeypatch, tmp_path):
    specs: list[JobSpec] = []
    for module, function in (
        ("job", "run_job"),
        ("validate", "validate_command"),
        ("planning.show", "plan_command"),
    ):
        stand_in = types.ModuleType(f"sparkinfer.driver.{module}")
        setattr(stand_in, function, lambda spec, *_, **__: specs.append(spec))
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(blocks("yaml")[0], "utf-8")
    if arguments[0] == "model":
        assert cli.main([*arguments[:2], "--help"]) == 0
    else:
        assert cli.main(arguments) == 0
        assert len(specs) == 1


def test_make_targets_exist():
    for arguments in commands("make"):
        subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True)


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    answer = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert [line.split()[0] for line in answer.stdout.splitlines()] == targets[1].split()
