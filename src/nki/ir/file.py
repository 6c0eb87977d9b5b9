"""A Program as one file: a zip archive with its text and the bytes of its constants."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from typing import BinaryIO

import numpy as np

from ..errors import error
from ..files import open_regular

Where = str | os.PathLike[str] | BinaryIO

TEXT, DATA = "program.txt", "constants"
LARGEST = 4 << 30  # bytes of a program's text and constants together
DAMAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, NotImplementedError)


def write(path: Where, text: str, constants: Iterable[np.ndarray]) -> None:
    """Write the text of a program, and its constants by digest."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, TEXT, text.encode())
        for raw in constants:
            content = raw.tobytes()
            name = f"{DATA}/{hashlib.sha256(content).hexdigest()}"
            if name not in archive.namelist():
                _add(archive, name, content)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same file for the same program
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)


def read(path: Where) -> tuple[str, dict[str, np.ndarray]]:
    """Return the text of a program and its constants by digest; nothing is executed."""
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open_regular(path)) if isinstance(path, (str, os.PathLike)) else path
            archive = stack.enter_context(zipfile.ZipFile(file))
            if sum(part.file_size for part in archive.infolist()) > LARGEST:
                raise ValueError(f"it has more than {LARGEST:,} bytes")
            constants = {}
            for part in archive.infolist():
                if part.filename.startswith(f"{DATA}/"):
                    content = archive.read(part)
                    digest = hashlib.sha256(content).hexdigest()
                    constants[f"sha256:{digest}"] = np.frombuffer(content, np.uint8)
            return archive.read(TEXT).decode(), constants
    except FileNotFoundError:
        raise
    except OSError as problem:
        what = problem.strerror or str(problem)
    except DAMAGE as problem:
        what = str(problem) or type(problem).__name__
    except (RuntimeError, MemoryError, OverflowError) as problem:
        what = f"{type(problem).__name__}: {problem}"
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "this"
    raise error(
        "program-file",
        f"{name} is not a saved program, or it is damaged: {what}",
        help="write it again with Program.save(path)",
    )
