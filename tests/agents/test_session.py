"""`nki mcp`: the SDK's client drives the server, as an agent would, and as a hostile one would."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("mcp", reason="nki mcp needs the package mcp")

import anyio  # noqa: E402
import attempts  # noqa: E402
from mcp import Client, StdioServerParameters  # noqa: E402

from nki.cli import main  # noqa: E402
from nki_grading import Limits  # noqa: E402
from nki_grading.sandbox import isolation  # noqa: E402
from nki_mcp.kernels import Workshop  # noqa: E402
from nki_mcp.server import MOST, brief, make_server  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows passes no pipes to children")
TOOLS = {"advise", "check", "explain", "grade", "profile", "run", "search", "show", "task"}
CALL = {"arguments": {"x": "float32[256,512]"}, "target": "trn2"}
COMMAND = [sys.executable, "-m", "nki", "mcp"]


@pytest.fixture
def folder(tmp_path):
    """A folder to serve, with tasks in it."""
    (tmp_path / "tasks" / "softmax").mkdir(parents=True)
    (tmp_path / "tasks" / "softmax" / "task.py").write_text(attempts.TASK)
    (tmp_path / "kernels").mkdir()
    return tmp_path


def with_client(server, session):
    """Run a session, an async function of a client; its error is not one of a group."""

    async def whole():
        async with Client(server) as client:
            try:
                await session(client)
            except Exception as problem:
                return problem

    problem = anyio.run(whole)
    if problem is not None:
        raise problem


async def asked(client, name, /, **arguments):
    """Return the structured answer of a tool, which its text repeats."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content[0].text
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def refused(client, name, /, **arguments):
    """Return the text of the error of a tool."""
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.structured_content
    return result.content[0].text


def here(folder, **limits):
    """A server in this process: what a kernel does happens in its children all the same."""
    return make_server(Workshop(folder / "kernels", folder / "tasks", Limits(**limits)))


# ---- a whole session -----------------------------------------------------------------------------


def test_an_agent_writes_fails_reads_the_error_fixes_grades_profiles_and_improves(folder):
    options = ["--folder", str(folder / "kernels"), "--tasks", str(folder / "tasks")]
    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options], env=environment)

    async def session(client):
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        assert "softmax" in (await asked(client, "task"))["tasks"]
        task = await asked(client, "task", name="softmax")
        assert task["entry"] == "softmax" and task["cases"][0]["arguments"] == CALL["arguments"]

        (found,) = (await asked(client, "check", source=attempts.FIRST, **CALL))["findings"]
        assert (found["kind"], found["file"], found["line"]) == ("partition-limit", "kernel.py", 9)
        assert "128 partitions" in (await asked(client, "explain", kind=found["kind"]))["meaning"]
        best = (await asked(client, "search", query="nisa.activation"))["found"][0]
        assert best["name"] == "nki.isa.activation" and best["engines"] == "scalar"
        shown = await asked(client, "show", kernel="cumsum")
        assert "def cumsum(" in shown["source"]

        verdict = await asked(client, "grade", task="softmax", source=attempts.WRONG)
        assert not verdict["passed"] and verdict["cases"][0]["mismatch"]["expected"] > 0
        (folder / "kernels" / "softmax.py").write_text(attempts.RIGHT)
        ran = await asked(client, "run", source=attempts.RIGHT + attempts.TRY)
        assert ran["exit_code"] == 0 and ran["printed"].startswith("largest error ")
        verdict = await asked(client, "grade", task="softmax", file="softmax.py")
        assert verdict["passed"] and verdict["earned"] == 1

        before = await asked(client, "profile", file="softmax.py", **CALL)
        assert before["total_us"] == round(verdict["cases"][0]["us"], 4)
        advice = await asked(client, "advise", file="softmax.py", **CALL)
        assert "two-passes" in [finding["kind"] for finding in advice["findings"]]
        after = await asked(client, "grade", task="softmax", source=attempts.FAST)
        assert after["passed"] and after["cases"][0]["us"] < before["total_us"]

    with_client(server, session)


# ---- the answers are those of the commands -------------------------------------------------------


def test_answers_have_the_content_of_the_json_of_the_commands(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder / "kernels")
    (folder / "kernels" / "softmax.py").write_text(attempts.RIGHT)
    options = ["--arg", "x=float32[256,512]", "--target", "trn2", "--json"]

    def printed(*words):
        assert main(list(words)) == 0
        return brief(json.loads(capsys.readouterr().out.replace(f"{folder}/kernels/", "")))

    async def session(client):
        for name in ("check", "profile", "advise"):
            answer = await asked(client, name, file="softmax.py", **CALL)
            assert answer == printed(name, "softmax.py", *options)
        assert await asked(client, "task", name="softmax") == printed("grade", "../tasks/softmax", "--json")
        assert await asked(client, "explain", kind="race") == printed("explain", "race", "--json")
        assert await asked(client, "show", kernel="cumsum") == printed(
            "kernels", "--source", "cumsum", "--json"
        )

    with_client(here(folder), session)


def test_long_lists_are_cut_and_the_answer_says_so():
    facts = {"lines": list(range(MOST + 3)), "engines": {"queues": [[0] * (MOST + 1)]}, "n": 1}
    answer = brief(facts)
    assert answer["lines"] == list(range(MOST)) and answer["n"] == 1
    assert answer["left_off"] == {"lines": 3, "engines.queues": 1}
    assert "left_off" not in brief({"lines": [1]})


# ---- hostile and mistaken calls ------------------------------------------------------------------

ESCAPES = [
    "../tasks/softmax/task.py",
    "/etc/passwd",
    "link.py",
    "..",
    "missing.py",
    "a\0b",
    "x" * 5000,
    "pipe",
]


def test_wrong_calls_get_a_clear_error_and_the_server_lives_on(folder, monkeypatch):
    os.symlink("/etc/passwd", folder / "kernels" / "link.py")
    os.mkfifo(folder / "kernels" / "pipe")
    for name in ("kernels", "cs149-conv2d-small"):  # code of an agent, where a path would be looked up
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "task.py").write_text("raise SystemExit('loaded')")
    monkeypatch.chdir(folder)

    async def session(client):
        for path in ESCAPES:
            text = await refused(client, "check", file=path)
            assert "is not a file of the folder" in text or "cannot be read" in text, text
        for name in ("../tasks/softmax", str(folder / "tasks/softmax"), "kernels", "sotfmax", ""):
            assert "there is no task" in await refused(client, "grade", task=name, source=attempts.RIGHT)
        assert "did you mean softmax?" in await refused(client, "task", name="sotfmax")
        assert (await asked(client, "task", name="cs149-conv2d-small"))["entry"] == "fused_conv2d_maxpool"
        assert "larger than" in await refused(client, "check", source="#" * (5 << 20))
        assert "one of both" in await refused(client, "check")
        assert "one of both" in await refused(client, "check", source="x = 1", file="softmax.py")
        assert "at most 200 characters" in await refused(client, "search", query="x" * 300)
        assert "did you mean partition-limit?" in await refused(client, "explain", kind="partition-limits")
        assert "did you mean attention_cte?" in await refused(client, "show", kernel="atention_cte")
        assert "validation error" in await refused(client, "check", source=["no text"])
        assert "validation error" in await refused(client, "profile", source="x", arguments={"x": {"y": []}})
        assert "nki_no_tool" in await refused(client, "nki_no_tool")
        assert (await asked(client, "search", query="nl.exp"))["found"][0]["name"] == "nki.language.exp"

    with_client(here(folder), session)


def test_hostile_kernels_are_stopped_and_see_no_task(folder):
    peek = f"print(open({str(folder / 'tasks/softmax/task.py')!r}).read())"

    async def session(client):
        assert "exit code 7" in await refused(client, "profile", source="import os; os._exit(7)")
        escape = await refused(client, "profile", source="raise ValueError('\\x1b[31m mine')")
        assert "ValueError" in escape and "\x1b" not in escape
        large = await refused(
            client, "profile", source=attempts.RIGHT, arguments={"x": "float32[999999,999999]"}
        )
        assert "argument 'x' takes" in large and "-->" not in large, "no line of the kernel is to blame"
        deep = await refused(client, "check", source="import nki\nx = " + "(" * 5000 + ")" * 5000)
        assert "too many nested parentheses" in deep and "nki-grade" not in deep
        ran = await asked(client, "run", source=peek)
        assert ran["exit_code"] == 1 and "kernel.py" in ran["printed"] or not isolation()

    async def endless(client):
        assert "stopped after 1 s" in await refused(client, "check", source="while True: pass")
        assert "softmax" in (await asked(client, "task"))["tasks"]

    with_client(here(folder), session)
    with_client(here(folder, seconds=1), endless)


def test_damaged_messages_do_not_stop_the_server(folder):
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    hello["params"] = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    question = {"name": "explain", "arguments": {"kind": "race"}}
    ask = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": question}
    deep = b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    damaged = [b"\xff\xfe\x00", b"{", deep, b'{"jsonrpc":"2.0","id":8,"method":"none"}', b"[]", b"nul\0l"]
    lines = [json.dumps(hello).encode(), json.dumps(ready).encode(), *damaged, json.dumps(ask).encode()]
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"\n".join(lines) + b"\n")
    process.stdin.flush()
    answers = (json.loads(line) for line in process.stdout)
    answer = next(one for one in answers if one.get("id") == 2)
    process.communicate(timeout=20)
    assert answer["result"]["structuredContent"]["kind"] == "race"
    assert process.returncode == 0


def test_without_the_package_the_command_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr("nki_mcp.command.find_spec", lambda name: None)
    assert main(["mcp"]) == 2
    assert "pip install 'mcp>=2'" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_reported(tmp_path, capsys):
    assert main(["mcp", "--tasks", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
