"""The whole chain on the fake runtime: every row comes out once, in order, and failures stay where they belong."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkinfer.core.errors import DeviceError, ErrorCode, JobFailedError, ModelError
from sparkinfer.core.model_spec import Artifact, ModelSpec, PostprocessSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor import batching
from sparkinfer.executor.batching import BatchFactory, ModelBatch
from sparkinfer.executor.task import run_task
from tests.executor import deadly
from tests.executor.chain import RAW, batch, calls, fake_plan, png_of, run
from tests.images import bad_inputs

RED, GREEN, BLUE = png_of(200, 10, 20), png_of(20, 210, 10), png_of(10, 20, 220)


def test_predictions_are_the_fake_models_arithmetic(tmp_path: Path) -> None:
    rows = run(fake_plan(tmp_path), batch(RED, GREEN, BLUE))
    assert [r["label"] for r in rows] == ["red", "green", "blue"]
    assert [r["confidence"] for r in rows] == [200, 210, 220]
    assert rows[0]["top_k"] == [
        {"class_idx": 0, "label": "red", "confidence": 200.0},
        {"class_idx": 2, "label": "blue", "confidence": 20.0},
    ]
    assert all(r["error_code"] is None and r["embedding"] is None for r in rows)


def test_embedding_when_asked_for(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, postprocess=PostprocessSpec(activation="none", embedding="channel_means", check=False))
    assert run(plan, batch(RED))[0]["embedding"] == [200.0, 10.0, 20.0]


@pytest.mark.parametrize("cores", [1, 3])
def test_an_error_that_spark_could_not_send_is_told_in_escapes(tmp_path: Path, cores: int) -> None:
    deadly_plan = fake_plan(
        tmp_path, cores=cores, preprocess=RAW.model_copy(update={"decoder": "tests.executor.deadly:decode"})
    )
    with pytest.raises(JobFailedError, match=r"BaseException: \\ud800") as told:
        run(deadly_plan, batch(RED, deadly.UNSAYABLE))
    assert "".join(traceback.format_exception(told.value)).encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=6),
    bad=st.sets(st.integers(0, 40)),
    size=st.integers(1, 7),
    cores=st.sampled_from([1, 3]),
)
def test_every_row_comes_out_once_and_in_order(
    tmp_path: Path, sizes: list[int], bad: set[int], size: int, cores: int
) -> None:
    colours = [(50 + i, 0, 0) for i in range(sum(sizes))]
    contents = [b"not an image" if i in bad else png_of(*c) for i, c in enumerate(colours)]
    batches, first = [], 0
    for n in sizes:
        batches.append(batch(*contents[first : first + n], first=first))
        first += n
    rows = run(fake_plan(tmp_path, size=size, cores=cores), *batches)
    assert [r["path"] for r in rows] == [f"p{i}" for i in range(len(contents))]
    for i, row in enumerate(rows):
        assert row["confidence"] == (None if i in bad else 50 + i)
        assert (row["error_code"] is not None) == (i in bad)


@pytest.mark.parametrize(("count", "size", "expected"), [(0, 4, []), (1, 4, [1]), (4, 4, [4]), (9, 4, [4, 4, 1])])
def test_batches_cross_the_borders_of_arrow_batches(tmp_path: Path, count: int, size: int, expected: list[int]) -> None:
    run(fake_plan(tmp_path, size=size), *(batch(RED, first=i) for i in range(count)))
    assert calls(tmp_path, "infer") == expected
    assert len(calls(tmp_path, "load")) == (1 if count else 0)


@pytest.mark.parametrize("options", [{}, {"size_matters": True}, {"size_matters": True, "size": 64}])
def test_bad_rows_do_not_change_their_neighbours(tmp_path: Path, options: dict[str, Any]) -> None:
    good = [png_of(i * 20, 255 - i * 20, 7) for i in range(12)]
    bad = bad_inputs()
    alone = run(fake_plan(tmp_path, **options), batch(*good))
    mixed: list[bytes | None] = []
    for i, image in enumerate(good):
        mixed += [image, *(content for content, _ in list(bad.values())[i::12])]
    together = run(fake_plan(tmp_path, **options), batch(*mixed))
    keep = ("predicted_class_idx", "label", "confidence", "top_k")
    assert [{k: r[k] for k in keep} for r in together if not r["error_code"]] == [
        {k: r[k] for k in keep} for r in alone
    ]


def test_every_kind_of_bad_input_gets_its_code(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, preprocess=PreprocessSpec(resize=8, crop=8, max_pixels=10_000_000))
    bad = bad_inputs()
    rows = run(plan, batch(*(content for content, _ in bad.values())))
    assert {name: r["error_code"] for name, r in zip(bad, rows, strict=True)} == {
        name: code.value for name, (_, code) in bad.items()
    }
    assert all(r["predicted_class_idx"] is None and r["error_message"] for r in rows)


def test_null_empty_and_too_long_contents(tmp_path: Path) -> None:
    rows = run(fake_plan(tmp_path, max_image_bytes=len(RED)), batch(None, b"", RED, RED + b"x"))
    assert [r["error_code"] for r in rows] == ["NULL_CONTENT", "EMPTY", None, "TOO_LARGE"]


def test_out_of_memory_halves_the_batch_and_remembers(tmp_path: Path) -> None:
    rows = run(fake_plan(tmp_path, size=8, memory_limit_images=3), batch(*[RED] * 20))
    assert [r["label"] for r in rows] == ["red"] * 20
    assert calls(tmp_path, "infer") == [8, 4, 2, 2, 4, 2, 2, 2, 2, 2, 2, 2, 2]


def test_the_next_task_of_the_process_remembers_the_batch_size(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, size=8, memory_limit_images=3)
    run(plan, batch(*[RED] * 20))
    before = len(calls(tmp_path, "infer"))
    run(plan, batch(*[RED] * 24))
    assert calls(tmp_path, "infer")[before:] == [2] * 12


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_whose_padding_does_not_fit_is_halved(tmp_path: Path, rows: int) -> None:
    plan = fake_plan(tmp_path, size=8, size_matters=True, memory_limit_images=4)
    assert [r["confidence"] for r in run(plan, batch(*[RED] * rows))] == [200 + 4 / 1024] * rows
    assert calls(tmp_path, "infer") == [8, 4]
    run(plan, batch(RED))
    assert calls(tmp_path, "infer") == [8, 4, 4]


def test_padding_that_does_not_fit_at_any_size_is_coded_rows(tmp_path: Path) -> None:
    rows = run(fake_plan(tmp_path, size=8, size_matters=True, memory_limit_images=0), batch(RED, GREEN))
    assert [r["error_code"] for r in rows] == ["OUT_OF_MEMORY"] * 2
    assert calls(tmp_path, "infer") == [8, 4, 2, 1, 1]


def test_batches_that_were_reserved_before_the_size_sank_run_in_the_new_size(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, size=8, size_matters=True, memory_limit_images=4, cores=3)
    assert [r["confidence"] for r in run(plan, batch(*[RED] * 24))] == [200 + 4 / 1024] * 24
    assert calls(tmp_path, "infer") == [8, *[4] * 6]


def test_a_large_batch_size_costs_a_small_partition_little_padding(tmp_path: Path) -> None:
    run(fake_plan(tmp_path, size=128, size_matters=True), batch(*[RED] * 20))
    assert calls(tmp_path, "infer") == [8, 8, 8]


def test_a_batch_size_far_beyond_the_rows_and_the_memory(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, size=65_536, preprocess=PreprocessSpec(), memory_limit_images=5)
    assert [r["error_code"] for r in run(plan, batch(*[RED] * 10))] == [None] * 10
    assert calls(tmp_path, "infer") == [10, 5, 5]


@pytest.mark.parametrize("cores", [1, 3])
def test_no_memory_for_a_batchs_inputs_halves_the_batch_and_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    tried = []
    new = BatchFactory.new

    def limited(self: BatchFactory, capacity: int) -> ModelBatch:
        tried.append(capacity)
        if capacity > 5:
            raise MemoryError
        return new(self, capacity)

    monkeypatch.setattr(BatchFactory, "new", limited)
    plan = fake_plan(tmp_path, size=32, cores=cores)
    assert [r["label"] for r in run(plan, batch(*[RED] * 10))] == ["red"] * 10
    assert [r["label"] for r in run(plan, batch(*[RED] * 3))] == ["red"] * 3
    assert tried == [32, 16, 8, 4, 4, 4, 4]
    assert calls(tmp_path, "infer") == [4, 4, 2, 3]


def test_no_memory_for_one_image_is_a_coded_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Numpy:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def empty(self, *_: Any) -> None:
            raise MemoryError

    monkeypatch.setattr(batching, "np", Numpy())
    rows = run(fake_plan(tmp_path, size=4), batch(RED, GREEN))
    assert [r["error_code"] for r in rows] == ["OUT_OF_MEMORY"] * 2


def test_out_of_memory_with_one_image_is_a_coded_row(tmp_path: Path) -> None:
    rows = run(fake_plan(tmp_path, size=2, memory_limit_images=0), batch(RED, GREEN))
    assert [(r["error_code"], r["error_stage"]) for r in rows] == [("OUT_OF_MEMORY", "infer")] * 2


def test_a_row_that_fails_the_model_fails_alone(tmp_path: Path) -> None:
    poison = png_of(90, 90, 90)
    rows = run(fake_plan(tmp_path, size=4, fail_on=[90.0]), batch(RED, poison, GREEN, BLUE))
    assert [r["error_code"] for r in rows] == [None, "MODEL_FAILED", None, None]
    assert [r["label"] for r in rows] == ["red", None, "green", "blue"]


def test_a_row_with_nan_scores_fails_alone(tmp_path: Path) -> None:
    rows = run(fake_plan(tmp_path, size=4, nan_on=[90.0]), batch(RED, png_of(90, 90, 90), GREEN))
    assert [r["error_code"] for r in rows] == [None, ErrorCode.NON_FINITE_OUTPUT, None]


def test_images_of_other_shapes_go_in_other_batches(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, preprocess=RAW.model_copy(update={"crop": None}))
    wide = png_of(200, 10, 20, size=(16, 8))
    rows = run(plan, batch(RED, RED, wide, wide, RED))
    assert [r["label"] for r in rows] == ["red"] * 5
    assert calls(tmp_path, "infer") == [2, 2, 1]


def test_one_load_for_many_tasks(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    for _ in range(3):
        run(plan, batch(RED))
    assert len(calls(tmp_path, "load")) == 1


def test_an_empty_partition_or_one_of_bad_rows_loads_no_model(tmp_path: Path) -> None:
    assert run(fake_plan(tmp_path)) == []
    assert [r["error_code"] for r in run(fake_plan(tmp_path), batch(b"", None))] == ["EMPTY", "NULL_CONTENT"]
    assert calls(tmp_path, "load") == []


def test_other_bytes_than_the_drivers_end_the_task(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, artifact=Artifact(digest="0" * 64, size=5, suffix=".fake"))
    with pytest.raises(ModelError):
        run(plan, batch(RED))


def test_a_missing_device_ends_the_task_and_no_row_hides_it(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, model=ModelSpec(path="m.fake", format="fake", device="cuda"))
    with pytest.raises(DeviceError):
        run(plan, batch(RED))


def test_keys_of_any_type_pass_through(tmp_path: Path) -> None:
    keys = pa.record_batch(
        {
            "path": pa.array(["a", None]),
            "tags": pa.array([["x"], None], pa.list_(pa.string())),
            "at": pa.array([1, None], pa.timestamp("us", tz="UTC")),
            "content": pa.array([RED, b""], pa.binary()),
        }
    )
    (out,) = run_task([keys], fake_plan(tmp_path, keys=("at", "tags", "path")))
    assert out.column("tags").to_pylist() == [["x"], None]
    assert out.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert out.schema.names[:3] == ["at", "tags", "path"]


def test_with_decoder_threads_the_predictions_are_the_same(tmp_path: Path) -> None:
    images = [png_of(i * 7, 255 - i * 7, 3) for i in range(30)] + [b"bad", None]
    one, many = (run(fake_plan(tmp_path, cores=cores), batch(*images)) for cores in (1, 4))
    assert one == many


def test_a_reader_that_stops_early_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    outputs = run_task((batch(RED, first=i) for i in range(1000)), fake_plan(tmp_path, size=1, cores=2))
    next(outputs)
    outputs.close()  # type: ignore[attr-defined]
    assert [t for t in threading.enumerate() if t.name.startswith("sparkinfer-model")] == []
    for thread in threading.enumerate():
        if thread.name.startswith("sparkinfer-decode"):
            thread.join()
    assert threading.active_count() <= before


def test_a_missing_model_ends_the_task_with_decoder_threads_too(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path, artifact=Artifact(digest="0" * 64, size=5, suffix=".fake"), cores=2)
    with pytest.raises(ModelError):
        run(plan, batch(*[RED] * 50))
