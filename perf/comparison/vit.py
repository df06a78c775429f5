"""Writes the model of the comparison: a small vision transformer with seeded weights.

Usage: vit.py FILE.onnx. Input `image` is [batch, 3, 64, 64], output `scores` [batch, 100]; 6 blocks of
width 192 over 64 patches of 8 x 8 pixels.
"""

import math
import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 1
SIDE, PATCH, WIDTH, HEADS, BLOCKS, CLASSES = 64, 8, 192, 3, 6, 100
PATCHES = (SIDE // PATCH) ** 2


class Builder:
    """The nodes and constants of a graph while it grows."""

    def __init__(self):
        self.random = numpy.random.default_rng(SEED)
        self.nodes, self.constants = [], []

    def constant(self, value, dtype=numpy.float32):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.asarray(value, dtype), name))
        return name

    def weights(self, *shape):
        return self.constant(self.random.normal(0, 1 / math.sqrt(shape[0]), shape))

    def node(self, operator, *inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def reshape(self, x, *shape):
        return self.node("Reshape", x, self.constant(shape, numpy.int64))

    def linear(self, x, width_in, width_out):
        product = self.node("MatMul", x, self.weights(width_in, width_out))
        return self.node("Add", product, self.constant(numpy.zeros(width_out)))

    def norm(self, x):
        ones, zeros = self.constant(numpy.ones(WIDTH)), self.constant(numpy.zeros(WIDTH))
        return self.node("LayerNormalization", x, ones, zeros, axis=-1)

    def gelu(self, x):
        half = self.node("Mul", x, self.constant(0.5))
        erf = self.node("Erf", self.node("Div", x, self.constant(math.sqrt(2))))
        return self.node("Mul", half, self.node("Add", erf, self.constant(1)))

    def heads(self, x, *order):
        """Returns a projection of `x` with the heads as a dimension of their own."""
        split = self.reshape(self.linear(x, WIDTH, WIDTH), 0, PATCHES, HEADS, WIDTH // HEADS)
        return self.node("Transpose", split, perm=list(order))

    def attention(self, x):
        query, key, value = self.heads(x, 0, 2, 1, 3), self.heads(x, 0, 2, 3, 1), self.heads(x, 0, 2, 1, 3)
        scaled = self.node("Div", self.node("MatMul", query, key), self.constant(math.sqrt(WIDTH // HEADS)))
        mixed = self.node("MatMul", self.node("Softmax", scaled, axis=-1), value)
        merged = self.reshape(self.node("Transpose", mixed, perm=[0, 2, 1, 3]), 0, PATCHES, WIDTH)
        return self.linear(merged, WIDTH, WIDTH)

    def block(self, x):
        x = self.node("Add", x, self.attention(self.norm(x)))
        wide = self.gelu(self.linear(self.norm(x), WIDTH, 4 * WIDTH))
        return self.node("Add", x, self.linear(wide, 4 * WIDTH, WIDTH))


def model():
    """Returns the model, checked."""
    build = Builder()
    kernel = build.constant(build.random.normal(0, 0.05, [WIDTH, 3, PATCH, PATCH]))
    patches = build.node("Conv", "image", kernel, strides=[PATCH, PATCH])
    x = build.node("Transpose", build.reshape(patches, 0, WIDTH, PATCHES), perm=[0, 2, 1])
    for _ in range(BLOCKS):
        x = build.block(x)
    pooled = build.node("ReduceMean", build.norm(x), axes=[1], keepdims=0)
    scores = build.linear(pooled, WIDTH, CLASSES)
    build.nodes.append(helper.make_node("Identity", [scores], ["scores"]))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
    output = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])
    graph = helper.make_graph(build.nodes, "vit", [image], [output], build.constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


if __name__ == "__main__":
    onnx.save(model(), sys.argv[1])
