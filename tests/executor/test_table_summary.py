"""Figures of a prediction table, added up in parts, against plain Python over all rows."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.executor.table_summary import (
    CONFIDENCE_BINS,
    FAILED_GROUPS,
    LEAST_CONFIDENT,
    SAMPLE,
    SUMMARY,
    TableSummary,
    summarised,
)

SCHEMA = pa.schema(
    {
        "path": pa.string(),
        "class_idx": pa.int32(),
        "label": pa.string(),
        "confidence": pa.float64(),
        "code": pa.string(),
        "stage": pa.string(),
        "message": pa.string(),
        "mark": pa.int64(),
    }
)

# 64ths are exact in binary: which bin one belongs to is no question of rounding.
CONFIDENCES = st.one_of(st.none(), st.just(math.nan), st.integers(-64, 128).map(lambda number: number / 64))


@st.composite
def tables(draw):
    """Rows with different paths; some failed."""
    rows = []
    for number in range(draw(st.integers(0, 80))):
        row = dict.fromkeys(SCHEMA.names) | {"path": f"p{number:02}", "mark": draw(st.integers(-(2**63), 2**63 - 1))}
        if draw(st.booleans()):
            row |= {"code": draw(st.sampled_from(["EMPTY", "CORRUPT"])), "stage": "read", "message": f"why {number}"}
        else:
            class_idx = draw(st.integers(0, 3))
            row |= {"class_idx": class_idx, "label": f"c{class_idx}", "confidence": draw(CONFIDENCES)}
        rows.append(row)
    return rows


def parts_of(rows, cuts):
    bounds = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(bounds)]


@given(tables(), st.lists(st.integers(0, 1000), max_size=4))
def test_parts_add_up(rows, cuts):
    found = TableSummary()
    for part in parts_of(rows, cuts):
        batches = pa.Table.from_pylist(part, SCHEMA).to_batches(max_chunksize=7)
        (answer,) = summarised(iter(batches))
        found.merge(pickle.loads(answer[SUMMARY][0].as_py()))
    good = [row for row in rows if row["code"] is None]
    known = [row["confidence"] for row in good if row["confidence"] is not None and 0 <= row["confidence"] <= 1]
    bins = Counter(min(int(value * CONFIDENCE_BINS), CONFIDENCE_BINS - 1) for value in known)
    assert found.confidence == [bins[number] for number in range(CONFIDENCE_BINS)]
    assert found.outside == len(good) - len(known)
    assert found.labels == Counter((row["class_idx"], row["label"]) for row in good)
    by_chance = sorted(good, key=lambda row: (row["mark"], row["path"]))[:SAMPLE]
    assert paths(found.sample) == [row["path"] for row in by_chance]
    # Numbers first, then NaN, then null.
    least = sorted(good, key=lambda row: (*place(row["confidence"]), row["path"]))[:LEAST_CONFIDENT]
    assert paths(found.least) == [row["path"] for row in least]
    groups = {}
    for row in rows:
        if row["code"] is not None:
            groups.setdefault((row["code"], row["mark"] % FAILED_GROUPS), []).append(row)
    assert found.failed == {
        key: (len(group), {name: group[0][name] for name in ("path", "stage", "message")})
        for key, group in groups.items()
    }


def test_a_failed_row_without_a_path_gives_way_to_one_with():
    rows = [
        dict.fromkeys(SCHEMA.names) | {"path": path, "code": "EMPTY", "stage": stage, "mark": 6}
        for path, stage in ((None, "a"), ("x", None))
    ]
    found = TableSummary()
    for row in rows:
        found.add(pa.Table.from_pylist([row], SCHEMA))
    assert found.failed == {("EMPTY", 0): (2, {"path": "x", "stage": None, "message": None})}
    whole = TableSummary()
    whole.add(pa.Table.from_pylist(rows, SCHEMA))
    assert whole.failed == found.failed


def paths(table):
    return [] if table is None else table["path"].to_pylist()


def place(confidence):
    if confidence is None:
        return 2, 0.0
    return (1, 0.0) if math.isnan(confidence) else (0, confidence)
