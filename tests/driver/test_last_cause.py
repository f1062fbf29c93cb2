"""Errors of ours that a Python worker raised, as Spark tells of them: text out of a traceback."""

from __future__ import annotations

import pickle
import traceback

import pytest

from sparkinfer.core.errors import JobFailedError, ModelError
from sparkinfer.driver.last_cause import told_by_workers


def sparks_text(error: BaseException) -> str:
    """What Spark's exception holds of an error in a worker, which may have come from a child of its own."""
    try:
        raise pickle.loads(pickle.dumps(error))
    except type(error):
        told = traceback.format_exc()
    return f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {told} SQLSTATE: 38000\n\tat org.apache"


def test_key_hint_and_exit_status_come_back() -> None:
    raised = ModelError("the model gave the same answer", key="model.path", hint="was it trained?")
    with pytest.raises(ModelError) as caught, told_by_workers():
        raise RuntimeError(sparks_text(raised))
    assert caught.value.render() == raised.render()
    assert caught.value.exit_status == 2


def test_without_key_and_hint() -> None:
    with pytest.raises(ModelError, match=r"^damaged$") as caught, told_by_workers():
        raise RuntimeError(sparks_text(ModelError("damaged")))
    assert (caught.value.key, caught.value.hint) == (None, None)


@pytest.mark.parametrize("error", [JobFailedError("no user's fault"), ValueError("anything else")])
def test_other_errors_pass_as_they_are(error: Exception) -> None:
    seen = RuntimeError(sparks_text(error))
    with pytest.raises(RuntimeError) as caught, told_by_workers():
        raise seen
    assert caught.value is seen
