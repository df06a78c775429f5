"""Makes the first model of this example, and its sample.

`quarters.onnx` cuts pictures of 64 x 64 pixels into their quarters. The sample is a sheet of four
pictures from the quickstart's samples. Run with Python 3.11 and, from PyPI: numpy 2.4.6, onnx 1.23.2.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
SIDE = 32


def model():
    """Returns the network: a picture [N, 3, 64, 64] becomes its quarters [N, 4, 3, 32, 32], in rows."""
    cut = numpy_helper.from_array(np.array([-1, 3, 2, SIDE, 2, SIDE]), "cut")
    four = numpy_helper.from_array(np.array([-1, 4, 3, SIDE, SIDE]), "four")
    nodes = [
        helper.make_node("Reshape", ["picture", "cut"], ["parts"]),
        helper.make_node("Transpose", ["parts"], ["turned"], perm=[0, 2, 4, 1, 3, 5]),
        helper.make_node("Reshape", ["turned", "four"], ["quarters"]),
    ]
    picture = helper.make_tensor_value_info("picture", TensorProto.FLOAT, ["N", 3, 2 * SIDE, 2 * SIDE])
    quarters = helper.make_tensor_value_info("quarters", TensorProto.FLOAT, ["N", 4, 3, SIDE, SIDE])
    graph = helper.make_graph(nodes, "quarters", [picture], [quarters], [cut, four])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


def sheet():
    """Returns a sheet of the quickstart's two pictures, and again in the other order."""
    samples = HERE / "../quickstart/samples"
    one, other = (
        np.array(json.loads((samples / name).read_text())["inputs"][0]["data"]).reshape(3, SIDE, SIDE)
        for name in ["shapes.json", "shapes-2.json"]
    )
    above, below = np.concatenate([one, other], axis=2), np.concatenate([other, one], axis=2)
    return np.concatenate([above, below], axis=1)


if __name__ == "__main__":
    onnx.save(model(), HERE / "quarters.onnx")
    data = [round(float(value), 3) for value in sheet().ravel()]
    body = {"inputs": [{"name": "picture", "shape": [1, 3, 2 * SIDE, 2 * SIDE], "datatype": "FP32", "data": data}]}
    (HERE / "samples/sheet.json").write_text(json.dumps(body, separators=(",", ":")) + "\n")
