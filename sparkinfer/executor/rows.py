"""One input batch on its way through the chain, and the Arrow batch that comes out. Executor side.

A `Chunk` is one Arrow batch from Spark: its key columns wait here while its images are predicted, and every row ends
as a prediction or as an error, in the order it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkinfer.core.errors import RowError
from sparkinfer.core.schema import RESULT_COLUMNS
from sparkinfer.executor.postprocess import TopK

__all__ = ["RESULT_TYPES", "Chunk", "Labels"]

_TOP_K_ITEM = pa.struct([("class_idx", pa.int32()), ("label", pa.string()), ("confidence", pa.float32())])

RESULT_TYPES: dict[str, pa.DataType] = {
    "predicted_class_idx": pa.int32(),
    "label": pa.string(),
    "confidence": pa.float32(),
    "top_k": pa.list_(_TOP_K_ITEM),
    "embedding": pa.list_(pa.float32()),
    "error_stage": pa.string(),
    "error_code": pa.string(),
    "error_message": pa.string(),
}
"""Arrow type of every column in `core.schema.RESULT_COLUMNS`."""

MAX_OUTPUT_ROWS = 4096
"""Rows of one output batch at most: small rows, but embeddings can be wide."""


class Labels:
    """Class index to label, vectorised. Without labels every label is null."""

    def __init__(self, labels: tuple[str, ...] | None) -> None:
        self._values = None if labels is None else pa.array(labels, pa.string())

    def take(self, class_idx: pa.Array) -> pa.Array:
        """Labels of an int32 array, nulls kept."""
        return pa.nulls(len(class_idx), pa.string()) if self._values is None else self._values.take(class_idx)


class Chunk:
    """Keys, images and outcomes of one input batch.

    Args:
        batch: the input batch, with the columns `keys` and `content`.
        content: name of the binary column.
        keys: names of the columns to carry to the output.
    """

    def __init__(self, batch: pa.RecordBatch, content: str, keys: tuple[str, ...]) -> None:
        self.num_rows: int = batch.num_rows
        self.pending: int = batch.num_rows
        self._content: pa.Array | None = batch.column(content)
        self._keys = [(name, batch.column(name)) for name in keys]
        self._lock = Lock()
        self._errors: dict[int, RowError] = {}
        self._class_idx: NDArray[np.int32] | None = None
        self._confidence: NDArray[np.float32] | None = None
        self._embedding: NDArray[np.float32] | None = None

    def images(self) -> Iterator[memoryview | None]:
        """The image bytes of each row as views into the Arrow buffer (no copy), None for null; once."""
        content, self._content = self._content, None
        if content is None:
            raise RuntimeError("the images of a chunk can be walked once")
        # By the offsets: pyarrow's own `scalar.as_buffer()` copies.
        offset_type = np.int64 if pa.types.is_large_binary(content.type) else np.int32
        _, offsets, data = content.buffers()
        ends = np.frombuffer(offsets, offset_type)[content.offset : content.offset + len(content) + 1].tolist()
        whole = memoryview(b"" if data is None else data)
        for valid, start, end in zip(content.is_valid().to_pylist(), ends, ends[1:], strict=False):
            yield whole[start:end] if valid else None

    def fail(self, row: int, error: RowError) -> None:
        """Settles a row as failed. Any thread."""
        with self._lock:
            self._errors[row] = error
            self.pending -= 1

    def succeed(self, rows: list[int], top: TopK, embedding: NDArray[np.float32] | None) -> None:
        """Settles rows with their predictions: `top` and `embedding` have one line for each of `rows`. Any thread."""
        with self._lock:
            self._succeed(rows, top, embedding)

    def _succeed(self, rows: list[int], top: TopK, embedding: NDArray[np.float32] | None) -> None:
        if self._class_idx is None or self._confidence is None:
            k = top.class_idx.shape[1]
            self._class_idx = np.zeros((self.num_rows, k), np.int32)
            self._confidence = np.zeros((self.num_rows, k), np.float32)
        self._class_idx[rows] = top.class_idx
        self._confidence[rows] = top.confidence
        if embedding is not None:
            if self._embedding is None:
                self._embedding = np.zeros((self.num_rows, embedding.shape[1]), np.float32)
            self._embedding[rows] = embedding
        self.pending -= len(rows)

    def error_of(self, row: int) -> RowError | None:
        """What a row has failed of; None for one that has not, or is not settled."""
        return self._errors.get(row)

    @property
    def error_counts(self) -> dict[str, int]:
        """Failed rows by code."""
        counts: dict[str, int] = {}
        for error in self._errors.values():
            counts[error.code] = counts.get(error.code, 0) + 1
        return counts

    def to_arrow(self, labels: Labels) -> Iterator[pa.RecordBatch]:
        """The settled rows, in input order: the key columns, then `RESULT_COLUMNS`, in slices of bounded size."""
        failed = np.zeros(self.num_rows, bool)
        failed[list(self._errors)] = True
        best = pa.nulls(self.num_rows, pa.int32())
        confidence = pa.nulls(self.num_rows, pa.float32())
        if self._class_idx is not None and self._confidence is not None:
            best = pa.array(self._class_idx[:, 0], mask=failed)
            confidence = pa.array(self._confidence[:, 0], mask=failed)
        error = [self._errors.get(row) for row in range(self.num_rows)]
        columns = {
            "predicted_class_idx": best,
            "label": labels.take(best),
            "confidence": confidence,
            "top_k": self._top_k_array(labels, failed),
            "embedding": _lists(self._embedding, failed),
            "error_stage": pa.array([e and str(e.stage) for e in error], pa.string()),
            "error_code": pa.array([e and str(e.code) for e in error], pa.string()),
            "error_message": pa.array([e and e.message for e in error], pa.string()),
        }
        names = [name for name, _ in self._keys] + [c.name for c in RESULT_COLUMNS]
        arrays = [array for _, array in self._keys] + [columns[c.name] for c in RESULT_COLUMNS]
        result = pa.RecordBatch.from_arrays(arrays, names=names)
        for start in range(0, self.num_rows, MAX_OUTPUT_ROWS):
            yield result.slice(start, MAX_OUTPUT_ROWS)

    def _top_k_array(self, labels: Labels, failed: NDArray[np.bool_]) -> pa.Array:
        if self._class_idx is None or self._confidence is None:
            return pa.nulls(self.num_rows, RESULT_TYPES["top_k"])
        class_idx = pa.array(self._class_idx.ravel())
        items = pa.StructArray.from_arrays(
            [class_idx, labels.take(class_idx), pa.array(self._confidence.ravel())], fields=list(_TOP_K_ITEM)
        )
        return _list_array(items, self._class_idx.shape, failed)


def _lists(values: NDArray[np.float32] | None, failed: NDArray[np.bool_]) -> pa.Array:
    """float32 [rows, width] as lists, null where failed."""
    if values is None:
        return pa.nulls(len(failed), RESULT_TYPES["embedding"])
    return _list_array(pa.array(values.ravel()), values.shape, failed)


def _list_array(items: pa.Array, shape: tuple[int, ...], failed: NDArray[np.bool_]) -> pa.Array:
    rows, width = shape
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, items, mask=pa.array(failed))
