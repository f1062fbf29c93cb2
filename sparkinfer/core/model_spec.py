"""The `model:` and `postprocess:` blocks, and what a model says of itself. Framework-free; pickles. Both sides."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Artifact", "ModelSpec", "PostprocessSpec", "Signature", "TensorInfo"]


class ModelSpec(BaseModel):
    """Which model, and how to open it. `runtimes` opens it on the executors."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    path: str = Field(description="file, local or on any Hadoop file system (hdfs:, s3a:, ...)", min_length=1)
    format: str = Field(
        "auto", description="auto (by the file's suffix and first bytes), onnx, torchscript, torch, or a plugin's name"
    )
    arch: str | None = Field(None, description="torchvision architecture of a state_dict: resnet50, vit_b_16, ...")
    labels: str | None = Field(None, description="text file with one label a line, or a JSON list or {index: label}")
    name: str | None = Field(None, description="model_name column; the file's stem by default")
    version: str | None = Field(None, description="model_version column")
    device: str = Field("auto", description="auto, cpu, cuda, or cuda:N", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    precision: Literal["fp32", "fp16", "bf16"] = Field("fp32", description="arithmetic inside the model (torch only)")
    providers: tuple[Literal["tensorrt", "cuda", "rocm", "openvino", "cpu"], ...] = Field(
        (), description="ONNX Runtime's execution providers, the preferred first; by the device when left out"
    )
    input: str | None = Field(None, description="name of the image input; the only one by default")
    output: str | None = Field(None, description="name of the scores output; the first two-dimensional one by default")
    fold: bool = Field(
        True, description="put normalisation into the model where its format allows, so that bytes travel to the device"
    )
    digest: str | None = Field(
        None, description="SHA-256 of the file in hex; another file is refused", pattern=r"^(sha256:)?[0-9a-fA-F]{64}$"
    )
    trusted: bool = Field(False, description="allow a pickled model file, which can run any code when it is opened")
    options: dict[str, Any] = Field(default_factory=dict, description="passed on to the runtime as they are")

    @property
    def wanted_device(self) -> str:
        """`device`, where providers that need an NVIDIA GPU and no CPU among them leave `auto` no choice."""
        on_nvidia = bool({"cuda", "tensorrt"} & set(self.providers))
        return "cuda" if self.device == "auto" and on_nvidia and "cpu" not in self.providers else self.device

    @property
    def display_name(self) -> str:
        """`name`, or the file's stem."""
        return self.name or self.path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]


class PostprocessSpec(BaseModel):
    """How scores become columns of the prediction table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    activation: Literal["softmax", "sigmoid", "none"] = Field(
        "softmax", description="scores to confidence; none: the model already gives probabilities"
    )
    top_k: int = Field(5, description="how many classes the top_k column holds; fewer when the model has fewer", ge=1)
    embedding: str | None = Field(
        None, description="output (ONNX), tuple position (TorchScript) or module (torch) that fills `embedding`"
    )
    check: bool = Field(
        True, description="look at each task's first 10 results: probabilities, finite, not all the same; else fail"
    )


class TensorInfo(BaseModel):
    """One input or output of a model. A None in `shape` is a dimension that the model leaves open."""

    model_config = ConfigDict(frozen=True)

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


class Signature(BaseModel):
    """What a model says of itself, read once on the driver's side in a process of its own.

    Attributes:
        input: the image input: name, shape with the batch first, numpy dtype name.
        scores: the output that holds class scores, [batch, num_classes].
        embedding: the output that fills the `embedding` column, [batch, width], if one was asked for.
        num_classes: width of `scores`.
        labels: labels found in the model file, if any, in class order.
    """

    model_config = ConfigDict(frozen=True)

    input: TensorInfo
    scores: TensorInfo
    embedding: TensorInfo | None = None
    num_classes: int
    labels: tuple[str, ...] | None = None


class Artifact(BaseModel):
    """A model file on its way to the executors.

    Attributes:
        digest: SHA-256 of the bytes, lower-case hex; also the `model_digest` column.
        size: bytes.
        suffix: of the original file name, dot included.
    """

    model_config = ConfigDict(frozen=True)

    digest: str
    size: int
    suffix: str

    @property
    def file_name(self) -> str:
        """Name of the copy on a node."""
        return f"{self.digest}{self.suffix}"
