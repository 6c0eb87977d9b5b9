"""Warm calls of every kernel in docstrings of the library and in documents: what the check for changes costs.

`python -m benchmarks.cache --before SRC` also times them with the sources of another checkout, in turn.
"""

import argparse
import contextlib
import doctest
import importlib
import io
import json
import os
import pkgutil
import re
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from time import process_time

REPEATS, ROUNDS = 9, 2
HOME = Path(__file__).parents[1]


def run():
    """Return the share of warm calls that the check for changes takes."""
    rows = _measured(str(HOME / "src"))
    shares = [check / call for _, call, check, _ in rows if check]
    runs = [name for name, _, _, hit in rows if not hit]
    return [
        ("check for changes / warm call, median", f"{statistics.median(shares):.1%}", ""),
        ("check for changes / warm call, most", f"{max(shares):.1%}", ""),
        (f"of {len(rows)} calls, whose Python runs again", f"{len(runs)}", ""),
    ]


def compare(before):
    """Print the CPU time of each warm call divided by that of another checkout, the best of several turns."""
    best = {}
    for _ in range(ROUNDS):
        for tree in (before, str(HOME / "src")):
            for name, call, check, hit in _measured(tree):
                key = (name, tree)
                best[key] = min(best.get(key, (call, check, hit)), (call, check, hit))
    after = {name: row for (name, tree), row in best.items() if tree != before}
    ratios = {name: row[0] / best[name, before][0] for name, row in after.items() if (name, before) in best}
    for name, ratio in sorted(ratios.items(), key=lambda item: item[1]):
        old, new = best[name, before], after[name]
        cached = "cached" if new[2] else "runs again" if not old[2] else "LOST"
        print(f"{ratio:6.2f}  {old[0] * 1e6:10.0f} -> {new[0] * 1e6:10.0f} us  {cached:10}  {name}")
    print(f"median {statistics.median(ratios.values()):.2f}, {len(ratios)} calls")


def _measured(tree):
    """Time the calls with the sources of a checkout, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": tree}
    command = [sys.executable, __file__, "--worker"]
    done = subprocess.run(command, env=environment, cwd=HOME, capture_output=True, text=True, check=True)
    return [tuple(row) for row in json.loads(done.stdout.splitlines()[-1])]


# ---- in the process that measures ----------------------------------------------------------------


def _worker():
    warnings.simplefilter("ignore")
    calls = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for text, names in (*_docstrings(), *_documents()):
            _collect(text, names, calls)
        rows = [row for name, call in calls.items() if (row := _timed(name, *call)) is not None]
    print(json.dumps(rows))


def _docstrings():
    """Yield the examples in docstrings of the library, and the names they use."""
    import numpy as np

    import nkilib

    for found in pkgutil.walk_packages(nkilib.__path__, "nkilib."):
        module = importlib.import_module(found.name)
        for value in (module, *list(vars(module).values())):
            text = getattr(value, "__doc__", None) or ""
            if ">>>" in text and (value is module or getattr(value, "__module__", "") == found.name):
                parts = doctest.DocTestParser().get_examples(text)
                yield "".join(part.source for part in parts), {"np": np, **vars(module)}


def _documents():
    """Yield the snippets of each document as one text, and no names."""
    for path in (HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))):
        text = re.sub(r"<!-- not run -->\s*```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
        if any("nki" in block for block in blocks) and path.stem not in ("ranks", "tuning"):
            yield "\n".join(blocks), {}


def _collect(text, names, calls):
    """Run a text and note the calls of kernels with numpy arrays; what cannot run here is left out."""
    import numpy as np

    from nki.kernel.listeners import listening

    def note(kernel, args, kwargs):
        shapes = [f"{v.dtype}{list(v.shape)}" for v in args if isinstance(v, np.ndarray)]
        name = f"{kernel.__module__.replace('nkilib.', '')}.{kernel.__name__}({', '.join(shapes)})"
        calls.setdefault(name, (kernel, args, kwargs))

    with listening(note), contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(text, "<example>", "exec", dont_inherit=True), {**names, "__name__": "example"})


def _timed(name, kernel, args, kwargs):
    """Return the seconds of a warm call and of its check for changes, and whether its Python was skipped."""
    from nki.kernel.cache import programs

    try:
        for _ in range(2):
            kernel(*args, **kwargs)
        hits = programs.hits
        call = min(_seconds(lambda: kernel(*args, **kwargs)) for _ in range(REPEATS))
    except Exception:  # an example that shows an error
        return None
    entry = next(reversed(programs.values()), None)
    held = getattr(getattr(entry, "snapshot", None), "holds", None)
    is_hit = programs.hits >= hits + REPEATS
    return name, call, min(_seconds(held) for _ in range(REPEATS)) if held and is_hit else 0, is_hit


def _seconds(job):
    begin = process_time()  # the machine may have other load
    job()
    return process_time() - begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _worker()
    elif options.before:
        compare(options.before)
    else:
        print(*run(), sep="\n")
