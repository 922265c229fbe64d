"""The columns of a store's history against the objects of its jobs, one by one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsched.decisions import store as store_module
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.schema import JobEvent, NodeChange, StoreInfo
from rlsched.decisions.segments import segment_files
from rlsched.decisions.store import DecisionStore
from rlsched.decisions.stored_timeline import StoredTimeline
from rlsched.decisions.timeline import AttemptSeen

NODES, A_NODE, JOBS, UNTIL_S = 4, 8, 120, 1_000.0


def life(rng: np.random.Generator, number: int) -> Iterator[JobEvent]:
    """Yield the events of a job: up to three attempts, some of which share GPUs, lack GPUs or never end."""
    about: dict[str, Any] = {
        "job": f"j{number}",
        "name": f"name{number % 7}",
        "user": f"u{number % 5}",
        "vc": f"vc{number % 3}",
        "num_gpus": float(rng.choice([0, 0.5, 1, 4, 12])),
    }
    at_s = round(float(rng.uniform(0.0, 500.0)))
    if number % 11:  # the others were submitted before the store began
        yield JobEvent(time_s=at_s, kind="submit", predicted_s=50.0, **about)
    for attempt in range(1, int(rng.integers(0, 4)) + 1):
        at_s += round(float(rng.uniform(0.0, 100.0)))
        first = int(rng.integers(0, NODES * A_NODE - 12))
        places = range(first, first + math.ceil(about["num_gpus"]))
        where: dict[str, Any] = {
            "attempt": attempt,
            "nodes": [f"n{place // A_NODE}" for place in places],
            "gpus": [place % A_NODE for place in places],
            "share_milli": int(rng.choice([500, 1000])),
            "sm_clock_frac": float(rng.choice([0.75, 1.0])),
        }
        yield JobEvent(time_s=at_s, kind="start", predicted_speed_frac=0.5, **about, **where)
        if rng.random() < 0.1:
            return
        run_s = round(float(rng.uniform(0.0, 100.0)))
        at_s += run_s
        state = str(rng.choice(["queued", "completed"]))
        energy_j = float(rng.choice([math.nan, 500.0]))
        yield JobEvent(
            time_s=at_s,
            kind="end",
            state=state,
            run_s=run_s,
            energy_j=energy_j,
            speed_frac=0.4,
            **about,
            **where,
        )
        if state == "completed":
            return
    if rng.random() < 0.3:
        yield JobEvent(time_s=at_s + 1.0, kind="end", state="cancelled", **about)


@pytest.fixture(params=range(2))
def timeline(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StoredTimeline:
    """The history of a store with several segments, each of which repeats the unfinished jobs."""
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 20_000)
    rng = np.random.default_rng(request.param)
    events = sorted((one for k in range(JOBS) for one in life(rng, k)), key=lambda one: one.time_s)
    kept = DecisionStore(tmp_path, StoreInfo(time="trace", of="a test"))
    kept.add_events([NodeChange(time_s=0.0, node=f"n{k}", num_gpus=A_NODE) for k in range(NODES)])
    reader = StoreReader(tmp_path)
    left = list(events)
    while left:
        size = int(rng.integers(1, 40))
        kept.add_events(left[:size])
        kept.flush()
        del left[:size]
        if rng.random() < 0.2:
            reader.refresh()
            assert len(reader.timeline.table.event) == len(reader.timeline.attempts)
    reader.refresh()
    assert len(segment_files(tmp_path, "jobs")) > 2
    return reader.timeline


def test_attempts_are_those_of_the_objects(timeline: StoredTimeline) -> None:
    attempts, table = timeline.attempts, timeline.table
    assert len(attempts) > JOBS / 2
    assert [one.start_s for one in attempts] == table.start_s.tolist()
    assert [one.end_s for one in attempts] == table.end_s.tolist()
    assert [len(one.gpus) for one in attempts] == table.num_gpus.tolist()
    assert [one.share_milli for one in attempts] == table.share_milli.tolist()
    assert [one.sm_clock_frac for one in attempts] == table.sm_clock_frac.tolist()
    assert [timeline.names[k] for k in table.job.tolist()] == [one.job.job for one in attempts]
    assert all(one.job.attempts[nth] is one for one, nth in zip(attempts, table.nth.tolist(), strict=True))
    assert timeline.attempts_at(np.arange(len(attempts))) == attempts


def test_jobs_made_one_by_one_are_those_made_together(timeline: StoredTimeline) -> None:
    alone = [repr(timeline.job(name)) for name in timeline.names]
    jobs = timeline.jobs
    assert list(jobs) == timeline.names
    assert [repr(job) for job in jobs.values()] == alone
    about = timeline.about(np.arange(len(timeline))[::-1])[::-1]
    assert [(one["job"], one["user"], one["num_gpus"]) for one in about] == [
        (job.job, job.user, job.num_gpus) for job in jobs.values()
    ]
    names, submits, starts = timeline.first_starts()
    assert names == list(jobs)
    assert np.array_equal(submits, [job.submit_s for job in jobs.values()], equal_nan=True)
    first = [job.attempts[0].start_s if job.attempts else math.nan for job in jobs.values()]
    assert np.array_equal(starts, first, equal_nan=True)
    assert timeline.job("999999") is None


@pytest.mark.parametrize("text", ["j7", "name3", "nam", "u2", "vc1", "none"])
def test_search_finds_id_user_vc_and_beginning_of_the_name(timeline: StoredTimeline, text: str) -> None:
    jobs = timeline.jobs.values()
    hits = [job.job for job in jobs if text in (job.job, job.user, job.vc) or job.name.startswith(text)]
    assert {job.job for job in timeline.find(text, JOBS)} == set(hits)
    assert len(timeline.find(text, 2)) == min(2, len(hits))


def busy(running: list[AttemptSeen]) -> float:
    """The sum of the requested shares on each GPU, up to 1."""
    asked: dict[tuple[str, int], float] = defaultdict(float)
    for one in running:
        for place in zip(one.nodes, one.gpus, strict=True):
            asked[place] += min(one.job.num_gpus, 1.0)
    return sum(min(share, 1.0) for share in asked.values())


def test_state_at_any_time_is_that_of_the_objects(timeline: StoredTimeline) -> None:
    jobs, attempts = list(timeline.jobs.values()), timeline.attempts
    times_s = [*np.linspace(0.0, UNTIL_S, 40).tolist(), *{one.start_s for one in attempts}]
    curves, power = timeline.curves(np.array(times_s)), timeline.power(np.array(times_s))
    assert power is not None
    for k, at_s in enumerate(times_s):
        waiting = {job.job for job in jobs if job.waits_at(at_s)}
        found = timeline.queue_at(at_s)
        assert {job.job for job in found} == waiting
        assert [job.submit_s for job in found] == sorted(job.submit_s for job in found)
        running = [one for one in attempts if one.start_s <= at_s < one.end_s]
        assert timeline.running_at(at_s) == running
        assert timeline.num_running_at(at_s) == len(running)
        assert curves["busy_gpus"][k] == pytest.approx(busy(running))
        assert timeline.busy_gpus_met(at_s, *(np.zeros(0, np.int64),) * 2) == pytest.approx(busy(running))
        assert curves["gpus"][k] == NODES * A_NODE
        known = [one for one in running if one.run_s > 0.0 and one.energy_j >= 0.0]
        assert power["power_w"][k] == pytest.approx(sum(one.energy_j / one.run_s for one in known), abs=1e-6)
        unknown = busy([one for one in running if one not in known])
        assert power["measured_gpus"][k] == pytest.approx(busy(running) - unknown, abs=1e-6)


def test_waiting_jobs_are_counted_by_size(timeline: StoredTimeline) -> None:
    jobs = [job for job in timeline.jobs.values() if math.isfinite(job.submit_s)]
    times_s = np.linspace(0.0, UNTIL_S, 40)
    submitted_before = len(jobs) < len(timeline.jobs)  # their starts and ends also change the counts
    curves = timeline.curves(times_s)
    for name, low, high in (("up to 1 GPU", -1, 1), ("2 to 8 GPUs", 1, 8), ("more than 8", 8, 99)):
        for at_s, count in zip(times_s.tolist(), curves[f"waiting {name}"].tolist(), strict=True):
            waiting = sum(job.waits_at(at_s) for job in jobs if low < job.num_gpus <= high)
            assert count <= waiting if submitted_before else count == waiting


def shared(one: AttemptSeen, other: AttemptSeen) -> bool:
    places = {*zip(one.nodes, one.gpus, strict=True)}
    return not places.isdisjoint(zip(other.nodes, other.gpus, strict=True))


def test_neighbours_of_an_attempt_are_those_on_its_gpus(timeline: StoredTimeline) -> None:
    attempts = timeline.attempts

    def among(attempt: AttemptSeen, holds: Callable[[AttemptSeen], bool]) -> list[AttemptSeen]:
        return [one for one in attempts if one is not attempt and holds(one) and shared(one, attempt)]

    for at, mine in enumerate(attempts):
        begin_s, end_s = mine.start_s, mine.end_s
        beside = among(mine, lambda one: one.start_s < end_s and begin_s < one.end_s)  # noqa: B023
        assert timeline.sharing_with(mine) == beside
        before = among(mine, lambda one: one.start_s < begin_s <= one.end_s)  # noqa: B023
        assert timeline.before_on(mine) == before
        after = among(mine, lambda one: one.start_s == end_s and one.job is not mine.job)  # noqa: B023
        assert timeline.started_on(mine, end_s) == after
        there = [one for one in attempts[:at] if one.start_s <= begin_s < one.end_s] + [mine]
        for node, (free, count) in timeline.left_free(mine).items():
            held = {
                gpu for one in there for name, gpu in zip(one.nodes, one.gpus, strict=True) if name == node
            }
            assert (free, count) == (A_NODE - len(held), A_NODE)
