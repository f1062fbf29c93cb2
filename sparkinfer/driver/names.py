"""Names of catalogue tables as a person writes them, quoted for SQL. Driver side; no Spark.

A name is parts between dots: `db.predictions`. A part in backticks may hold any character, dots and (doubled)
backticks too; one without them any but those two, so that `db.my-table` needs no quotes. What comes out is always
quoted: nothing in a name is ever read as SQL.
"""

from __future__ import annotations

import re

from sparkinfer.core.errors import SpecError

__all__ = ["quoted", "table_name", "table_parts"]

_PART = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^.`\s](?:[^.`]*[^.`\s])?))\s*(\.|$)")


def quoted(name: str) -> str:
    """One name (of a column, or a part of a table's) in backticks."""
    return "`" + name.replace("`", "``") + "`"


def table_parts(name: str) -> tuple[str, ...]:
    """The parts of a table's name, without quotes: (catalogue, database, table) or fewer.

    Raises:
        ValueError: it is no such name.
    """
    parts = []
    position, end = 0, "."
    while end == ".":
        found = _PART.match(name, position)
        if found is None:
            raise ValueError(f"{name!r} is no name of a table")
        parts.append(found[1].replace("``", "`") if found[1] is not None else found[2])
        position, end = found.end(), found[3]
    return tuple(parts)


def table_name(name: str, key: str) -> str:
    """The name, every part quoted.

    Args:
        name: as a person wrote it.
        key: the setting that named it.

    Raises:
        SpecError: it is no name of a table.
    """
    try:
        return ".".join(map(quoted, table_parts(name)))
    except ValueError as error:
        raise SpecError(str(error), key=key, hint="database.table; put a part with a dot in backticks") from None
