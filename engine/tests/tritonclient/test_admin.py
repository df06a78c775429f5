"""All calls but infer requests."""

import pytest
from tritonclient.utils import InferenceServerException


def test_the_server_is_live_ready_and_says_what_it_speaks(adapter, client):
    assert client.is_server_live() and client.is_server_ready()
    metadata = adapter.json(client.get_server_metadata())
    assert metadata["name"] == "symphony"
    assert {"binary_tensor_data", "classification", "system_shared_memory", "statistics"} <= set(metadata["extensions"])


def test_a_models_metadata_and_configuration_name_its_tensors(adapter, client):
    assert client.is_model_ready("wide") and client.is_model_ready("wide", "1")
    metadata = adapter.json(client.get_model_metadata("wide"))
    assert metadata["versions"] == ["1"]
    (tensor,) = metadata["inputs"]
    assert (tensor["name"], tensor["datatype"]) == ("features", "FP32")
    assert [int(d) for d in tensor["shape"]] == [-1, 256]
    config = adapter.json(client.get_model_config("types"))
    config = config.get("config", config)
    assert int(config["max_batch_size"]) == 8 and "dynamic_batching" in config
    types = {tensor["name"]: tensor["data_type"] for tensor in config["input"]}
    assert (types["BF16"], types["BYTES"], types["UINT8"]) == ("TYPE_BF16", "TYPE_STRING", "TYPE_UINT8")
    assert config["parameters"]["priority"]["string_value"] == "3"


def test_an_unknown_model_or_version_is_not_ready(client):
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("wide", "7")


def test_an_unknown_model_or_version_is_not_found(adapter, client):
    for call in [
        lambda: client.get_model_metadata("nobody"),
        lambda: client.get_model_config("wide", "7"),
        lambda: client.get_inference_statistics("nobody"),
    ]:
        with pytest.raises(InferenceServerException) as error:
            call()
        assert error.value.status() == adapter.status(404, "NOT_FOUND")
    with pytest.raises(InferenceServerException) as error:
        client.get_model_metadata("wide", "7")
    assert 'no version "7"; it has ["1"]' in error.value.message()


def test_the_repository_is_listed_and_not_changed_without_explicit_control(adapter, client):
    index = adapter.json(client.get_model_repository_index())
    index = index if adapter.name == "http" else index["models"]
    models = {model["name"]: model["state"] for model in index}
    assert models == {"wide": "READY", "types": "READY", "slow": "READY"}
    for call in [lambda: client.load_model("wide"), lambda: client.unload_model("wide")]:
        with pytest.raises(InferenceServerException) as error:
            call()
        assert error.value.status() == adapter.status(503, "UNAVAILABLE")
        assert "explicit" in error.value.message()


def test_settings_that_exist_can_be_changed_and_others_not(adapter, client):
    def plain(settings):
        settings = adapter.json(settings)
        if adapter.name == "http":
            return settings
        settings = settings["settings"]
        return {name: next(iter(value.values())) for name, value in settings.items()}

    assert plain(client.get_log_settings())["log_verbose_level"] == 0
    assert plain(client.update_log_settings({"log_verbose_level": 1}))["log_verbose_level"] == 1
    assert plain(client.update_log_settings({"log_verbose_level": 0}))["log_verbose_level"] == 0
    assert plain(client.get_trace_settings())["trace_level"] == ["OFF"]
    client.update_trace_settings(model_name="wide", settings={"trace_level": ["OFF"]})
    for call, word in [
        (lambda: client.update_log_settings({"log_levle": 1}), "log_levle"),
        (lambda: client.update_log_settings({"log_info": False}), "log_info"),
        (lambda: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}), "trace_level"),
        (lambda: client.update_trace_settings(settings={"trace_levle": ["OFF"]}), "trace_levle"),
    ]:
        with pytest.raises(InferenceServerException) as error:
            call()
        assert error.value.status() == adapter.status(400, "INVALID_ARGUMENT")
        assert word in error.value.message()


def test_cuda_shared_memory_is_not_there(adapter, client):
    status = adapter.json(client.get_cuda_shared_memory_status())
    assert not (status if adapter.name == "http" else status["regions"])
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException) as error:
        client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 64)
    assert error.value.status() == adapter.status(501, "UNIMPLEMENTED")
    assert "not supported" in error.value.message()
