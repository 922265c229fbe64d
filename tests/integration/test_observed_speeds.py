"""Speeds that a broker and a node observe on GPUs that differ from the catalogue: shared GPUs, and clocks.

Jobs are real processes. The readings of simulated GPUs follow `--simulated-truth`. The readings of the fake
NVML, which the node gets through NVIDIA's Python bindings, follow the processes that the jobs list there. The
test moves the clock of broker and node, so nothing depends on the speed of the machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from rlsched.broker.base.entries import JobUnshared, PairSeen
from rlsched.broker.base.profiles import signature_of
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events
from rlsched.broker.nodes.slow_sharing import WATCH_S
from rlsched.client.client import Client
from rlsched.models.at_clock import relative_time
from rlsched.models.gpu_types import GPU_FIGURES
from rlsched.models.power import power_at_clock
from rlsched.wire.states import FINISHED
from tests.support.broker.preempting import replayed
from tests.support.moved_clock import MovedClock, needs_moved_clock
from tests.support.online.cluster import Cluster, all_up, until
from tests.support.online.fake_nvml import LIST_ITSELF, FakeNvml, needs_gcc

pytestmark = [pytest.mark.slow, needs_moved_clock]

GPU_TYPE: Final = "H100"
SLOWED, NEIGHBOUR = "a2c-b64", "vit-tiny"
SPEED: Final = 0.35
"""True speed of `SLOWED` next to `NEIGHBOUR`; by the catalogue they share well."""
PAIR: Final = f"""\
[workload."{SLOWED}"]
util_frac = 0.5
[[pair]]
workload = "{SLOWED}"
partner = "{NEIGHBOUR}"
speed = {SPEED}
[[pair]]
workload = "{NEIGHBOUR}"
partner = "{SLOWED}"
speed = 0.95
"""
UTIL_FRAC, CLOCK_BOUND, DYNAMIC_W = 0.557, 0.8, 200.0
CLOCKS: Final = f"""\
[workload.""]
util_frac = {UTIL_FRAC}
clock_bound = {CLOCK_BOUND}
dynamic_w = {DYNAMIC_W}
"""
"""Figures of jobs without a workload. Other workloads with this GPU time depend less on the clock."""
COMMAND: Final = 'until [ -e "$GATE" ]; do sleep 0.05; done'
SOLO_S: Final = 60.0
PERCENT: Final = {"solo": 60, "other": 30, "slowed": 21}
"""Part of the GPU's time of each job on the fake NVML, by gate, percent: the speed of `slowed` is `SPEED`."""
MEMORY_MIB: Final = {"solo": 3000, "other": 2000, "slowed": 3000}
"""GPU memory of these jobs, MiB."""
F = TypeVar("F")


class OneGpu(Cluster):
    """A broker, and a node with one simulated GPU."""

    gpu_options: Sequence[str] = ("--gpus", "1", "--simulated")
    command_of_jobs = COMMAND
    least_w = 20.0
    """Lower bound of the GPU's power, W."""

    def __init__(self, directory: Path, truth: str, *options: str) -> None:
        self.moved, self._gates = MovedClock(directory / "clock"), list[Path]()
        (directory / "truth.toml").write_text(truth)
        usual = ("--prediction", "running-mean", "--decision-budget-ms", "60000", "--forecaster", "none")
        super().__init__(
            directory,
            nodes=("n0",),
            broker_options=(*usual, "--lease-s", "1e6", *options),
            node_options=("--gpu-type", GPU_TYPE, *self.truth_options(directory / "truth.toml")),
            clock=self.moved,
        )

    def truth_options(self, truth: Path) -> tuple[str, ...]:
        """Options of the node for what its readings follow."""
        return ("--simulated-truth", str(truth))

    def environment(self, gate: str) -> dict[str, str]:  # noqa: ARG002 - subclasses look at it
        """Further variables of a job."""
        return {}

    def submit(self, client: Client, gate: str, workload: str = "", **facts: Any) -> int:
        """Submit a job that runs until its gate opens; the command differs by the workload only."""
        self._gates.append(self.directory / gate)
        env = {"GATE": str(self._gates[-1]), **self.environment(gate)}
        command = ["sh", "-c", self.command_of_jobs, workload]
        return client.submit(command, env=env, workload=workload, **facts)

    def begin(self, client: Client, gate: str, workload: str = "", **facts: Any) -> int:
        """Submit a job, and wait until it runs."""
        job = self.submit(client, gate, workload, **facts)
        until(lambda: client.job(job).state == "running", f"job {job} runs")
        return job

    def pass_time(self, client: Client, job: int, seconds: float) -> None:
        """Let time pass, until the node has reported the job's use in it.

        The node has to know the job before: the use of an interval counts for the jobs at its beginning. A
        report that was sent before can arrive later, so the energy of this time has to be in the report.
        """
        until(lambda: client.job(job).usage is not None, f"job {job} is measured at its start")
        before = client.job(job).usage
        at_s = time.time() + self.moved.moved_s + seconds
        self.moved.advance(seconds)

        def is_measured() -> bool:
            usage = client.job(job).usage
            if usage is None or before is None or (usage.at_s or 0.0) < at_s:
                return False
            return (usage.energy_j or 0.0) - (before.energy_j or 0.0) >= self.least_w * seconds

        until(is_measured, f"job {job} is measured")

    def end(self, client: Client, job: int, gate: str) -> None:
        """Open a gate, and wait for the end of its job."""
        (self.directory / gate).touch()
        until(lambda: client.job(job).state in FINISHED, f"job {job} has ended")
        assert client.job(job).state == "completed"

    def close(self) -> None:
        """End all processes, and all jobs."""
        for gate in self._gates:
            gate.touch()
        super().close()

    def facts(self, kind: type[F]) -> list[F]:
        """Facts of a kind in the journal."""
        instants = journal_events(self.journal).instants
        return [one for instant in instants for one in instant.changes if isinstance(one, kind)]


class OneNvmlGpu(OneGpu):
    """A node with one GPU of the fake NVML, which lists the processes of the jobs."""

    gpu_options = ("--gpus", "1", "--no-gpm")
    least_w = 0.0
    command_of_jobs = f"{LIST_ITSELF}; {COMMAND}"

    def __init__(self, directory: Path, truth: str, *options: str) -> None:
        self._nvml = FakeNvml(directory, gpus=1, memory_mib=81_559)
        super().__init__(directory, truth, *options)

    def command(self, name: str, *args: str) -> list[str]:
        return self._nvml.command(super().command(name, *args))

    def truth_options(self, truth: Path) -> tuple[str, ...]:  # noqa: ARG002 - the jobs determine the readings
        return ()

    def environment(self, gate: str) -> dict[str, str]:
        return self._nvml.of_job(MEMORY_MIB[gate], PERCENT[gate])


@contextmanager
def running(
    directory: Path, truth: str, *options: str, kind: type[OneGpu] = OneGpu
) -> Iterator[tuple[OneGpu, Client]]:
    cluster = kind(directory, truth, *options)
    try:
        with cluster.client(60.0) as client:
            all_up(client, 1)
            yield cluster, client
    finally:
        cluster.close()


def why(client: Client, job: int) -> str:
    return str(client.why(job))


def found(pattern: str, text: str) -> float:
    """The number in a text, with a group for it."""
    match = re.search(pattern, text)
    assert match is not None, text
    return float(match[1])


@pytest.mark.parametrize(
    ("kind", "on_slow"),
    [
        *(pytest.param(OneNvmlGpu, on_slow, marks=needs_gcc) for on_slow in ("warn", "unshare", "move")),
        *(pytest.param(OneGpu, on_slow, marks=pytest.mark.soak) for on_slow in ("warn", "unshare", "move")),
    ],
)
def test_co_tenant_slower_than_predicted_is_seen_within_a_minute(
    tmp_path: Path, on_slow: str, kind: type[OneGpu]
) -> None:
    options = ("--policy", "pack", "--share", "--on-slow-sharing", on_slow)
    with running(tmp_path, PAIR, *options, kind=kind) as (cluster, client):
        solo = cluster.begin(client, "solo", SLOWED)
        cluster.pass_time(client, solo, SOLO_S)
        cluster.end(client, solo, "solo")
        other = cluster.begin(client, "other", NEIGHBOUR)
        slowed = cluster.begin(client, "slowed", SLOWED, preemptible=True)
        assert client.job(slowed).beside == [str(other)]
        predicted = found(r"predicted to run at (\d\.\d\d) of its", why(client, slowed))
        assert predicted > 0.8, "by the catalogue"

        cluster.moved.advance(10.0)
        until(lambda: client.job(slowed).slow_sharing_s > 0.0, "the first report shows a slow job")
        cluster.moved.advance(50.0)
        begins = f"next to job {other} it ran at "
        until(lambda: begins in cluster.log("broker"), "it is reported within a minute")
        assert seen_speed(cluster.log("broker")) == pytest.approx(SPEED, abs=0.03)
        assert f"{predicted:.2f} was predicted" in cluster.log("broker")
        assert client.job(other).slow_sharing_s == 0.0
        unshared = [(one.job, one.reason.startswith(begins)) for one in cluster.facts(JobUnshared)]
        assert unshared == ([] if on_slow == "warn" else [(slowed, True)])
        {"warn": learns, "unshare": starts_alone, "move": is_moved}[on_slow](cluster, client, slowed, other)


def seen_speed(text: str) -> float:
    """The speed in the report of a slow job."""
    return found(r"it ran at (\d\.\d\d) of its unshared speed for", text)


def learns(cluster: OneGpu, client: Client, slowed: int, other: int) -> None:
    """Both go on sharing; after the time for which a pair is watched, the prediction changes."""
    assert "slower than predicted, or than the policy permits" in why(client, slowed)
    assert client.stats().slow_sharing == 1
    before = found(r"predicted to run at (\d\.\d\d) of its", why(client, slowed))
    assert not cluster.facts(PairSeen)
    cluster.pass_time(client, slowed, WATCH_S)
    until(lambda: any(one.job == slowed for one in cluster.facts(PairSeen)), "the pair is learnt")
    (pair,) = (one for one in cluster.facts(PairSeen) if one.job == slowed)
    assert (pair.workload, pair.partner, pair.gpu_type) == (SLOWED, NEIGHBOUR, GPU_TYPE)
    assert pair.speed == pytest.approx(SPEED, abs=0.02)
    until(
        lambda: found(r"predicted to run at (\d\.\d\d) of its", why(client, slowed)) < before - 0.05,
        "the prediction of the pair follows",
    )
    assert client.job(slowed).beside == [str(other)]
    cluster.end(client, slowed, "slowed")
    cluster.end(client, other, "other")


def starts_alone(cluster: OneGpu, client: Client, slowed: int, other: int) -> None:
    """The job goes on sharing, but not after its next start."""
    assert (client.job(slowed).state, client.job(slowed).beside) == ("running", [str(other)])
    client.requeue(slowed)
    waits_and_starts_alone(cluster, client, slowed, other)


def is_moved(cluster: OneGpu, client: Client, slowed: int, other: int) -> None:
    """The job is queued again at once, and its speed is learnt, so that the pair is not formed again."""
    (pair,) = cluster.facts(PairSeen)
    assert (pair.job, pair.workload, pair.partner) == (slowed, SLOWED, NEIGHBOUR)
    assert pair.speed == pytest.approx(SPEED, abs=0.02)
    waits_and_starts_alone(cluster, client, slowed, other)


def waits_and_starts_alone(cluster: OneGpu, client: Client, slowed: int, other: int) -> None:
    until(lambda: client.job(slowed).state == "queued", "it is queued again")
    assert f"it shares no GPUs: next to job {other} it ran at " in why(client, slowed)
    assert client.job(other).state == "running"
    cluster.end(client, other, "other")
    until(lambda: client.job(slowed).state == "running", "it runs again")
    again = client.job(slowed)
    assert (again.attempt, again.beside) == (2, [])
    cluster.end(client, slowed, "slowed")


def is_seen_at_its_clock(client: Client, job: int) -> bool:
    """Whether `rlsched why` shows what a job loses and saves at its clock."""
    return "of the energy for its work, seen" in why(client, job)


def test_loss_and_saving_at_a_clock_are_shown_and_the_clock_bound_share_is_learnt(tmp_path: Path) -> None:
    with running(tmp_path, CLOCKS, "--policy", "tuned") as (cluster, client):
        full = cluster.begin(client, "full", speed_energy=0.0)
        for _ in range(2):
            cluster.pass_time(client, full, SOLO_S)
        cluster.end(client, full, "full")
        missed = []
        for number in range(3):
            gate = f"gate{number}"
            job = cluster.begin(client, gate, speed_energy=1.0)
            for _ in range(2):
                cluster.pass_time(client, job, SOLO_S)
            x = client.job(job).sm_clocks_mhz[0] / 1980
            assert 0.5 <= x < 1.0
            slower = relative_time(CLOCK_BOUND, x)
            full_w = GPU_FIGURES[GPU_TYPE]["static_w"].value + DYNAMIC_W
            saved = 1.0 - power_at_clock(GPU_TYPE, DYNAMIC_W, slower, x) * slower / full_w
            until(partial(is_seen_at_its_clock, client, job), "the loss and the saving are shown")
            shown = why(client, job)
            lost = found(r"of its speed, seen (\S+) %", shown)
            assert lost == pytest.approx(100 * (1.0 - 1.0 / slower), abs=1.5)
            assert found(r"of the energy for its work, seen (\S+) %", shown) == pytest.approx(
                100 * saved, abs=3.0
            )
            missed.append(lost - found(r"its clock is predicted to cost (\S+) %", shown))
            cluster.end(client, job, gate)
        user = client.job(full).user
    assert missed[0] > 5.0, "by the catalogue, the clock costs less"
    assert abs(missed[-1]) < missed[0] / 2, "jobs run as a workload with the observed share"
    opened = Journal(cluster.journal)
    learnt = replayed(opened).profiles.figure(
        signature_of(user, ["sh", "-c", COMMAND, ""]), GPU_TYPE, "clock_bound"
    )
    opened.close()
    assert learnt is not None
    assert learnt.count == 3
    assert learnt.value == pytest.approx(CLOCK_BOUND, abs=0.05)
