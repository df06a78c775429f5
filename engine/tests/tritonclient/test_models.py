"""Real networks by Triton's clients: one row, three rows, and requests of mixed sizes at once.

The models are those of `.ci/exported_models`, and the light networks that take the least computing.
Answers are compared with what ONNX Runtime's Python package gave for the same rows.
"""

import itertools
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import HERE, Adapter, features, serving, write_ensemble
from references import ROWS, TARGET, check, reference

EXPORTED = TARGET / "exported_models"
REFERENCES = EXPORTED / "references"
STATEFUL = (HERE / "../../../gpu/tests/data/stateful.onnx").resolve()
SIZES = [1, 3, 2, 1, 3]
BOTH = ["cpu", "onnxruntime"]
# rten has no LRN, which AlexNet needs.
MODELS = {
    "encoder": BOTH,
    "vision": BOTH,
    "speech": BOTH,
    # rten has no texts.
    "text": ["onnxruntime"],
    "light_squeezenet": BOTH,
    "light_shufflenet": BOTH,
    "light_bvlc_alexnet": ["onnxruntime"],
}
# Buckets of the dynamic ones, and the sizes of the references, which no bucket has.
BUCKETS = {
    "encoder": {"sequence": [16, 64, 128]},
    "speech": {"channels": [1, 2], "samples": [128, 512]},
}
OWN_SIZES = ["sequence=5,channels=1,samples=80", "sequence=100,channels=2,samples=272"]
SERVED = [(name, executor) for name, executors in MODELS.items() for executor in executors]


def sized(name, folder):
    """Returns the keys of a model's sizes; its profiles, one for each size class, go to the folder."""
    rows = "".join(f"{batch},{20 * batch},{20 * batch}\n" for batch in range(1, 9))
    for sizes in itertools.product(*BUCKETS[name].values()):
        table = folder / "-".join([name, *map(str, sizes)])
        table.with_suffix(".csv").write_text("batch,p50_ms,p99_ms\n" + rows)
    buckets = ", ".join(f'{{ dimension = "{of}", buckets = {sizes} }}' for of, sizes in BUCKETS[name].items())
    pattern = "-".join([name, *(f"{{{dimension}}}" for dimension in BUCKETS[name])])
    keys = f'sizes = [{buckets}]\nmax_waste = 0\nprofile = "{pattern}.csv"\n'
    return keys + ('padding = [{ input = "attention_mask", mask = true }]\n' if name == "encoder" else "")


def config(folder):
    """Returns a CONFIG with each model on each executor that runs it, and the dynamic ones with buckets."""
    tables = [
        # A machine with much else to do is not taken for one that hangs.
        'policy = "work-conserving"\n[faults]\nhung_after_s = 600',
        f'[onnxruntime]\nlibrary = "{TARGET}/onnxruntime/libonnxruntime.so"',
        *(f'[[executors]]\nkind = "{executor}"' for executor in BOTH),
    ]
    for name, executor in SERVED:
        source = TARGET / "light_models" if name.startswith("light_") else EXPORTED
        tables.append(
            f'[[models]]\nname = "{name}-{executor}"\nfile = "{source / name}.onnx"\n'
            # A profile, as measuring one of each takes longer than all the tests.
            f'executor = "{executor}"\nslo_ms = 120000\nmax_batch = 8\nprofile = {{ alpha_ms = 20, beta_ms = 20 }}'
        )
    for executor in BOTH:
        tables.append(
            f'[[models]]\nname = "stateful-{executor}"\nfile = "{STATEFUL}"\nexecutor = "{executor}"\n'
            'slo_ms = 20000\ndefaults = [{ input = "count", value = 4 }]'
        )
    for name, executor in itertools.product(BUCKETS, BOTH):
        tables.append(
            f'[[models]]\nname = "{name}-{executor}-sized"\nfile = "{EXPORTED / "dynamic" / name}.onnx"\n'
            f'executor = "{executor}"\nslo_ms = 20000\nmax_batch = 8\n{sized(name, folder)}'
        )
    tables.append(f'[repository]\npath = "{folder / "repository"}"\nslo_ms = 120000')
    return "\n".join(tables)


# Networks that take the same picture: their input, their output, its dims, and the tensor of the
# ensemble that it is.
TOGETHER = {
    "light_bvlc_alexnet-onnxruntime": ("data_0", "prob_1", [1000], "alexnet"),
    "light_shufflenet-cpu": ("gpu_0/data_0", "gpu_0/softmax_1", [1000], "shufflenet"),
    "light_squeezenet-onnxruntime": ("data_0", "softmaxout_1", [1000, 1, 1], "squeezenet"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Serves a repository that clients control: a network, and an ensemble of it alone."""
    folder = tmp_path_factory.mktemp("explicit")
    model = folder / "repository/wide/1/model.onnx"
    model.parent.mkdir(parents=True)
    model.write_bytes((HERE / "../../../examples/quickstart/wide.onnx").read_bytes())
    # A profile, as measuring one takes longer than a client waits where a machine has much to do.
    keys = "slo_ms = 20000\nprofile = { alpha_ms = 1, beta_ms = 1 }\n"
    (folder / "repository/wide/model.toml").write_text(keys)
    (folder / "repository/alone").mkdir()
    (folder / "repository/alone/config.pbtxt").write_text(
        'platform: "ensemble"\n'
        'input { name: "given" data_type: TYPE_FP32 dims: [ 256 ] }\n'
        'output { name: "made" data_type: TYPE_FP32 dims: [ 16 ] }\n'
        'ensemble_scheduling { step { model_name: "wide" '
        'input_map { key: "features" value: "given" } output_map { key: "scores" value: "made" } } }\n'
    )
    (folder / "symphony.toml").write_text(
        'policy = "work-conserving"\n[[executors]]\nkind = "cpu"\n'
        f'[repository]\npath = "{folder / "repository"}"\ncontrol = "explicit"\nslo_ms = 20000\n'
    )
    with serving(folder) as addresses:
        yield addresses


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_ensemble_is_loaded_with_its_model_and_unloaded(repository, protocol):
    adapter = Adapter(protocol, repository[protocol])
    with adapter.client() as client:

        def states():
            index = adapter.json(client.get_model_repository_index())
            index = index if protocol == "http" else index["models"]
            return {line["name"]: (line["state"], line.get("reason", "")) for line in index}

        assert states()["alone"][0] == "UNAVAILABLE" and states()["wide"][0] != "READY"
        client.load_model("alone")
        assert client.is_model_ready("alone") and client.is_model_ready("wide")
        answer = client.infer("alone", [adapter.input("given", features(ROWS))])
        expected = client.infer("wide", [adapter.input("features", features(ROWS))])
        np.testing.assert_array_equal(answer.as_numpy("made"), expected.as_numpy("scores"))
        client.unload_model("wide")
        state, reason = states()["alone"]
        assert state == "UNAVAILABLE" and 'the model "wide" of stage "wide" is not served' in reason
        client.load_model("alone")
        assert states()["alone"] == ("READY", "")
        client.unload_model("alone", unload_dependents=True)
        assert not client.is_model_ready("alone") and not client.is_model_ready("wide")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Serves the models; yields host:port by protocol."""
    subprocess.run([HERE / "../../../.ci/onnxruntime"], check=True)
    if not EXPORTED.is_dir():
        subprocess.run([HERE / "../../../.ci/exported_models"], check=True)
    folder = tmp_path_factory.mktemp("models")
    stages = [(name, given, made, tensor, dims) for name, (given, made, dims, tensor) in TOGETHER.items()]
    write_ensemble(folder / "repository/together", 224, stages)
    (folder / "symphony.toml").write_text(config(folder))
    with serving(folder) as addresses:
        yield addresses


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("name,executor", SERVED)
def test_a_network_gives_what_the_python_package_gives(models, protocol, name, executor):
    adapter, model = Adapter(protocol, models[protocol]), f"{name}-{executor}"
    with adapter.client() as client:
        metadata = adapter.json(client.get_model_metadata(model))
    inputs = reference(REFERENCES / name, "input", metadata["inputs"])
    outputs = reference(REFERENCES / name, "output", metadata["outputs"])

    def ask(rows):
        # A client of each thread's own: those of HTTP are not to be shared.
        with adapter.client() as client:
            sent = [adapter.input(tensor, values[:rows]) for tensor, values in inputs.items()]
            check(client.infer(model, sent), outputs, rows, executor)

    ask(1)
    ask(ROWS)
    with ThreadPoolExecutor(len(SIZES)) as clients:
        list(clients.map(ask, SIZES))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("name,executor", list(itertools.product(BUCKETS, BOTH)))
def test_requests_of_other_sizes_than_the_buckets_are_answered_in_their_own(models, protocol, name, executor):
    adapter, model = Adapter(protocol, models[protocol]), f"{name}-{executor}-sized"
    with adapter.client() as client:
        metadata = adapter.json(client.get_model_metadata(model))
    asked = []
    for text in OWN_SIZES:
        own = {of: int(size) for of, size in (pair.split("=") for pair in text.split(","))}
        sequence, sound = [own["sequence"]], [own["channels"], own["samples"]]
        sizes = {"input_ids": sequence, "attention_mask": sequence, "last_hidden_state": sequence, "sound": sound}
        sizes["log_probabilities"] = [own["samples"] // 16]
        folder = REFERENCES / text / name
        inputs = reference(folder, "input", metadata["inputs"], sizes)
        outputs = reference(folder, "output", metadata["outputs"], sizes)
        asked += [(inputs, outputs, rows) for rows in SIZES]

    def ask(request):
        inputs, outputs, rows = request
        with adapter.client() as client:
            sent = [adapter.input(tensor, values[:rows]) for tensor, values in inputs.items()]
            check(client.infer(model, sent), outputs, rows, executor)
            if name == "encoder" and rows == 1:
                # The mask of the first row is ones, which the server makes where a client leaves it
                # out.
                check(client.infer(model, sent[:1]), outputs, rows, executor)

    with ThreadPoolExecutor(len(SIZES)) as clients:
        list(clients.map(ask, asked))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("executor", BOTH)
def test_a_model_without_a_batch_takes_whole_tensors_and_a_client_keeps_its_state(models, protocol, executor):
    adapter, model = Adapter(protocol, models[protocol]), f"stateful-{executor}"
    with adapter.client() as client:
        metadata = adapter.json(client.get_model_metadata(model))
        shapes = {tensor["name"]: [int(size) for size in tensor["shape"]] for tensor in metadata["inputs"]}
        assert shapes == {"x": [1, 3], "state": [2, 1, 3], "count": [1]}
        x = np.ones(shapes["x"], np.float32)
        state = np.arange(6, dtype=np.float32).reshape(shapes["state"])
        for step in range(3):
            sent = [adapter.input("x", x), adapter.input("state", state)]
            if step:
                sent.append(adapter.input("count", np.array([4])))
            answer = client.infer(model, sent)
            np.testing.assert_array_equal(answer.as_numpy("y"), x + state.sum(0))
            np.testing.assert_array_equal(answer.as_numpy("steps"), np.arange(4))
            found = answer.as_numpy("next_state")
            np.testing.assert_array_equal(found, -state)
            state = found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_ensemble_of_three_networks_gives_what_each_gives(models, protocol):
    adapter = Adapter(protocol, models[protocol])
    pictures = np.random.default_rng(7).random((ROWS, 3, 224, 224), np.float32)
    with adapter.client() as client:
        metadata = adapter.json(client.get_model_metadata("together"))
        assert metadata["platform"] == "ensemble"
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["picture"]
        answer = client.infer("together", [adapter.input("picture", pictures)])
        for name, (given, made, dims, tensor) in TOGETHER.items():
            expected = client.infer(name, [adapter.input(given, pictures)]).as_numpy(made)
            assert expected.shape == (ROWS, *dims)
            check(answer, {tensor: expected}, ROWS, name.rsplit("-", 1)[1])
        times = adapter.json(answer.get_response())["parameters"]
        assert all(f"{name}.answered_us" in times for name in TOGETHER)
