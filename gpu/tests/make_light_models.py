"""Writes the nine `light_*.onnx` networks of the package `onnx` with weights that make a difference.

Usage: make_light_models.py FOLDER. In the package most weights of a layer are equal, so that rows can't
be told apart by their outputs. Here a layer multiplies by the sines of products of two seeded vectors,
computed within the model: the files stay small. Whatever else such files have stays: a batch that is
fixed to 1, initializers among the inputs, Reshape to constants, Dropout.
"""

import math
import pathlib
import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 1


def sines(out, shape, gain, random):
    """Returns nodes that compute weights of `shape` as the tensor `out`, and their constants."""
    # Keeps activations of about the same size from layer to layer.
    scale = gain / math.sqrt(math.prod(shape[1:]))
    values = {
        "rows": random.uniform(1, 100, [shape[0]] + [1] * (len(shape) - 1)),
        "columns": random.uniform(1, 100, [1] + shape[1:]),
        "scale": numpy.array(scale),
    }
    constants = [numpy_helper.from_array(value.astype(numpy.float32), f"{out}/{name}") for name, value in values.items()]
    nodes = [
        helper.make_node("Mul", [f"{out}/rows", f"{out}/columns"], [f"{out}/angle"]),
        helper.make_node("Sin", [f"{out}/angle"], [f"{out}/sine"]),
        helper.make_node("Mul", [f"{out}/sine", f"{out}/scale"], [out]),
    ]
    return nodes, constants


def multiplies(graph, name):
    """Says whether a vector stretches what it meets; others shift it."""
    for node in graph.node:
        if node.op_type == "BatchNormalization" and name in (node.input[1], node.input[4]):
            return True
        if node.op_type == "Unsqueeze" and node.input[0] == name:
            return multiplies(graph, node.output[0])
        if node.op_type == "Mul" and name in node.input:
            return True
    return False


def vector(graph, name, shape):
    """Returns a vector that changes nothing: ones or zeros."""
    return numpy_helper.from_array(numpy.full(shape, float(multiplies(graph, name)), numpy.float32), name)


def change(model, random):
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer if "SHAPE" in tensor.name}
    # Residual layers add up.
    gain = 1.5 if any(node.op_type == "Sum" for node in graph.node) else 2
    nodes, initializers = [], []
    for node in graph.node:
        shape = shapes.get(node.input[0]) if node.op_type == "ConstantOfShape" else None
        if shape is None:
            nodes.append(node)
        elif len(shape) == 1:
            initializers.append(vector(graph, node.output[0], shape))
        else:
            made, constants = sines(node.output[0], shape, gain, random)
            nodes += made
            initializers += constants
    for tensor in graph.initializer:
        is_vector = tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 1
        initializers.append(vector(graph, tensor.name, list(tensor.dims)) if is_vector else tensor)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(initializers)
    # In this version of the format each initializer is listed among the inputs.
    assert model.ir_version == 3
    listed = {value.name for value in graph.input}
    new = [tensor for tensor in initializers if tensor.name not in listed]
    graph.input.extend(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in new)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    light = pathlib.Path(onnx.__file__).parent / "backend/test/data/light"
    for path in sorted(light.glob("light_*.onnx")):
        model = onnx.load(path)
        change(model, numpy.random.default_rng(SEED))
        onnx.save(model, folder / path.name)


if __name__ == "__main__":
    main()
