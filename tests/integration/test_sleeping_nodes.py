"""Nodes that sleep, as real processes: one command stops a node's daemon, the other starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.client.client import Client
from tests.support.online.cluster import Cluster, all_up, until
from tests.support.ports import free_addresses

POWER = """
    import fcntl, os, pathlib, signal, subprocess, sys, time

    here, (order, name) = pathlib.Path(__file__).parent, sys.argv[1:]
    one_at_a_time = (here / f"{name}.lock").open("w")
    fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
    with (here / "calls.txt").open("a") as calls:
        calls.write(f"{order} {name}\\n")
    with (here / "times.txt").open("a") as times:
        times.write(f"{order} {time.time()}\\n")
    pid = here / f"{name}.pid"
    runs = lambda: pid.exists() and pathlib.Path(f"/proc/{pid.read_text()}/cmdline").exists()
    if order == "suspend":
        os.kill(int(pid.read_text()), signal.SIGTERM)
        while runs():
            time.sleep(0.02)
        sys.exit(0)
    if (here / f"{name}.broken").exists():  # a machine that is on stays so
        sys.exit(f"{name}: no power")
    if runs() or os.fork():
        sys.exit(0)  # the daemon has no parent, as on a separate machine
    os.setsid()
    with (here / f"{name}.log").open("ab") as log:
        child = subprocess.Popen([*NODE, "--name", name, "--dir", str(here / name)], stdout=log, stderr=log)
    pid.write_text(str(child.pid))
    one_at_a_time.close()
    child.wait()
"""
PLAN = """
    [power_down]
    forecast = "persistence"
    slot = "1s"
    over = "1s"
    falling = "0s"
    idle = "2s"
    review = "1s"
    buffer_nodes = 0
    wake_buffer_nodes = 0
    ramp_nodes = 0
"""
DEFAULT_PLAN = """
    [power_down]
    slot = "1s"
    over = "8s"
    falling = "3s"
    review = "1s"
    buffer_nodes = 0
    wake_buffer_nodes = 0
"""
"""Default forecast and rule, with seconds in place of minutes."""


class Site:
    """A broker, and two machines that an operator's script powers up and down."""

    def __init__(self, folder: Path, plan: str = PLAN) -> None:
        self.folder, self.script = folder, folder / "power.py"
        (folder / "models.toml").write_text(textwrap.dedent(plan))
        (address,) = free_addresses(1)
        node = [sys.executable, "-m", "rlsched", "node", "--gpus", "4", "--simulated", "--allow-root"]
        node += ["--broker", address, "--keys", str(folder / "home")]
        self.script.write_text(f"NODE = {node!r}\n" + textwrap.dedent(POWER))
        command = f"{sys.executable} {self.script}"
        self.cluster = Cluster(
            folder,
            nodes=(),
            address=address,
            broker_options=(
                *("--suspend-cmd", f"{command} suspend", "--resume-cmd", f"{command} resume"),
                *("--suspend-plan", str(folder / "models.toml")),
                *("--suspend-timeout", "15s", "--resume-timeout", "60s", "--policy", "fifo-backfill"),
                *("--forecaster", "none"),
            ),
        )

    def power(self, order: str, name: str) -> None:
        """As an operator does by hand."""
        assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(self.script), order, name]) == 0

    def calls(self) -> Counter[str]:
        """Number of calls of each command."""
        return Counter((self.folder / "calls.txt").read_text().splitlines())

    def close(self) -> None:
        """Stop all processes."""
        self.cluster.close()
        for pid in self.folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGTERM)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def states(client: Client) -> dict[str, str]:
    return {node.name: node.state for node in client.nodes()}


def all_asleep(site: Site, client: Client) -> None:
    until(lambda: set(states(client).values()) == {"asleep"}, "both sleep")
    pids = [int(pid.read_text()) for pid in site.folder.glob("*.pid")]
    until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids), "both daemons have exited")


@pytest.mark.slow
def test_nodes_sleep_wake_for_jobs_and_survive_a_killed_broker(site: Site) -> None:
    for name in ("n0", "n1"):
        site.power("resume", name)
    with site.cluster.client() as client:
        all_up(client)
        all_asleep(site, client)
        before = site.calls()
        assert before == {f"{order} {name}": 1 for order in ("resume", "suspend") for name in ("n0", "n1")}
    site.cluster.kill("broker")
    site.cluster.start("broker")
    with site.cluster.client() as client:
        assert set(states(client).values()) == {"asleep"}
        job = client.submit(["true"], num_gpus=8)
        until(lambda: "waking" in states(client).values(), "they are woken")
    site.cluster.kill("broker")
    site.cluster.start("broker")
    with site.cluster.client() as client:
        until(lambda: client.job(job).state == "completed", "the job has run on both")
        all_asleep(site, client)
        after = site.calls()
        assert (after["suspend n0"], after["suspend n1"]) == (2, 2), "none is put to sleep twice"

        (site.folder / "n0.broken").touch()
        job = client.submit(["true"], num_gpus=8)
        until(lambda: states(client)["n0"] == "down", "the command has failed")
        (n0,) = [node for node in client.nodes() if node.name == "n0"]
        assert n0.reason == "its resume command failed: exit code 1: n0: no power"
        assert client.job(job).state == "queued"
        (site.folder / "n0.broken").unlink()
        client.resume_node("n0")
        until(lambda: client.job(job).state == "completed", "the job has run once the operator tried again")


@pytest.mark.slow
def test_nodes_stay_awake_while_the_default_forecast_expects_demand(tmp_path: Path) -> None:
    """The forecast is the highest demand of the last 8 s."""
    site = Site(tmp_path, DEFAULT_PLAN)
    try:
        with site.cluster.client() as client:
            job = client.submit(["sleep", "4"], num_gpus=8)
            for name in ("n0", "n1"):
                site.power("resume", name)
            until(lambda: client.job(job).state == "completed", "the job has run on both")
            all_asleep(site, client)
            end_s = client.job(job).end_s
        assert end_s is not None
        orders = [line.split() for line in (tmp_path / "times.txt").read_text().splitlines()]
        slept_s = [float(at_s) for order, at_s in orders if order == "suspend" and float(at_s) > end_s]
        assert len(slept_s) == 2
        assert min(slept_s) - end_s >= 6.0
    finally:
        site.close()
