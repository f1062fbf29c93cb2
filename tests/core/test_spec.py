"""The spec: what it accepts, what it refuses, and that it survives a round trip."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sparkinfer.core.preprocess_spec import PRESETS, PreprocessSpec
from sparkinfer.core.spec import JobSpec, SinkSpec, SourceSpec

SMALLEST = {"source": {"images": "photos"}, "model": {"path": "m.onnx"}, "sink": {"path": "out"}}

sides = st.one_of(st.none(), st.integers(1, 2000), st.tuples(st.integers(1, 2000), st.integers(1, 2000)))
blocks = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from(sorted(PRESETS)),
        "resize": sides,
        "crop": sides,
        "interpolation": st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
        "layout": st.sampled_from(["nchw", "nhwc"]),
        "dtype": st.sampled_from(["float32", "float16", "uint8"]),
        "exif": st.booleans(),
        "mean": st.tuples(*[st.floats(-1, 1)] * 3),
        "max_pixels": st.integers(1, 10**9),
    },
)


@given(block=blocks)
def test_specs_survive_json_and_pickle(block: dict[str, object]) -> None:
    spec = JobSpec.model_validate({**SMALLEST, "preprocess": block})
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_presets_name_is_its_block() -> None:
    assert PreprocessSpec.model_validate("imagenet-inception").batch_shape(2) == (2, 3, 299, 299)
    assert PreprocessSpec.model_validate("imagenet").batch_shape(None) == (None, 3, 224, 224)


def test_keys_of_a_block_win_over_its_preset() -> None:
    spec = PreprocessSpec.model_validate({"preset": "imagenet-inception", "crop": 75})
    assert (spec.resize, spec.crop, spec.mean) == (342, 75, (0.5, 0.5, 0.5))


def test_a_weights_enum_takes_the_recipe_and_keeps_own_keys() -> None:
    spec = PreprocessSpec.model_validate({"preset": "ResNet50_Weights.IMAGENET1K_V2", "layout": "nhwc"})
    assert spec.is_weights_enum
    resolved = spec.resolved({"resize": 232, "crop": 224})
    assert not resolved.is_weights_enum
    assert (resolved.resize, resolved.layout) == (232, "nhwc")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"sourse": {}}, "sourse"),
        ({"source": {"images": "a", "parquet": "b"}}, "source"),
        ({"source": {}}, "source"),
        ({"source": {"images": "a", "limit": 0}}, "limit"),
        ({"source": {"images": "a", "sample": 1.5}}, "sample"),
        ({"sink": {"path": "a", "table": "b"}}, "sink"),
        ({"sink": {"path": "a", "mode": "replace"}}, "mode"),
        ({"batch": {"size": 0}}, "batch"),
        ({"batch": {"size": "big"}}, "batch"),
        ({"model": {"path": "m", "device": "tpu"}}, "device"),
        ({"preprocess": "imagenett"}, "preprocess"),
        ({"preprocess": {"channels": "grey"}}, "mean"),
        ({"preprocess": {"std": [1, 0, 1]}}, "std"),
        ({"errors": {"max_fraction": 2}}, "max_fraction"),
        ({"metrics": {}}, "metrics"),
        ({"metrics": {"port": 65_536}}, "port"),
        ({"metrics": {"port": -1}}, "port"),
        ({"metrics": {"port": 0, "adress": "127.0.0.1"}}, "adress"),
        ({"progress": {"every": "2 d"}}, "every"),
        ({"progress": {"every": 1e12}}, "every"),
        ({"metrics": {"push": "gateway:9091"}}, "push"),
        ({"metrics": {"push": "http://[::1"}}, "push"),
        ({"metrics": {"push": "http://gateway:port"}}, "push"),
        ({"metrics": {"push": "http:///metrics"}}, "push"),
        ({"metrics": {"push": "http://user:word@gateway:9091"}}, "push"),
        ({"metrics": {"push": "http://gateway:9091", "address": "127.0.0.1"}}, "address"),
    ],
)
def test_wrong_values_are_refused(change: dict[str, object], where: str) -> None:
    with pytest.raises(ValidationError, match=where):
        JobSpec.model_validate({**SMALLEST, **change})


def test_kind_and_target_say_what_was_given() -> None:
    assert SourceSpec(parquet=("a", "b")).kind == "parquet"
    assert SourceSpec(parquet=("a", "b")).locations == ("a", "b")
    assert SinkSpec(table="db.t").target == "db.t"


def test_metrics_may_be_served_pushed_or_both() -> None:
    for block in ({"port": 0}, {"push": "http://gateway:9091"}, {"port": 9095, "push": "https://gateway/prefix"}):
        spec = JobSpec.model_validate({**SMALLEST, "metrics": block}).metrics
        assert spec is not None
        assert spec.model_dump(exclude_none=True) == block
    assert JobSpec.model_validate(SMALLEST).metrics is None
