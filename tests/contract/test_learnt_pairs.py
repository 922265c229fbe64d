"""Observed pairs change the co-tenants of jobs without a named workload, alike in broker and simulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.entries import JobSubmitted, PairSeen
from rlsched.broker.base.ledger_models import factors_of, workload_name, workload_number
from rlsched.broker.base.profiles import OF_PAIRS, Profiles
from rlsched.broker.compaction import compaction
from rlsched.broker.journal.codec import unpack
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JournalEvents, journal_events, redecide
from rlsched.broker.journal.snapshots import picture_of
from rlsched.broker.state.job_requests import runs_as
from rlsched.decide.actions import Start
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import Capabilities, Ended, Explanation, Metered, RankMetered, RankUsage, Why
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.profiled import with_profiles
from tests.support.broker.hand import LIMITS, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed
from tests.support.online.live_replay import repeated_starts

FIRST, SECOND = "resnet18-cifar10-b32", "transformer-multi30k-b32"
BEFORE, AFTER = "autoencoder-movielens20m-b512", "transformer-multi30k-b16"
"""Workloads that model the job without a named workload: without observed pairs, and with them."""
SOLO = {"x": 500, FIRST: 560, SECOND: 660}
"""GPU time of the commands without co-tenants, thousandths."""
MIB = {"x": 1_000, FIRST: 8_000, SECOND: 8_000}
SPEEDS = {"x": 0.8, FIRST: 0.94}
"""Speeds of the job and of `FIRST` next to each other; the catalogue has 1.0 for `BEFORE`."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.sqlite")) as made:
        yield made


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    """A broker that knows each command from two runs without co-tenants, with two V100."""
    made = HandBroker(load_scheduler("pack"), journal, limits=LIMITS, shares=True)
    can = Capabilities(shares=True, gpu_memory_mib=16_160, fences=True)
    for name in ("n0", "n1"):
        made.says(name, msgspec.structs.replace(hello(name, 1), gpu_type="V100", capabilities=can))
    for name in SOLO:
        for _ in range(2):
            end(made, start(made, name), after_s=60.0)
    return made


def start(broker: HandBroker, name: str) -> int:
    """Start a job; returns its number."""
    broker.ask(submit(command=["run", name], workload=name if name != "x" else ""))
    number = len(broker.state.jobs)
    broker.says(node_of(broker, number), launched(number))
    return number


def node_of(broker: HandBroker, job: int) -> str:
    attempt = broker.state.jobs[job].active
    assert attempt is not None
    return attempt.ranks[0].node


def end(broker: HandBroker, job: int, after_s: float = 1.0) -> None:
    name = broker.state.jobs[job].spec.command[1]
    usage = RankUsage(measured_s=60, gpu_milli=SOLO[name], gpu_memory_mib=MIB[name])
    said = Ended(job=job, attempt=1, rank=0, exit_code=0, usage=usage)
    broker.says(node_of(broker, job), said, after_s=after_s)


def observe(broker: HandBroker, *jobs: int) -> None:
    """These jobs run next to each other at `SPEEDS`, until their speeds are learnt."""
    for _ in range(33):
        broker.wait(9.999, "n0", "n1")
        for job in jobs:
            name = broker.state.jobs[job].spec.command[1]
            milli = round(SOLO[name] * SPEEDS[name])
            usage = RankUsage(measured_s=10, gpu_milli=milli, shared_gpu_milli=milli)
            rank = RankMetered(job=job, attempt=1, rank=0, usage=usage)
            broker.says(node_of(broker, job), Metered(ranks=[rank]))
    broker.wait(0.1, "n0", "n1")


def scenario(broker: HandBroker) -> tuple[int, int, int, int]:
    """The job twice next to two others: `FIRST` and `SECOND` run all the time.

    Returns:
        Numbers of `FIRST`, of `SECOND`, of the job before the pair was observed, and of the job afterwards.
    """
    first, second = start(broker, FIRST), start(broker, SECOND)
    assert node_of(broker, first) != node_of(broker, second), "their memory does not fit on one GPU"
    one = start(broker, "x")
    observe(broker, one, first)
    end(broker, one)
    return first, second, one, start(broker, "x")


def without_pairs(events: JournalEvents) -> JournalEvents:
    """Remove what profiles learnt of pairs, as in journals of earlier versions."""
    for instant in events.instants:
        for at, change in enumerate(instant.changes):
            if isinstance(change, JobSubmitted):
                bare = {
                    name: msgspec.structs.replace(one, sensitivity=None, pressure=None)
                    for name, one in change.profiles.items()
                }
                instant.changes[at] = msgspec.structs.replace(change, profiles=bare)
    return events


def last_start(events: JournalEvents) -> object:
    made = [one.action for one in redecide(events, load_scheduler("pack")) if isinstance(one.action, Start)]
    return made[-1]


def test_job_gets_another_co_tenant_after_an_observed_pair(broker: HandBroker, journal: Journal) -> None:
    first, second, one, again = scenario(broker)
    assert workload_name(runs_as(broker.state.jobs[one].spec)) == BEFORE
    assert workload_name(runs_as(broker.state.jobs[again].spec)) == AFTER
    assert node_of(broker, again) == node_of(broker, second)
    facts = [row.entry for row in journal.rows() if isinstance(row.entry, PairSeen)]
    assert [(fact.job, fact.beside) for fact in facts] == [(first, one), (one, first)]
    assert broker.state.models.pairs.kept() == ([], []), "the catalogue has measured this pair"

    profile = broker.state.jobs[again].spec.profiles["V100"]
    sensitivity, pressure = factors_of("V100")[workload_number(FIRST) - 1]
    assert profile.sensitivity is not None
    assert profile.pressure is not None
    assert profile.sensitivity.value == pytest.approx((1.0 / 0.8 - 1.0) / pressure, rel=0.01)
    assert profile.pressure.value == pytest.approx((1.0 / 0.94 - 1.0) / sensitivity, rel=0.05)

    before, after = (last_start(each) for each in variants(journal))
    assert before != after, "without the observed pair it joins the first again"


def variants(journal: Journal) -> tuple[JournalEvents, JournalEvents]:
    """Events of the journal without observed pairs in profiles, and as they are."""
    return without_pairs(journal_events(journal.path)), journal_events(journal.path)


def test_replays_decide_as_the_broker_did(broker: HandBroker, journal: Journal) -> None:
    for job in scenario(broker)[:2]:
        end(broker, job)
    end(broker, len(broker.state.jobs))
    live = [record for kept in broker.records for record in kept.records]
    events = journal_events(journal.path)
    made = redecide(events, load_scheduler("pack"))
    assert [(one.action, one.state_digest, one.plans) for one in made] == [
        (one.action, one.state_digest, one.plans) for one in live
    ]
    assert len(repeated_starts(load_scheduler("pack"), events, live)) == 10


def test_restart_snapshot_and_base_have_the_same_profiles(
    broker: HandBroker, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_WORTH", 0)
    scenario(broker)
    kept = broker.state.profiles.kept_profiles()
    assert any("pressure" in one.fields for one in kept)
    assert replayed(journal).profiles.kept_profiles() == kept
    assert unpack(picture_of(broker.state)).profiles.kept_profiles() == kept
    cut = compaction.made(journal.path, broker.now_s + 1.0)
    assert cut is not None
    assert compaction.put(journal, cut)
    assert replayed(journal).profiles.kept_profiles() == kept
    assert Profiles.from_kept(kept).kept_profiles() == kept


def test_evaluation_with_the_brokers_profiles_models_the_job_alike(
    broker: HandBroker, journal: Journal
) -> None:
    scenario(broker)
    trace = Trace.from_columns(
        name="w", submit_s=[0.0], duration_s=[100.0], num_gpus=[1.0], user=[""], extra={"workload": [""]}
    )
    trace = replace(trace, extra={**trace.extra, "x_command": np.array(["run x"])})
    assert with_profiles(trace, journal.path).trace.extra["workload"].tolist() == [AFTER]


def test_why_shows_learnt_and_observed_factors(broker: HandBroker) -> None:
    said = broker.ask(Why(job=scenario(broker)[-1]))
    assert isinstance(said, Explanation)
    found = {figure.field: figure for figure in said.profile}
    for field in OF_PAIRS:
        assert (found[field].status, found[field].count) == ("learnt", 1)
        assert found[field].source == "1 observed co-tenant"
    assert any("expected to have: sensitivity 1." in line for line in said.details)


def test_why_shows_the_factors_of_the_present_pair(broker: HandBroker) -> None:
    first, _ = start(broker, FIRST), start(broker, SECOND)
    one = start(broker, "x")
    assert node_of(broker, first) == node_of(broker, one)
    observe(broker, one, first)
    said = broker.ask(Why(job=one))
    assert isinstance(said, Explanation)
    found = {figure.field: figure for figure in said.profile}
    assert found["sensitivity"].status == "estimated", "as at submission"
    learnt = broker.state.profiles.profiles_of(("", "run x"))["V100"].known_figures()
    for field in OF_PAIRS:
        assert found[field].seen == pytest.approx(learnt[field].value, rel=0.05)
