"""The short form of the kill campaign, and what its comparison sees."""

from __future__ import annotations

import os
import random

import pytest

from sparkinfer.core.errors import SparkInferError
from sparkinfer.driver.session import find_java
from tests.chaos.kill_job import Difference, compare
from tests.chaos.kill_run import KINDS, plan_kills
from tests.chaos.kills import PROPERTIES, Campaign, table
from tests.chaos.standalone import Cluster
from tests.images import noise

KILLS = 10
SEED = 4


def test_the_comparison_counts_lost_doubled_and_different_rows():
    undisturbed = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert compare(list(reversed(undisturbed)), undisturbed) == Difference(0, 0, 0)
    assert compare([("a", 1), ("b", 2), ("b", 2), ("c", 9), ("e", 5)], undisturbed) == Difference(1, 1, 2)


def test_a_seed_plans_the_same_kills():
    assert plan_kills(random.Random(1), tuple(KINDS), 50) == plan_kills(random.Random(1), tuple(KINDS), 50)
    assert {kill.kind for kill in plan_kills(random.Random(1), tuple(KINDS), 200)} == set(KINDS)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(1200)  # took 260 s on two cores that others kept busy
def test_no_row_is_lost_doubled_or_different_after_ten_kills(tmp_path):
    try:
        find_java()
    except SparkInferError as error:
        if os.environ.get("CI"):
            pytest.fail(error.render())
        pytest.skip(error.render())
    originals = [noise((200, 150), seed=number) for number in range(3)]
    with Cluster(tmp_path / "cluster", PROPERTIES) as cluster:
        campaign = Campaign(cluster, tmp_path / "jobs", originals, rows=160, snapshot=40, latency=0.15, say=print)
        made = number = 0
        # Two runs, of which one speculates, unless one ends early.
        while made < KILLS and all(result.is_right for result in campaign.results):
            made += len(campaign.round(number, f"{SEED}-{number}", tuple(KINDS), min(5, KILLS - made)).strikes)
            number += 1
    print(table(campaign.results, 40))
    assert [result for result in campaign.results if not result.is_right] == []
    assert not cluster.all_processes()
