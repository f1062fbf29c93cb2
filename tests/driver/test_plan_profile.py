"""Reading spark-defaults files and the values in them."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.planning.profile import Settings, parse_properties, read_profile, size_bytes


def test_a_file_is_read_as_java_reads_properties():
    text = (
        "# a comment\n! another\n\nspark.a  1g \nspark.b=2\n  spark.c : x y\nspark.d one, \\\n   two\n"
        "spark.e\nspark.f=a\\=b\\u0041\\tc\nspark.a 3g\n"
    )
    assert parse_properties(text) == {
        "spark.a": "3g",  # the later one counts
        "spark.b": "2",
        "spark.c": "x y",
        "spark.d": "one, two",
        "spark.e": "",
        "spark.f": "a=bA\tc",
    }


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("12g", 1, 12 * 1024**3),
        ("512m", 1, 512 * 1024**2),
        ("64KB", 1, 65_536),
        ("1T", 1, 1024**4),
        ("100", 1, 100),
        ("384", 1 << 20, 384 * 1024**2),
        (" 7b ", 1 << 20, 7),
    ],
)
def test_sizes(text, unit, expected):
    assert size_bytes(text, unit) == expected


@pytest.mark.parametrize("text", ["", "1.5g", "12 g", "-1m", "12q", "g", "0x10"])
def test_what_spark_takes_for_no_size_is_none(text):
    with pytest.raises(ValueError, match="is no size"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("key", "value", "look"),
    [
        ("spark.executor.memory", "12q", lambda s: s.size("spark.executor.memory", "1g")),
        ("spark.executor.cores", "four", lambda s: s.whole("spark.executor.cores", 1)),
        ("spark.dynamicAllocation.enabled", "yes", lambda s: s.flag("spark.dynamicAllocation.enabled", default=False)),
        ("spark.task.resource.gpu.amount", "nan", lambda s: s.number("spark.task.resource.gpu.amount", 1)),
        ("spark.task.resource.gpu.amount", "-1", lambda s: s.number("spark.task.resource.gpu.amount", 1)),
    ],
)
def test_a_wrong_value_is_told_with_its_key(key, value, look):
    with pytest.raises(SpecError) as error:
        look(Settings({key: value}))
    assert error.value.key == key
    assert value in error.value.message


def test_defaults_are_those_given():
    settings = Settings({})
    assert settings.size("spark.executor.memory", "1g") == 1024**3
    assert settings.whole("spark.task.maxFailures", 4) == 4
    assert settings.flag("spark.decommission.enabled", default=True) is True
    assert settings.number("spark.executor.memoryOverheadFactor", 0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("content", [None, "", "log4j.rootLogger INFO\n", b"\xff\xfe"])
def test_a_file_that_is_no_profile_is_refused(tmp_path, content):
    path = tmp_path / "p.conf"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpecError) as error:
        read_profile(str(path))
    assert error.value.key == "--profile"
    assert error.value.exit_status == 2
