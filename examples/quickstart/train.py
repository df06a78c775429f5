#!/usr/bin/env python3
"""Makes every model and sample of the quickstart: ONNX files, request bodies, answers, pictures.

Both data sets are drawn by the functions below, so there is nothing to download and no licence to
ask about. Run it with `python train.py`; it takes 2 to 4 minutes on two idle CPU cores. `--quick`
takes half a minute and makes models that run but are poor. The same seed gives the same files as
far as float arithmetic allows.

Run with Python 3.11 and, from PyPI: jax[cpu] 0.10.2, numpy 2.4.6, onnx 1.23.2, onnxruntime 1.31.1 and
pillow 13.0.0.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

OPSET, IR_VERSION = 13, 7  # old enough for every runtime in use
HELD_OUT_SEED = 987_654_321  # never used in training
LABEL_SMOOTHING = 0.1  # keeps the scores away from 0 and 1, so that a wrong digit in an answer shows
TOLERANCE = 1e-3

# ---------------------------------------------------------------- shapes: the data

SHAPES = ["circle", "ring", "crescent", "heart", "triangle", "square", "star", "cross", "stripes", "checks"]
SIDE = 32  # pixels


def box(p, q, a, b):
    """Returns how far (p, q) is outside the rectangle of half sides a and b, by the larger coordinate."""
    return np.maximum(np.abs(p) - a, np.abs(q) - b)


def fold(w, width):
    """Returns the distance outside every other stripe of this width; negative inside."""
    return np.abs((w / (2 * width) + 0.25) % 1.0 - 0.5) * 2 * width - width / 2


def distance(name, u, v):
    """Returns how far (u, v) is outside the named shape; negative inside.

    The shape fills about the unit disc.
    """
    rho = np.hypot(u, v)
    match name:
        case "circle":
            return rho - 0.9
        case "ring":
            return np.abs(rho - 0.72) - 0.2
        case "crescent":
            return np.maximum(rho - 1.0, 0.8 - np.hypot(u - 0.5, v))
        case "heart":  # a square and a disc on each of two neighbouring sides
            u, v, s = u + 0.18, v + 0.18, 0.52
            return np.minimum(box(u, v, s, s), np.minimum(np.hypot(u - s, v), np.hypot(u, v - s)) - s)
        case "triangle":
            return np.max([u * np.cos(a) + v * np.sin(a) - 0.5 for a in 2 * np.pi * np.arange(3) / 3], axis=0)
        case "square":
            return box(u, v, 0.75, 0.75)
        case "star":  # fold the plane onto half a point, then one straight edge is left
            a = np.abs((np.arctan2(v, u) + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
            x, y = 0.42 * np.cos(np.pi / 5) - 1.0, 0.42 * np.sin(np.pi / 5)
            return ((rho * np.cos(a) - 1.0) * y - rho * np.sin(a) * x) / np.hypot(x, y)
        case "cross":
            return np.minimum(box(u, v, 0.95, 0.28), box(u, v, 0.28, 0.95))
        case "stripes":
            return np.maximum(rho - 1.0, fold(u, 0.3))
        case "checks":
            fu, fv = fold(u, 0.4), fold(v, 0.4)
            return np.maximum(box(u, v, 0.8, 0.8), np.sign(fu * fv) * np.minimum(np.abs(fu), np.abs(fv)))


def draw_shapes(rng, n, labels=None):
    """Draws n pictures, float32 [n, 3, 32, 32] in 0..1 (steps of 1/255, as in a PNG), and their labels."""
    labels = rng.integers(0, len(SHAPES), n) if labels is None else np.asarray(labels)

    def one(low, high):
        return rng.uniform(low, high, (n, 1, 1))

    radius, turn = one(8.0, 13.0), one(0.0, 2 * np.pi)
    room = SIDE / 2 - radius
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5 - SIDE / 2
    x, y = (x - room * one(-1, 1)) / radius, (y - room * one(-1, 1)) / radius
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    cover = np.empty((n, SIDE, SIDE))
    for k, name in enumerate(SHAPES):
        of = labels == k
        cover[of] = np.clip(0.5 - distance(name, u[of], v[of]) * radius[of], 0, 1)  # soft over one pixel
    paper = rng.uniform(0, 1, (n, 3))
    ink = (paper + rng.uniform(0.25, 0.75, (n, 3))) % 1.0  # every channel differs by 0.25 or more
    shade = 0.15 * (x * one(-1, 1) + y * one(-1, 1))[:, None]
    image = paper[:, :, None, None] + shade + cover[:, None] * (ink - paper)[:, :, None, None]
    image += rng.standard_normal(image.shape) * one(0.0, 0.08)[:, None]
    return (np.round(np.clip(image, 0, 1) * 255) / 255).astype(np.float32), labels


# ---------------------------------------------------------------- wide: the data

POINTS, MOST_CYCLES = 256, 16


def draw_waves(rng, n, labels=None, noise=0.8):
    """Draws n noisy waves, float32 [n, 256]; label k means k + 1 whole cycles in 256 points."""
    labels = rng.integers(0, MOST_CYCLES, n) if labels is None else np.asarray(labels)
    p = ((labels[:, None] + 1) * np.arange(POINTS) / POINTS + rng.uniform(0, 1, (n, 1))) % 1.0
    kinds = np.stack([np.sin(2 * np.pi * p), 4 * np.abs(p - 0.5) - 1, np.sign(p - 0.5), 2 * p - 1])
    wave = kinds[rng.integers(0, len(kinds), n), np.arange(n)] * rng.uniform(0.5, 1.5, (n, 1))
    return (wave + rng.standard_normal(wave.shape) * rng.uniform(0, noise, (n, 1))).astype(np.float32), labels


# ---------------------------------------------------------------- shapes: a small residual network

STEM, STAGES = 16, [(16, 1), (32, 2), (64, 2)]  # (channels, stride), one residual block a stage


def shapes_layers():
    """Lists (name, kernel side, channels in, channels out, stride) of each convolution in order."""
    layers, c = [("stem", 5, 3, STEM, 2)], STEM
    for i, (k, s) in enumerate(STAGES):
        layers += [(f"block{i}.a", 3, c, k, s), (f"block{i}.b", 3, k, k, 1)]
        layers += [(f"block{i}.skip", 1, c, k, s)] if (c, s) != (k, 1) else []
        c = k
    return layers


def shapes_init(rng):
    params, running = {}, {}
    for name, side, c, k, _ in shapes_layers():
        w = rng.standard_normal((side, side, c, k)) * np.sqrt(2 / (side * side * c))
        params[name] = {"w": w, "scale": np.ones(k), "shift": np.zeros(k)}
        running[name] = {"mean": np.zeros(k), "var": np.ones(k)}
    c = STAGES[-1][0]
    params["out"] = {"w": rng.standard_normal((c, len(SHAPES))) / np.sqrt(c), "b": np.zeros(len(SHAPES))}
    return to_jax(params), to_jax(running)


def shapes_forward(params, running, x):
    """Returns the logits of a batch [N, 3, 32, 32] in training mode and new running statistics."""
    strides = {name: (side, stride) for name, side, _, _, stride in shapes_layers()}
    seen = {}

    def conv(name, x):
        p, (side, stride) = params[name], strides[name]
        pad = [(side // 2, side // 2)] * 2
        y = jax.lax.conv_general_dilated(
            x, p["w"], (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2))
        seen[name] = {"mean": mean, "var": var}
        return (y - mean) * jax.lax.rsqrt(var + 1e-5) * p["scale"] + p["shift"]

    x = jax.nn.relu(conv("stem", x.transpose(0, 2, 3, 1)))
    for i in range(len(STAGES)):
        skip = conv(f"block{i}.skip", x) if f"block{i}.skip" in params else x
        x = jax.nn.relu(conv(f"block{i}.b", jax.nn.relu(conv(f"block{i}.a", x))) + skip)
    logits = x.mean((1, 2)) @ params["out"]["w"] + params["out"]["b"]
    return logits, jax.tree.map(lambda old, new: 0.95 * old + 0.05 * new, running, seen)


def shapes_graph(params, running):
    """Returns the ONNX graph, with batch norm folded into the convolutions."""
    g = Graph()

    def conv(name, x, side, stride):
        p, r = params[name], running[name]
        gain = np.asarray(p["scale"]) / np.sqrt(np.asarray(r["var"]) + 1e-5)
        w = g.weight(f"{name}.w", (np.asarray(p["w"]) * gain).transpose(3, 2, 0, 1))
        b = g.weight(f"{name}.b", np.asarray(p["shift"]) - np.asarray(r["mean"]) * gain)
        return g.node(
            "Conv", [x, w, b], name, kernel_shape=[side] * 2, strides=[stride] * 2, pads=[side // 2] * 4
        )

    convs = {name: (side, stride) for name, side, _, _, stride in shapes_layers()}
    x = g.node("Relu", [conv("stem", "image", *convs["stem"])], "stem.relu")
    for i in range(len(STAGES)):
        a, b, s = f"block{i}.a", f"block{i}.b", f"block{i}.skip"
        y = conv(b, g.node("Relu", [conv(a, x, *convs[a])], f"{a}.relu"), *convs[b])
        x = g.node("Add", [y, conv(s, x, *convs[s]) if s in convs else x], f"block{i}.sum")
        x = g.node("Relu", [x], f"block{i}.relu")
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], "pool")], "flat", axis=1)
    g.node("Softmax", [g.dense("out", x, params["out"])], "scores", axis=1)
    return g.model("shapes", ("image", ["N", 3, SIDE, SIDE]), ("scores", ["N", len(SHAPES)]))


# ---------------------------------------------------------------- wide: a layer applied many times

WIDTH, TIMES = 1024, 16


def wide_init(rng):
    def dense(c, k, gain=1.0):
        return {"w": rng.standard_normal((c, k)) * gain / np.sqrt(c), "b": np.zeros(k)}

    core = dense(WIDTH, WIDTH, 0.2)  # small, since TIMES of them multiply
    return to_jax({"in": dense(POINTS, WIDTH), "core": core, "out": dense(WIDTH, MOST_CYCLES)}), {}


def wide_forward(params, running, x):
    """Returns the logits of a batch [N, 256].

    The core is applied TIMES times, so the time grows but the file does not.
    """
    h = x @ params["in"]["w"] + params["in"]["b"]
    for _ in range(TIMES):
        h = h + jax.nn.relu(h) @ params["core"]["w"] + params["core"]["b"]
    return jax.nn.relu(h) @ params["out"]["w"] + params["out"]["b"], running


def wide_graph(params, _running):
    g = Graph()
    h = g.dense("in", "features", params["in"])
    for i in range(TIMES):
        h = g.node(
            "Add",
            [h, g.dense("core", g.node("Relu", [h], f"relu{i}"), params["core"], f"core{i}")],
            f"sum{i}",
        )
    g.node("Softmax", [g.dense("out", g.node("Relu", [h], "relu.out"), params["out"])], "scores", axis=1)
    return g.model("wide", ("features", ["N", POINTS]), ("scores", ["N", MOST_CYCLES]))


# ---------------------------------------------------------------- training


def to_jax(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


def train(name, init, forward, draw, *, steps, batch, rate, seed):
    """Trains with Adam on data drawn afresh for each step; returns weights and running statistics."""
    rng = np.random.default_rng(seed)
    params, running = init(rng)
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def loss(params, running, x, labels):
        logits, running = forward(params, running, x)
        k = logits.shape[1]
        target = jax.nn.one_hot(labels, k) * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / k
        hits = (logits.argmax(1) == labels).mean()
        return -(target * jax.nn.log_softmax(logits)).sum(1).mean(), (running, hits)

    @jax.jit
    def step(params, running, moments, i, x, labels):
        (_, (running, hits)), grads = jax.value_and_grad(loss, has_aux=True)(params, running, x, labels)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), grads)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], grads)
        lr = rate * jnp.minimum((i + 1) / 100, 1.0) * 0.5 * (1 + jnp.cos(jnp.pi * i / steps))
        m_bias, v_bias = 1 - 0.9 ** (i + 1), 1 - 0.99 ** (i + 1)
        params = jax.tree.map(
            lambda p, m, v: p - lr * (m / m_bias) / (jnp.sqrt(v / v_bias) + 1e-8), params, m, v
        )
        return params, running, (m, v), hits

    started = time.monotonic()
    for i in range(steps):
        x, labels = draw(rng, batch)
        params, running, moments, hits = step(params, running, moments, jnp.float32(i), x, labels)
        if i % 100 == 99 or i + 1 == steps:
            took = time.monotonic() - started
            print(f"{name}: step {i + 1}/{steps}, {hits:.1%} of this batch right, {took:.0f} s", flush=True)
    return params, running


# ---------------------------------------------------------------- writing ONNX


class Graph:
    """Collects nodes and weights. MatMul and Add stand for Gemm: rten packs a MatMul's weights ahead."""

    def __init__(self):
        self.nodes, self.weights = [], {}

    def weight(self, name, value):
        self.weights.setdefault(name, numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def dense(self, weights, x, p, name=None):
        name = name or weights
        y = self.node("MatMul", [x, self.weight(f"{weights}.w", p["w"])], f"{name}.matmul")
        return self.node("Add", [y, self.weight(f"{weights}.b", p["b"])], name)

    def model(self, name, source, sink):
        def info(pair):
            return [helper.make_tensor_value_info(pair[0], TensorProto.FLOAT, pair[1])]

        graph = helper.make_graph(self.nodes, name, info(source), info(sink), list(self.weights.values()))
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="symphony-quickstart"
        )


# ---------------------------------------------------------------- checks, samples, pictures


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check(path, draw, rows):
    """Prints the held-out accuracy and the time per batch size; fails if a row depends on its batch."""
    onnx.checker.check_model(onnx.load(path), full_check=True)
    run, rng = session(path), np.random.default_rng(HELD_OUT_SEED)
    source = run.get_inputs()[0].name

    def infer(x):
        return run.run(None, {source: x})[0]

    x, labels = draw(rng, rows)
    guesses = np.concatenate([infer(x[i : i + 50]).argmax(1) for i in range(0, rows, 50)])
    right, size = np.mean(guesses == labels), path.stat().st_size / 1024
    print(f"{path.name}: {right:.2%} of {rows} held-out examples right, {size:.0f} KiB")
    for b in (3, 8):
        apart = np.concatenate([infer(x[i : i + 1]) for i in range(b)])
        np.testing.assert_allclose(infer(x[:b]), apart, atol=1e-5, err_msg=f"{path.name}: batch of {b}")
    took = {b: np.median([timed(infer, x[:b]) for _ in range(200)]) * 1e3 for b in (1, 2, 4, 8, 16)}
    times = ", ".join(f"{b}: {t:.3f}" for b, t in took.items())
    print(f"  ms by batch size, one thread: {times}; gain at 8: {8 * took[1] / took[8]:.1f}", flush=True)


def timed(call, argument):
    started = time.perf_counter()
    call(argument)
    return time.perf_counter() - started


def write_sample(folder, stem, path, x, label, names):
    """Writes a request body and the answer to it. The answer is of the numbers as the body holds them."""
    run = session(path)
    source, shape = run.get_inputs()[0].name, [1, *x.shape]
    data = [round(float(value), 3) for value in x.ravel()]
    scores = run.run(None, {source: np.array(data, np.float32).reshape(shape)})[0][0]
    if scores.argmax() != label:
        print(f"warning: {stem} shows {names[label]}, the model says {names[scores.argmax()]}")
    body = {"inputs": [{"name": source, "shape": shape, "datatype": "FP32", "data": data}]}
    answer = {
        "model": path.stem,
        "output": "scores",
        "class": names[scores.argmax()],
        "index": int(scores.argmax()),
    }
    answer |= {"scores": [round(float(s), 4) for s in scores], "tolerance": TOLERANCE}
    (folder / f"{stem}.json").write_text(json.dumps(body, separators=(",", ":")) + "\n")
    (folder / f"{stem}.expected.json").write_text(json.dumps(answer) + "\n")


def pixels(x):
    return np.round(x * 255).astype(np.uint8).transpose(1, 2, 0)


def write_wave(file, x):
    image = Image.new("L", (2 * POINTS, 160), 255)
    line = [(2 * i, 80 - 25 * float(value)) for i, value in enumerate(x)]
    ImageDraw.Draw(image).line(line, fill=0)
    image.save(file, optimize=True)


def make_shapes(out, quick, seed):
    path, samples = out / "shapes.onnx", out / "samples"
    steps = 100 if quick else 1200
    schedule = {"steps": steps, "batch": 128, "rate": 4e-3, "seed": seed}
    trained = train("shapes", shapes_init, shapes_forward, draw_shapes, **schedule)
    onnx.save(shapes_graph(*trained), path)
    (out / "shapes.labels.txt").write_text("\n".join(SHAPES) + "\n")
    check(path, draw_shapes, 500 if quick else 10_000)
    rng, rows = np.random.default_rng(seed + 1), 4
    sheet, labels = draw_shapes(rng, rows * len(SHAPES), list(range(len(SHAPES))) * rows)
    grid = [
        np.concatenate([pixels(x) for x in sheet[r * len(SHAPES) :][: len(SHAPES)]], axis=1)
        for r in range(rows)
    ]
    Image.fromarray(np.concatenate(grid)).save(samples / "shapes.classes.png", optimize=True)
    for stem, name in (("shapes", "star"), ("shapes-2", "heart")):
        x, label = sheet[SHAPES.index(name)], SHAPES.index(name)
        Image.fromarray(pixels(x)).save(samples / f"{stem}.png", optimize=True)
        write_sample(samples, stem, path, x, label, SHAPES)


def make_wide(out, quick, seed):
    path, samples = out / "wide.onnx", out / "samples"
    names = [str(k + 1) for k in range(MOST_CYCLES)]
    steps = 60 if quick else 300
    schedule = {"steps": steps, "batch": 256, "rate": 5e-4, "seed": seed}
    trained = train("wide", wide_init, wide_forward, draw_waves, **schedule)
    onnx.save(wide_graph(*trained), path)
    (out / "wide.labels.txt").write_text("\n".join(names) + "\n")
    check(path, draw_waves, 500 if quick else 10_000)
    waves, labels = draw_waves(np.random.default_rng(seed + 1), 2, [4, 10], noise=0.2)  # countable by eye
    for stem, x, label in zip(("wide", "wide-2"), waves, labels, strict=True):
        write_wave(samples / f"{stem}.png", x)
        write_sample(samples, stem, path, x, label, names)


def main():
    raw = argparse.RawDescriptionHelpFormatter
    here = Path(__file__).resolve().parent
    options = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    options.add_argument("--out", type=Path, default=here, help="folder to write to (this one)")
    options.add_argument("--quick", action="store_true", help="train for half a minute only")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    (args.out / "samples").mkdir(parents=True, exist_ok=True)
    make_shapes(args.out, args.quick, args.seed)
    make_wide(args.out, args.quick, args.seed)


if __name__ == "__main__":
    main()
