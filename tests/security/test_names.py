"""Names of tables and columns are quoted, whatever is in them; the same against Spark: tests/spark/test_names.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.names import quoted, table_name, table_parts


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("predictions", ("predictions",)),
        ("db.predictions", ("db", "predictions")),
        ("lake.db.t", ("lake", "db", "t")),
        ("db.my-table", ("db", "my-table")),
        ("db.`my-table`", ("db", "my-table")),
        ("`a.b`.`c``d`", ("a.b", "c`d")),
        ("データ.таблица", ("データ", "таблица")),
        (" db . t ", ("db", "t")),
        ("t; DROP TABLE u", ("t; DROP TABLE u",)),
        ("t -- no comment", ("t -- no comment",)),
        ("t /* no comment */", ("t /* no comment */",)),
        ("two words", ("two words",)),
    ],
)
def test_parts_of_a_table_s_name(name, parts):
    assert table_parts(name) == parts


NO_NAMES = ["", " ", ".", "a.", ".a", "a..b", "`a", "a`", "``", "a`b`", "`a`b", "a.`b`c", "`a`; DROP TABLE b"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name(name):
    with pytest.raises(SpecError) as caught:
        table_name(name, "sink.table")
    assert caught.value.key == "sink.table"


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_quoted_parts_come_back(parts):
    assert table_parts(".".join(map(quoted, parts))) == tuple(parts)
    assert table_name(".".join(map(quoted, parts)), "k") == ".".join(map(quoted, parts))


@settings(deadline=None)
@given(st.text())
def test_nothing_leaves_its_quotes(name):
    """As SQL reads it: a backtick ends the name unless it is doubled."""
    inner = quoted(name)[1:-1]
    assert inner.replace("``", "").count("`") == 0
    assert inner.replace("``", "`") == name
