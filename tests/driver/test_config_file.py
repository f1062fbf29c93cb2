"""The job file's text: what YAML refuses, and what it would have let pass."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.specs.job_file import parse_job_file, read_text


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_job_file(text, "job.yaml")
    assert caught.value.exit_status == 2
    return caught.value.render()


def test_every_key_has_its_line():
    job = parse_job_file("# a job\nmodel:\n  path: m.onnx\n\n  labels: l.txt\nname: x\n", "job.yaml")
    assert job.data == {"model": {"path": "m.onnx", "labels": "l.txt"}, "name": "x"}
    assert job.lines == {("model",): 2, ("model", "path"): 3, ("model", "labels"): 5, ("name",): 6}


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n"])
def test_empty_file(text):
    assert "job.yaml is empty" in refusal(text) or "a single value" in refusal(text)


@pytest.mark.parametrize(
    ("text", "kind"), [("- a\n- b\n", "a list"), ("42", "a single value"), ("text", "a single value")]
)
def test_top_level_must_hold_keys(text, kind):
    assert f"job.yaml holds {kind} at its top level" in refusal(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\nb: 2\n", "job.yaml line 2, column 2"),
        ("a: b: c\n", "job.yaml line 1, column 5"),
        ("a:\n\tb: 1\n", "indent with spaces, not tabs"),
        ("source: {images: *.jpg}\n", 'a value that begins with * needs quotes: "*.jpg"'),
        ("a: 1\n---\nb: 2\n", "one job a file"),
        ("a: 'open\n", "job.yaml line"),
        ("a: @b\n", "job.yaml line 1, column 4"),
        ("a: 2026-13-45\n", "month must be in 1..12"),
        ("a: \x00\n", "not readable as YAML"),
        ("[" * 3000, "nested too deeply"),
    ],
)
def test_syntax_errors_say_where(text, expected):
    assert expected in refusal(text)


def test_no_python_object_is_made():
    assert "could not determine a constructor" in refusal("a: !!python/object/apply:os.system ['true']\n")


def test_a_doubled_key_is_refused_with_both_lines():
    text = "model:\n  path: a\n  labels: l\n  path: b\n"
    assert refusal(text).startswith("model.path: given twice in job.yaml, in lines 2 and 4")


def test_a_doubled_block_is_refused():
    assert "sink: given twice in job.yaml, in lines 1 and 2" in refusal("sink: {path: a}\nsink: {path: b}\n")


@pytest.mark.parametrize(("key", "shown"), [("on", "on"), ("1", "1"), ("null", "null"), ("[a]", "[...]")])
def test_keys_must_be_text(key, shown):
    message = refusal(f"? {key}\n: 1\n")
    assert "line 1" in message
    assert f"the key {shown}" in message


def test_anchors_and_merges_stand_for_what_they_name():
    job = parse_job_file("a: &x {p: 1}\nb: {<<: *x, q: 2}\nc: *x\n", "job.yaml")
    assert (job.data["b"], job.data["c"]) == ({"p": 1, "q": 2}, {"p": 1})


@pytest.mark.parametrize("text", ["a: 1\nc: &c {d: *c}\n", "a: 1\nc: {d: &c [[*c]]}\n", "a: 1\nc: {<<: &c {<<: *c}}\n"])
def test_an_alias_inside_itself_is_refused(text):
    assert "job.yaml line 2: an alias stands for a block that it lies in" in refusal(text)


@pytest.mark.parametrize("block", ["[{}]", "{{<<: [{}]}}"])
def test_a_few_lines_never_stand_for_more_than_memory_holds(block):
    lines = ["k0: &l0 [lol]" if block == "[{}]" else "k0: &l0 {a: 1}"]
    lines += [f"k{n}: &l{n} " + block.format(", ".join([f"*l{n - 1}"] * 10)) for n in range(1, 40)]
    assert "stands for more than" in refusal("\n".join(lines))


@pytest.mark.parametrize(
    ("value", "kind"),
    [("!!int ''", "int"), ("!!bool maybe", "bool"), ("!!timestamp soon", "timestamp"), ("2026-13-45", "timestamp")],
)
def test_a_value_that_its_tag_does_not_fit_has_its_line(value, kind):
    assert f"is no {kind} (" in refusal(f"a: 1\nb: {value}\n")
    assert refusal(f"a: 1\nb: {value}\n").startswith("job.yaml line 2: ")


@pytest.mark.parametrize("text", ["!!set {a, b}", "!!str {=: x}"])
def test_a_tag_that_turns_the_keys_into_something_else(text):
    assert "job.yaml line 1: " in refusal(text)


def test_a_file_too_long_for_a_job(tmp_path):
    file = tmp_path / "photo.tiff"
    file.write_bytes(b"x" * 5_000_000)
    for path in (file, "/dev/zero"):
        with pytest.raises(SpecError, match="too many for a job file"):
            read_text(str(path))


def test_a_uri_that_is_none():
    with pytest.raises(SpecError, match="is no URI of a job file"):
        read_text("file://[/job.yaml")


def test_reads_a_local_file_by_path_and_by_uri(tmp_path):
    file = tmp_path / "mit Räumen.yaml"
    file.write_bytes("\ufeffname: ü\n".encode())
    assert read_text(str(file)) == "name: ü\n"
    assert read_text(file.as_uri()) == "name: ü\n"


def test_a_missing_file_names_its_neighbour(tmp_path):
    (tmp_path / "photos.yaml").touch()
    with pytest.raises(SpecError) as caught:
        read_text(str(tmp_path / "photo.yaml"))
    assert caught.value.hint == f"did you mean {tmp_path / 'photos.yaml'}?"


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(SpecError) as caught:
        read_text(str(tmp_path / "none" / "job.yaml"))
    assert caught.value.hint == f"there is no folder {tmp_path / 'none'} either"


def test_folders_binaries_and_remote_files_are_refused(tmp_path):
    image = tmp_path / "cat.jpg"
    image.write_bytes(b"\xff\xd8\xff\xe0")
    for path, expected in [
        (tmp_path, "is a folder"),
        (image, "is not UTF-8 text"),
        ("hdfs://x/job.yaml", "is not local"),
    ]:
        with pytest.raises(SpecError, match=expected):
            read_text(str(path))
