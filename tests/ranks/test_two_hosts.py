"""attach across two network namespaces that stand for two hosts, joined by a cable of the kernel's own.

Needs Linux, root and `ip`; where something is missing, the tests are skipped and say what.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

PROGRAM = Path(__file__).parent / "attached_program.py"
PORT = 29653


def ip(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["ip", *words], capture_output=True, text=True)


class Hosts:
    """Two namespaces, each with one end of the cable."""

    def __init__(self) -> None:
        self.names = [f"nki{os.getpid() % 100000}{end}" for end in "ab"]
        self.addresses = ["10.83.7.1", "10.83.7.2"]

    def build(self) -> str:
        """What went wrong, or nothing."""
        steps = [["netns", "add", name] for name in self.names]
        steps.append(["link", "add", self.names[0], "type", "veth", "peer", "name", self.names[1]])
        for name, address in zip(self.names, self.addresses, strict=True):
            inside = ["-n", name]
            steps += [
                ["link", "set", name, "netns", name],
                [*inside, "addr", "add", f"{address}/24", "dev", name],
            ]
            steps += [[*inside, "link", "set", name, "up"], [*inside, "link", "set", "lo", "up"]]
        for step in steps:
            done = ip(*step)
            if done.returncode:
                return f"ip {' '.join(step)}: {done.stderr.strip()}"
        return ""

    def unplug(self) -> None:
        ip("-n", self.names[1], "link", "set", self.names[1], "down")

    def remove(self) -> None:
        for name in self.names:
            ip("link", "del", name)  # where it was left outside
            ip("netns", "del", name)

    def start(self, host: int, command: list[str], **variables: str) -> subprocess.Popen:
        environment = (
            os.environ | {"GLOO_SOCKET_IFNAME": self.names[host], "OMP_NUM_THREADS": "1"} | variables
        )
        inside = ["ip", "netns", "exec", self.names[host], sys.executable, *command]
        return subprocess.Popen(
            inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def ranks(self, what: str) -> list[subprocess.Popen]:
        """A process on each host, which find each other by a store on the first."""
        common = {"MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(PORT), "WORLD_SIZE": "2"}
        return [self.start(host, [str(PROGRAM), what], RANK=str(host), **common) for host in (0, 1)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` (package iproute2) to make network namespaces with")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    found = Hosts()
    try:
        problem = found.build()
        if problem:
            pytest.skip(f"this kernel or container allows no network namespaces: {problem}")
        yield found
    finally:
        found.remove()


@contextlib.contextmanager
def ended(processes: list[subprocess.Popen]) -> Iterator[None]:
    """None of them is left behind."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def outputs(processes: list[subprocess.Popen]) -> str:
    said = [process.communicate(timeout=400) for process in processes]
    assert all(process.returncode == 0 for process in processes), said[0][1][-2000:] + said[1][1][-2000:]
    return "".join(out for out, _ in said)


def test_ranks_on_two_hosts_leave_the_bits_of_one_process(hosts):
    processes = hosts.ranks("worlds")
    with ended(processes):
        assert outputs(processes).count(": 12 worlds") == 2


@pytest.mark.slow
def test_ranks_name_each_other_when_the_cable_is_pulled(hosts):
    processes = hosts.ranks("cut")
    with ended(processes):
        for process in processes:
            assert "connected" in process.stdout.readline()
        hosts.unplug()
        said = outputs(processes)
    for rank, other in ((0, 1), (1, 0)):
        assert any(
            f"rank {rank}: {kind} in time True, rank {other} " in said
            for kind in ("rank-timeout", "rank-lost")
        )


@pytest.mark.slow
def test_torchrun_on_both_hosts(hosts):
    processes = []
    for host in (0, 1):
        command = ["-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(host)]
        command += [
            "--nproc-per-node",
            "2",
            "--master-addr",
            hosts.addresses[0],
            "--master-port",
            str(PORT + 1),
        ]
        processes.append(hosts.start(host, [*command, str(PROGRAM), "worlds"]))
    with ended(processes):
        assert outputs(processes).count(": 12 worlds") == 4
