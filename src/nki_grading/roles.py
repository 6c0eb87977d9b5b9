"""What a child does: `trace` a submission, `run` a Program, or do a `command` of `nki` on a foreign file.

Messages go over a pipe: a line of JSON, then the bytes that it announces. The side that reads trusts neither.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from nki.machine import dtypes

LARGEST_HEADER = 1 << 20
LONGEST = 2000  # characters of an error
FIRST = 3  # pieces of advice in a verdict


def send(pipe: IO[bytes], header: dict[str, Any], data: bytes = b"") -> None:
    """Write one message."""
    pipe.write(json.dumps({**header, "bytes": len(data)}).encode() + b"\n" + data)
    pipe.flush()


def messages(data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the messages in `data`; ValueError if it holds anything else."""
    place = 0
    while place < len(data):
        end = data.find(b"\n", place, place + LARGEST_HEADER)
        if end < 0:
            raise ValueError("a message has no header")
        try:
            header = json.loads(data[place:end])
        except RecursionError:
            raise ValueError("a header is nested too deeply") from None
        size = header.get("bytes") if isinstance(header, dict) else None
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(data) - end - 1:
            raise ValueError("a header announces bytes that are not there")
        yield header, data[end + 1 : end + 1 + size]
        place = end + 1 + size


def pack(arrays: Sequence[np.ndarray]) -> tuple[list[Any], bytes]:
    """Return the shapes and dtypes of arrays, and their bytes one after the other."""
    heads = [[list(a.shape), str(dtypes.resolve(a.dtype))] for a in arrays]
    return heads, b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)


def unpack(heads: Sequence[Any], data: bytes) -> list[np.ndarray]:
    """Return the arrays that `pack` took apart; both sides of it are the grader's."""
    arrays, place = [], 0
    for shape, dtype in heads:
        kind = np.dtype(dtypes.resolve(dtype).storage)
        size = prod(shape) * kind.itemsize
        arrays.append(np.frombuffer(data[place : place + size], kind).reshape(shape))
        place += size
    return arrays


# ---- trace: runs foreign code --------------------------------------------------------------------


def trace(job: dict[str, Any], source: bytes, answer: IO[bytes]) -> None:
    """Import a submission and trace its kernel for each case; only shapes are known here."""
    from nki.cli.script import UsageError, find_kernel, loaded

    file = Path(job["file"]).name
    Path(file).write_bytes(source)
    try:
        with loaded(Path(file)) as module:
            kernel = find_kernel(module, file, job["entry"])
            send(answer, {"imported": True, "check": check(kernel, job["release"])})
            for case in job["cases"]:
                send_case(answer, kernel, case, job["release"])
    except UsageError as problem:
        send(answer, {"failed": "missing-kernel", "message": str(problem)})
    except Exception as problem:
        send(answer, _failure(problem))


def check(kernel: Any, release: str | None) -> list[str]:
    """Return the errors that `nki check --for RELEASE` finds in the source of a kernel."""
    if release is None:
        return []
    from nki.check import lint, portability
    from nki.check.findings import of_lint

    checked: dict[int, Any] = {}
    found = [of_lint(hit, kernel.__name__) for hit in lint(kernel, checked=checked)]
    found += portability.of_source(kernel, release, checked)
    seen = [portability.as_seen_by(release, one) for one in found]
    return [str(one)[:LONGEST] for one in seen if one.level == "error"]


def send_case(answer: IO[bytes], kernel: Any, case: dict[str, Any], release: str | None) -> None:
    """Trace the kernel for one case and send its Program."""
    from nki import TensorSpec, options

    values = [
        TensorSpec(tuple(value["shape"]), value["dtype"]) if isinstance(value, dict) else value
        for value in case["arguments"].values()
    ]
    try:
        with options(target=case["target"], **({"api": release} if release else {})):
            launched = kernel if case["lnc"] is None else kernel[case["lnc"]]
            program = launched.trace(*values)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            path = Path(folder) / "program"
            program.save(path)
            send(answer, {"case": case["name"]}, path.read_bytes())
    except Exception as problem:
        send(answer, {"case": case["name"], **_failure(problem)})


def _failure(problem: Exception) -> dict[str, str]:
    """Return what a message says of an error; its lines do not show the folder of this process."""
    from nki import NkiError

    if isinstance(problem, NkiError):
        kind, text = problem.kind, str(problem)
    else:
        kind, text = type(problem).__name__, "".join(traceback.format_exception_only(problem))
    return {"failed": kind, "message": text.replace(os.getcwd() + os.sep, "")[:4000]}


# ---- command: runs foreign code ------------------------------------------------------------------


def command(job: dict[str, Any], source: bytes, answer: IO[bytes]) -> None:
    """Run `nki` on a file; send its exit code and, if it prints data, what it printed."""
    from nki.cli import main

    Path(Path(job["file"]).name).write_bytes(source)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in order with stderr
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed) if job["data"] else contextlib.nullcontext():
        code = main(job["arguments"])
    text = printed.getvalue().replace(f"{os.getcwd()}{os.sep}", "")
    send(answer, {"code": code}, text.encode("utf-8", "replace"))


# ---- run: our code, a foreign Program ------------------------------------------------------------


def run(job: dict[str, Any], received: bytes, answer: IO[bytes]) -> None:
    """Run each Program on the arrays behind it, model its time, and send the results."""
    programs: dict[str, Any] = {}
    for header, data in messages(received):
        with _reported(answer, header["case"], header.get("seed")):
            if "arrays" not in header:
                programs[header["case"]] = program = _loaded(data)
                send(answer, {"case": header["case"], **described(program, header)})
            elif header["case"] in programs:
                _send_results(answer, programs[header["case"]], header, data)


@contextlib.contextmanager
def _reported(answer: IO[bytes], case: str, seed: int | None) -> Iterator[None]:
    try:
        yield
    except Exception as problem:
        send(answer, {"case": case, "seed": seed, **_failure(problem)})


def _loaded(data: bytes) -> Any:
    from nki.ir.program import Program

    descriptor, path = tempfile.mkstemp(dir=".")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    try:
        return Program.load(path)
    finally:
        os.unlink(path)


def described(program: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what a Program takes, breaks and costs; refuse one for another machine or other tensors."""
    from nki.check.whole_program import findings
    from nki.errors import error
    from nki.options import from_environment

    taken = [[list(storage.shape), str(storage.dtype)] for _, storage in program.parameters]
    asked = (wanted["target"], wanted["lnc"] or 1, wanted["takes"])
    if (program.machine.name, len(program.cores), taken) != asked:
        raise error("argument", f"the program is for {program.machine.name} and takes {taken}")
    profile = program.profile()
    counts = profile.statistics
    return {
        "us": profile.total_us,
        "instructions": counts.instructions,
        "sbuf_bytes": counts.sbuf_peak_bytes,
        "psum_bytes": counts.psum_peak_bytes,
        "check": _refused(program, wanted["release"]),
        "findings": [
            *(f"{found.kind}: {found.message}" for found in findings(program, from_environment())),
            *_too_large(program),
        ],
        "advice": [
            {"title": a.title, "detail": a.detail, "lines": list(a.lines), "gain_us": a.gain_us}
            for a in (profile.findings[:FIRST] if wanted["advise"] else ())
        ],
    }


def _too_large(program: Any) -> Iterator[str]:
    """Yield the tiles that no partition can hold; a trace, in the submission's process, warns of them."""
    from nki.check.capacity import limit_of
    from nki.machine.memories import PSUM, SBUF

    for tile in program.storages:
        limit = limit_of(program.machine, tile.buffer, False) if tile.buffer in (SBUF, PSUM) else tile.pitch
        if tile.pitch > limit:
            shape = " x ".join(map(str, tile.shape))
            yield f"capacity: a tile of {shape} takes {tile.pitch:,} bytes of a partition of {limit:,}"


def _refused(program: Any, release: str | None) -> list[str]:
    """Return the errors that `nki check --for RELEASE` finds in the instructions of a Program."""
    from nki.check import portability

    found = portability.of_call(program, (), release) if release else ()
    return [f"{one.kind}: {one.message}"[:LONGEST] for one, level in found if level == "error"]


def _send_results(answer: IO[bytes], program: Any, header: dict[str, Any], data: bytes) -> None:
    from nki.ir.tree import leaves

    arrays = [array.copy() for array in unpack(header["arrays"], data)]  # a kernel may write its arguments
    heads, raw = pack(leaves([program.run(*arrays)], np.ndarray))
    send(answer, {"case": header["case"], "seed": header["seed"], "arrays": heads}, raw)


# ---- before both ---------------------------------------------------------------------------------

TINY = b"""
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def square(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    psum = nl.ndarray(x.shape, nl.float32, buffer=nl.psum)
    nisa.dma_copy(tile, x)
    nisa.nc_matmul(psum, tile, tile)
    nisa.activation(tile, nl.copy, psum)
    nisa.dma_copy(out, tile)
    return out
"""


def import_all() -> None:
    """Import what the roles import when they first need it, by doing both on a tiny submission."""
    x = np.ones((4, 4), np.float32)
    shape, raw = pack([x])
    wanted: dict[str, Any] = {"target": "trn2", "lnc": None}
    case = {"name": "tiny", "arguments": {"x": {"shape": [4, 4], "dtype": "float32"}}, **wanted}
    traced, received = io.BytesIO(), io.BytesIO()
    trace({"file": "tiny.py", "entry": "square", "release": "0.6", "cases": [case]}, TINY, traced)
    _, (_, program) = messages(traced.getvalue())
    send(received, {"case": "tiny", "release": "0.6", "takes": shape, **wanted}, program)
    send(received, {"case": "tiny", "seed": 0, "arrays": shape}, raw)
    run({}, received.getvalue(), io.BytesIO())
