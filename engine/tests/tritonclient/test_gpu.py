"""A network on GPUs: the driver is a library of the tests', whose devices are fake."""

import os
from pathlib import Path

import numpy as np
import pytest

from conftest import Adapter, serving

MADE = Path(os.environ["MADE"])

CONFIG = """
policy = "work-conserving"

[[executors]]
kind = "cuda"

[[models]]
name = "densenet"
file = "{file}"
slo_ms = 600000
max_batch = 1
profile = {{ alpha_ms = 5000, beta_ms = 1 }}
"""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    file = MADE / "light_models/light_densenet121.onnx"
    (folder / "symphony.toml").write_text(CONFIG.format(file=file))
    driver = tmp_path_factory.mktemp("driver")
    (driver / "libcuda.so").symlink_to(os.environ["FAKE_DRIVER"])
    with serving(folder, libraries=[driver, MADE / "nvrtc"]) as addresses:
        yield addresses


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_densenet_on_a_gpu_gives_what_onnx_runtime_gives(gpu, protocol):
    adapter = Adapter(protocol, gpu[protocol])
    references = MADE / "exported_models/references/light_densenet121"
    row = np.fromfile(references / "input0.bin", np.float32)[: 3 * 224 * 224]
    expected = np.fromfile(references / "output0.bin", np.float32)[:1000]
    with adapter.client() as client:
        described = adapter.json(client.get_model_metadata("densenet"))
        assert described["platform"] == "onnx_cuda"
        name, output = described["inputs"][0]["name"], described["outputs"][0]["name"]
        inputs = [adapter.input(name, row.reshape(1, 3, 224, 224))]
        result = client.infer("densenet", inputs)
    found = result.as_numpy(output).ravel()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
