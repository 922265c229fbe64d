"""A shadow of a real Slurm: it never writes, and its book equals Slurm's, also after kill -9 of any process.

Skipped by name without a Slurm: `apt-get install slurmctld slurmd slurm-client munge`, as root.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.queries.as_history import history_of
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.engine.shadow.mirror import key_of
from rlsched.engine.shadow.notes import StartComparison, read_notes
from rlsched.errors import InputError
from tests.soak.slurm_shadow import RLSCHED, ShadowProcess, run
from tests.support.online.counted_commands import CountedCommands
from tests.support.online.real_slurm import RealSlurm, lacking, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lacking()), reason=lacking() or "there is a Slurm")]
_SCRIPT = """#!/bin/sh
key=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
echo "$key $SLURM_JOB_NODELIST $CUDA_VISIBLE_DEVICES" >> {ran}
sleep $1
exit ${{2:-0}}
"""
Beside = Callable[[ShadowProcess], ShadowProcess]
READS = {"squeue --json", "sinfo --json", "sinfo -h -o %R", "scontrol show config"}
WRITING_RPCS = ("UPDATE_JOB", "UPDATE_NODE", "UPDATE_PARTITION", "CANCEL", "KILL_JOB", "REQUEUE", "SUSPEND")

HUNG_S = 30.0
"""Time without the end of a job, of jobs of seconds, after which step daemons hang."""
LOOK_S = 10.0
"""Within this time a shadow that polls every half second has polled, also on a busy machine."""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    monkeypatch.setenv("SLURM_CONF", "")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        slurm = RealSlurm(Path(folder), nodes=2)
        yield slurm
        slurm.close()


@pytest.fixture
def kept_shadows() -> Iterator[Beside]:
    """Shadows that are stopped at the end of the test in any case."""
    shadows: list[ShadowProcess] = []

    def keep(shadow: ShadowProcess) -> ShadowProcess:
        shadows.append(shadow)
        return shadow

    yield keep
    for shadow in shadows:
        shadow.process.kill()
        shadow.process.wait(30.0)


def test_all_jobs_are_adopted_despite_kill_9_of_shadow_and_controller(
    slurm: RealSlurm, kept_shadows: Beside
) -> None:
    ran = slurm.directory / "ran"
    ran.touch()
    script = slurm.directory / "job.sh"
    script.write_text(_SCRIPT.format(ran=ran))
    script.chmod(0o755)
    commands = CountedCommands(slurm.directory / "counted", slurm.environment)
    place = slurm.directory / "shadow"

    def submit(*options: str, runs_s: float = 1.0, code: int = 0) -> str:
        return slurm.sbatch(*options, script=script, arguments=(str(runs_s), str(code)))

    def all_ended() -> bool:
        jobs = slurm.jobs()
        return bool(jobs) and all(job.is_over for job in jobs.values())

    def is_followed(key: str) -> bool:
        try:
            return key in history_of(place).trace.job_id
        except InputError:  # no job yet
            return False

    before = submit("--gres=gpu:3", runs_s=600.0)
    shadow = kept_shadows(ShadowProcess(slurm, place, commands, "--poll-s", "0.5"))
    until(lambda: is_followed(before), "jobs that ran before are followed", 60.0)
    away: list[tuple[float, float]] = []
    for number in range(24):
        submit(f"--gres=gpu:{(1, 2, 4)[number % 3]}", runs_s=0.5 + number % 3, code=3 * (number % 5 == 0))
        if number in (8, 16):
            gone_s = time.time()
            shadow.process.kill()
            shadow.process.wait(30.0)
            submit("--gres=gpu:1", "--array=1-4%2")
            shadow = kept_shadows(ShadowProcess(slurm, place, commands, "--poll-s", "0.5"))
            away.append((gone_s - LOOK_S, time.time() + LOOK_S))
    slurm.ask("scancel", before)
    submit("-N2", "--ntasks-per-node=1", "--gres=gpu:4")
    submit("--gpus=2", "--exclusive")
    slurm.ask("scancel", submit("--gres=gpu:4", runs_s=60.0))
    slurm.kill("slurmctld", saves=True)
    tended_s, moved_s, left = 0.0, time.monotonic(), -1

    def tend_until_ended() -> bool:
        nonlocal tended_s, moved_s, left
        if time.monotonic() - tended_s > 5.0:
            slurm.tend()
            tended_s = time.monotonic()
            live = sum(not job.is_over for job in slurm.jobs().values())
            if live != left:
                moved_s, left = time.monotonic(), live
            elif time.monotonic() - moved_s > HUNG_S:
                slurm.end_hung_steps()
                moved_s = time.monotonic()
        return all_ended()

    until(tend_until_ended, "all jobs have ended", 120.0, progress=lambda: left)
    truth = {key: job for key, job in slurm.jobs().items() if job.nodes}

    def missing() -> dict[str, str | None]:
        told = history_of(place).trace
        ended = dict(zip(told.job_id.tolist(), told.status.tolist(), strict=True))
        return {key: ended.get(key) for key in truth if ended.get(key) in (None, "running", "queued")}

    with contextlib.suppress(AssertionError):
        until(lambda: not missing(), "the shadow knows all ends", 10.0)
    given_up = missing()  # Slurm does not report the GPUs of ended jobs
    assert set(given_up.values()) <= {None}
    for key in given_up:
        start_s, end_s = truth[key].start_s, truth[key].end_s
        assert any(gone_s <= start_s and end_s <= back_s for gone_s, back_s in away), (
            key,
            start_s,
            end_s,
            away,
        )
    truth = {key: job for key, job in truth.items() if key not in given_up}
    assert shadow.close() == 0
    told = history_of(place)
    rows = {key: row for row, key in enumerate(told.trace.job_id.tolist())}
    state = BrokerState(Predictions("running-mean"), load_scheduler(Policy("tuned")).order)
    state.replay(read_journal(place / JOURNAL_FILE))
    by_key = {key_of(job.spec.token): job for job in state.jobs.values()}
    for key, job in truth.items():
        start_s = told.origin_s + told.trace.submit_s[rows[key]] + told.trace.extra["queue_s"][rows[key]]
        assert abs(start_s - job.start_s) <= 2.0, key
        expected = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled"}[job.state]
        assert told.trace.status[rows[key]] == expected, key
    compared = {note.job: note for note in read_notes(place) if isinstance(note, StartComparison)}
    known = {
        key for key, note in compared.items() if note.gpus and key in truth and not truth[key].is_exclusive
    }
    for line in ran.read_text().splitlines():
        key, _, gpus = line.split(" ")
        if key in given_up:
            continue
        attempt = by_key[key].attempt
        assert attempt is not None, key
        assert sorted(rank.node for rank in attempt.ranks) == sorted(truth[key].nodes)
        if key in known:
            assert all(rank.gpus == sorted(map(int, gpus.split(","))) for rank in attempt.ranks), key
    assert len(known) >= 2  # Slurm does not report the GPUs of jobs that had ended by the next poll
    assert compared.keys() >= truth.keys() - {before}
    assert set(commands.calls()) <= READS


def test_no_call_writes_and_the_controller_received_no_change(slurm: RealSlurm) -> None:
    outcome = run(slurm, 1 / 3, 1, "--poll-s", "1", stretch_s=10.0)
    assert outcome.writes == []
    assert outcome.calls["squeue"] >= 10
    assert outcome.jobs >= 20
    assert min(outcome.with_s) > 0.0
    heard = re.findall(r"^\s+(\w+)\s+\(\s*\d+\)\s+count:(\d+)", slurm.ask("sdiag"), re.MULTILINE)
    assert "REQUEST_JOB_INFO" in dict(heard)
    assert [name for name, _ in heard if any(word in name for word in WRITING_RPCS)] == []


def test_report_of_a_running_shadow(slurm: RealSlurm, kept_shadows: Beside) -> None:
    commands = CountedCommands(slurm.directory / "counted", slurm.environment)
    script = slurm.directory / "job.sh"
    script.write_text("#!/bin/sh\nsleep 1\n")
    script.chmod(0o755)
    place = slurm.directory / "shadow"
    shadow = kept_shadows(ShadowProcess(slurm, place, commands, "--poll-s", "0.5", "--policy", "ppo"))
    for _ in range(6):
        slurm.sbatch("--gres=gpu:1", script=script)
    until(
        lambda: sum(isinstance(note, StartComparison) for note in read_notes(place)) == 6,
        "six starts are compared",
    )
    words = [str(RLSCHED), "shadow", str(place), "--html", str(place / "page.html")]
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120.0)
    assert said.returncode == 0, said.stderr
    assert "policy ppo" in said.stdout
    assert "same instant" in said.stdout
    assert (place / "page.html").is_file()
    assert shadow.close() == 0
    assert commands.writes() == []
