"""The other side of `sandbox`: sets the limits of its own process, then does its role.

Roles: `trace` runs a submission and answers with Programs; `run` runs Programs and has no foreign code.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from typing import Any

MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
RDONLY, NOSUID, NODEV = 1, 2, 4
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm", "/run")
ROOT = os.sep


def main(argv: list[str]) -> None:
    """Confine this process as its first argument asks for, and do its role."""
    setup = json.loads(argv[0])
    if setup.pop("isolated"):
        _mount(setup["folder"], setup.pop("hidden"))
        setup["isolated"], setup["hidden"] = False, []
        _without_capabilities([sys.executable, *sys.orig_argv[1:-1], json.dumps(setup)])
    os.chdir(setup["folder"])
    limit(setup["limits"])
    from . import roles

    with open(setup["answer"], "wb") as answer:
        getattr(roles, setup["role"])(setup["job"], answer)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(0)  # what a submission registered for the exit does not matter any more


def limit(limits: dict[str, Any]) -> None:
    """Set the limits of this process and of those that it starts."""
    try:
        import resource
    except ImportError:  # Windows
        return
    seconds = int(limits["seconds"]) + 1
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_NOFILE: limits["files"],
        resource.RLIMIT_FSIZE: limits["output"],
        resource.RLIMIT_CORE: 0,
    }
    for name, most in wanted.items():
        soft, hard = resource.getrlimit(name)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (most, most))


def _without_capabilities(command: list[str]) -> None:
    """Start again as a process that cannot undo the mounts."""
    os.execvp(
        "setpriv", ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--", *command]
    )


def _mount(folder: str, hidden: list[str]) -> None:
    """Make every file read-only but for an empty folder of this process; hidden folders are empty."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
        if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()):
            raise OSError(ctypes.get_errno(), f"mount {target}")

    def attributes(target: str, set_: int, clear: int, recursive: int = 0) -> None:
        wanted = (ctypes.c_uint64 * 4)(set_, clear, 0, 0)
        if libc.syscall(MOUNT_SETATTR, AT_FDCWD, target.encode(), recursive, wanted, ctypes.sizeof(wanted)):
            raise OSError(ctypes.get_errno(), f"mount_setattr {target}")

    with open("/proc/sys/user/max_user_namespaces", "w") as most:
        most.write("0")  # a new namespace would have capabilities again
    mount("none", ROOT, "", MS_REC | MS_PRIVATE)
    for path in hidden:
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", NOSUID | NODEV, "size=4k")
    attributes(ROOT, RDONLY, 0, AT_RECURSIVE)
    for path in SCRATCH:
        needed = any(entry.startswith(path + os.sep) for entry in sys.path)
        if os.path.isdir(path) and not needed:
            mount("tmpfs", path, "tmpfs", NOSUID | NODEV, "size=4k")
    os.makedirs(folder, exist_ok=True)
    mount("tmpfs", folder, "tmpfs", NOSUID | NODEV, "size=64m")
