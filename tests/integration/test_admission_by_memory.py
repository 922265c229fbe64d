"""Jobs are placed by the GPU memory that NVML reports free: a broker, and a node on the fake NVML.

Memory is in use by processes that the driver lists, of jobs and of others. The test moves the clock of broker
and node, so that two reports of the meter need no waiting.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rlsched.broker.base.entries import (
    AttemptEnding,
    GpuMemoryLimited,
    GpuMemorySeen,
    JoinsLimited,
    RankEnded,
)
from rlsched.broker.journal.reading import read_journal
from rlsched.cli.main import run
from rlsched.client.client import Client
from rlsched.errors import InputError
from tests.support.moved_clock import MovedClock, needs_moved_clock
from tests.support.online.cluster import Cluster, all_up, until
from tests.support.online.fake_nvml import LIST_ITSELF, FakeNvml, needs_gcc

pytestmark = [pytest.mark.slow, needs_gcc, needs_moved_clock]
TOTAL_MIB: Final = 16_000
COMMAND: Final = f'{LIST_ITSELF}; until [ -e "$GATE" ]; do sleep 0.05; done'
PERCENT: Final = 25
WINDOW_S: Final = 10.0


class TwoGpus(Cluster):
    """A broker whose jobs may share GPUs, and a node with two GPUs of the fake NVML."""

    gpu_options = ("--gpu-type", "H100", "--no-gpm", "--min-free-mib", "0")

    def __init__(self, directory: Path) -> None:
        self.nvml, self.moved = FakeNvml(directory, memory_mib=TOTAL_MIB), MovedClock(directory / "clock")
        self._jobs: dict[str, int] = {}
        usual = ("--prediction", "running-mean", "--forecaster", "none", "--decision-budget-ms", "60000")
        super().__init__(
            directory,
            nodes=("n0",),
            broker_options=("--policy", "pack", "--share", "--lease-s", "1e6", *usual),
            clock=self.moved,
        )

    def command(self, name: str, *args: str) -> list[str]:
        return self.nvml.command(super().command(name, *args))

    def submit(self, client: Client, gate: str, *, asks_mib: int, uses_mib: int, **facts: Any) -> int:
        """A job that holds memory on its GPU until its gate opens; for the gate `g`, a file `g`."""
        env = {"GATE": str(self.directory / gate), **self.nvml.of_job(uses_mib, PERCENT)}
        command = ["sh", "-c", COMMAND, gate]
        self._jobs[gate] = client.submit(command, env=env, gpu_memory_mib=asks_mib, **facts)
        return self._jobs[gate]

    def begin(self, client: Client, gate: str, *, uses_mib: int, **facts: Any) -> int:
        """Submit a job, and wait until it holds its memory."""
        job = self.submit(client, gate, uses_mib=uses_mib, **facts)
        held = f" {uses_mib} {PERCENT}\n"
        until(lambda: held in self.nvml.processes.read_text(), f"job {job} holds its memory")
        return job

    def end_one(self, client: Client, gate: str) -> None:
        """Open a gate, and wait until its job has ended."""
        (self.directory / gate).touch()
        until(lambda: client.job(self._jobs[gate]).state == "completed", f"the job of {gate} has ended")

    def end(self, client: Client, *gates: str) -> None:
        """Open gates, and wait until no job is left."""
        for gate in gates:
            (self.directory / gate).touch()
        until(lambda: not client.jobs(), "all jobs have ended")
        assert [client.job(self._jobs[gate]).state for gate in gates] == ["completed"] * len(gates)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoGpus]:
    made = TwoGpus(tmp_path_factory.mktemp("memory"))
    yield made
    made.close()


@pytest.fixture
def client(cluster: TwoGpus) -> Iterator[Client]:
    """A client; all GPUs are in service, and unused."""
    with cluster.client(60.0) as client:
        all_up(client, 1)
        until(lambda: not client.stats().gpus_out, "all GPUs are in service")
        for gate in cluster.directory.glob("gate-*"):
            gate.unlink()
        yield client
        for path in (cluster.nvml.processes, cluster.nvml.graphics):
            path.write_text("")
        for job in client.jobs():
            client.cancel(job.job)
        until(lambda: not client.jobs(), "all jobs have ended")


@pytest.fixture
def foreign() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def notes(client: Client) -> list[str]:
    """The node's notes about the memory of its GPUs."""
    return [note for node in client.nodes() for note in node.notes if "free for jobs" in note]


def runs_on(client: Client, job: int, gpu: int) -> Callable[[], bool]:
    """Whether a job runs on this GPU."""
    return lambda: client.job(job).state == "running" and client.job(job).gpus == [[gpu]]


def test_process_of_others_keeps_jobs_off_its_gpu(cluster: TwoGpus, client: Client, foreign: int) -> None:
    cluster.nvml.processes.write_text(f"0 {foreign} 9000\n")
    until(lambda: client.stats().gpus_out == 1, "the GPU is out of service")
    one = cluster.begin(client, "gate-1", asks_mib=8000, uses_mib=8001)
    two = cluster.submit(client, "gate-2", asks_mib=8000, uses_mib=8002)
    assert runs_on(client, one, 1)()
    reason = f"node n0, GPU 0: in use by process {foreign} (python"
    until(lambda: reason in str(client.why(two)), "the second job waits with its reason")
    assert "9000 MiB), not started by rlsched" in str(client.why(two))
    lines = cluster.nvml.processes.read_text().splitlines(keepends=True)
    cluster.nvml.processes.write_text("".join(lines[1:]))
    until(runs_on(client, two, 0), "it has the GPU after the process has left")
    assert [client.job(job).attempt for job in (one, two)] == [1, 1]
    cluster.end(client, "gate-1", "gate-2")


def test_memory_of_the_display_sends_a_job_to_another_gpu(
    cluster: TwoGpus, client: Client, foreign: int
) -> None:
    """A graphics process is no foreign one. Its GPU stays in service for jobs that fit together with it."""
    cluster.nvml.graphics.write_text(f"0 {foreign} 9000\n")
    until(lambda: notes(client) == ["GPU 0: 6.5 GiB free for jobs"], "the node reports the memory")
    small = cluster.begin(client, "gate-1", asks_mib=6000, uses_mib=6001)
    assert runs_on(client, small, 0)()
    cluster.end(client, "gate-1")
    one = cluster.begin(client, "gate-2", asks_mib=8000, uses_mib=8003)
    assert runs_on(client, one, 1)()
    two = cluster.submit(client, "gate-3", asks_mib=8000, uses_mib=8004)
    needs = "needs 8000 MiB free on each GPU, and free GPUs have less: node n0, GPU 0: 6750 MiB"
    assert client.job(two).reason == f"Resources: {needs}"
    assert f"it {needs}" in str(client.why(two))
    three = cluster.begin(client, "gate-4", asks_mib=6000, uses_mib=6002)
    assert runs_on(client, three, 0)(), "a job that fits gets the GPU meanwhile"
    cluster.nvml.graphics.write_text("")
    cluster.end_one(client, "gate-4")
    until(runs_on(client, two, 0), "it starts when the memory is free")
    assert [client.job(job).attempt for job in (one, two)] == [1, 1], "no node has refused them"
    with pytest.raises(InputError, match=r"15\.6 GiB"):
        cluster.submit(client, "never", asks_mib=TOTAL_MIB + 1, uses_mib=0)
    cluster.end(client, "gate-2", "gate-3")


def test_job_that_needs_more_than_is_ever_free_is_refused_once_by_each_gpu(
    cluster: TwoGpus, client: Client
) -> None:
    """250 MiB of each GPU are always in use: too little for a report before the first refusal."""
    wanted = cluster.submit(client, "gate-1", asks_mib=TOTAL_MIB - 249, uses_mib=0)
    needs = (
        "needs 15751 MiB free on each GPU, and free GPUs have less: "
        "node n0, GPU 0: 15750 MiB; node n0, GPU 1: 15750 MiB"
    )
    until(lambda: needs in client.job(wanted).reason, "both GPUs have refused the job")
    assert "GPU 1 has 15750 of 16000 MiB free, and the job asks for 15751" in str(client.why(wanted))
    assert [node.state for node in client.nodes()] == ["up"], "the node gets further jobs"
    reports = facts(cluster, GpuMemoryLimited)
    for gate in ("gate-2", "gate-3"):
        cluster.begin(client, gate, asks_mib=TOTAL_MIB - 250, uses_mib=8006)
        cluster.end_one(client, gate)
    cluster.moved.advance(120.0)
    assert (client.job(wanted).state, client.job(wanted).attempt) == ("queued", 2)
    refusals = [end.charged for end in facts(cluster, AttemptEnding) if end.job == wanted]
    assert refusals == [False, False], "a refusal counts as no retry"
    assert facts(cluster, GpuMemoryLimited) == reports, "unchanged memory is not reported again"


def test_memory_of_a_job_beyond_its_request_is_counted_from_nvml_to_the_journal(
    cluster: TwoGpus, client: Client, foreign: int, capfd: pytest.CaptureFixture[str]
) -> None:
    shares: dict[str, Any] = {"workload": "a2c-b64", "share": "yes"}
    holder = cluster.begin(client, "gate-1", asks_mib=1000, uses_mib=9000, **shares)
    assert runs_on(client, holder, 0)()
    alone = cluster.begin(client, "gate-0", asks_mib=1000, uses_mib=1001, share="no")
    assert runs_on(client, alone, 1)()
    # before the meter reports: the broker expects room next to the holder, and the node finds none
    refused = cluster.submit(client, "gate-2", asks_mib=8000, uses_mib=8005, **shares)
    why_not = (
        "refused to start it on shared GPUs: GPU 0 has 6750 of 16000 MiB free, and the job asks for 8000"
    )
    until(lambda: why_not in str(client.why(refused)), "the node refuses the job")
    assert client.job(refused).state == "queued"
    assert facts(cluster, JoinsLimited) == [JoinsLimited(name="n0", most_mib={0: 7999})], "not again at once"
    (cluster.directory / "gate-0").touch()
    until(runs_on(client, refused, 1), "it has a GPU of its own")

    def is_counted() -> bool:
        cluster.moved.advance(WINDOW_S)
        return any(one.job == holder for one in facts(cluster, GpuMemorySeen))

    until(is_counted, "the broker counts the memory in use")
    seen = next(one for one in facts(cluster, GpuMemorySeen) if one.job == holder)
    assert seen == GpuMemorySeen(job=holder, gpu_memory_mib=9216), "rounded up to a multiple of 256 MiB"
    place = ("--broker", cluster.address, "--keys", str(cluster.keys))
    capfd.readouterr()
    assert run(["queue", "--json", *place]) == 0
    usage = next(row["usage"] for row in json.loads(capfd.readouterr().out) if row["job"] == holder)
    assert (usage["gpu_memory_mib"], usage["gpu_frac"]) == (9000, PERCENT / 100)
    waits = cluster.submit(client, "gate-3", asks_mib=7000, uses_mib=7005, **shares)
    until(lambda: "its plans now" in str(client.why(waits)), "it was considered")
    assert (client.job(waits).state, client.job(waits).attempt) == ("queued", 0), "no room next to others"

    # a process of others on the holder's GPU: no further job starts there, and the holder continues
    with cluster.nvml.processes.open("a") as file:
        file.write(f"0 {foreign} 100\n")
    beside = cluster.submit(client, "gate-4", asks_mib=1000, uses_mib=1005, **shares)
    refusal = f"n0 refused to start rank 0: GPU 0 is in use by process {foreign}"
    until(lambda: refusal in str(client.why(beside)), "the node refuses the job")
    until(runs_on(client, beside, 1), "it shares another GPU")
    assert facts(cluster, JoinsLimited)[1:] == [JoinsLimited(name="n0", most_mib={0: -1})]
    assert (client.job(holder).attempt, client.job(beside).attempt) == (1, 2)
    cluster.end(client, "gate-1", "gate-2", "gate-3", "gate-4")
    ended = next(one for one in facts(cluster, RankEnded) if one.job == holder)
    assert ended.usage is not None
    assert ended.usage.gpu_memory_mib == 9000


def facts(cluster: TwoGpus, kind: type[Any]) -> list[Any]:
    """Facts of a kind in the journal."""
    rows = read_journal(cluster.journal)
    return [row.entry for row in rows if isinstance(row.entry, kind)]
