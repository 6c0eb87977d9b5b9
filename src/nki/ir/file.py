"""A Program as one file: a zip archive with its text and its constants as plain arrays."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib

import numpy as np

from ..errors import NkiError, error
from .context import provides
from .parser import parse
from .program import Program

TEXT, DATA = "program.txt", "constants"
LARGEST_TEXT = 1 << 32
DAMAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError, NotImplementedError)


@provides("program.save")
def save(program: Program, path: str | os.PathLike) -> None:
    """Write a program."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, TEXT, program.text(constants=False).encode())
        for _, raw in program.constants:
            digest = hashlib.sha256(raw.tobytes()).hexdigest()
            name = f"{DATA}/{digest}.npy"
            if name not in archive.namelist():
                buffer = io.BytesIO()
                np.save(buffer, raw, allow_pickle=False)
                _add(archive, name, buffer.getvalue())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same file for the same program
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)


@provides("program.load")
def load(path: str | os.PathLike) -> Program:
    """Read a program; nothing in it is executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(TEXT).file_size > LARGEST_TEXT:
                raise ValueError("its text is larger than any program's")
            text = archive.read(TEXT).decode()
            constants = {}
            for name in archive.namelist():
                if name.startswith(f"{DATA}/"):
                    raw = np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
                    raw = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
                    constants[f"sha256:{hashlib.sha256(raw.tobytes()).hexdigest()}"] = raw
        return parse(text, constants)
    except NkiError:
        raise
    except FileNotFoundError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        ValueError,
        OSError,
        EOFError,
        NotImplementedError,
    ) as problem:
        what = str(problem) or type(problem).__name__
    except (RuntimeError, MemoryError, OverflowError) as problem:
        what = f"{type(problem).__name__}: {problem}"
    raise error(
        "program-file",
        f"{os.fspath(path)} is not a saved program, or it is damaged: {what}",
        help="write it again with Program.save(path)",
    )
