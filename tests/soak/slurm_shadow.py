"""A shadow of a real Slurm under load: every command that it ran, and its cost for the controller.

python -m tests.soak.slurm_shadow --minutes 10

The same load runs throughout. The shadow runs in some stretches only, in the order with, without, without,
with; each side gets the requested minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support.online.counted_commands import CountedCommands
from tests.support.online.real_slurm import RealSlurm, lacking, until

RLSCHED = Path(sys.executable).with_name("rlsched")
STRETCH_S = 60.0
EVERY_S = 0.5
READY = "nothing is written to Slurm"


class Outcome(NamedTuple):
    """Calls and costs of a shadow.

    Attributes:
        with_s: CPU seconds of slurmctld in each stretch with the shadow.
        without_s: CPU seconds of slurmctld in each stretch without the shadow.
        calls: Calls of Slurm's commands, by command.
        writes: Calls that are not known to be read-only.
        jobs: Number of jobs submitted meanwhile.
    """

    with_s: list[float]
    without_s: list[float]
    calls: dict[str, int]
    writes: list[str]
    jobs: int

    @property
    def up_frac(self) -> float:
        """Relative increase of slurmctld's CPU time with the shadow."""
        return sum(self.with_s) / sum(self.without_s) - 1.0

    def __str__(self) -> str:
        return (
            f"{len(self.with_s)} stretches with the shadow, {len(self.without_s)} without, {self.jobs} jobs: "
            f"slurmctld {sum(self.with_s):.2f} s of CPU with, {sum(self.without_s):.2f} s without, "
            f"{self.up_frac:+.1%}; calls {self.calls}; {len(self.writes)} writes"
        )


class Load:
    """Submits a job of random size every half second until it is closed.

    Attributes:
        jobs: Number of jobs submitted so far.
    """

    def __init__(self, slurm: RealSlurm, script: Path, seed: int) -> None:
        self.jobs = 0
        self._slurm, self._script, self._rng = slurm, script, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            gpus, runs_s = self._rng.choice((1, 1, 1, 2, 2, 4)), self._rng.choice((1, 2, 4, 8))
            self._slurm.sbatch(f"--gres=gpu:{gpus}", script=self._script, arguments=(str(runs_s),))
            self.jobs += 1

    def close(self) -> None:
        """Submit no more."""
        self._stop.set()
        self._thread.join()


class ShadowProcess:
    """`rlsched engine slurm --shadow` as a process.

    Args:
        slurm: The Slurm that it follows.
        directory: Its --dir.
        commands: Slurm's commands, with counters.
        options: Further options of its command line.
    """

    def __init__(self, slurm: RealSlurm, directory: Path, commands: CountedCommands, *options: str) -> None:
        self.directory, self._log = directory, directory.with_suffix(".log")
        words = ("engine", "slurm", "--shadow", "--partition", "gpu", "--dir", str(directory), *options)
        with self._log.open("ab") as log:
            at = self._log.stat().st_size
            self.process = subprocess.Popen(
                [str(RLSCHED), *words],
                stdout=log,
                stderr=log,
                env={**slurm.environment, **commands.environment},
            )
        until(
            lambda: READY in self._log.read_text()[at:] or self.process.poll() is not None, "it is ready", 180
        )
        assert self.process.poll() is None, self._log.read_text()[at:]

    def close(self) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60.0)


def controller_cpu_s(slurm: RealSlurm) -> float:
    """CPU time of slurmctld so far, seconds."""
    pid = (slurm.directory / "slurmctld.pid").read_text().strip()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(slurm: RealSlurm, minutes: float, seed: int, *options: str, stretch_s: float = STRETCH_S) -> Outcome:
    """Measure.

    Args:
        slurm: A Slurm without jobs.
        minutes: Minutes with the shadow; as many follow without.
        seed: Seed of the jobs.
        options: Options of the shadow.
        stretch_s: Length of a stretch, seconds.
    """
    script = slurm.directory / "sleep.sh"
    script.write_text("#!/bin/sh\nsleep $1\n")
    script.chmod(0o755)
    commands = CountedCommands(slurm.directory / "counted", slurm.environment)
    load = Load(slurm, script, seed)
    took: dict[bool, list[float]] = {True: [], False: []}
    shadow: ShadowProcess | None = None
    try:
        for number in range(2 * max(1, round(minutes * 60.0 / stretch_s))):
            looks = number % 4 in (0, 3)
            shadow = ShadowProcess(slurm, slurm.directory / "shadow", commands, *options) if looks else None
            before_s = controller_cpu_s(slurm)
            over_s = time.monotonic() + stretch_s
            until(lambda at_s=over_s: time.monotonic() >= at_s, "the stretch has ended", 2 * stretch_s)  # type: ignore[misc]
            took[looks].append(controller_cpu_s(slurm) - before_s)
            if shadow is not None:
                assert shadow.close() == 0
            print(f"{'with' if looks else 'without'}: {took[looks][-1]:.2f} s", flush=True)
    finally:
        load.close()
        if shadow is not None:
            shadow.process.kill()
            shadow.process.wait(30.0)
    calls = Counter(
        " ".join(call.split()[:2]) if call.startswith("scontrol") else call.split()[0]
        for call in commands.calls()
    )
    return Outcome(took[True], took[False], dict(calls), commands.writes(), load.jobs)


def main() -> int:
    """Run it and print the result; exit code 1 after a write or more than 5 % of CPU time."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.slurm_shadow", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-frac", type=float, default=0.05, help="largest relative increase of CPU time")
    parser.add_argument("--keep", type=Path, help="a folder for all files, which is not removed")
    args, options = parser.parse_known_args()
    if lacking():
        print(f"skipped: {lacking()}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as made:
        directory = args.keep or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        slurm = RealSlurm(directory)
        try:
            found = run(slurm, args.minutes, args.seed, *options)
            print(found)
            print(slurm.ask("sdiag"))
        finally:
            slurm.close()
    return int(bool(found.writes) or found.up_frac > args.most_frac)


if __name__ == "__main__":
    sys.exit(main())
