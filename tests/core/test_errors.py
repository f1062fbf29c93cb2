"""The error tree: what a person reads, what becomes a row, and that it all pickles."""

from __future__ import annotations

import os
import pickle

import pytest

from sparkinfer.core import errors
from sparkinfer.core.errors import ErrorCode, RowError, SpecError, Stage, to_row_error


def test_render_names_key_allowed_values_and_hint() -> None:
    error = SpecError("unknown key", key="source.imags", allowed=["images", "parquet"], hint="did you mean images?")
    assert error.render().splitlines() == [
        "source.imags: unknown key",
        "  allowed: images, parquet",
        "  hint: did you mean images?",
    ]


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n.endswith("Error")])
def test_every_error_survives_pickle(name: str) -> None:
    kind = getattr(errors, name)
    error = kind(ErrorCode.CORRUPT, "bad") if kind is RowError else kind("bad")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.exit_status) == (error.message, error.exit_status)


def test_a_missing_extra_prints_the_pip_line() -> None:
    error = errors.MissingExtraError("onnxruntime", extra="onnx")
    assert 'pip install "sparkinfer[onnx]"' in error.render()


@pytest.mark.parametrize(
    ("error", "stage", "code"),
    [
        (MemoryError(), Stage.DECODE, ErrorCode.OUT_OF_MEMORY),
        (errors.OutOfDeviceMemoryError("cuda"), Stage.INFER, ErrorCode.OUT_OF_MEMORY),
        (ValueError("x"), Stage.DECODE, ErrorCode.CORRUPT),
        (ValueError("x"), Stage.PREPROCESS, ErrorCode.PREPROCESS_FAILED),
        (ValueError("x"), Stage.INFER, ErrorCode.MODEL_FAILED),
        (RowError(ErrorCode.EMPTY, "x"), Stage.INFER, ErrorCode.EMPTY),
    ],
)
def test_foreign_exceptions_become_codes(error: Exception, stage: Stage, code: ErrorCode) -> None:
    assert to_row_error(error, stage).code is code


def test_messages_of_rows_stay_short() -> None:
    assert len(to_row_error(ValueError("x" * 10_000), Stage.INFER).message) == errors.MAX_MESSAGE_CHARS


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no UTF-8: \udcff\ud800, a NUL: \0"), "ValueError: no UTF-8: \\udcff\\ud800, a NUL: \0"),
        (SpeechlessError(), "SpeechlessError, whose text cannot be made: LookupError"),
    ],
)
def test_any_exception_has_a_text_that_can_be_written(error: Exception, message: str) -> None:
    assert to_row_error(error, Stage.DECODE).message == message
    assert len(to_row_error(ValueError("\udcff" * 10_000), Stage.DECODE).message) == errors.MAX_MESSAGE_CHARS


def test_a_message_about_any_file_name_can_be_printed() -> None:
    assert SpecError(f"{os.fsdecode(bytes([0x66, 0xFF]))} is missing").render().encode() == b"f\\udcff is missing"


def test_every_code_has_a_stage_and_a_meaning() -> None:
    assert all(code.stage and code.meaning for code in ErrorCode)
