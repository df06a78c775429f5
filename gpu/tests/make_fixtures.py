#!/usr/bin/env python3
"""Writes the small ONNX models in tests/data that the tests of this crate load.

Run it only to change them: pip install onnx numpy, then python3 gpu/tests/make_fixtures.py.
Weights are small whole numbers or come from a fixed seed, so the same versions write the same
bytes.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DATA = Path(__file__).parent / "data"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def save(name, nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(value, key) for key, value in weights],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    (DATA / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


def main():
    DATA.mkdir(exist_ok=True)
    node = helper.make_node

    # y = x @ w + b, w[i][j] = i + 10 j, b[j] = j.
    w = np.array([[i + 10 * j for j in range(3)] for i in range(4)], np.float32)
    b = np.arange(3, dtype=np.float32)
    linear = [node("MatMul", ["x", "w"], ["xw"]), node("Add", ["xw", "b"], ["y"])]
    save("linear", linear, [("x", FLOAT, ["N", 4])], [("y", FLOAT, ["N", 3])], [("w", w), ("b", b)])
    save("fixed_batch", linear, [("x", FLOAT, [1, 4])], [("y", FLOAT, [1, 3])], [("w", w), ("b", b)])

    # Two inputs whose rows are not multiples of 8 bytes, two outputs.
    save(
        "two_inputs",
        [node("Sub", ["left", "right"], ["difference"]), node("Mul", ["left", "right"], ["product"])],
        [("left", FLOAT, ["N", 3]), ("right", FLOAT, ["N", 3])],
        [("difference", FLOAT, ["N", 3]), ("product", FLOAT, ["N", 3])],
    )

    # An embedding: rows 0 to 7 of a table, two indices a row; the indices come back too.
    table = np.random.default_rng(1).normal(size=(8, 5)).round(2).astype(np.float32)
    table[3] = [1, 2, 3, 4, 5]
    table[6] = [-1, -2, -3, -4, -5]
    save(
        "embedding",
        [node("Gather", ["table", "ids"], ["vectors"]), node("Add", ["ids", "one"], ["next"])],
        [("ids", INT64, ["N", 2])],
        [("vectors", FLOAT, ["N", 2, 5]), ("next", INT64, ["N", 2])],
        [("table", table), ("one", np.array([1], np.int64))],
    )

    # An input and an output of each further element type that the CPU executor supports.
    types = {
        "f64": TensorProto.DOUBLE,
        "f16": TensorProto.FLOAT16,
        "i32": TensorProto.INT32,
        "flag": TensorProto.BOOL,
        "u8": TensorProto.UINT8,
        "i8": TensorProto.INT8,
    }
    save(
        "types",
        [
            node("Neg", ["f64"], ["f64_out"]),
            node("Neg", ["f16"], ["f16_out"]),
            node("Neg", ["i32"], ["i32_out"]),
            node("Not", ["flag"], ["flag_out"]),
            node("Reshape", ["u8", "flat"], ["u8_out"]),
            node("Reshape", ["i8", "flat"], ["i8_out"]),
        ],
        [(name, kind, ["N", 3]) for name, kind in types.items()],
        [(f"{name}_out", kind, ["N", 3]) for name, kind in types.items()],
        [("flat", np.array([-1, 3], np.int64))],
    )

    # A transposed output, declared with unknown sizes: they are found by running it.
    save(
        "transposed",
        [node("Transpose", ["x"], ["y"], perm=[0, 2, 1])],
        [("x", FLOAT, ["N", 2, 3])],
        [("y", FLOAT, ["N", "a", "b"])],
    )

    # Models that must be refused.
    save(
        "unsupported_operator",
        [node("LRN", ["x"], ["y"], size=3)],
        [("x", FLOAT, ["N", 4, 2, 2])],
        [("y", FLOAT, ["N", 4, 2, 2])],
    )
    save(
        "dynamic_width",
        [node("Relu", ["x"], ["y"])],
        [("x", FLOAT, ["N", 3, "width"])],
        [("y", FLOAT, ["N", 3, "width"])],
    )
    # Steps of two values each, some of which a mask takes out: those that are left, every second
    # step, and the sum of all.
    save(
        "masked_steps",
        [
            node("Unsqueeze", ["mask", "last"], ["column"]),
            node("Mul", ["x", "column"], ["left"]),
            node("Slice", ["left", "first", "end", "along", "stride"], ["seconds"]),
            node("ReduceSum", ["left", "all"], ["sum"], keepdims=0),
        ],
        [("x", FLOAT, ["N", "steps", 2]), ("mask", FLOAT, ["N", "steps"])],
        [("left", FLOAT, ["N", "steps", 2]), ("seconds", FLOAT, ["N", "half", 2]), ("sum", FLOAT, ["N"])],
        [
            ("last", np.array([2], np.int64)),
            ("first", np.array([0], np.int64)),
            ("end", np.array([2**31 - 1], np.int64)),
            ("along", np.array([1], np.int64)),
            ("stride", np.array([2], np.int64)),
            ("all", np.array([1, 2], np.int64)),
        ],
    )
    save(
        "reshape_to_one",
        [node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, ["N", 4])],
        [("y", FLOAT, ["N", 2, 2])],
        [("shape", np.array([1, 2, 2], np.int64))],
    )
    save(
        "sums_the_batch",
        [node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)],
        [("x", FLOAT, ["N", 4])],
        [("y", FLOAT, ["M", 4])],
        [("axes", np.array([0], np.int64))],
    )
    save(
        "splits_rows",
        [node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, ["N", 4])],
        [("y", FLOAT, ["N", 2])],
        [("shape", np.array([-1, 2], np.int64))],
    )
    save(
        "strings",
        [node("Identity", ["x"], ["y"])],
        [("x", TensorProto.STRING, ["N", 1])],
        [("y", TensorProto.STRING, ["N", 1])],
    )
    save("scalar", [node("Relu", ["x"], ["y"])], [("x", FLOAT, [])], [("y", FLOAT, [])])
    # A state of another layout than the input, and a count that is a single element and must be
    # above 0: what exporters write of recurrent networks.
    save(
        "stateful",
        [
            node("ReduceSum", ["state", "axes"], ["sum"], keepdims=0),
            node("Add", ["x", "sum"], ["y"]),
            node("Neg", ["state"], ["next_state"]),
            node("Range", ["zero", "count", "one"], ["steps"]),
        ],
        [("x", FLOAT, ["N", 3]), ("state", FLOAT, [2, "N", 3]), ("count", INT64, [])],
        [("y", FLOAT, ["N", 3]), ("next_state", FLOAT, [2, "N", 3]), ("steps", INT64, ["M"])],
        [("axes", np.array([0], np.int64)), ("zero", np.array(0, np.int64)), ("one", np.array(1, np.int64))],
    )
    # A network that leaves out layers: each row passes through as many as its depth says, and each
    # layer moves its elements on by one. A batch takes as long as its deepest row.
    layer = helper.make_graph(
        [
            node("Less", ["turn", "depth"], ["passes"]),
            node("Unsqueeze", ["passes", "last"], ["column"]),
            node("MatMul", ["before", "moves"], ["moved"]),
            node("Where", ["column", "moved", "before"], ["after"]),
            node("Identity", ["going"], ["go_on"]),
        ],
        "layer",
        [
            helper.make_tensor_value_info("turn", INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", FLOAT, ["N", 64]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", FLOAT, ["N", 64]),
        ],
    )
    save(
        "early_exit",
        [
            node("ReduceMax", ["depth"], ["deepest"], keepdims=0),
            node("Loop", ["deepest", "true", "x"], ["y"], body=layer),
        ],
        [("x", FLOAT, ["N", 64]), ("depth", INT64, ["N"])],
        [("y", FLOAT, ["N", 64])],
        [
            ("moves", np.roll(np.eye(64, dtype=np.float32), 1, axis=1)),
            ("last", np.array([1], np.int64)),
            ("true", np.array(True)),
        ],
    )
    save(
        "no_inputs",
        [node("Identity", ["c"], ["y"])],
        [],
        [("y", FLOAT, ["N", 1])],
        [("c", np.zeros((1, 1), np.float32))],
    )


if __name__ == "__main__":
    main()
