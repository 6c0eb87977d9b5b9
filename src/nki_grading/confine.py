"""How a process of Linux gives up rights: namespaces, read-only files, no capabilities, and limits.

The supervisor of a child enters new namespaces; the child, the first process in them, does the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Any

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
NAMESPACES = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 24, 38, 47
AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION = 0x20080522
KILLED = 9
NOBODY = 65534  # the user `nobody` of Linux, who owns nothing
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm", "/run")
ROOT = os.sep


def enter_namespaces() -> None:
    """Give this process namespaces of its own: no network, and its next child is the first of a new PID
    namespace and the root of a user namespace that holds nothing else."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:  # Linux never limits the processes of a real root; the effective user still reads its files
        os.setresuid(NOBODY, -1, -1)
    _prctl(PR_SET_DUMPABLE, 1)  # else the files below belong to another user
    _call("unshare", NAMESPACES)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {user} 1")
    _write("/proc/self/gid_map", f"0 {group} 1")


def give_up_rights(folder: str, hidden: list[str]) -> None:
    """Make every file read-only but for an empty folder, hide folders, and drop all capabilities."""
    _mount("none", ROOT, "", MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
    _write("/proc/sys/user/max_user_namespaces", "0")  # a new namespace would have capabilities again
    for path in filter(os.path.isdir, hidden):
        _mount("tmpfs", path, "tmpfs", NOSUID | NODEV, "size=4k")
    _make_read_only(ROOT)
    for path in SCRATCH:
        needed = any(entry.startswith(path + os.sep) for entry in sys.path)
        if os.path.isdir(path) and not needed:
            _mount("tmpfs", path, "tmpfs", NOSUID | NODEV, "size=4k")
    os.makedirs(folder, exist_ok=True)
    _mount("tmpfs", folder, "tmpfs", NOSUID | NODEV, "size=64m")
    _drop_capabilities()


def end_with_parent() -> None:
    """Let Linux end this process when its parent ends; a change of rights undoes it."""
    if sys.platform.startswith("linux"):
        _prctl(PR_SET_PDEATHSIG, KILLED)


def limit(limits: dict[str, Any]) -> None:
    """Set the limits of this process and of those that it starts."""
    try:
        import resource
    except ImportError:  # Windows
        return
    wanted = {
        resource.RLIMIT_CPU: int(limits["seconds"]) + 1,
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


def _drop_capabilities() -> None:
    """Drop every capability for good: of this process, and of any program that it starts."""
    with contextlib.suppress(OSError):  # the first that this Linux does not know
        for capability in range(64):
            _prctl(PR_CAPBSET_DROP, capability)
    _prctl(PR_CAP_AMBIENT, AMBIENT_CLEAR_ALL)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, none)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _make_read_only(target: str) -> None:
    wanted = (ctypes.c_uint64 * 4)(RDONLY, 0, 0, 0)
    size = ctypes.sizeof(wanted)
    _call("syscall", MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, wanted, size)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), flags, data.encode())


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the C library; OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}{arguments[:2]}")
