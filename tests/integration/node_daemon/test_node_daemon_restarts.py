"""`rlsched node` as a process: jobs survive daemon and broker, or are killed on request."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from rlsched.wire.messages import AttemptKey, Ended, Hello, Kill, Launched, LaunchRefused, SayHello
from rlsched_node.isolation.limits import on_machine
from rlsched_node.processes import shim
from rlsched_node.processes.store import AttemptStore, LaunchRecord
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node, gated, until

LIMITS = """
import os, resource, sys
print(sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20, flush=True)
if len(sys.argv) > 1:
    open(sys.argv[1]).read()
"""
PATH = {"PATH": os.environ["PATH"]}


def test_killed_daemon_loses_no_job_and_the_next_one_reports_its_end_once(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="exit 5"))
    pid = broker.receive(Launched).pid
    broker.launch("sh", "-c", "exit 4", job=2, gpus=[0])
    broker.end_of(2, acknowledge=False)
    node.signal(signal.SIGKILL)
    assert shim.start_ticks(pid) is not None

    node = start_node()
    hello = broker.greet()
    assert [(a.job, a.state, a.exit_code) for a in hello.attempts] == [(1, "running", None), (2, "ended", 4)]
    assert broker.end_of(2).exit_code == 4
    broker.launch("true", job=3, gpus=[1])
    assert "held by attempt 1.1.0" in broker.receive(LaunchRefused).message
    (tmp_path / "gate").write_text("go\n")
    assert broker.end_of(1).exit_code == 5
    assert broker.nothing_comes(Ended)
    node.signal(signal.SIGKILL)

    start_node()
    assert broker.greet().attempts == []
    assert broker.nothing_comes(Ended)
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_killed_daemon_neither_loses_nor_repeats_output_in_the_file_of_a_job(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    file, stop = tmp_path / "out.txt", tmp_path / "stop"
    node = start_node()
    broker.greet()
    program = f"n=0; until [ -e {stop} ]; do echo $((n += 1)); done"
    broker.launch("bash", "-c", program, cwd=str(tmp_path), output="out.txt")
    broker.receive(Launched)
    until(lambda: file.exists() and file.stat().st_size > 1000)
    node.signal(signal.SIGKILL)
    size = file.stat().st_size
    until(lambda: file.stat().st_size > size + 1000)
    start_node()
    broker.greet()
    size = file.stat().st_size
    until(lambda: file.stat().st_size > size + 1000)
    stop.touch()
    broker.end_of(1)
    numbers = file.read_text().split()
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert broker.log(1).data.decode() == file.read_text()[: 1 << 16]


def test_job_that_ends_without_a_daemon_is_reported(
    broker: FakeBroker, tmp_path: Path, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="exit 6"))
    pid = broker.receive(Launched).pid
    node.signal(signal.SIGKILL)
    (tmp_path / "gate").write_text("go\n")
    until(lambda: shim.start_ticks(pid) is None)
    start_node()
    [report] = broker.greet().attempts
    assert (report.state, report.exit_code) == ("ended", 6)


def test_losing_the_broker_ends_no_job(
    broker: FakeBroker, start_node: Callable[..., Node], home: Path, tmp_path: Path
) -> None:
    start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="exit 8"))
    pid = broker.receive(Launched).pid
    broker.close()
    second = FakeBroker(home, port=broker.port)
    try:
        second.epoch = 2
        [report] = second.greet().attempts
        assert (report.job, report.state) == (1, "running")
        assert second.receive(Launched).pid == pid
        second.send(SayHello())
        assert second.greet().epoch == 2
        second.receive(Launched)
        second.epoch = 1
        second.launch("true", job=2, gpus=[0])
        second.send(Kill(epoch=1, job=1, attempt=1, rank=0))
        assert second.nothing_comes(Launched), "orders of an older epoch are ignored"
        (tmp_path / "gate").write_text("go\n")
        assert second.end_of(1).exit_code == 8
    finally:
        second.close()


def test_disowned_jobs_are_killed_without_a_report(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.greet()
    broker.launch("sleep", "300")
    pid = broker.receive(Launched).pid
    broker.send(SayHello())
    broker.greet(forget=[(1, 1)])
    until(lambda: shim.start_ticks(pid) is None)
    until(lambda: (node.directory / "records" / "c1" / "1.1.0" / "acknowledged").exists())
    assert broker.nothing_comes(Ended)


def test_job_of_another_cluster_runs_until_an_operator_ends_it(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.epoch = 9
    broker.greet()
    broker.launch("sh", "-c", "echo old; sleep 300")
    pid = broker.receive(Launched).pid
    until(lambda: broker.log(1).data)
    broker.send(SayHello())
    broker.cluster, broker.epoch = "c2", 1
    broker.greet()
    broker.launch("echo", "new")
    assert broker.receive(Hello).cluster == "c1", "it sends hello again and ignores all orders"
    assert shim.start_ticks(pid) is not None
    assert "this node obeys none of its orders" in node.log
    assert node.signal(signal.SIGTERM) == 0
    node = start_node("--gpus", "4", "--simulated", "--forget-cluster")
    hellos = [broker.greet().cluster]
    while hellos[-1] != "c2" and len(hellos) < 5:  # the old daemon may have sent another hello before its end
        hellos.append(broker.greet().cluster)
    assert hellos[-1] == "c2", "it registers as a node of the other cluster"
    broker.launch("echo", "new")
    assert broker.end_of(1).exit_code == 0
    assert shim.start_ticks(pid) is None, "its GPU was needed"
    assert (node.output_of(1, "c1"), node.output_of(1, "c2")) == ("old\n", "new\n")


def test_stopped_daemon_leaves_its_jobs_unless_end_jobs_is_set(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    node = start_node()
    broker.greet()
    broker.launch("sleep", "300")
    pid = broker.receive(Launched).pid
    assert node.signal(signal.SIGTERM) == 0
    assert shim.start_ticks(pid) is not None
    node = start_node("--gpus", "4", "--simulated", "--end-jobs-on-exit")
    assert [a.state for a in broker.greet().attempts] == ["running"]
    broker.receive(Launched)
    node.process.send_signal(signal.SIGTERM)
    end = broker.end_of(1)
    assert (end.exit_code, end.reason) == (143, "node_stopped")
    assert node.process.wait(DEADLINE_S) == 0
    assert shim.start_ticks(pid) is None


def test_job_that_exits_in_the_grace_of_its_node_has_its_own_exit_code(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = start_node("--gpus", "4", "--simulated", "--end-jobs-on-exit")
    broker.greet()
    script = f"trap 'exit 0' TERM; touch {tmp_path / 'ready'}; while :; do sleep 0.05; done"
    broker.launch("sh", "-c", script)
    broker.receive(Launched)
    until((tmp_path / "ready").exists)
    node.process.send_signal(signal.SIGTERM)
    end = broker.end_of(1)
    assert (end.exit_code, end.reason) == (0, "node_stopped"), "which tells the broker that it has completed"
    assert node.process.wait(DEADLINE_S) == 0


def test_shim_whose_daemon_has_exited_still_runs_its_rank(tmp_path: Path) -> None:
    """The daemon is stopped between the start of the shim and the shim's claim: the pipe has no reader."""
    directory = AttemptStore(tmp_path).directories_of(AttemptKey(1, 1, 0, "c1"))
    directory.create(LaunchRecord(gpus=[], command=["sh", "-c", "echo ran; exit 5"], env=PATH, cwd="/"))
    reader, writer = os.pipe()
    os.close(reader)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", shim.__file__],
        {},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, writer, shim.PIPE_FD),
            (os.POSIX_SPAWN_OPEN, shim.RECORDS_FD, str(directory.path), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(directory.path / "output.log"), os.O_WRONLY | os.O_APPEND, 0),
        ],
        setsid=True,
    )
    os.close(writer)
    os.waitpid(pid, 0)
    record = directory.exit()
    assert record is not None
    assert (record.exit_code, directory.read_output(0, 99)[0]) == (5, b"ran\n")


def test_rank_has_its_own_cores_and_the_next_daemon_knows_them(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    """Simulated GPU 0 has cores 0 to 15; core 0 is the seventeenth of job 1, which is near GPU 1."""
    python = (sys.executable, "-I", "-S", "-c", LIMITS)
    os.mkfifo(tmp_path / "gate")
    node = start_node("--gpus", "4", "--simulated")
    hello = broker.greet()
    held = hello.capabilities.holds_to
    assert hello.cpus == 64
    assert held is not None
    broker.launch(*python, str(tmp_path / "gate"), job=1, gpus=[1], cores=17)
    until(lambda: broker.log(1).data)
    node.signal(signal.SIGKILL)
    start_node("--gpus", "4", "--simulated")
    broker.greet()
    broker.launch(*python, job=2, gpus=[0], cores=1, memory_mib=777)
    assert broker.end_of(2).exit_code == 0
    words = broker.log(2).data.decode()
    assert words.startswith(f"{on_machine([1])} ")
    if "memory" not in held:
        assert words.split()[-1] == "777", "process by process without a controller"
    broker.send(Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=0.1))
    broker.end_of(1)
