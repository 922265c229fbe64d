"""Jobs that harm their node on purpose, on a real broker and node daemon, with a job of another user.

With control groups, and without them (the daemon has its own mount namespace without cgroup v2). Each hostile
job is bounded also by itself, so that a failure here does not bring down the machine.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from rlsched.broker.base.entries import NodeAway, NodeDown, NodeDrained, NodeHealth, NodeUp, RankEnded
from rlsched.broker.journal.reading import read_journal
from rlsched.client.client import Client
from rlsched.wire.messages import JobInfo
from tests.soak.jobs import all_pids, kill_9, strays
from tests.support.exited import has_exited
from tests.support.online.cluster import Cluster, all_up, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hostile jobs run as another account"),
]

MIB = 1 << 20
MOST_PROCESSES, MAX_OUTPUT_MIB, MEMORY_MIB = 60, 64, 128
SMALL_MEMORY_MIB = 500
"""Memory of the small machine, for the daemon, its shims and all jobs."""
MOST_GAP_S = 30.0
"""Maximum time between two lines of the neighbour, seconds. It allows for a loaded machine."""
MARK = "HOSTILE_JOB"
COUNTER = """
i=0
until [ -e {stop} ]; do
    i=$((i + 1)); read up rest < /proc/uptime; echo $i $up
    sleep 0.1 || exit 9
done
echo done
"""
"""The neighbour: it forks for each line, so that it fails if it gets no process."""
BOMB = """
$SIG{TERM} = $SIG{HUP} = "IGNORE"; $SIG{CHLD} = "IGNORE"; $end = time + 100;
while (time < $end) { $pid = fork; defined $pid ? $pid || setpgrp(0, 0) : select(undef, undef, undef, 0.1) }
"""
"""Every process forks without end, ignores SIGTERM, and leaves the process group of its parent."""
SHELL_BOMB = "trap '' TERM; b() { b | b & }; b"
"""Its first process exits at once."""
AWAY = "setsid {clean} sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 1; done' & "


def accounts() -> list[str]:
    """Two system accounts without processes: limits of processes count all processes of an account."""
    used = set()
    for pid in all_pids():
        with suppress(FileNotFoundError):
            used.add(Path(f"/proc/{pid}").stat().st_uid)
    free = [one.pw_name for one in pwd.getpwall() if one.pw_uid not in used | {0}]
    return free[-2:]


class HostileCluster(Cluster):
    """A broker and a node whose jobs run as the accounts of their owners: ada's neighbour, and eve's jobs."""

    def __init__(self, directory: Path, before: Sequence[str] = ()) -> None:
        """`before`: words before the command of the node daemon."""
        self._before = before
        found = accounts()
        if len(found) < 2:
            pytest.skip("needs two accounts without processes")
        users = directory / "users.toml"
        users.write_text(f'ada = "{found[0]}"\neve = "{found[1]}"\n')
        limits = ("--max-processes", str(MOST_PROCESSES), "--max-output-mib", str(MAX_OUTPUT_MIB))
        super().__init__(
            directory,
            nodes=("n0",),
            broker_options=("--policy", "fifo-backfill", "--forecaster", "none"),
            node_options=("--run-as-owner", "--users", str(users), *limits),
        )

    def command(self, name: str, *args: str) -> list[str]:
        started = super().command(name, *args)
        return started if name == "broker" else [*self._before, *started]

    def output(self, job: int) -> Path:
        """File with the output of a job that has started."""
        records, name = self.directory / "n0" / "records", f"*/{job}.1.0/output.log"
        until(lambda: list(records.glob(name)), "the node has the job")
        return next(records.glob(name))


class Beside:
    """The neighbour of hostile jobs, and the node's record at the broker."""

    def __init__(self, cluster: HostileCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client
        self.stop = cluster.directory / "stop"
        self.mark, self._marks = "", itertools.count()
        [self.up] = [entry for entry in self.facts() if isinstance(entry, NodeUp)]
        counter = COUNTER.format(stop=self.stop)
        self.job = client.submit(["sh", "-c", counter], user="ada", name="neighbour", cwd="/")
        until(lambda: client.job(self.job).state == "running" and self.lines(), "the neighbour counts")

    def facts(self) -> list[object]:
        return [row.entry for row in read_journal(self.cluster.journal)]

    def lines(self) -> list[tuple[int, float]]:
        """(number, seconds since boot) of the neighbour's lines."""
        text = self.cluster.output(self.job).read_text()
        split = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [(int(line[0]), float(line[1])) for line in split if len(line) == 2]

    def submit(self, *command: str, memory_mib: int = 0, grace_s: float = 1.0) -> int:
        """A hostile job of eve; `mark` marks its processes."""
        self.mark = f"{self.cluster.directory}/{next(self._marks)}/"
        return self.client.submit(
            command,
            user="eve",
            cwd="/",
            num_cpus=4,
            memory_mib=memory_mib,
            grace_s=grace_s,
            env={MARK: self.mark},
        )

    def left(self) -> list[int]:
        return [pid for pid in strays(f"{MARK}={self.mark}") if not has_exited(pid)]

    def was_cancelled(self, job: int, exit_code: int, also: Sequence[int] = ()) -> None:
        """A cancelled job ended, and its rank with this exit code."""
        self.client.cancel(job)
        end = self.ended(job, also)
        assert (end.state, end.reason) == ("cancelled", "cancelled by its user")
        [rank] = [entry for entry in self.facts() if isinstance(entry, RankEnded) and entry.job == job]
        assert (rank.exit_code, rank.reason) == (exit_code, "killed")

    def ended(self, job: int, also: Sequence[int] = ()) -> JobInfo:
        """How a hostile job ended: it ended in its first attempt, and none of its processes is left."""
        found = self.client.wait(job)
        assert self.left() == [], "processes are left when the broker knows the end"
        assert [pid for pid in also if not has_exited(pid)] == []
        assert found.attempt == 1
        return found

    def is_unharmed(self) -> None:
        """The neighbour counts on, the node was up all the time, and all other GPUs and cores are free."""
        last = self.lines()[-1][0]
        until(lambda: self.lines()[-1][0] > last, "the neighbour counts on")
        lines = self.lines()
        assert [number for number, _ in lines] == list(range(1, len(lines) + 1))
        gaps = [after - before for (_, before), (_, after) in itertools.pairwise(lines)]
        assert max(gaps) < MOST_GAP_S
        assert self.client.job(self.job).state == "running"
        [node] = self.client.nodes()
        assert (node.state, node.free_gpus, node.jobs) == ("up", node.gpus - 1, [self.job])
        all_free = self.client.submit(
            ["true"], user="eve", num_gpus=3, num_cpus=self.up.cpus // 3 * 3, cwd="/"
        )
        assert self.client.wait(all_free).state == "completed"
        self.stayed_up()

    def stayed_up(self) -> None:
        kinds = (NodeUp, NodeAway, NodeDown, NodeDrained, NodeHealth)
        about = [entry for entry in self.facts() if isinstance(entry, kinds)]
        assert about == [self.up], "it registered once, and nothing happened to it"
        assert self.cluster.running["n0"].poll() is None
        assert "Traceback" not in self.cluster.log("n0")

    def end(self) -> None:
        """The neighbour ends as usual."""
        self.stop.touch()
        end = self.client.wait(self.job)
        assert (end.state, end.exit_code, end.attempt) == ("completed", 0, 1)
        assert self.cluster.output(self.job).read_text().endswith("done\n")
        [node] = self.client.nodes()
        assert (node.free_gpus, node.jobs) == (node.gpus, [])
        self.stayed_up()


def without_groups() -> Sequence[str]:
    """Words before a command that hide cgroup v2 from it."""
    words = ("unshare", "--mount", "sh", "-c", 'umount -a -t cgroup2 && exec "$@"', "sh")
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace without cgroup v2 can be made here")
    return words


@contextmanager
def small_memory() -> Iterator[Sequence[str]]:
    """Words before a command that run it with little memory, as on a small machine (a group of cgroup v1)."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mine = next((path for _, names, path in own if "memory" in names.split(",")), "")
    group = Path(f"/sys/fs/cgroup/memory{mine}/rlsched-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(SMALL_MEMORY_MIB * MIB))
    except OSError as error:
        pytest.skip(f"no group with the memory controller of cgroup v1 can be made: {error}")
    try:
        yield "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "all processes have ended")
        group.rmdir()


@contextmanager
def running(before: Sequence[str]) -> Iterator[HostileCluster]:
    """A cluster in a directory that other accounts may enter."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        cluster = HostileCluster(directory, before)
        try:
            with cluster.client() as client:
                all_up(client, 1)
            yield cluster
        finally:
            for pid in strays(f"{MARK}={directory}/"):  # of a failed test
                kill_9(pid)
            cluster.close()


@pytest.fixture(scope="module", params=["groups", "processes"])
def cluster(request: pytest.FixtureRequest) -> Iterator[HostileCluster]:
    """With control groups; without them; or `small`: on a machine with little memory."""
    with ExitStack() as stack:
        before: Sequence[str] = ()
        if request.param == "processes":
            before = without_groups()
        elif request.param == "small":
            before = stack.enter_context(small_memory())
        cluster = stack.enter_context(running(before))
        has_groups = "has no control groups" not in cluster.log("n0")
        if request.param == "groups" and not has_groups:
            pytest.skip("no control groups can be made here")
        assert request.param != "processes" or not has_groups
        yield cluster


@pytest.fixture(scope="module")
def beside(cluster: HostileCluster) -> Iterator[Beside]:
    with cluster.client() as client:
        beside = Beside(cluster, client)
        yield beside
        beside.end()


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_fork_bomb_that_ignores_sigterm_ends_when_it_is_cancelled(beside: Beside) -> None:
    job = beside.submit("perl", "-e", BOMB)
    until(lambda: len(beside.left()) >= MOST_PROCESSES - 10, "it has all its processes")
    assert len(beside.left()) <= MOST_PROCESSES
    before = len(beside.lines())
    until(lambda: len(beside.lines()) > before + 10, "the neighbour counts while the bomb runs")
    beside.was_cancelled(job, 137)
    beside.is_unharmed()


def test_fork_bomb_whose_first_process_exits_ends_by_itself(beside: Beside) -> None:
    job = beside.submit("sh", "-c", SHELL_BOMB)
    end = beside.ended(job)
    assert (end.state, end.exit_code) in (("completed", 0), ("failed", 2)), "2: sh could not fork"
    beside.is_unharmed()


@pytest.mark.parametrize("cluster", ["processes"], indirect=True)
def test_ten_gigabytes_of_output_are_bounded_on_disk(beside: Beside) -> None:
    job = beside.submit("sh", "-c", "echo begin; dd if=/dev/zero bs=1M count=10240 status=none")
    most = 0
    until(lambda: beside.client.job(job).state == "running", "it runs")
    path = beside.cluster.output(job)

    def has_ended() -> bool:
        nonlocal most
        most = max(most, path.stat().st_blocks * 512)
        return beside.client.job(job).end_s is not None

    until(has_ended, "10 GB are written", progress=lambda: path.stat().st_size)
    end = beside.ended(job)
    assert (end.state, end.exit_code) == ("completed", 0)
    assert path.stat().st_size >= 10 << 30
    assert path.stat().st_blocks * 512 <= (MAX_OUTPUT_MIB + 1) * MIB
    assert most < 1024 * MIB, "between two checks of the shim"
    assert beside.client.read_log(job).data.startswith(b"begin\n")
    print(f"at most {most / MIB:.0f} MiB on disk, {(end.end_s or 0) - (end.start_s or 0):.1f} s")
    beside.is_unharmed()


def test_job_that_allocates_all_memory_gets_only_its_request(beside: Beside) -> None:
    """`tail` holds the last line of its input, which here has no end."""
    job = beside.submit("tail", "/dev/zero", memory_mib=MEMORY_MIB)
    end = beside.ended(job)
    assert end.state == "failed"
    if "memory" in (beside.up.capabilities.holds_to or ()):
        assert end.exit_code == 137
        assert "out of memory" in end.reason
    else:
        assert end.exit_code == 1
        assert "memory exhausted" in beside.cluster.output(job).read_text()
    beside.is_unharmed()


@pytest.mark.parametrize("cluster", ["small"], indirect=True)
def test_job_that_exhausts_the_memory_of_its_node_is_ended_first(beside: Beside) -> None:
    """It requested no memory. The kernel chooses the process to kill, by its memory and `oom_score_adj`."""
    if "memory" in (beside.up.capabilities.holds_to or ()):
        pytest.skip("the job's own control group limits its memory first")
    job = beside.submit("tail", "/dev/zero")
    end = beside.ended(job)
    assert (end.state, end.exit_code, end.reason) == ("failed", 137, "was ended by signal 9")
    beside.is_unharmed()


def test_job_that_ignores_sigterm_is_killed_after_its_grace(beside: Beside) -> None:
    job = beside.submit("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done", grace_s=0.5)
    until(lambda: beside.left() and beside.cluster.output(job).read_text() == "up\n", "it runs")
    beside.was_cancelled(job, 137)
    beside.is_unharmed()


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "by-itself"])
def test_processes_in_their_own_sessions_end_with_the_job(beside: Beside, is_cancelled: bool) -> None:
    """Children and grandchildren that ignore SIGTERM; one of each pair also has no environment."""
    pair = AWAY.format(clean="") + AWAY.format(clean="env -i PATH=$PATH")
    script = (
        f"{pair} ({pair}) ; until [ $(wc -l < $RLSCHED_ATTEMPT_DIR/output.log) -ge 4 ]; do sleep 0.1; done"
    )
    job = beside.submit("sh", "-c", f"{script}; " + ("wait" if is_cancelled else "exit 3"))
    until(lambda: beside.cluster.output(job).read_text().count("\n") >= 4, "all processes run")
    pids = [int(line) for line in beside.cluster.output(job).read_text().split()]
    if is_cancelled:
        beside.was_cancelled(job, 143, pids)
    else:
        end = beside.ended(job, pids)
        assert (end.state, end.exit_code, end.reason) == ("failed", 3, "ended with exit code 3")
    beside.is_unharmed()
