"""`nki search`: names of the reference, exact ones first, from what is installed alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nki.cli.script import UsageError
from nki_mcp.command import SEARCH
from nki_mcp.reference import entries
from nki_mcp.search import search


def names(query, most=5):
    return [one["name"] for one in search(query, most)["found"]]


@pytest.mark.parametrize(
    "query, name",
    [
        ("nisa.activation", "nki.isa.activation"),
        ("nki.isa.activation", "nki.isa.activation"),
        ("activation", "nki.isa.activation"),
        ("nl.exp", "nki.language.exp"),
        ("NL.EXP()", "nki.language.exp"),
        ("attention_cte", "nkilib.core.attention.attention_cte.attention_cte"),
        ("nki profile", "nki profile"),
        ("partition-limit", "partition-limit"),
        ("trnblas.gemm", "trnblas.gemm"),
        ("nki.TensorSpec", "nki.TensorSpec"),
    ],
)
def test_an_exact_name_comes_first_with_its_whole_text(query, name):
    first = search(query)["found"][0]
    assert first["name"] == name
    assert first["text"] == next(one.text for one in entries() if one.whole == name)


@pytest.mark.parametrize(
    "words, name",
    [("transpose dma", "nki.isa.dma_transpose"), ("accumulate matmul psum", "nki.isa.nc_matmul")],
)
def test_words_find_names_by_meaning(words, name):
    assert name in names(words)


def test_an_instruction_has_its_engines_generations_and_cost():
    found = search("nisa.nc_matmul_mx")["found"][0]
    assert (found["engines"], found["generations"]) == ("tensor", "trn3")
    assert found["cost"] and found["signature"].startswith("nki.isa.nc_matmul_mx(dst")


def test_a_misspelt_name_gets_a_suggestion():
    assert search("nisa.activatoin")["did_you_mean"] == "nki.isa.activation"
    assert "did_you_mean" not in search("nisa.activation")


@pytest.mark.parametrize("query", ["", "  ", "...", "x" * 201])
def test_a_query_needs_words_and_has_a_limit(query):
    with pytest.raises(UsageError, match="a query has a word"):
        search(query)


def test_the_search_does_not_import_torch():
    code = "import sys; from nki_mcp.search import search; search('gemm'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_command_prints_text_and_json(capsys):
    import argparse

    parser = argparse.ArgumentParser()
    SEARCH.add_arguments(parser)
    assert SEARCH.run(parser.parse_args(["transpose", "dma", "--most", "2"])) == 0
    printed = capsys.readouterr().out
    assert "nki.isa.dma_transpose(" in printed and "more: --most" in printed
    assert SEARCH.run(parser.parse_args(["nisa.iota", "--json"])) == 0
    assert json.loads(capsys.readouterr().out) == search("nisa.iota")
    assert SEARCH.run(parser.parse_args(["qqqqqqqqqqq"])) == 1


def test_the_package_has_no_file_of_data():
    import nki_mcp

    assert {path.suffix for path in Path(nki_mcp.__path__[0]).iterdir()} <= {".py", ""}
