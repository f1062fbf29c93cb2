"""Puts normalisation into an ONNX graph, so that it takes uint8 images [batch, height, width, channels].

Runs in the driver's helper processes; nothing here pickles. Needs `onnx`, not ONNX Runtime. Weights in external files
are not read: models above 2 GB can be folded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.core.model_spec import TensorInfo
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.runtimes._batches import check_input
from sparkinfer.runtimes._onnx_affine import absorb
from sparkinfer.runtimes._onnx_file import (
    FOLDED_KEY,
    IMAGE_RANK,
    PREPROCESS_KEY,
    bring_external_files,
    graphs,
    image_input,
    input_info,
    load_model,
    save_model,
    set_metadata,
    source_metadata,
    stored_preprocess,
)

__all__ = ["Folding", "adapted", "fold_file", "fold_preprocess", "folded_metadata", "folded_spec", "spec_for_uint8"]

Floats = npt.NDArray[np.float64]

_OLDEST_OPSET = 7
"""The first whose Mul and Add broadcast as numpy does, and the oldest that ONNX Runtime runs."""
_TO_NCHW = (0, 3, 1, 2)
_TO_NHWC = (0, 2, 3, 1)
_FOLDED = {"rescale", "mean", "std", "channels", "dtype", "layout"}
"""Preprocess keys that act inside a folded graph."""
_RECIPE = _FOLDED | {"resize", "crop", "interpolation"}
"""Preprocess keys that belong to a model, wherever they act."""


@dataclass(frozen=True)
class Folding:
    """What `fold_file` did.

    Attributes:
        path: the file to use: the new one, or the source where there was nothing to do.
        preprocess: the block that the chain must use with it.
        folded: whether a new file was written.
        message: the same for a person, one line.
    """

    path: Path
    preprocess: PreprocessSpec
    folded: bool
    message: str


def folded_spec(spec: PreprocessSpec) -> PreprocessSpec:
    """The preprocess block to use with a folded model: the same geometry, but uint8 NHWC in RGB (or grey)."""
    return spec.folded()


def fold_preprocess(model: onnx.ModelProto, spec: PreprocessSpec, input_name: str | None = None) -> bool:
    """Changes the model in place: its image input becomes uint8 NHWC under the same name, normalised inside.

    The nodes are Transpose, (Gather for BGR,) Cast, Mul, Add. This order costs least: bytes are moved, not floats.
    With efficientnet-lite0 it costs 0.1 ms an image, where Cast first costs 1 ms. The constants are
    `rescale / std` and `-mean / std` of each channel, computed in float64 and applied in float32; a normalisation that
    the model begins with is taken into them.

    Args:
        model: external weights need not be loaded.
        spec: what the model's input is made by today; a weights enum must be resolved before.
        input_name: of the image input; the only one by default.

    Returns:
        False when the model takes uint8 already, so that there is nothing to do.

    Raises:
        ModelError: the input does not fit the spec, or the graph is too old.
    """
    if spec.is_weights_enum:
        raise SpecError(f"{spec.preset} must be resolved before it is folded", key="preprocess.preset")
    value = image_input(model, input_name)
    wanted = input_info(value)
    if wanted.dtype == "uint8":
        return False
    check_input(wanted, spec)
    _check_graph(model, value.name)
    tensor, scale, shift = value.name, *_scale_and_shift(spec)
    if spec.dtype == "float32":
        tensor, scale, shift = absorb(model, tensor, scale, shift, axis=spec.layout.index("c"))
    width = wanted.shape[spec.layout.index("w")] or 1
    scale, shift = _spread(scale, width, spec), _spread(shift, width, spec)
    nodes = _normalising_nodes(spec, value.name, scale, shift, _fresh_names(model, value.name))
    _rename_uses(model.graph, tensor, nodes[-1].output[0])
    for position, node in enumerate(nodes):
        model.graph.node.insert(position, node)
    _retype(value, spec)
    return True


def fold_file(source: Path, target: Path, spec: PreprocessSpec, input_name: str | None = None) -> Folding:
    """`fold_preprocess` from file to file. Labels and other metadata stay; where the file comes from is added.

    External data files are linked or copied beside the target when that lies in another folder.

    Raises:
        ModelError: the source is damaged, or does not fit the spec.
    """
    model = load_model(source)
    if not fold_preprocess(model, spec, input_name):
        info = input_info(image_input(model, input_name))
        return Folding(source, spec_for_uint8(info, spec), folded=False, message=f"nothing to fold: it takes {info}")
    set_metadata(model, folded_metadata(spec) | source_metadata(source, model))
    bring_external_files(model, source.parent, target.parent)
    save_model(model, target)
    takes = input_info(image_input(model, input_name))
    return Folding(
        target, folded_spec(spec), folded=True, message=f"normalisation moved into the graph: it takes {takes}"
    )


def adapted(path: Path, spec: PreprocessSpec) -> PreprocessSpec:
    """The block to use with a file that was folded here, which normalises for itself; `spec` itself for any other file.

    Args:
        path: the model.
        spec: what a job states; keys that nobody set say nothing, a preset that somebody named says all of them.

    Returns:
        The file's own block, with the job's keys that are no part of a recipe (`exif`, `decoder`, ...).

    Raises:
        SpecError: the job states another recipe than the file's, neither as it was folded nor as it is left.
    """
    metadata = {entry.key: entry.value for entry in load_model(path).metadata_props}
    stored, folded = stored_preprocess(metadata), metadata.get(FOLDED_KEY)
    if stored is None or folded is None:
        return spec
    recipe = PreprocessSpec.model_validate({**stored.model_dump(), **json.loads(folded)})
    stated = {key for key in _RECIPE if key in spec.model_fields_set or "preset" in spec.model_fields_set}
    ways = [_differences(spec, own, stated) for own in (recipe, stored)]
    if all(ways):
        differences = min(ways, key=len)
        raise SpecError(
            "the model has its own preprocessing, folded into the file, and the job states another: "
            + ", ".join(f"{key} {job} (the file's: {own})" for key, job, own in differences),
            key="preprocess",
            hint="leave the preprocess block out, or use the model that this one was made from",
        )
    free = spec.model_fields_set - _RECIPE - {"preset"}
    return stored.model_copy(update={key: getattr(spec, key) for key in free})


def _differences(spec: PreprocessSpec, own: PreprocessSpec, stated: set[str]) -> list[tuple[str, object, object]]:
    """Keys that are stated otherwise than the file has them, with both values."""
    pairs = [(key, _spelt_out(spec, key), _spelt_out(own, key)) for key in PreprocessSpec.model_fields if key in stated]
    return [(key, job, file) for key, job, file in pairs if job != file]


def _spelt_out(spec: PreprocessSpec, key: str) -> object:
    """A value in the one way that equal values have in common: a number for each channel, both sides of a square."""
    value = getattr(spec, key)
    if key in {"mean", "std"}:
        return [*value] * (spec.num_channels // len(value))
    if key == "crop" and isinstance(value, int):
        return [value, value]
    return list(value) if isinstance(value, tuple) else value


def folded_metadata(spec: PreprocessSpec) -> dict[str, str]:
    """The metadata of a model that was folded with `spec`."""
    return {
        FOLDED_KEY: spec.model_dump_json(include=_FOLDED),
        PREPROCESS_KEY: folded_spec(spec).model_dump_json(),
    }


def spec_for_uint8(info: TensorInfo, spec: PreprocessSpec) -> PreprocessSpec:
    """The preprocess block for a model that takes uint8 by itself: the layout follows where its channels are."""
    channels = spec.num_channels
    last = len(info.shape) == IMAGE_RANK and info.shape[3] == channels and info.shape[1] != channels
    return spec.model_copy(update={"dtype": "uint8", "layout": "nhwc" if last else "nchw"})


def _check_graph(model: onnx.ModelProto, name: str) -> None:
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), _OLDEST_OPSET)
    if opset < _OLDEST_OPSET:
        raise ModelError(
            f"the model's opset is {opset}; ONNX Runtime runs {_OLDEST_OPSET} and later",
            key="model.path",
            hint="export it again, or convert it with onnx.version_converter",
        )
    if any(output.name == name for output in model.graph.output):
        raise ModelError(
            f"the model gives its input {name!r} as an output, so the input cannot change", key="model.path"
        )


def _fresh_names(model: onnx.ModelProto, name: str) -> Iterator[str]:
    """Tensor names that the model does not use."""
    every = list(graphs(model.graph))
    taken = {output for graph in every for node in graph.node for output in node.output}
    taken |= {tensor.name for graph in every for tensor in graph.initializer}
    number = 0
    while True:
        candidate = f"{name}_sparkinfer_{number}"
        if candidate not in taken:
            yield candidate
        number += 1


def _normalising_nodes(
    spec: PreprocessSpec, image: str, scale: Floats, shift: Floats, names: Iterator[str]
) -> list[onnx.NodeProto]:
    """From uint8 NHWC to what the model took before. Weights are Constant nodes, which graphs of every age allow."""
    nodes: list[onnx.NodeProto] = []

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        output = next(names)
        nodes.append(helper.make_node(kind, list(inputs), [output], name=f"{output}_{kind}", **attributes))
        return output

    def constant(values: object, dtype: type[np.generic]) -> str:
        return add("Constant", value=numpy_helper.from_array(np.asarray(values, dtype)))

    channels_first = spec.layout == "nchw"
    if channels_first:
        image = add("Transpose", image, perm=list(_TO_NCHW))
    if spec.channels == "bgr":
        image = add("Gather", image, constant([2, 1, 0], np.int64), axis=1 if channels_first else 3)
    image = add("Cast", image, to=TensorProto.FLOAT)
    image = add("Mul", image, constant(scale, np.float32))
    image = add("Add", image, constant(shift, np.float32))
    if spec.dtype == "float16":
        add("Cast", image, to=TensorProto.FLOAT16)
    return nodes


def _scale_and_shift(spec: PreprocessSpec) -> tuple[Floats, Floats]:
    """What `(sample * rescale - mean) / std` multiplies and adds: [channels] each."""
    mean, std = (np.broadcast_to(np.asarray(values, np.float64), spec.num_channels) for values in (spec.mean, spec.std))
    return spec.rescale / std, -mean / std


def _spread(constant: Floats, width: int, spec: PreprocessSpec) -> Floats:
    """Constants of each channel, repeated along a row of pixels where its length is known.

    Where channels come last, by themselves or because ONNX Runtime moved its INT8 convolutions there, it would work
    through an image three numbers at a time: 0.6 ms a node and image of 224 x 224 pixels. By rows it takes 0.1 ms.
    """
    if spec.layout == "nhwc":
        return np.tile(constant, (width, 1))
    return np.tile(constant.reshape(-1, 1, 1), (1, 1, width))


def _rename_uses(graph: onnx.GraphProto, old: str, new: str) -> None:
    for inner in graphs(graph):
        for node in inner.node:
            for position, name in enumerate(node.input):
                if name == old:
                    node.input[position] = new


def _retype(value: onnx.ValueInfoProto, spec: PreprocessSpec) -> None:
    """Declares the input as uint8 [batch, height, width, channels]; named and fixed dimensions stay what they are."""
    tensor = value.type.tensor_type
    dims = [type(dim).FromString(dim.SerializeToString()) for dim in tensor.shape.dim]
    if not tensor.HasField("shape"):
        dims = [onnx.TensorShapeProto.Dimension() for _ in range(IMAGE_RANK)]
    elif spec.layout == "nchw":
        dims = [dims[axis] for axis in _TO_NHWC]
    dims[3].dim_value = spec.num_channels
    tensor.elem_type = TensorProto.UINT8
    del tensor.shape.dim[:]
    tensor.shape.dim.extend(dims)
