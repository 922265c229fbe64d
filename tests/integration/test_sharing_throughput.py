"""Throughput of 60 real processes on simulated GPUs, shared and unshared, against the simulator's prediction.

The test is the device: it counts the seconds of GPU time, moves the clock of broker and nodes, and gives each
process the work that its GPU does for it in that time. So nothing depends on the speed of the machine.
"""

from __future__ import annotations

import math
import random
import re
import socket
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import rlsched as rs
from rlsched.client.client import Client
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.settings import Share
from rlsched.models.catalogue import load_catalogue
from rlsched.models.sharing import shared_speed
from rlsched.wire.states import FINISHED
from rlsched.workload.trace import Trace
from tests.support.moved_clock import MovedClock, needs_moved_clock
from tests.support.online.cluster import Cluster, all_up, until

pytestmark = [pytest.mark.slow, needs_moved_clock]

GPU_TYPE: Final = "H100"
WORKLOADS: Final = ("efficientnetb0-cifar10-b64", "lstm-wikitext2-b5", "mobilenetv2-cifar10-b64")
LIGHT, MIDDLE, HEAVY = WORKLOADS
JOBS, SEED = 60, 4
SLOWER: Final = {(MIDDLE, LIGHT): 0.75}
"""Speed of the first next to the second on these GPUs, relative to the prediction; 1 for all other pairs."""
LEAST_STEP_S: Final = 150.0
"""Least time between two ends: longer than it takes until a job counts as slow (60 s)."""
SOLO_S: Final = 60.0
LEASE_S: Final = 1e6
"""A broker whose clock jumps by more than a quarter of the lease treats this as its own downtime."""
PROGRAM: Final = """\
import os, socket, sys
device = socket.create_connection(("127.0.0.1", int(sys.argv[2]))).makefile("rw")
place = (os.environ[name] for name in ("RLSCHED_JOB", "RLSCHED_NODES", "CUDA_VISIBLE_DEVICES"))
print(*place, file=device, flush=True)
done = 0
for units in device:
    for _ in range(int(units)):
        sum(range(1000))
        done += 1
    print(done, file=device, flush=True)
"""
"""Computes the units of work that the device gives it, until the device hangs up."""


@dataclass
class Process:
    """A job's process, connected to the device.

    Attributes:
        workload: Its workload.
        place: Its node and GPUs.
        left_s: Time that the rest of its work takes without co-tenants.
    """

    workload: str
    place: tuple[str, str]
    left_s: float
    stream: Any
    given: int = 0

    def work(self, units: int) -> None:
        """Give it work."""
        self.given += units
        print(units, file=self.stream, flush=True)

    def has_worked(self) -> None:
        """Wait until it has done all work that it was given."""
        assert int(self.stream.readline()) == self.given


class Device:
    """The GPUs of all nodes: the speed of each process follows from the processes on its GPUs.

    Args:
        clock: Clock of broker and nodes; time of the device passes with it.
        speeds: Speed of a workload next to another.

    Attributes:
        now_s: Time that has passed.
        processes: Processes by job.
        work: Workload and work of each submitted job, seconds without co-tenants.
    """

    def __init__(self, clock: MovedClock, speeds: dict[tuple[str, str], float]) -> None:
        self._clock, self._speeds = clock, speeds
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.setblocking(False)
        self.now_s = 0.0
        self.processes: dict[int, Process] = {}
        self.work: dict[int, tuple[str, float]] = {}

    def submit(self, client: Client, workload: str, num_gpus: int, work_s: float) -> int:
        """Submit a job with this much work."""
        port = str(self._door.getsockname()[1])
        command = [sys.executable, "-S", "-c", PROGRAM, workload, port]
        job = client.submit(command, num_gpus=num_gpus, workload=workload)
        self.work[job] = workload, work_s
        return job

    def settle(self, client: Client) -> list[int]:
        """Wait until the broker has handled all ends, and all jobs that it has started have a process here.

        Returns the waiting jobs.
        """
        waiting: list[int] = []

        def is_settled() -> bool:
            self._accept()
            live = {job.job: job.state for job in client.jobs()}
            waiting[:] = [job for job, state in live.items() if state == "queued"]
            running = {job for job, state in live.items() if state == "running"}  # a launch is acknowledged
            return self.processes.keys() == running == live.keys() - set(waiting)

        until(is_settled, "all started jobs run", progress=lambda: len(self.processes))
        return waiting

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except BlockingIOError:
                return
            connection.settimeout(60.0)
            stream = connection.makefile("rw")
            connection.close()  # the stream keeps it open
            job, *place = stream.readline().split()
            workload, left_s = self.work[int(job)]
            self.processes[int(job)] = Process(workload, (place[0], place[1]), left_s, stream)

    def beside(self, job: int) -> int | None:
        """The other job on the GPUs of a job; None: it has none."""
        mine = self.processes[job]
        others = [other for other, one in self.processes.items() if one.place == mine.place and other != job]
        assert len(others) <= 1
        return others[0] if others else None

    def speed(self, job: int) -> float:
        """Speed of a job now; 1: its speed without co-tenants."""
        other = self.beside(job)
        if other is None:
            return 1.0
        return self._speeds[self.processes[job].workload, self.processes[other].workload]

    def pass_time(self, least_s: float = LEAST_STEP_S) -> None:
        """Let time pass until a job has done its work, but for at least `least_s`."""
        speeds = {job: self.speed(job) for job in self.processes}
        step_s = max(min(self.processes[job].left_s / speed for job, speed in speeds.items()), least_s)
        self._clock.advance(step_s)
        self.now_s += step_s
        for job, one in self.processes.items():
            one.work(math.ceil(min(one.left_s, step_s * speeds[job])))
            one.left_s -= step_s * speeds[job]
        for one in self.processes.values():
            one.has_worked()

    def end(self, client: Client) -> None:
        """Let the processes end that have done their work, and wait until the broker knows."""
        ended = [job for job, one in self.processes.items() if one.left_s <= 1e-6]
        for job in ended:
            self.processes.pop(job).stream.close()
        until(lambda: all(client.job(job).state in FINISHED for job in ended), "they have ended")
        assert {client.job(job).state for job in ended} <= {"completed"}

    def close(self) -> None:
        """Hang up."""
        for one in self.processes.values():
            one.stream.close()
        self._door.close()


def predicted_speeds() -> dict[tuple[str, str], float]:
    """Speed of each workload next to each other one, as the models predict."""
    catalogue = load_catalogue()
    models, number = catalogue.arrays([GPU_TYPE]), catalogue.number
    return {
        (mine, theirs): float(shared_speed(models, 0, number(mine), np.array([number(theirs)]), 1))
        for mine in WORKLOADS
        for theirs in WORKLOADS
    }


def drawn_jobs() -> list[tuple[str, int, float]]:
    """Workload, GPUs, and seconds of work of each job."""
    rng = random.Random(SEED)
    return [
        (rng.choice((LIGHT, LIGHT, MIDDLE, HEAVY)), rng.choice((1, 1, 1, 2)), rng.uniform(2_000.0, 6_000.0))
        for _ in range(JOBS)
    ]


def predicted_span_s(policies: dict[str, str | Path]) -> dict[str, float]:
    """Time from the submission of all jobs to the last end under each policy, in the simulator."""
    jobs = drawn_jobs()
    trace = Trace.from_columns(
        name="sixty",
        submit_s=[0.0] * JOBS,
        duration_s=[work_s for _, _, work_s in jobs],
        num_gpus=[num_gpus for _, num_gpus, _ in jobs],
    )
    trace = replace(trace, extra={"workload": np.array([workload for workload, _, _ in jobs])})
    cluster = ClusterSpec(name="two", nodes=(NodeGroup(gpus=4, count=2, gpu_type=GPU_TYPE),))
    runs = rs.simulate(trace, cluster, policies, models=rs.Models(noise=False, learning=False))
    return {name: float(np.max(run.jobs.end_s)) for name, run in runs.items()}


def live_span_s(
    directory: Path, policy: str | Path, options: tuple[str, ...], speeds: dict[tuple[str, str], float]
) -> tuple[float, int]:
    """The same time on a live cluster, and the number of co-tenants that were slower than promised.

    `rlsched why` of each of these must show it.
    """
    directory.mkdir()
    predicted, slow = predicted_speeds(), set[int]()
    clock = MovedClock(directory / "clock")
    device = Device(clock, speeds)
    truth = "".join(
        f'[[pair]]\nworkload = "{mine}"\npartner = "{theirs}"\nspeed = {speed}\n'
        for (mine, theirs), speed in speeds.items()
    )
    (directory / "truth.toml").write_text(truth)
    cluster = Cluster(
        directory,
        broker_options=(
            *("--policy", str(policy), "--lease-s", str(LEASE_S), "--prediction", "running-mean"),
            *("--decision-budget-ms", "60000", "--forecaster", "none", *options),
        ),
        node_options=("--gpu-type", GPU_TYPE, "--simulated-truth", str(directory / "truth.toml")),
        clock=clock,
    )
    try:
        with cluster.client(60.0) as client:
            all_up(client, 2)
            measured = [device.submit(client, workload, 1, SOLO_S) for workload in WORKLOADS]
            assert not device.settle(client)
            device.pass_time(SOLO_S)
            since_s = time.time() + clock.moved_s
            until(
                lambda: all(has_been_measured(client, job, since_s) for job in measured), "each was measured"
            )
            device.end(client)

            began_s = device.now_s
            for workload, num_gpus, work_s in drawn_jobs():
                device.submit(client, workload, num_gpus, work_s)
            while device.settle(client) or device.processes:
                device.pass_time()
                for job in device.processes:
                    other, speed = device.beside(job), device.speed(job)
                    if other is None:
                        continue
                    pair = device.processes[job].workload, device.processes[other].workload
                    assert f"predicted to run at {predicted[pair]:.2f} of its unshared speed" in why(
                        client, job
                    )
                    if speed < Share().min_speed:
                        slow.add(job)
                        shown = partial(is_shown_slow, client, job, speed)
                        until(shown, f"`why` shows that job {job} runs at {speed:.2f}")
                device.end(client)
            assert {job.state for job in client.jobs(finished=True)} == {"completed"}
            return device.now_s - began_s, len(slow)
    finally:
        device.close()
        cluster.close()


def why(client: Client, job: int) -> str:
    """Text of `rlsched why`."""
    return str(client.why(job))


def is_shown_slow(client: Client, job: int, speed: float) -> bool:
    """Whether `rlsched why` shows that a job runs at about this speed, and that this is too slow.

    A report of the node covers up to 10 s next to earlier co-tenants.
    """
    shown = why(client, job)
    seen = re.search(r"; seen (\d\.\d\d) for ", shown)
    is_right = seen is not None and abs(float(seen[1]) - speed) <= 0.05
    return is_right and "slower than predicted, or than the policy permits" in shown


def has_been_measured(client: Client, job: int, since_s: float) -> bool:
    """Whether the node has reported the use of a job since this time, Unix seconds."""
    usage = client.job(job).usage
    return usage is not None and (usage.at_s or 0.0) >= since_s


def test_sharing_raises_throughput_as_predicted_and_slow_jobs_are_shown(tmp_path: Path) -> None:
    policy = tmp_path / "sharing.toml"
    policy.write_text('base = "fifo-backfill"\n[share]\nwhen = "blocked"\n')
    predicted = predicted_span_s({"whole": "fifo-backfill", "shared": policy})
    gain = predicted["whole"] / predicted["shared"]
    assert gain > 1.2, "sharing is worth it by the models"

    speeds = {pair: speed * SLOWER.get(pair, 1.0) for pair, speed in predicted_speeds().items()}
    speeds = {pair: round(min(speed, 1.0), 6) for pair, speed in speeds.items()}
    whole_s, _ = live_span_s(tmp_path / "whole", "fifo-backfill", (), speeds)
    shared_s, slow = live_span_s(tmp_path / "shared", policy, ("--share", "--no-learning"), speeds)
    assert whole_s == pytest.approx(predicted["whole"], rel=0.1)
    assert whole_s / shared_s == pytest.approx(gain, rel=0.1)
    assert slow > 0, "some job was slower than promised"
