"""One server for the whole suite, and the same calls by either protocol."""

import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import np_to_triton_dtype

HERE = Path(__file__).parent


@contextmanager
def serving(folder, *flags, libraries=()):
    """Serves the models of a folder; gives host:port by protocol.

    Folders of `libraries` come first where the server looks for such.
    """
    paths = [*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, **({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})}
    server = subprocess.Popen(
        [os.environ["SYMPHONY"], "serve", "--http", "127.0.0.1:0", *flags, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    ready = [server.stdout.readline().split("://")[1].strip() for _ in range(2)]
    yield dict(zip(["http", "grpc"], ready))
    server.terminate()
    assert server.wait(timeout=60) == 0, "the server stops cleanly, whatever was done to it"


@pytest.fixture(scope="session")
def collected():
    """The requests that a trace collector received, and its URL."""
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    yield bodies, f"http://127.0.0.1:{collector.server_port}"
    collector.shutdown()


@pytest.fixture(scope="session")
def addresses(collected):
    """Serves the suite's models; yields host:port by protocol."""
    with serving(HERE, "--otlp", collected[1], "--trace-ratio", "0") as addresses:
        yield addresses


class Adapter:
    """A protocol: its module of tritonclient, and its names of statuses."""

    def __init__(self, name, address):
        self.name = name
        self.address = address
        self.module = {"http": httpclient, "grpc": grpcclient}[name]

    def client(self, **options):
        return self.module.InferenceServerClient(self.address, **options)

    def status(self, http, grpc):
        return {"http": str(http), "grpc": f"StatusCode.{grpc}"}[self.name]

    def input(self, name, values, **options):
        tensor = self.module.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values, **options)
        return tensor

    def output(self, name, **options):
        return self.module.InferRequestedOutput(name, **options)

    def json(self, answer):
        """Returns the answer to an administrative call as plain values."""
        if self.name == "http":
            return answer
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

    def parameters(self, result):
        """Returns the parameters of an infer answer as plain values."""
        response = result.get_response()
        if self.name == "http":
            return response["parameters"]
        return {name: value.int64_param for name, value in response.parameters.items()}


@pytest.fixture(params=["http", "grpc"])
def adapter(request, addresses):
    return Adapter(request.param, addresses[request.param])


@pytest.fixture
def grpc(addresses):
    return Adapter("grpc", addresses["grpc"])


@pytest.fixture
def http(addresses):
    return Adapter("http", addresses["http"])


@pytest.fixture
def client(adapter):
    with adapter.client() as client:
        yield client


def features(rows, seed=1):
    """Returns inputs of the model `wide`."""
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 256)).astype(np.float32)


def write_ensemble(folder, side, stages):
    """Writes the config.pbtxt of an ensemble, in the words that Triton reads, whose stages all get
    the pictures that a client gives, of `side` x `side` points: of each stage its model, the names
    of its input and output, and the name and dimensions of the ensemble's output."""
    steps, outputs = [], []
    for model, given, made, tensor, dims in stages:
        outputs.append(f'{{ name: "{tensor}" data_type: TYPE_FP32 dims: {dims} }}')
        maps = f'input_map {{ key: "{given}" value: "picture" }} output_map {{ key: "{made}" value: "{tensor}" }}'
        steps.append(f'{{ model_name: "{model}" model_version: -1 {maps} }}')
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'platform: "ensemble"\nmax_batch_size: 8\n'
        f'input [ {{ name: "picture" data_type: TYPE_FP32 dims: [ 3, {side}, {side} ] }} ]\n'
        f"output [ {', '.join(outputs)} ]\nensemble_scheduling {{ step [ {', '.join(steps)} ] }}\n"
    )
