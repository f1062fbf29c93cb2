"""Job file + `--set` + flags -> JobSpec, and what a person reads when one of them is wrong."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.core.errors import SpecError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.config import load_job, parse_setting, validated

MINIMAL = {"source": {"images": "photos"}, "model": {"path": "m.onnx"}, "sink": {"path": "out"}}
ONE_SCREEN = 24


def load(job=None, sets=(), **flags) -> JobSpec:
    text = job if isinstance(job, str) else yaml.safe_dump({**MINIMAL, **(job or {})}, allow_unicode=True)
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return load_job("job.yaml", sets, named, read_text=lambda _: text)


def refusal(job=None, sets=(), **flags) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load(job, sets, **flags)
    assert len(caught.value.render().splitlines()) <= ONE_SCREEN
    assert "pydantic" not in caught.value.render()
    return caught.value


class TestMerging:
    def test_a_minimal_file_gets_the_defaults(self):
        assert load() == JobSpec.model_validate(MINIMAL)

    def test_later_wins_file_then_sets_in_order_then_flags(self):
        job = {"batch": {"size": 1}}
        assert load(job).batch.size == 1
        assert load(job, ["batch.size=2", "batch.size=3"]).batch.size == 3
        assert load(job, ["batch.size=2"], batch__size=4).batch.size == 4

    def test_flags_alone_make_a_job(self):
        flags = {"source.images": ["a", "b"], "model.path": "m.onnx", "sink.path": "out", "sink.mode": None}
        spec = load_job(None, (), flags)
        assert spec.source.images == ("a", "b")
        assert spec.sink.mode == "error"

    def test_other_keys_of_a_block_stay(self):
        spec = load({"model": {"path": "m.onnx", "labels": "l.txt"}}, ["model.version=x"])
        assert (spec.model.path, spec.model.labels, spec.model.version) == ("m.onnx", "l.txt", "x")

    def test_the_command_lines_choice_of_input_and_output_replaces_the_files(self):
        job = {"source": {"images": "a", "limit": 3}, "sink": {"path": "p", "mode": "append"}}
        spec = load(job, ["sink.table=t"], source__parquet=("q",))
        assert (spec.source.kind, spec.source.locations, spec.source.limit) == ("parquet", ("q",), 3)
        assert (spec.sink.path, spec.sink.table, spec.sink.mode) == (None, "t", "append")

    def test_two_choices_on_the_command_line_are_refused(self):
        error = refusal(None, ["source.table=t"], source__images="a")
        assert error.key == "source"
        assert "found images and table" in error.message

    def test_null_takes_no_choice_back(self):
        assert load(None, ["source.table=null"]).source.kind == "images"

    def test_a_preset_by_name_is_the_start_of_a_block(self):
        spec = load({"preprocess": "imagenet-inception"}, ["preprocess.crop=224"])
        assert (spec.preprocess.preset, spec.preprocess.resize, spec.preprocess.crop) == (
            "imagenet-inception",
            342,
            224,
        )

    def test_a_preset_flag_replaces_the_block(self):
        spec = load({"preprocess": {"crop": 100}}, preprocess="imagenet-inception")
        assert spec.preprocess == PreprocessSpec.model_validate("imagenet-inception")

    @pytest.mark.parametrize(
        "text", ["batch:\n", "spark: {conf: }\n", "errors: # all as usual\n", "sink: {options: }\n"]
    )
    def test_empty_blocks_are_their_defaults(self, text):
        block = "sink: {path: out}\n" if not text.startswith("sink") else ""
        start = "source: {images: photos}\nmodel: {path: m.onnx}\n"
        if not block:
            text = "sink: {path: out, options: }\n"
        assert load(start + block + text) == JobSpec.model_validate(MINIMAL)

    def test_the_files_data_is_not_changed_by_a_run(self):
        with pytest.raises(SpecError):
            load(None, ["engine=none"])
        assert load().engine == "arrow"


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "key", "value"),
        [
            ("batch.size=64", ("batch", "size"), 64),
            ("batch.size=auto", ("batch", "size"), "auto"),
            ("preprocess.exif=false", ("preprocess", "exif"), False),
            ("preprocess.mean=[0.5, 0.5, 0.5]", ("preprocess", "mean"), [0.5, 0.5, 0.5]),
            ("source.keep=[label, split]", ("source", "keep"), ["label", "split"]),
            ("source.images=[a, b]", ("source", "images"), ["a", "b"]),
            ("source.limit=", ("source", "limit"), None),
            ("source.limit=null", ("source", "limit"), None),
            # Text keys take text as it is written.
            ("model.version=3", ("model", "version"), "3"),
            ("model.version=3.10", ("model", "version"), "3.10"),
            ("model.version=2026-01-01", ("model", "version"), "2026-01-01"),
            ("model.name=yes", ("model", "name"), "yes"),
            ("model.version='3'", ("model", "version"), "3"),
            ("model.version=null", ("model", "version"), None),
            ("source.images=*.jpg", ("source", "images"), "*.jpg"),
            ("source.images=photos/{a,b}/*", ("source", "images"), "photos/{a,b}/*"),
            ("source.images={a,b}", ("source", "images"), "{a,b}"),
            ("source.images=hdfs://host:8020/a b", ("source", "images"), "hdfs://host:8020/a b"),
            ("source.where=label = 'cat' AND x != 1", ("source", "where"), "label = 'cat' AND x != 1"),
            ("source.where=a: b # c", ("source", "where"), "a: b # c"),
            ("source.where='a' = label", ("source", "where"), "'a' = label"),
            ("source.table=[x", ("source", "table"), "[x"),
            # A free block takes the rest as one key.
            ("spark.conf.spark.executor.memory=4g", ("spark", "conf", "spark.executor.memory"), "4g"),
            ("spark.conf.spark.task.cpus=2", ("spark", "conf", "spark.task.cpus"), 2),
            ("sink.options.maxRecordsPerFile=1000", ("sink", "options", "maxRecordsPerFile"), "1000"),
            ("model.options.intra_op=2", ("model", "options", "intra_op"), 2),
            ("spark.conf={a: b}", ("spark", "conf"), {"a": "b"}),
        ],
    )
    def test_values(self, text, key, value):
        assert parse_setting(text) == (key, value)

    @pytest.mark.parametrize("text", ["", "=", "=3", "model.path", "  =x"])
    def test_needs_key_and_value(self, text):
        with pytest.raises(SpecError, match="needs KEY=VALUE"):
            parse_setting(text)

    def test_a_broken_value_names_its_key(self):
        error = refusal(None, ["batch.size=[1"])
        assert (error.key, error.message) == ("batch.size", "the value '[1' of --set is not readable as YAML")

    @pytest.mark.parametrize("setting", ["source.images.x=1", "engine.x=1", "model.path.a.b=1"])
    def test_a_plain_value_holds_no_keys(self, setting):
        error = refusal(None, [setting])
        assert error.key is not None
        assert setting.startswith(error.key)
        assert "holds no keys" in error.message

    @pytest.mark.parametrize("text", ["!", "&a", "#x", "!!str", "null", ""])
    def test_only_a_spelling_of_null_is_null(self, text):
        assert parse_setting(f"model.path={text}")[1] == (None if text in ("null", "") else text)

    def test_a_block_that_is_a_plain_value_in_the_file(self):
        assert refusal({"batch": 5}, ["batch.size=1"]).key == "batch"

    def test_an_unknown_key_is_refused(self):
        error = refusal(None, ["modle.path=x"])
        assert (error.key, error.hint) == ("modle", "did you mean model?")
        assert "command line" in error.message

    @given(
        st.text(
            st.characters(blacklist_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), blacklist_characters="'\"[~"), min_size=1
        )
    )
    def test_any_path_arrives_as_it_was_typed(self, text):
        expected = None if text in ("null", "Null", "NULL") else text
        assert parse_setting(f"model.path={text}") == (("model", "path"), expected)


class TestMessages:
    @pytest.mark.parametrize(
        ("job", "key", "message", "hint"),
        [
            ({"batch": {"size": "big"}}, "batch.size", "must be a whole number or auto, got 'big'", "images per model"),
            ({"batch": 5}, "batch", "must be a block of keys, got 5", None),
            ({"source": {"images": "x", "limit": 1.5}}, "source.limit", "must be a whole number or null, got 1.5", ""),
            ({"source": {"images": "x", "limit": 0}}, "source.limit", "must be greater than or equal to 1, got 0", ""),
            ({"source": {"images": "x", "sample": 2}}, "source.sample", "must be less than or equal to 1, got 2", ""),
            ({"source": {"images": "x", "keep": "a"}}, "source.keep", "must be a list of texts", "write a list: [a]"),
            ({"source": {"images": [1]}}, "source.images", "must be text, a list of texts or null, got [1]", ""),
            ({"model": {"path": "m", "version": 3}}, "model.version", "must be text or null, got 3", 'quotes: "3"'),
            ({"model": {"path": "m", "version": True}}, "model.version", "got true", 'quotes: "true"'),
            ({"preprocess": {"exif": "maybe"}}, "preprocess.exif", "must be true or false", ""),
            ({"preprocess": {"crop": [1, 2, 3]}}, "preprocess.crop", "at most 2 items", "one side or [height, width]"),
            ({"preprocess": 7}, "preprocess", "must be a block of keys, got 7", "preset"),
            ({"spark": {"conf": {"a": [1]}}}, "spark.conf.a", "must be text, a whole number", None),
            ({"sink": {"path": "x", "mode": None}}, "sink.mode", "cannot be nothing", ""),
            ({"name": ""}, "name", "at least 1 character", ""),
            ({"errors": {"max_fraction": float("nan")}}, "errors.max_fraction", "got nan", ""),
            ({"sink": {}}, "sink", "needs exactly one of path, table", None),
            ({"source": {"limit": 1}}, "source", "found none of them", None),
        ],
    )
    def test_wrong_values(self, job, key, message, hint):
        error = refusal(job)
        assert error.key == key
        assert message in error.message
        assert hint is None or hint in (error.hint or "")

    @pytest.mark.parametrize(
        ("job", "key", "allowed", "hint"),
        [
            ({"engine": "arow"}, "engine", ("arrow", "pandas", "predict_batch_udf"), "did you mean arrow?"),
            ({"sink": {"path": "x", "mode": "replace"}}, "sink.mode", ("error", "overwrite", "append", "merge"), None),
            ({"model": {"path": "m", "device": "gpu"}}, "model.device", ("auto, cpu, cuda, or cuda:N",), None),
            ({"preprocess": {"layout": "NCHW"}}, "preprocess.layout", ("nchw", "nhwc"), None),
        ],
    )
    def test_wrong_choices_name_the_right_ones(self, job, key, allowed, hint):
        error = refusal(job)
        assert (error.key, error.allowed) == (key, allowed)
        assert hint is None or error.hint == hint

    def test_an_unknown_preset_names_the_known_ones(self):
        error = refusal({"preprocess": "imagnet"})
        assert error.key == "preprocess"
        assert "allowed: imagenet, imagenet-inception, none" in error.message

    @pytest.mark.parametrize(
        ("job", "key", "hint"),
        [
            ({"source": {"imges": "x"}}, "source.imges", "did you mean source.images?"),
            ({"labels": "l.txt"}, "labels", "did you mean model.labels?"),
            ({"model": {"path": "m", "top_k": 3}}, "model.top_k", "did you mean postprocess.top_k?"),
            ({"shardin": "auto"}, "shardin", "did you mean sharding?"),
            ({"sink.mode": "error"}, "sink.mode", "keys with dots are for --set; in a file write sink: {mode: ...}"),
            ({"xyzzy": 1}, "xyzzy", None),
        ],
    )
    def test_unknown_keys_get_a_hint(self, job, key, hint):
        error = refusal(job)
        assert (error.key, error.hint) == (key, hint)
        assert error.message.startswith("unknown key")
        assert error.allowed

    def test_the_place_is_named(self):
        text = "source: {images: a}\nmodel:\n  path: m\n  device: gpu\nsink: {path: o}\n"
        assert "(job.yaml line 4)" in refusal(text).message
        assert "(command line)" in refusal(text, ["model.device=tpu"]).message

    @pytest.mark.parametrize(
        ("missing", "hint"), [("source", "--images PATH"), ("model", "--model FILE"), ("sink", "--output FOLDER")]
    )
    def test_what_is_missing_can_be_given_in_two_ways(self, missing, hint):
        error = refusal(yaml.safe_dump({key: value for key, value in MINIMAL.items() if key != missing}))
        assert (error.key, error.message) == (missing, "is required")
        assert hint in (error.hint or "")

    def test_a_required_block_left_empty_is_missing(self):
        assert refusal("source: {images: a}\nmodel:\nsink: {path: o}\n").key == "model"

    def test_several_problems_are_told_together(self):
        rendered = refusal({"engine": "x", "sharding": "y", "batch": {"size": "z"}}).render()
        assert rendered.startswith("3 problems")
        assert all(f"\n{key}: " in rendered for key in ("engine", "sharding", "batch.size"))

    def test_many_problems_fit_on_a_screen(self):
        for names in ([f"key{number}" for number in range(40)], [f"{number}" * 200 for number in range(10)]):
            lines = refusal(dict.fromkeys(names, 1)).render().splitlines()
            assert sum(-(-len(line) // 80) for line in lines) <= ONE_SCREEN
            told = sum(": unknown key" in line for line in lines)
            assert told >= 3
            assert lines[-1] == f"and {len(names) - told} more"

    def test_long_values_are_cut(self):
        assert len(refusal({"batch": {"size": "x" * 5000}}).message) < 200

    def test_numbers_longer_than_python_writes_out(self):
        text = yaml.safe_dump(MINIMAL) + f"batch: {{size: 0x{'f' * 5000}}}\nname: -0x{'f' * 5000}\n"
        assert "got a number of thousands of digits" in refusal(text).render()

    def test_nothing_reaches_the_terminal_that_it_would_act_on(self):
        text = yaml.safe_dump({**MINIMAL, "\x1b[2J\nkey": 1, "batch": {"size": "\x1b]0;title\x07"}})
        rendered = refusal(text).render()
        assert rendered.replace("\n", "").isprintable()
        assert "\\x1b[2J\\nkey: unknown key" in rendered

    @pytest.mark.parametrize(
        ("path", "reason"), [("a\0b", "null byte"), ("a" * 300, "file name too long"), ("a/" * 3000, "too long")]
    )
    @pytest.mark.parametrize("key", ["sink.path", "model.path", "model.labels", "report"])
    def test_paths_that_no_system_has(self, key, path, reason):
        error = refusal(None, (), **{key.replace(".", "__"): path})
        assert error.key == key
        assert reason in error.message

    def test_a_folder_that_may_not_be_entered(self, monkeypatch):
        def refuse(self, **_):
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr("pathlib.Path.stat", refuse)
        error = refusal()
        assert (error.key, error.message) == (
            "source.images",
            "'photos' cannot be used as a path: permission denied",
        )

    def test_nothing_at_all(self):
        with pytest.raises(SpecError, match="nothing to run"):
            load_job(None, (), {"model.path": None})


class TestBlocksFromPython:
    def test_a_right_block_is_made(self):
        assert validated(ModelSpec, {"path": "m.onnx"}, "model") == ModelSpec(path="m.onnx")

    def test_a_wrong_key_is_named_in_full(self):
        with pytest.raises(SpecError) as caught:
            validated(ModelSpec, {"path": "m", "label": "l"}, "model")
        assert (caught.value.key, caught.value.hint) == ("model.label", "did you mean model.labels?")

    def test_a_wrong_value_is_shown(self):
        with pytest.raises(SpecError) as caught:
            validated(PreprocessSpec, {"crop": 0}, "preprocess")
        assert (caught.value.key, caught.value.message) == (
            "preprocess.crop",
            "must be greater than or equal to 1, got 0",
        )
