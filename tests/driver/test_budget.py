"""When a job has too many errors, while it runs and after it: plain arithmetic, no Spark."""

from __future__ import annotations

import pickle

import pytest

from sparkinfer.core.errors import BudgetExceededError
from sparkinfer.core.spec import ErrorsSpec
from sparkinfer.driver.budget import HOPELESS, MIN_ROWS, MIN_ROWS_OF_UNKNOWN, MIN_SHARE, Budget, _Watch
from sparkinfer.executor.report import Tally, TallyParam


def budget(**block):
    return Budget(ErrorsSpec.model_validate(block))


@pytest.mark.parametrize(
    ("block", "failed", "rows", "key"),
    [
        ({}, 50, 100, None),
        ({}, 51, 100, "errors.max_fraction"),
        ({"max_fraction": 0.29}, 29, 100, None),  # 0.29 * 100 is 28.999999999999996
        ({"max_fraction": 0.29}, 30, 100, "errors.max_fraction"),
        ({"max_fraction": 0}, 0, 100, None),
        ({"max_fraction": 0}, 1, 10**9, "errors.max_fraction"),
        ({"max_fraction": 0}, 0, 0, None),
        ({"max_fraction": 1}, 100, 100, None),
        ({"max_fraction": 1, "max_rows": 99}, 100, 100, "errors.max_rows"),
        ({"max_fraction": 1, "max_rows": 100}, 100, 100, None),
        ({"max_rows": 0}, 1, 100, "errors.max_rows"),
    ],
)
def test_the_exact_counts_decide(block, failed, rows, key):
    errors = {"EMPTY": failed} if failed else {}
    if key is None:
        budget(**block).check(rows, errors, {}, "out")
        return
    with pytest.raises(BudgetExceededError) as caught:
        budget(**block).check(rows, errors, {}, "out")
    assert caught.value.key == key
    assert caught.value.exit_status == 3


def test_the_message_has_the_five_most_frequent_codes_with_a_path_each():
    errors = {"EMPTY": 1, "CORRUPT": 2_000, "TIMEOUT": 3, "TRUNCATED": 40, "TOO_LARGE": 5, "READ_FAILED": 60}
    samples = {code: f"s3://b/{code}.jpg" for code in errors}
    with pytest.raises(BudgetExceededError) as caught:
        budget(max_rows=7).check(3_000, errors, samples, "out/predictions")
    lines = caught.value.render().splitlines()
    assert lines[0] == "errors.max_rows: 2,109 of 3,000 rows failed, allowed are 7"
    assert [line.strip() for line in lines[1:-1]] == [
        "2,000 x CORRUPT, for example s3://b/CORRUPT.jpg",
        "60 x READ_FAILED, for example s3://b/READ_FAILED.jpg",
        "40 x TRUNCATED, for example s3://b/TRUNCATED.jpg",
        "5 x TOO_LARGE, for example s3://b/TOO_LARGE.jpg",
        "3 x TIMEOUT, for example s3://b/TIMEOUT.jpg",
    ]
    assert "'out/predictions'" in lines[-1]


def seen(rows, failed):
    return Tally(rows, {"EMPTY": failed} if failed else {})


@pytest.mark.parametrize(
    ("block", "tally", "rows", "share_of_tasks"),
    [
        ({}, seen(0, 0), 10_000, 0.0),
        ({}, seen(64, 64), 10_000, 0.1),  # the first batches are bad
        ({}, seen(64, 64), None, 1.0),
        ({}, seen(MIN_ROWS, MIN_ROWS), 10**9, 0.0),  # a bad folder out of many
        ({}, seen(MIN_ROWS, MIN_ROWS), None, MIN_SHARE / 2),
        ({"max_rows": 0}, seen(MIN_ROWS - 1, 1), None, None),  # a small job ends by itself
        ({"max_fraction": 0.01}, seen(9_000, 9_000), 10_000, 0.1),  # nearly done
        ({"max_rows": 0}, seen(9_000, 9_000), None, 0.9),
        ({}, seen(MIN_ROWS_OF_UNKNOWN - 1, MIN_ROWS_OF_UNKNOWN - 1), None, None),
        ({}, seen(2_000, 1_960), 10_000, 0.2),  # 98 % bad: the rest may be good
        ({"max_fraction": 0.995}, seen(2_000, 1_985), 10_000, 0.2),  # 99.25 % bad are allowed
        ({"max_rows": 100}, seen(2_000, 100), 10_000, 0.1),
        ({"max_fraction": 0.01}, seen(1_000, 100), 10_000, 0.5),
        ({"max_fraction": 0.01}, seen(9_000, 4_500), None, 0.5),  # nothing is known of the rest
    ],
)
def test_what_may_still_end_well_goes_on(block, tally, rows, share_of_tasks):
    assert budget(**block).hopeless(tally, rows, share_of_tasks) is None


@pytest.mark.parametrize(
    ("block", "tally", "rows", "share_of_tasks", "key"),
    [
        # proofs
        ({"max_rows": 100}, seen(2_000, 101), None, None, "errors.max_rows"),
        ({"max_fraction": 0.01}, seen(1_000, 101), 10_000, 0.01, "errors.max_fraction"),
        ({}, seen(5_001, 5_001), 10_000, 0.5, "errors.max_fraction"),
        # next to none succeeded, and enough was seen
        ({}, seen(MIN_ROWS, MIN_ROWS), 20_000, 0.0, "errors.max_fraction"),
        ({}, seen(MIN_ROWS, MIN_ROWS), None, MIN_SHARE, "errors.max_fraction"),
        ({}, seen(10_000, 9_950), None, 0.5, "errors.max_fraction"),
        ({}, seen(MIN_ROWS_OF_UNKNOWN, MIN_ROWS_OF_UNKNOWN), None, None, "errors.max_fraction"),
    ],
)
def test_what_is_hopeless_is_stopped(block, tally, rows, share_of_tasks, key):
    assert budget(**block).hopeless(tally, rows, share_of_tasks) == key


def test_the_figures_of_these_tests_hold():
    assert (MIN_ROWS, MIN_SHARE, MIN_ROWS_OF_UNKNOWN, HOPELESS) == (1_000, 0.05, 10_000, 0.99)


def test_news_of_tasks_are_judged_as_they_come():
    judged: list[int] = []

    def judge(tally):
        judged.append(tally.rows)
        return "errors.max_rows" if tally.failed > 3 else None

    watch = _Watch(judge)
    total = watch.addInPlace(Tally(), Tally(2, {"EMPTY": 2}, {"EMPTY": "a"}, {0: 10}))
    assert watch.key is None
    total = watch.addInPlace(total, Tally(4, {"EMPTY": 2}, {"EMPTY": "b"}, {1: 11}))
    assert watch.key == "errors.max_rows"
    watch.addInPlace(total, Tally(4, {}, {}, {2: 12}))
    assert judged == [2, 6]
    # What it was judged by stays, whatever comes later.
    assert watch.seen == Tally(6, {"EMPTY": 4}, {"EMPTY": "a"}, {0: 10, 1: 11})


def test_executors_get_nothing_to_judge_with():
    assert type(pickle.loads(pickle.dumps(_Watch(lambda _: None)))) is TallyParam
