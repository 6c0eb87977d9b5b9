"""Tuned configurations on disk: a JSON file for each call, named by a hash. Loading executes nothing."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import Form, load_json, read_bytes
from ..kernel.kernel import Kernel
from ..kernel.specs import label
from ..options import cache_folder
from ..version import __version__
from .model import TuningJob
from .space import Space

FORMAT = "open-nki tuned 1"
FORM: Form = {"format": FORMAT, "config": dict}
log = logging.getLogger("nki.tune")


def folder() -> Path:
    return cache_folder() / "tuned"


def key(job: TuningJob, space: Space, budget: int) -> str:
    """Return a hash of the kernel's file, the call, the platform, the space and the version of the model."""
    kernel = job.kernel
    content = {
        "version": __version__,
        "target": job.target,
        "kernel": [kernel.__module__.partition("_")[0], kernel.__qualname__, kernel.lnc],
        "schedule": repr(kernel.schedule),
        "source": _source(kernel),
        "args": label(job.args),
        "kwargs": label(job.kwargs),
        "space": repr(space.key()),
        "budget": budget,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _source(kernel: Kernel) -> str:
    """Return a hash of the file that defines the kernel."""
    try:
        return hashlib.sha256(read_bytes(inspect.getfile(inspect.unwrap(kernel.func)))).hexdigest()
    except (OSError, TypeError):
        return hashlib.sha256(kernel.func.__code__.co_code).hexdigest()


def read(name: str, space: Space, place: Path) -> dict[str, Any] | None:
    """Return what was stored under a key, or None. A file that cannot be read is logged and written again."""
    file = place / f"{name}.json"
    try:
        content = load_json(file, FORM)
        config, vary = content["config"], {name: list(values) for name, values in space.vary.items()}
        known = config.keys() == vary.keys() and all(config[name] in vary[name] for name in config)
        if not known or not isinstance(content.get("us"), (int, float)):
            raise ValueError("its configuration is not in the space")
        own = {name: vary[name][vary[name].index(value)] for name, value in config.items()}
        return {**content, "config": own}  # True == 1, but the kernel gets what the space has
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        log.warning("the tuned configuration %s cannot be used (%s); tuning again", file, problem)
        return None


def write(name: str, content: Mapping[str, object], place: Path) -> None:
    """Write a file and move it into place: readers see the old file or the new one."""
    file = place / f"{name}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({"format": FORMAT, **content}, stream, indent=1, sort_keys=True)
        os.replace(new, file)
    except (OSError, TypeError) as problem:
        log.warning("the tuned configuration %s cannot be written: %s", file, problem)
