"""The jobs of a sweep: scripts and the lines that they must write; processes and kill -9."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

OWN_CODES = (0, 0, 0, 3, 7)
SECONDS = (0.0, 0.1, 0.3, 1.0)
"""Run times of jobs, seconds."""
SCRIPT = """
{environment}
line() {{ echo "{token} $RLSCHED_JOB $RLSCHED_ATTEMPT $RLSCHED_RANK $1" >> {lines}; }}
{before}
exec 9> {lock}.$RLSCHED_JOB.$RLSCHED_RANK
flock --nonblock --shared 9 || line overlap
flock --nonblock 9 || line overlap
line start
{work}
line end
exit {code}
"""
KINDS = {
    "plain": ("", "sleep {seconds}"),
    "deaf": ("trap '' TERM", "sleep {seconds}"),
    "daemon": ("", "setsid sleep {seconds} & sleep {seconds}"),
    "forker": ("", "for i in 1 2 3 4 5; do (sleep {seconds}) & done; wait"),
}
"""Work of a job: before its first line, and after it."""


@dataclass
class Planned:
    """One job of a round.

    Attributes:
        token: Its submission token, and its name.
        gpus: Number of GPUs; above 4, a gang on two nodes.
        script: For `sh -c`.
        code: The exit code that its script ends with.
        cancelled: Whether it is cancelled.
    """

    token: str
    gpus: int
    script: str
    code: int
    cancelled: bool


def plan(
    chance: Random,
    tag: str,
    jobs: int,
    lines: Path,
    environment: str = "",
    run_times_s: Sequence[float] = SECONDS,
) -> list[Planned]:
    """A round's jobs. `environment`: shell code before each script."""
    found = []
    for number in range(jobs):
        token = f"{tag}-{number}"
        before, work = KINDS[chance.choice(list(KINDS))]
        code, seconds = chance.choice(OWN_CODES), chance.choice(run_times_s)
        script = SCRIPT.format(
            token=token,
            environment=environment,
            lines=lines,
            lock=lines.with_name(f"lock-{token}"),
            before=before,
            work=work.format(seconds=seconds),
            code=code,
        )
        gpus = chance.choice((1, 1, 1, 2, 4, 8))
        found.append(Planned(token, gpus, script, code, chance.random() < 0.1))
    return found


def held(token: str, gpus: int, lines: Path, gate: Path, environment: str = "") -> Planned:
    """A job that runs until its gate exists. `environment`: shell code before its script."""
    script = SCRIPT.format(
        token=token,
        environment=environment,
        lines=lines,
        lock=lines.with_name(f"lock-{token}"),
        before="",
        work=f"until [ -e {gate} ]; do sleep 0.1; done",
        code=3,
    )
    return Planned(token, gpus, script, 3, cancelled=False)


@dataclass
class Lines:
    """Lines that the jobs wrote.

    Attributes:
        starts: (job, attempt, rank) -> number of starts.
        overlaps: Jobs with two attempts running at the same time.
    """

    starts: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    overlaps: set[int] = field(default_factory=set)

    @property
    def restarted(self) -> set[int]:
        """Jobs that started in more than one attempt."""
        attempts = Counter(job for job, _ in {(job, attempt) for job, attempt, _ in self.starts})
        return {job for job, times in attempts.items() if times > 1}

    @classmethod
    def read(cls, path: Path) -> Lines:
        """All lines so far."""
        lines = cls()
        for line in path.read_text().splitlines():
            _, job, attempt, rank, what = line.split()
            if what == "start":
                lines.starts[int(job), int(attempt), int(rank)] += 1
            elif what == "overlap":
                lines.overlaps.add(int(job))
        return lines


def shims(directory: Path) -> dict[int, tuple[int, int, int]]:
    """PID -> (job, attempt, rank) of every live shim below a directory."""
    found = {}
    for path in directory.rglob("pid"):
        name = path.parent.name.split(".")
        try:
            pid = int(json.loads(path.read_text())["pid"])
        except (OSError, ValueError, LookupError):
            continue
        if pid > 0 and Path(f"/proc/{pid}").exists() and len(name) == 3 and all(map(str.isdigit, name)):
            found[pid] = (int(name[0]), int(name[1]), int(name[2]))
    return found


def strays(mark: str, also: str = "") -> list[int]:
    """Processes with environment variables that start with `mark` and with `also`."""
    return [pid for pid in all_pids() if all(_has(pid, one) for one in (mark, also))]


def _has(pid: int, mark: str) -> bool:
    return any(entry.startswith(os.fsencode(mark)) for entry in _read(pid, "environ"))


def children(parents: Iterable[int]) -> list[int]:
    """Processes whose parent is one of these."""
    wanted, found = set(parents), []
    for pid in all_pids():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) in wanted:
            found.append(pid)
    return found


def kill_9(pid: int) -> bool:
    """kill -9; returns whether the process existed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def all_pids() -> list[int]:
    """Every process of this machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []
