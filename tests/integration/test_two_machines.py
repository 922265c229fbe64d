"""Two fresh machines, as in docs/how-to/deploy.md: keys by token, jobs on both, a bad link, a cut link."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.wire.messages import JobInfo, NodeInfo
from tests.support.online.machines import ADDRESSES, Machines, why_not

DEADLINE_S = 60.0
_WHY_NOT = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]

PATIENT = ("--timeout-s", "60")
"""Options of commands over a link that delays and loses packets, on a machine that other tests load."""


class Cluster:
    """A broker and a node on machine 0; a node and the user bob on machine 1, each with its own keys."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.machines, self.folder = machines, folder
        self.homes = [str(folder / "home0"), str(folder / "home1")]
        log = self.folder / "broker.log"
        listening = ("--address", "tcp://0.0.0.0:7461", "--policy", "fifo-backfill")
        self.machines.start(
            0, log, "broker", *listening, "--prediction", "running-mean", "--keys", self.homes[0]
        )
        until(lambda: "ready at tcp://0.0.0.0:7461" in log.read_text(), "the broker listens", log)
        self.broker = f"tcp://{ADDRESSES[0]}:7461"
        for number, node in enumerate(("gpu-a", "gpu-b")):
            if number:
                self.join(node, "node")
            options = ("--gpus", "2", "--simulated", "--end-jobs-on-exit", "--keys", self.homes[number])
            self.machines.start(
                number, folder / f"{node}.log", "node", "--broker", self.broker, "--name", node, *options
            )
        self.join("bob", "user")
        until(
            lambda: self.states() == {"gpu-a": "up", "gpu-b": "up"},
            "both nodes are up",
            folder / "gpu-b.log",
        )

    def join(self, name: str, role: str) -> None:
        token = self.ask(0, "keys", "new", name, "--role", role, broker=True).strip()
        assert f"as {role} {name}" in self.ask(1, "keys", "join", token)

    def ask(self, number: int, *args: str, broker: bool = False, code: int = 0) -> str:
        """Output of a command on a machine."""
        options = ["--keys", self.homes[number], *(["--broker", self.broker] if broker else [])]
        split = args.index("--") if "--" in args else len(args)
        done = self.machines.run(number, *args[:split], *options, *args[split:])
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def submit(self, number: int, gpus: int, script: str) -> int:
        options = ("--gpus", str(gpus), *PATIENT)
        job = self.ask(number, "submit", *options, "--", "sh", "-c", script, broker=True)
        return int(job.split()[1])

    def jobs(self) -> dict[int, JobInfo]:
        told = self.ask(1, "queue", "--all", "--json", *PATIENT, broker=True)
        return {job.job: job for job in msgspec.json.decode(told, type=list[JobInfo])}

    def states(self) -> dict[str, str]:
        told = self.ask(0, "nodes", "--json", *PATIENT, broker=True)
        return {node.name: node.state for node in msgspec.json.decode(told, type=list[NodeInfo])}


def until(look: Callable[[], object], what: str, log: Path) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline, f"waited until {what}: {log.read_text()}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    machines = Machines()
    try:
        yield Cluster(machines, tmp_path_factory.mktemp("two"))
    finally:
        machines.close()


@pytest.fixture(autouse=True)
def a_good_link(cluster: Cluster) -> Iterator[None]:
    yield
    line = cluster.machines.line
    line.delay_s, line.loss_frac, line.is_cut = 0.0, 0.0, False


def test_gang_on_both_machines_runs_and_shows_its_output(cluster: Cluster) -> None:
    variables = "$RLSCHED_NODE_RANK of $RLSCHED_NUM_NODES, master $RLSCHED_MASTER_ADDR"
    job = cluster.submit(1, 4, f"echo rank {variables}")
    until(lambda: cluster.jobs()[job].state == "completed", "it has ended", cluster.folder / "broker.log")
    assert cluster.jobs()[job].user == "bob"
    for rank in range(2):
        assert cluster.ask(1, "logs", "--rank", str(rank), str(job), broker=True) == (
            f"rank {rank} of 2, master 10.77.0.1\n"
        )
    assert cluster.machines.line.num_carried > 50


MEETS = """\
import os, socket
number = int(os.environ["SLURM_PROCID"])
if number == 0:
    with socket.create_server(("", 29500)) as server:
        peer, (address, _) = server.accept()
        print(f"task {peer.recv(9).decode()} at {address}, {os.environ['SLURM_STEP_NODELIST']}")
else:
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], 29500)).send(b"%d" % number)
            break
        except ConnectionRefusedError:
            pass
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.03], ids=["good link", "slow link that loses packets"])
def test_script_for_slurm_runs_on_both_machines(cluster: Cluster, delay_s: float) -> None:
    """The names of the nodes do not resolve, so the script gets their addresses."""
    cluster.machines.line.delay_s, cluster.machines.line.loss_frac = delay_s, delay_s
    (cluster.folder / "meets.py").write_text(MEETS)
    script = cluster.folder / "slurm.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=2\nset -e\n"
        f"cd {cluster.folder}\nexport MASTER_ADDR=$(scontrol show hostnames | head -n 1)\n"
        f"srun {sys.executable} meets.py\n"
        "for node in $(scontrol show hostnames); do\n"
        "    srun -N1 -n1 -w $node sh -c 'echo $SLURMD_NODENAME'\n"
        "done\n"
        "srun -l sh -c 'exit $((SLURM_PROCID * 5))'\n"
    )
    job = int(cluster.ask(1, "submit", "--parsable", "--", str(script), broker=True))
    until(lambda: cluster.jobs()[job].exit_code is not None, "it has ended", cluster.folder / "broker.log")
    first, second = sorted(ADDRESSES, key=lambda address: address != first_address(cluster, job))
    assert cluster.ask(1, "logs", "--rank", "0", str(job), broker=True).splitlines() == [
        f"task 1 at {second}, {first},{second}",
        first,
        second,
        f"srun: error: {second}: task 1: Exited with exit code 5",
    ]
    assert cluster.jobs()[job].exit_code == 5


def first_address(cluster: Cluster, job: int) -> str:
    """The address of a job's first node."""
    return ADDRESSES[("gpu-a", "gpu-b").index(cluster.jobs()[job].nodes[0])]


def test_slow_link_that_loses_packets_only_costs_time(cluster: Cluster) -> None:
    cluster.machines.line.delay_s, cluster.machines.line.loss_frac = 0.04, 0.03
    jobs = [cluster.submit(1, 4, "sleep 0.2; exit 3") for _ in range(5)]
    until(
        lambda: all(cluster.jobs()[job].state == "failed" for job in jobs),
        "all have ended",
        cluster.folder / "broker.log",
    )
    told = cluster.jobs()
    assert [(told[job].exit_code, told[job].attempt) for job in jobs] == [(3, 1)] * len(jobs)


def test_job_that_ends_while_the_link_is_cut_is_reported_afterwards(cluster: Cluster) -> None:
    marks, gate = cluster.folder / "marks", cluster.folder / "gate"
    waits = f"until [ -e {gate} ]; do sleep 0.05; done"
    job = cluster.submit(0, 4, f"echo on >> {marks}; {waits}; echo off >> {marks}; exit 0")
    until(
        lambda: marks.exists() and marks.read_text().count("on") == 2, "it runs", cluster.folder / "gpu-b.log"
    )
    cluster.machines.line.is_cut = True
    gate.touch()
    until(lambda: marks.read_text().count("off") == 2, "it has ended", cluster.folder / "gpu-b.log")
    log = cluster.folder / "gpu-b.log"
    until(lambda: "lost the connection" in log.read_text(), "the connection is given up", log)
    cluster.machines.line.is_cut = False
    until(lambda: cluster.jobs()[job].state == "completed", "it is reported", cluster.folder / "broker.log")
    assert cluster.jobs()[job].attempt == 1
    assert marks.read_text().count("on") == 2
    assert cluster.states() == {"gpu-a": "up", "gpu-b": "up"}


def test_bob_controls_only_his_own_jobs_until_his_key_is_revoked(cluster: Cluster) -> None:
    owners = cluster.submit(0, 4, "sleep 1000")
    his = cluster.submit(1, 4, "true")
    assert "only" in cluster.ask(1, "cancel", str(owners), broker=True, code=2)
    cluster.ask(1, "cancel", str(his), broker=True)
    cluster.ask(0, "cancel", str(owners), broker=True)
    assert cluster.ask(0, "keys", "revoke", "bob") == "revoked user bob\n"
    assert "refuses the key" in cluster.ask(1, "queue", "--timeout-s", "2", broker=True, code=2)
    cluster.join("bob2", "user")
    cluster.ask(1, "queue", broker=True)
