"""The tools of `nki mcp`: each answers with the JSON of a command, with long lists cut."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import Field

from nki.cli.explaining import explanation
from nki.cli.listing import kernel_facts, kernel_source
from nki.cli.script import UsageError
from nki.version import PACKAGE
from nki_grading.sandbox import enforced, isolation

from .kernels import Value, Workshop, options_of
from .search import search

MOST = 8  # entries of a list in an answer

INSTRUCTIONS = """\
Write, check, grade and speed up NKI kernels for AWS Trainium without a device. The usual order: search and
show to learn, check, run, grade, then profile and advise; explain says what a kind of error means. Times are
modelled, not measured. A kernel runs in a process of its own, for {seconds:g} s and in {gib:g} GiB at most.
Enforced: {limits}."""

Facts = dict[str, Any]
Source = Annotated[str, Field(description="the Python text with the kernel")]
File = Annotated[str, Field(description="in place of source: a file below the folder that is served")]
Name = Annotated[str, Field(description="the kernel, where the source has several")]
Arguments = Annotated[
    dict[str, Value],
    Field(
        description='tensors as dtype[shape], other values as they are: {"x": "float32[128,512]", "scale": 2}'
    ),
]
Target = Annotated[str, Field(description="trn1, trn2 or trn3")]
Cores = Annotated[int | None, Field(description="launch on this many cores, as kernel[2] does")]


@dataclass(frozen=True)
class Tools:
    """What an agent can call; the docstrings are what it reads."""

    workshop: Workshop

    def check(
        self,
        source: Source = "",
        file: File = "",
        kernel: Name = "",
        arguments: Arguments = {},  # noqa: B006  never changed
        target: Target = "",
        lnc: Cores = None,
        release: Annotated[str, Field(description="a release of AWS's NKI: aws-0.6")] = "",
    ) -> Facts:
        """Find what compilers and hardware would refuse, as `nki check --json`.

        With arguments, every instruction, races and memory are checked, from shapes alone.
        """
        options = options_of(arguments, target=target, lnc=lnc, **{"for": release})
        return brief(self.workshop.data_of("check", kernel, options, source, file))

    def run(
        self,
        source: Source = "",
        file: File = "",
        arguments: Annotated[list[str], Field(description="sys.argv[1:]")] = [],  # noqa: B006
    ) -> Facts:
        """Run a script that calls its kernels on NumPy arrays, as `nki run`.

        Returns the exit code and the end of the output. There is no network and no file of yours.
        """
        return self.workshop.run(arguments, source, file)

    def profile(
        self,
        source: Source = "",
        file: File = "",
        kernel: Name = "",
        arguments: Arguments = {},  # noqa: B006
        target: Target = "",
        lnc: Cores = None,
    ) -> Facts:
        """Model the time of a kernel from shapes alone, by engine, DMA and line, as `nki profile --json`."""
        options = options_of(arguments, target=target, lnc=lnc)
        return brief(self.workshop.data_of("profile", kernel, options, source, file))

    def advise(
        self,
        source: Source = "",
        file: File = "",
        kernel: Name = "",
        arguments: Arguments = {},  # noqa: B006
        target: Target = "",
        lnc: Cores = None,
    ) -> Facts:
        """List what would make a kernel faster: lines, and the time it gains, as `nki advise --json`."""
        options = options_of(arguments, target=target, lnc=lnc)
        return brief(self.workshop.data_of("advise", kernel, options, source, file))

    def task(self, name: Annotated[str, Field(description="without it, the tasks are listed")] = "") -> Facts:
        """Describe a task that kernels are graded for: the kernel's name, its arguments, limits of time."""
        return self.workshop.task(name).to_dict() if name else {"tasks": self.workshop.task_names()}

    def grade(self, task: str, source: Source = "", file: File = "") -> Facts:
        """Grade a kernel on visible and hidden inputs, as `nki grade --json`: is it right, time, points."""
        return self.workshop.grade(task, source, file)

    def explain(self, kind: Annotated[str, Field(description="as in NkiError[kind]")] = "") -> Facts:
        """Explain a kind of error or warning with a wrong and a right kernel; without one, list the kinds."""
        return dict(explanation(kind)) if kind else {"kinds": list(explanation(None))}

    def search(self, query: str, most: Annotated[int, Field(ge=1, le=50)] = 8) -> Facts:
        """Search the reference, as `nki search --json`: functions, instructions, kernels, commands, errors.

        A name that is written exactly (nisa.activation) comes first, with its signature, engines and cost.
        """
        return search(query, most)

    def show(
        self,
        kernel: Annotated[str, Field(description="as in attention_cte")] = "",
        word: Annotated[str, Field(description="list the kernels that have it in name or meaning")] = "",
    ) -> Facts:
        """Show the source of a kernel of the library nkilib, or list its kernels, as `nki kernels --json`."""
        return dict(kernel_source(kernel)) if kernel else brief({"kernels": kernel_facts(word)})


def make_server(workshop: Workshop) -> MCPServer:
    """Return the server with all its tools."""
    limits = workshop.limits
    held = ", ".join(enforced(bool(isolation())))
    text = INSTRUCTIONS.format(seconds=limits.seconds, gib=limits.memory / 2**30, limits=held)
    server: MCPServer = MCPServer("open-nki", version=PACKAGE, instructions=text, log_level="WARNING")
    tools = Tools(workshop)
    calls: list[Callable[..., Facts]] = [
        *(tools.check, tools.run, tools.profile, tools.advise, tools.task, tools.grade),
        *(tools.explain, tools.search, tools.show),
    ]
    for call in calls:
        server.add_tool(answering(call))
    return server


def answering(tool: Callable[..., Facts]) -> Callable[..., Any]:
    """Make a tool answer with compact JSON, and with the text of a UsageError as its error."""

    @functools.wraps(tool)
    def answer(**given: Any) -> Any:
        try:
            facts = tool(**given)
        except UsageError as problem:
            raise ToolError(str(problem)) from None
        text = json.dumps(facts, ensure_ascii=False)
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=facts)

    return answer


def brief(facts: Facts) -> Facts:
    """Return data with at most MOST entries in each list; `left_off` says how many are missing, and where."""
    left_off: dict[str, int] = {}

    def cut(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: cut(child, f"{name}.{key}") for key, child in value.items()}
        if not isinstance(value, list):
            return value
        if len(value) > MOST:
            left_off[name] = left_off.get(name, 0) + len(value) - MOST
        return [cut(child, name) for child in value[:MOST]]

    answer = {key: cut(value, key) for key, value in facts.items()}
    return {**answer, "left_off": left_off} if left_off else answer
