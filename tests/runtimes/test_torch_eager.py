from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision

from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.runtimes.torch_eager import TorchEagerRuntime

BATCH = np.random.default_rng(3).normal(size=(2, 3, 64, 64)).astype(np.float32)


def load(path, arch, side=64, embedding=None, **model):
    runtime = TorchEagerRuntime()
    spec = ModelSpec(path=str(path), arch=arch, **model)
    runtime.load(LoadRequest(str(path), spec, PreprocessSpec(resize=None, crop=side), embedding))
    return runtime


def build(arch, **options):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = torchvision.models.get_model(arch, weights=None, **options).eval()
        for buffer in module.buffers():
            if buffer.is_floating_point():  # running means and variances that are not just 0 and 1
                buffer.add_(torch.rand_like(buffer))
    return module


def run(module, batch):
    with torch.no_grad():
        return module(torch.tensor(batch)).numpy()


@pytest.fixture(scope="module")
def resnet():
    return build("resnet18", num_classes=7)


@pytest.mark.parametrize("style", ["plain", "state_dict", "model", "module.", "lightning", "compiled", "old", "legacy"])
def test_ways_to_write_a_checkpoint(resnet, tmp_path, style):
    weights = resnet.state_dict()
    content = {
        "state_dict": {"epoch": 3, "state_dict": weights, "optimizer": {"lr": 0.1}},
        "model": {"model": weights, "args": [1, "two"]},
        "module.": {f"module.{name}": value for name, value in weights.items()},
        "lightning": {"state_dict": {f"model.{name}": value for name, value in weights.items()}},
        "compiled": {f"_orig_mod.{name}": value for name, value in weights.items()},
        "old": {name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")},
    }.get(style, weights)
    path = tmp_path / "m.pth"
    torch.save(content, path, _use_new_zipfile_serialization=style != "legacy")
    runtime = load(path, "resnet18")
    np.testing.assert_allclose(runtime.infer(BATCH).scores, run(resnet, BATCH), rtol=1e-5, atol=1e-5)
    assert runtime.signature().num_classes == 7


def test_safetensors_whatever_the_suffix(resnet, tmp_path):
    for name in ("m.safetensors", "m.pt"):
        safetensors.torch.save_file(resnet.state_dict(), tmp_path / name)
        scores = load(tmp_path / name, "resnet18").infer(BATCH).scores
        np.testing.assert_allclose(scores, run(resnet, BATCH), rtol=1e-5, atol=1e-5)


def test_half_precision_weights_run_in_fp32(resnet, tmp_path):
    halves = {name: value.half() if value.is_floating_point() else value for name, value in resnet.state_dict().items()}
    torch.save(halves, tmp_path / "m.pth")
    np.testing.assert_allclose(
        load(tmp_path / "m.pth", "resnet18").infer(BATCH).scores, run(resnet, BATCH), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize(
    ("arch", "side"),
    [
        ("alexnet", 64),
        ("squeezenet1_0", 64),
        ("mobilenet_v3_small", 64),
        ("regnet_x_400mf", 64),
        ("shufflenet_v2_x0_5", 64),
        ("swin_t", 64),
    ],
)
def test_the_number_of_classes_comes_from_the_head(tmp_path, arch, side):
    module = build(arch, num_classes=3)
    torch.save(module.state_dict(), tmp_path / "m.pth")
    runtime = load(tmp_path / "m.pth", arch, side)
    assert runtime.signature().num_classes == 3
    np.testing.assert_allclose(runtime.infer(BATCH).scores, run(module, BATCH), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("aux", [True, False])
def test_auxiliary_heads(tmp_path, aux):
    module = build("googlenet", num_classes=3, aux_logits=True, init_weights=False)
    weights = {name: value for name, value in module.state_dict().items() if aux or not name.startswith("aux")}
    torch.save(weights, tmp_path / "m.pth")
    runtime = load(tmp_path / "m.pth", "googlenet")
    assert runtime.signature().num_classes == 3
    np.testing.assert_allclose(runtime.infer(BATCH).scores, run(module, BATCH), rtol=1e-4, atol=1e-4)


def test_options_reach_the_builder(tmp_path):
    module = build("googlenet", num_classes=3, aux_logits=False, init_weights=False, transform_input=True)
    torch.save(module.state_dict(), tmp_path / "m.pth")
    runtime = load(tmp_path / "m.pth", "googlenet", options={"transform_input": True})
    np.testing.assert_allclose(runtime.infer(BATCH).scores, run(module, BATCH), rtol=1e-4, atol=1e-4)
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "googlenet", options={"colour": "blue"})
    assert caught.value.key == "model.options"
    assert "colour" in caught.value.message


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("vit_b_16", {"image_size": 100}, "Input shape indivisible by patch size!"),
        ("resnet18", {"replace_stride_with_dilation": [True, True, True]}, "Dilation > 1 not supported in BasicBlock"),
        ("resnet18", {"num_classes": -1}, "negative dimension"),
    ],
)
def test_options_that_a_builder_cannot_work_with(resnet, tmp_path, arch, options, message):
    torch.save(resnet.state_dict(), tmp_path / "m.pth")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", arch, options=options)
    assert caught.value.key == "model.options"
    assert message in caught.value.message
    assert arch in caught.value.hint


def test_embedding_of_a_module_is_flattened(resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "m.pth")
    runtime = load(tmp_path / "m.pth", "resnet18", embedding="avgpool")
    seen = []
    with resnet.avgpool.register_forward_hook(lambda *call: seen.append(call[2])):
        run(resnet, BATCH)
    np.testing.assert_allclose(runtime.infer(BATCH).embedding, seen[0].numpy().reshape(2, 512), rtol=1e-4, atol=1e-4)
    assert runtime.signature().embedding.shape == (None, 512)


def test_an_unknown_module_lists_a_few(resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "m.pth")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "resnet18", embedding="avg_pool")
    assert caught.value.allowed[0] == "avgpool"
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "resnet18", embedding="???")
    assert "layer4" in caught.value.allowed


def test_a_wrong_architecture_lists_a_few_keys(resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "m.pth")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "vgg11")
    assert "missing: classifier.0.bias, classifier.0.weight" in caught.value.message
    assert "unexpected: bn1.bias, bn1.num_batches_tracked" in caught.value.message
    assert caught.value.key == "model.arch"
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "resnet34")
    assert "missing: layer1.2.bn1.bias" in caught.value.message
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "resnet18", options={"width_per_group": 128, "norm_layer": None, "num_classes": 9})
    assert caught.value.key in ("model.arch", "model.options")


def test_another_shape_is_named(resnet, tmp_path):
    weights = resnet.state_dict()
    weights["conv1.weight"] = torch.zeros(64, 1, 7, 7)
    torch.save(weights, tmp_path / "m.pth")
    with pytest.raises(ModelError, match=r"conv1.weight \[64, 1, 7, 7\] instead of \[64, 3, 7, 7\]"):
        load(tmp_path / "m.pth", "resnet18")


def test_unknown_and_missing_architecture(resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "m.pth")
    with pytest.raises(SpecError) as caught:
        load(tmp_path / "m.pth", "resnet19")
    assert "resnet18" in caught.value.allowed
    assert caught.value.key == "model.arch"
    with pytest.raises(SpecError) as caught:
        load(tmp_path / "m.pth", None)
    assert caught.value.key == "model.arch"


def test_a_pickled_module_is_refused_by_name(resnet, tmp_path):
    torch.save(resnet, tmp_path / "m.pth")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "resnet18")
    assert "torchvision.models.resnet.ResNet" in caught.value.message
    assert "state_dict" in str(caught.value.hint)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.zeros(3)])
def test_something_else_is_no_state_dict(tmp_path, content):
    torch.save(content, tmp_path / "m.pth")
    with pytest.raises(ModelError, match="not a state_dict"):
        load(tmp_path / "m.pth", "resnet18")


def test_weights_are_mapped_not_copied(resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "m.pth")
    runtime = load(tmp_path / "m.pth", "resnet18")
    address = runtime._module.conv1.weight.data_ptr()
    with Path("/proc/self/maps").open() as maps:
        ranges = [line.split(maxsplit=5) for line in maps]
    (owner,) = [
        fields[-1].strip()
        for fields in ranges
        if len(fields) == 6 and int(fields[0].split("-")[0], 16) <= address < int(fields[0].split("-")[1], 16)
    ]
    assert owner == str(tmp_path / "m.pth")


def test_a_pickle_protocol_that_torch_refuses_is_a_model_error(resnet, tmp_path):
    torch.save(resnet.state_dict(), tmp_path / "m.pth", pickle_protocol=5)
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pth", "resnet18")
    assert caught.value.key == "model.path"
