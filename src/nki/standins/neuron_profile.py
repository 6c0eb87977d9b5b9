"""`neuron-profile` and `neuron-explorer` for scripts: summaries of the modelled profiles that scripts left.

`capture -n file.neff -s profile.ntff` needs what the old `nki.profile` wrote; `view -s` shows it.
Everything is modelled, and says so. What serves pages or sessions is refused: `nki profile` does that.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

MARK = "open_nki_placeholder"


def main(argv: list[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="neuron-profile", description="Open NKI: modelled profiles.")
    commands = top.add_subparsers(dest="command", required=True)
    capture = commands.add_parser("capture")
    capture.add_argument("-n", "--neff", default="file.neff")
    capture.add_argument("-s", "--session-file", default="profile.ntff")
    view = commands.add_parser("view")
    view.add_argument("-n", "--neff-path", "--neff")
    view.add_argument("-s", "--session-file", default="profile.ntff")
    view.add_argument("--output-format", default="summary-text")
    view.add_argument("--output-file", default="ntff.json")
    options, _ = top.parse_known_args(argv)
    try:
        return _capture(options) if options.command == "capture" else _view(options)
    except (OSError, ValueError) as problem:
        print(f"neuron-profile (Open NKI): {problem}", file=sys.stderr)
        return 1


def _load(path: str) -> dict[str, Any]:
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict) or MARK not in content:
        raise ValueError(f"{path} is no file of Open NKI; there is no device to profile: use nki profile")
    return content


def _capture(options: argparse.Namespace) -> int:
    """A session for a placeholder; the kernel was priced when that was written."""
    _load(options.neff)
    if not Path(options.session_file).exists():
        raise ValueError(f"{options.session_file} is missing: nki.profile writes it beside {options.neff}")
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
    facts = summary(_load(options.session_file))
    if options.output_format == "summary-json":
        print(json.dumps({"n_0": facts}))
    elif options.output_format == "json":
        text = json.dumps({"summary": [facts], "instruction": []})
        Path(options.output_file).write_text(text, encoding="utf-8")
    elif options.output_format == "summary-text":
        for name in sorted(facts):
            print(f"{name}  {facts[name]}")
    else:
        raise ValueError(
            f"--output-format {options.output_format}: nki profile --html or --perfetto does that"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
