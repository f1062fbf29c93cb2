"""TorchScript archives. Executor side (and the driver's inspection process); nothing pickles.

`torch.jit.load` reads an archive's pickles with an unpickler in C++ that makes TorchScript's own types and imports
nothing: no Python runs. But an archive holds a program, which runs when it is opened (`__setstate__`) and at every
batch, and some of torch's operators open files or sockets. So its code is searched for their names first.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from typing import Any

import torch

from sparkinfer.core.errors import ModelError, SparkInferError
from sparkinfer.core.model_spec import Signature
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.runtimes._batches import zero_batch
from sparkinfer.runtimes._torch import TorchRuntime, choose_scores, is_out_of_memory

__all__ = ["TorchScriptRuntime"]

_REACHES_OUT = re.compile(r"\b(?:save|from_file|read_file|write_file|rpc_\w+|\w*c10d\w*|dist_rpc)\b|\\x|\\[0-7]")
"""`aten::save`, `aten::from_file`, torchvision's `image::read_file` and `write_file`, the distributed packages; and the
escapes by which the text of a `getattr` could hide their names."""


class TorchScriptRuntime(TorchRuntime):
    """Runs what `torch.jit.save` wrote.

    The module gives a tensor, a tuple or a dict; `model.output` and `postprocess.embedding` name a position ("1") or
    a key. There are no `model.options`.
    """

    def _open(self, request: LoadRequest, device: torch.device) -> torch.nn.Module:
        if request.model.options:
            raise ModelError("TorchScript takes no options", key="model.options", hint="remove them")
        try:
            if not request.model.trusted:
                _check_code(request.path)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"`torch\.jit\.load` is deprecated", FutureWarning)
                module: torch.nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]
                    request.path, map_location=device
                )
        except (RuntimeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise ModelError(
                f"torch cannot open the model as TorchScript: {str(error).strip().splitlines()[0]}",
                key="model.path",
                hint=_hint(request.path),
            ) from error
        _check_arguments(module)
        return module.eval()

    def _try_out(self) -> Signature:
        """Two zero images, and one where two fail: to tell a batch size that is part of the file from a wrong block."""
        try:
            return super()._try_out()
        except ModelError as error:
            if error.key in {"preprocess", "model.output"} and self._takes_one():
                raise ModelError(
                    "the model takes one image at a time: its batch size is fixed at 1 in the file",
                    key="model.path",
                    hint="export it with an open batch dimension: view(x.size(0), ...) in place of view(1, ...)",
                ) from error
            raise

    def _takes_one(self) -> bool:
        try:
            self.infer(zero_batch(self._request.preprocess, rows=1))
        except SparkInferError:
            return False
        return True

    def _select(self, output: object) -> tuple[torch.Tensor, torch.Tensor | None]:
        outputs = _named(output)
        scores = choose_scores(outputs, self._request.model.output)
        wanted = self._request.embedding
        if wanted is None:
            return scores, None
        embedding = outputs.get(wanted)
        if not isinstance(embedding, torch.Tensor):
            raise ModelError(f"the model has no output {wanted!r}", key="postprocess.embedding", allowed=outputs)
        return scores, embedding


def _check_arguments(module: torch.nn.Module) -> None:
    """Refuses a model that needs more than the image."""
    forward: Any = module.forward
    needed = [argument.name for argument in forward.schema.arguments[1:] if not argument.has_default_value()]
    if len(needed) != 1:
        raise ModelError(
            f"the model takes {len(needed)} inputs ({', '.join(needed) or 'none'}); a job gives it one, the images",
            key="model.path",
            hint="script a module that takes the images alone and knows the other inputs as constants",
        )


def _check_code(path: str) -> None:
    """Refuses a program that can touch more than its tensors. Reads the archive as `torch.jit.load` will."""
    reader = torch._C.PyTorchFileReader(path)  # noqa: SLF001 - zipfile may find other members in the same file
    for name in reader.get_all_records():
        if not (name.startswith("code/") and name.endswith(".py")):
            continue
        found = _REACHES_OUT.search(reader.get_record(name).decode("utf-8", "replace"))
        if found:
            raise ModelError(
                f"the archive's code ({name}) has {found[0]!r} in it, by which a model can reach files or the network",
                key="model.path",
                hint="export the model without it; or, only if you know who made the file: model.trusted: true",
            )


def _named(output: object) -> dict[str, object]:
    if isinstance(output, dict):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, tuple | list):
        return {str(position): value for position, value in enumerate(output)}
    return {"0": output}


def _is_torchscript(path: str) -> bool:
    """TorchScript archives hold `constants.pkl`; checkpoints of `torch.save`, zip files too, do not."""
    return any(name.endswith("/constants.pkl") for name in _members(path))


def _members(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def _hint(path: str) -> str:
    if _is_torchscript(path):
        return "the archive is damaged, or a newer torch wrote it: save it again"
    if any(name.endswith("/data.pkl") for name in _members(path)):
        return "this is a checkpoint, not TorchScript: name its torchvision architecture in model.arch"
    return "save the model with torch.jit.save, or name the torchvision architecture of a state_dict in model.arch"
