"""Chunks: keys in order, one row out per row in, nulls where they belong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sparkinfer.core.errors import ErrorCode, RowError
from sparkinfer.core.schema import RESULT_COLUMNS
from sparkinfer.executor.postprocess import TopK
from sparkinfer.executor.rows import MAX_OUTPUT_ROWS, RESULT_TYPES, Chunk, Labels


def chunk(n: int) -> Chunk:
    batch = pa.record_batch(
        {"path": [f"p{i}" for i in range(n)], "content": pa.array([b"x"] * n, pa.binary()), "n": list(range(n))}
    )
    return Chunk(batch, "content", ("n", "path"))


def top(*rows: list[tuple[int, float]]) -> TopK:
    return TopK(
        np.array([[i for i, _ in row] for row in rows], np.int32),
        np.array([[c for _, c in row] for row in rows], np.float32),
    )


def test_mixed_rows_come_out_in_order() -> None:
    c = chunk(3)
    c.fail(1, RowError(ErrorCode.CORRUPT, "bad"))
    assert c.pending == 2
    c.succeed([2, 0], top([(1, 0.75), (0, 0.25)], [(0, 0.5), (1, 0.5)]), np.array([[7.0, 8.0], [1.0, 2.0]], np.float32))
    assert c.pending == 0
    (out,) = c.to_arrow(Labels(("cat", "dog")))
    assert out.schema.names == ["n", "path", *(x.name for x in RESULT_COLUMNS)]
    assert all(out.schema.field(name).type == kind for name, kind in RESULT_TYPES.items())
    rows = out.to_pylist()
    assert [r["path"] for r in rows] == ["p0", "p1", "p2"]
    assert [r["label"] for r in rows] == ["cat", None, "dog"]
    assert [r["embedding"] for r in rows] == [[1.0, 2.0], None, [7.0, 8.0]]
    assert rows[2]["top_k"] == [
        {"class_idx": 1, "label": "dog", "confidence": 0.75},
        {"class_idx": 0, "label": "cat", "confidence": 0.25},
    ]
    assert rows[1] == {
        **dict.fromkeys(RESULT_TYPES),
        "n": 1,
        "path": "p1",
        "error_stage": "decode",
        "error_code": "CORRUPT",
        "error_message": "bad",
    }
    assert c.error_counts == {"CORRUPT": 1}


@pytest.mark.parametrize("n", [1, 5])
def test_all_failed(n: int) -> None:
    c = chunk(n)
    for row in range(n):
        c.fail(row, RowError(ErrorCode.EMPTY, "zero"))
    (out,) = c.to_arrow(Labels(None))
    assert out.column("error_code").to_pylist() == ["EMPTY"] * n
    assert out.column("top_k").null_count == n
    assert out.schema.field("top_k").type == RESULT_TYPES["top_k"]


def test_output_batches_are_bounded() -> None:
    c = chunk(MAX_OUTPUT_ROWS + 3)
    n = c.num_rows
    c.succeed(list(range(n)), top(*[[(i % 2, 0.5)] for i in range(n)]), None)
    out = list(c.to_arrow(Labels(None)))
    assert [b.num_rows for b in out] == [MAX_OUTPUT_ROWS, 3]
    assert out[1].column("path").to_pylist() == [f"p{i}" for i in range(MAX_OUTPUT_ROWS, n)]


def test_images_are_views_and_null_is_none() -> None:
    batch = pa.record_batch({"content": pa.array([b"ab", None, b""], pa.binary())})
    views = list(Chunk(batch, "content", ()).images())
    assert [None if v is None else bytes(v) for v in views] == [b"ab", None, b""]
