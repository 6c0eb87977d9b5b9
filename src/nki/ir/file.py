"""A Program as one file: a zip archive with its text and its constants as plain arrays."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterable

import numpy as np

from ..errors import error

TEXT, DATA = "program.txt", "constants"
LARGEST_TEXT = 1 << 32
DAMAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError, NotImplementedError)


def write(path: str | os.PathLike, text: str, constants: Iterable[np.ndarray]) -> None:
    """Write the text of a program, and its constants by digest."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, TEXT, text.encode())
        for raw in constants:
            name = f"{DATA}/{hashlib.sha256(raw.tobytes()).hexdigest()}.npy"
            if name not in archive.namelist():
                buffer = io.BytesIO()
                np.save(buffer, raw, allow_pickle=False)
                _add(archive, name, buffer.getvalue())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same file for the same program
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)


def read(path: str | os.PathLike) -> tuple[str, dict[str, np.ndarray]]:
    """Return the text of a program and its constants by digest; nothing is executed."""
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
        return text, constants
    except FileNotFoundError:
        raise
    except DAMAGE as problem:
        what = str(problem) or type(problem).__name__
    except (RuntimeError, MemoryError, OverflowError) as problem:
        what = f"{type(problem).__name__}: {problem}"
    raise error(
        "program-file",
        f"{os.fspath(path)} is not a saved program, or it is damaged: {what}",
        help="write it again with Program.save(path)",
    )
