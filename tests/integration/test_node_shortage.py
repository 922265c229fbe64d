"""A node without a free process or memory cannot start a command: the job is not the cause.

The kernel refuses the processes: RLIMIT_NPROC of a user without other processes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.entries import AttemptEnding, RankEnded
from rlsched.broker.journal.reading import read_journal
from rlsched.wire.messages import Launch
from rlsched_node.adopt import adopt_attempts
from rlsched_node.isolation.limits import RankLimits
from rlsched_node.isolation.user import JobUser
from rlsched_node.processes import shim, shortage
from rlsched_node.processes.launch import launch_command
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.steps import Exited
from rlsched_node.processes.store import AttemptStore, LaunchRecord
from tests.support.online.cluster import Cluster, all_up
from tests.support.online.cluster import until as wait_until
from tests.support.online.no_process import without_processes
from tests.support.online.ranks import KEY, collect, output, start, until, unused_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: no limit holds for root's processes")
NEVER_BEGAN = Exited(KEY, 126, "not_started")
NO_PROCESS = os.strerror(errno.EAGAIN)


@pytest.fixture
def user() -> JobUser:
    found = unused_user()
    assert found is not None
    return found


@needs_root
def test_command_that_the_limit_of_processes_keeps_from_execution_never_began(
    ranks: LiveRanks, store: AttemptStore, user: JobUser
) -> None:
    """execve(2) fails if the user already had more processes than the limit when the process became its."""
    first, second, last = (KEY._replace(job=job) for job in (2, 3, 4))
    for number, key in enumerate((first, second)):
        start(ranks, store, "sleep", "300", key=key, user=user)
        until(lambda number=number: users()[user.uid] > number)  # type: ignore[misc]
    one = RankLimits(processes=1)
    directory = start(ranks, store, "echo", "here", user=user, limits=one)
    assert collect(ranks, Exited)[-1] == NEVER_BEGAN
    assert output(directory) == f"rlsched: echo: cannot be executed: {NO_PROCESS}\n"
    record = directory.exit()
    assert record is not None
    assert (record.exit_code, record.reason) == (126, "not_started"), "also for the next daemon"
    ranks.hard_kill(first)
    collect(ranks, Exited)
    until(lambda: users()[user.uid] == 1)
    directory = start(ranks, store, "echo", "here", key=last, user=user, limits=one)
    assert collect(ranks, Exited)[-1] == Exited(last, 0)
    assert output(directory) == "here\n"


def users() -> Counter[int]:
    """Number of processes by user ID."""
    found = Counter[int]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            found[os.stat(f"/proc/{name}").st_uid] += 1
    return found


@needs_root
def test_command_for_which_the_shim_gets_no_process_never_began(
    store: AttemptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: JobUser
) -> None:
    program = tmp_path / "alone.py"
    code = "from rlsched_node.processes import shim\nsys.exit(shim.begin())\n"
    program.write_text(without_processes(user.uid, code))
    monkeypatch.setattr(shim, "__file__", str(program))
    ranks = LiveRanks(store)
    directory = start(ranks, store, "echo", "here", output=str(tmp_path / "copy"), error="err")
    assert collect(ranks, Exited)[-1] == NEVER_BEGAN
    assert output(directory) == f"rlsched: cannot create a process for the command: {NO_PROCESS}\n"
    ranks.close()
    [attempt] = adopt_attempts(store, LiveRanks(store))
    assert (attempt.exit_code, attempt.reason) == (126, "not_started")


NO_SHIM = """
from pathlib import Path
from rlsched_node.processes.launch import LaunchError
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.store import AttemptStore
from tests.support.online.ranks import start

store = AttemptStore(Path(sys.argv[1]))
ranks = LiveRanks(store)
try:
    start(ranks, store, "echo", "here")
except LaunchError as error:
    print(error.is_for_now, list(store.scan()), error)
"""


@needs_root
def test_daemon_without_a_process_for_the_shim_refuses_the_rank_for_now(
    tmp_path: Path, user: JobUser
) -> None:
    words = [sys.executable, "-c", without_processes(user.uid, NO_SHIM), str(tmp_path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said == f"True [] cannot start a process: {NO_PROCESS}\n"


NO_COPIER = """
import logging
from pathlib import Path
from rlsched_node.processes.copiers import Copiers
from rlsched_node.processes.store import AttemptStore, LaunchRecord
from tests.support.online.ranks import KEY

logging.basicConfig(stream=sys.stdout, format="%(message)s")
directory = AttemptStore(Path(sys.argv[1])).directories_of(KEY)
directory.create(LaunchRecord(gpus=[1], command=["true"], env={}, cwd="/", output="/tmp/here"))
for shim_pid in (os.getpid(), 0):
    Copiers().start(directory, shim_pid)
    print(f"failure: {Copiers().failure(directory)!r}")
"""


@needs_root
def test_copier_for_which_the_node_has_no_process_is_started_later_while_the_rank_runs(
    tmp_path: Path, user: JobUser
) -> None:
    words = [sys.executable, "-c", without_processes(user.uid, NO_COPIER), str(tmp_path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    warning = f"output.log cannot be copied: [Errno {errno.EAGAIN}] {NO_PROCESS}"
    assert [line.split(": ", 1)[1][: len(warning)] for line in said[::2]] == [warning, warning]
    assert said[1] == "failure: ''"
    assert said[3] == f"failure: '--output /tmp/here: cannot start a process: {NO_PROCESS}'"


NO_THREAD = """
from rlsched_node.isolation.accounts import AccountsAwayError, SystemAccounts

try:
    SystemAccounts().account_of("daemon")
except AccountsAwayError as error:
    print(error)
"""


@needs_root
def test_owner_who_cannot_be_looked_up_for_lack_of_a_thread_is_not_unknown(user: JobUser) -> None:
    words = [sys.executable, "-c", without_processes(user.uid, NO_THREAD)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said == "this node cannot look up the user 'daemon': can't start new thread\n"


@pytest.mark.parametrize(
    ("has_launcher", "script", "end"),
    [
        (True, "printf ! >&3; exit 7", Exited(KEY, 7, "not_started")),
        (True, "printf ! >&3; exit 0", Exited(KEY, 0, "not_started")),
        (True, "exit 126", Exited(KEY, 126)),
        (False, "(printf ! >&3) 2>&-; exit 126", Exited(KEY, 126)),
    ],
)
def test_only_a_launcher_can_report_that_the_command_never_began(
    ranks: LiveRanks,
    store: AttemptStore,
    monkeypatch: pytest.MonkeyPatch,
    has_launcher: bool,
    script: str,
    end: Exited,
) -> None:
    monkeypatch.setattr("rlsched_node.processes.launch.has_launcher", lambda *_: has_launcher)
    start(ranks, store, "bash", "-c", script)
    assert collect(ranks, Exited)[-1] == end


LAUNCHER = """
import runpy
sys.argv = json.loads(sys.argv[1])[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
IMPORTED = "import json\n"
"""Modules that the launcher needs anyway."""


def launcher_of(kind: str, *command: str, host: str = "127.0.0.1", rank: int = 0) -> list[str]:
    """The command of a rank that starts `command` by `per_gpu.py`, or as the script of a job with steps."""
    is_batch = kind == "batch"
    order = Launch(
        epoch=1,
        job=1,
        attempt=1,
        rank=rank,
        num_ranks=rank + 1,
        nodes=["n0", "n1"][: rank + 1],
        gpus=[0],
        command=list(command),
        env={"SLURM_NNODES": "1"},
        cwd="/",
        launcher="none" if is_batch else "per-gpu",
    )
    env = {"RLSCHED_MASTER_ADDR": host} | ({"RLSCHED_STEPS_KEY": "k"} if is_batch else {})
    return launch_command(order, env)


@contextmanager
def launched(folder: Path, words: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A launcher with the pipe of its shim: the process, and the end of the pipe that the shim reads."""
    reads, writes = os.pipe()
    passed = fcntl.fcntl(writes, fcntl.F_DUPFD, 100)
    os.close(writes)
    env = os.environ | {
        "RLSCHED_ATTEMPT_DIR": str(folder),
        "RLSCHED_STEPS_KEY": "k",
        "HOME": str(folder),
        "LOCAL_WORLD_SIZE": "1",
        "RLSCHED_FIRST_RANK": "0",
        "SLURM_JOB_ID": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    ready = ["bash", "-c", f'exec "$@" 3>&{passed} {passed}>&-', "bash", *words]
    process = subprocess.Popen(ready, stdout=subprocess.PIPE, env=env, cwd=folder, pass_fds=(passed,))
    os.close(passed)
    try:
        yield process, reads
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        os.close(reads)


def run_launcher(folder: Path, words: list[str]) -> tuple[int, bytes, bytes]:
    """Run a launcher to its end. Returns exit code, standard output, and the reports."""
    with launched(folder, words) as (process, reads):
        said, _ = process.communicate()
        return process.returncode, said, os.read(reads, 99)


@needs_root
@pytest.mark.parametrize(
    ("kind", "host"),
    [("per-gpu", "n0"), ("batch", "n0"), pytest.param("batch", "127.0.0.1", id="batch that looks up names")],
)
def test_launcher_without_a_process_for_the_command_reports_it(
    tmp_path: Path, kind: str, host: str, user: JobUser
) -> None:
    words = launcher_of(kind, "echo", "here", host=host)
    code = without_processes(user.uid, IMPORTED + LAUNCHER)
    found = run_launcher(tmp_path, [sys.executable, "-c", code, json.dumps(words)])
    assert found == (126, b"", b"!")


@pytest.mark.parametrize("kind", ["per-gpu", "batch"])
@pytest.mark.parametrize(
    ("command", "end"),
    [
        (["sh", "-c", "(printf ! >&3) 2>&-; exit 5"], (5, b"", b"")),
        (["no-such-command-here"], (127, b"", b"")),
        (["/"], (126, b"", b"")),
    ],
)
def test_command_of_a_launcher_does_not_get_the_pipe(
    tmp_path: Path, kind: str, command: list[str], end: tuple[int, bytes, bytes]
) -> None:
    assert run_launcher(tmp_path, launcher_of(kind, *command)) == end


def test_agent_on_another_node_closes_the_pipe(tmp_path: Path) -> None:
    """The script may have begun on the first node."""
    with launched(tmp_path, launcher_of("batch", "true", rank=1)) as (process, reads):
        assert select.select([reads], [], [], 60.0)[0], "every process has closed it"
        assert os.read(reads, 99) == b""
        assert process.poll() is None


def test_only_errors_of_the_node_are_shortages() -> None:
    found = {number for number in errno.errorcode if shortage.is_shortage(OSError(number, ""))}
    assert found == {errno.EAGAIN, errno.ENOMEM}


def test_records_of_older_daemons_have_no_launcher() -> None:
    record = LaunchRecord(gpus=[0], command=["true"], env={}, cwd="/")
    older = msgspec.json.encode(record).replace(b',"has_launcher":false', b"")
    assert b"has_launcher" not in older
    assert msgspec.json.decode(older, type=LaunchRecord) == record


# ---- with a broker ----------------------------------------------------------------------------------------

WITHOUT_GROUPS = ("unshare", "--mount", "sh", "-c", 'umount -a -t cgroup2 && exec "$@"', "sh")
"""Words before a command that hide cgroup v2 from it, so that the limit of processes is the account's."""


class FewProcesses(Cluster):
    """A broker, and a node on which no command starts if its account has two processes or more."""

    def command(self, name: str, *args: str) -> list[str]:
        started = super().command(name, *args)
        return started if name == "broker" else [*WITHOUT_GROUPS, *started]


def unused_account() -> pwd.struct_passwd:
    """A system account without processes."""
    used = users().keys() | {0}
    return next(one for one in reversed(pwd.getpwall()) if one.pw_uid not in used)


@needs_root
@pytest.mark.slow
def test_job_beside_a_job_with_all_processes_of_its_account_waits_and_completes() -> None:
    if subprocess.run([*WITHOUT_GROUPS, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace without cgroup v2 can be made here")
    account = unused_account()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        cluster = FewProcesses(
            Path(name),
            nodes=("n0",),
            broker_options=("--policy", "fifo-backfill", "--forecaster", "none"),
            node_options=("--run-as", account.pw_name, "--max-processes", "1"),
        )
        try:
            with cluster.client() as client:
                all_up(client, 1)
                holders = [client.submit(["sleep", "300"], cwd="/") for _ in range(2)]
                wait_until(lambda: users()[account.pw_uid] == 2, "they hold all processes")
                job = client.submit(["echo", "here"], cwd="/")
                wait_until(lambda: client.nodes()[0].state == "drained", "the node could not start the job")
                assert client.job(job).state == "queued"
                why = "could not start rank 0: it had no free process or no memory for the command"
                assert why in str(client.why(job))
                for holder in holders:
                    client.cancel(holder)
                    client.wait(holder)
                client.resume_node("n0")
                end = client.wait(job)
                assert (end.state, end.exit_code) == ("completed", 0)
                assert client.read_log(job).data == b"here\n"
        finally:
            cluster.close()
        entries = [row.entry for row in read_journal(cluster.journal)]
        *early, last = [one for one in entries if isinstance(one, RankEnded) and one.job == job]
        assert {(one.exit_code, one.reason) for one in early} == {(126, "not_started")}
        assert last.exit_code == 0
        endings = [one for one in entries if isinstance(one, AttemptEnding) and one.job == job]
        assert {(one.outcome, one.charged, one.lost) for one in endings} == {("queued", False, True)}
