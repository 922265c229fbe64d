"""Observed speeds of jobs that share GPUs: shown, learnt, and acted on."""

from __future__ import annotations

import logging
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.entries import JobUnshared, PairSeen
from rlsched.broker.base.ledger_models import factors_of, workload_number
from rlsched.broker.compaction import compaction
from rlsched.broker.journal.codec import unpack
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.journal.snapshots import picture_of
from rlsched.broker.nodes.slow_sharing import WATCH_S, OnSlow, SharingRules
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.known import Known
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.registry import load_scheduler
from rlsched.decide.start import policy_start
from rlsched.models.learning import WIDEST, Observed
from rlsched.wire.messages import (
    Capabilities,
    Ended,
    Explanation,
    Hello,
    JobInfo,
    Jobs,
    Kill,
    ListJobs,
    Metered,
    RankMetered,
    RankUsage,
    Stats,
    StatsReport,
    Why,
)
from rlsched.workload.predict.kinds import RUNNING_MEAN
from rlsched_envs.sim import lessons
from tests.support.broker.hand import LIMITS, ended, hello, launched, of_kind, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed

LIGHT = "a2c-b64"
SOLO = 600
"""GPU time of each job without co-tenants, thousandths."""


def h100(gpus: int) -> Hello:
    can = Capabilities(shares=True, gpu_memory_mib=81_559, fences=True)
    return msgspec.structs.replace(hello("n0", gpus), gpu_type="H100", capabilities=can)


def make(journal: Journal, *, gpus: int = 1, known: bool = True, **rules: Any) -> HandBroker:
    """A broker that knows by an earlier job, unless not `known`, how much GPU time each job takes."""
    broker = HandBroker(
        load_scheduler("pack"), journal, limits=LIMITS, shares=True, sharing=SharingRules(**rules)
    )
    broker.says("n0", h100(gpus))
    if known:
        run_unshared(broker)
    return broker


def run_unshared(broker: HandBroker) -> None:
    """A job without co-tenants, which ends after a minute."""
    broker.ask(submit(workload=LIGHT))
    job = len(broker.state.jobs)
    broker.says("n0", launched(job))
    usage = RankUsage(measured_s=60, gpu_milli=SOLO, gpu_memory_mib=4_000)
    broker.says("n0", Ended(job=job, attempt=1, rank=0, exit_code=0, usage=usage), after_s=60.0)


def share(broker: HandBroker, **facts: Any) -> tuple[int, int]:
    """Two jobs on the only GPU; returns their numbers."""
    for _ in range(2):
        broker.ask(submit(workload=LIGHT, **facts))
        broker.says("n0", launched(len(broker.state.jobs)))
    two = len(broker.state.jobs)
    assert info(broker, two).beside == [str(two - 1)]
    return two - 1, two


def runs(broker: HandBroker, seconds: float, milli: dict[int, int], **usage: int) -> None:
    """Time passes; the node reports these jobs' own GPU time every 10 s."""
    for _ in range(round(seconds / 10)):
        ranks = [
            RankMetered(
                job=job,
                attempt=broker.state.jobs[job].attempts,
                rank=0,
                usage=RankUsage(measured_s=10, gpu_milli=one, shared_gpu_milli=one, **usage),
            )
            for job, one in milli.items()
        ]
        broker.wait(9.999, "n0")
        broker.says("n0", Metered(ranks=ranks))
    broker.wait(0.1, "n0")


def info(broker: HandBroker, job: int) -> JobInfo:
    reply = broker.ask(ListJobs(job=job, finished=True))
    assert isinstance(reply, Jobs)
    return reply.jobs[0]


def why(broker: HandBroker, job: int) -> str:
    reply = broker.ask(Why(job=job))
    assert isinstance(reply, Explanation)
    return str(reply)


def seen_pairs(journal: Journal) -> list[PairSeen]:
    return [row.entry for row in journal.rows() if isinstance(row.entry, PairSeen)]


def predicted(known: Known) -> np.ndarray:
    """Predicted speeds of every workload next to every other."""
    return np.array(known.cluster.arrays.models.trait.beside)


def test_time_until_a_pair_is_learnt_is_the_simulators() -> None:
    assert WATCH_S == lessons.WATCH_S


def test_speed_is_the_own_gpu_time_relative_to_that_of_earlier_jobs_without_co_tenants(
    journal: Journal,
) -> None:
    broker = make(journal)
    one, two = share(broker)
    assert info(broker, one).seen_speed_frac is None
    runs(broker, 60.0, {one: 540, two: 570})
    assert info(broker, one).seen_speed_frac == pytest.approx(0.9, abs=0.001)
    assert info(broker, two).seen_speed_frac == pytest.approx(0.95, abs=0.001)
    assert info(broker, two).slow_sharing_s == 0.0
    assert f"; seen {0.9:.2f} for 1 min" in why(broker, one)
    runs(broker, 60.0, {one: 600, two: 570})
    assert info(broker, one).seen_speed_frac == pytest.approx(0.95, abs=0.002)


@pytest.mark.parametrize("known", [False, True])
def test_nothing_is_claimed_without_a_profile_or_by_process_utilisation(
    journal: Journal, known: bool
) -> None:
    broker = make(journal, known=known)
    one, two = share(broker)
    if known:
        usage = RankUsage(measured_s=10, gpu_milli=300)
        for _ in range(40):
            broker.wait(10.0, "n0")
            broker.says("n0", Metered(ranks=[RankMetered(job=one, attempt=1, rank=0, usage=usage)]))
    else:
        runs(broker, 400.0, {one: 300, two: 300})
    assert info(broker, one).seen_speed_frac is None
    assert "of its unshared speed; seen" not in why(broker, one)
    assert not seen_pairs(journal)


def test_predictions_follow_both_jobs_after_five_minutes(journal: Journal) -> None:
    broker = make(journal)
    before = broker.state.models.shared_frac(broker.state.jobs[share(broker)[0]].seq)
    one, two = 2, 3
    runs(broker, 290.0, {one: 330, two: 360})
    assert not seen_pairs(journal)
    runs(broker, 30.0, {one: 330, two: 360})
    found = seen_pairs(journal)
    assert [(fact.job, fact.workload, fact.partner, fact.gpu_type) for fact in found] == [
        (one, LIGHT, LIGHT, "H100"),
        (two, LIGHT, LIGHT, "H100"),
    ]
    assert [fact.speed for fact in found] == pytest.approx([0.55, 0.6], abs=0.005)
    after = broker.state.models.shared_frac(broker.state.jobs[one].seq)
    assert before > 0.8
    assert after == pytest.approx(math.sqrt(0.55 * 0.6), rel=0.05)
    runs(broker, 400.0, {one: 330, two: 360})
    assert len(seen_pairs(journal)) == 2, "a pair is learnt once for each time that it meets"


def test_signatures_learn_both_factors_of_each_observed_speed(journal: Journal) -> None:
    broker = make(journal)
    one, two = share(broker)
    runs(broker, 320.0, {one: 330, two: 360})
    assert [(fact.job, fact.beside) for fact in seen_pairs(journal)] == [(one, two), (two, one)]
    learnt = broker.state.profiles.profiles_of(("", "true"))["H100"].known_figures()
    sensitivity, pressure = factors_of("H100")[workload_number(LIGHT) - 1]
    slowdown = math.sqrt((1.0 / 0.55 - 1.0) * (1.0 / 0.6 - 1.0))
    for field, other in (("sensitivity", pressure), ("pressure", sensitivity)):
        assert learnt[field].count == 2
        assert learnt[field].value == pytest.approx(min(slowdown / other, math.exp(WIDEST)), rel=0.02)


def test_pairs_of_earlier_journals_teach_signatures_nothing(journal: Journal) -> None:
    broker = make(journal)
    runs(broker, 320.0, dict.fromkeys(share(broker), 330))
    facts = [row.entry for row in journal.rows()]
    older = [msgspec.structs.replace(one, beside=0) if isinstance(one, PairSeen) else one for one in facts]
    state = BrokerState(Predictions(RUNNING_MEAN), load_scheduler("pack").order)
    for fact, row in zip(older, journal.rows(), strict=True):
        state.apply(fact, row.now_s)
    learnt = state.profiles.profiles_of(("", "true"))["H100"].known_figures()
    assert {"util_frac"} <= set(learnt)
    assert not {"sensitivity", "pressure"} & set(learnt)
    assert predicted(state).tobytes() == predicted(broker.state).tobytes()


def test_next_decision_uses_what_was_learnt(journal: Journal) -> None:
    broker = make(journal)
    one, two = share(broker)
    runs(broker, 320.0, {one: 200, two: 200})
    broker.says("n0", ended(one))
    broker.ask(submit(workload=LIGHT))
    assert state(broker, 4) == "queued", "a third of its speed is less than pack permits"
    assert "share the GPUs of job 3 (H100) (not open: " in why(broker, 4)


def test_restart_snapshot_base_and_replay_have_the_same_knowledge(journal: Journal) -> None:
    broker = make(journal)
    one, two = share(broker)
    runs(broker, 320.0, {one: 330, two: 360})
    broker.ask(submit(workload=LIGHT))
    live = predicted(broker.state)
    assert predicted(replayed(journal)).tobytes() == live.tobytes()
    assert predicted(unpack(picture_of(broker.state))).tobytes() == live.tobytes()
    told = [
        (record.now_s, record.state_digest, record.plans)
        for kept in broker.records
        for record in kept.records
    ]
    made = redecide(journal_events(journal.path), load_scheduler("pack"))
    assert told == [(record.now_s, record.state_digest, record.plans) for record in made]

    factors, pairs = broker.state.models.pairs.kept()
    models = replayed(journal).models
    models.share(False)
    models.pairs.take_up(*msgspec.msgpack.decode(
        msgspec.msgpack.encode((factors, pairs)), type=tuple[list[type(factors[0])], list[type(pairs[0])]]
    ))  # fmt: skip
    models.share(True)
    assert np.array(models._cluster.arrays.models.trait.beside).tobytes() == live.tobytes()


def test_models_of_another_cluster_state_do_not_change(journal: Journal) -> None:
    broker = make(journal)
    other = replayed(journal)
    before = predicted(other)
    broker.state.models.observe(Observed(LIGHT, LIGHT, "H100", 0.3))
    number = workload_number(LIGHT)
    assert predicted(broker.state)[number, 0, number] < 0.4
    assert predicted(other).tobytes() == before.tobytes()


def test_learning_can_be_switched_off(journal: Journal) -> None:
    broker = make(journal, learns=False)
    one, two = share(broker)
    runs(broker, 400.0, {one: 330, two: 360})
    assert info(broker, one).seen_speed_frac is not None
    assert not seen_pairs(journal)


def test_job_that_its_cores_limit_teaches_nothing(journal: Journal) -> None:
    broker = make(journal)
    one, two = share(broker)
    runs(broker, 400.0, {one: 330, two: 360}, throttled_milli=200)
    assert not seen_pairs(journal)


def test_slow_job_is_shown_and_logged_once(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    broker = make(journal)
    one, two = share(broker)
    with caplog.at_level(logging.WARNING, "rlsched.broker"):
        runs(broker, 20.0, {one: 590, two: 590})
        runs(broker, 40.0, {one: 240, two: 590})
        assert not caplog.records
        assert info(broker, one).slow_sharing_s >= 39.0
        runs(broker, 20.0, {one: 240, two: 590})
        assert len(caplog.records) == 1, "within a minute"
        runs(broker, 50.0, {one: 240, two: 590})
    assert [record.getMessage().split(" of its unshared")[0] for record in caplog.records] == [
        f"job {one}: next to job {two} it ran at 0.40"
    ]
    assert info(broker, one).seen_speed_frac == pytest.approx(0.4, abs=0.01)
    assert info(broker, one).slow_sharing_s >= 109.0
    assert info(broker, two).slow_sharing_s == 0.0
    assert "seen 0.40 for 1 min 50 s" in why(broker, one)
    assert "slower than predicted, or than the policy permits" in why(broker, one)
    assert "slower than" not in why(broker, two)
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert (stats.sharing, stats.slow_sharing) == (2, 1)
    runs(broker, 20.0, {one: 590, two: 590})
    assert info(broker, one).slow_sharing_s == 0.0


@pytest.mark.parametrize(("earlier_jobs", "is_slow"), [(1, False), (20, True)])
def test_job_above_the_minimum_is_slow_if_it_is_below_its_prediction_by_more_than_the_scatter(
    journal: Journal, earlier_jobs: int, is_slow: bool
) -> None:
    """With one earlier job, the speed without co-tenants is uncertain, so the scatter includes this speed."""
    broker = make(journal, known=False)
    for _ in range(earlier_jobs):
        run_unshared(broker)
    one, two = share(broker)
    runs(broker, 60.0, {one: 528, two: 590})
    least = float(policy_start(broker.state.cluster).min_speed)
    assert least < 0.88 < broker.state.models.shared_frac(broker.state.jobs[one].seq)
    told = why(broker, one)
    assert "is predicted to run at 1.00 of its unshared speed; seen 0.88 for 1 min" in told
    assert ("slower than predicted, or than the policy permits" in told) == is_slow
    assert (info(broker, one).slow_sharing_s > 0.0) == is_slow
    assert "slower than" not in why(broker, two)


def test_program_that_loads_is_not_slow(journal: Journal) -> None:
    broker = make(journal)
    one, two = share(broker)
    runs(broker, 120.0, {one: 0, two: 590})
    assert info(broker, one).seen_speed_frac is None
    runs(broker, 60.0, {one: 590, two: 590})
    assert info(broker, one).seen_speed_frac == pytest.approx(590 / SOLO, abs=0.01)


@pytest.mark.parametrize(("on_slow", "preemptible"), [("unshare", True), ("move", False), ("move", True)])
def test_slow_job_shares_no_more_if_the_operator_wants_that(
    journal: Journal, on_slow: OnSlow, preemptible: bool
) -> None:
    moves = on_slow == "move" and preemptible
    broker = make(journal, on_slow=on_slow)
    one, two = share(broker, preemptible=preemptible)
    before = len(broker.sent.orders)
    runs(broker, 80.0, {one: 240, two: 590})
    job = broker.state.jobs[one]
    assert job.alone
    kills = of_kind([order for _, order in broker.sent.orders[before:]], Kill)
    assert {order.job for order in kills} == ({one} if moves else set())  # type: ignore[attr-defined]
    assert sum(isinstance(row.entry, JobUnshared) for row in journal.rows()) == 1
    pairs = [(pair.job, pair.speed) for pair in seen_pairs(journal)]
    assert pairs == ([(one, pytest.approx(0.4, abs=0.01))] if moves else [])
    learnt = broker.state.profiles.profiles_of(("", "true"))["H100"]
    assert (learnt.sensitivity is not None) == (learnt.pressure is not None) == moves
    assert replayed(journal).cluster.digest() == broker.state.cluster.digest()
    if not moves:
        assert state(broker, one) == "running"
        return
    broker.says("n0", ended(one, exit_code=143, reason="killed"))
    assert (state(broker, one), job.retries) == ("queued", 0)
    assert f"it shares no GPUs: next to job {two} it ran at 0.40 of its unshared speed for " in why(
        broker, one
    )
    broker.says("n0", ended(two))
    assert state(broker, one) == "launching"
    assert [record.action for record in redecide(journal_events(journal.path), load_scheduler("pack"))] == [
        record.action for kept in broker.records for record in kept.records
    ]


def test_compacted_journal_has_the_same_knowledge(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_WORTH", 0)
    broker = make(journal)
    one, two = share(broker)
    runs(broker, 320.0, {one: 330, two: 360})
    live, rows = predicted(broker.state), len(list(journal.rows()))
    cut = compaction.made(journal.path, broker.now_s + 1.0)
    assert cut is not None
    assert compaction.put(journal, cut)
    assert len(list(journal.rows())) < rows
    assert not seen_pairs(journal)
    assert predicted(replayed(journal)).tobytes() == live.tobytes()
    broker.says("n0", msgspec.structs.replace(h100(1), name="n0"))
    assert predicted(broker.state).tobytes() == live.tobytes()
