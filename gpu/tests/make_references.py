"""Writes seeded inputs of models, and the outputs that ONNX Runtime's Python package gives for them.

Usage: make_references.py FOLDER MODEL.onnx... For each model FOLDER/NAME gets input0.bin, output0.bin and
so on in the model's order: ROWS rows of each, little endian, without gaps. Each row is run alone, so that
no other can have changed it, in the file as it is. Dynamic dimensions other than the batch are refused.
"""

import pathlib
import sys

import numpy
import onnxruntime

SEED = 7
ROWS = 3
# Below the number of words that the encoder knows.
LARGEST_NUMBER = 256
ERRORS_ONLY = 3


def random_rows(value, random):
    """Returns ROWS rows for an input of a model, each a batch of one."""
    shape = [1] + value.shape[1:]
    if any(not isinstance(size, int) for size in shape):
        sys.exit(f"input {value.name} has the shape {value.shape}: only the first dimension may be dynamic")
    if "mask" in value.name:
        # One element fewer counts in each row.
        return [(numpy.arange(shape[1]) < shape[1] - row).reshape(shape).astype(numpy.int64) for row in range(ROWS)]
    if value.type == "tensor(int64)":
        return list(random.integers(0, LARGEST_NUMBER, [ROWS] + shape))
    if value.type == "tensor(float)":
        return [random.random(shape, numpy.float32) / (row + 1) for row in range(ROWS)]
    sys.exit(f"input {value.name} is a {value.type}: there are rules for tensor(int64) and tensor(float)")


def main():
    folder, paths = pathlib.Path(sys.argv[1]), [pathlib.Path(path) for path in sys.argv[2:]]
    options = onnxruntime.SessionOptions()
    # It warns of each initializer that no node uses; the light networks have hundreds.
    options.log_severity_level = ERRORS_ONLY
    for path in paths:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        random = numpy.random.default_rng(SEED)
        inputs = {value.name: random_rows(value, random) for value in session.get_inputs()}
        runs = [session.run(None, {name: rows[row] for name, rows in inputs.items()}) for row in range(ROWS)]
        to = folder / path.stem
        to.mkdir(parents=True, exist_ok=True)
        for role, tensors in (("input", inputs.values()), ("output", zip(*runs))):
            for at, rows in enumerate(tensors):
                (to / f"{role}{at}.bin").write_bytes(b"".join(row.tobytes() for row in rows))


if __name__ == "__main__":
    main()
