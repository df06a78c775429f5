"""Deadlines, classes, and clients that do not wait for their answer."""

import re
import time
import urllib.request

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException


def slow(adapter):
    return [adapter.input("x", np.zeros((1, 4), dtype=np.float32))]


def test_a_deadline_that_cannot_be_met_is_exceeded(adapter, client):
    for options in [{"timeout": 1_000}, {"headers": {"x-request-deadline-ms": "1.5"}}]:
        with pytest.raises(InferenceServerException) as error:
            client.infer("slow", slow(adapter), **options)
        assert error.value.status() == adapter.status(504, "DEADLINE_EXCEEDED")
        assert "deadline" in error.value.message()


def test_a_grpc_time_out_is_a_deadline(grpc):
    with grpc.client() as client:
        with pytest.raises(InferenceServerException) as error:
            client.infer("slow", slow(grpc), client_timeout=0.05)
        assert error.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_without_a_deadline_everything_is_in_time(adapter, client):
    assert client.infer("slow", slow(adapter), parameters={"deadline": "none"}).as_numpy("y").shape == (1, 4)
    with pytest.raises(InferenceServerException) as error:
        client.infer("slow", slow(adapter), timeout=5, parameters={"deadline": "none"})
    assert "leave one of them out" in error.value.message()


def test_priorities_are_those_that_there_are(adapter, client):
    for priority in range(5):
        client.infer("slow", slow(adapter), priority=priority)
    with pytest.raises(InferenceServerException) as error:
        client.infer("slow", slow(adapter), priority=5)
    assert error.value.status() == adapter.status(400, "INVALID_ARGUMENT")
    assert "parameters.priority" in error.value.message()


def metric(addresses, line):
    text = urllib.request.urlopen(f"http://{addresses['http']}/metrics").read().decode()
    found = re.search(rf"^{re.escape(line)}[^\n]* (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_client_that_cancels_takes_its_requests_out(addresses, grpc):
    gone = 'symphony_requests_total{model="slow",outcome="gone"'
    before = metric(addresses, gone)
    with grpc.client() as client:
        calls = [client.async_infer("slow", slow(grpc), callback=lambda result, error: None) for _ in range(40)]
        deadline = time.monotonic() + 30
        while metric(addresses, 'symphony_requests_in_flight{model="slow"') < 40:
            assert time.monotonic() < deadline, "the requests are with the engine"
        for call in calls:
            call.cancel()
    # 40 requests one after the other on four GPUs take 3 s; withdrawn, they end at once but
    # for those that run.
    while metric(addresses, 'symphony_requests_in_flight{model="slow"') > 0:
        assert time.monotonic() < deadline, "the cancelled requests are gone"
    assert metric(addresses, gone) - before >= 30


def test_a_stream_that_is_dropped_takes_its_requests_out(addresses, grpc):
    gone = 'symphony_requests_total{model="slow",outcome="gone"'
    before = metric(addresses, gone)
    with grpc.client() as client:
        client.start_stream(callback=lambda result, error: None)
        for _ in range(40):
            client.async_stream_infer("slow", slow(grpc))
        deadline = time.monotonic() + 30
        while metric(addresses, 'symphony_requests_in_flight{model="slow"') < 30:
            assert time.monotonic() < deadline, "the requests are with the engine"
        client.stop_stream(cancel_requests=True)
    while metric(addresses, 'symphony_requests_in_flight{model="slow"') > 0:
        assert time.monotonic() < deadline, "the stream's requests are gone"
    assert metric(addresses, gone) - before >= 20
