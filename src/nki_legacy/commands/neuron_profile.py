"""`neuron-profile` and `neuron-explorer`: reports of the modelled profiles that scripts wrote.

`capture -n file.neff -s profile.ntff` models the kernels of a placeholder that `torch_neuronx.trace`, a
profiler or the old `nki.profile` wrote; `view` makes our report of a session, or prints its figures.
All times are modelled, and marked as modelled. Commands that need a device are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nki.cli.command import WRONG_USAGE, Command
from nki.errors import NkiError

REFUSED = ("inspect", "show-session", "analyze", "upgrade")


def files() -> Any:
    """What reads and writes sessions, and models them: imported when there is one."""
    from .. import sessions

    return sessions


def parser(name: str) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=name, description="Open NKI: modelled profiles.")
    commands = top.add_subparsers(dest="command", required=True)
    capture = commands.add_parser("capture")
    capture.add_argument("-n", "--neff", default="file.neff")
    capture.add_argument("-s", "--session-file", default="profile.ntff")
    capture.add_argument("--profile-nth-exec", type=int, default=1)
    capture.add_argument("--num-exec", type=int, default=0)
    for flag in ("--ignore-exec-errors", "--enable-dge-notifs"):
        capture.add_argument(flag, action="store_true")
    capture.add_argument("--save-output")
    view = commands.add_parser("view")
    view.add_argument("-n", "--neff-path", "--neff")
    view.add_argument("-s", "--session-file")
    view.add_argument("-d", "--session-dir")
    view.add_argument("--data-path")
    view.add_argument("--output-format", default="report")
    view.add_argument("--output-file")
    for refused in REFUSED:
        commands.add_parser(refused)
    return top


def main(argv: Sequence[str] | None = None, name: str = "neuron-profile") -> int:
    try:
        options, rest = parser(name).parse_known_args(argv)
    except SystemExit as stop:  # argparse has printed why
        return int(stop.code or 0)
    if rest:
        print(f"{name} (Open NKI): {' '.join(rest)} has no effect here", file=sys.stderr)
    try:
        if options.command in REFUSED:
            raise ValueError(f"{options.command} needs a device; nki profile models a kernel without one")
        return _capture(options) if options.command == "capture" else _view(options)
    except (OSError, ValueError) as problem:
        why = problem.message if isinstance(problem, NkiError) else problem
        print(f"{name} (Open NKI): {why}", file=sys.stderr)
        return WRONG_USAGE


def _capture(options: argparse.Namespace) -> int:
    """A session of the kernels in a placeholder; all executions are equal."""
    content = files().read(options.neff)
    nth = options.profile_nth_exec
    path = Path(options.session_file)
    if nth != 1:
        path = path.with_name(f"{path.stem}_exec_{nth}{path.suffix}")
    programs = files().programs_of(content)
    if not programs:
        raise ValueError(f"{options.neff} holds no kernel: what it was made of called none")
    files().write(path, content["open_nki_placeholder"], programs)
    print(f"wrote {path}, modelled, not measured: {', '.join(p.name for p in programs)}", file=sys.stderr)
    return 0


def summary(content: dict[str, Any]) -> dict[str, Any]:
    """What the tool's summary has of ours: seconds, fractions between 0 and 1, bytes."""
    found: dict[str, Any] = {"total_time": content["total_us"] * 1e-6, "modelled": True}
    for name, engine in content["engines"].items():
        found[f"{name}_engine_active_time"] = engine["active_us"] * 1e-6
        found[f"{name}_engine_active_time_percent"] = engine["active_percent"] / 100
        found[f"{name}_engine_instruction_time"] = engine["instruction_us"] * 1e-6
        found[f"{name}_engine_instruction_count"] = engine["instructions"]
    found["dma_packet_time"] = content["dma"]["packet_us"] * 1e-6
    found["dma_transfer_total_bytes"] = content["dma"]["bytes"]
    for name in ("hbm_read_bytes", "hbm_write_bytes"):
        found[name] = content[name]
    found["hardware_flops"] = content["flops"]
    for name in ("mfu", "hfu", "mbu", "mfu_max_achievable"):
        found[f"{name}_estimated_percent"] = content[f"{name}_percent"] / 100
    return found


def _view(options: argparse.Namespace) -> int:
    sessions = _sessions(options)
    if options.output_format in ("report", "db"):
        folder = Path(options.data_path or sessions[0].parent)
        folder.mkdir(parents=True, exist_ok=True)
        for session in sessions:
            _report(session, folder, options.output_file)
        return 0
    content = files().read(sessions[0])
    kernels = [summary(profile.to_dict()) for profile in files().profiles_of(content)]
    if options.output_format == "summary-json":
        print(json.dumps({f"n_{i}": facts for i, facts in enumerate(kernels)}))
    elif options.output_format == "json":
        text = json.dumps({"summary": kernels, "instruction": []})
        Path(options.output_file or "ntff.json").write_text(text, encoding="utf-8")
    elif options.output_format == "summary-text":
        for facts in kernels:
            for name in sorted(facts):
                print(f"{name}  {facts[name]}")
    elif options.output_format == "perfetto":
        _perfetto(content, Path(options.output_file or sessions[0].with_suffix(".pftrace")))
    else:
        formats = "report, summary-text, summary-json, json, perfetto"
        raise ValueError(f"--output-format {options.output_format}: there are {formats}")
    return 0


def _sessions(options: argparse.Namespace) -> list[Path]:
    """The files to show: a session, the sessions of a folder, or a placeholder that was never captured."""
    if options.session_file:
        return [Path(options.session_file)]
    if options.neff_path:
        return [Path(options.neff_path)]
    places = [options.session_dir] if options.session_dir else [options.data_path, "."]
    for place in filter(None, places):
        found = sorted(Path(place).glob("*.ntff"))
        if found:
            return found
    raise ValueError(f"no .ntff in {' or '.join(filter(None, places))}: neuron-explorer capture writes one")


def _report(session: Path, folder: Path, name: str | None) -> None:
    """One page for each kernel of a session."""
    profiles = files().profiles_of(files().read(session))
    for number, profile in enumerate(profiles):
        suffix = f"_{number}" if len(profiles) > 1 else ""
        path = Path(name) if name and not suffix else folder / f"{session.stem}{suffix}.html"
        path.write_text(profile.html(), encoding="utf-8")
        print(f"{profile.kernel}: {profile.total_us:,.1f} us modelled, report at {path.resolve().as_uri()}")
        if sys.stdout.isatty():
            import webbrowser

            webbrowser.open(path.resolve().as_uri())


def _perfetto(content: dict[str, Any], path: Path) -> None:
    try:
        path.write_bytes(files().profiles_of(content)[0].perfetto())
    except ImportError:
        raise ValueError("perfetto needs the package perfetto: pip install perfetto protobuf") from None
    print(f"wrote {path}", file=sys.stderr)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="capture|view ...", help="as the tool's")


def command_neuron_profile(options: argparse.Namespace) -> int:
    """nki neuron-profile, nki neuron-explorer"""
    return main(options.rest, options.name)


def _command(name: str) -> Command:
    return Command(
        name,
        "make reports of the profiles that scripts wrote",
        """\
Replaces neuron-profile and neuron-explorer: capture models the kernels of a .neff that a
script wrote, view makes a report of a .ntff. There is no device: all times are modelled.""",
        command_neuron_profile,
        add_arguments,
        """\
examples:
  nki neuron-explorer capture -n compiler_workdir/graph.neff -s profile.ntff
  nki neuron-explorer view -s profile.ntff
  nki neuron-profile view -s profile.ntff --output-format summary-text""",
    )


PROFILE, EXPLORER = _command("neuron-profile"), _command("neuron-explorer")
