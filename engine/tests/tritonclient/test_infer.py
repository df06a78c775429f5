"""Infer requests: every type, form and protocol, and the errors of wrong ones."""

import asyncio
import json
import queue

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from conftest import HERE, features
from tritonclient.utils import InferenceServerException

TYPES = {
    "BOOL": bool,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


def values(datatype, shape):
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return np.array([b"x" * (at % 21) for at in range(count)], dtype=np.object_).reshape(shape)
    return (np.arange(count) % 2).astype(TYPES[datatype]).reshape(shape)


def expected_sample():
    samples = HERE / "../../../examples/quickstart/samples"
    sent = json.loads((samples / "wide.json").read_text())["inputs"][0]["data"]
    expected = json.loads((samples / "wide.expected.json").read_text())
    return np.array([sent], dtype=np.float32), expected


def test_a_model_computes_what_it_should(adapter, client):
    sample, expected = expected_sample()
    result = client.infer("wide", [adapter.input("features", sample)], request_id="a \"b\"")
    scores = result.as_numpy("scores")
    assert scores.shape == (1, 16)
    np.testing.assert_allclose(scores[0], expected["scores"], atol=expected["tolerance"])
    response = result.get_response()
    assert (response["id"] if adapter.name == "http" else response.id) == "a \"b\""


def test_an_answer_says_when_what_happened_and_where(adapter, client):
    result = client.infer("wide", [adapter.input("features", features(3))])
    said = adapter.parameters(result)
    assert said["queued_us"] == 0 <= said["batched_us"] <= said["started_us"] <= said["finished_us"]
    assert said["finished_us"] <= said["answered_us"]
    assert said["batch_size"] >= 3 and said["gpu"] >= 0


def test_a_request_may_be_a_batch_and_is_as_good_as_its_rows_alone(adapter, client):
    batch = features(5)
    together = client.infer("wide", [adapter.input("features", batch)]).as_numpy("scores")
    assert together.shape == (5, 16)
    for row, scores in zip(batch, together):
        alone = client.infer("wide", [adapter.input("features", row)]).as_numpy("scores")
        assert alone.shape == (16,), "no batch dimension in, none out"
        np.testing.assert_allclose(alone, scores, atol=1e-4)


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_every_type_goes_in_and_comes_out(adapter, client, rows):
    batch = [] if rows is None else [rows]
    inputs = [adapter.input(name, values(name, batch + [2, 3])) for name in TYPES]
    result = client.infer("types", inputs)
    for name, dtype in TYPES.items():
        output = result.as_numpy(name)
        assert output.shape == tuple(batch + [3]) and output.dtype == dtype
        zero = b"" if name == "BYTES" else 0
        assert (output == zero).all(), name


def test_tensors_may_travel_as_json(http):
    with http.client() as client:
        inputs = [
            http.input(name, values(name, [2, 2, 3]), **({} if name == "BF16" else {"binary_data": False}))
            for name in TYPES
        ]
        outputs = [http.output(name, binary_data=False) for name in TYPES if name != "BF16"]
        result = client.infer("types", inputs, outputs=outputs)
        for name in TYPES:
            if name != "BF16":
                assert result.as_numpy(name).shape == (2, 3)
        assert result.get_output("BYTES")["data"] == [""] * 6
        assert result.get_output("BOOL")["data"] == [False] * 6


def test_only_the_outputs_asked_for_come(adapter, client):
    inputs = [adapter.input(name, values(name, [1, 2, 3])) for name in TYPES]
    result = client.infer("types", inputs, outputs=[adapter.output("FP64"), adapter.output("BOOL")])
    assert result.as_numpy("FP64").shape == (1, 3) and result.as_numpy("FP32") is None


def test_classification_gives_the_largest_first(adapter, client):
    batch = features(2)
    inputs = [adapter.input("features", batch)]
    scores = client.infer("wide", inputs).as_numpy("scores")
    top = client.infer("wide", inputs, outputs=[adapter.output("scores", class_count=3)]).as_numpy("scores")
    assert top.shape == (2, 3)
    for row, texts in zip(scores, top):
        best = np.argsort(-row, kind="stable")[:3]
        for index, text in zip(best, texts):
            value, said = text.decode().split(":")
            assert int(said) == index and abs(float(value) - row[index]) < 1e-3


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_may_be_compressed(adapter, client, algorithm):
    # More rows than the largest batch: they run in several batches.
    inputs = [adapter.input("features", features(40))]
    plain = client.infer("wide", inputs).as_numpy("scores")
    if adapter.name == "http":
        options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    else:
        options = {"compression_algorithm": algorithm}
    packed = client.infer("wide", inputs, **options).as_numpy("scores")
    np.testing.assert_allclose(packed, plain, atol=1e-4)


def test_http_requests_may_run_at_once(http):
    with http.client(concurrency=8) as client:
        asked = [client.async_infer("wide", [http.input("features", features(1, seed))]) for seed in range(16)]
        for handle in asked:
            assert handle.get_result().as_numpy("scores").shape == (1, 16)


def test_grpc_requests_may_run_at_once(grpc):
    with grpc.client() as client:
        answers = queue.Queue()
        for seed in range(16):
            client.async_infer(
                "wide",
                [grpc.input("features", features(1, seed))],
                callback=lambda result, error: answers.put((result, error)),
            )
        for _ in range(16):
            result, error = answers.get(timeout=60)
            assert error is None and result.as_numpy("scores").shape == (1, 16)


def test_asyncio_clients_are_served_too(adapter):
    async def run():
        module = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}[adapter.name]
        async with module.InferenceServerClient(adapter.address) as client:
            assert await client.is_server_live() and await client.is_model_ready("wide")
            await client.get_server_metadata()
            await client.get_model_metadata("wide")
            await client.get_model_config("wide")
            await client.get_inference_statistics("wide")
            await client.get_model_repository_index()
            await client.get_log_settings()
            await client.get_trace_settings()
            await client.get_system_shared_memory_status()
            await client.get_cuda_shared_memory_status()
            asked = [client.infer("wide", [adapter.input("features", features(2, seed))]) for seed in range(16)]
            for result in await asyncio.gather(*asked):
                assert result.as_numpy("scores").shape == (2, 16)
            with pytest.raises(InferenceServerException):
                await client.infer("nobody", [adapter.input("features", features(1))])

    asyncio.run(run())


def test_a_stream_answers_every_request_with_its_id(grpc):
    with grpc.client() as client:
        answers = queue.Queue()
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for seed in range(32):
            client.async_stream_infer("wide", [grpc.input("features", features(1, seed))], request_id=str(seed))
        client.async_stream_infer("nobody", [grpc.input("features", features(1))], request_id="wrong")
        client.async_stream_infer("wide", [grpc.input("features", features(2))], request_id="last")
        ids, errors = set(), []
        for _ in range(34):
            result, error = answers.get(timeout=60)
            if error is None:
                ids.add(result.get_response().id)
            else:
                errors.append(error.message())
        assert ids == {str(seed) for seed in range(32)} | {"last"}
        assert len(errors) == 1 and 'no model "nobody"' in errors[0]
        client.stop_stream()


def test_a_stream_answers_in_the_order_of_completion(grpc):
    with grpc.client() as client:
        answers = queue.Queue()
        client.start_stream(callback=lambda result, error: answers.put(result))
        slow = np.zeros((1, 4), dtype=np.float32)
        client.async_stream_infer("slow", [grpc.input("x", slow)], request_id="slow")
        client.async_stream_infer("wide", [grpc.input("features", features(1))], request_id="quick")
        assert [answers.get(timeout=60).get_response().id for _ in range(2)] == ["quick", "slow"]
        client.stop_stream()


def test_an_asyncio_stream_is_served_too(grpc):
    async def run():
        async def requests():
            for seed in range(8):
                inputs = [grpc.input("features", features(1, seed))]
                yield {"model_name": "wide", "inputs": inputs, "request_id": str(seed)}

        ids = set()
        async with tritonclient.grpc.aio.InferenceServerClient(grpc.address) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                ids.add(result.get_response().id)
        assert ids == {str(seed) for seed in range(8)}

    asyncio.run(run())


def test_statistics_count_what_was_done(adapter, client):
    def now():
        statistics = adapter.json(client.get_inference_statistics("wide"))["model_stats"][0]
        success = statistics["inference_stats"]["success"]
        batches = sum(int(batch["compute_infer"]["count"]) for batch in statistics["batch_stats"])
        return int(statistics["inference_count"]), int(success["count"]), int(statistics["execution_count"]), batches

    before = now()
    client.infer("wide", [adapter.input("features", features(3))])
    client.infer("wide", [adapter.input("features", features(1))])
    after = now()
    assert [b - a for a, b in zip(before, after)] == [4, 2, 2, 2]
    everything = adapter.json(client.get_inference_statistics())["model_stats"]
    assert {model["name"] for model in everything} == {"wide", "types", "slow"}


def wrong_inputs(adapter):
    good = features(1)
    yield "name", [adapter.input("featurs", good)], '"featurs" is not one of the model\'s inputs ["features"]'
    yield "type", [adapter.input("features", good.astype(np.float64))], 'datatype is "FP64"; it must be "FP32"'
    yield "shape", [adapter.input("features", good[:, :255])], "shape is [1, 255]; it must be [1, 256]"
    yield "rows", [adapter.input("features", features(1)[:0])], "0 rows"
    yield "twice", [adapter.input("features", good)] * 2, "given twice"
    yield "missing", [], "is missing"


def test_wrong_inputs_are_refused_with_what_would_be_right(adapter, client):
    for what, inputs, word in wrong_inputs(adapter):
        with pytest.raises(InferenceServerException) as error:
            client.infer("wide", inputs)
        assert error.value.status() == adapter.status(400, "INVALID_ARGUMENT"), what
        assert word in error.value.message(), what
    good = [adapter.input("features", features(1))]
    for outputs, word in [
        ([adapter.output("score")], '"score" is not one of the model\'s outputs'),
        ([adapter.output("scores")] * 2, "asked for twice"),
    ]:
        with pytest.raises(InferenceServerException) as error:
            client.infer("wide", good, outputs=outputs)
        assert word in error.value.message()
    with pytest.raises(InferenceServerException) as error:
        client.infer("nobody", good)
    assert error.value.status() == adapter.status(404, "NOT_FOUND")
    too_long = values("BYTES", [1, 2, 3])
    too_long[0, 1, 1] = b"y" * 21
    inputs = [adapter.input(name, values(name, [1, 2, 3])) for name in TYPES if name != "BYTES"]
    with pytest.raises(InferenceServerException) as error:
        client.infer("types", inputs + [adapter.input("BYTES", too_long)])
    assert "element 4 has 21 bytes; this tensor's may have 20" in error.value.message()
