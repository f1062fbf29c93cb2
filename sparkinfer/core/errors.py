"""Everything that can go wrong, in one tree. Used on the driver and on the executors; every class pickles.

SparkInferError                 what a caller may catch
├── UserError                   the person can mend it: exit status 2, one screen, no stack trace
│   ├── SpecError               a key or a value of the job file or of the arguments
│   ├── ModelError              the model file, its signature, its labels
│   ├── SourceError             the input: a missing location, a missing column
│   │   └── EmptySourceError    the input has no row, or none is chosen
│   ├── SinkError               the output: already there, not writable
│   ├── DeviceError             a device that was asked for and is not there
│   └── MissingExtraError       an optional package is not installed
├── BudgetExceededError         more rows failed than `errors.max_fraction` allows: exit status 3
├── JobFailedError              anything else that ended a job: exit status 1
├── OutOfDeviceMemoryError      a runtime's own out-of-memory, mapped by the runtime that met it
└── RowError                    one row's failure: becomes the row's three error columns, never a job's end
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sparkinfer.core.secrets import redacted

__all__ = [
    "NOTE_HINT",
    "NOTE_KEY",
    "BudgetExceededError",
    "DeviceError",
    "EmptySourceError",
    "ErrorCode",
    "JobFailedError",
    "MissingExtraError",
    "ModelError",
    "OutOfDeviceMemoryError",
    "RowError",
    "SinkError",
    "SourceError",
    "SparkInferError",
    "SpecError",
    "Stage",
    "UserError",
    "encodable",
    "to_row_error",
]

NOTE_KEY = "  key: "
NOTE_HINT = "  hint: "

MAX_MESSAGE_CHARS = 500
"""Longest `error_message` of a row: enough to act on, short enough that a million bad rows stay small."""


class Stage(StrEnum):
    """Where in the chain a row failed: the `error_stage` column."""

    READ = "read"
    DECODE = "decode"
    PREPROCESS = "preprocess"
    INFER = "infer"
    POSTPROCESS = "postprocess"
    WORKER = "worker"


class ErrorCode(StrEnum):
    """Why a row failed: the `error_code` column."""

    READ_FAILED = "READ_FAILED"
    NULL_CONTENT = "NULL_CONTENT"
    EMPTY = "EMPTY"
    TOO_LARGE = "TOO_LARGE"
    UNSUPPORTED_FORMAT = "UNSUPPORTED_FORMAT"
    TRUNCATED = "TRUNCATED"
    CORRUPT = "CORRUPT"
    TOO_MANY_PIXELS = "TOO_MANY_PIXELS"
    PREPROCESS_FAILED = "PREPROCESS_FAILED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    MODEL_FAILED = "MODEL_FAILED"
    NON_FINITE_OUTPUT = "NON_FINITE_OUTPUT"
    TIMEOUT = "TIMEOUT"
    WORKER_CRASHED = "WORKER_CRASHED"

    @property
    def stage(self) -> Stage:
        """The stage at which this code usually arises."""
        return _USUAL_STAGE[self]

    @property
    def meaning(self) -> str:
        """One line for the reader of a prediction table (also the README's table)."""
        return _MEANING[self]


_USUAL_STAGE = {
    ErrorCode.READ_FAILED: Stage.READ,
    ErrorCode.NULL_CONTENT: Stage.READ,
    ErrorCode.EMPTY: Stage.READ,
    ErrorCode.TOO_LARGE: Stage.READ,
    ErrorCode.UNSUPPORTED_FORMAT: Stage.DECODE,
    ErrorCode.TRUNCATED: Stage.DECODE,
    ErrorCode.CORRUPT: Stage.DECODE,
    ErrorCode.TOO_MANY_PIXELS: Stage.DECODE,
    ErrorCode.PREPROCESS_FAILED: Stage.PREPROCESS,
    ErrorCode.OUT_OF_MEMORY: Stage.INFER,
    ErrorCode.MODEL_FAILED: Stage.INFER,
    ErrorCode.NON_FINITE_OUTPUT: Stage.POSTPROCESS,
    ErrorCode.TIMEOUT: Stage.INFER,
    ErrorCode.WORKER_CRASHED: Stage.WORKER,
}

_MEANING = {
    ErrorCode.READ_FAILED: "the file is listed or named but could not be read (gone, no permission, I/O error)",
    ErrorCode.NULL_CONTENT: "the content column is null",
    ErrorCode.EMPTY: "zero bytes",
    ErrorCode.TOO_LARGE: "more bytes than `source.max_bytes`",
    ErrorCode.UNSUPPORTED_FORMAT: "not an image, or a format that the decoder does not know",
    ErrorCode.TRUNCATED: "the image data ends early",
    ErrorCode.CORRUPT: "the image data is damaged",
    ErrorCode.TOO_MANY_PIXELS: "more pixels than `preprocess.max_pixels`, by the header: never decoded",
    ErrorCode.PREPROCESS_FAILED: "decoded, but could not be resized or cropped",
    ErrorCode.OUT_OF_MEMORY: "does not fit in memory even alone",
    ErrorCode.MODEL_FAILED: "the model raised on this image alone",
    ErrorCode.NON_FINITE_OUTPUT: "the model answered NaN or infinity",
    ErrorCode.TIMEOUT: "took longer than allowed",
    ErrorCode.WORKER_CRASHED: "the Python worker died on this row",
}


class SparkInferError(Exception):
    """Root of the tree. Holds no secrets: they are taken out of what it is made of (`core.secrets`).

    Args:
        message: what is wrong, in one sentence.
        key: the spec key or argument it is about, if there is one (`model.path`).
        allowed: the values that would be accepted.
        hint: what to do about it.
    """

    exit_status = 1

    def __init__(
        self, message: str, *, key: str | None = None, allowed: Iterable[str] = (), hint: str | None = None
    ) -> None:
        self.message = encodable(redacted(message))
        super().__init__(self.message)
        self.key = key
        self.allowed = tuple(map(redacted, allowed))
        self.hint = hint and redacted(hint)
        # A traceback shows notes, and a traceback is all that Spark tells the driver of an error on an executor.
        if self.key:
            self.add_note(f"{NOTE_KEY}{self.key}")
        if self.hint:
            self.add_note(f"{NOTE_HINT}{self.hint}")

    def __reduce__(self) -> tuple[object, ...]:
        notes = getattr(self, "__notes__", [])
        state = {"key": self.key, "allowed": self.allowed, "hint": self.hint, "__notes__": notes}
        return (type(self), (self.message,), state)

    def render(self) -> str:
        """The message as a terminal shows it: what is wrong, what is allowed, a hint. At most one screen."""
        lines = [f"{self.key}: {self.message}" if self.key else self.message]
        if self.allowed:
            lines.append(f"  allowed: {', '.join(self.allowed)}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class UserError(SparkInferError):
    """Something the person can mend: wrong spec, arguments, files. Exit status 2."""

    exit_status = 2


class SpecError(UserError):
    """A key or a value of the job file or of the arguments is wrong."""


class ModelError(UserError):
    """The model is missing, unreadable, or does not fit the spec or the labels."""


class SourceError(UserError):
    """The input is missing, or lacks a column."""


class EmptySourceError(SourceError):
    """The input has no row, or `where` and `sample` choose none."""


class SinkError(UserError):
    """The output is already there or cannot be written."""


class DeviceError(UserError):
    """A device was asked for and is not there."""


class MissingExtraError(UserError):
    """An optional package is not installed.

    Args:
        package: what was imported.
        extra: the extra of sparkinfer that brings it.
    """

    def __init__(self, package: str, *, extra: str = "") -> None:
        super().__init__(
            package if not extra else f"this needs the package {package!r}, which is not installed",
            hint=f'pip install "sparkinfer[{extra}]"' if extra else None,
        )


class BudgetExceededError(SparkInferError):
    """More rows failed than the budget allows. Exit status 3; committed output stays."""

    exit_status = 3


class JobFailedError(SparkInferError):
    """The job ended for any other reason. Exit status 1."""


class OutOfDeviceMemoryError(SparkInferError):
    """A runtime ran out of its device's memory; the caller may try again with a smaller batch."""


class RowError(SparkInferError):
    """One row's failure: becomes that row's `error_stage`, `error_code`, `error_message`.

    Args:
        code: one of `ErrorCode`.
        message: for a person, without the row's path (the row has it).
        stage: where; the code's usual stage by default.
    """

    def __init__(self, code: ErrorCode, message: str, *, stage: Stage | None = None) -> None:
        # Cut after secrets are gone: half of one is harder to see.
        super().__init__(redacted(encodable(message[: 4 * MAX_MESSAGE_CHARS]))[:MAX_MESSAGE_CHARS])
        self.code = code
        self.stage = stage or code.stage

    def __reduce__(self) -> tuple[object, ...]:
        return (_row_error, (self.code, self.message, self.stage))


def _row_error(code: ErrorCode, message: str, stage: Stage) -> RowError:
    return RowError(code, message, stage=stage)


_FALLBACK_CODE = {
    Stage.READ: ErrorCode.READ_FAILED,
    Stage.DECODE: ErrorCode.CORRUPT,
    Stage.PREPROCESS: ErrorCode.PREPROCESS_FAILED,
    Stage.INFER: ErrorCode.MODEL_FAILED,
    Stage.POSTPROCESS: ErrorCode.MODEL_FAILED,
    Stage.WORKER: ErrorCode.WORKER_CRASHED,
}


def to_row_error(error: BaseException, stage: Stage) -> RowError:
    """Maps any exception met at a stage to a `RowError`: the one place where foreign exceptions become codes.

    A `RowError` passes through; memory errors become `OUT_OF_MEMORY`; the rest get the stage's general code.
    """
    if isinstance(error, RowError):
        return error
    text = _described(error)
    if isinstance(error, OutOfDeviceMemoryError | MemoryError):
        return RowError(ErrorCode.OUT_OF_MEMORY, text, stage=stage)
    return RowError(_FALLBACK_CODE[stage], text, stage=stage)


def encodable(text: str) -> str:
    """The text with lone surrogates (`os.fsdecode` makes them of bytes that are no UTF-8) written as escapes.

    Neither Arrow nor Spark can take a text that has no UTF-8.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _described(error: BaseException) -> str:
    """Type and text of a foreign exception, whose `__str__` may fail like all foreign code."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - of any kind
        return f"{name}, whose text cannot be made: {type(failure).__name__}"
    return f"{name}: {text}" if text else name
