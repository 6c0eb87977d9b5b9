"""Skills, AGENTS.md and docs/agents.md: what they tell agents to do works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from documented_commands import run_page

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
FRONT = re.compile(
    r"\A---\nname: (?P<name>[a-z0-9-]{1,64})\ndescription: (?P<description>.{1,1024})\n---\n\n# "
)


def test_there_are_four_skills_with_front_matter():
    assert len(SKILLS) == 4
    for path in SKILLS:
        front = FRONT.match(path.read_text(encoding="utf-8"))
        assert front is not None and front["name"] == path.parent.name, path
        assert "Use when" in front["description"] and ":" not in front["description"], "plain YAML"
        assert len(path.read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_the_files_and_commands_of_a_skill_work(path, tmp_path, monkeypatch, capsys):
    if path.parent.name == "port-from-the-old-api":
        pytest.importorskip("libcst", reason="nki migrate needs it")
    monkeypatch.chdir(tmp_path)
    assert run_page(path, capsys) >= 4


def test_the_files_and_commands_of_the_page_for_agents_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_page(ROOT / "docs" / "agents.md", capsys) == 5


def test_the_page_for_agents_starts_the_server_as_the_command_line_allows_and_names_every_tool():
    pytest.importorskip("mcp")
    from nki.cli import parser
    from nki_mcp.server import Tools

    text = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    (configuration,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    server = json.loads(configuration)["mcpServers"]["nki"]
    assert parser().parse_args(server["args"]).folder == "kernels"
    tools = {name for name, value in vars(Tools).items() if callable(value) and not name.startswith("_")}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == tools


def test_agents_md_names_commands_and_paths_that_exist():
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets
    paths = re.findall(r"(?:src|tests|docs|benchmarks|tools)/[\w./-]*\w", text)
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []
    assert len(text.splitlines()) < 60
