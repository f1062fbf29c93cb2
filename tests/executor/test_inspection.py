"""`executor.inspection` through the process that the driver starts (`driver.inspect`)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sparkinfer.core.errors import DeviceError, MissingExtraError, ModelError, SpecError
from sparkinfer.core.model_spec import ModelSpec, PostprocessSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import Device
from sparkinfer.driver.inspect import check_providers, inspect
from sparkinfer.executor.inspection import inspect_model, resolve_preset

PREPROCESS = PreprocessSpec.model_validate({"resize": None, "crop": 8})


@pytest.fixture
def fake(tmp_path):
    def write(**content):
        path = tmp_path / "m.fake"
        path.write_text(json.dumps({"num_classes": 3, **content}))
        return path

    return write


def ask(path, preprocess=PREPROCESS, embedding=None, timeout_seconds=120.0, **model):
    spec = ModelSpec(path=str(path), **{"format": "fake", **model})
    return inspect(str(path), spec, preprocess, PostprocessSpec(embedding=embedding), timeout_seconds=timeout_seconds)[
        :2
    ]


def test_signature_and_preprocess_come_back(fake):
    signature, preprocess = ask(fake(labels=["a", "b", "c"]), embedding="channel_means")
    assert str(signature.input) == "input: float32[?, 3, 8, 8]"
    assert str(signature.scores) == "scores: float32[?, 3]"
    assert str(signature.embedding) == "channel_means: float32[?, 3]"
    assert signature.num_classes == 3
    assert signature.labels == ("a", "b", "c")
    assert preprocess == PREPROCESS


def test_a_user_error_comes_back_whole(fake):
    with pytest.raises(ModelError) as caught:
        ask(fake(input={"shape": [None, 8, 8, 3]}))
    assert "input: float32[?, 8, 8, 3]" in caught.value.message
    assert (caught.value.key, caught.value.hint) == ("preprocess.layout", "set preprocess.layout: nhwc")
    with pytest.raises(ModelError) as caught:
        ask(fake(), embedding="nothing")
    assert caught.value.allowed == ("channel_means",)


def test_an_unknown_format_is_a_spec_error(fake):
    with pytest.raises(SpecError) as caught:
        ask(fake(), format="caffe")
    assert "onnx" in caught.value.allowed


def test_a_missing_framework_names_the_pip_line(fake, tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise ModuleNotFoundError(name='onnxruntime')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MissingExtraError) as caught:
        ask(fake(), format="onnx")
    assert caught.value.hint == 'pip install "sparkinfer[onnx]"'
    assert "onnxruntime" in caught.value.message


def test_a_native_crash_is_a_model_error(fake):
    with pytest.raises(ModelError) as caught:
        ask(fake(crash_on=[0.0]))
    assert "crashed the fake runtime (SIGKILL" in caught.value.message
    assert caught.value.key == "model.path"


def test_a_segmentation_fault_says_where(fake, tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("import ctypes; ctypes.string_at(0)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelError, match=r"SIGSEGV: Fatal Python error: Segmentation fault"):
        ask(fake(), format="onnx")


def test_a_model_that_fails_on_zeros_is_a_model_error(fake):
    with pytest.raises(ModelError, match="RuntimeError: the fake model fails on one of these images"):
        ask(fake(fail_on=[0.0]))


def test_it_does_not_wait_forever(fake):
    with pytest.raises(ModelError, match=r"within 0\.001 s"):
        ask(fake(), timeout_seconds=0.001)


def test_chatter_on_stdout_does_no_harm(fake, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("print('welcome', end='')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ask(fake())[0].num_classes == 3


def test_providers_of_this_machine_are_asked_for_without_opening_a_model():
    with pytest.raises(DeviceError, match="has no openvino") as caught:
        check_providers(ModelSpec(path="nowhere.onnx", providers=("openvino",)), Device())
    assert (caught.value.key, "cpu" in caught.value.allowed) == ("model.providers", True)
    check_providers(ModelSpec(path="nowhere.onnx", providers=("openvino", "cpu")), Device())
    check_providers(ModelSpec(path="nowhere.onnx"), Device())
    check_providers(ModelSpec(path="nowhere.pt", providers=("openvino",)), Device())  # no matter of ONNX Runtime


def test_only_the_wanted_framework_is_loaded(fake):
    code = """if True:
        import sys
        from sparkinfer.executor.inspection import inspect_model
        inspect_model({"path": sys.argv[1], "model": {"path": "m", "format": "fake"}, "preprocess": {}})
        print(sorted({"pyspark", "torch", "onnxruntime", "torchvision", "pandas"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code, fake()], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Sizes, filters and statistics as torchvision's documentation of each weight lists them.
@pytest.mark.parametrize(
    ("name", "resize", "crop", "interpolation", "mean"),
    [
        ("ResNet50_Weights.IMAGENET1K_V1", 256, 224, "bilinear", (0.485, 0.456, 0.406)),
        ("ResNet50_Weights.IMAGENET1K_V2", 232, 224, "bilinear", (0.485, 0.456, 0.406)),
        ("ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1", 384, 384, "bicubic", (0.485, 0.456, 0.406)),
        ("EfficientNet_V2_L_Weights.IMAGENET1K_V1", 480, 480, "bicubic", (0.5, 0.5, 0.5)),
    ],
)
def test_weights_enums(name, resize, crop, interpolation, mean):
    recipe = resolve_preset(name)
    assert (recipe["resize"], recipe["crop"], recipe["interpolation"]) == (resize, crop, interpolation)
    assert recipe["mean"] == mean


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("ResNet50_Weights.IMAGENET1K_V9", "ResNet50_Weights.IMAGENET1K_V2"),
        ("FCN_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1", None),
    ],
)
def test_other_weights_are_refused(name, close):
    with pytest.raises(SpecError) as caught:
        resolve_preset(name)
    assert caught.value.key == "preprocess.preset"
    assert close is None or close in caught.value.allowed
    assert len(caught.value.render()) < 1000


def test_a_weights_enum_is_resolved_and_the_persons_keys_win(fake):
    preprocess = {"preset": "EfficientNet_V2_L_Weights.IMAGENET1K_V1", "crop": 240}
    signature, resolved, _ = inspect_model(
        {"path": str(fake()), "model": {"path": "m", "format": "fake"}, "preprocess": preprocess, "embedding": None}
    )
    assert (resolved.resize, resolved.crop, resolved.interpolation) == (480, 240, "bicubic")
    assert resolved.mean == resolved.std == (0.5, 0.5, 0.5)
    assert signature.input.shape == (None, 3, 240, 240)
