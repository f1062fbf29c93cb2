"""What tasks tell while a job runs: the chain's own results, counted; no JVM."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.accumulators import Accumulator, _accumulatorRegistry

from sparkinfer.executor import engines
from sparkinfer.executor.report import Tally, TallyParam
from tests.executor.chain import batch, fake_plan, png_of

RED = png_of(200, 10, 20)
ID = 1 << 40
"""Of an accumulator that no session of other tests has."""


@pytest.fixture
def counts():
    """Spark's accumulator as a task of a Python worker has it."""
    yield Accumulator(ID, Tally(), TallyParam())
    del _accumulatorRegistry[ID]


def test_the_arrow_engine_counts_rows_codes_and_samples(tmp_path, counts):
    plan = fake_plan(tmp_path, counts=counts)
    batches = [batch(RED, b"", None, b""), batch(RED, RED, first=4), batch(b"text", first=6)]
    out = list(engines.run_arrow(plan, iter(batches)))
    assert sum(b.num_rows for b in out) == 7
    assert counts.value == Tally(
        7,
        {"EMPTY": 2, "NULL_CONTENT": 1, "UNSUPPORTED_FORMAT": 1},
        {"EMPTY": "p1", "NULL_CONTENT": "p2", "UNSUPPORTED_FORMAT": "p6"},
        {0: 0},
    )


def test_the_other_engines_count_the_same(tmp_path, counts):
    plan = fake_plan(tmp_path, counts=counts)
    frame = pa.Table.from_batches([batch(RED, b"", None)]).to_pandas()
    assert [len(f) for f in engines.run_pandas(plan, iter([frame]))] == [3]
    engines.make_predict_fn(plan)(np.array([RED, b"", None], object))
    assert (counts.value.rows, counts.value.errors) == (6, {"EMPTY": 2, "NULL_CONTENT": 2})


def test_a_function_that_outlives_its_task_counts_for_the_next(tmp_path, counts):
    """`predict_batch_udf` unpickles a plan for each task and keeps the first one's function."""
    first = pickle.loads(pickle.dumps(counts))
    predict = engines.make_predict_fn(fake_plan(tmp_path, counts=first))
    predict(np.array([RED], object))
    del _accumulatorRegistry[ID]  # as the worker does before a task
    second = pickle.loads(pickle.dumps(counts))
    predict(np.array([RED, b""], object))
    assert second is not first
    assert second._value.rows == 2


def test_a_task_without_rows_has_ended_too(tmp_path, counts):
    assert list(engines.run_arrow(fake_plan(tmp_path, counts=counts), iter([]))) == []
    assert counts.value == Tally(attempts={0: 0})


def test_nobody_listens(tmp_path):
    plan = fake_plan(tmp_path)
    assert [b.num_rows for b in engines.run_arrow(plan, iter([batch(RED)]))] == [1]
    assert replace(plan).counts is None


def test_one_attempt_at_a_task_counts():
    total = Tally()
    total.add(Tally(5, {"EMPTY": 5}, {"EMPTY": "a"}, {3: 100}))
    total.add(Tally(5, {"EMPTY": 5}, {"EMPTY": "b"}, {3: 101}))  # the same partition, tried again
    total.add(Tally(2, {"EMPTY": 1}, {"EMPTY": "c"}, {3: 100}))  # more of the attempt that counts
    total.add(Tally(7, {"TIMEOUT": 1}, {"TIMEOUT": "d"}, {4: 102}))
    assert total == Tally(14, {"EMPTY": 6, "TIMEOUT": 1}, {"EMPTY": "a", "TIMEOUT": "d"}, {3: 100, 4: 102})
    assert total.failed == 7
