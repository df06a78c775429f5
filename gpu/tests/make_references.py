"""Writes inputs of models, seeded or fixed, and the outputs that ONNX Runtime's Python package gives for them.

Usage: make_references.py FOLDER [--sizes NAME=N,...] MODEL.onnx... For each model FOLDER/NAME gets input0.bin, output0.bin and
so on in the model's order: ROWS rows of each, little endian, without gaps. Each row is run alone, so that
no other can have changed it, in the file as it is. Dynamic dimensions other than the batch have the sizes
that are given.
"""

import argparse
import pathlib
import sys

import numpy
import onnxruntime
from make_exported_models import SIZES

SEED = 7
ROWS = 3
# Below the number of words that the encoder knows.
LARGEST_NUMBER = 256
ERRORS_ONLY = 3


def random_rows(value, sizes, random):
    """Returns ROWS rows for an input of a model, each a batch of one."""
    shape = [1] + [sizes.get(size, size) for size in value.shape[1:]]
    if any(not isinstance(size, int) for size in shape):
        sys.exit(f"input {value.name} has the shape {value.shape}, and only {sizes} are given")
    if "mask" in value.name:
        # One element fewer counts in each row.
        return [(numpy.arange(shape[1]) < shape[1] - row).reshape(shape).astype(numpy.int64) for row in range(ROWS)]
    if value.name == "length":
        # One sixteenth fewer counts in each row.
        return [numpy.array([sizes["samples"] * (16 - row) // 16], numpy.int64) for row in range(ROWS)]
    if value.type == "tensor(string)":
        return list(numpy.array([["one", "two 2"], ["", "größe"], ["x" * 40, "y"]], object).reshape([ROWS] + shape))
    if value.type == "tensor(int64)":
        return list(random.integers(0, LARGEST_NUMBER, [ROWS] + shape))
    if value.type == "tensor(float)":
        return [random.random(shape, numpy.float32) / (row + 1) for row in range(ROWS)]
    sys.exit(f"input {value.name} is a {value.type}: there are rules for tensor(int64) and tensor(float)")


def as_bytes(row):
    """Returns the elements of a row, texts with their length in 4 bytes in front."""
    if row.dtype != object:
        return row.tobytes()
    texts = [str(text).encode() for text in row.flatten()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def main():
    parser = argparse.ArgumentParser(description="Writes inputs of models, and the outputs for them.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    parser.add_argument("--sizes", default="", help="NAME=N,... of dynamic dimensions")
    arguments = parser.parse_args()
    folder, paths = arguments.folder, arguments.models
    pairs = [pair.split("=") for pair in arguments.sizes.split(",") if pair]
    sizes = SIZES | {name: int(size) for name, size in pairs}
    options = onnxruntime.SessionOptions()
    # It warns of each initializer that no node uses; the light networks have hundreds.
    options.log_severity_level = ERRORS_ONLY
    for path in paths:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        random = numpy.random.default_rng(SEED)
        inputs = {value.name: random_rows(value, sizes, random) for value in session.get_inputs()}
        runs = [session.run(None, {name: rows[row] for name, rows in inputs.items()}) for row in range(ROWS)]
        to = folder / path.stem
        to.mkdir(parents=True, exist_ok=True)
        for role, tensors in (("input", inputs.values()), ("output", zip(*runs))):
            for at, rows in enumerate(tensors):
                (to / f"{role}{at}.bin").write_bytes(b"".join(map(as_bytes, rows)))


if __name__ == "__main__":
    main()
