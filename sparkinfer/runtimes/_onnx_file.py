"""ONNX files: opening, writing, metadata, weights in external files. Runs in the driver's helper processes.

Nothing here pickles. Needs `onnx`, not ONNX Runtime. External weights are never read into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from sparkinfer.core.errors import ModelError
from sparkinfer.core.model_spec import TensorInfo
from sparkinfer.core.preprocess_spec import PreprocessSpec

__all__ = [
    "FOLDED_KEY",
    "IMAGE_RANK",
    "PREPROCESS_KEY",
    "SOURCE_DATA_KEY",
    "SOURCE_KEY",
    "bring_external_files",
    "digest_of",
    "external_files",
    "graphs",
    "image_input",
    "input_info",
    "load_model",
    "save_model",
    "set_metadata",
    "source_metadata",
    "stored_preprocess",
]

SOURCE_KEY = "sparkinfer.source_digest"
"""Metadata of a file made here: SHA-256 of the `.onnx` file it was made from."""
SOURCE_DATA_KEY = "sparkinfer.source_data_digests"
"""Metadata: JSON object from the name of each external data file of the source to its SHA-256."""
FOLDED_KEY = "sparkinfer.folded"
"""Metadata: JSON object of the preprocess keys that act inside the graph."""
PREPROCESS_KEY = "sparkinfer.preprocess"
"""Metadata: JSON of the preprocess block that the chain must use with this file."""

IMAGE_RANK = 4
"""Dimensions of an image input."""


def load_model(path: Path) -> onnx.ModelProto:
    """The model without its external weights.

    Raises:
        ModelError: it is missing, is no ONNX file, or wants weights from outside its folder.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except FileNotFoundError as error:
        raise ModelError(f"{str(path)!r} does not exist", key="model.path") from error
    except DecodeError as error:
        raise ModelError(f"{str(path)!r} is not an ONNX file: {error}", key="model.path") from error
    if not model.graph.node:
        raise ModelError(f"{str(path)!r} holds no ONNX graph", key="model.path")
    external_files(model)  # refuses the model before anything opens them
    return model


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Writes the model under a temporary name, then renames it, so that a file under its own name is whole.

    Raises:
        ModelError: it is larger than one file can be.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:  # never through a link that somebody put there
            file.write(model.SerializeToString())
        partial.replace(path)
    except (EncodeError, ValueError) as error:
        raise ModelError(
            f"the model does not fit into one file: {error}",
            key="model.path",
            hint="export it with its weights as external data",
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def set_metadata(model: onnx.ModelProto, values: Mapping[str, str]) -> None:
    """Adds or replaces metadata; other entries stay."""
    known = {entry.key: entry for entry in model.metadata_props}
    for key, value in values.items():
        entry = known[key] if key in known else model.metadata_props.add(key=key)
        entry.value = value


def source_metadata(source: Path, model: onnx.ModelProto) -> dict[str, str]:
    """The metadata that says which file a new file was made from.

    Args:
        source: the file.
        model: its graph, for the names of its external data files.
    """
    found = {SOURCE_KEY: digest_of(source)}
    external = sorted(external_files(model))
    if external:
        found[SOURCE_DATA_KEY] = json.dumps({name: digest_of(source.parent / name) for name in external})
    return found


def stored_preprocess(metadata: Mapping[str, str]) -> PreprocessSpec | None:
    """The preprocess block that a file made here carries in its metadata, or None."""
    text = metadata.get(PREPROCESS_KEY)
    return None if text is None else PreprocessSpec.model_validate_json(text)


def image_input(model: onnx.ModelProto, name: str | None) -> onnx.ValueInfoProto:
    """The image input among the graph's inputs; old files list their weights there too, and these do not count.

    Raises:
        ModelError: there is none of this name, or several to choose from.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs: dict[str, onnx.ValueInfoProto] = {v.name: v for v in model.graph.input if v.name not in weights}
    if name is None and len(inputs) == 1:
        return next(iter(inputs.values()))
    if name is None:
        raise ModelError(
            f"the model has {len(inputs)} inputs", key="model.input", allowed=inputs, hint="name the image input"
        )
    if name not in inputs:
        raise ModelError(f"the model has no input {name!r}", key="model.input", allowed=inputs)
    return inputs[name]


def input_info(value: onnx.ValueInfoProto) -> TensorInfo:
    """Name, shape and numpy dtype of an input; a shape that is left out leaves all four dimensions open.

    Raises:
        ModelError: it is not a tensor.
    """
    tensor = value.type.tensor_type
    if tensor.elem_type == TensorProto.UNDEFINED:
        raise ModelError(f"input {value.name!r} is not a tensor", key="model.input")
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    shape = dims if tensor.HasField("shape") else (None,) * IMAGE_RANK
    return TensorInfo(name=value.name, shape=shape, dtype=helper.tensor_dtype_to_np_dtype(tensor.elem_type).name)


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies of its If, Loop and Scan nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from graphs(body)


def bring_external_files(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Links or copies the model's external data files from one folder to another.

    Raises:
        ModelError: another file of that name is there already; it is left alone.
    """
    if source.resolve() == target.resolve():
        return
    for name in sorted(external_files(model)):
        there = target / name
        if there.exists():
            if not there.samefile(source / name) and digest_of(there) != digest_of(source / name):
                raise ModelError(
                    f"{str(there)!r} is in the way of the model's weights",
                    key="output",
                    hint="choose another folder for the output",
                )
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, there)
        except OSError:  # another file system
            with (source / name).open("rb") as weights, there.open("xb") as copy:
                shutil.copyfileobj(weights, copy)


def embed_external_files(source: Path, target: Path) -> Path:
    """The source itself when it holds all of its weights, else a new file with the weights of its external files.

    Raises:
        ModelError: together they are larger than one ONNX file can be (2 GB).
    """
    model = load_model(source)
    if not external_files(model):
        return source
    load_external_data_for_model(model, str(source.parent))
    save_model(model, target)
    return target


def external_files(model: onnx.ModelProto) -> set[str]:
    """Names, relative to the model's folder, of the files that hold its weights.

    Raises:
        ModelError: they lie outside that folder.
    """
    found = {
        entry.value
        for tensor in _tensors(model)
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in found:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts or "\\" in name:
            raise ModelError(f"the model's weights lie outside its own folder: {name!r}", key="model.path")
    return found


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that the file holds or refers to: weights, and constants in the nodes of graphs and functions."""
    for graph in graphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    bodies = [*graphs(model.graph), *(model.functions)]
    for attribute in (attribute for body in bodies for node in body.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
