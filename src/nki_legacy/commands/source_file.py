"""A Python source, read and replaced without loss: encoding, line ends, permissions, links."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import tokenize
from pathlib import Path
from typing import NamedTuple

from nki.cli.script import UsageError
from nki.files import read_bytes


class Source(NamedTuple):
    """The text of a file, and how it is encoded there."""

    text: str
    encoding: str

    def encode(self, text: str) -> bytes:
        """Return the bytes of another text in the encoding of this file, with its byte order mark."""
        return text.encode(self.encoding)


def read(file: Path) -> Source:
    """Return a source as its coding line or byte order mark says; line ends stay as they are."""
    data = read_bytes(file)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return Source(data.decode(encoding), encoding)
    except (SyntaxError, UnicodeDecodeError) as problem:
        raise UsageError(f"{file}: {problem}") from None


def replace(file: Path, data: bytes) -> None:
    """Replace a file as a whole; after any failure, such as a full disk, it is as it was.

    The new content is written beside it, read back, and renamed. A link stays one: its target is replaced.
    """
    target = Path(os.path.realpath(file))
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(target, beside)
        if beside.read_bytes() != data:
            raise OSError(f"{beside} was not written as a whole")
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
