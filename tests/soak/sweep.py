"""kill -9 of broker, node daemons, shims, commands and clients at seeded instants, with real processes.

After each shot, what was shot is started again, and every job comes to its end. Then the books are compared
with the lines that the jobs wrote themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rlsched.client.client import Client
from rlsched.errors import RlschedError
from tests.integration.cluster import Cluster, all_up, until
from tests.soak.jobs import Lines, Planned, children, plan, shims, shoot, strays

TARGETS = (
    ("broker",),
    ("node",),
    ("broker", "node"),
    ("shim",),
    ("command",),
    ("client",),
    ("broker", "shim"),
    ("node", "shim"),
    ("broker", "node", "node"),
    ("stopped node",),
    ("stopped broker",),
)
JOBS = 10


@dataclass
class Outcome:
    """What a sweep found.

    Attributes:
        shots: How often something was shot, or stopped.
        jobs: How many jobs were acknowledged.
        faults: A line each.
    """

    shots: int = 0
    jobs: int = 0
    faults: list[str] = field(default_factory=list)


class Sweep:
    """One cluster, and rounds of jobs and shots.

    Args:
        directory: Everything is kept below it.
        seed: Of jobs, targets and instants.
        say: Gets a line a round.
    """

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None] = lambda _: None) -> None:
        self.chance = Random(seed)
        self.outcome = Outcome()
        self._say = say
        self._lines = directory / "lines"
        self._lines.touch()
        self._acknowledged = directory / "acknowledged"
        self._acknowledged.touch()
        self._shot: set[int] = set()
        self._stopping: set[str] = set()
        self._plans: dict[str, Planned] = {}
        self.cluster = Cluster(directory, broker_options=("--policy", "fifo-backfill"))
        self._directory = directory
        with self.cluster.client() as client:
            all_up(client)

    def close(self) -> None:
        """End everything."""
        self.cluster.close()

    def round(self, number: int) -> None:
        """Some jobs, one or more shots, and a look at what became of them."""
        targets = TARGETS[number % len(TARGETS)]
        planned = plan(self.chance, f"r{number}", JOBS, self._lines)
        self._plans |= {job.token: job for job in planned}
        path = self._directory / "plan.json"
        path.write_text(json.dumps([(job.token, job.gpus, job.script, job.cancelled) for job in planned]))
        submitter = self._submit(path)
        time.sleep(self.chance.uniform(0.0, 2.5))
        for target in targets:
            self._shoot(target, submitter)
            time.sleep(self.chance.choice((0.0, 0.0, 0.2)))
        self._mend()
        if submitter.wait() != 0:
            self._submit(path).wait()
        self._look(number, targets)

    def _submit(self, path: Path) -> subprocess.Popen[bytes]:
        words = (self.cluster.address, str(self.cluster.keys), str(path), str(self._acknowledged))
        with (self._directory / "submitter.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "tests.soak.submitter", *words], stderr=log)

    def _shoot(self, target: str, submitter: subprocess.Popen[bytes]) -> None:
        self.outcome.shots += 1
        node = self.chance.choice(("n0", "n1"))
        running = shims(self._directory)
        match target:
            case "broker":
                self.cluster.kill("broker")
            case "node":
                self.cluster.kill(node)
            case "stopped node":
                self._stop(node)
            case "stopped broker":
                self._stop("broker")
            case "client":
                submitter.kill()
            case "shim" | "command" if running:
                pid = self.chance.choice(list(running))
                self._shot.add(running[pid][0])
                for victim in [pid] if target == "shim" else children([pid]):
                    shoot(victim)

    def _stop(self, name: str) -> None:
        self._stopping.add(name)
        self.cluster.running[name].terminate()

    def _mend(self) -> None:
        """Start again what is no more; what was told to stop does so first."""
        for name, process in list(self.cluster.running.items()):
            if name in self._stopping:
                process.wait(30.0)
            if process.poll() is not None:
                self.cluster.start(name)
        self._stopping.clear()

    def _look(self, number: int, targets: tuple[str, ...]) -> None:
        with self.cluster.client(60.0) as client:
            try:
                until(lambda: not client.jobs(), "all jobs are over")
                all_up(client)
            except (AssertionError, RlschedError) as error:
                self._fault(number, f"{error}: {[(job.job, job.state, job.reason) for job in client.jobs()]}")
                return
            self._compare(number, client)
        left = strays(self._directory)
        if left:
            self._fault(number, f"processes {left} are left")
        self._say(f"round {number}: {' and '.join(targets)} shot, {len(self.outcome.faults)} faults so far")

    def _compare(self, number: int, client: Client) -> None:
        known = {job.name: job for job in client.jobs(finished=True)}
        lines = Lines.read(self._lines)
        acknowledged = [line.split() for line in self._acknowledged.read_text().splitlines()]
        self.outcome.jobs = len({token for token, _ in acknowledged})
        numbers: dict[str, int] = {}
        for token, job in acknowledged:
            if numbers.setdefault(token, int(job)) != int(job):
                self._fault(number, f"{token} was acknowledged as {numbers[token]} and as {job}")
            if token not in known or known[token].job != int(job):
                self._fault(number, f"{token}, acknowledged as {job}, is lost")
        if len(set(numbers.values())) != len(numbers):
            self._fault(number, "a number was given twice")
        for (token, attempt, rank), times in lines.starts.items():
            if times > 1:
                self._fault(number, f"{token} attempt {attempt} rank {rank} ran {times} times")
        for token in lines.overlaps:
            self._fault(number, f"two attempts of {token} were at work at once")
        for token, info in known.items():
            job = self._plans.get(token)
            if job is None or not token.startswith(f"r{number}-") or info.job in self._shot:
                continue
            if info.state == "cancelled" and job.cancelled:
                continue
            expected = ("completed" if job.code == 0 else "failed", job.code)
            if (info.state, info.exit_code) != expected:
                self._fault(
                    number,
                    f"{token}, job {info.job}: {info.state} {info.exit_code} ({info.reason}), not {expected}",
                )

    def _fault(self, number: int, line: str) -> None:
        self.outcome.faults.append(f"round {number}: {line}")
        self._say(self.outcome.faults[-1])
