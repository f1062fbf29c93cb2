"""The benchmark's arithmetic and its report, on made-up figures. Runs no contestant and times nothing."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.agreement import check_outputs
from tests.benchmarks.contestants.job import OUTPUT_COLUMNS, Job, Mark, Recipe
from tests.benchmarks.figures import Spread, ratios, spread
from tests.benchmarks.report import Measured, markdown, table
from tests.benchmarks.roster import CONTESTANTS, OURS, REFERENCE
from tests.benchmarks.rounds import Outcome, Run, run_rounds

DAFT = next(c for c in CONTESTANTS if c.name == "daft")
PANDAS_UDF = next(c for c in CONTESTANTS if c.name == "spark-pandas-udf")


def job(output=""):
    recipe = Recipe(256, 224, "bilinear", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return Job("images", "parquet", "m.onnx", "m.pt", recipe, workers=2, batch_size=16, output=output)


def runs(*warm):
    return Outcome([Run(first=seconds + 6, warm=seconds, peak=1_500_000_000) for seconds in warm])


@pytest.fixture
def measured():
    return Measured(
        setting={"model": "m", "images": "100 JPEGs"},
        rows=100,
        contestants=CONTESTANTS,
        outcomes={c.name: Outcome(failed="exit status 1: no such thing") for c in CONTESTANTS}
        | {OURS: runs(1, 2, 4), "daft": runs(2, 2, 5), "spark-pandas-udf-published": runs(2, 4, 8)},
        agreements={},
        machine={"cores": "2"},
        versions={"daft": "1.0"},
        stages={"decode": 2.0, "inference": 8.0},
    )


def test_spread_is_median_and_range():
    assert spread([5.0, 1.0, 3.0]) == Spread(3.0, 1.0, 5.0)
    assert spread([4.0, 2.0]).median == 3.0
    assert Spread(12.34, 11.9, 13.0).text(1) == "12.3 (11.9 to 13.0)"


def test_ratios_are_formed_inside_each_round():
    # The medians' ratio would be 20 / 10 = 2.
    assert ratios([10, 20, 30], [10, 40, 5]) == Spread(1.0, 0.5, 6.0)


def test_ratios_use_the_rounds_that_both_finished():
    assert ratios([10, 20], [5]) == Spread(2.0, 2.0, 2.0)


def test_rates_are_images_per_second(measured):
    assert measured.rates(OURS, "warm") == [100.0, 50.0, 25.0]
    assert measured.rates(OURS, "first") == pytest.approx([100 / 7, 100 / 8, 100 / 10])


def test_ratio_to_a_peer_is_theirs_over_our_seconds(measured):
    # seconds: 2/1, 2/2, 5/4
    assert measured.against(DAFT, "warm") == pytest.approx(Spread(1.25, 1.0, 2.0))


def test_no_ratio_where_one_side_has_no_figures(measured):
    assert measured.against(next(c for c in CONTESTANTS if c.name == "ray-data"), "warm") is None


def test_report_has_figures_failures_and_goals(measured):
    text = markdown(measured, "chart.png")
    ours = ["sparkinfer", "50.0 (25.0 to 100.0)", "2.0 (1.0 to 4.0)", "8.0 (7.0 to 10.0)", "6.0", "1.50 (1.50 to 1.50)"]
    assert f"| {' | '.join(ours)} |" in text
    assert "| Ray Data | exit status 1: no such thing |" in text
    assert "| Daft | 1.25 (1.00 to 2.00) | 1.15 | yes |" in text
    assert "| stock Spark, iterator pandas UDF, as published | 2.00 (2.00 to 2.00) | 5 | no |" in text
    assert "| inference | 8.00 | 80 % |" in text
    assert "100.0 images/s a core" in text
    assert "![images per second and peak memory](chart.png)" in text


def test_table_escapes_the_column_mark():
    assert table(("a",), [("x|y",)]).splitlines() == ["| a |", "| --- |", "| x\\|y |"]


def write(folder, *rows):
    folder.mkdir(parents=True)
    columns = [list(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, names=list(OUTPUT_COLUMNS)), folder / "part.parquet")
    return folder


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([("a", 1, 0.5005), ("/x/b", 2, 0.25)], None),
        ([("a", 1, 0.5), ("b", 3, 0.25)], "another best class on 1 of 2 rows"),
        ([("a", 1, 0.5), ("b", None, None)], "another best class on 1 of 2 rows"),
        ([("a", 1, 0.502), ("b", 2, 0.25)], "confidence differs by 0.002"),
        ([("a", 1, float("nan")), ("b", 2, 0.25)], "confidence differs by inf"),
        ([("a", 1, 0.5)], "1 rows missing or double"),
        ([("a", 1, 0.5), ("b", 2, 0.25), ("b", 2, 0.25)], "1 rows missing or double"),
    ],
)
def test_outputs_are_compared_with_the_reference(tmp_path, rows, problem):
    right = write(tmp_path / "right", ("file:/y/a", 1, 0.5), ("b", 2, 0.25))
    found = check_outputs({"daft": [right, write(tmp_path / "other", *rows)], REFERENCE: [right]}, REFERENCE)
    assert found[REFERENCE].problem is None
    assert found["daft"].problem == problem


def test_job_survives_its_file(tmp_path):
    job().save(tmp_path / "job.json")
    assert Job.load(tmp_path / "job.json") == job()


def test_no_marks_without_a_finished_job(tmp_path):
    assert Mark.read(tmp_path / "marks.jsonl") == []


def test_a_contestant_that_fails_does_not_stop_the_others(tmp_path):
    program = (
        "import json, sys, pathlib\n"
        "output = pathlib.Path(json.loads(pathlib.Path(sys.argv[1]).read_text())['output'])\n"
        "marks = [{'job': n, 'started': 2.0 * n, 'ended': 2.0 * n + 1.5 + n % 2} for n in range(3)]\n"
        "(output / 'marks.jsonl').write_text(''.join(json.dumps(mark) + '\\n' for mark in marks))\n"
    )

    def command(contestant, file):
        import sys

        code = program if contestant is DAFT else "raise ValueError('no such luck')"
        return [sys.executable, "-c", code, str(file)]

    outcomes = run_rounds([PANDAS_UDF, DAFT], job(), rounds=2, seed=1, scratch=tmp_path, command=command)
    assert [run.warm for run in outcomes["daft"].runs] == [2.0, 2.0]
    assert outcomes["daft"].failed is None
    assert outcomes["spark-pandas-udf"].runs == []
    assert outcomes["spark-pandas-udf"].failed == "failed: exit status 1: ValueError: no such luck"
