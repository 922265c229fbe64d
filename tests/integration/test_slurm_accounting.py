"""The accounting of a real Slurm, with slurmdbd and a database: its history as a trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlsched.cli.traces.convert import convert
from rlsched.workload.trace import Trace
from tests.support.online.cluster import until
from tests.support.online.real_slurm import RealSlurm
from tests.support.online.slurm_accounting import SlurmAccounting, lacking

MISSING = lacking()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING or "there is one")]
USER, OTHER = 2, 3
"""User IDs that exist on every Debian system: bin and sys."""


@pytest.fixture
def slurm(slurm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    accounting = SlurmAccounting(slurm_folder / "accounting")
    try:
        slurm = RealSlurm(slurm_folder / "slurm", nodes=2, exact=False, settings=accounting.settings)
        monkeypatch.setenv("SLURM_CONF", str(slurm.config))
        try:
            yield slurm
        finally:
            slurm.close()
    finally:
        accounting.close()


def states(slurm: RealSlurm) -> dict[str, str]:
    """State of each job in the accounting; tasks by `ARRAY_TASK`."""
    said = slurm.ask("sacct", "-a", "-X", "-n", "-P", "-o", "JobID,State")
    return dict(line.split("|") for line in said.splitlines())


def test_history_of_a_real_accounting_is_a_trace(slurm: RealSlurm, slurm_folder: Path) -> None:
    script = slurm_folder / "job.sh"
    ran = slurm_folder / "ran"
    ran.mkdir()
    ran.chmod(0o777)
    script.write_text(f"#!/bin/sh\ntouch {ran}/$SLURM_JOB_ID\nsleep $1\nexit $2\n")
    script.chmod(0o755)

    def submit(*options: str, runs_s: str = "1", code: str = "0", uid: int = USER) -> str:
        return slurm.sbatch(*options, script=script, arguments=(runs_s, code), uid=uid)

    done = submit("--gres=gpu:2", "-J", "a|b", "-t", "5")
    failed = submit("--gres=gpu:1", code="3", uid=OTHER)
    gang = submit("-N2", "--gres=gpu:3")
    array = submit("--gres=gpu:1", "--array=4-5")
    held = submit("--hold", "--gres=gpu:1")
    again = submit("--gres=gpu:1", "--requeue", runs_s="3")
    until((ran / again).exists, "its script runs: a job requeued before that can fail")
    slurm.ask("scontrol", "requeue", again)
    slurm.ask("scancel", held)
    until(lambda: slurm.jobs()[again].restarts == 1, "it is requeued")
    until(lambda: not slurm.ask("squeue", "-h", "-t", "CG"), "its first attempt has ended")
    time.sleep(2.0)  # in Slurm 22.05, an attempt that begins in the second of its requeue can fail
    slurm.ask("scontrol", "update", f"JobId={again}", "StartTime=now", "AdminComment=rlsched:j=7.1")
    over = (done, failed, gang, f"{array}_4", f"{array}_5", again)
    until(
        lambda: all(states(slurm).get(job) in ("COMPLETED", "FAILED") for job in over), "all jobs have ended"
    )

    assert states(slurm)[again] == "COMPLETED"
    out = slurm_folder / "jobs.csv"
    told = CliRunner().invoke(convert, ["--from", "sacct", "--since", "1h", str(out)])
    assert told.exit_code == 0, told.output
    trace = Trace.read(out)
    rows = {job: n for n, job in enumerate(trace.job_id.tolist())}
    assert set(rows) == set(over), "the cancelled job never started"
    gpus = {job: float(trace.num_gpus[rows[job]]) for job in over}
    assert gpus == {done: 2, failed: 1, gang: 6, f"{array}_4": 1, f"{array}_5": 1, again: 1}
    assert trace.user[rows[done]] != trace.user[rows[failed]]
    assert trace.extra["array_id"][rows[f"{array}_4"]] == array
    assert [trace.extra["x_requeues"][rows[job]] for job in (again, done)] == ["1", ""]
    assert trace.time_limit_s[rows[done]] == 300.0
    assert trace.duration_s[rows[again]] == pytest.approx(3.0, abs=1.5), "its last attempt"
    said = slurm.ask("sacct", "-n", "-X", "-P", "-j", again, "-o", "AdminComment")
    assert said == "rlsched:j=7.1"
