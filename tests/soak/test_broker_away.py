"""Downtime of a broker: every job ends by itself, with its own exit code."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import pytest

from rlsched.broker.base.entries import AttemptOver, RankEnded
from rlsched.broker.journal.reading import read_journal
from rlsched.client.submission_types import JobAsked
from rlsched.wire.messages import JobInfo
from tests.support.moved_clock import MovedClock, needs_moved_clock
from tests.support.online.cluster import DEADLINE_S, Cluster, all_up, until

pytestmark = pytest.mark.slow
OPTIONS = ("--lease-s", "2", "--policy", "fifo-backfill", "--prediction", "running-mean")


def test_jobs_survive_their_broker(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, broker_options=OPTIONS)
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    script = f"echo $RLSCHED_JOB.$RLSCHED_ATTEMPT >> {ran}; until [ -e {gate} ]; do sleep 0.05; done; exit $0"
    codes = [0, 3, 0, 17, 1, 0, 99]
    try:
        with cluster.client() as client:
            all_up(client)
            jobs = [client.submit(["sh", "-c", script, str(code)]) for code in codes]
            timed = client.submit(["sh", "-c", script, "0"], lost_after_s=6.0)
            until(lambda: all(job.state == "running" for job in client.jobs()), "all run")
            cluster.kill("broker")
            until(
                lambda: "fenced" in cluster.log("n0") + cluster.log("n1"),
                "the job with --lost-after has been fenced",
            )
            gate.touch()
            cluster.start("broker")
            infos = [client.wait(job) for job in jobs]
            assert [(info.exit_code, info.attempt) for info in infos] == [(code, 1) for code in codes]
            assert client.wait(timed).attempt == 2, "it was requeued, as requested at submission"
        starts = sorted(ran.read_text().split())
        assert starts == sorted([*(f"{job}.1" for job in jobs), f"{timed}.1", f"{timed}.2"])
    finally:
        cluster.close()


MINUTE_S, HOUR_S = 60.0, 3600.0
SLACK_S = 5 * MINUTE_S
"""Time that the test itself may take, seconds; less than between two of its minutes."""
NODES, GANG_NODES = {"n0": "A100", "n1": "H100"}, {"g0": "V100", "g1": "V100"}
"""GPU types by node: of nodes with a job of each kind, and of nodes that the gang fills."""
GPUS = 8
"""GPUs of each node."""
DAEMON_AWAY = ("n1", "g1")
"""Nodes whose daemon is killed in minute 10 and started again in minute 30."""
BACK = 60
"""The minute in which the broker restarts."""


@dataclass(frozen=True)
class Kind:
    """A kind of job; each of `NODES` runs one.

    Attributes:
        minute: When its script may end, minutes after the kill of the broker; `BACK`: after the restart.
        code: The exit code of its script.
        end: Exit code, reason and minute of the end of its first attempt.
        asked: Options of `submit`.
    """

    minute: int
    code: int
    end: tuple[int, str, int]
    asked: JobAsked = field(default_factory=lambda: JobAsked())


KINDS = {
    "before": Kind(0, 9, (9, "", 0)),
    "early": Kind(10, 3, (3, "", 10)),
    "without daemon": Kind(30, 0, (0, "", 30)),
    "through": Kind(BACK, 17, (17, "", BACK)),
    "limit passes": Kind(BACK, 1, (124, "time_limit", 30), {"time_limit_s": 20 * MINUTE_S}),
    "limit holds": Kind(BACK, 5, (5, "", BACK), {"time_limit_s": 2 * HOUR_S}),
    "lost": Kind(BACK, 6, (143, "fenced", 30), {"lost_after_s": 15 * MINUTE_S}),
    "not lost": Kind(BACK, 7, (7, "", BACK), {"lost_after_s": 2 * HOUR_S}),
}
GANG = {0: 30, 1: BACK}
"""End of each rank of the gang, minutes."""


class MovedCluster(Cluster):
    """Broker, nodes, shims and verbs with a clock that the test moves."""

    def __init__(self, directory: Path, clock: MovedClock) -> None:
        self._types = NODES | GANG_NODES
        options = ("--gpus", str(GPUS))
        super().__init__(
            directory, nodes=list(self._types), broker_options=OPTIONS, node_options=options, clock=clock
        )

    def command(self, name: str, *args: str) -> list[str]:
        own = ("--gpu-type", self._types[name]) if name in self._types else ()
        return super().command(name, *args, *own)

    def history(self) -> dict[int, Any]:
        """Output of `rlsched history --json`, by job."""
        words = ("history", "--json", "--broker", self.address, "--keys", str(self.keys))
        said = subprocess.run(self.command("", *words), capture_output=True, check=True, timeout=DEADLINE_S)
        return {row["job"]: row for row in json.loads(said.stdout)}

    def have_ended(self, jobs: Iterable[int], rank: int = 0) -> bool:
        """Whether shims have recorded the end of the first attempt of all these jobs."""
        return all(any(self.directory.glob(f"*/records/*/{job}.1.{rank}/exit")) for job in jobs)


class Gates:
    """Files that stay locked until the jobs of a minute may end."""

    def __init__(self, directory: Path, minutes: Iterable[int]) -> None:
        directory.mkdir()
        self.directory, self._held = directory, dict[int, int]()
        for minute in minutes:
            self._held[minute] = os.open(directory / str(minute), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(self._held[minute], fcntl.LOCK_EX)

    def open(self, minute: int) -> None:
        os.close(self._held.pop(minute))

    def close(self) -> None:
        for minute in list(self._held):
            self.open(minute)


@dataclass
class Hour:
    """An hour without a broker, and the state after it.

    Attributes:
        jobs: Jobs of `KINDS`, by kind and node.
        gang: The job on `GANG_NODES`.
        begins: A job whose `--begin` lies within the hour.
        back: Jobs as reported by the restarted broker, before the still running jobs may end.
        infos: Jobs at the end.
        ran: Number of starts of each JOB.ATTEMPT.RANK.
        history: Output of `rlsched history --json` at the end, by job.
        ends: Entries of the journal by (job, attempt, rank).
        overs: Entries of the journal by (job, attempt).
    """

    jobs: dict[tuple[str, str], int]
    gang: int
    begins: int
    back: dict[int, JobInfo]
    infos: dict[int, JobInfo]
    ran: Counter[str]
    history: dict[int, Any]
    ends: dict[tuple[int, int, int], list[RankEnded]]
    overs: dict[tuple[int, int], list[AttemptOver]]

    def of(self, *kinds: str) -> list[int]:
        """The jobs of these kinds."""
        return [self.jobs[kind, node] for kind in kinds for node in NODES]


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hour]:
    directory = tmp_path_factory.mktemp("hour")
    clock, ran = MovedClock(directory / "clock"), directory / "ran"
    gates = Gates(directory / "gates", {kind.minute for kind in KINDS.values()} | set(GANG.values()))
    script = (
        f"echo $RLSCHED_JOB.$RLSCHED_ATTEMPT.$RLSCHED_RANK >> {ran}; "
        f'exec flock --shared {gates.directory}/$1 sh -c "exit $0"'
    )
    ranks = " ".join(f"{rank}) set {minute};;" for rank, minute in GANG.items())
    cluster = MovedCluster(directory, clock)
    try:
        with cluster.client() as client:

            def submit(name: str, code: int, minute: int, **asked: Unpack[JobAsked]) -> int:
                return client.submit(["sh", "-c", script, str(code), str(minute)], name=name, **asked)

            def of(*kinds: str) -> list[int]:
                return [jobs[kind, node] for kind in kinds for node in NODES]

            def running() -> set[int]:
                return {job.job for job in client.jobs() if job.state == "running"}

            all_up(client, len(NODES | GANG_NODES))
            jobs = {
                (name, node): submit(name, kind.code, kind.minute, gpu_types=[gpu_type], **kind.asked)
                for name, kind in KINDS.items()
                for node, gpu_type in NODES.items()
            }
            by_rank = f"case $RLSCHED_RANK in {ranks} esac; {script}"
            gang = client.submit(["sh", "-c", by_rank, "0"], num_gpus=2 * GPUS, gpu_types=["V100"])
            until(lambda: running() == {*jobs.values(), gang}, "all run")
            until(lambda: len(ran.read_text().split()) == len(jobs) + len(GANG), "all have begun")
            begins = submit("begins", 0, BACK, begin_s=time.time() + clock.moved_s + HOUR_S / 2)
            gates.open(0)
            until(lambda: running() == {*jobs.values(), gang} - {*of("before")}, "some have ended")
            cluster.kill("broker")

            clock.advance(10 * MINUTE_S)
            gates.open(10)
            until(lambda: cluster.have_ended(of("early")), "jobs have ended")
            for name in DAEMON_AWAY:
                cluster.kill(name)
            clock.advance(20 * MINUTE_S)
            gates.open(30)
            ending = of("without daemon", "limit passes", "lost")
            until(lambda: cluster.have_ended([*ending, gang]), "jobs have ended")
            for name in DAEMON_AWAY:
                cluster.start(name)
            until(
                lambda: all(cluster.log(name).count(" jobs adopted") == 2 for name in DAEMON_AWAY),
                "their daemons have restarted",
            )
            clock.advance(30 * MINUTE_S)

            cluster.start("broker")
            all_up(client, len(NODES | GANG_NODES))
            going_on = {gang, begins, *of("through", "limit holds", "lost", "not lost")}
            until(lambda: running() == going_on, "it knows ended and running jobs")
            everything = [*jobs.values(), gang, begins]
            back = {job: client.job(job) for job in everything}
            gates.close()
            infos = {job: client.wait(job) for job in everything}
            history = cluster.history()
        ends, overs = defaultdict(list), defaultdict(list)
        for row in read_journal(cluster.journal):
            if isinstance(row.entry, RankEnded):
                ends[row.entry.job, row.entry.attempt, row.entry.rank].append(row.entry)
            elif isinstance(row.entry, AttemptOver):
                overs[row.entry.job, row.entry.attempt].append(row.entry)
        begun = Counter(ran.read_text().split())
        yield Hour(jobs, gang, begins, back, infos, begun, history, dict(ends), dict(overs))
    finally:
        gates.close()
        cluster.close()


def took(seconds: float | None, minute: int) -> bool:
    """Whether a duration is this number of minutes, plus the test's own time."""
    return seconds is not None and 0.0 <= seconds - minute * MINUTE_S < SLACK_S


@needs_moved_clock
@pytest.mark.parametrize("kind", KINDS)
def test_job_ends_by_itself_within_the_hour_or_after_it(hour: Hour, kind: str) -> None:
    code, reason, minute = KINDS[kind].end
    for job in hour.of(kind):
        (end,) = hour.ends[job, 1, 0]
        assert (end.exit_code, end.reason) == (code, reason)
        assert took(end.ran_s, minute), end
        assert (hour.back[job].exit_code == code) == (minute < BACK and kind != "lost")


@needs_moved_clock
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"lost"}))
def test_job_ends_with_its_first_attempt(hour: Hour, kind: str) -> None:
    code, reason, minute = KINDS[kind].end
    for job in hour.of(kind):
        (over,), info, row = hour.overs[job, 1], hour.infos[job], hour.history[job]
        assert (over.exit_code, info.exit_code, row["exit_code"]) == (code, code, code)
        assert {over.outcome, info.state, row["state"]} == {"failed" if code else "completed"}
        assert (info.attempt, row["attempts"]) == (1, 1)
        assert ("time limit of 1200 s" in row["reason"]) == (reason == "time_limit")
        assert took(row["end_s"] - row["start_s"], minute), row
        assert took(row["gpu_s"], minute), row


@needs_moved_clock
def test_job_with_lost_after_is_requeued_as_submitted(hour: Hour) -> None:
    for job in hour.of("lost"):
        (first,), (second,), row = hour.overs[job, 1], hour.overs[job, 2], hour.history[job]
        assert (first.outcome, first.exit_code) == ("queued", None)
        assert "no answer from a broker for its --lost-after" in first.reason
        assert (second.outcome, second.exit_code) == ("failed", KINDS["lost"].code)
        assert (row["exit_code"], row["attempts"]) == (KINDS["lost"].code, 2)
        assert took(row["gpu_s"], 30), "its second attempt is as short as the test"


@needs_moved_clock
def test_ranks_of_a_gang_end_separately(hour: Hour) -> None:
    for rank, minute in GANG.items():
        (end,) = hour.ends[hour.gang, 1, rank]
        assert (end.exit_code, end.reason) == (0, "")
        assert took(end.ran_s, minute), end
    assert sorted(hour.infos[hour.gang].nodes) == sorted(GANG_NODES)
    assert hour.back[hour.gang].state == "running"
    assert (hour.infos[hour.gang].state, hour.history[hour.gang]["attempts"]) == ("completed", 1)
    assert took(hour.history[hour.gang]["gpu_s"] / (2 * GPUS), BACK)


@needs_moved_clock
def test_job_with_a_begin_time_within_the_hour_starts_when_the_broker_restarts(hour: Hour) -> None:
    row = hour.history[hour.begins]
    assert took(row["start_s"] - row["submit_s"], BACK), row
    assert (row["state"], row["attempts"]) == ("completed", 1)


@needs_moved_clock
def test_no_attempt_starts_or_ends_twice(hour: Hour) -> None:
    ranks = {(job, 1, 0) for job in [*hour.jobs.values(), hour.begins]}
    ranks |= {(job, 2, 0) for job in hour.of("lost")} | {(hour.gang, 1, rank) for rank in GANG}
    assert hour.ran == Counter(".".join(map(str, rank)) for rank in ranks)
    assert {rank: len(found) for rank, found in hour.ends.items()} == dict.fromkeys(ranks, 1)
    assert {of: len(found) for of, found in hour.overs.items()} == dict.fromkeys({r[:2] for r in ranks}, 1)
    assert set(hour.history) == {rank[0] for rank in ranks}
