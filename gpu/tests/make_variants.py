"""Writes variants of networks, as training anew the last layer alone gives them, for tests.

Usage: make_variants.py FOLDER MODEL.onnx... For each model FOLDER gets

- NAME-a.onnx: the network as it is;
- NAME-b.onnx: its last layer with weights has others;
- NAME-c.onnx: yet others, and a second output, which is the sigmoid of the first.

Everything in front of that layer is the same in all of them. The other weights are the first ones in
another order, seeded, so that the outputs stay of the same size.
"""

import pathlib
import sys

import numpy
import onnx
from onnx import helper, numpy_helper

SEED = 5
LAYERS = {"Conv", "Gemm", "MatMul"}


def constants_of(graph, tensor):
    """Returns the initializers from which a tensor is computed."""
    initializers = {initializer.name: initializer for initializer in graph.initializer}
    if tensor in initializers:
        return [initializers[tensor]]
    makers = [node for node in graph.node if tensor in node.output]
    return [found for node in makers for name in node.input for found in constants_of(graph, name)]


def with_other_weights(graph, random):
    """Puts the weights of the last layer that has some into another order."""
    layers = [node for node in graph.node if node.op_type in LAYERS]
    weights = constants_of(graph, layers[-1].input[1])
    shuffled = 0
    for initializer in weights:
        values = numpy_helper.to_array(initializer)
        if values.size > 1:
            values = random.permutation(values.flatten()).reshape(values.shape)
            initializer.CopyFrom(numpy_helper.from_array(values, initializer.name))
            shuffled += 1
    if shuffled == 0:
        sys.exit(f"the last layer, {layers[-1].output[0]}, has no weights of its own")


def add_sigmoid(graph):
    """Adds an output that is the sigmoid of the first."""
    first = graph.output[0]
    second = helper.make_tensor_value_info("sigmoid", first.type.tensor_type.elem_type, None)
    second.type.CopyFrom(first.type)
    graph.node.append(helper.make_node("Sigmoid", [first.name], [second.name]))
    graph.output.append(second)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, paths = pathlib.Path(sys.argv[1]), map(pathlib.Path, sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        random = numpy.random.default_rng(SEED)
        for variant in "abc":
            model = onnx.load(path)
            if variant != "a":
                with_other_weights(model.graph, random)
            if variant == "c":
                add_sigmoid(model.graph)
            onnx.checker.check_model(model)
            onnx.save(model, folder / f"{path.stem}-{variant}.onnx")


if __name__ == "__main__":
    main()
