"""kill -9 of controller, node daemons, shims, commands and clients at seeded times, with real processes.

Some rounds stop daemons in order, stop the whole cluster, or reboot a node. Exited processes are restarted,
and every job must end. Then the cluster's book is compared with the lines that the jobs wrote.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.soak.jobs import Lines, Planned, children, held, kill_9, plan
from tests.soak.systems import CONTROLLER, NODES, Found, System
from tests.support.online.cluster import until

JOBS = 10
GANG_GPUS = 8
"""All GPUs of both nodes."""


@dataclass
class Outcome:
    """Result of a sweep.

    Attributes:
        injections: Number of kills, stops and reboots.
        jobs: Number of acknowledged jobs.
        faults: One line for each fault found.
    """

    injections: int = 0
    jobs: int = 0
    faults: list[str] = field(default_factory=list)


class Sweep:
    """One cluster, with rounds of jobs and injected failures.

    Args:
        directory: Folder for all files.
        system: The system under test.
        seed: Seed of jobs, targets and times.
        say: Receives a line per round.
    """

    def __init__(
        self, directory: Path, system: System, seed: int, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.chance = Random(seed)
        self.outcome = Outcome()
        self._system, self._say, self._directory = system, say, directory
        self._lines = directory / "lines"
        self._lines.touch()
        self._acknowledged = directory / "acknowledged"
        self._acknowledged.touch()
        self._killed: set[int] = set()
        self._plans: dict[str, Planned] = {}
        self._reported: set[str] = set()
        self._stuck: set[int] = set()
        until(system.up, "all nodes are up")

    def round(self, number: int) -> None:
        """Submit jobs, inject one or more failures, and check the outcome."""
        targets = self._system.targets[number % len(self._system.targets)]
        system = self._system
        planned = plan(self.chance, f"r{number}", JOBS, self._lines, system.environment, system.run_times_s)
        self._plans |= {job.token: job for job in planned}
        submitter = self._submit(planned)
        time.sleep(self.chance.uniform(0.0, 2.5))
        for target in targets:
            self._inject(target, submitter)
            time.sleep(self.chance.choice((0.0, 0.0, 0.2)))
        self._system.restart_dead()
        if submitter.wait() != 0:
            self._submit(planned).wait()
        self._check(number, targets)

    def adoption(self, number: int, adopted: Callable[[], tuple[int, int]]) -> None:
        """Kill each node's daemon while a gang runs on both nodes, and expect that the gang is adopted there.

        In other rounds, it depends on times and places whether a job runs on a node whose daemon is killed.

        Args:
            number: Number of the round.
            adopted: Returns how many ranks, and how many control daemons of MPS, have been adopted so far.
        """
        gate, (ranks, daemons) = self._directory / f"gate-{number}", adopted()
        gang = held(f"r{number}-held", GANG_GPUS, self._lines, gate, self._system.environment)
        self._plans[gang.token] = gang

        def is_adopted() -> bool:
            now_ranks, now_daemons = adopted()
            return now_ranks >= ranks + len(NODES) and now_daemons > daemons

        try:
            assert self._submit([gang]).wait() == 0, "the gang is submitted"
            until(lambda: len(self._system.shims()) == len(NODES), "the gang runs on both nodes")
            for node in NODES:
                self.outcome.injections += 1
                self._system.kill(node)
                self._system.restart_dead()
            until(is_adopted, "the gang and its control daemon of MPS are adopted")
        except AssertionError as error:
            self._fault(number, str(error))
        finally:
            gate.touch()
        self._check(number, ("node",))

    def _submit(self, planned: Sequence[Planned]) -> subprocess.Popen[bytes]:
        path = self._directory / "plan.json"
        path.write_text(json.dumps([(job.token, job.gpus, job.script, job.cancelled) for job in planned]))
        return self._system.submit(path, self._acknowledged)

    def _inject(self, target: str, submitter: subprocess.Popen[bytes]) -> None:
        self.outcome.injections += 1
        node = self.chance.choice(NODES)
        running = self._system.shims()
        match target:
            case "controller":
                self._system.kill(CONTROLLER)
            case "node":
                self._system.kill(node)
            case "stopped node":
                self._system.stop(node)
            case "stopped controller":
                self._system.stop(CONTROLLER)
            case "client":
                submitter.kill()
            case "shim" | "command" if running:
                pid = self.chance.choice(list(running))
                self._killed.add(running[pid])
                for victim in [pid] if target == "shim" else children([pid]):
                    kill_9(victim)
            case other if other in self._system.others:
                self._system.others[other](node)

    def _check(self, number: int, targets: Sequence[str]) -> None:
        try:
            until(lambda: not self._system.live() - self._stuck, "all jobs have ended")
        except AssertionError as error:
            late = self._system.live() - self._stuck
            self._stuck |= late
            self._fault(number, f"{error}: { {job: self._system.jobs().get(job) for job in late} }")
        try:
            until(self._system.up, "all nodes are up")
        except AssertionError as error:
            self._fault(number, str(error))
        self._compare(number, targets, self._system.jobs())
        try:
            until(lambda: not self._system.left(), "nothing is left")
        except AssertionError:
            self._fault(number, f"left behind: {', '.join(self._system.left())}")
        self._say(f"round {number}: {' and '.join(targets)} hit, {len(self.outcome.faults)} faults so far")

    def _compare(self, number: int, targets: Sequence[str], jobs: dict[int, Found]) -> None:
        lines = Lines.read(self._lines)
        acknowledged = [line.split() for line in self._acknowledged.read_text().splitlines()]
        self.outcome.jobs = len({token for token, _ in acknowledged})
        numbers: dict[str, int] = {}
        for token, said in acknowledged:
            job = int(said)
            if numbers.setdefault(token, job) != job:
                self._fault(number, f"{token} was acknowledged as {numbers[token]} and as {job}")
            if job not in jobs or jobs[job].token != token:
                self._fault(number, f"{token}, acknowledged as {job}, is lost")
        if len(set(numbers.values())) != len(numbers):
            self._fault(number, "a number was used twice")
        for (job, attempt, rank), times in lines.starts.items():
            if times > 1:
                self._fault(number, f"job {job} attempt {attempt} rank {rank} ran {times} times")
        for job in lines.restarted if set(targets) == {"node"} else ():
            if job in jobs and jobs[job].token.startswith(f"r{number}-"):
                self._fault(number, f"job {job} was not adopted: it started in two attempts")
        for job in lines.overlaps:
            self._fault(number, f"two attempts of job {job} ran at the same time")
        for job, found in jobs.items():
            planned = self._plans.get(found.token)
            mine = found.token.startswith(f"r{number}-")
            if planned is None or not mine or job in self._killed or job in self._stuck:
                continue
            if found.state == "cancelled" and planned.cancelled:
                continue
            expected = ("completed" if planned.code == 0 else "failed", planned.code)
            if (found.state, found.exit_code) != expected:
                what = f"{found.state} {found.exit_code} ({found.reason}), not {expected}"
                self._fault(number, f"{found.token}, job {job}: {what}")

    def _fault(self, number: int, line: str) -> None:
        """Record a fault once, although every later round finds it again."""
        if line in self._reported:
            return
        self._reported.add(line)
        self.outcome.faults.append(f"round {number}: {line}")
        self._say(self.outcome.faults[-1])
