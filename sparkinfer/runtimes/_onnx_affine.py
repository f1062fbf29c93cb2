"""Additions and multiplications by constants at the beginning of an ONNX graph, taken into one scale and one shift.

Some exporters leave a normalisation of their own at a model's input. Folding another one before it would pass over the
image twice. Helper process only; nothing here pickles.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from sparkinfer.runtimes._onnx_file import IMAGE_RANK, graphs

__all__ = ["absorb"]

Channels = npt.NDArray[np.float64]


def absorb(
    model: onnx.ModelProto, tensor: str, scale: Channels, shift: Channels, axis: int
) -> tuple[str, Channels, Channels]:
    """Removes from the graph the Mul, Add, Sub and Div nodes that alone take the image, one after the other.

    Args:
        model: changed in place.
        tensor: the image, [batch, ...] of rank 4.
        scale: per channel, what the image will have been multiplied by.
        shift: per channel, what will have been added to it then.
        axis: where its channels are.

    Returns:
        The tensor behind the removed nodes, and the scale and shift that give it.
    """
    while True:
        node = _only_user(model, tensor)
        merged = node and _merged(model, node, tensor, scale, shift, axis)
        if not node or not merged:
            return tensor, scale, shift
        scale, shift = merged
        tensor = node.output[0]
        _remove(model, node)


def _only_user(model: onnx.ModelProto, tensor: str) -> onnx.NodeProto | None:
    """The node that alone takes a tensor, unless it stands in a branch, or what comes or goes is an output."""
    everywhere = [node for graph in graphs(model.graph) for node in graph.node if tensor in node.input]
    here: list[onnx.NodeProto] = [node for node in model.graph.node if tensor in node.input]
    if len(everywhere) != 1 or len(here) != 1:
        return None
    outputs = {output.name for output in model.graph.output}
    return here[0] if outputs.isdisjoint([tensor, *here[0].output]) else None


def _merged(
    model: onnx.ModelProto, node: onnx.NodeProto, tensor: str, scale: Channels, shift: Channels, axis: int
) -> tuple[Channels, Channels] | None:
    """Scale and shift once the node is done too; None when it is not of the kind."""
    if node.op_type not in {"Mul", "Add", "Sub", "Div"} or len(node.input) != 2:
        return None
    image_first = node.input[0] == tensor
    constant = _per_channel(model, node.input[1 if image_first else 0], len(scale), axis)
    if constant is None:
        return None
    if node.op_type == "Mul":
        return scale * constant, shift * constant
    if node.op_type == "Add":
        return scale, shift + constant
    if node.op_type == "Sub":
        return (scale, shift - constant) if image_first else (-scale, constant - shift)
    return (scale / constant, shift / constant) if image_first and constant.all() else None


def _per_channel(model: onnx.ModelProto, name: str, channels: int, axis: int) -> Channels | None:
    """A float32 constant that differs by channel at most, as [channels]."""
    tensors = [tensor for tensor in model.graph.initializer if tensor.name == name]
    tensors += [node.attribute[0].t for node in model.graph.node if node.op_type == "Constant" and name in node.output]
    replaceable = any(value.name == name for value in model.graph.input)
    if not tensors or replaceable or uses_external_data(tensors[0]) or tensors[0].data_type != TensorProto.FLOAT:
        return None
    values = numpy_helper.to_array(tensors[0])
    if values.ndim > IMAGE_RANK:
        return None
    values = values.reshape((1,) * (IMAGE_RANK - values.ndim) + values.shape)
    if values.size not in {1, values.shape[axis]} or values.shape[axis] not in {1, channels}:
        return None
    return np.broadcast_to(values.astype(np.float64).ravel(), channels)


def _remove(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Removes a node, and the weights that nobody else takes."""
    names = list(node.input)
    model.graph.node.remove(node)
    used = {name for graph in graphs(model.graph) for other in graph.node for name in other.input}
    for name in names:
        for at in reversed(range(len(model.graph.initializer))):
            if model.graph.initializer[at].name == name and name not in used:
                del model.graph.initializer[at]
