"""States that decisions met, and times outside a store, as `rlsched explain` shows them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from rlsched.cli.users.explain import explain
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.record import DecisionRecord, Names
from rlsched.decisions import story, story_lines
from rlsched.decisions.difference import difference
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.schema import JobEvent, NodeChange, StoreInfo
from rlsched.decisions.store import DecisionStore
from rlsched.decisions.timeline import AttemptSeen, JobSeen, Timeline
from rlsched.errors import InputError
from tests.support.decided import record

NAMES = Names(jobs={1: "1", 2: "2", 3: "3"})


def event(time_s: float, kind: str, job: str, gpus: int, **more: object) -> JobEvent:
    about: dict[str, object] = {"job": job, "num_gpus": float(gpus)}
    if kind == "start":
        about |= {"attempt": 1, "nodes": ["n0"] * gpus, "gpus": list(range(gpus))}
    return msgspec.convert({"time_s": time_s, "kind": kind} | about | more, JobEvent)


def decided(number: int, at_s: float, seq: int, *, preempt: bool = False) -> DecisionRecord:
    action = Preempt(seq=seq) if preempt else Start(seq=seq, gpus=(0,))
    made = record(number, action)
    return msgspec.structs.replace(made, now_s=at_s, turn=seq, names=NAMES, queue=b"")


def opened(folder: Path, events: list[JobEvent], decisions: list[DecisionRecord]) -> StoreReader:
    kept = DecisionStore(folder, StoreInfo(time="trace", of="a test"), held_s=0.0)
    kept.add_events([NodeChange(time_s=0.0, node="n0", num_gpus=8), *events])
    kept.add_decisions(decisions)
    kept.flush()
    reader = StoreReader(folder)
    reader.refresh()
    return reader


def met(reader: StoreReader, row: int) -> tuple[float, float, float]:
    """Waiting jobs of up to 1 GPU and of 2 to 8 GPUs, and busy GPUs."""
    found = story.decision(reader, row)["met"]
    return found["waiting up to 1 GPU"], found["waiting 2 to 8 GPUs"], found["busy_gpus"]


def test_decision_meets_the_end_that_caused_it_and_earlier_decisions_of_its_instant(tmp_path: Path) -> None:
    reader = opened(
        tmp_path,
        [
            event(1.0, "submit", "1", 8),
            event(1.0, "start", "1", 8),
            event(2.0, "submit", "2", 4),
            event(3.0, "submit", "3", 1),
            event(9.0, "end", "1", 8, state="completed", run_s=8.0),
            event(9.0, "start", "2", 4),
            event(9.0, "start", "3", 1),
        ],
        [decided(0, 1.0, 1), decided(1, 9.0, 2), decided(2, 9.0, 3)],
    )
    assert [met(reader, row) for row in range(3)] == [(0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (1.0, 0.0, 4.0)]
    assert story.moment(reader, 9.0)["met"]["busy_gpus"] == 5.0


def test_decision_that_preempts_meets_the_running_job(tmp_path: Path) -> None:
    reader = opened(
        tmp_path,
        [
            event(1.0, "submit", "1", 8),
            event(1.0, "start", "1", 8),
            event(5.0, "submit", "2", 4),
            event(5.0, "end", "1", 8, state="queued", run_s=4.0),
            event(5.0, "start", "2", 4),
        ],
        [decided(0, 1.0, 1), decided(1, 5.0, 1, preempt=True), decided(2, 5.0, 2)],
    )
    assert [met(reader, row) for row in (1, 2)] == [(0.0, 1.0, 8.0), (0.0, 2.0, 0.0)]


def test_mean_shares_do_not_use_more_gpus_than_there_are(tmp_path: Path) -> None:
    reader = opened(
        tmp_path,
        [
            *(event(1.0, "submit", job, 8) for job in ("1", "2")),
            *(event(1.0, "start", job, 8, share_milli=700) for job in ("1", "2")),
            event(4.0, "submit", "3", 1),
        ],
        [decided(0, 1.0, 1), decided(1, 1.0, 2), decided(2, 6.0, 3)],
    )
    assert met(reader, 2) == (1.0, 0.0, 8.0)


def test_times_outside_the_store_are_marked(tmp_path: Path) -> None:
    reader = opened(
        tmp_path,
        [event(10.0, "submit", "1", 8), event(10.0, "start", "1", 8), event(70.0, "submit", "2", 4)],
        [decided(0, 10.0, 1)],
    )
    first = [story_lines.moment_lines(story.moment(reader, at_s))[0] for at_s in (-5.0, 10.0, 99.0)]
    assert first[0].endswith("; the first record here is later, of day 0 00:00:00")
    assert first[1] == "at day 0 00:00:10: 0 jobs waited, 1 ran"
    assert first[2].endswith("; the last record here is earlier, of day 0 00:01:10")
    lines = story_lines.job_lines(story.job_story(reader, story.job_of(reader, "1")))
    assert "  running for 1 min until the last record, of day 0 00:01:10" in lines


@pytest.mark.parametrize("at", ["nan", "inf", "-inf", "1e300", "14:02"])
def test_times_of_a_trace_are_numbers(tmp_path: Path, at: str) -> None:
    opened(tmp_path, [], [decided(0, 10.0, 1)])
    with pytest.raises(InputError, match="expected a number"):
        CliRunner().invoke(explain, ["--at", at, "--run", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize("option", ["--hours", "--within"])
def test_nan_is_refused(tmp_path: Path, option: str) -> None:
    asked = ["--decision", "0", "--instead", "2", option, "nan", "--run", str(tmp_path)]
    with pytest.raises(InputError, match=f"{option}: expected a number above 0, got nan"):
        CliRunner().invoke(explain, asked, catch_exceptions=False)


@pytest.mark.parametrize("more", [("7",), ("--at", "10")])
def test_decision_is_named_by_itself(tmp_path: Path, more: tuple[str, ...]) -> None:
    asked = [*more, "--decision", "0", "--run", str(tmp_path)]
    with pytest.raises(InputError, match="--decision: names one decision by itself; leave out JOB and --at"):
        CliRunner().invoke(explain, asked, catch_exceptions=False)


def test_time_of_day_is_quoted_as_it_was_given(tmp_path: Path) -> None:
    DecisionStore(tmp_path, StoreInfo(time="unix", of="a test")).flush()
    with pytest.raises(InputError, match="--at '25:99': expected 14:02"):
        CliRunner().invoke(explain, ["--at", "25:99", "--run", str(tmp_path)], catch_exceptions=False)


def test_unreadable_store_is_one_line_and_a_damaged_end_is_named(tmp_path: Path) -> None:
    opened(tmp_path, [event(1.0, "submit", "1", 8)], [decided(0, 10.0, 1)])
    (file,) = tmp_path.glob("decisions-*")
    file.write_bytes(file.read_bytes()[:-20])
    told = CliRunner().invoke(explain, ["1", "--run", str(tmp_path)], catch_exceptions=False)
    assert told.exit_code == 0
    assert f"{file}: its last rows are incomplete" in told.stderr
    file.unlink()
    file.mkdir()
    with pytest.raises(InputError, match="the store of decisions cannot be read"):
        CliRunner().invoke(explain, ["1", "--run", str(tmp_path)], catch_exceptions=False)


def test_jobs_that_wait_as_long_are_not_listed() -> None:
    def waits(start_s: float) -> Timeline:
        job = JobSeen("1", "one", "u", "", 1.0, submit_s=0.0, end_s=math.inf)
        job.attempts.append(AttemptSeen(job, 1, start_s, ["n0"], [0], 1000, 1.0))
        made = Timeline()
        made.jobs["1"] = job
        return made

    for later_s, more in ((5.2, 0), (5.6, 1)):
        found = difference(waits(5.0), waits(later_s), 0.0, 100.0)
        assert (found["num_more"], len(found["more"]), found["num_less"]) == (more, more, 0)
