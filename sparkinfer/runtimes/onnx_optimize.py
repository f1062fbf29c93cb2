"""Rewrites ONNX files: graph optimisation, FP16, INT8. Runs in the driver's helper process; nothing here pickles.

`executor.optimization` reaches this module by name; it decides what to try, this module does it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
import onnxruntime as ort
from onnx import TensorProto

from sparkinfer.core.errors import ModelError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.runtimes._onnx_file import (
    PREPROCESS_KEY,
    external_files,
    graphs,
    image_input,
    input_info,
    load_model,
    save_model,
    set_metadata,
    source_metadata,
    stored_preprocess,
)
from sparkinfer.runtimes._onnx_graph import adapted, fold_preprocess, folded_metadata, folded_spec, spec_for_uint8
from sparkinfer.runtimes._onnx_quantize import QUANTIZED, Quantizer

__all__ = ["MADE_KEY", "Graph", "Quantizer", "finish", "fitting_spec", "optimize_graph", "to_float16", "whole_size"]

MADE_KEY = "sparkinfer.optimized"
"""Metadata: JSON object that says how the file was made."""
LARGEST_BYTES = 1 << 31
"""Bytes of a model, weights included, that can still be rewritten as one file: protobuf's limit."""


class Graph(NamedTuple):
    """What became of the graph: nodes before, nodes in the new file, nodes once the CPU's own fusions are done too."""

    before: int
    after: int
    running: int


def fitting_spec(source: Path, spec: PreprocessSpec | None, input_name: str | None) -> PreprocessSpec:
    """The preprocess block of a model: the given one, else what its metadata says, else the default.

    For a model that takes uint8, element type and layout follow from the model, whatever the block says.

    Raises:
        SpecError: the model has its own recipe in it, and the block is another.
    """
    model = load_model(source)
    if spec is None:
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        spec = stored_preprocess(metadata) or PreprocessSpec()
    spec = adapted(source, spec)
    info = input_info(image_input(model, input_name))
    return spec_for_uint8(info, spec) if info.dtype == "uint8" else spec


def optimize_graph(source: Path, target: Path) -> Graph:
    """Folds constants, batch normalisation and what else needs no kernel of its own into standard ONNX operators.

    What depends on the device (convolution with activation, memory layout) ONNX Runtime does when it opens the file:
    such a graph would not run elsewhere. `Graph.running` tells how far that goes on a CPU.

    Raises:
        ModelError: the model is damaged, quantised already, or too large.
    """
    model = load_model(source)
    before = len(model.graph.node)
    if any(node.op_type in QUANTIZED for node in model.graph.node):
        raise ModelError(
            "the model is quantised already", key="model.path", hint="optimise the float32 model it was made from"
        )
    whole = target.with_name(f"{target.stem}.whole.onnx")
    _write_with_weights(source, whole)
    levels = ort.GraphOptimizationLevel
    _session_saves(whole, target, levels.ORT_ENABLE_BASIC)
    running = target.with_name(f"{target.stem}.running.onnx")
    _session_saves(whole, running, levels.ORT_ENABLE_EXTENDED)
    counts = Graph(before, _tidy(target), len(load_model(running).graph.node))
    whole.unlink()
    running.unlink()
    return counts


def to_float16(source: Path, target: Path) -> bool:
    """Weights and arithmetic in float16; inputs and outputs keep their types.

    Returns:
        Whether ONNX Runtime 1.24 and later may crash when they open the file on an x86 CPU. For a CPU they convert
        back to float32, and their `NchwcTransformer` takes no Transpose, conversion, MatMul in a row.

    Raises:
        ModelError: the model holds no float32 weights.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = onnx.load(source)
    if all(tensor.data_type != TensorProto.FLOAT for tensor in model.graph.initializer):
        raise ModelError("the model holds no float32 weights to convert", key="model.path")
    half = convert_float_to_float16(model, keep_io_types=True)
    OnnxModel(half).topological_sort()  # the conversions of inputs and outputs were added at the end
    save_model(half, target)
    return {"Transpose", "MatMul"} <= {node.op_type for node in half.graph.node}


def finish(
    made: Path,
    target: Path,
    *,
    source: Path,
    spec: PreprocessSpec,
    input_name: str | None,
    fold: bool,
    labels: Sequence[str] | None,
    how: Mapping[str, object],
) -> PreprocessSpec:
    """Folds the preprocessing if asked, and writes the metadata: the source's own, where it comes from, labels, how.

    Args:
        made: the rewritten model; takes what the source takes.
        target: the file to write.
        source: the model that everything was made from.
        spec: what the source's input is made by.
        input_name: of the image input; the only one by default.
        fold: move normalisation into the graph.
        labels: one a class; those of the source by default.
        how: precision and settings.

    Returns:
        The preprocess block to use with the new file.
    """
    model = onnx.load(made)
    original = load_model(source)
    info = input_info(image_input(model, input_name))
    metadata = {entry.key: entry.value for entry in original.metadata_props}
    metadata |= source_metadata(source, original) | {MADE_KEY: json.dumps(dict(how))}
    if labels is not None:
        metadata["labels"] = json.dumps(list(labels))
    if info.dtype == "uint8":
        spec = spec_for_uint8(info, spec)
    elif fold:
        fold_preprocess(model, spec, input_name)
        metadata |= folded_metadata(spec)
        spec = folded_spec(spec)
    metadata[PREPROCESS_KEY] = spec.model_dump_json()
    del model.metadata_props[:]
    set_metadata(model, metadata)
    save_model(model, target)
    return spec


def whole_size(source: Path) -> int:
    """Bytes of a model file and of the files beside it that hold its weights."""
    external = external_files(load_model(source))
    return source.stat().st_size + sum((source.parent / name).stat().st_size for name in external)


def _write_with_weights(source: Path, target: Path) -> None:
    """The model with its external weights inside."""
    size = whole_size(source)
    if size >= LARGEST_BYTES:
        raise ModelError(
            f"the model has {size} bytes; up to {LARGEST_BYTES} can be optimised here",
            key="model.path",
            hint="its normalisation can still be folded, and ONNX Runtime optimises it whenever it opens it",
        )
    save_model(onnx.load(source), target)


def _session_saves(source: Path, target: Path, level: ort.GraphOptimizationLevel) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(target)
    try:
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot open the model: {error}", key="model.path") from error


def _tidy(path: Path) -> int:
    """Drops the operator sets that ONNX Runtime declares but the graph does not use, names every node, counts them."""
    model = load_model(path)
    used = {node.domain for graph in graphs(model.graph) for node in graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    taken = {node.name for node in model.graph.node}
    for number, node in enumerate(model.graph.node):
        if not node.name:
            name = f"{node.op_type}_{number}"
            node.name = name if name not in taken else f"sparkinfer_{name}"
    save_model(model, path)
    return len(model.graph.node)
