"""The examples of many ranks run, and their ranks agree with one."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def said_by(name, capsys, monkeypatch, *options):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    monkeypatch.setattr("sys.argv", [name, *options])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_a_layer_on_several_ranks_is_the_layer_on_one(capsys, monkeypatch):
    said = said_by(
        "tensor_parallel.py", capsys, monkeypatch, "--hidden", "256", "--inner", "512", "--most", "4"
    )
    rows = re.findall(r"^ +(\d) +([\d.e+-]+) +[\d.]+ +[\d.]+x +[\d.]+ +\d+ %$", said, re.MULTILINE)
    assert [ranks for ranks, _ in rows] == ["1", "2", "4"]
    assert all(float(difference) < 1e-2 for _, difference in rows)


def test_ring_attention_is_plain_attention_forward_and_backward(capsys, monkeypatch):
    said = said_by("ring_attention.py", capsys, monkeypatch, "--ranks", "4", "--tokens", "128")
    differences = re.findall(r"^  (\w+) +([\d.e+-]+)$", said, re.MULTILINE)
    assert [name for name, _ in differences] == ["out", "dq", "dk", "dv"]
    assert all(float(difference) < 1e-5 for _, difference in differences)
