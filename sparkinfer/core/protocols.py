"""The one interface between the chain and a framework. Executor side (and the driver's inspection process).

A `Runtime` has two methods that do the work, `load` and `infer`. It is made and used inside one Python
process and never pickles: specs travel, live objects are built where they run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkinfer.core.model_spec import ModelSpec, Signature
    from sparkinfer.core.preprocess_spec import PreprocessSpec

__all__ = ["Device", "DeviceMemory", "Folding", "LoadRequest", "Outputs", "Runtime"]


@dataclass(frozen=True)
class Device:
    """A resolved device: `kind` is cpu or cuda; `index` counts among the visible devices of this process."""

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


@dataclass(frozen=True)
class LoadRequest:
    """Everything a runtime needs to open a model.

    Attributes:
        path: a local file with the model's bytes.
        model: the spec it came from (`arch`, `precision`, `input`, `output`, `options`).
        preprocess: what the inputs will look like.
        embedding: which output fills the `embedding` column, if any.
        device: where to run; already checked to exist.
        threads: intra-op threads that this process may use on the CPU.
        share: `path` lies in a private folder that all processes of this node open it from: what they can share may be
            put beside it.
        inside: normalisation that the runtime must put before the model, which then gets uint8 NHWC; None: none.
    """

    path: str
    model: ModelSpec
    preprocess: PreprocessSpec
    embedding: str | None = None
    device: Device = Device()
    threads: int = 1
    inside: PreprocessSpec | None = None
    share: bool = False


@dataclass(frozen=True)
class Folding:
    """A model ready to travel; folded, it takes uint8 images [batch, height, width, channels] and normalises itself.

    Attributes:
        path: the file to send to the executors.
        preprocess: what is left for the chain to do; all of it where nothing was folded.
        inside: for `LoadRequest.inside`, where the runtime normalises; None where the file itself does.
    """

    path: str
    preprocess: PreprocessSpec
    inside: PreprocessSpec | None = None


@dataclass(frozen=True)
class Outputs:
    """What one call gives: numpy arrays on the host.

    Attributes:
        scores: float32 [batch, num_classes].
        embedding: float32 [batch, width], or None when none was asked for.
    """

    scores: Any
    embedding: Any = None


@dataclass(frozen=True)
class DeviceMemory:
    """An accelerator's memory, with the model loaded.

    Attributes:
        free_bytes: of the device that the model is on.
        bytes_per_image: that one more image in a batch takes.
    """

    free_bytes: int
    bytes_per_image: float


class Runtime(ABC):
    """Opens a model of one format and runs batches through it."""

    @abstractmethod
    def load(self, request: LoadRequest) -> None:
        """Opens the model, once.

        Raises:
            ModelError: the file is damaged, of another format, or does not fit the spec; names both sides.
            DeviceError: `request.device` cannot be used by this framework build; says what is missing.
        """

    @abstractmethod
    def infer(self, batch: Any) -> Outputs:
        """Runs one batch.

        Args:
            batch: C-contiguous numpy array, `preprocess.batch_shape(n)` and `preprocess.dtype`, n >= 1; only read, and
                only during the call.

        Raises:
            OutOfDeviceMemoryError: the device's memory did not suffice for this batch.
            Exception: anything else is the model's own failure on this batch.
        """

    @abstractmethod
    def signature(self) -> Signature:
        """What the loaded model says of itself: from its metadata, completed by running two zero images."""

    def adapt(self, path: str, preprocess: PreprocessSpec) -> PreprocessSpec:  # noqa: ARG002
        """The preprocess block for this file: another one where the file says that it does a part of it itself.

        Runs before `load`, in the driver's helper process.
        """
        return preprocess

    def pack(self, path: str, target: str) -> str:  # noqa: ARG002
        """One file that holds the whole model, since one file travels: `path` itself (the default), or a new `target`.

        Raises:
            ModelError: it does not fit into one file.
        """
        return path

    def fold(self, path: str, target: str, preprocess: PreprocessSpec, input_name: str | None) -> Folding | None:  # noqa: ARG002
        """Moves normalisation behind the model's input: bytes travel to the device instead of floats.

        Runs once, in the driver's helper process.

        Args:
            path: the model file.
            target: where to write another one, if that is how it is done.
            preprocess: what makes the model's input today, float32 or float16.
            input_name: of the image input, if the spec names it.

        Returns:
            How to use the folded model; None (the default) where this format cannot.
        """
        return None

    @property
    def fixed_batches(self) -> bool:
        """Whether the last bits of a result depend on how many images are in the batch.

        Where they do, every batch is padded to one size, so that a row's prediction does not change with its
        neighbours. (Kernels are chosen by shape: always in torch, and in anything that runs on CUDA.)
        """
        return False

    def measure_memory(self, rows: int) -> DeviceMemory | None:  # noqa: ARG002 - for those that measure
        """Runs `rows` zero images to see what one takes; None where there is nothing to measure, as on a CPU."""
        return None

    def close(self) -> None:  # noqa: B027 - optional on purpose
        """Frees what the model holds. The default leaves it to the garbage collector."""
