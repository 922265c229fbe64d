"""A real Slurm whose jobs rlsched schedules, with kill -9 of gateway, broker and controller.

python -m tests.soak.slurm_gateway --jobs 500 --kills 60
python -m tests.soak.slurm_gateway --jobs 500 --kills 20 --plain
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rlsched.client.client import Client
from rlsched.engine.fallback import plugin
from rlsched.errors import RlschedError
from rlsched.wire.messages import JobInfo
from tests.support.online.cluster import Cluster, until
from tests.support.online.real_slurm import RealSlurm, lacking

SAVED_S = 6.0
"""slurmctld saves its state every 5 s: a kill -9 loses later acknowledgements."""
TENDED_S = 45.0
"""A node that registers earlier after a restart of slurmctld does not report jobs that it no longer runs."""
_SCRIPT = """#!/bin/sh
key=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}_${{SLURM_ARRAY_TASK_ID:-x}}
echo "start $SLURM_JOB_ID $key $SLURM_JOB_NODELIST \
$CUDA_VISIBLE_DEVICES $(date +%s.%N) ${{SLURM_RESTART_COUNT:-0}}" >> {ran}
sleep $1
echo "end $SLURM_JOB_ID $key - - $(date +%s.%N)" >> {ran}
exit $2
"""


class Plan(NamedTuple):
    """A submission: options of sbatch, run time and exit code of each job."""

    options: tuple[str, ...]
    runs_s: float
    code: int
    tasks: int = 1
    fate: str = ""
    """`cancel`: its user cancels it; `limit`: it reaches its time limit; `after`: after the previous job."""


class OnSlurm(Cluster):
    """A broker without its own nodes, a real Slurm, and the gateway between them."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 4,
        gpus: int = 4,
        poll_s: float = 0.2,
        release_after_s: float = 60.0,
        broker_options: tuple[str, ...] = (),
        gateway_options: tuple[str, ...] = (),
        exact: bool = True,
        settings: str = "",
        rest: bool = False,
    ) -> None:
        self.stamps = directory / "gateway"
        self.stamps.mkdir(parents=True)
        holds = "--priority-only" not in gateway_options
        text = plugin(("gpu",), self.stamps, release_after_s, 0, exact=exact) if holds else None
        self.slurm = RealSlurm(directory / "slurm", nodes, gpus, plugin=text, exact=exact, settings=settings)
        os.environ["SLURM_CONF"] = str(self.slurm.config)
        asked_by = ("--slurmrestd", self.slurm.start_rest()) if rest else ()
        self._gateway_options = (
            *("--poll-s", str(poll_s), "--release-after", str(release_after_s)),
            *asked_by,
            *gateway_options,
        )
        try:
            super().__init__(directory, nodes=(), broker_options=broker_options)
            self.start("gateway")
            self.wait_until_ready(nodes)
        except BaseException:
            print(self.log("gateway") if (directory / "gateway.log").exists() else "no gateway")
            self.slurm.close()
            raise

    def wait_until_ready(self, nodes: int = 4) -> None:
        """Wait until the broker decides and all nodes are up."""
        with self.client(timeout_s=60.0) as client:
            until(
                lambda: sum(node.state == "up" for node in client.nodes()) == nodes, self.log("gateway"), 60.0
            )

    def start(self, name: str) -> None:
        """Restart the broker, the gateway or slurmctld."""
        if name == "gateway":
            place = ("--partition", "gpu", "--broker", self.address, "--dir", str(self.stamps))
            self._spawn(name, "engine", "slurm", *place, *self._gateway_options)
        else:
            super().start(name)

    def restart_ended(self) -> None:
        """Restart the gateway if it exited, because it started without slurmctld."""
        if self.running["gateway"].poll() is not None:
            self.start("gateway")

    def kill_and_restart(self, name: str, *, saves: bool = False) -> None:
        """kill -9 and restart; `saves`: slurmctld may save its state first."""
        if name == "slurmctld":
            self.slurm.kill(name, saves=saves)
        else:
            self.kill(name)
            self.start(name)

    def tend(self) -> None:
        """Repair Slurm as an operator does after a kill -9 of slurmctld."""
        self.slurm.tend()

    def close(self) -> None:
        """Stop all processes."""
        super().close()
        self.slurm.close()


class PlainSlurm:
    """The same Slurm without rlsched, to count the jobs that a kill -9 of slurmctld repeats."""

    def __init__(self, directory: Path, nodes: int = 4, gpus: int = 4) -> None:
        self.directory = directory
        self.slurm = RealSlurm(directory / "slurm", nodes, gpus, exact=False)
        os.environ["SLURM_CONF"] = str(self.slurm.config)

    def restart_ended(self) -> None:
        """Do nothing: no process exits by itself."""

    def kill_and_restart(self, name: str, *, saves: bool = False) -> None:
        """kill -9 and restart slurmctld; `saves`: it may save its state first."""
        self.slurm.kill(name, saves=saves)

    def tend(self) -> None:
        """Repair as an operator does, and release jobs that Slurm holds after a failed launch."""
        self.slurm.tend()
        jobs = self.slurm.ask("squeue", "-h", "-t", "PD", "-r", "-o", "%i %r", check=False)
        for line in jobs.splitlines():
            number, _, reason = line.partition(" ")
            if reason == "launch failed requeued held":
                self.slurm.ask("scontrol", "release", number, check=False)

    def close(self) -> None:
        """Stop all processes."""
        self.slurm.close()


def plans(count: int, rng: random.Random) -> list[Plan]:
    """Submissions for this number of jobs: single, gang, array, chain, cancelled, at the time limit."""
    found: list[Plan] = []
    while (left := count - sum(plan.tasks for plan in found)) > 0:
        kind, runs_s = rng.random(), rng.choice((0.2, 0.5, 1.0, 2.0))
        code = rng.choice((0, 0, 0, 0, 3, 7))
        gpus = rng.choice((1, 1, 1, 2, 2, 4))
        if kind < 0.55:
            found.append(Plan((f"--gres=gpu:{gpus}",), runs_s, code))
        elif kind < 0.65:
            found.append(Plan(("-N2", "--ntasks-per-node=1", "--gres=gpu:4"), runs_s, code))
        elif kind < 0.80:
            tasks = min(rng.randint(2, 8), left)
            found.append(Plan((f"--gres=gpu:{min(gpus, 2)}", f"--array=1-{tasks}%3"), runs_s, code, tasks))
        elif kind < 0.90:
            found.append(Plan((f"--gpus={gpus}",), runs_s, code, fate="after"))
        elif kind < 0.96:
            found.append(Plan((f"--gres=gpu:{gpus}",), 30.0, 0, fate="cancel"))
        elif kind < 0.97:
            found.append(Plan(("--gres=gpu:1", "-t", "1"), 600.0, 0, fate="limit"))
        else:
            found.append(Plan((f"--gres=gpu:{gpus}", "--exclusive"), runs_s, code))
    return found


class Outcome(NamedTuple):
    """Outcome of all jobs.

    Attributes:
        jobs: Number of jobs acknowledged by sbatch.
        right: Number of jobs that ran on the nodes and GPUs of the broker's decision.
        wrong: Lines about jobs that ran on other nodes or GPUs.
        codes: Lines about exit codes that differ among the script, Slurm and the broker.
        twice: Keys with more starts than ordered.
        lost: Keys without a known end.
        left: Jobs left to Slurm's own order that ended correctly.
        forgotten: Lines as above, for jobs that slurmctld forgot: it was killed within `SAVED_S` after their
            start or end and ran them again, as it does without rlsched.
        latency_s: Time from the decision to the script's first line.
        at_risk: Number of jobs that began or ended within `SAVED_S` before a kill -9 of slurmctld.
    """

    jobs: int
    right: int
    wrong: list[str]
    codes: list[str]
    twice: list[str]
    lost: list[str]
    left: list[str]
    forgotten: list[str]
    latency_s: list[float]
    at_risk: int

    def __str__(self) -> str:
        late = sorted(self.latency_s) or [0.0]
        p90_s = late[int(0.9 * (len(late) - 1))]
        return (
            f"{self.jobs} jobs, {self.right} where decided, {len(self.wrong)} not, {len(self.codes)} exit "
            f"codes wrong, {len(self.twice)} twice, {len(self.lost)} lost, {len(self.left)} left to Slurm, "
            f"{len(self.forgotten)} of {self.at_risk} at risk forgotten by a killed slurmctld; "
            f"decision to start p50 {statistics.median(late):.3f} s, p90 {p90_s:.3f} s"
        )


class Driven(NamedTuple):
    """Jobs that were submitted and have ended.

    Attributes:
        keys: Plan of each job or array task.
        ran: File in which scripts write their starts and ends.
        killed_s: Times of each kill -9 of slurmctld, Unix seconds.
    """

    keys: dict[str, Plan]
    ran: Path
    killed_s: list[float]

    def moments(self) -> tuple[dict[str, list[list[str]]], dict[str, list[float]]]:
        """Words of each job's starts, and times of its ends."""
        began, ended_s = dict[str, list[list[str]]](), dict[str, list[float]]()
        for line in self.ran.read_text().splitlines():
            words = line.split(" ")
            name = words[2].removesuffix("_x")
            if words[0] == "start":
                began.setdefault(name, []).append(words)
            else:
                ended_s.setdefault(name, []).append(float(words[5]))
        return began, ended_s

    def at_risk(self) -> set[str]:
        """Keys of jobs that began or ended within `SAVED_S` before a kill -9 of slurmctld."""
        began, ended_s = self.moments()
        return {
            key
            for key in self.keys
            if any(
                0.0 <= kill - at_s < SAVED_S
                for kill in self.killed_s
                for at_s in [float(words[5]) for words in began.get(key, [])] + ended_s.get(key, [])
            )
        }


def run(
    system: OnSlurm, count: int, kills: int, seed: int, timeout_s: float = 600.0, *, saves: bool = False
) -> Outcome:
    """Drive the jobs, and compare script, Slurm and broker; arguments as in `drive`."""
    driven = drive(system, count, kills, seed, timeout_s, saves=saves)
    with system.client(timeout_s=30.0) as client:
        until(lambda: not _live(client), "the broker knows all ends", 90.0)
        return _compare(client, system.slurm, driven)


def run_plain(system: PlainSlurm, count: int, kills: int, seed: int, timeout_s: float) -> str:
    """Drive the jobs without rlsched, and count the repeated ones; arguments as in `drive`."""
    driven = drive(system, count, kills, seed, timeout_s)
    began, _ = driven.moments()
    jobs, at_risk = system.slurm.jobs(), driven.at_risk()
    repeated = {
        key for key in driven.keys if len(began.get(key, [])) > 1 + (jobs[key].restarts if key in jobs else 0)
    }
    return (
        f"{len(driven.keys)} jobs on plain Slurm: {len(repeated - at_risk)} twice, {len(repeated & at_risk)} "
        f"of {len(at_risk)} at risk forgotten by a killed slurmctld, "
        f"{sum(key not in jobs for key in driven.keys)} unknown to Slurm"
    )


def drive(
    system: OnSlurm | PlainSlurm,
    count: int,
    kills: int,
    seed: int,
    timeout_s: float = 600.0,
    *,
    saves: bool = False,
) -> Driven:
    """Submit, kill, drain and resume, and wait for all ends.

    Args:
        system: The system under test.
        count: Number of jobs.
        kills: Number of kill -9 of gateway, broker and controller, or of the controller without rlsched, at
            random times.
        seed: Seed of the random times.
        timeout_s: Time by which all jobs must have ended, seconds.
        saves: Whether slurmctld may save its state first. After a kill -9 it also forgets the latest ends,
            and takes minutes to notice.
    """
    rng, slurm = random.Random(seed), system.slurm
    ran = system.directory / "ran"
    ran.touch()
    script = system.directory / "job.sh"
    script.write_text(_SCRIPT.format(ran=ran))
    script.chmod(0o755)
    keys: dict[str, Plan] = {}
    waiting: list[tuple[float, str]] = []
    before = ""
    todo = list(reversed(plans(count, rng)))
    parts = ("gateway", "broker", "slurmctld") if isinstance(system, OnSlurm) else ("slurmctld",)
    victims = [parts[k % len(parts)] for k in range(kills)]
    rng.shuffle(victims)
    began_s = time.monotonic()
    next_kill_s = began_s + rng.uniform(2.0, 4.0)
    drained, submitted_s = "", began_s
    tended_s, killed_s = began_s, list[float]()
    while True:
        now_s = time.monotonic()
        assert now_s - began_s < timeout_s, f"not ended: {_unfinished(slurm, keys)}"
        system.restart_ended()
        for _ in range(4 if todo else 0):
            if not todo:
                break
            plan = todo.pop()
            options = (
                (*plan.options, f"--dependency=afterany:{before}")
                if plan.fate == "after" and before
                else plan.options
            )
            number = slurm.sbatch(*options, script=script, arguments=(str(plan.runs_s), str(plan.code)))
            before, submitted_s = number, now_s
            names = [f"{number}_{task}" for task in range(1, plan.tasks + 1)] if plan.tasks > 1 else [number]
            names = (
                [f"{number}_1"]
                if any("--array" in one for one in plan.options) and plan.tasks == 1
                else names
            )
            keys.update(dict.fromkeys(names, plan))
            if plan.fate == "cancel":
                waiting.append((now_s + rng.uniform(0.5, 8.0), number))
        for due in [one for one in waiting if one[0] <= now_s]:
            waiting.remove(due)
            slurm.ask("scancel", due[1], check=False)
        if victims and now_s >= next_kill_s:
            if victims[-1] == "slurmctld" and now_s - submitted_s < SAVED_S:
                victims.insert(0, victims.pop())
                next_kill_s = now_s + 0.1
            if victims[-1] != "slurmctld" or now_s - submitted_s >= SAVED_S:
                if victims[-1] == "slurmctld" and not saves:
                    killed_s.append(time.time())
                system.kill_and_restart(victims.pop(), saves=saves)
                next_kill_s = now_s + rng.uniform(0.2, 1.5)
                if drained:
                    slurm.ask("scontrol", "update", f"NodeName={drained}", "State=RESUME", check=False)
                    drained = ""
                elif rng.random() < 0.3:
                    drained = rng.choice(slurm.nodes)
                    words = (f"NodeName={drained}", "State=DRAIN", "Reason=test")
                    slurm.ask("scontrol", "update", *words, check=False)
        if not todo and not victims and not waiting:
            if not _unfinished(slurm, keys):
                break
            if now_s - tended_s >= TENDED_S:
                tended_s = now_s
                system.tend()
        time.sleep(0.2)
    return Driven(keys, ran, killed_s)


def _live(client: Client) -> list[JobInfo]:
    try:
        return client.jobs()
    except RlschedError:
        return [None]  # type: ignore[list-item]


def _unfinished(slurm: RealSlurm, keys: dict[str, Plan]) -> list[str]:
    jobs = slurm.jobs()
    return [
        f"{key} {jobs[key].state} {jobs[key].reason}" for key in keys if key in jobs and not jobs[key].is_over
    ] or ([] if jobs else ["slurmctld is unreachable"])


def _compare(client: Client, slurm: RealSlurm, driven: Driven) -> Outcome:
    keys = driven.keys
    began, at_risk = driven.moments()[0], driven.at_risk()
    jobs = slurm.jobs()
    told = {info.job: info for info in client.jobs(finished=True)}
    known = {
        key: told[int(job.marks["j"].partition(".")[0])]
        for key, job in jobs.items()
        if job.marks is not None and "j" in job.marks and int(job.marks["j"].partition(".")[0]) in told
    }
    outcome = Outcome(len(keys), 0, [], [], [], [], [], [], [], len(at_risk))
    right = 0
    for key, plan in keys.items():
        job, info, starts = jobs.get(key), known.get(key), began.get(key, [])

        def note(found: list[str], line: str, is_forgotten: bool = key in at_risk) -> None:
            (outcome.forgotten if is_forgotten else found).append(line)

        wanted = plan.code if not plan.fate or plan.fate == "after" else None
        if len(starts) > 1 + (job.restarts if job is not None else 0):
            note(outcome.twice, f"{key}: {len(starts)} starts, {job and job.restarts} restarts")
        if job is None or (info is None and "left" not in (job.marks or {}) and plan.fate != "cancel"):
            note(outcome.lost, f"{key} {plan} slurm {job and job.state}, broker {info and info.state}")
            continue
        if not starts and wanted is not None:
            note(outcome.lost, f"{key} never began: Slurm {job.state}, broker {info and info.state}")
        if info is None:
            if wanted is not None and job.exit_code != wanted:
                note(outcome.codes, f"{key}: {wanted}, Slurm {job.state} {job.exit_code}, left to it")
            if "left" in (job.marks or {}):
                outcome.left.append(f"{key}: {job.marks}")
            continue
        if wanted is not None and not (job.exit_code == info.exit_code == wanted):
            line = f"Slurm {job.state} {job.exit_code}, broker {info.state} {info.exit_code} {info.reason}"
            note(outcome.codes, f"{key}: {wanted}, {line}")
        if not starts:
            continue
        words = starts[-1]
        there = ",".join(map(str, info.gpus[0])) if info.gpus else ""
        exact = words[4] == there or ("--exclusive" in plan.options and there.startswith(words[4]))
        if sorted(job.nodes) == sorted(info.nodes) and exact:
            right += 1
            outcome.latency_s.append(float(words[5]) - (info.start_s or 0.0))
        else:
            line = f"{words[3]}[{words[4]}], decided {info.nodes} {info.gpus}, attempt {info.attempt}"
            note(outcome.wrong, f"{key}: {line}; Slurm has {job.marks} {job.gpus} restarts {job.restarts}")
    return outcome._replace(right=right)


def slurm_latencies(slurm: RealSlurm, script: Path, ran: Path, count: int) -> list[float]:
    """Seconds from `scontrol release` to the script's first line in Slurm without rlsched."""
    found = []
    for _ in range(count):
        number = slurm.sbatch("--hold", "-p", "other", "--gres=gpu:i0:1", script=script, arguments=("0", "0"))
        time.sleep(random.random())
        began_s = time.time()
        slurm.ask("scontrol", "release", number)
        until(lambda number=number: f" {number}_x " in ran.read_text(), "it began")  # type: ignore[misc]
        line = next(line for line in ran.read_text().splitlines() if f" {number}_x " in line)
        found.append(float(line.split(" ")[5]) - began_s)
    return found


def main() -> None:
    """Run it and print the outcome of the jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="Without rlsched: kill only slurmctld.")
    parser.add_argument(
        "--latency", type=int, default=0, help="Number of starts by Slurm itself, for comparison."
    )
    options = parser.parse_args()
    if lacking():
        raise SystemExit(lacking())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        if options.plain:
            plain = PlainSlurm(Path(folder))
            try:
                print(run_plain(plain, options.jobs, options.kills, options.seed, timeout_s=1800.0))
            finally:
                plain.close()
            return
        system = OnSlurm(Path(folder))
        try:
            outcome = run(system, options.jobs, options.kills, options.seed, timeout_s=1800.0)
            print(outcome)
            for kind in ("wrong", "codes", "twice", "lost", "left", "forgotten"):
                for line in getattr(outcome, kind)[:20]:
                    print(f"  {kind}: {line}")
            if options.latency:
                own = slurm_latencies(
                    system.slurm, Path(folder) / "job.sh", Path(folder) / "ran", options.latency
                )
                print(f"Slurm itself: release to start p50 {statistics.median(own):.3f} s of {len(own)}")
        finally:
            print(system.log("gateway"))
            system.close()


if __name__ == "__main__":
    main()
