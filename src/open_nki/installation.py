"""Which distributions provide the packages that Open NKI and AWS share the names of, by their metadata."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

OPEN_NKI = "open-nki"
PACKAGES = ("nki", "nkilib", "neuronxcc", "trnblas")


@dataclass(frozen=True)
class Share:
    """The part of a package that one distribution has installed into one folder."""

    distribution: str
    version: str
    folder: Path  # that the package is in: site-packages, or the sources of an editable installation
    source: str | None = None  # the file or address that it was installed from, if pip recorded one
    editable: bool = False
    files: int = 0
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # their content is not what was installed

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class Package:
    """A name that can be imported, where Python finds it, and who provides it."""

    name: str
    found: Path | None  # the folder that it is imported from
    shares: list[Share]

    @property
    def imported(self) -> list[Share]:
        """The shares in the folder that Python imports from."""
        return [share for share in self.shares if share.folder == self.found]

    @property
    def hidden(self) -> list[Share]:
        """The shares that Python does not import, because it finds the package elsewhere first."""
        return [share for share in self.shares if share.folder != self.found]


def packages() -> list[Package]:
    """Return every shared name that a distribution provides or that Python can import."""
    shares: dict[str, list[Share]] = {name: [] for name in PACKAGES}
    for distribution, record in _distributions():
        for name in PACKAGES:
            shares[name] += _shares(distribution, record, name)
    listed = [Package(name, _folder(name), shares[name]) for name in PACKAGES]
    return [package for package in listed if package.found or package.shares]


def _folder(name: str) -> Path | None:
    """Return the folder that a package would be imported from; nothing is imported."""
    found = find_spec(name)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]).resolve().parent if places else None


def _distributions() -> Iterator[tuple[metadata.Distribution, str]]:
    """Yield each installed distribution that has a RECORD, once, with that."""
    seen = set()
    for distribution in metadata.distributions():
        record = distribution.read_text("RECORD")
        key = _location(distribution), record
        if record and key not in seen:
            seen.add(key)
            yield distribution, record


def _location(distribution: metadata.Distribution) -> Path:
    return Path(str(distribution.locate_file(""))).resolve()


def _shares(distribution: metadata.Distribution, record: str, package: str) -> Iterator[Share]:
    """Yield what a distribution provides of a package: files of its own, or the sources it refers to."""
    folder = _location(distribution)
    if f"\n{package}/" in f"\n{record}":  # most records are long and have none
        rows = [row for row in csv.reader(record.splitlines()) if row[0].startswith(f"{package}/")]
        rows = [row for row in rows if not row[0].endswith(".pyc")]
        share = _share(distribution, folder, files=len(rows))
        for path, digest, *_ in rows:
            _compare(share, path, digest)
        yield share
    for sources in _editable_folders(record, folder, package):
        yield _share(distribution, sources, editable=True)


def _share(
    distribution: metadata.Distribution, folder: Path, files: int = 0, editable: bool = False
) -> Share:
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    url = json.loads(distribution.read_text("direct_url.json") or "{}").get("url")
    return Share(name, distribution.version, folder, url, editable, files)


def _compare(share: Share, path: str, digest: str) -> None:
    """Note a file that is missing or has another content than RECORD says."""
    algorithm, _, expected = digest.partition("=")
    try:
        content = (share.folder / path).read_bytes()
    except OSError:
        share.missing.append(path)
        return
    if expected:
        found = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).decode().rstrip("=")
        if found != expected:
            share.changed.append(path)


def _editable_folders(record: str, folder: Path, package: str) -> Iterator[Path]:
    """Yield where an editable installation has its sources of a package: by a .pth file or a finder."""
    if ".pth," not in record:  # the finder has one, too
        return
    for path in re.findall(r"^[^/,\s]+(?:\.pth|_finder\.py)(?=,)", record, re.MULTILINE):
        try:
            text = (folder / path).read_text(encoding="utf-8")
        except OSError:
            continue
        if path.endswith(".pth"):
            lines = (line.strip() for line in text.splitlines())
            roots = [
                Path(line) for line in lines if line and not line.startswith(("import ", "import\t", "#"))
            ]
        else:
            mapping = re.search(r"^MAPPING.*?= (\{.*\})$", text, re.MULTILINE)
            known = ast.literal_eval(mapping[1]) if mapping else {}
            roots = [Path(known[package]).parent] if package in known else []
        yield from (root.resolve() for root in roots if (root / package).is_dir())
