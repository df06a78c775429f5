"""Real networks by Triton's clients: one row, three rows, and requests of mixed sizes at once.

The models are those of `.ci/exported_models`, and the light networks that take the least computing.
Answers are compared with what ONNX Runtime's Python package gave for the same rows.
"""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import HERE, Adapter, serving
from tritonclient.utils import triton_to_np_dtype

TARGET = (HERE / "../../../target").resolve()
EXPORTED = TARGET / "exported_models"
ROWS = 3
# The largest difference, as a part of the largest element.
TOLERANCE = {"cpu": 1e-3, "onnxruntime": 1e-4}
SIZES = [1, 3, 2, 1, 3]
BOTH = ["cpu", "onnxruntime"]
# rten has no LRN, which AlexNet needs.
MODELS = {
    "encoder": BOTH,
    "vision": BOTH,
    "speech": BOTH,
    "light_squeezenet": BOTH,
    "light_shufflenet": BOTH,
    "light_bvlc_alexnet": ["onnxruntime"],
}
SERVED = [(name, executor) for name, executors in MODELS.items() for executor in executors]


def config():
    """Returns a CONFIG with each model on each executor that runs it."""
    tables = [
        'policy = "work-conserving"',
        f'[onnxruntime]\nlibrary = "{TARGET}/onnxruntime/libonnxruntime.so"',
        *(f'[[executors]]\nkind = "{executor}"' for executor in BOTH),
    ]
    for name, executor in SERVED:
        folder = TARGET / "light_models" if name.startswith("light_") else EXPORTED
        tables.append(
            f'[[models]]\nname = "{name}-{executor}"\nfile = "{folder / name}.onnx"\n'
            # A profile, as measuring one of each takes longer than all the tests.
            f'executor = "{executor}"\nslo_ms = 20000\nmax_batch = 8\nprofile = {{ alpha_ms = 20, beta_ms = 20 }}'
        )
    return "\n".join(tables)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Serves the models; yields host:port by protocol."""
    subprocess.run([HERE / "../../../.ci/onnxruntime"], check=True)
    if not EXPORTED.is_dir():
        subprocess.run([HERE / "../../../.ci/exported_models"], check=True)
    folder = tmp_path_factory.mktemp("models")
    (folder / "symphony.toml").write_text(config())
    with serving(folder) as addresses:
        yield addresses


def reference(name, role, specs):
    """Returns the reference's tensors by name, ROWS rows of each."""
    tensors = {}
    for at, spec in enumerate(specs):
        values = np.fromfile(EXPORTED / "references" / name / f"{role}{at}.bin", triton_to_np_dtype(spec["datatype"]))
        tensors[spec["name"]] = values.reshape([ROWS] + [int(size) for size in spec["shape"][1:]])
    return tensors


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("name,executor", SERVED)
def test_a_network_gives_what_the_python_package_gives(models, protocol, name, executor):
    adapter, model = Adapter(protocol, models[protocol]), f"{name}-{executor}"
    with adapter.client() as client:
        metadata = adapter.json(client.get_model_metadata(model))
    inputs = reference(name, "input", metadata["inputs"])
    outputs = reference(name, "output", metadata["outputs"])

    def ask(rows):
        # A client of each thread's own: those of HTTP are not to be shared.
        with adapter.client() as client:
            sent = [adapter.input(tensor, values[:rows]) for tensor, values in inputs.items()]
            answer = client.infer(model, sent)
        for tensor, expected in outputs.items():
            found = answer.as_numpy(tensor)
            assert found.shape == expected[:rows].shape and found.dtype == expected.dtype
            is_whole = np.issubdtype(expected.dtype, np.integer)
            most = 0 if is_whole else TOLERANCE[executor] * np.abs(expected).max()
            np.testing.assert_allclose(found, expected[:rows], rtol=0, atol=most)

    ask(1)
    ask(ROWS)
    with ThreadPoolExecutor(len(SIZES)) as clients:
        list(clients.map(ask, SIZES))
