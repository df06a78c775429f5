"""A client's own trace continues in the server: in both protocols, and in a stream."""

import queue
import secrets
import time

from conftest import features


def traced():
    """Returns a new trace, and its header."""
    trace = secrets.token_bytes(16)
    return trace, {"traceparent": f"00-{trace.hex()}-{secrets.token_hex(8)}-01"}


def wait_for_spans(collected, trace, protocol):
    deadline = time.monotonic() + 30
    while True:
        body = b"".join(body for body in collected[0] if trace in body)
        if all(words in body for words in [b"infer wide", b"run", protocol, b"good"]):
            return
        assert time.monotonic() < deadline, "the spans are there"
        time.sleep(0.05)


def test_a_request_goes_on_with_its_clients_trace(adapter, client, collected):
    trace, headers = traced()
    client.infer("wide", [adapter.input("features", features(1))], headers=headers)
    wait_for_spans(collected, trace, adapter.name.encode())


def test_requests_of_a_stream_go_on_with_its_trace(grpc, collected):
    trace, headers = traced()
    answers = queue.Queue()
    with grpc.client() as client:
        client.start_stream(callback=lambda result, error: answers.put(error), headers=headers)
        client.async_stream_infer("wide", [grpc.input("features", features(1))])
        assert answers.get(timeout=60) is None
        client.stop_stream()
    wait_for_spans(collected, trace, b"grpc")
