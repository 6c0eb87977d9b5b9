"""`make figures`: measure what a new user waits for. Needs an idle machine and some minutes.

python tools/figures.py [name ...]      only these figures
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import build_site

ROOT = Path(__file__).parents[1]
ROUNDS = 5


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


# ---- the figures ---------------------------------------------------------------------------------


def demo() -> float:
    """Return the seconds from `make demo` in a new clone to the last line of its first table."""
    with tempfile.TemporaryDirectory() as folder:
        run("git", "clone", "--quiet", ROOT, Path(folder) / "clone")
        start = time.perf_counter()
        made = subprocess.Popen(
            ["make", "demo"],
            cwd=Path(folder) / "clone",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert made.stdout is not None
        for line in made.stdout:
            if line.lstrip().startswith(("└", "╰", "+--")):  # the end of a table
                seconds = time.perf_counter() - start
                os.killpg(made.pid, signal.SIGKILL)  # make, and the demo that it started
                made.wait()
                made.stdout.read()  # ends when the last of them has
                return seconds
    raise SystemExit("make demo showed no table")


def wheel() -> float:
    """Megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
        (made,) = Path(folder).glob("*.whl")
        return made.stat().st_size / 1e6


def importing() -> float:
    """Return the seconds of `import nki` in a new process, the fastest of several."""
    code = "import time; t = time.perf_counter(); import nki; print(time.perf_counter() - t)"
    return min(float(run(sys.executable, "-c", code)) for _ in range(ROUNDS))


def command() -> float:
    """Return the seconds of `nki --help`, including the start of the interpreter."""

    def once() -> float:
        start = time.perf_counter()
        run(sys.executable, "-m", "nki", "--help")
        return time.perf_counter() - start

    return min(once() for _ in range(ROUNDS))


def tutorial() -> float:
    """Return the seconds of all chapters' code, as tests."""
    start = time.perf_counter()
    run(sys.executable, "-m", "pytest", "-n", "2", "tests/test_site.py", "-k", "chapter")
    return time.perf_counter() - start


def names() -> int:
    """Return the number of public names that the reference lacks."""
    import reference

    texts, missing = reference.pages(), 0
    for name, module in reference.MODULES.items():
        shown = set(re.findall(r"^### (\w+)$|<a id='(\w+)'>", texts[f"{name}.md"], re.MULTILINE))
        missing += len(set(reference.public_names(module)) - {a or b for a, b in shown})
    return missing


def links() -> int:
    """Return the number of broken links and other warnings of a strict build."""
    return 0 if build_site.main() == 0 else 1


def pages() -> int:
    """Return how many pages (built by `links`) have an error in the browser's console or are too wide."""
    wrong = [f"{page} ({look}): {what}" for page, look, what in seen(build_site.SITE)]
    for line in wrong:
        print(line)
    return len(wrong)


# ---- pages in a browser --------------------------------------------------------------------------

LOOKS = {
    "desktop, light": (1280, 800, "light"),
    "desktop, dark": (1280, 800, "dark"),
    "390 px, light": (390, 844, "light"),
    "390 px, dark": (390, 844, "dark"),
}
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def seen(site: Path, pictures: Path | None = None) -> Iterator[tuple[str, str, str]]:
    """Return (page, viewport, problem) for every page in headless Chromium; write screenshots on request."""
    from playwright.sync_api import sync_playwright

    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for look, (width, height, scheme) in LOOKS.items():
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            tab, said = context.new_page(), []
            tab.set_default_timeout(180_000)  # pages are large, and a machine may be busy
            tab.on("console", lambda m, said=said: said.append(m.text) if m.type == "error" else None)
            tab.on("pageerror", lambda e, said=said: said.append(str(e)))
            for path in sorted(site.rglob("*.html")):
                name = path.relative_to(site).as_posix()
                said.clear()
                tab.goto(f"{address}/{name}")
                if beyond := tab.evaluate(OVERFLOW):
                    said.append(f"{beyond} px too wide")
                yield from ((name, look, what) for what in said)
                if pictures:
                    pictures.mkdir(parents=True, exist_ok=True)
                    shot = f"{name} {look}".replace("/", "-").replace(",", "").replace(" ", "-")
                    tab.screenshot(path=pictures / f"{shot}.png")
        browser.close()


class served:
    """Serve a folder on a local port."""

    def __init__(self, folder: Path):
        handler = functools.partial(_Silent, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the browser closed the connection early

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


FIGURES: dict[str, tuple[Callable[[], float], str, float]] = {
    "demo": (demo, "s, new clone to the first table", 30),
    "wheel": (wheel, "MB", 1),
    "importing": (importing, "s", 0.25),
    "command": (command, "s, nki --help", 0.4),
    "tutorial": (tutorial, "s, its tests on two cores", 120),
    "names": (names, "public names without a page", 0),
    "links": (links, "builds with a warning", 0),
    "pages": (pages, "faults in a browser", 0),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(FIGURES))
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="screenshots of every page of the site")
    options = parser.parse_args()
    if unknown := set(options.names) - set(FIGURES):
        parser.error(f"no figure named {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if options.pictures:
        print("\n".join(map(str, seen(build_site.SITE, options.pictures))) or "no problems found")
        return 0
    late = False
    for name in options.names or FIGURES:
        measure, unit, most = FIGURES[name]
        value = measure()
        late |= value > most
        print(f"{name:10} {value:8.2f} {unit}; at most {most:g}{'' if value <= most else '  <-- more'}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
