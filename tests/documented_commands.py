"""Runs what a page for agents shows: files that it names, commands of `nki`, and lines of their output.

```python title="softmax.py"    is written to that file
```sh                           each line is a command of nki; `# exit code 1` says that it fails
```output                       each line is in what the commands before it printed
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from nki.cli import main

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w+)(?: title=\"(?P<file>[^\"]+)\")?\n(?P<text>.*?)^ *```$", re.M | re.S
)
CODE = re.compile(r"# exit code (\d)")


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the file name and the text of each block."""
    for match in FENCE.finditer(page):
        yield match["kind"], match["file"] or "", textwrap.dedent(match["text"])


def run_page(path: Path, capsys) -> int:
    """Do what a page shows, in this folder; return how many commands it has."""
    printed, count = "", 0
    for kind, file, text in blocks(path.read_text(encoding="utf-8")):
        if file:
            Path(file).write_text(text, encoding="utf-8")
        elif kind == "sh":
            printed = ""
            for line in text.splitlines():
                count += 1
                printed += run_command(line, capsys)
        elif kind == "output":
            assert printed, "an output without a command"
            missing = [line for line in text.splitlines() if line.strip() not in printed]
            assert not missing, f"{missing} is not in:\n{printed}"
    return count


def run_command(line: str, capsys) -> str:
    """Run one command and return what it printed; its exit code must be the one that the line names."""
    nki, *words = shlex.split(line, comments=True)
    assert nki == "nki", line
    wanted = CODE.search(line)
    if words[0] == "run":  # it changes what can be imported
        done = subprocess.run([sys.executable, "-m", "nki", *words], capture_output=True, text=True)
        code, text = done.returncode, done.stdout + done.stderr
    else:
        code = main(words)
        text = "".join(capsys.readouterr())
    assert code == int(wanted[1] if wanted else 0), f"{line}: exit code {code}\n{text}"
    return text
