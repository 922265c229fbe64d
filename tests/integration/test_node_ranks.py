"""Ranks as real processes with their shims: exit codes, limits, kills, and the remains of a dead shim."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rlsched.wire.messages import AttemptKey
from rlsched_node.adopt import adopt_attempts
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import Phase
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.steps import Event, Exited, Started, StartFailed
from rlsched_node.processes.store import AttemptStore, LaunchRecord
from rlsched_node.records import claim
from tests.support.exited import has_exited
from tests.support.online.ranks import KEY, collect, has_output, output, start, until


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [
        ("echo out; echo err >&2; exit 0", 0),
        ("echo out; echo err >&2; exit 3", 3),
        ("echo out; echo err >&2; kill -SEGV $$", 128 + signal.SIGSEGV),
        ("echo out; echo err >&2; kill -KILL $$", 128 + signal.SIGKILL),
    ],
)
def test_exit_codes_and_both_streams(
    ranks: LiveRanks, store: AttemptStore, script: str, exit_code: int
) -> None:
    directory = start(ranks, store, "sh", "-c", script)
    started, exited = collect(ranks, Exited)
    assert isinstance(started, Started)
    assert exited == Exited(KEY, exit_code)
    assert output(directory) == "out\nerr\n"


def test_environment_directory_and_signals_are_those_of_a_new_process(
    ranks: LiveRanks, store: AttemptStore, tmp_path: Path
) -> None:
    script = (
        "echo $CUDA_VISIBLE_DEVICES $RLSCHED_RANK $MINE; pwd; grep -E 'Sig(Blk|Ign)' /proc/self/status;"
        "ls /proc/self/fd"
    )
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGQUIT, signal.SIGHUP)}
    try:  # as set by a shell's `&` and by nohup
        directory = start(ranks, store, "sh", "-c", script, cwd=str(tmp_path), env={"MINE": "yes"})
    finally:
        for number, before in ignored.items():
            signal.signal(number, before)
    collect(ranks, Exited)
    lines = output(directory).split("\n")
    assert lines[:2] == ["1 0 yes", str(tmp_path)]
    standard = (1 << 31) - 1  # glibc itself ignores two of the real-time signals
    assert [int(line.split()[1], 16) & standard for line in lines[2:4]] == [0, 0]
    assert lines[4:8] == ["0", "1", "2", "3"], "3 is the directory opened by ls"
    assert lines[8:] == [""]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("0027", ["0027"]),
        ("7", ["0007"]),
        ("rwx", ["rlsched: RLSCHED_UMASK: expected an octal number such as 0022, got 'rwx'; not used"]),
    ],
)
def test_umask_is_the_submitter_s(ranks: LiveRanks, store: AttemptStore, text: str, lines: list[str]) -> None:
    directory = start(ranks, store, "sh", "-c", "umask", env={"RLSCHED_UMASK": text})
    assert collect(ranks, Exited)[-1] == Exited(KEY, 0)
    assert output(directory).splitlines()[: len(lines)] == lines


@pytest.mark.parametrize(
    ("command", "cwd", "exit_code", "line"),
    [
        ("no-such-command-here", "/", 127, "rlsched: no-such-command-here: command not found\n"),
        ("/", "/", 126, "rlsched: /: cannot be executed: Permission denied\n"),
        (
            "true",
            "/no/such/place",
            126,
            "rlsched: cannot enter the working directory /no/such/place: No such file or directory\n",
        ),
    ],
)
def test_command_that_cannot_run_exits_like_in_a_shell(
    ranks: LiveRanks, store: AttemptStore, command: str, cwd: str, exit_code: int, line: str
) -> None:
    directory = start(ranks, store, command, cwd=cwd)
    assert collect(ranks, Exited)[-1] == Exited(KEY, exit_code)
    assert output(directory) == line


def test_time_limit_ends_the_whole_process_group(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "sh", "-c", "sleep 300 & echo $!; wait", limit_s=0.2)
    assert collect(ranks, Exited)[-1] == Exited(KEY, shim.EXIT_TIME_LIMIT, "time_limit")
    child, said = output(directory).splitlines()[:2]
    assert said == "rlsched: time limit of 0.2 s reached: ending the job"
    assert shim.start_ticks(int(child)) is None


def test_kill_lets_a_job_clean_up(ranks: LiveRanks, store: AttemptStore) -> None:
    script = "trap 'echo tidy; exit 5' TERM; echo up; while :; do sleep 0.01; done"
    directory = start(ranks, store, "sh", "-c", script)
    until(has_output(directory, "up"))
    ranks.end(KEY, 60.0, "killed")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 5, "killed")
    assert output(directory).splitlines()[-1] == "tidy"


def test_job_that_ignores_sigterm_is_killed_after_its_grace(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 300; done")
    until(has_output(directory, "up"))
    ranks.end(KEY, 0.1, "node_stopped")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 137, "node_stopped")


def test_kill_before_the_start_of_the_shim_is_not_lost(ranks: LiveRanks, store: AttemptStore) -> None:
    start(ranks, store, "sleep", "300")
    ranks.end(KEY, 5.0, "killed")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 143, "killed")


def test_processes_that_left_the_group_end_with_the_job(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "sh", "-c", "setsid sleep 300 & echo $!; exit 4")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 4)
    assert shim.start_ticks(int(output(directory))) is None


def test_child_of_a_shell_gets_one_sigterm_and_the_whole_grace(ranks: LiveRanks, store: AttemptStore) -> None:
    """SIGTERM ends the shell at once while its script is saving."""
    saves = (
        "exec 2>/dev/null; trap 'echo told; sleep 2.2; echo saved; exit 0' TERM; echo up; "
        "while :; do sleep 0.05; done"
    )
    directory = start(ranks, store, "sh", "-c", f'sh -c "{saves}"; true')
    until(has_output(directory, "up"))
    ranks.end(KEY, 30.0, "killed")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 143, "killed")
    assert output(directory).split() == ["up", "told", "saved"]


def test_child_of_a_shell_is_killed_after_the_grace(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "sh", "-c", "sh -c \"trap '' TERM; echo up $$; sleep 300\"; true")
    until(has_output(directory, "\n"))
    ranks.end(KEY, 0.2, "killed")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 143, "killed")
    assert shim.start_ticks(int(output(directory).split()[1])) is None


def test_process_outside_the_group_gets_sigterm_at_the_end_of_the_command(
    ranks: LiveRanks, store: AttemptStore
) -> None:
    away = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    directory = start(ranks, store, "sh", "-c", f'setsid sh -c "{away}"; true')
    until(has_output(directory, "up"))
    ranks.end(KEY, 30.0, "killed")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 143, "killed")
    assert output(directory).split() == ["up", "told"]


def test_killed_shim_ends_its_job_and_counts_as_vanished(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "sh", "-c", "setsid sleep 300 & echo $! $$; wait")
    until(has_output(directory, "\n"))
    [process] = [directory.process()]
    assert process is not None
    collect(ranks, Started)
    os.kill(process.pid, signal.SIGKILL)
    assert collect(ranks, Exited)[-1] == Exited(KEY, 137, "vanished")
    until(lambda: all(shim.start_ticks(int(pid)) is None for pid in output(directory).split()))


def test_hard_kill_works_without_the_shim(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "sh", "-c", "trap '' TERM; echo up; sleep 300")
    until(has_output(directory, "up"))
    process = directory.process()
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    ranks.end(KEY, 0.0, "killed")
    ranks.hard_kill(KEY)
    assert collect(ranks, Exited)[-1] == Exited(KEY, 137, "killed"), "it was killed, not vanished"


def test_shim_that_cannot_start_refuses_the_launch(
    store: AttemptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim, "__file__", "/no/such/shim.py")
    ranks = LiveRanks(store)
    directory = start(ranks, store, "true")
    [event] = collect(ranks, StartFailed)
    assert isinstance(event, StartFailed)
    assert "No such file" in event.message
    assert not directory.path.exists()


def test_next_daemon_adopts_running_ranks_and_finds_ended_ones(store: AttemptStore) -> None:
    first = LiveRanks(store)
    ended = AttemptKey(2, 1, 0, "c1")
    directory = start(first, store, "sh", "-c", "read line < gate; exit 6", cwd=str(store.attempts))
    os.mkfifo(store.attempts / "gate")
    start(first, store, "sh", "-c", "exit 7", key=ended)
    until(lambda: store.directories_of(ended).exit() and directory.process())
    first.close()

    second = LiveRanks(store)
    running, over = adopt_attempts(store, second)
    assert (running.key, running.phase, running.gpus) == (KEY, Phase.RUNNING, (1,))
    assert (over.key, over.phase, over.exit_code) == (ended, Phase.ENDED, 7)
    (store.attempts / "gate").write_text("go\n")
    assert collect(second, Exited)[-1] == Exited(KEY, 6)
    second.close()


def test_run_time_is_measured_by_a_monotonic_clock(store: AttemptStore, ranks: LiveRanks) -> None:
    began_s = shim.since_boot_s()
    start(ranks, store, "sleep", "0.2")
    ends: list[Event] = []
    until(lambda: ends.extend(ranks.collect()) or any(isinstance(end, Exited) for end in ends))
    took_s = shim.since_boot_s() - began_s
    [ran_s] = [end.ran_s for end in ends if isinstance(end, Exited)]
    assert ran_s is not None
    assert 0.2 <= ran_s <= took_s
    later = LiveRanks(store)
    assert [one.ran_s for one in adopt_attempts(store, later)] == [ran_s]
    later.close()


def test_run_time_is_kept_if_the_shim_cannot_write_its_record(store: AttemptStore, ranks: LiveRanks) -> None:
    directory = start(ranks, store, "sleep", "0.2")
    until(directory.process)
    blocks = directory.path / "exit"
    blocks.mkdir()
    process = directory.process()
    assert process is not None
    until(lambda: has_exited(process.pid))
    blocks.rmdir()
    ends: list[Event] = []
    until(lambda: ends.extend(ranks.collect()) or any(isinstance(end, Exited) for end in ends))
    [ran_s] = [end.ran_s for end in ends if isinstance(end, Exited)]
    kept = directory.exit()
    assert kept is not None
    assert ran_s is not None
    assert kept.ran_s == ran_s


@pytest.mark.parametrize(
    ("ticks", "boot", "told", "reason"),
    [
        (-1, "", "", "vanished"),
        (-1, "", "killed", "killed"),
        (0, "an earlier boot", "", "node_stopped"),
        (0, "an earlier boot", "killed", "node_stopped"),
    ],
)
def test_reused_pid_counts_as_vanished(
    store: AttemptStore, ranks: LiveRanks, ticks: int, boot: str, told: str, reason: str
) -> None:
    directory = store.directories_of(KEY)
    directory.create(LaunchRecord(gpus=[1], command=["true"], env={}, cwd="/"))
    mine = shim.start_ticks(os.getpid())
    assert mine is not None
    claim(
        str(directory.path),
        {"pid": os.getpid(), "start_ticks": mine + ticks, "boot_id": boot or shim.boot_id()},
    )
    if told:
        directory.order_kill(30.0, told)
    [attempt] = adopt_attempts(store, ranks)
    assert (attempt.phase, attempt.exit_code, attempt.reason) == (Phase.ENDED, 137, reason)
    assert [a.exit_code for a in adopt_attempts(store, ranks)] == [137], "it is recorded"


def test_attempt_never_started_by_a_killed_daemon_can_be_started_again(
    store: AttemptStore, ranks: LiveRanks
) -> None:
    """Its shim may still be starting: it must not start an attempt that the broker orders again."""
    directory = store.directories_of(KEY)
    directory.create(LaunchRecord(gpus=[1], command=["touch", "ran"], env={}, cwd=str(store.attempts)))
    late_shim = os.open(directory.path, os.O_RDONLY | os.O_DIRECTORY)
    assert adopt_attempts(store, ranks) == []
    assert not directory.path.exists()
    start(ranks, store, "sh", "-c", "exit 6")
    here = os.getcwd()
    try:
        assert shim.main(late_shim) == 0, "it finds the attempt removed"
    finally:
        os.chdir(here)
    assert not (store.attempts / "ran").exists()
    assert collect(ranks, Exited)[-1] == Exited(KEY, 6)


def test_out_of_gpu_memory_is_detected_in_the_output(ranks: LiveRanks, store: AttemptStore) -> None:
    start(ranks, store, "sh", "-c", "echo torch.OutOfMemoryError: CUDA out of memory.; exit 1")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 1, "gpu_out_of_memory")
    again = KEY._replace(job=2)
    start(ranks, store, "sh", "-c", "echo tried again after CUDA out of memory; exit 0", key=again)
    assert collect(ranks, Exited)[-1] == Exited(again, 0)
