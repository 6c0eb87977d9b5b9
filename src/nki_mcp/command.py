"""nki mcp: a Model Context Protocol server on stdin and stdout; and nki search."""

from __future__ import annotations

import argparse
import json
import threading
from importlib.util import find_spec
from pathlib import Path

from nki.cli.command import Command, add_json
from nki.cli.listing import NOT_FOUND
from nki.cli.script import UsageError


def command_mcp(options: argparse.Namespace) -> int:
    """nki mcp"""
    if find_spec("mcp") is None:
        raise UsageError("the server needs the package mcp\n  help: pip install 'mcp>=2'")
    from nki_grading import Limits
    from nki_grading.sandbox import isolation

    folder, tasks = Path(options.folder).resolve(), Path(options.tasks).resolve() if options.tasks else None
    for place in (folder, tasks):
        if place is not None and not place.is_dir():
            raise UsageError(f"there is no folder {place}")
    sandbox = threading.Thread(target=isolation)  # its process imports nki while this one imports mcp
    sandbox.start()
    from .kernels import Workshop
    from .server import make_server

    sandbox.join()
    limits = Limits(seconds=options.seconds, memory=int(options.memory * 2**30))
    make_server(Workshop(folder, tasks, limits)).run("stdio")
    return 0


def add_mcp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", default=".", metavar="DIR", help="kernels may be files in it (default: this one)"
    )
    parser.add_argument(
        "--tasks", metavar="DIR", help="tasks of yours: NAME.py or NAME/task.py; kernels cannot read it"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="N", help="time of one run (default: 60)"
    )
    parser.add_argument(
        "--memory", type=float, default=8.0, metavar="GIB", help="address space of one run (default: 8)"
    )


MCP = Command(
    "mcp",
    "serve tools to coding agents",
    """\
Serve the commands to a coding agent as tools of the Model Context Protocol, on stdin and stdout:
check, run, profile, advise, task, grade, explain, search, show. Kernels run in processes with the
limits of nki grade. Needs the package mcp.""",
    command_mcp,
    add_mcp,
    """\
example: how an agent is told to start it
  {"mcpServers": {"nki": {"command": "nki", "args": ["mcp", "--folder", "kernels"]}}}""",
)


# ---- nki search ----------------------------------------------------------------------------------


def command_search(options: argparse.Namespace) -> int:
    """nki search"""
    from .search import search  # slow to import: `nki --help` does without

    answer = search(" ".join(options.query), options.most)
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        for one in answer["found"]:
            print(f"{one['signature']}\n" + "".join(f"    {line}\n" for line in one["text"].splitlines()))
        left = answer["count"] - len(answer["found"])
        print(f"{left} more: --most {answer['count']}" if left else f"{answer['count']} found")
        if "did_you_mean" in answer:
            print(f"did you mean {answer['did_you_mean']}?")
    return 0 if answer["found"] else NOT_FOUND


def add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="+", help="a name, as in nisa.activation, or words")
    parser.add_argument("--most", type=int, default=8, metavar="N", help="how many (default: 8)")
    add_json(parser)


SEARCH = Command(
    "search",
    "find names in the reference",
    """\
Search the reference: functions, classes, kernels of the library, commands and kinds of errors.
A name that is written exactly comes first, with its whole text. Exit code 1: nothing was found.""",
    command_search,
    add_search,
    """\
examples:
  nki search nisa.activation
  nki search transpose dma""",
)
