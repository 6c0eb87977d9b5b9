"""Profiling a kernel of 100,000 instructions: seconds and memory, how both grow, and its page in a browser.

`python -m benchmarks profiler` prints all figures of the profiler; the machine should be idle.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

from .memory import alone

MATMUL = Path(__file__).parents[1] / "examples" / "matmul"

# A process for each size, so that nothing else counts; CPU seconds, for others may be busy.
PROFILE = """
import sys, time
import nki
from benchmarks.memory import peak_bytes
sys.path.insert(0, {path!r})
from kernels import tiled
nki.profile(tiled)(nki.TensorSpec((128, 128), "float32"), nki.TensorSpec((128, 512), "float32"))  # imports
start = time.process_time()
profile = nki.profile(tiled)(nki.TensorSpec(({k}, {m}), "float32"), nki.TensorSpec(({k}, {n}), "float32"))
seconds = time.process_time() - start
instructions = profile.statistics.instructions
begun = time.process_time()
profile.findings
advice = time.process_time() - begun
print(instructions, seconds, peak_bytes() / 2**30, advice)
if {page!r}:
    open({page!r}, "w", encoding="utf-8").write(profile.html())
"""

# Microseconds per instruction of each part of a profile.
STAGES = """
import sys, time
import nki
from nki.backends.reference.collector import no_collections
from nki.timing.schedule import plan
from nki.timing.simulation import simulate
sys.path.insert(0, {path!r})
from kernels import tiled
times = [time.process_time()]
with no_collections():
    program = tiled.trace(nki.TensorSpec(({k}, {m}), "float32"), nki.TensorSpec(({k}, {n}), "float32"))
    times.append(time.process_time())
    plans = plan(program)
    times.append(time.process_time())
    simulate(program.machine, plans)
    times.append(time.process_time())
    program.statistics()
    times.append(time.process_time())
print(*(1e6 * (b - a) / len(program) for a, b in zip(times, times[1:])))
"""
PARTS = ("tracing", "planning its operations", "simulating them", "counting")

# In the page: milliseconds of each zoom step, drawing included.
ZOOMS = """async () => {
  const { timeline } = report;
  const times = [];
  for (let i = 0; i < 60; i++) {
    timeline.view.zoom(timeline.view.total * 0.43, i < 30 ? 0.8 : 1.25);
    const begun = performance.now();
    timeline.drawNow();
    times.push(performance.now() - begun);
    await new Promise(requestAnimationFrame);
  }
  return times.sort((a, b) => a - b);
}"""

SEARCHES = ["rhs", "nc_matmul", "dma lhst k=1024", "no such thing", "tensor m=0", "kernels.py:22"]


def timed(searches):
    """In the page: milliseconds of each search, drawing included, the shortest first."""
    return f"""async () => {{
  const times = [];
  for (const words of {json.dumps(searches)}) {{
    const begun = performance.now();
    report.search(words);
    report.timeline.drawNow();
    times.push(performance.now() - begun);
    await new Promise(requestAnimationFrame);
  }}
  return times.sort((a, b) => a - b);
}}"""


IMPORT = """
import time
start = time.process_time()
import nki
print(time.process_time() - start)
"""


def measured(code, **environment):
    """The numbers a fresh Python prints."""
    return [float(word) for word in alone(code, **environment).split()]


def import_seconds():
    """The shortest of a few imports, once the bytecode is there."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        return min(measured(IMPORT, **compiled)[0] for _ in range(6))


def profiled(m, k, n, page=""):
    """Instructions, seconds, GiB, seconds of the advisor; and its page, written to a file."""
    return measured(PROFILE.format(path=str(MATMUL), m=m, k=k, n=n, page=page))


def stage_rows(m, k, n):
    """The parts of a profile, without findings and reports."""
    times = measured(STAGES.format(path=str(MATMUL), m=m, k=k, n=n))
    return [
        (f"part of it: {part}, per instruction", f"{us:.1f} us", "")
        for part, us in zip(PARTS, times, strict=True)
    ]


def in_browser(page):
    """Milliseconds until the timeline is painted, of the slower zoom steps and of the slowest search."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 1440, "height": 900})
        shown.goto(f"file://{page}")
        shown.wait_for_selector("html[data-ready=yes]")
        drawn = shown.evaluate("report.milliseconds.drawn")
        zooms, searches = shown.evaluate(ZOOMS), shown.evaluate(timed(SEARCHES))
        browser.close()
    return drawn, zooms[int(0.9 * len(zooms))], searches[-1]


def chromium():
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return next(filter(None, found), None)


def page_rows(page):
    """The page's figures, where there is a browser to open it."""
    try:
        drawn, zoom, search = in_browser(page)
    except Exception as problem:
        return [("its page in a browser", f"not measured: {type(problem).__name__}", "")]
    return [
        ("its page: size", f"{Path(page).stat().st_size / 2**20:.1f} MiB", ""),
        ("its page: timeline painted after", f"{drawn:.0f} ms", "1,000 ms"),
        ("its page: zoom step, nine of ten below", f"{zoom:.1f} ms", "16 ms"),
        ("its page: slowest of six searches", f"{search:.0f} ms", "100 ms"),
    ]


def run():
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    few, short, small, _ = profiled(1024, 8192, 8192)
    with tempfile.TemporaryDirectory() as folder:
        page = str(Path(folder) / "page.html")
        many, long, large, advice = profiled(4096, 8192, 8192, page)
        shown = page_rows(page)
    growth = (long / short) / (many / few)
    million, longest, largest, _ = profiled(40960, 8192, 8192)
    return [
        (f"profile of {many:,.0f} instructions", f"{long:.1f} s", "1 s"),
        *stage_rows(4096, 8192, 8192),
        (f"profile of {million:,.0f} instructions", f"{longest:.0f} s", "10 s"),
        ("its memory, advice included", f"{largest:.2f} GiB", "2 GiB"),
        ("its memory, advice included", f"{large:.2f} GiB", "0.6 GiB"),
        ("advice / trace and schedule", f"{advice / long:.2f}x", "1x"),
        *shown,
        (f"seconds per instruction / those of {few:,.0f} instructions", f"{growth:.2f}x", "linear: 1x"),
        (f"memory of {few:,.0f} instructions", f"{small:.2f} GiB", "linear"),
        ("import nki", f"{import_seconds():.2f} s", "0.3 s"),
    ]
