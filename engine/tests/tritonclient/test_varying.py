"""An encoder like BERT whose requests are short or long texts, each kind an application of its own.

Clients name the application of a request. Answers are compared with what ONNX Runtime's Python
package gave for the same rows; what was learnt of each application's run times is there again after
the server was stopped.
"""

import subprocess
import time
import urllib.request

import pytest
from conftest import HERE, Adapter, serving
from references import ROWS, TARGET, check, reference

EXPORTED = TARGET / "exported_models"
# The tokens of a text of each application, and the bucket to which these are padded.
TEXTS = {"chat": (5, 16), "document": (100, 128)}
# The references of texts of these lengths.
SIZES = {"chat": "sequence=5,channels=1,samples=80", "document": "sequence=100,channels=2,samples=272"}
# The profile says far more than the encoder takes, which is to be learnt.
MS_PER_ROW = 500
LEARNT = 0.5
PATIENCE = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the CONFIG of the encoder."""
    subprocess.run([HERE / "../../../.ci/onnxruntime"], check=True)
    if not EXPORTED.is_dir():
        subprocess.run([HERE / "../../../.ci/exported_models"], check=True)
    folder = tmp_path_factory.mktemp("varying")
    buckets = [bucket for _, bucket in TEXTS.values()]
    rows = "".join(f"{batch},{MS_PER_ROW * batch},{MS_PER_ROW * batch}\n" for batch in range(1, 5))
    for bucket in buckets:
        (folder / f"encoder-{bucket}.csv").write_text("batch,p50_ms,p99_ms\n" + rows)
    applications = ", ".join(f'{{ name = "{name}" }}' for name in TEXTS)
    (folder / "symphony.toml").write_text(
        'policy = "work-conserving"\nlearned_profiles = "learned.json"\n'
        f'[onnxruntime]\nlibrary = "{TARGET}/onnxruntime/libonnxruntime.so"\n'
        '[[executors]]\nkind = "onnxruntime"\n'
        f'[[models]]\nname = "encoder"\nfile = "{EXPORTED}/dynamic/encoder.onnx"\nslo_ms = 60000\nmax_batch = 4\n'
        f'sizes = [{{ dimension = "sequence", buckets = {buckets} }}]\nmax_waste = 0\n'
        'padding = [{ input = "attention_mask", mask = true }]\nprofile = "encoder-{sequence}.csv"\n'
        f"applications = [{applications}]\n"
    )
    return folder


class Texts:
    """The texts of an application, and what the encoder makes of them."""

    def __init__(self, adapter, application):
        self.adapter, self.application = adapter, application
        with adapter.client() as client:
            metadata = adapter.json(client.get_model_metadata("encoder"))
        length, _ = TEXTS[application]
        sizes = {tensor: [length] for tensor in ("input_ids", "attention_mask", "last_hidden_state")}
        of = EXPORTED / "references" / SIZES[application] / "encoder"
        self.inputs = reference(of, "input", metadata["inputs"], sizes)
        self.outputs = reference(of, "output", metadata["outputs"], sizes)

    def ask(self, client, rows):
        sent = [self.adapter.input(tensor, values[:rows]) for tensor, values in self.inputs.items()]
        answer = client.infer("encoder", sent, parameters={"application": self.application})
        check(answer, self.outputs, rows, "onnxruntime")


def metric(addresses, name, application):
    """Returns the value of a metric of an application, in the buckets of its texts; None if there is none."""
    with urllib.request.urlopen(f"http://{addresses['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    _, bucket = TEXTS[application]
    labels = f'model="encoder",version="1",sizes="sequence={bucket}",application="{application}"'
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name}{{{labels}}}")]
    return float(values[0]) if values else None


def wait_until_learnt(addresses, ask):
    """Asks until the profiles that are scheduled by are what the encoder really takes."""
    began = time.monotonic()
    drift = "symphony_model_profile_drift"
    while not all((metric(addresses, drift, name) or 1) < LEARNT for name in TEXTS):
        assert time.monotonic() - began < PATIENCE
        ask()


def test_each_application_is_served_by_itself_and_what_was_learnt_survives_a_restart(folder):
    with serving(folder) as addresses:
        for protocol in ("http", "grpc"):
            adapter = Adapter(protocol, addresses[protocol])
            texts = [Texts(adapter, application) for application in TEXTS]
            with adapter.client() as client:
                for rows in (1, ROWS, 2):
                    for of in texts:
                        of.ask(client, rows)
        rows = [metric(addresses, "symphony_model_rows_total", application) for application in TEXTS]
        assert rows == [2 * (1 + ROWS + 2)] * 2
        adapter = Adapter("http", addresses["http"])
        with adapter.client() as client:
            texts = [Texts(adapter, application) for application in TEXTS]
            wait_until_learnt(addresses, lambda: [of.ask(client, 1) for of in texts])
    assert (folder / "learned.json").stat().st_size > 0
    with serving(folder) as addresses:
        adapter = Adapter("grpc", addresses["grpc"])
        with adapter.client() as client:
            # Metrics have what was asked for once, of which nothing can be learnt.
            for application in TEXTS:
                Texts(adapter, application).ask(client, 1)
        wait_until_learnt(addresses, lambda: time.sleep(0.1))
