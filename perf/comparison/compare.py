"""Compares the goodput of mosec, LitServe and Symphony: one model, one core, one ONNX Runtime.

Run by `perf/comparison/run`, which says how. Each server runs pinned to one core; a client on another
sends Poisson arrivals whether answers come or not. Goodput is the highest rate at which at most 1 %
of requests fail or take longer than the SLO, ten times the median of one row alone. Each probe is
kept under target/comparison, so a run that was interrupted goes on with the probes that are missing.
"""

import argparse
import asyncio
import base64
import dataclasses
import json
import os
import pathlib
import platform
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time

import aiohttp
import numpy
import onnxruntime

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target/comparison"
MODEL = WORK / "vit.onnx"
SERVER_CORE, CLIENT_CORE = 0, 1
PORT = 8123
MAX_BATCH = 8
SLO_ROWS = 10
BAD = 0.01
# A batching wait as a part of the SLO; the best one counts.
WAITS = (0, 0.1, 0.3)
START_S = 90
SEED = 1


@dataclasses.dataclass
class Setting:
    """A server with its batching wait, milliseconds; Symphony has none."""

    server: str
    wait_ms: float | None

    @property
    def name(self):
        return self.server if self.wait_ms is None else f"{self.server}, wait {self.wait_ms:.1f} ms"


def time_of_one_row_ms():
    """Returns the median time of one row alone, by ONNX Runtime with one thread on the server's core."""
    code = (
        "import numpy,time,statistics\nfrom batch_model import BatchModel\n"
        "m=BatchModel();x=[numpy.zeros(m.shape,numpy.float32)]\nt=[]\n"
        "for _ in range(100):\n s=time.perf_counter();m.run(x);t.append(time.perf_counter()-s)\n"
        "print(statistics.median(t)*1000)"
    )
    printed = subprocess.run(
        ["taskset", "-c", str(SERVER_CORE), sys.executable, "-c", code],
        cwd=HERE, env=environment(0), check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(printed.stdout)


def environment(wait_ms):
    """Returns the environment of a Python server."""
    return os.environ | {
        "COMPARISON_MODEL": str(MODEL),
        "COMPARISON_BATCH": str(MAX_BATCH),
        "COMPARISON_WAIT_MS": str(wait_ms),
        "COMPARISON_PORT": str(PORT),
    }


def library():
    """Returns the file of ONNX Runtime in the Python package, which all three servers load."""
    return next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))


def command(setting, binary, slo_ms):
    """Returns the command that starts a server."""
    if setting.server == "symphony":
        config = WORK / "symphony.toml"
        config.write_text(
            f'[[executors]]\nkind = "onnxruntime"\n\n[onnxruntime]\nlibrary = "{library()}"\n\n'
            f'[[models]]\nname = "vit"\nfile = "{MODEL}"\nslo_ms = {slo_ms:.3f}\nmax_batch = {MAX_BATCH}\n'
        )
        run = [binary, "serve", str(config), "--http", f"127.0.0.1:{PORT}", "--grpc", f"127.0.0.1:{PORT + 1}"]
    else:
        run = [sys.executable, str(HERE / f"{setting.server}_server.py")]
        if setting.server == "mosec":
            run += ["--address", "127.0.0.1", "--port", str(PORT)]
    return ["taskset", "-c", str(SERVER_CORE), *run]


def request_of(server, row):
    """Returns path, headers and body of a request of one row."""
    if server == "symphony":
        return "/v2/models/vit/infer", {"Inference-Header-Content-Length": "0"}, row
    if server == "mosec":
        return "/inference", {"Content-Type": "application/octet-stream"}, row
    body = json.dumps({"row": base64.b64encode(row).decode()}).encode()
    return "/predict", {"Content-Type": "application/json"}, body


class Server:
    """A running server; the end of the `with` block ends its process group."""

    def __init__(self, setting, binary, slo_ms):
        self.setting = setting
        self.log = (WORK / f"{setting.server}.log").open("w")
        self.process = subprocess.Popen(
            command(setting, binary, slo_ms), stdout=self.log, stderr=subprocess.STDOUT,
            cwd=WORK, env=environment(setting.wait_ms or 0), start_new_session=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(timeout=15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        self.log.close()

    def alive(self):
        return self.process.poll() is None


class Client:
    """The open-loop client that measures every server."""

    def __init__(self, session, setting):
        row = numpy.random.default_rng(SEED).normal(size=(1, 3, 64, 64)).astype("<f4")
        model = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
        self.expected = model.run(None, {"image": row})[0][0]
        path, self.headers, self.body = request_of(setting.server, row.tobytes())
        self.server = setting.server
        self.session, self.url = session, f"http://127.0.0.1:{PORT}{path}"

    async def one(self, due):
        """Sends a request and returns the seconds from `due` to its answer; None if it failed."""
        try:
            async with self.session.post(self.url, data=self.body, headers=self.headers) as answer:
                await answer.read()
                return time.perf_counter() - due if answer.status == 200 else None
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return None

    async def check_scores(self):
        """Compares the server's scores with those of ONNX Runtime itself: all run the same model."""
        async with self.session.post(self.url, data=self.body, headers=self.headers) as answer:
            body = await answer.read()
            head = int(answer.headers.get("Inference-Header-Content-Length", 0))
        if self.server == "litserve":
            scores = numpy.array(json.loads(body)["scores"], numpy.float32)
        else:
            scores = numpy.frombuffer(body[head:], "<f4")
        numpy.testing.assert_allclose(scores, self.expected, rtol=1e-3, atol=1e-3)

    async def ready(self, server, slo_ms):
        """Waits until the server answers ten requests in a row in time, with no others under way."""
        limit = time.monotonic() + START_S
        good = 0
        while good < 10:
            if not server.alive() or time.monotonic() > limit:
                raise SystemExit(f"{server.setting.name} does not answer in time; see {server.log.name}")
            took = await self.one(time.perf_counter())
            good = good + 1 if took is not None and took * 1000 <= slo_ms else 0
            await asyncio.sleep(0.05)

    async def probe(self, rate, seconds, slo_ms):
        """Sends Poisson arrivals at `rate` a second and returns what became of them."""
        arrivals, start, due, tasks = random.Random(SEED), time.perf_counter(), 0.0, []
        while (due := due + arrivals.expovariate(rate)) < seconds:
            # Sleeps to the moment itself: a late client counts against all servers alike.
            await asyncio.sleep(max(0, start + due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.one(start + due)))
        times = await asyncio.gather(*tasks)
        late = sum(t is not None and t * 1000 > slo_ms for t in times)
        failed = sum(t is None for t in times)
        answered = sorted(t * 1000 for t in times if t is not None)
        return {
            "rate": rate, "requests": len(times), "late": late, "failed": failed,
            "median_ms": statistics.median(answered) if answered else None,
            "p99_ms": answered[int(len(answered) * 0.99)] if answered else None,
            "bad": (late + failed) / max(1, len(times)),
        }  # fmt: skip


async def goodput(setting, options, state, keep):
    """Halves the interval of rates that may be the goodput, and returns the highest that held."""
    probes = state["probes"].setdefault(setting.name, [])
    low, high = 0.0, 1.5 * 1000 / state["one_row_ms"]
    timeout = aiohttp.ClientTimeout(total=SLO_ROWS * state["one_row_ms"] / 1000 * 5)
    connector = aiohttp.TCPConnector(limit=0)
    with Server(setting, options.binary, state["slo_ms"]) as server:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            client = Client(session, setting)
            await client.ready(server, state["slo_ms"])
            await client.check_scores()
            for number in range(options.probes):
                rate = (low + high) / 2
                if number == len(probes):
                    probes.append(await client.probe(rate, options.seconds, state["slo_ms"]))
                    keep()
                    await client.ready(server, state["slo_ms"])
                probe = probes[number]
                print(f"{setting.name}: {rate:.1f} requests/s, {100 * probe['bad']:.2f} % bad", flush=True)
                low, high = (rate, high) if probe["bad"] <= BAD else (low, rate)
    return low


def machine():
    """Returns what a reader needs to judge the figures."""
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(),
        "kernel": platform.release(), "load_before": os.getloadavg()[0],
    }  # fmt: skip


def commit():
    """Returns the commit that is checked out."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def begin(options):
    """Returns the state of a run that was interrupted with the same settings, or that of a new one."""
    file = WORK / "state.json"
    key = [options.seconds, options.probes, options.binary, commit()]
    if file.exists() and not options.restart:
        state = json.loads(file.read_text())
        if state["key"] == key:
            return state, file
    one_row_ms = time_of_one_row_ms()
    state = {
        "key": key, "machine": machine(), "one_row_ms": one_row_ms,
        "slo_ms": SLO_ROWS * one_row_ms, "probes": {}, "goodput": {},
    }  # fmt: skip
    return state, file


def settings(slo_ms):
    """Returns what is measured, in order: each server with each of its waits."""
    waits = [slo_ms * part for part in WAITS]
    python = [Setting(server, wait) for server in ("mosec", "litserve") for wait in waits]
    return [*python, Setting("symphony", None)]


def report(state, options):
    """Writes the result with its machine, commit and command, and prints the table."""
    best = {}
    for name, rate in state["goodput"].items():
        server = name.split(",")[0]
        if server not in best or rate > best[server]["goodput_rps"]:
            best[server] = {"setting": name, "goodput_rps": rate}
    result = {key: state[key] for key in ("machine", "one_row_ms", "slo_ms", "probes")}
    result |= {"max_batch": MAX_BATCH, "seconds": options.seconds, "best": best}
    whole = {"command": options.command, "commit": commit(), "result": result}
    pathlib.Path(options.save).write_text(json.dumps(whole, indent=1) + "\n")
    for server, row in best.items():
        print(f"{server:10} {row['goodput_rps']:8.1f} requests/s   ({row['setting']})")


def claim_port():
    """Ends the run if something listens at the port, such as a server that a killed run left."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", PORT))
        except OSError as error:
            raise SystemExit(f"127.0.0.1:{PORT}: {error.strerror}; end the process that listens there") from error


def flags():
    """Returns the command line, read."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/symphony"), help="our server")
    parser.add_argument("--seconds", type=float, default=8, help="seconds of each probe")
    parser.add_argument("--probes", type=int, default=7, help="probes of each search")
    parser.add_argument("--save", default=str(WORK / "comparison.json"), help="where the result goes")
    parser.add_argument("--restart", action="store_true", help="forget the probes of an interrupted run")
    options = parser.parse_args()
    options.command = shlex.join(["perf/comparison/run", *sys.argv[1:]])
    return options


def main():
    options = flags()
    if not {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0):
        raise SystemExit(f"cores {SERVER_CORE} and {CLIENT_CORE} are needed: one for the server, one for the client")
    if not os.access(options.binary, os.X_OK):
        raise SystemExit(f"{options.binary} is not there: cargo build --release --workspace --bins")
    claim_port()
    # Also ends the server: the exception leaves its `with` block.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM; run again to go on"))
    os.sched_setaffinity(0, {CLIENT_CORE})
    state, file = begin(options)
    print(f"one row takes {state['one_row_ms']:.2f} ms; the SLO is {state['slo_ms']:.1f} ms")

    def keep():
        # Replaced whole, so that an interruption leaves the old state or the new one.
        file.with_suffix(".new").write_text(json.dumps(state))
        file.with_suffix(".new").rename(file)

    keep()
    for setting in settings(state["slo_ms"]):
        if setting.name not in state["goodput"]:
            state["goodput"][setting.name] = asyncio.run(goodput(setting, options, state, keep))
            keep()
    report(state, options)
    file.unlink()


if __name__ == "__main__":
    main()
