#!/usr/bin/env python3
"""Writes the seeds of the fuzz target `wire`: a frame of each kind, made from the tables of docs/protocol.md alone.

So it is also a second implementation of the format: transport/tests/protocol.rs reads what it wrote.
"""

import pathlib
import re
import struct

ROOT = pathlib.Path(__file__).parent.parent.parent
SEEDS = pathlib.Path(__file__).parent / "seeds" / "wire"
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text()
HEADING = re.compile(r"### (\w+), (\d+) bytes\n\n\| offset.*\n\| ---.*\n((?:\|.*\n)+)")
CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def read_layouts():
    """Returns, by a record's name, its size and its fields as (name, offset, bytes)."""
    layouts = {}
    for name, size, rows in HEADING.findall(DOCUMENT):
        cells = [[cell.strip() for cell in row.split("|")] for row in rows.splitlines()]
        layouts[name] = int(size), [(field, int(offset), int(count)) for _, offset, count, field, *_ in cells]
    return layouts


LAYOUTS = read_layouts()
VERSION = int(re.search(r"^\| 4 \| 2 \| version \| (\d+) \|$", DOCUMENT, re.MULTILINE)[1])
KINDS = {name: int(kind) for kind, name in re.findall(r"^\| (\d+) \| (\w+) \| (?:a|an|one) ", DOCUMENT, re.MULTILINE)}


def record(name, /, **values):
    """Returns the bytes of a record; fields that are not given are zero."""
    size, fields = LAYOUTS[name]
    known = {field for field, _, _ in fields}
    assert known >= {field.replace("__", ".") for field in values}, (name, values)
    made = bytearray(size)
    for field, offset, count in fields:
        value = values.get(field.replace(".", "__"), 0)
        if isinstance(value, bytes):
            made[offset : offset + len(value)] = value
        elif value:
            struct.pack_into("<" + CODES[count], made, offset, value)
    return bytes(made)


def frame(kind, *parts):
    payload = b"".join(parts)
    return record("Header", magic=b"SYMF", version=VERSION, kind=KINDS[kind], length=len(payload)) + payload


def frames():
    """Yields a frame of each kind."""
    model = record("OfferedModel", digest=2**63, model=3, max_batch=8, input_bytes=600, output_bytes=40)
    hello = {"config": bytes(range(32)), "incarnation": 7, "heartbeat_every": 10**8, "max_batch": 64, "credits": 1024}
    yield "Hello", record("Hello", **hello, role=3, first_gpu=8, gpus=2, tensors=1, name="hôte".encode()), model
    yield "Accepted", record("Accepted", incarnation=7)
    yield "Closing", record("Closing", code=2, sentence=b"this host serves `resnet50` version 2, the peer version 1")
    times = {"arrival": 10**9, "deadline": 2**62}
    rows = [record("Request", id=5, slot=2**63 + row, **times, row=row, rows_after=2 - row) for row in range(3)]
    yield "Requests", *rows, record("Request", id=4, takes_back=1, **{"class": 3})
    yield "Responses", record("Response", id=5, ending=1, finished=10**9)
    entries = [record("BatchEntry", id=number, slot=number) for number in range(5)]
    yield "Batch", record("GrantedBatch", incarnation=7, batch=9, exec_at=1, latest=2**64 - 1, gpu=9), *entries
    ran = {"completion__batch": 9, "completion__started": 1, "completion__finished": 2, "completion__gpu": 9}
    yield "Completions", record("BackendCompletion", incarnation=7, number=1, **ran)
    yield "Gpus", *(record("GpuPresence", incarnation=7, since=1, gpu=gpu, presence=1) for gpu in (8, 9))
    yield "Alive", record("Alive", number=3, sent=4)
    yield "TimeProbe", record("TimeProbe", sent=4)
    yield "TimeAnswer", record("TimeAnswer", sent=4, received=10**12, answered=10**12 + 1)
    yield "Credit", record("CreditGrant", total=2048)
    yield "TensorRead", record("TensorRead", read=1, slot=2**63, offset=64, bytes=600)
    yield "TensorData", record("TensorData", read=1, outcome=1, bytes=4), b"data"
    yield "TensorWrite", record("TensorWrite", slot=2**63, bytes=6), b"output"
    offer = record("RdmaOffer", gid=bytes(range(16)), landing=2**40, landing_bytes=2**20, queue_pair=17, mtu=1024, reads=16)
    yield "Rdma", offer, record("ExportedClass", slots=2**41, states=2**42, slot_bytes=640, count=8, number=1)
    yield "Delays", record("MeasuredDelays", way=10**5, fetch=2 * 10**5, fetch_per_kib=2**64 - 1)


def main():
    SEEDS.mkdir(parents=True, exist_ok=True)
    for kind, *parts in frames():
        (SEEDS / kind).write_bytes(frame(kind, *parts))


if __name__ == "__main__":
    main()
