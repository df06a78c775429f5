"""Checks the dashboard in a real browser (Chromium, Playwright), under load.

Usage: `dashboard.py BINARIES SCREENSHOTS`. BINARIES is the folder of `symphony` and `loadgen`. The
page is compared with the server's counters, by mouse, by keyboard, in light, in dark and on a
phone; a screenshot of each is written to the folder SCREENSHOTS. /metrics is parsed with
Prometheus's own parser.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from playwright.sync_api import Page, expect, sync_playwright
from prometheus_client.parser import text_string_to_metric_families

# name, alpha and beta in ms, SLO in ms, share of the load
MODELS = [
    ("resnet50", 1.053, 5.072, 40, 5),
    ("efficientnet-b3", 2.1, 6.4, 60, 2),
    ("bert-base", 1.8, 9.5, 80, 3),
    ("whisper-tiny", 5.09, 18.4, 120, 1),
    ("yolo-v8", 1.2, 7.1, 50, 2),
]
GPUS = 8
RATE_RPS = 700
# Ten times what is needed: the machine may be busy.
PATIENCE_MS = 60_000


def write_inputs(folder: pathlib.Path) -> None:
    """Writes the server's configuration and the workload."""
    config = f'[[executors]]\nkind = "emulated"\ncount = {GPUS}\n'
    load = f"gpus = {GPUS}\nseed = 1\nwarmup_s = 0.5\nduration_s = 3600.0\nrate_rps = {RATE_RPS}.0\n"
    for name, alpha, beta, slo, share in MODELS:
        config += f'[[models]]\nname = "{name}"\nexecutor = "emulated"\nslo_ms = {slo}\n'
        config += f"profile = {{ alpha_ms = {alpha}, beta_ms = {beta} }}\n"
        load += f'[[models]]\nname = "{name}"\nalpha_ms = {alpha}\nbeta_ms = {beta}\nslo_ms = {slo}\nshare = {share}.0\n'
    (folder / "symphony.toml").write_text(config)
    (folder / "load.toml").write_text(load)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_MS / 1000) as response:
        return response.read().decode()


def check_metrics(url: str) -> None:
    """Prometheus's own parser reads every line, and the numbers are there."""
    families = {family.name: family for family in text_string_to_metric_families(get(f"{url}/metrics"))}
    good = sum(s.value for s in families["symphony_requests"].samples if s.labels["outcome"] == "good")
    assert good > 0, "no good request is counted"
    ran = sum(s.value for s in families["symphony_request_latency_seconds"].samples if s.name.endswith("_count"))
    late = sum(s.value for s in families["symphony_requests"].samples if s.labels["outcome"] == "late")
    # Where the machine stalls, some are answered at their deadline plus the grace and never run.
    ended = families["symphony_requests_abandoned"].samples
    abandoned = sum(s.value for s in ended if s.name.endswith("_total"))
    assert ran >= good + late - abandoned, (ran, good, late, abandoned)
    assert sum(s.value for s in families["nv_inference_count"].samples) == ran


def number(page: Page, selector: str) -> float:
    text = page.locator(selector).inner_text()
    return float(text.rstrip("k")) * (1000 if text.endswith("k") else 1)


def check_numbers(page: Page, url: str) -> None:
    """Everything is drawn, and the tiles say what the server counts."""
    expect(page.locator("#status")).to_have_text("ready", timeout=PATIENCE_MS)
    expect(page.locator("#rows tr")).to_have_count(len(MODELS), timeout=PATIENCE_MS)
    page.wait_for_function("() => document.querySelectorAll('#goodput-chart polygon').length >= 5", timeout=PATIENCE_MS)
    page.wait_for_function("() => +document.getElementById('goodput').textContent > 0", timeout=PATIENCE_MS)
    assert 0 < number(page, "#goodput") < 3 * RATE_RPS
    assert 1 <= number(page, "#batch") <= 100
    assert 0 < number(page, "#busy") <= GPUS
    assert 1 <= number(page, "#advised")
    names = page.locator("#rows button").all_inner_texts()
    assert sorted(names) == sorted(name for name, *_ in MODELS), names
    drawn = page.evaluate(
        "() => { const c = document.getElementById('lanes');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 4).join()); return seen.size; }"
    )
    assert drawn > 5, f"{drawn} colours on the GPUs' lanes"
    label = page.locator("#goodput-chart").get_attribute("aria-label")
    assert all(name in label for name, *_ in MODELS), label
    assert re.search(r'"advised":\d+', get(f"{url}/dashboard/data"))


def check_keyboard(page: Page) -> None:
    """A model is found, opened, left and closed without a mouse."""
    page.keyboard.press("Tab")
    for _ in range(30):
        if page.evaluate("document.activeElement.className") == "name":
            break
        page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.textContent")
    assert first != second, "the arrow did not move on"
    page.keyboard.press("Enter")
    expect(page.locator("#detail")).to_be_visible()
    expect(page.locator("#detail-title")).to_have_text(second)
    page.wait_for_selector("#profile-chart polyline", state="attached", timeout=PATIENCE_MS)
    page.wait_for_selector("#latency-chart rect", state="attached", timeout=PATIENCE_MS)
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    assert page.evaluate("document.activeElement.textContent") == second, "the focus was lost"
    page.keyboard.press("p")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("p")


def check_layout(page: Page, what: str) -> None:
    """Nothing sticks out to the right, and everything that can be pressed has a name."""
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over <= 0, f"{what}: {over} px too wide"
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, [role=img]')].filter(e => e.offsetParent && !(e.textContent.trim() || "
        "e.getAttribute('aria-label'))).map(e => e.outerHTML)"
    )
    assert not nameless, nameless


def look(browser, url: str, pictures: pathlib.Path) -> None:
    views = [
        ("light", {"width": 1360, "height": 900}, "light", 1),
        ("dark", {"width": 1360, "height": 900}, "dark", 1),
        ("phone", {"width": 390, "height": 844}, "dark", 2),
    ]
    for what, viewport, scheme, ratio in views:
        context = browser.new_context(viewport=viewport, color_scheme=scheme, device_scale_factor=ratio)
        page = context.new_page()
        troubles = []
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith((url, "data:")) else troubles.append(request.url))
        page.goto(f"{url}/dashboard", timeout=PATIENCE_MS)
        check_numbers(page, url)
        if what == "light":
            check_keyboard(page)
        page.locator("#rows button").first.click()
        page.wait_for_selector("#profile-chart polyline", state="attached", timeout=PATIENCE_MS)
        # So that the histograms have something in them.
        page.wait_for_timeout(4_000)
        check_layout(page, what)
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=pictures / f"dashboard-{what}.png", full_page=True)
        assert not troubles, troubles
        print(f"{what}: ok", flush=True)
        context.close()


def main() -> None:
    binaries, pictures = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    pictures.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or sys.exit("there is no chromium; install it with apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_inputs(folder)
        serve = [binaries / "symphony", "serve", folder, "--http", "127.0.0.1:0"]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        load = None
        try:
            url = re.search(r"http://\S+", server.stdout.readline()).group()
            load = subprocess.Popen([binaries / "loadgen", "--workload", folder / "load.toml", "--url", url])
            with sync_playwright() as playwright:
                # No sandbox: in a container Chromium can't make one, and the only page is ours.
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                look(browser, url, pictures)
                browser.close()
            check_metrics(url)
        finally:
            for process in filter(None, (load, server)):
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
