"""Writes small models as exporters write them, with seeded weights, for tests.

Usage: make_exported_models.py FOLDER [--dynamic]. The batch is dynamic in all of them.

- encoder.onnx, like BERT: token numbers and a mask, INT64; the hidden states, the pooled state and a
  score, which is a single element of each row.
- vision.onnx, like ViT: an image of 32 x 32; a class token that is expanded to the batch; logits.
- speech.onnx: sound of several channels, which are added up, and its length, a single element of each
  row; the logarithms of the letters' probabilities for each step, and the number of steps. Steps beyond
  the length are masked.
- detector.onnx, like EfficientNet with SSD's heads: an image; blocks that widen, convolve each channel by
  itself, squeeze and excite; of two sizes of cells, the boxes of each, and its classes' probabilities; and a
  mask of the image, by transposed convolutions.
- rare.onnx: numbers and a mask; what operators make of them that the networks above do not have.
- text.onnx: two texts; both in one, and which of them is a word of small letters.

The encoder's sequence, and the speech model's channels and samples, are fixed to SIZES; with --dynamic
they are dynamic too.
"""

import argparse
import pathlib

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 1
OPSET = 17
# The first that has operators for texts.
TEXT_OPSET = 20
# From this one on a group's scale is that of each channel.
RARE_OPSET = 21
FORMAT = 8
HIDDEN = 64
HEADS = 4
LAYERS = 2
WORDS = 1000
LONGEST = 512
CLASSES = 10
LETTERS = 29
PATCH = 8
IMAGE = 32
ANCHORS = 3
SIZES = {"sequence": 32, "channels": 2, "samples": 256}


class Graph:
    """A graph that grows node by node; each step returns the name of the tensor that it made."""

    def __init__(self):
        self.random = numpy.random.default_rng(SEED)
        self.nodes, self.constants = [], []

    def node(self, operator, *inputs, name=None, **attributes):
        out = name or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [out], **attributes))
        return out

    def constant(self, values, dtype=numpy.float32):
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.array(values, dtype), name))
        return name

    def whole(self, values):
        return self.constant(values, numpy.int64)

    def weights(self, *shape):
        # Keeps activations of about the same size from layer to layer.
        return self.constant(self.random.normal(0, shape[0] ** -0.5, shape))

    def linear(self, x, inputs, outputs):
        product = self.node("MatMul", x, self.weights(inputs, outputs))
        return self.node("Add", product, self.constant(self.random.normal(0, 0.1, outputs)))

    def normalized(self, x):
        gain, shift = self.random.normal(1, 0.1, HIDDEN), self.random.normal(0, 0.1, HIDDEN)
        return self.node("LayerNormalization", x, self.constant(gain), self.constant(shift), axis=-1)

    def gelu(self, x):
        erf = self.node("Erf", self.node("Div", x, self.constant(2**0.5)))
        return self.node("Mul", self.node("Mul", x, self.node("Add", erf, self.constant(1))), self.constant(0.5))

    def conv(self, x, inputs, outputs, size=1, stride=1, groups=1):
        kernel = self.weights(outputs, inputs // groups, size, size)
        edge = [(size - 1) // 2] * 4
        return self.node("Conv", x, kernel, kernel_shape=[size] * 2, strides=[stride] * 2, pads=edge, group=groups)

    def batch_norm(self, x, channels):
        positive = self.random.uniform(0.5, 1.5, (2, channels))
        shift, mean = self.random.normal(0, 0.1, (2, channels))
        parts = map(self.constant, (positive[0], shift, mean, positive[1]))
        return self.node("BatchNormalization", x, *parts, epsilon=1e-3)

    def swish(self, x):
        return self.node("Mul", x, self.node("Sigmoid", x))

    def inverted_bottleneck(self, x, channels, stride):
        """Widens, convolves each channel by itself, squeezes and excites, and narrows; twice the channels
        where there is a stride, and a way past it where there is none."""
        wide, out = 4 * channels, channels * stride
        inner = self.swish(self.batch_norm(self.conv(x, channels, wide), wide))
        inner = self.conv(inner, wide, wide, size=5, stride=stride, groups=wide)
        inner = self.swish(self.batch_norm(inner, wide))
        squeezed = self.swish(self.conv(self.node("GlobalAveragePool", inner), wide, channels))
        inner = self.node("Mul", inner, self.node("Sigmoid", self.conv(squeezed, channels, wide)))
        inner = self.batch_norm(self.conv(inner, wide, out), out)
        return self.node("Add", inner, x) if stride == 1 else inner

    def cells(self, x, channels, of_each):
        """Returns a head: so many values of each anchor of each cell, in a row of the cells."""
        found = self.conv(x, channels, ANCHORS * of_each, size=3)
        return self.node("Reshape", self.node("Transpose", found, perm=[0, 2, 3, 1]), self.whole([0, -1, of_each]))

    def heads(self, x, order):
        split = self.node("Reshape", self.linear(x, HIDDEN, HIDDEN), self.whole([0, 0, HEADS, HIDDEN // HEADS]))
        return self.node("Transpose", split, perm=order)

    def attention(self, x, bias):
        scores = self.node("MatMul", self.heads(x, [0, 2, 1, 3]), self.heads(x, [0, 2, 3, 1]))
        scores = self.node("Div", scores, self.constant((HIDDEN // HEADS) ** 0.5))
        shares = self.node("Softmax", self.node("Add", scores, bias) if bias else scores, axis=-1)
        mixed = self.node("MatMul", shares, self.heads(x, [0, 2, 1, 3]))
        joined = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.whole([0, 0, HIDDEN]))
        return self.linear(joined, HIDDEN, HIDDEN)

    def layers(self, x, bias=None):
        for _ in range(LAYERS):
            x = self.normalized(self.node("Add", x, self.attention(x, bias)))
            inner = self.gelu(self.linear(x, HIDDEN, 2 * HIDDEN))
            x = self.normalized(self.node("Add", x, self.linear(inner, 2 * HIDDEN, HIDDEN)))
        return x

    def size(self, x, dimension):
        """Returns the size of a dimension as a vector of one element."""
        return self.node("Gather", self.node("Shape", x), self.whole([dimension]))

    def model(self, inputs, outputs, opset=OPSET):
        values = [
            [helper.make_tensor_value_info(name, element, shape) for name, element, shape in side]
            for side in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "exported", *values, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=FORMAT)
        onnx.checker.check_model(model)
        return model


def encoder(sizes):
    g, sequence = Graph(), sizes["sequence"]
    words = g.node("Gather", g.constant(g.random.normal(0, 1, (WORDS, HIDDEN))), "input_ids")
    table = g.constant(g.random.normal(0, 1, (LONGEST, HIDDEN)))
    places = g.node("Slice", table, g.whole([0]), g.size("input_ids", 1), g.whole([0]))
    mask = g.node("Unsqueeze", g.node("Cast", "attention_mask", to=TensorProto.FLOAT), g.whole([1, 2]))
    bias = g.node("Mul", g.node("Sub", g.constant(1), mask), g.constant(-10_000))
    states = g.layers(g.normalized(g.node("Add", words, places)), bias)
    states = g.node("Identity", states, name="last_hidden_state")
    first = g.node("Gather", states, g.whole(0), axis=1)
    pooled = g.node("Tanh", g.linear(first, HIDDEN, HIDDEN), name="pooler_output")
    g.node("Squeeze", g.linear(pooled, HIDDEN, 1), g.whole([1]), name="score")
    inputs = [(name, TensorProto.INT64, ["batch", sequence]) for name in ("input_ids", "attention_mask")]
    shapes = {"last_hidden_state": ["batch", sequence, HIDDEN], "pooler_output": ["batch", HIDDEN], "score": ["batch"]}
    return g.model(inputs, [(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()])


def vision(_):
    g, patches = Graph(), (IMAGE // PATCH) ** 2
    kernel = g.constant(g.random.normal(0, (3 * PATCH * PATCH) ** -0.5, (HIDDEN, 3, PATCH, PATCH)))
    patch = g.node("Conv", "pixel_values", kernel, kernel_shape=[PATCH, PATCH], strides=[PATCH, PATCH])
    x = g.node("Transpose", g.node("Reshape", patch, g.whole([0, HIDDEN, -1])), perm=[0, 2, 1])
    token = g.constant(g.random.normal(0, 1, (1, 1, HIDDEN)))
    shape = g.node("Concat", g.size("pixel_values", 0), g.whole([1, HIDDEN]), axis=0)
    x = g.node("Concat", g.node("Expand", token, shape), x, axis=1)
    x = g.node("Add", x, g.constant(g.random.normal(0, 1, (1, patches + 1, HIDDEN))))
    first = g.node("Gather", g.layers(x), g.whole(0), axis=1)
    g.node("Identity", g.linear(first, HIDDEN, CLASSES), name="logits")
    inputs = [("pixel_values", TensorProto.FLOAT, ["batch", 3, IMAGE, IMAGE])]
    return g.model(inputs, [("logits", TensorProto.FLOAT, ["batch", CLASSES])])


def detector(_):
    g, channels = Graph(), 8
    x = g.swish(g.batch_norm(g.conv("image", 3, channels, size=3, stride=2), channels))
    x = g.inverted_bottleneck(x, channels, stride=1)
    fine = g.inverted_bottleneck(x, channels, stride=2)
    coarse = g.inverted_bottleneck(fine, 2 * channels, stride=2)
    sizes = [(fine, 2 * channels), (coarse, 4 * channels)]
    g.node("Concat", *[g.cells(x, channels, 4) for x, channels in sizes], axis=1, name="boxes")
    classes = g.node("Concat", *[g.cells(x, channels, CLASSES) for x, channels in sizes], axis=1)
    g.node("Softmax", classes, axis=-1, name="scores")
    wider = {"strides": [2, 2], "dilations": [1, 1]}
    mask = g.node("ConvTranspose", fine, g.weights(2 * channels, channels, 2, 2), pads=[0] * 4, **wider)
    mask = g.swish(g.batch_norm(mask, channels))
    last = {"pads": [1] * 4, "output_padding": [1, 1], **wider}
    mask = g.node("ConvTranspose", mask, g.weights(channels, 1, 3, 3), g.constant([0.1]), **last)
    g.node("Sigmoid", mask, name="mask")
    cells = ANCHORS * ((IMAGE // 4) ** 2 + (IMAGE // 8) ** 2)
    shapes = {"boxes": [cells, 4], "scores": [cells, CLASSES], "mask": [1, IMAGE, IMAGE]}
    outputs = [(name, TensorProto.FLOAT, ["batch", *shape]) for name, shape in shapes.items()]
    return g.model([("image", TensorProto.FLOAT, ["batch", 3, IMAGE, IMAGE])], outputs)


def speech(sizes):
    g, steps = Graph(), "steps" if isinstance(sizes["samples"], str) else sizes["samples"] // 16
    x = g.node("ReduceSum", "sound", g.whole([1]), keepdims=1)
    for channels, out in ((1, HIDDEN), (HIDDEN, HIDDEN)):
        kernel = g.constant(g.random.normal(0, (4 * channels) ** -0.5, (out, channels, 4)))
        x = g.gelu(g.node("Conv", x, kernel, kernel_shape=[4], strides=[4]))
    g.node("Div", "length", g.whole(16), name="steps")
    places = g.node("Range", g.whole(0), g.node("Squeeze", g.size(x, 2)), g.whole(1))
    beyond = g.node("GreaterOrEqual", places, g.node("Unsqueeze", "steps", g.whole([1])))
    beyond = g.node("Unsqueeze", g.node("Cast", beyond, to=TensorProto.FLOAT), g.whole([1, 2]))
    states = g.layers(g.node("Transpose", x, perm=[0, 2, 1]), g.node("Mul", beyond, g.constant(-10_000)))
    g.node("LogSoftmax", g.linear(states, HIDDEN, LETTERS), axis=-1, name="log_probabilities")
    sound = ["batch", sizes["channels"], sizes["samples"]]
    inputs = [("sound", TensorProto.FLOAT, sound), ("length", TensorProto.INT64, ["batch"])]
    probabilities = ("log_probabilities", TensorProto.FLOAT, ["batch", steps, LETTERS])
    return g.model(inputs, [probabilities, ("steps", TensorProto.INT64, ["batch"])])


def rare(_):
    g, channels = Graph(), 6
    g.node("Mul", g.node("CumSum", "mask", g.whole(1)), "mask", name="places")
    g.node("CumSum", "numbers", g.whole(-1), reverse=1, exclusive=1, name="behind")
    g.node("Trilu", "numbers", g.whole(1), upper=0, name="triangle")
    affine = [g.constant(g.random.normal(0, 1, channels)) for _ in range(2)]
    g.node("GroupNormalization", "numbers", *affine, num_groups=3, name="groups")
    # Infinite where the mask is 1, and no number where it is 0.
    logarithm = g.node("Log", g.node("Sub", g.node("CastLike", "mask", "numbers"), g.constant(1)))
    finite = g.node("Where", g.node("IsInf", logarithm, detect_positive=0), g.constant(3), logarithm)
    g.node("Where", g.node("IsNaN", finite), g.constant(2), finite, name="finite")
    image = [channels, 4, 4]
    shapes = {"places": [8], "behind": image, "triangle": image, "groups": image, "finite": [8]}
    types = {"places": TensorProto.INT64}
    outputs = [(name, types.get(name, TensorProto.FLOAT), ["batch", *shape]) for name, shape in shapes.items()]
    inputs = [("numbers", TensorProto.FLOAT, ["batch", *image]), ("mask", TensorProto.INT64, ["batch", 8])]
    return g.model(inputs, outputs, RARE_OPSET)


def text(_):
    """Two texts of each row: both in one, and which of them is a word."""
    g = Graph()
    parts = [g.node("Gather", "text", g.whole(at), axis=1) for at in (0, 1)]
    g.node("StringConcat", *parts, name="joined")
    g.node("RegexFullMatch", "text", pattern="[a-z]+", name="is_word")
    outputs = [("joined", TensorProto.STRING, ["batch"]), ("is_word", TensorProto.BOOL, ["batch", 2])]
    return g.model([("text", TensorProto.STRING, ["batch", 2])], outputs, TEXT_OPSET)


def main():
    parser = argparse.ArgumentParser(description="Writes small networks as exporters write them.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dynamic", action="store_true", help="leave every size open, not the batch alone")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: name for name in SIZES} if arguments.dynamic else SIZES
    for make in (encoder, vision, detector, speech, rare, text):
        onnx.save(make(sizes), arguments.folder / f"{make.__name__}.onnx")


if __name__ == "__main__":
    main()
