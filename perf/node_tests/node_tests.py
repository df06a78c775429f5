"""Counts how many of ONNX's node tests each executor passes, and why others do not.

Each test is a small model with inputs and the outputs that ONNX's authors expect. Here every tensor of it
gets a batch dimension of 1 in front: `Squeeze` behind the inputs and `Unsqueeze` before the outputs, of
the model's own version of ONNX. So the whole test is one row, and goes through the import, the staging of
rows and back as a request does. Outputs are compared with the tolerances that the test names, and rounding.
"""

import argparse
import collections
import datetime
import json
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test import loader

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "target/release/examples/run_rows"
EXECUTORS = ["cpu", "onnxruntime", "plan"]
# The types of KServe's protocol that have elements of one size.
TYPES = [
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE"),
]
TYPES = {getattr(TensorProto, name) for name in TYPES}
# What rounding may change beside the test's own tolerance, by the bytes of an element, as a part of
# the largest element: the authors' is too tight where a sum of large numbers is near 0.
ROUNDING = {2: 1e-3, 4: 1e-6, 8: 1e-12}
# Tests that one process runs; and how long one of them may take, in seconds.
GROUP = 100
LIMIT = 60
# How the libraries say that they lack something.
LACKING = ["not supported", "unsupported", "not implemented", "could not find an implementation", "is not a registered", "plans lack the operators", "is lacking"]
# What is said of a test without inputs that could be constants.
UNCHANGED = "it has no inputs that could be constants"
# `Squeeze` takes its axes as an input since this version.
AXES_ARE_INPUTS = 13


class NotExpressible(Exception):
    """A test that no request can be: the reason."""


def checked(value):
    """Checks that a request can carry a tensor of a graph; returns its type."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise NotExpressible(f"inputs or outputs of {kind.removesuffix('_type')} type")
    element = value.type.tensor_type.elem_type
    if element not in TYPES:
        raise NotExpressible(f"elements of type {TensorProto.DataType.Name(element)}")
    return element


def operators(graph):
    """Returns the operators of a graph and of those within it; of other sets than ONNX's own with the set's name."""
    found = set()
    for node in graph.node:
        found.add(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= operators(inner)
    return found


def of_covered_operators(program, cases):
    """Returns the names of the tests whose operators plans cover, all of them."""
    names = {case.name: operators(case.model.graph) for case in cases}
    command = [program.resolve(), "operators", *sorted(set().union(*names.values()))]
    covered = set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    return {name for name, used in names.items() if used <= covered}


def arrays_of(values, tensors):
    """Returns a graph's inputs or outputs with the arrays of a test's first data set."""
    if any(array is None or not isinstance(array, (numpy.ndarray, numpy.generic)) for array in tensors):
        raise NotExpressible("inputs or outputs that are no tensors")
    arrays = [numpy.asarray(array) for array in tensors]
    if any(array.size == 0 for array in arrays):
        raise NotExpressible("tensors without elements")
    return list(zip(values, arrays))


def axes_node(operator, source, target, version):
    """Returns nodes that take the first dimension away, or add one."""
    if version < AXES_ARE_INPUTS:
        return [helper.make_node(operator, [source], [target], axes=[0])]
    axes = f"{target}_axes"
    constant = helper.make_node("Constant", [], [axes], value=numpy_helper.from_array(numpy.array([0]), axes))
    return [constant, helper.make_node(operator, [source, axes], [target])]


def rename(nodes, names):
    """Renames tensors that nodes use, in their subgraphs too."""
    for node in nodes:
        for side in (node.input, node.output):
            for at, name in enumerate(side):
                side[at] = names.get(name, name)
        for attribute in node.attribute:
            rename(attribute.g.node, names)
            for graph in attribute.graphs:
                rename(graph.node, names)


def wrap(case, folder, constants):
    """Writes a test's model and inputs to a folder; returns the expected outputs by name.

    With `constants` the inputs behind the first that have at most one dimension become constants of the file,
    such as axes, sizes and shapes: as inputs they would decide the shape of the outputs.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    initializers = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in initializers]
    if not given:
        raise NotExpressible("models without inputs")
    elements = {value.name: checked(value) for value in [*given, *graph.output]}
    if any(value.name == output.name for value in given for output in graph.output):
        raise NotExpressible("an input that is an output")
    given_arrays, expected_arrays = case.data_sets[0]
    inputs, outputs = arrays_of(given, given_arrays), arrays_of(list(graph.output), expected_arrays)
    fixed = [(value, array) for value, array in inputs[1:] if array.ndim <= 1] if constants else []
    if constants and not fixed:
        raise NotExpressible("no such inputs")
    inputs = inputs[:1] + [pair for pair in inputs[1:] if not any(pair[0].name == of.name for of, _ in fixed)]
    version = next((of.version for of in model.opset_import if of.domain in ("", "ai.onnx")), AXES_ARE_INPUTS)
    inner = {name: f"{name}_of_row" for name in elements}
    rename(graph.node, inner)
    before = [node for value, _ in inputs for node in axes_node("Squeeze", value.name, inner[value.name], version)]
    graph.initializer.extend(numpy_helper.from_array(array, inner[value.name]) for value, array in fixed)
    after = [node for value, _ in outputs for node in axes_node("Unsqueeze", inner[value.name], value.name, version)]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    for side, arrays in ((graph.input, inputs), (graph.output, outputs)):
        kept = [value for value in side if value.name not in elements]
        del side[:]
        side.extend(kept)
        for value, array in arrays:
            shape = [1, *array.shape]
            side.append(helper.make_tensor_value_info(value.name, elements[value.name], shape))
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for value, array in inputs:
        (folder / f"{value.name}.in").write_bytes(numpy.ascontiguousarray(array).tobytes())
    return {value.name: array for value, array in outputs}


def run_all(program, executor, folders):
    """Runs the tests in folders, each group in a process; returns what is said of each."""
    said, left = {}, list(folders)
    while left:
        group = left[:GROUP]
        command = [program.resolve(), executor, *map(str, group)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT, check=False)
            text, end = done.stdout, f"the process ended with {done.returncode}"
        except subprocess.TimeoutExpired as expired:
            text, end = expired.stdout or b"", f"it ran for over {LIMIT} s"
        lines = [line.split("\t", 1) for line in text.decode(errors="replace").splitlines()]
        for folder, outcome in lines:
            said[folder] = outcome or end
        # One that crashed or hung has a line without an outcome; the next group begins behind it.
        left = left[max(len(lines), 1) :]
        if not lines:
            said[str(group[0])] = end
        print(f"\r{executor}: {len(folders) - len(left)} of {len(folders)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return said


def differs(case, folder, expected):
    """Returns the name of an output that is not as expected; `None` if all are."""
    for name, array in expected.items():
        if not (folder / f"{name}.out").is_file():
            return name
        found = (folder / f"{name}.out").read_bytes()
        if len(found) != array.nbytes:
            return name
        found = numpy.frombuffer(found, array.dtype).reshape(array.shape)
        if array.dtype.kind in "biu":
            if not numpy.array_equal(found, array):
                return name
            continue
        found, array = found.astype(numpy.float64), array.astype(numpy.float64)
        finite = numpy.abs(array[numpy.isfinite(array)])
        rounding = ROUNDING[expected[name].itemsize] * finite.max(initial=0)
        if not numpy.allclose(found, array, case.rtol, max(case.atol, rounding), equal_nan=True):
            return name
    return None


def outcomes(program, executor, cases, folder, constants):
    """Runs tests, and returns what stood in the way of each that did not pass."""
    expected, failures = {}, {}
    for case in cases:
        try:
            expected[str(folder / case.name)] = (case, wrap(case, folder / case.name, constants))
        except NotExpressible:
            failures[case.name] = UNCHANGED
    for path, outcome in run_all(program, executor, expected).items():
        case, arrays = expected[path]
        wrong = differs(case, pathlib.Path(path), arrays) if outcome == "ran" else None
        if outcome != "ran" or wrong:
            failures[case.name] = f"output {wrong} differs" if wrong else outcome
    return failures


def reason(outcome):
    """Returns the group that a failure belongs to."""
    lower = outcome.lower()
    if outcome.startswith("the process") or outcome.startswith("it ran for"):
        return "the library crashed or hung"
    if any(text in lower for text in LACKING):
        return "an operator, or a form of it, that the library lacks"
    if "has elements of type" in lower:
        return "an element type that the executor refuses"
    if "rows of zeros" in lower:
        return "the run of zeros at the load fails"
    if outcome.startswith("load:"):
        return "refused at the load for another reason"
    if "was expected: shapes must not depend" in outcome:
        return "the shape of an output depends on the values of inputs"
    if outcome.startswith("run:"):
        return "the run failed"
    if outcome.startswith("input:"):
        return "an input is not as the test has it"
    return "another output than expected"


def machine():
    """Returns the processor's name."""
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description="Counts how many of ONNX's node tests each executor passes.")
    parser.add_argument("--save", type=pathlib.Path, help="a JSON file to write")
    parser.add_argument("--executor", choices=EXECUTORS, action="append", help="one of them only; may be given several times")
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM, help="the program run_rows, as it was built")
    parser.add_argument("--only", default="", help="tests whose name has this in it")
    parser.add_argument("--verbose", action="store_true", help="print each test that fails, with what was said")
    arguments = parser.parse_args()
    cases = [case for case in loader.load_model_tests(kind="node") if arguments.only in case.name]
    with tempfile.TemporaryDirectory() as scratch:
        expressed, barred = [], collections.Counter()
        for case in cases:
            try:
                wrap(case, pathlib.Path(scratch) / "probe" / case.name, constants=False)
                expressed.append(case)
            except NotExpressible as why:
                barred[str(why)] += 1
        results = {}
        for executor in arguments.executor or EXECUTORS:
            failures = outcomes(arguments.program, executor, expressed, pathlib.Path(scratch) / executor, constants=False)
            again = [case for case in expressed if case.name in failures]
            still = outcomes(arguments.program, executor, again, pathlib.Path(scratch) / f"{executor}-constants", constants=True)
            failed = collections.defaultdict(list)
            for name, outcome in sorted(failures.items()):
                outcome = still.get(name, "")
                if outcome:
                    failed[reason(outcome if outcome != UNCHANGED else failures[name])].append(name)
                    if arguments.verbose:
                        print(f"{executor}: {name}: {failures[name]}; with constants: {outcome}")
            results[executor] = {
                "passed": len(expressed) - len(failures),
                "passed_with_constants": len(failures) - sum(map(len, failed.values())),
                "failed": dict(sorted(failed.items())),
            }
            if executor == "plan":
                covered = of_covered_operators(arguments.program, expressed)
                lacking = {why: len(covered.intersection(names)) for why, names in sorted(failed.items())}
                results[executor]["of_covered_operators"] = {
                    "tests": len(covered),
                    "passed": len(covered - set(failures)),
                    "passed_with_constants": len(covered.intersection(failures)) - sum(lacking.values()),
                    "failed": {why: count for why, count in lacking.items() if count},
                }
    print(f"{len(cases)} tests; {len(expressed)} can be a request")
    for why, count in barred.most_common():
        print(f"  not expressible: {count}: {why}")
    for executor, result in results.items():
        print(f"{executor}: {result['passed']} pass, {result['passed_with_constants']} more with constants")
        if of := result.get("of_covered_operators"):
            said = f"{of['passed']} pass, {of['passed_with_constants']} more with constants"
            print(f"  of {of['tests']} tests of covered operators {said}")
            for why, count in of["failed"].items():
                print(f"    {count}: {why}")
        for why, names in sorted(result["failed"].items(), key=lambda item: -len(item[1])):
            print(f"  {len(names)}: {why}")
    if arguments.save:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        report = {
            "command": shlex.join(["perf/node_tests/run", *sys.argv[1:]]),
            "commit": commit.stdout.strip(),
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "onnx": onnx.__version__,
            "tests": len(cases),
            "expressed": len(expressed),
            "not_expressible": dict(barred.most_common()),
            "executors": results,
        }
        arguments.save.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
