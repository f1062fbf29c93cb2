"""Label files in the forms that people have."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import ModelError
from sparkinfer.driver.labels import check_labels, parse_labels


@pytest.mark.parametrize(
    "text",
    [
        "cat\ndog\n",
        "cat\r\ndog",
        "\ufeffcat\ndog\n\n",
        '["cat", "dog"]',
        '{"0": "cat", "1": "dog"}',
        '{"1": ["n02", "dog"], "0": ["n01", "cat"]}',
    ],
)
def test_the_usual_forms(text: str) -> None:
    assert parse_labels(text, "labels") == ("cat", "dog")


@pytest.mark.parametrize("text", ["", " \n", "[1, ", '{"0": "a", "2": "b"}', '[{"a": 1}]'])
def test_other_files_are_refused_by_name(text: str) -> None:
    with pytest.raises(ModelError, match=r"x\.txt"):
        parse_labels(text, "x.txt")


def test_blank_lines_inside_keep_their_class() -> None:
    assert parse_labels("a\n\nb\n", "x") == ("a", "", "b")


def test_a_wrong_count_names_both_numbers() -> None:
    check_labels(("a", "b"), 2, "x")
    with pytest.raises(ModelError, match="2 labels, the model has 1000 classes"):
        check_labels(("a", "b"), 1000, "x")
