from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from sparkinfer.core.errors import ModelError, OutOfDeviceMemoryError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.runtimes.fake import FakeRuntime


@pytest.fixture
def load(tmp_path):
    def load(changes=None, **content):
        path = tmp_path / "m.fake"
        path.write_text(json.dumps({"num_classes": 3, **content}))
        preprocess = PreprocessSpec.model_validate({"preset": "none", "crop": 4, **(changes or {})})
        runtime = FakeRuntime()
        runtime.load(LoadRequest(str(path), ModelSpec(path=str(path)), preprocess))
        return runtime

    return load


def plain(*colours):
    """Images of one colour each, [n, 3, 4, 4]."""
    return np.broadcast_to(np.array(colours, np.float32)[:, :, None, None], (len(colours), 3, 4, 4)).copy()


RED, GREEN, BLUE, GREY = (1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.5, 0.5)


def test_three_classes_are_the_colours(load):
    np.testing.assert_array_equal(load().infer(plain(RED, GREEN, BLUE)).scores, np.eye(3))


def test_more_classes_repeat_them_weaker(load):
    scores = load(num_classes=7).infer(plain((0.6, 0.3, 0.9))).scores
    np.testing.assert_allclose(scores, [[0.6, 0.3, 0.9, 0.3, 0.15, 0.45, 0.2]], rtol=1e-6)


def test_layout_and_bytes(load):
    runtime = load({"layout": "nhwc", "dtype": "uint8"})
    batch = np.zeros((1, 4, 4, 3), np.uint8)
    batch[..., 1] = 200
    np.testing.assert_array_equal(runtime.infer(batch).scores, [[0, 200, 0]])


def test_a_fixed_batch_dimension_pads_the_last_chunk(load, tmp_path):
    runtime = load(input={"shape": [2, 3, 4, 4]}, log=str(tmp_path / "log"))
    np.testing.assert_array_equal(runtime.infer(plain(RED, GREEN, BLUE)).scores, np.eye(3))
    assert [json.loads(line)["rows"] for line in (tmp_path / "log").read_text().splitlines()] == [0, 2, 2]


def test_failures(load):
    runtime = load(memory_limit_images=2, fail_on=[0.5], nan_on=[0.0])
    with pytest.raises(OutOfDeviceMemoryError, match="2 images, not 3"):
        runtime.infer(plain(RED, GREEN, BLUE))
    with pytest.raises(RuntimeError, match="fails on one"):
        runtime.infer(plain(RED, GREY))
    scores = runtime.infer(plain(RED, (0, 0, 0))).scores
    np.testing.assert_array_equal(scores, [[1, 0, 0], [np.nan] * 3])


def test_crash(load, tmp_path):
    load(crash_on=[0.5])
    code = """if True:
        import sys, numpy as np
        from sparkinfer.core.model_spec import ModelSpec
        from sparkinfer.core.preprocess_spec import PreprocessSpec
        from sparkinfer.core.protocols import LoadRequest
        from sparkinfer.runtimes.fake import FakeRuntime
        runtime = FakeRuntime()
        spec = PreprocessSpec(preset="none", crop=4)
        runtime.load(LoadRequest(sys.argv[1], ModelSpec(path="m"), spec))
        runtime.infer(np.full((1, 3, 4, 4), 0.25, np.float32))
        print("alive", flush=True)
        runtime.infer(np.full((1, 3, 4, 4), 0.5, np.float32))
    """
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.fake"], capture_output=True, check=False)
    assert done.stdout == b"alive\n"
    assert done.returncode == -9


def test_the_log_counts_loads_and_batches(load, tmp_path):
    log = tmp_path / "log"
    runtime = load(log=str(log))
    runtime.infer(plain(RED, GREEN))
    runtime.infer(plain(RED))
    events = [json.loads(line) for line in log.read_text().splitlines()]
    pid = os.getpid()
    assert events == [
        {"event": "load", "pid": pid, "rows": 0},
        {"event": "infer", "pid": pid, "rows": 2},
        {"event": "infer", "pid": pid, "rows": 1},
    ]


def test_latency_is_spent_on_the_shared_accelerator(load, tmp_path, monkeypatch):
    import fcntl
    import time

    events: list[object] = []
    monkeypatch.setattr(time, "sleep", events.append)
    monkeypatch.setattr(fcntl, "flock", lambda file, how: events.append((file.name, how)))
    shared = str(tmp_path / "accelerator")
    load(latency_s=0.25, accelerator=shared).infer(plain(RED, GREEN))
    assert events == [(shared, fcntl.LOCK_EX), 0.25]


def test_labels_are_declared(load):
    assert load(labels=["r", "g", "b"]).signature().labels == ("r", "g", "b")


@pytest.mark.parametrize("content", ["[]", '{"num_classes": 0}', '{"num_classes": 3, "colour": 1}'])
def test_a_wrong_file_is_refused(tmp_path, content):
    (tmp_path / "m.fake").write_text(content)
    request = LoadRequest(str(tmp_path / "m.fake"), ModelSpec(path="m.fake"), PreprocessSpec())
    with pytest.raises(ModelError):
        FakeRuntime().load(request)
