"""Sums up what perf/gpu.sh has left in a folder: gpu_summary.py FOLDER. Prints one JSON object.

Exit code 1 if a criterion does not hold, or a step has failed. What was not measured is null, and no criterion of
it holds or fails.
"""

import json
import sys
from pathlib import Path

MODELS = ["resnet50", "densenet121", "mobilenet_v2", "vgg16", "bert_base"]
# Those that ONNX Runtime's CUDA provider runs as well.
COMPARED = ["resnet50", "bert_base"]


def read(folder, name):
    """Returns the JSON of a step; None if there is none, or if the step found nothing."""
    try:
        found = json.loads((folder / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None
    return None if isinstance(found, dict) and "nothing" in found else found


def nothing(folder, name):
    """Returns why a step found nothing; None if it found something."""
    try:
        return json.loads((folder / f"{name}.json").read_text()).get("nothing")
    except (OSError, ValueError, AttributeError):
        return None


def beside(folder, name):
    """Returns the provider's time over the plan's by batch size, both in FP32; None if one was not measured."""
    plans, provider = read(folder, f"plans-fp32-{name}"), read(folder, f"provider-{name}")
    if plans is None or provider is None:
        return None
    theirs = {row["batch"]: row["p50_ms"] for row in provider["table"]}
    return {str(row["batch"]): theirs[row["batch"]] / row["p50_ms"] for row in plans["table"]}


def ratios(profile, pytorch):
    """Returns PyTorch's time over ours by batch size: of a graph's execution, by the card's clock."""
    if profile is None or pytorch is None or pytorch.get("skipped"):
        return None
    name = Path(profile["model"]).stem
    theirs = {row["batch"]: row["p50_ms"] for row in pytorch["models"].get(name, [])}
    parts = {part["batch"]: part["execution_ms"]["p50"] for part in profile["gpu"]["parts"]}
    ours = {batch: parts.get(batch) for batch in theirs}
    return {str(batch): theirs[batch] / ours[batch] for batch in theirs if ours[batch]}


def main():
    folder = Path(sys.argv[1])
    steps = [line.split("\t") for line in (folder / "steps.tsv").read_text().splitlines()]
    # A step that found its own criterion broken is told by that; others have failed. A machine that
    # is kept busy has no rate that passes, and not every machine has ONNX Runtime's provider.
    told = {(f"agreement-{name}", "1") for name in MODELS} | {("scale", "1"), ("scale", "3")}
    told |= {(f"provider-{name}", "3") for name in COMPARED}
    failed = [name for name, code, _ in steps if code != "0" and (name, code) not in told]
    profiles = {name: read(folder, f"profile-{name}") for name in MODELS}
    pytorch = read(folder, "pytorch")
    agreements = [one for name in MODELS for one in read(folder, f"agreement-{name}") or []]
    isolation, served = read(folder, "isolation-result"), read(folder, "served-result")
    tail = isolation and isolation["result"]["p9999_over_p50"]
    bad_rate = served and served["result"]["load"]["bad_rate"]
    speed = {name: ratios(profile, pytorch) for name, profile in profiles.items()}
    is_card = read(folder, "mode")["mode"] == "run"
    criteria = {
        "every model agrees with the interpreter": len(agreements) == len(MODELS)
        and all(one["agrees"] for one in agreements),
        "every model has a profile": all(profiles.values()),
        "no step failed": not failed,
    }
    if is_card:
        criteria["p99.99 over p50 in isolation is at most 1.02"] = tail and tail <= 1.02
        criteria["bad rate of three models at 80 % load is at most 1 %"] = None if bad_rate is None else bad_rate <= 0.01
        bandwidth = read(folder, "bandwidth")
        criteria["LOAD has at least 0.8 of the bandwidth of a plain copy"] = (
            bandwidth and bandwidth["load_over_plain"] >= 0.8
        )
        measured = [ratio for of in speed.values() for ratio in (of or {}).values()]
        criteria["as fast as PyTorch: at least 0.8 of it"] = min(measured) >= 0.8 if measured else None
    device = next((profile["gpu"]["name"] for profile in profiles.values() if profile), None)
    result = {
        "mode": read(folder, "mode"),
        "device": device,
        "machine": isolation and isolation["machine"],
        "seconds": {name: int(seconds) for name, _, seconds in steps},
        "failed": failed,
        "nothing": {name: why for name, _, _ in steps if (why := nothing(folder, name))},
        "criteria": criteria,
        "agreement": agreements,
        "profiles": profiles,
        "pytorch": pytorch,
        "pytorch_over_ours": speed,
        "provider_over_ours": {name: beside(folder, name) for name in COMPARED},
        "isolation": isolation and isolation["result"],
        "load_bandwidth": read(folder, "bandwidth"),
        "capacity": read(folder, "capacity"),
        "served": served and served["result"],
        "scale": read(folder, "scale"),
    }
    print(json.dumps(result, indent=1))
    sys.exit(1 if False in criteria.values() else 0)


main()
