"""The notebooks of the tutorial run in Jupyter's kernel, and print what they hold."""

from __future__ import annotations

import re

import pytest

import pages
from test_site import CHAPTERS

nbclient = pytest.importorskip("nbclient", reason="no nbclient here: pip install nbclient ipykernel")
pytest.importorskip("ipykernel")

# of a Program: the file and the lines, which are those of a cell
PLACES = re.compile(r'(?<=file\()".*"|(?<=\(0, )\d+|, at=\(.*?\)')
FAST = "2-memories"


@pytest.mark.parametrize(
    "chapter",
    [pytest.param(c, marks=[] if c.stem == FAST else pytest.mark.slow, id=c.stem) for c in CHAPTERS],
)
def test_a_notebook_runs_and_prints_what_it_holds(chapter, monkeypatch):
    import nbformat

    if "import torch" in chapter.read_text():
        pytest.importorskip("torch")
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", pages.TARGET["NEURON_PLATFORM_TARGET_OVERRIDE"])
    notebook = nbformat.from_dict(pages.notebook(chapter.read_text()))
    nbformat.validate(notebook)
    held = [printed(cell) for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert [printed(cell) for cell in notebook.cells] == held


def printed(cell):
    """What a cell printed, without places; its warnings too."""
    streams = [output for output in cell.get("outputs", ()) if output["output_type"] == "stream"]
    return PLACES.sub("", "".join(stream["text"] for stream in streams))
