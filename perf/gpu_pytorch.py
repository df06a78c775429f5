"""The networks of perf/gpu.sh in PyTorch: channels last, half precision, a CUDA graph for each batch size.

Prints one JSON object: milliseconds of an execution by model and batch size. Where there is no PyTorch or no GPU it
says so in the object's field `skipped`, and ends with exit code 0. `--isolation N` executes ResNet-50 with one row N
times besides, for the tail of its times. `--count` only counts parameters, on the CPU.
"""

import argparse
import json
import statistics
import sys

TOKENS = 128


def networks(nn):
    """Returns the networks by name, each a function that makes it, with the number of its parameters."""

    def block(inputs, outputs, size, stride=1, groups=1, activation=nn.ReLU):
        layers = [
            nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        return layers + ([activation(inplace=True)] if activation else [])

    class Bottleneck(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.branch = nn.Sequential(
                *block(inputs, width, 1), *block(width, width, 3, stride), *block(width, 4 * width, 1, activation=None)
            )
            same = inputs == 4 * width and stride == 1
            self.kept = nn.Identity() if same else nn.Sequential(*block(inputs, 4 * width, 1, stride, activation=None))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.branch(x) + self.kept(x))

    def head(channels):
        return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]

    def resnet50():
        layers, inputs = [*block(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
        for stage, blocks in enumerate([3, 4, 6, 3]):
            for at in range(blocks):
                layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and not at else 1))
                inputs = 4 * (64 << stage)
        return nn.Sequential(*layers, *head(inputs))

    class Dense(nn.Module):
        def __init__(self, inputs):
            super().__init__()
            self.added = nn.Sequential(
                nn.BatchNorm2d(inputs),
                nn.ReLU(inplace=True),
                *block(inputs, 128, 1),
                nn.Conv2d(128, 32, 3, padding=1, bias=False),
            )

        def forward(self, x):
            import torch

            return torch.cat([x, self.added(x)], 1)

    def densenet121():
        layers, channels = [*block(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
        for at, count in enumerate([6, 12, 24, 16]):
            for _ in range(count):
                layers.append(Dense(channels))
                channels += 32
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            if at < 3:
                layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        return nn.Sequential(*layers, *head(channels))

    class Inverted(nn.Module):
        def __init__(self, inputs, factor, outputs, stride):
            super().__init__()
            wide = inputs * factor
            widened = block(inputs, wide, 1, activation=nn.ReLU6) if factor > 1 else []
            self.branch = nn.Sequential(
                *widened,
                *block(wide, wide, 3, stride, wide, nn.ReLU6),
                *block(wide, outputs, 1, activation=None),
            )
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x):
            return self.branch(x) + x if self.adds else self.branch(x)

    def mobilenet_v2():
        layers, channels = block(3, 32, 3, 2, activation=nn.ReLU6), 32
        stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
        for factor, outputs, blocks, stride in stages:
            for at in range(blocks):
                layers.append(Inverted(channels, factor, outputs, stride if not at else 1))
                channels = outputs
        return nn.Sequential(*layers, *block(channels, 1280, 1, activation=nn.ReLU6), *head(1280))

    def vgg16():
        layers, channels = [], 3
        for outputs, count in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
            for _ in range(count):
                layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU(inplace=True)]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        layers += [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(4096, 1000))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            import torch

            self.words, self.positions, self.segments = (nn.Embedding(rows, 768) for rows in (30522, 512, 2))
            self.norm = nn.LayerNorm(768, eps=1e-12)
            layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", 1e-12, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 12)
            self.pooler = nn.Linear(768, 768)
            self.register_buffer("places", torch.arange(TOKENS))
            self.register_buffer("segment", torch.zeros(1, dtype=torch.long))

        def forward(self, ids):
            x = self.words(ids) + self.positions(self.places) + self.segments(self.segment)
            return self.pooler(self.layers(self.norm(x))[:, 0]).tanh()

    return {
        "resnet50": (resnet50, 25_557_032),
        "densenet121": (densenet121, 7_978_856),
        "mobilenet_v2": (mobilenet_v2, 3_504_872),
        "vgg16": (vgg16, 138_357_544),
        "bert_base": (Bert, 109_482_240),
    }


def checked(make, parameters):
    """Makes a network and sees that it is the one that is meant."""
    network = make()
    found = sum(tensor.numel() for tensor in network.parameters())
    assert found == parameters, f"{found} parameters, not {parameters}"
    return network


def measure(torch, network, inputs, runs):
    """Returns the times of a graph's executions in milliseconds, sorted."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(5):
            network(inputs)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            network(inputs)
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Past the ramp of the clock.
        for _ in range(50):
            graph.replay()
        times = []
        for _ in range(runs):
            begun.record()
            graph.replay()
            ended.record()
            ended.synchronize()
            times.append(begun.elapsed_time(ended))
    return sorted(times)


def at(times, part):
    """Returns the time that this part of sorted times does not pass."""
    return times[min(len(times) - 1, int(len(times) * part))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--isolation", type=int, default=0)
    parser.add_argument("--count", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: this Python has no PyTorch", file=sys.stderr)
        print(json.dumps({"skipped": "this Python has no PyTorch"}))
        return
    if options.count:
        print(json.dumps({name: bool(checked(*of)) for name, of in networks(torch.nn).items()}))
        return
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU", file=sys.stderr)
        print(json.dumps({"skipped": "PyTorch finds no GPU"}))
        return
    torch.backends.cudnn.benchmark = True
    models, isolation = {}, None
    for name, of in networks(torch.nn).items():
        network = checked(*of).eval().cuda().half()
        is_text = name == "bert_base"
        if not is_text:
            network = network.to(memory_format=torch.channels_last)
        models[name] = []
        for batch in map(int, options.batches.split(",")):
            if is_text:
                inputs = torch.randint(0, 30522, (batch, TOKENS), device="cuda")
            else:
                inputs = torch.randn(batch, 3, 224, 224, device="cuda").half()
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            times = measure(torch, network, inputs, options.runs)
            models[name].append({"batch": batch, "p50_ms": statistics.median(times), "p99_ms": at(times, 0.99)})
            if name == "resnet50" and batch == 1 and options.isolation:
                times = measure(torch, network, inputs, options.isolation)
                parts = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "p9999_ms": 0.9999, "max_ms": 1.0}
                isolation = {"count": len(times), **{key: at(times, part) for key, part in parts.items()}}
                isolation["p9999_over_p50"] = isolation["p9999_ms"] / isolation["p50_ms"]
        del network
        torch.cuda.empty_cache()
    device = torch.cuda.get_device_name()
    print(json.dumps({"torch": torch.__version__, "device": device, "models": models, "isolation": isolation}))


main()
