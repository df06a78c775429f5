"""Networks that share their first layers, run as one, by Triton's clients: each answers for itself.

The networks are those of `.ci/model_variants`. Answers are compared with what ONNX Runtime's Python
package gave for the same rows, and for each network by itself.
"""

import itertools
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import HERE, Adapter, serving, write_ensemble
from references import ROWS, TARGET, check, reference
from tritonclient.utils import InferenceServerException

MADE = TARGET / "model_variants"
GROUPS = list(itertools.product(["vision", "light_squeezenet"], ["cpu", "onnxruntime"]))
VARIANTS = "abc"
SIZES = [1, 3, 1]


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Serves each group on each executor; yields host:port by protocol."""
    subprocess.run([HERE / "../../../.ci/onnxruntime"], check=True)
    if not MADE.is_dir():
        subprocess.run([HERE / "../../../.ci/model_variants"], check=True)
    folder = tmp_path_factory.mktemp("groups")
    stages = [(f"vision-{variant}-cpu", "pixel_values", "logits", variant, [10]) for variant in VARIANTS]
    write_ensemble(folder / "repository/all", 32, stages)
    tables = [
        # No answer is held back, and a machine with much else to do is not taken for a hung one.
        'policy = "work-conserving"\n[faults]\nhung_after_s = 600',
        f'[onnxruntime]\nlibrary = "{TARGET}/onnxruntime/libonnxruntime.so"',
        '[[executors]]\nkind = "cpu"\n[[executors]]\nkind = "onnxruntime"',
        f'[repository]\npath = "{folder / "repository"}"\nslo_ms = 120000',
    ]
    for (network, executor), variant in itertools.product(GROUPS, VARIANTS):
        tables.append(
            f'[[models]]\nname = "{network}-{variant}-{executor}"\nfile = "{MADE}/{network}-{variant}.onnx"\n'
            f'executor = "{executor}"\nprefix_group = "{network}-{executor}"\nmax_batch = 8\n'
            # Deadlines are each model's own, and a profile is the group's.
            f"slo_ms = {120000 + 1000 * VARIANTS.index(variant)}\nprofile = {{ alpha_ms = 20, beta_ms = 20 }}"
        )
    (folder / "symphony.toml").write_text("\n".join(tables))
    with serving(folder) as addresses:
        yield addresses


def expected(client, adapter, network, variant, executor):
    """Returns what a network is given and gives, by tensor."""
    metadata = adapter.json(client.get_model_metadata(f"{network}-{variant}-{executor}"))
    folder = MADE / "references" / f"{network}-{variant}"
    return tuple(reference(folder, role, metadata[f"{role}s"]) for role in ("input", "output"))


def rows_of_batches(addresses, model):
    """Returns the rows of all batches that were counted as a model's."""
    with urllib.request.urlopen(f"http://{addresses['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = f'symphony_batch_size_sum{{model="{model}",version="1"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("network,executor", GROUPS)
def test_each_network_of_a_group_gives_what_it_gives_alone(groups, protocol, network, executor):
    adapter = Adapter(protocol, groups[protocol])
    with adapter.client() as client:
        of = {variant: expected(client, adapter, network, variant, executor) for variant in VARIANTS}
    assert [len(outputs) for _, outputs in of.values()] == [1, 1, 2]

    def ask(variant, rows):
        inputs, outputs = of[variant]
        # A client of each thread's own: those of HTTP are not to be shared.
        with adapter.client() as client:
            sent = [adapter.input(tensor, values[:rows]) for tensor, values in inputs.items()]
            check(client.infer(f"{network}-{variant}-{executor}", sent), outputs, rows, executor)

    first, *others = (f"{network}-{variant}-{executor}" for variant in VARIANTS)
    before = rows_of_batches(groups, first)
    # Those of one network and size stand apart, so that batches mix networks.
    asked = [(variant, rows) for rows in SIZES for variant in VARIANTS]
    with ThreadPoolExecutor(len(asked)) as clients:
        list(clients.map(ask, *zip(*asked)))
    assert rows_of_batches(groups, first) - before == len(VARIANTS) * sum(SIZES)
    assert all(rows_of_batches(groups, other) == 0 for other in others)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_ensemble_may_have_the_networks_of_a_group_as_stages(groups, protocol):
    adapter = Adapter(protocol, groups[protocol])
    with adapter.client() as client:
        of = {variant: expected(client, adapter, "vision", variant, "cpu") for variant in VARIANTS}
        pictures = of["a"][0]["pixel_values"]
        answer = client.infer("all", [adapter.input("picture", pictures)])
        check(answer, {variant: outputs["logits"] for variant, (_, outputs) in of.items()}, ROWS, "cpu")
        times = adapter.json(answer.get_response())["parameters"]
        assert all(f"vision-{variant}-cpu.answered_us" in times for variant in VARIANTS)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_network_of_a_group_is_not_loaded_or_unloaded_while_it_is_served(groups, protocol):
    adapter = Adapter(protocol, groups[protocol])
    with adapter.client() as client:
        inputs, outputs = expected(client, adapter, "vision", "b", "cpu")
        sent = [adapter.input(tensor, values) for tensor, values in inputs.items()]
        for order in (client.unload_model, client.load_model):
            with pytest.raises(InferenceServerException, match="CONFIG's own|explicit"):
                order("vision-b-cpu")
            check(client.infer("vision-b-cpu", sent), outputs, ROWS, "cpu")
