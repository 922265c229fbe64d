"""A gateway and a shadow that query a real slurmrestd for jobs and nodes.

Skipped by name without it: `apt-get install slurmrestd`, in addition to the packages of `test_slurm`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlsched.engine.reader import Reader
from rlsched.errors import InputError
from tests.soak.slurm_gateway import OnSlurm, run
from tests.soak.slurm_shadow import ShadowProcess
from tests.support.online.cluster import until
from tests.support.online.counted_commands import CountedCommands
from tests.support.online.real_slurm import REST, RealSlurm, lacking

MISSING = lacking() or ("" if shutil.which(REST) else "no slurmrestd here")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING or "there is one")]


def test_jobs_run_on_the_decided_gpus_also_without_slurmrestd(slurm_folder: Path) -> None:
    system = OnSlurm(slurm_folder, nodes=2, rest=True)
    try:
        outcome = run(system, count=12, kills=0, seed=3, timeout_s=120.0)
        assert "slurmrestd" not in system.log("gateway"), "it answers, with nothing to report"
        system.slurm.running[REST].kill()
        system.slurm.running[REST].wait(30.0)
        until(lambda: "are run until slurmrestd answers" in system.log("gateway"), "it is missed")
        without = run(system, count=6, kills=0, seed=4, timeout_s=120.0)
        system.slurm.start_rest()
        until(lambda: "slurmrestd answers again" in system.log("gateway"), "it is used again")
        print(system.log("gateway"))
    finally:
        system.close()
    for one in (outcome, without):
        assert [one.wrong, one.codes, one.twice, one.lost] == [[], [], [], []]
    assert (outcome.right >= 10, without.right >= 5) == (True, True)


def test_rest_answers_equal_those_of_the_commands(
    slurm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = RealSlurm(slurm_folder, nodes=2)
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    script = slurm_folder / "sleep.sh"
    script.write_text("#!/bin/sh\nsleep 60\n")
    script.chmod(0o755)
    try:
        slurm.sbatch("-N2", "--gres=gpu:i0:1", "--exclusive", script=script, uid=2)
        slurm.sbatch("--hold", "--array=0-9%2", "--gres=gpu:2", script=script, uid=3)
        last = slurm.sbatch("--begin=now+1hour", script=script)
        slurm.ask("scontrol", "update", f"JobId={last}", "AdminComment=rlsched:attempt=1;x=2")
        by_rest, by_commands = Reader(("gpu",), rest=slurm.start_rest()), Reader(("gpu",))
        by_rest.check()
        until(lambda: any(job.runs for job in by_commands.facts().jobs.values()), "the gang runs")
        said, wanted = by_rest.facts(), by_commands.facts()
        assert (said.jobs, said.nodes) == (wanted.jobs, wanted.nodes)
        assert said.jobs[last].marks == {"attempt": "1", "x": "2"}
        assert by_rest.ran["slurmrestd jobs"] == 1
        assert by_rest.ran["squeue"] == 0
        slurm.running[REST].kill()
        slurm.running[REST].wait(30.0)
        with pytest.raises(InputError, match="check that slurmrestd runs at this address"):
            Reader(("gpu",), rest=by_rest_address(slurm)).check()
    finally:
        slurm.close()


def by_rest_address(slurm: RealSlurm) -> str:
    return f"unix:{slurm.directory}/rest/socket"


def test_shadow_polls_without_running_commands(slurm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = RealSlurm(slurm_folder, nodes=2)
    monkeypatch.setenv("SLURM_CONF", str(slurm.config))
    commands = CountedCommands(slurm_folder / "counted", slurm.environment)
    options = ("--poll-s", "0.5", "--slurmrestd", slurm.start_rest())
    shadow = ShadowProcess(slurm, slurm_folder / "shadow", commands, *options)
    try:
        script = slurm_folder / "job.sh"
        script.write_text("#!/bin/sh\nsleep 1\n")
        script.chmod(0o755)
        slurm.sbatch("--gres=gpu:1", script=script)
        until(lambda: "COMPLETED" in [job.state for job in slurm.jobs().values()], "it ran")
        assert shadow.close() == 0
    finally:
        shadow.process.kill()
        slurm.close()
    assert set(commands.calls()) == {"sinfo -h -o %R", "scontrol show config"}
