"""The prediction table's columns, in order. Framework-free: the driver makes DDL of it, the executor Arrow types."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PREDICTION_COLUMNS", "RESULT_COLUMNS", "STAMP_COLUMNS", "Column", "ddl"]


class Column(NamedTuple):
    """One column: its name, its Spark SQL type, what it holds. Every column is nullable."""

    name: str
    ddl: str
    meaning: str


RESULT_COLUMNS: tuple[Column, ...] = (
    Column("predicted_class_idx", "int", "class with the highest score; null when the row failed"),
    Column("label", "string", "its label; null without labels"),
    Column("confidence", "float", "its confidence in [0, 1]"),
    Column("top_k", "array<struct<class_idx:int,label:string,confidence:float>>", "best classes, best first"),
    Column("embedding", "array<float>", "when `postprocess.embedding` asks for it"),
    Column("error_stage", "string", "read, decode, preprocess, infer, postprocess or worker; null on success"),
    Column("error_code", "string", "see error codes; null on success"),
    Column("error_message", "string", "for a person; null on success"),
)
"""What an executor says of every row."""

STAMP_COLUMNS: tuple[Column, ...] = (
    Column("model_name", "string", "`model.name` or the file's stem"),
    Column("model_version", "string", "`model.version`"),
    Column("model_digest", "string", "SHA-256 of the model file"),
    Column("run_id", "string", "one per run"),
)
"""What is the same for every row of a run: the driver adds it, so that it never crosses into Python and back."""

PREDICTION_COLUMNS: tuple[Column, ...] = RESULT_COLUMNS + STAMP_COLUMNS
"""What follows the key columns (`path` and those of `source.keep`) in every prediction table."""


def ddl(columns: tuple[Column, ...]) -> str:
    """Columns as a Spark DDL string."""
    return ", ".join(f"{c.name} {c.ddl}" for c in columns)
