"""The short forms of the fuzz runs: damaged images through the pure chain, wrong jobs up to where Spark would start."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.preprocess_spec import PreprocessSpec
from tests.chaos.fuzz_images import damaged
from tests.chaos.fuzz_specs import case, complaint, good_jobs, run_case, up_to_spark
from tests.chaos.image_mutations import MUTATIONS, mutated, seeds
from tests.chaos.spec_mutations import SPECIAL_FILES
from tests.executor.chain import fake_plan, run
from tests.images import noise

DECODING = {
    ErrorCode.EMPTY,
    ErrorCode.UNSUPPORTED_FORMAT,
    ErrorCode.TRUNCATED,
    ErrorCode.CORRUPT,
    ErrorCode.TOO_MANY_PIXELS,
    ErrorCode.PREPROCESS_FAILED,
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(3):
        noise((120, 90), seed=number).save(folder / f"{number}.png")
    return seeds(folder)


def test_damaged_images_each_give_one_row_in_order(tmp_path, originals):
    images = list(damaged(seed=1, rows=300, originals=originals))
    batches = [
        pa.RecordBatch.from_pylist([{"path": name, "content": data} for name, data in images[start : start + 64]])
        for start in range(0, len(images), 64)
    ]
    # A mutated header must not make the test itself large.
    plan = fake_plan(tmp_path, size=16, cores=2, preprocess=PreprocessSpec(max_pixels=1_000_000), labels=None)
    rows = run(plan, *batches)
    assert [row["path"] for row in rows] == [name for name, _ in images]
    assert {row["error_code"] for row in rows} <= DECODING | {None}
    for row in rows:
        assert (row["predicted_class_idx"] is None) == (row["error_code"] is not None)
        if row["path"].endswith(" kept"):
            assert row["error_code"] is None, row
    assert 0 < sum(row["error_code"] is None for row in rows) < len(rows)


def test_every_way_of_damage_does_something_and_is_reproducible(originals):
    for name, mutation in MUTATIONS.items():
        outcomes = {mutation(random.Random(turn), originals[turn].data, originals) for turn in range(20)}
        again = {mutation(random.Random(turn), originals[turn].data, originals) for turn in range(20)}
        assert outcomes == again
        untouched = {originals[turn].data for turn in range(20)}
        assert (outcomes == untouched) == (name == "kept"), name
    assert mutated(random.Random(3), originals) == mutated(random.Random(3), originals)


@pytest.fixture(scope="module")
def folder():
    with up_to_spark() as place:
        yield place


def test_good_jobs_are_taken(folder):
    import yaml

    for job in good_jobs(folder):
        outcome = run_case(yaml.safe_dump(job).encode(), [], folder)
        assert outcome.status == 0, outcome.text


@pytest.mark.parametrize("number", range(len(SPECIAL_FILES)))
def test_files_that_are_no_job(folder, number):
    outcome = run_case(SPECIAL_FILES[number], [], folder)
    assert complaint(outcome) is None, outcome.text[:2000]
    assert outcome.status == 2


def test_mutated_jobs_are_taken_or_refused_in_a_screen(folder):
    wrong = {}
    for number in range(120):
        outcome = run_case(*case(1, number, folder), folder)
        if (found := complaint(outcome)) is not None:
            wrong[number] = (found, outcome.text[:500])
    assert not wrong
