#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets as Triton's own client makes its requests: run it with tritonclient installed."""

import gzip
import pathlib
import zlib

import numpy
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype

SEEDS = pathlib.Path(__file__).parent / "seeds"

# As `model` in src/lib.rs numbers them.
TYPES = [
    numpy.bool_, numpy.uint8, numpy.uint16, numpy.uint32, numpy.uint64, numpy.int8, numpy.int16, numpy.int32,
    numpy.int64, numpy.float16, None, numpy.float32, numpy.float64,
]
REQUESTS = {
    0: [numpy.array([[1.5, -2], [3e7, 0]], numpy.float32), numpy.array([1, 2, 3], numpy.int32)],
    1: [numpy.array([[b"one", b""], [b"\xc3\xa9", b"sixteen bytes ..."[:16]]], object), numpy.array([True, False])],
    **{2 + at: [numpy.array([[0, 1, 2], [3, 4, 5]]).astype(kind)] for at, kind in enumerate(TYPES) if kind},
}


def inputs(module, arrays, **options):
    for at, array in enumerate(arrays):
        given = module.InferInput(f"INPUT{at}", array.shape, np_to_triton_dtype(array.dtype))
        given.set_data_from_numpy(array, **options)
        yield given


def write(target, name, content):
    (SEEDS / target).mkdir(parents=True, exist_ok=True)
    (SEEDS / target / name).write_bytes(content)


def field(number, content):
    length, rest = b"", len(content)
    while rest > 127:
        length, rest = length + bytes([rest & 127 | 128]), rest >> 7
    return bytes([number << 3 | 2]) + length + bytes([rest]) + content


def main():
    body = tritonclient.http.InferenceServerClient.generate_request_body
    output = tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=False)
    for model, arrays in REQUESTS.items():
        # JSON has no FP16 that this client would write.
        if arrays[0].dtype != numpy.float16:
            given = list(inputs(tritonclient.http, arrays, binary_data=False))
            json, _ = body(given, outputs=[output], request_id="7", timeout=20000, priority=1)
            write("http_json", f"model-{model}", bytes([model]) + json)
        binary, length = body(list(inputs(tritonclient.http, arrays, binary_data=True)), outputs=[output])
        for coding, packed in enumerate([binary, gzip.compress(binary, mtime=0), zlib.compress(binary)]):
            head = bytes([model, coding]) + length.to_bytes(2, "little")
            write("http_binary", f"model-{model}-{coding}", head + packed)
        request = service_pb2.ModelInferRequest(model_name="model", id="7")
        for given in inputs(tritonclient.grpc, arrays):
            request.inputs.append(given._get_tensor())
            request.raw_input_contents.append(given._get_content())
        request.parameters["timeout"].int64_param = 20000
        message = request.SerializeToString(deterministic=True)
        write("grpc_messages", f"model-{model}", bytes([model, 0]) + message)
        write("grpc_messages", f"model-{model}-enveloped", bytes([model, 1, 0]) + len(message).to_bytes(4, "big") + message)
    # What is small and becomes large: a million empty entries of each list, elements of a byte,
    # JSON.
    bombs = {f"entries-{number}": field(number, b"") * 1_000_000 for number in [4, 5, 6, 7]}
    bombs["elements"] = field(5, field(2, b"INT64") + field(5, field(3, bytes(2_000_000))))
    for name, message in bombs.items():
        packed = gzip.compress(message, mtime=0)
        write("grpc_messages", f"bomb-{name}", bytes([0, 2, 1]) + len(packed).to_bytes(4, "big") + packed)
    for name, text in {"depth": b"[" * 4_000_000, "data": b'{"inputs":[{"data":[' + b"0," * 1_000_000}.items():
        write("http_binary", f"bomb-{name}", bytes([0, 1, 255, 255]) + gzip.compress(text, mtime=0))
    request = service_pb2.ModelInferRequest(model_name="model")
    for at, (datatype, shape) in enumerate([("FP32", [2, 2]), ("INT32", [3])]):
        given = request.inputs.add(name=f"INPUT{at}", datatype=datatype, shape=shape)
        given.contents.fp32_contents.extend([1.0] * 4) if at == 0 else given.contents.int_contents.extend([1, 2, 3])
    write("grpc_messages", "contents", bytes([0, 0]) + request.SerializeToString(deterministic=True))
    log = service_pb2.LogSettingsRequest()
    log.settings["log_verbose_level"].uint32_param = 1
    trace = service_pb2.TraceSettingRequest(model_name="model")
    trace.settings["trace_level"].value.append("OFF")
    load = service_pb2.RepositoryModelLoadRequest(model_name="model")
    load.parameters["config"].string_param = '{"max_batch_size": 8}'
    region = service_pb2.SystemSharedMemoryRegisterRequest(name="mine", key="/mine", offset=0, byte_size=64)
    for kind, message in [(5, log), (6, trace), (7, load), (9, region)]:
        write("grpc_messages", f"kind-{kind}", bytes([0, kind]) + message.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
