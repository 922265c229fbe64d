"""Queries a Slurm cluster, and never writes to it; read access is enough."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from rlsched.engine.facts import Facts, SlurmError, jobs_of, nodes_of
from rlsched.engine.rest import SlurmRest
from rlsched.errors import InputError

PROGRAMS = ("squeue", "sinfo", "scontrol", "scancel")
KNOWN = (21, 8), (25, 11)
"""Oldest and newest supported Slurm version. The oldest is the first that has `squeue --json`."""
TIMEOUT_S = 30.0
_WHOLE = {"SLURM_BITSTR_LEN": "0"}
"""Environment for Slurm's commands: print all waiting tasks of an array, not only the first 64 characters."""
_log = logging.getLogger("rlsched.engine")


class Reader:
    """Queries one Slurm cluster: the cluster that `SLURM_CONF` selects, or the cluster of this machine.

    Args:
        partitions: Partitions that the broker schedules.
        timeout_s: Time-out for a query, seconds.
        rest: Address of the slurmrestd to query for jobs and nodes; "": run Slurm's commands.

    Attributes:
        asked: Number of queries to the controller so far.
        ran: Number of queries, by Slurm command or path of slurmrestd.

    Raises:
        InputError: the address is invalid.
    """

    def __init__(self, partitions: tuple[str, ...], timeout_s: float = TIMEOUT_S, rest: str = "") -> None:
        self.partitions, self.asked = partitions, 0
        self.ran: Counter[str] = Counter()
        self._timeout_s = timeout_s
        self._rest = SlurmRest(rest, timeout_s) if rest else None
        self._rest_answers = True

    def check(self) -> dict[str, str]:
        """Check that Slurm has a supported version and the partitions. Return its configuration.

        Raises:
            InputError: a command or a partition is missing, Slurm does not answer, or its version is not
                supported; the message is one line.
        """
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            raise InputError(
                f"no Slurm here: {', '.join(missing)} not found in PATH; run this where Slurm's commands are "
                "(Debian: apt-get install slurm-client)"
            )
        try:
            said = self._ask("scontrol", "show", "config")
        except SlurmError as error:
            raise InputError(f"{error}; is slurmctld up, and SLURM_CONF right?") from error
        config = dict(re.findall(r"^(\S+)\s*=\s*(.*?)\s*$", said.decode(errors="replace"), re.MULTILINE))
        version = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
        if version is None or not KNOWN[0] <= (int(version[1]), int(version[2])) <= KNOWN[1]:
            first, last = (f"{major}.{minor:02d}" for major, minor in KNOWN)
            found = config.get("SLURM_VERSION", "of no version")
            raise InputError(f"Slurm {found}: expected {first} to {last}, whose JSON rlsched can read")
        self._check_partitions()
        if self._rest is not None:
            self._rest.check()
        return config

    def _check_partitions(self) -> None:
        try:
            known = self._ask("sinfo", "-h", "-o", "%R").decode(errors="replace").split()
        except SlurmError as error:
            raise InputError(f"{error}; is slurmctld up, and SLURM_CONF right?") from error
        for name in self.partitions:
            if name not in known:
                raise InputError(
                    f"partition {name!r}: expected {', '.join(sorted(set(known)))} (this Slurm's partitions)"
                )

    def facts(self) -> Facts:
        """Return the present jobs and nodes.

        Raises:
            SlurmError: Slurm does not answer, or its answer cannot be parsed.
        """
        now_s = time.time()
        if self._rest is not None:
            try:
                facts = self._facts_by_rest(self._rest, now_s)
            except SlurmError as error:
                if self._rest_answers:
                    _log.warning("%s; `squeue` and `sinfo` are run until slurmrestd answers", error)
                self._rest_answers = False
            else:
                if not self._rest_answers:
                    _log.warning("slurmrestd answers again")
                self._rest_answers = True
                return facts
        jobs = jobs_of(self._ask("squeue", "--json"))
        return Facts(now_s=now_s, jobs=jobs, nodes=nodes_of(self._ask("sinfo", "--json")))

    def _facts_by_rest(self, rest: SlurmRest, now_s: float) -> Facts:
        self._count("slurmrestd jobs")
        jobs = jobs_of(rest.jobs(), "slurmrestd")
        self._count("slurmrestd nodes")
        return Facts(now_s=now_s, jobs=jobs, nodes=nodes_of(rest.nodes(), "slurmrestd"))

    def _ask(self, *words: str) -> bytes:
        self._count(" ".join(words[:2]) if words[0] == "scontrol" else words[0])
        return run(words, b"", self._timeout_s)

    def _count(self, what: str) -> None:
        self.asked += 1
        self.ran[what] += 1


def run(words: tuple[str, ...], said: bytes = b"", timeout_s: float = TIMEOUT_S) -> bytes:
    """Run one of Slurm's commands with `said` as its standard input, and return its standard output.

    Raises:
        SlurmError: the command fails, or times out.
    """
    try:
        done = subprocess.run(
            words, input=said, capture_output=True, timeout=timeout_s, check=False, env=os.environ | _WHOLE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"`{' '.join(words[:3])}`: {error}") from error
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise SlurmError(
            f"`{' '.join(words[:3])}` failed: {why[-1] if why else f'exit code {done.returncode}'}"
        )
    return done.stdout


def check_plugin(config: dict[str, str]) -> None:
    """Check that slurmctld uses rlsched's job_submit.lua.

    Raises:
        InputError: slurmctld does not use it, as far as this machine can detect.
    """
    plugins = config.get("JobSubmitPlugins", "")
    print_it = "`rlsched engine slurm --print-lua` prints it"
    if "lua" not in plugins.replace("job_submit/", "").split(","):
        raise InputError(
            f"JobSubmitPlugins of this Slurm cluster is {plugins or '(null)'}: expected lua, with rlsched's "
            f"job_submit.lua next to slurm.conf ({print_it}); restart slurmctld then"
        )
    path = Path(os.environ.get("SLURM_CONF") or config.get("SLURM_CONF", "")).with_name("job_submit.lua")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file, so that Slurm holds no job; {print_it}") from error
    except OSError:
        return  # the controller is elsewhere, or its files are not readable
    if "rlsched" not in text:
        raise InputError(f"{path}: this is not rlsched's plugin, so that Slurm holds no job; {print_it}")
