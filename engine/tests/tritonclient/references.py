"""What ONNX Runtime's Python package gives for rows of a network, and the comparison with it.

`gpu/tests/make_references.py` has written it.
"""

import numpy as np
from conftest import HERE
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

TARGET = (HERE / "../../../target").resolve()
ROWS = 3
# The largest difference, as a part of the largest element.
TOLERANCE = {"cpu": 1e-3, "onnxruntime": 1e-4}


def texts(path):
    """Returns texts of which each has its length in 4 bytes in front."""
    return deserialize_bytes_tensor(path.read_bytes())


def reference(folder, role, specs, sizes=None):
    """Returns a folder's tensors by name, ROWS rows of each; `sizes` are those of dimensions of -1."""
    tensors = {}
    for at, spec in enumerate(specs):
        path = folder / f"{role}{at}.bin"
        is_text = spec["datatype"] == "BYTES"
        values = texts(path) if is_text else np.fromfile(path, triton_to_np_dtype(spec["datatype"]))
        unknown = iter((sizes or {}).get(spec["name"], []))
        shape = [int(size) if int(size) > 0 else next(unknown) for size in spec["shape"][1:]]
        tensors[spec["name"]] = values.reshape([ROWS] + shape)
    return tensors


def check(answer, outputs, rows, executor):
    """Checks an answer's tensors against the first rows of the reference's."""
    for tensor, expected in outputs.items():
        found = answer.as_numpy(tensor)
        assert found.shape == expected[:rows].shape and found.dtype == expected.dtype
        if expected.dtype.kind in "biuO":
            assert (found == expected[:rows]).all()
            continue
        most = TOLERANCE[executor] * np.abs(expected).max()
        np.testing.assert_allclose(found, expected[:rows], rtol=0, atol=most)
