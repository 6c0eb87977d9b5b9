"""The examples for the frameworks run, and what they train gets better."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "example, package", [("custom_op_torch", "torch"), ("custom_op_jax", "jax"), ("mlp_torch", "torch")]
)
def test_the_example_runs_and_trains(example, package, capsys):
    pytest.importorskip(package, reason=f"{package} is not installed")
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", capsys.readouterr().out).groups())
    assert last < first / 5


def test_the_mlp_of_the_tutorial_equals_its_module_at_all_three_sizes(capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    runpy.run_path(str(EXAMPLES / "accelerate_mlp.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all("equal to nn.Module within 0.00" in line for line in lines)


@pytest.mark.slow
def test_the_whisper_encoder_is_as_near_to_float32_as_the_model_in_bfloat16(capsys, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr("sys.argv", ["whisper_encoder.py", "--batches", "1", "--frames", "200"])
    runpy.run_path(str(EXAMPLES / "whisper_encoder.py"), run_name="__main__")
    ours, theirs = map(float, re.findall(r"model by ([\d.]+)", capsys.readouterr().out))
    assert ours < 1.2 * theirs < 0.01


def run_llama(monkeypatch, *options):
    monkeypatch.setattr("sys.argv", ["llama.py", *options])
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    return runpy.run_path(str(EXAMPLES / "llama.py"), run_name="__main__" if options else "llama")


def test_llama_says_the_same_on_kernels_as_in_pytorch(capsys, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    run_llama(monkeypatch, "--layers", "1", "--tokens", "3", "--batch", "1")
    said = capsys.readouterr().out
    assert "float32: the same tokens as the model" in said
    assert float(re.search(r"logits within ([\d.]+)", said)[1]) < 2e-2


def test_the_parts_of_llama_have_a_modelled_time_and_a_bound(monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    llama = run_llama(monkeypatch)
    sizes = llama["Sizes"](256, 512, 4, 2, 64, layers=3, vocabulary=512)
    found = llama["costs"](sizes, 128, targets=("trn2",))
    assert list(found) == [("trn2", 1), ("trn2", 2)]
    for passes in found.values():
        for costs in passes:
            assert all(0 < cost.bound_us < cost.us for cost in costs)
    text, page = llama["table"](found, sizes, 128), llama["page"](found, sizes, 128)
    assert text.count("tokens per second") == 2 and "attention_tkg" in text
    assert page.count("class=bar") == 4 and page.count("<u style") == 24 and "decided by" in page
    first = json.loads(llama["as_json"](found))[0]
    assert first["tokens_per_s"] > 0 and [part["name"] for part in first["decode"]][1] == "attention_tkg"


def test_parts_of_llama_that_are_alike_are_timed_once(monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    llama = run_llama(monkeypatch)
    sizes = llama["Sizes"](256, 512, 4, 2, 64, layers=3, vocabulary=512)
    known, head = {}, llama["head_part"](sizes)
    first = llama["cost"](head, 1, known)
    assert llama["cost"](llama["head_part"](sizes), 1, known) is first and len(known) == 1


def test_the_error_of_a_layer_grows_as_its_formats_narrow(capsys, monkeypatch, tmp_path):
    pytest.importorskip("nki.mx", reason="nki.mx is not there")
    sizes = ["--tokens", "128", "--width", "512", "--inner", "512", "--plot", str(tmp_path / "plot.svg")]
    monkeypatch.setattr("sys.argv", ["mx_accuracy.py", *sizes])
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    runpy.run_path(str(EXAMPLES / "mx_accuracy.py"), run_name="__main__")
    bf16, fp8, mxfp8, mxfp4 = map(float, re.findall(r"([\d.]+) %", capsys.readouterr().out))
    assert bf16 < 0.5 < fp8 < 10 and 0.5 < mxfp8 < 10 < mxfp4 < 30
    assert len(ElementTree.parse(tmp_path / "plot.svg").findall("{*}rect")) == 12


def test_the_mixture_of_experts_trains_like_the_one_in_torch(capsys, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr("sys.argv", ["moe_layer.py", "--inner", "64", "--steps", "5"])
    runpy.run_path(str(EXAMPLES / "moe_layer.py"), run_name="__main__")
    gradients, output, training = capsys.readouterr().out.splitlines()
    assert float(gradients.rsplit(maxsplit=1)[-1]) < 1e-4
    assert float(output.rsplit(maxsplit=1)[-1]) < 0.01  # bfloat16 has 8 bits
    ours, of_torch = ([*map(float, pair)] for pair in re.findall(r"([\d.]+) -> ([\d.]+)", training))
    assert ours[1] < ours[0] / 1.5 and ours == pytest.approx(of_torch, rel=0.02)


def test_the_stages_of_a_mixture_share_its_modelled_time(capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    example = runpy.run_path(str(EXAMPLES / "moe_layer.py"))
    example["print_profiles"](2048, [example["Layer"]("Small", 512, 256, 8, 2, 512)])
    said = capsys.readouterr().out
    shares = [float(share) for share in re.findall(r"([\d.]+)%", said)]
    assert said.startswith("Small-like, 2048 tokens: ") and len(shares) == 4
    assert all(shares) and sum(shares) == pytest.approx(100, abs=0.3)


def test_some_blocks_of_a_mixture_tell_what_all_of_them_take():
    pytest.importorskip("torch", reason="torch is not installed")
    example = runpy.run_path(str(EXAMPLES / "moe_layer.py"))
    small, tokens = example["Layer"]("Small", 512, 128, 16, 4, 256), 1536
    assert tokens * small.k > max(example["POSITIONS"])
    told, back = example["modelled"](small, tokens)
    measured = example["experts_times"](small, tokens)
    assert back == pytest.approx(measured["backward"], rel=0.05)
    assert told["experts"] == pytest.approx(measured["experts"], rel=0.05)
