"""System shared memory: inputs and outputs, bounds, and regions removed while they are used."""

import os

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from conftest import features
from tritonclient.utils import InferenceServerException

ROW = 256 * 4
SCORES = 16 * 4


@pytest.fixture
def region(adapter, client):
    """A region of 16 KiB, registered as `region`."""
    handle = shm.create_shared_memory_region("region", f"symphony-suite-{os.getpid()}", 16384)
    client.unregister_system_shared_memory()
    client.register_system_shared_memory("region", f"/symphony-suite-{os.getpid()}", 16384)
    yield handle
    client.unregister_system_shared_memory()
    shm.destroy_shared_memory_region(handle)


def regions(adapter, client, name=""):
    status = adapter.json(client.get_system_shared_memory_status(name))
    return status if adapter.name == "http" else list(status["regions"].values())


def shared_input(adapter, rows, size=None, offset=0):
    tensor = adapter.module.InferInput("features", [rows, 256], "FP32")
    tensor.set_shared_memory("region", rows * ROW if size is None else size, offset)
    return tensor


def shared_output(adapter, size, offset):
    output = adapter.output("scores")
    output.set_shared_memory("region", size, offset)
    return output


def test_tensors_may_lie_in_shared_memory(adapter, client, region):
    batch = features(3)
    plain = client.infer("wide", [adapter.input("features", batch)]).as_numpy("scores")
    shm.set_shared_memory_region(region, [batch], offset=64)
    result = client.infer(
        "wide", [shared_input(adapter, 3, offset=64)], outputs=[shared_output(adapter, 3 * SCORES, 8192)]
    )
    output = result.get_output("scores")
    shape = output["shape"] if adapter.name == "http" else output.shape
    assert [int(d) for d in shape] == [3, 16]
    scores = shm.get_contents_as_numpy(region, np.float32, [3, 16], offset=8192)
    np.testing.assert_allclose(scores, plain, atol=1e-4)
    shared_in = client.infer("wide", [shared_input(adapter, 3, offset=64)])
    np.testing.assert_allclose(shared_in.as_numpy("scores"), plain, atol=1e-4)


def test_regions_are_listed_and_unregistered(adapter, client, region):
    (listed,) = regions(adapter, client)
    assert listed["name"] == "region" and int(listed["byte_size"]) == 16384 and int(listed["offset"]) == 0
    assert len(regions(adapter, client, "region")) == 1
    with pytest.raises(InferenceServerException) as error:
        client.register_system_shared_memory("region", f"/symphony-suite-{os.getpid()}", 16)
    assert error.value.status() == adapter.status(409, "ALREADY_EXISTS")
    client.unregister_system_shared_memory("region")
    assert not regions(adapter, client)
    with pytest.raises(InferenceServerException) as error:
        client.get_system_shared_memory_status("region")
    assert error.value.status() == adapter.status(404, "NOT_FOUND")


def test_what_is_out_of_bounds_is_refused(adapter, client, region):
    for size, offset, word in [
        (ROW - 1, 0, "1023 bytes of data"),
        (ROW, 16384 - ROW + 1, "do not fit"),
        (ROW, 2**40, "do not fit"),
    ]:
        with pytest.raises(InferenceServerException) as error:
            client.infer("wide", [shared_input(adapter, 1, size, offset)])
        assert error.value.status() == adapter.status(400, "INVALID_ARGUMENT")
        assert word in error.value.message()
    for size, offset, word in [(SCORES - 1, 0, "the output takes 64"), (SCORES, 16383, "do not fit")]:
        with pytest.raises(InferenceServerException) as error:
            client.infer("wide", [adapter.input("features", features(1))], outputs=[shared_output(adapter, size, offset)])
        assert word in error.value.message()
    for key, size, offset in [("/symphony-nothing", 1, 0), (f"/symphony-suite-{os.getpid()}", 16384, 1)]:
        with pytest.raises(InferenceServerException) as error:
            client.register_system_shared_memory("other", key, size, offset)
        assert error.value.status() == adapter.status(400, "INVALID_ARGUMENT")


def test_memory_that_goes_while_it_is_registered_harms_no_request(adapter, client, region):
    os.truncate(f"/dev/shm/symphony-suite-{os.getpid()}", 100)
    with pytest.raises(InferenceServerException) as error:
        client.infer("wide", [shared_input(adapter, 1)])
    assert "which has 100" in error.value.message()
    with pytest.raises(InferenceServerException) as error:
        client.infer("wide", [adapter.input("features", features(1))], outputs=[shared_output(adapter, SCORES, 64)])
    assert "which has 100" in error.value.message()
    client.unregister_system_shared_memory("region")
    with pytest.raises(InferenceServerException) as error:
        client.infer("wide", [shared_input(adapter, 1)])
    assert "no shared memory region" in error.value.message()
    assert client.is_server_live()
    os.truncate(f"/dev/shm/symphony-suite-{os.getpid()}", 16384)
