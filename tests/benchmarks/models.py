"""The benchmark's models: each as ONNX and as TorchScript, with its preprocessing recipe."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from PIL import Image

from tests.benchmarks.contestants.job import Recipe

__all__ = ["MODELS", "BenchModel", "prepare_model"]

log = logging.getLogger(__name__)

MODELS = ("efficientnet-lite0", "resnet50")

# efficientnet-lite0's own: (pixel - 127) / 128.
_LITE0_RECIPE = Recipe(256, 224, "bicubic", (0.498039,) * 3, (0.501961,) * 3)
# torchvision's reference training recipe for ImageNet.
_IMAGENET_RECIPE = Recipe(256, 224, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

CALIBRATION_IMAGES = 64
CLASSES = 1000


@dataclass(frozen=True)
class BenchModel:
    """A model to run, the same in two formats."""

    name: str
    onnx: Path
    torchscript: Path
    recipe: Recipe


def prepare_model(name: str, demo: Path, into: Path, photos: Path) -> BenchModel:
    """The model's files, made where they are missing.

    Args:
        name: one of `MODELS`.
        demo: folder of the demo's model.
        into: folder for models made here.
        photos: a set of images, for batch statistics.

    Raises:
        FileNotFoundError: the demo's model has not been built.
    """
    if name == "efficientnet-lite0":
        model = BenchModel(name, demo / "efficientnet_lite0.onnx", demo / "efficientnet_lite0.pt", _LITE0_RECIPE)
        for path in (model.onnx, model.torchscript):
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing: run `make model` first")
        return model
    model = BenchModel(name, into / f"{name}.onnx", into / f"{name}.pt", _IMAGENET_RECIPE)
    if not (model.onnx.exists() and model.torchscript.exists()):
        log.info("building %s ...", name)
        into.mkdir(parents=True, exist_ok=True)
        _export(_random_resnet50(_inputs(photos, model.recipe)), model)
    return model


def _inputs(photos: Path, recipe: Recipe) -> Any:
    """The first images as a float32 tensor [n, 3, crop, crop]."""
    import torch
    from torchvision import transforms

    transform = transforms.Compose(
        [
            transforms.Resize(recipe.resize),
            transforms.CenterCrop(recipe.crop),
            transforms.ToTensor(),
            transforms.Normalize(recipe.mean, recipe.std),
        ]
    )
    return torch.stack([transform(Image.open(io.BytesIO(content))) for content in _contents(photos)])


def _contents(photos: Path) -> list[bytes]:
    files = sorted(photos.glob("*.jpg"))[:CALIBRATION_IMAGES]
    if files:
        return [path.read_bytes() for path in files]
    contents: list[bytes] = []
    for part in sorted(photos.glob("*.parquet")):
        contents += pq.ParquetFile(part).read_row_group(0, columns=["content"])["content"].to_pylist()
    step = max(1, len(contents) // CALIBRATION_IMAGES)
    return contents[::step][:CALIBRATION_IMAGES]


def _random_resnet50(inputs: Any) -> Any:
    """torchvision's ResNet-50 with seeded random weights that still tell pictures apart.

    Untrained batch statistics would let activations grow from layer to layer until all pictures look alike, and the
    best class would hang on the last bit. So the statistics are measured on real inputs, and the last layer is scaled
    until its scores spread as those of a trained model do.
    """
    import torch
    from torchvision.models import resnet50

    torch.manual_seed(0)
    network = resnet50(weights=None, num_classes=CLASSES)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # a plain mean over the batches seen
    with torch.inference_mode():
        network.train()
        for batch in inputs.split(16):
            network(batch)
        network.eval()
        scores = network(inputs)
    with torch.no_grad():
        centre = scores.mean(dim=0)
        scale = 3.0 / (scores - centre).std()
        network.fc.bias.sub_(centre)
        network.fc.weight.mul_(scale)
        network.fc.bias.mul_(scale)
    return network


def _export(network: Any, model: BenchModel) -> None:
    import torch

    example = torch.zeros(2, 3, model.recipe.crop, model.recipe.crop)
    with torch.inference_mode():
        torch.jit.trace(network, example).save(str(model.torchscript))
    torch.onnx.export(
        network,
        (example,),
        model.onnx,
        dynamo=True,
        external_data=False,
        verbose=False,
        input_names=["input"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
