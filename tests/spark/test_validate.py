"""`sparkinfer validate`: ten images here and on the cluster, on good and on broken models."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sparkinfer.core.errors import ModelError, SinkError, SpecError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver import validate as module
from sparkinfer.driver.validate import validate, validate_command
from tests.executor.chain import RAW, png_of
from tests.spark.models import fake_model_file

pytestmark = pytest.mark.spark


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.png").write_bytes(png_of(20 * number, 100, 5))
    return folder


def spec(tmp_path, photos, *, activation="softmax", keys=(), **model):
    return JobSpec.model_validate(
        {
            "source": {"images": str(photos)},
            "model": {"path": str(fake_model_file(tmp_path, **model))},
            # scores of 0 to 2.55: their softmax is not flat
            "preprocess": {**RAW.model_dump(exclude={"preset"}), "rescale": 0.01},
            "postprocess": {"activation": activation},
            "sink": {"path": str(tmp_path / "out")},
            **dict(keys),
        }
    )


def states(checks):
    return {check.name: check.state for check in checks}


def detail(checks, name):
    return next(check.detail for check in checks if check.name == name)


def test_a_good_model_passes_and_nothing_is_written(spark, tmp_path, photos):
    checks = validate(spec(tmp_path, photos))
    assert states(checks) == dict.fromkeys(["job file", "model", "images", "answers", "variety", "cluster"], "ok")
    assert detail(checks, "images") == "10 of 10 predicted"
    assert detail(checks, "answers").startswith("[10, 3], from ")
    assert detail(checks, "variety") == "10 different answers: green 5, red 5"  # red is 20 times 0 to 9, green 100
    assert detail(checks, "cluster").startswith("10 rows, ")
    assert not (tmp_path / "out").exists()


def test_a_model_that_ignores_its_input_is_wrong(spark, tmp_path, photos):
    checks = validate(spec(tmp_path, photos, blind=True))
    assert states(checks)["answers"] == "wrong"
    assert "same answer for 10 different images" in detail(checks, "answers")


def test_scores_that_are_no_probabilities_are_wrong(spark, tmp_path, photos):
    checks = validate(spec(tmp_path, photos, activation="none"))
    assert states(checks)["answers"] == "wrong"
    assert "no probabilities" in detail(checks, "answers")


def test_softmax_of_probabilities_is_told(spark, tmp_path, photos):
    given = spec(tmp_path, photos)
    given = given.model_copy(update={"preprocess": given.preprocess.model_copy(update={"rescale": 1 / 255})})
    checks = validate(given)  # scores of 0 to 1
    assert states(checks)["answers"] == "look"
    assert "nearly flat" in detail(checks, "answers")


def test_a_bad_image_is_told_and_the_others_count(spark, tmp_path, photos):
    (photos / "00.png").write_bytes(b"")
    (photos / "01.png").write_bytes(b"no image")
    checks = validate(spec(tmp_path, photos))
    assert states(checks)["images"] == "look"
    assert "UNSUPPORTED_FORMAT" in detail(checks, "images")
    assert states(checks)["cluster"] == "ok"


def test_errors_of_a_kind_are_told_once(spark, tmp_path, photos):
    for number in range(4):
        (photos / f"0{number}.png").write_bytes(b"no image")
    (photos / "04.png").write_bytes(b"")
    told = detail(validate(spec(tmp_path, photos)), "images")
    assert told.startswith("5 of 10 predicted; 4 UNSUPPORTED_FORMAT, for example file:")
    assert told.count("UNSUPPORTED_FORMAT") == 1
    assert told.count("; 1 EMPTY, for example file:") == 1


def test_only_bad_images_are_wrong(spark, tmp_path, photos):
    for path in photos.iterdir():
        path.write_bytes(b"no image")
    checks = validate(spec(tmp_path, photos))
    assert states(checks)["images"] == "wrong"
    assert "answers" not in states(checks)


def test_what_the_executors_lack_is_one_message(spark, tmp_path, photos, monkeypatch):
    """On a cluster, whose machines the driver cannot ask."""
    given = spec(tmp_path, photos)
    name = "tests.executor.own_decoder:missing"
    lacking = given.model_copy(update={"preprocess": given.preprocess.model_copy(update={"decoder": name})})
    monkeypatch.setattr("sparkinfer.driver.model.decoder_of", lambda _spec: None)
    with pytest.raises(SpecError, match=name) as caught:
        validate(lacking)
    assert (caught.value.key, "executors" in caught.value.hint) == ("preprocess.decoder", True)


def test_executors_that_answer_something_else_are_told(spark, tmp_path, photos, monkeypatch):
    real = module._alone

    def other(batch, plan):
        rows = real(batch, plan)
        rows[3]["confidence"] += 0.5
        return rows

    monkeypatch.setattr(module, "_alone", other)
    checks = validate(spec(tmp_path, photos))
    assert states(checks)["cluster"] == "wrong"


def test_the_command_ends_with_what_is_wrong(spark, tmp_path, photos):
    out = io.StringIO()
    with pytest.raises(ModelError, match="not ready to run: answers"):
        validate_command(spec(tmp_path, photos, blind=True), Console(file=out, width=120))
    assert "WRONG" in out.getvalue()


def test_an_output_that_is_there_is_told_before_anything(spark, tmp_path, photos):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part.parquet").write_bytes(b"x")
    with pytest.raises(SinkError, match="is already there"):
        validate(spec(tmp_path, photos))
