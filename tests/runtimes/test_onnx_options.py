"""Options that ONNX Runtime would ignore are refused, on the CPU too."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import ModelError

SPINNING = "session.intra_op.allow_spinning"


@pytest.mark.parametrize(
    ("options", "key", "allowed", "hint"),
    [
        ({"gpu_mem_limitt": 1 << 30}, "model.options", "gpu_mem_limit", "did you mean gpu_mem_limit?"),
        ({"device_id": 1}, "model.options", "session", "remove it"),
        ({"session": {"session.intra_op.alow_spinning": 0}}, "model.options.session", SPINNING, SPINNING),
        ({"session": {7: 0}}, "model.options.session", SPINNING, "remove it"),
        ({"session": "fast"}, "model.options.session", None, SPINNING),
        ({"session": None}, "model.options.session", None, SPINNING),
    ],
)
def test_an_option_that_is_not_known_is_refused(onnx_case, options, key, allowed, hint):
    with pytest.raises(ModelError) as caught:
        onnx_case.load(model={"options": options})
    assert caught.value.key == key
    assert allowed is None or allowed in caught.value.allowed
    assert hint in caught.value.hint


@pytest.mark.parametrize(("value", "entry"), [(True, "1"), (False, "0"), (0, "0"), ("1", "1")])
def test_session_entries_are_what_onnx_runtime_reads(onnx_case, value, entry):
    runtime = onnx_case.load(model={"options": {"session": {SPINNING: value}}})
    assert runtime._session.get_session_options().get_session_config_entry(SPINNING) == entry
