"""The viewer of long runs: recording them, and their pages in a browser.

`python -m benchmarks viewer` prints the figures of issue "a viewer that shows values": opening, stepping, and
moving the slider through all steps of 10,000 and of 100,000; the machine should be idle.
"""

import tempfile
from pathlib import Path

from .memory import alone
from .profiler import chromium

# A process for each size, so that nothing else counts.
RECORD = """
import time
import numpy as np
import nki, nki.isa as nisa, nki.language as nl
from benchmarks.memory import peak_bytes

@nki.jit
def stream(x, rounds):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, 256), nl.float32)
    nisa.memset(total, 0.0)
    for i in range(rounds):
        row = i % (x.shape[0] // 128) * 128
        tile, scaled = nl.ndarray((128, 256), x.dtype), nl.ndarray((128, 256), nl.float32)
        nisa.dma_copy(tile, x[row : row + 128, :])
        nisa.tensor_scalar(scaled, tile, nl.multiply, 0.5, op1=nl.add, operand1=1.0)
        nisa.activation(scaled, nl.tanh, scaled)
        nisa.tensor_tensor(total, total, scaled, nl.add)
        nisa.dma_copy(out[row : row + 128, :], total)
    return out

x = np.random.default_rng(0).standard_normal((16384, 256)).astype(np.float32)
begun = time.process_time()
shown = nki.show(stream)(x, {steps} // 5)
seconds = time.process_time() - begun
shown.save({page!r})
writing = time.process_time() - begun - seconds
begun = time.process_time()
for number in range(1, shown.count, shown.count // 10):
    shown.values(number)
again = (time.process_time() - begun) / 10
print(shown.count, seconds, writing, again, peak_bytes() / 2**30)
"""

# In the page: milliseconds of single steps with their heat maps painted, the shortest first.
STEPS = """async () => {
  const times = [];
  for (let i = 0; i < 60; i++) {
    viewer.at = Math.floor((viewer.run.steps - 1) * ((i * 0.618) % 1));
    const begun = performance.now();
    await viewer.drawNow();
    times.push(performance.now() - begun);
    await new Promise(requestAnimationFrame);
  }
  return times.sort((a, b) => a - b);
}"""

# The slider through the whole run in 300 moves: the longest time between two frames.
SCRUB = """async () => {
  const slider = document.getElementById("at");
  let longest = 0, last = performance.now();
  for (let i = 0; i <= 300; i++) {
    slider.value = Math.round(((viewer.run.steps - 1) * i) / 300);
    slider.dispatchEvent(new Event("input"));
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
}"""


def in_browser(page):
    """Seconds until it is painted, milliseconds of 60 steps and of the longest freeze, GiB of the tab."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1440, "height": 900})
        shown.goto(f"file://{page}")
        shown.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        drawn, times, freeze = (
            shown.evaluate("viewer.milliseconds.drawn"),
            shown.evaluate(STEPS),
            shown.evaluate(SCRUB),
        )
        memory = renderer_bytes(browser)
        browser.close()
    return drawn / 1e3, times, freeze, memory / 2**30


def renderer_bytes(browser):
    """The resident memory of the largest process of a browser."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = [Path(f"/proc/{process['id']}/statm").read_text().split()[1] for process in processes]
    return 4096 * max(map(int, sizes))


def rows(steps, opening):
    with tempfile.TemporaryDirectory() as folder:
        page = str(Path(folder) / "page.html")
        figures = map(float, alone(RECORD.format(steps=steps, page=page)).split())
        count, seconds, writing, again, memory = figures
        drawn, times, freeze, tab = in_browser(page)
        size = Path(page).stat().st_size / 2**20
    return [
        (f"{count:,.0f} steps: run and record; write", f"{seconds:.0f} s; {writing:.1f} s", ""),
        ("values of a step, again from a checkpoint: mean of 10", f"{again:.2f} s", ""),
        ("memory of the run", f"{memory:.2f} GiB", "1 GiB"),
        ("its page", f"{size:.1f} MiB", ""),
        ("its page: painted after", f"{drawn:.2f} s", opening),
        ("its page: step, median and slowest of 60", f"{times[30]:.0f} ms, {times[-1]:.0f} ms", "50 ms"),
        ("its page: longest freeze of the slider", f"{freeze:.0f} ms", "200 ms"),
        ("its page: memory of the tab", f"{tab:.2f} GiB", "1 GiB"),
    ]


def run():
    return [*rows(10_000, "1 s"), *rows(100_000, "3 s")]
