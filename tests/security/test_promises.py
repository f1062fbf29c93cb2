"""SECURITY.md names a test for every promise; each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text("utf-8")


def named() -> list[str]:
    """`file::test` of every test that is named; `::test` alone belongs to the file before it."""
    found, file = [], ""
    for path, test in re.findall(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`", TEXT):
        file = path or file
        if path or test:
            found.append(f"{file}::{test}")
    return found


@pytest.mark.parametrize("name", sorted(set(named())))
def test_a_named_test_exists(name):
    file, test = name.split("::")
    assert f"def {test}(" in (ROOT / file).read_text("utf-8") if test else (ROOT / file).exists()


def test_many_are_named():
    assert len(set(named())) > 30


def test_every_row_of_promises_names_one():
    rows = [row for table in TEXT.split("| promise | test |")[1:] for row in table.split("\n\n")[0].splitlines()[2:]]
    assert rows
    for row in rows:
        assert "test" in row.rsplit("|", 2)[1], row
