"""The demo's real model on real photographs, against a plain loop of torchvision, Pillow and PyTorch."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import skimage.data
import torch
from PIL import Image
from pyspark.sql import DataFrame, SparkSession
from torchvision import transforms

import sparkinfer as si

pytestmark = pytest.mark.spark

DEMO = Path(__file__).parents[2] / "build" / "demo"
MODELS = {"onnx": DEMO / "efficientnet_lite0.onnx", "torchscript": DEMO / "efficientnet_lite0.pt"}


@pytest.fixture(scope="module", autouse=True)
def demo() -> None:
    if not all(path.exists() for path in MODELS.values()):
        message = "the demo's model is not built: run make model"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


@pytest.fixture(scope="module")
def photos() -> dict[str, bytes]:
    """The demo's photographs, each upright and in pieces of several sizes: some hundred different pictures."""
    pictures: dict[str, bytes] = {}
    for path in sorted((DEMO / "images").iterdir()):
        pictures[path.name] = path.read_bytes()
        whole = Image.open(path).convert("RGB")
        for i, share in enumerate((0.9, 0.75, 0.6, 0.45)):
            width, height = int(whole.width * share), int(whole.height * share)
            piece = whole.crop((whole.width - width, 0, whole.width, height))
            out = io.BytesIO()
            piece.save(out, "JPEG", quality=90)
            pictures[f"{path.stem}-{i}.jpg"] = out.getvalue()
    return pictures


@pytest.fixture(scope="module")
def images(spark: SparkSession, photos: dict[str, bytes]) -> DataFrame:
    return spark.createDataFrame(list(photos.items()), "path string, content binary").repartition(2).cache()


@pytest.fixture(scope="module")
def reference(photos: dict[str, bytes]) -> dict[str, tuple[int, float]]:
    """Top class and its probability, by the book."""
    model = torch.jit.load(MODELS["torchscript"])
    steps = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    found = {}
    with torch.inference_mode():
        for name, content in photos.items():
            scores = model(steps(Image.open(io.BytesIO(content)).convert("RGB"))[None])
            confidence, index = torch.softmax(scores[0], 0).max(0)
            found[name] = (int(index), float(confidence))
    return found


def top1(table: DataFrame) -> dict[str, tuple[int, float]]:
    rows = table.select("path", "predicted_class_idx", "confidence").collect()
    return {row["path"]: (row["predicted_class_idx"], row["confidence"]) for row in rows}


@pytest.mark.parametrize(
    ("format_", "engine"),
    [("onnx", "arrow"), ("onnx", "pandas"), ("onnx", "predict_batch_udf"), ("torchscript", "arrow")],
)
def test_same_as_the_plain_loop(
    images: DataFrame, reference: dict[str, tuple[int, float]], format_: str, engine: str
) -> None:
    model = si.model(MODELS[format_], labels=str(DEMO / "labels.txt"))
    found = top1(si.predict(images, model, engine=engine))
    assert found.keys() == reference.keys()
    assert {name: index for name, (index, _) in found.items()} == {n: index for n, (index, _) in reference.items()}
    for name, (_, confidence) in found.items():
        assert confidence == pytest.approx(reference[name][1], abs=1e-3)


def test_engines_give_equal_rows(images: DataFrame) -> None:
    model = si.model(MODELS["onnx"])
    by_engine = [
        sorted(si.predict(images, model, engine=engine).drop("run_id").collect())
        for engine in ("arrow", "pandas", "predict_batch_udf")
    ]
    assert by_engine[0] == by_engine[1] == by_engine[2]


def test_a_cat_is_a_cat(spark: SparkSession) -> None:
    cat = Path(skimage.data.data_dir) / "chelsea.png"
    table = si.predict(si.read_images(spark, str(cat)), si.model(MODELS["onnx"], labels=str(DEMO / "labels.txt")))
    row = table.first()
    assert row is not None
    assert row["label"] in {"Egyptian cat", "tabby", "tiger cat"}
