"""With revised predictions a compiled rule, a scheduler and a broker decide alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.explain import explain
from rlsched.broker.server.broker_policy import load_policy
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import DownNode, Ok
from rlsched.workload.predict.kinds import RUNNING_MEAN
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine
from tests.quick import quick
from tests.support.broker.hand import ended, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.sim.preemptive_cases import check_equal

SUBMITTED = Policy("easy", order="area^0.7", reserve_after="1h")
REVISED = SUBMITTED.with_settings(predictions="revised")


@pytest.mark.slow
def test_rule_and_scheduler_start_the_same_jobs() -> None:
    trace, spec = synthesize("helios", jobs=500, load=1.2, gpus=32, seed=3, predictability="causal")

    def engine(policy: Policy = REVISED) -> Engine:
        return Engine(trace, spec, order=policy.rule.order)

    table = engine().run_rule(REVISED.rule)
    assert np.array_equal(engine().run(load_scheduler(REVISED)).start_s, table.start_s)
    plain = engine(SUBMITTED).run_rule(SUBMITTED.rule)
    assert not np.array_equal(plain.start_s, table.start_s)


@pytest.mark.parametrize("name", quick(["gittins", "qssf-backfill", "tiresias"], "qssf-backfill".__eq__))
def test_jobs_that_can_be_interrupted_are_revised_alike(name: str) -> None:
    trace, spec = synthesize("helios", jobs=300, load=1.2, gpus=32, seed=5, predictability="causal")
    policy, logged = Policy(name, predictions="revised"), RunRules(always=True)
    rule = policy.rule
    table = Engine(trace, spec, order=rule.order, rules=logged).run_rule(rule)
    if name == "qssf-backfill":
        plain = Engine(trace, spec, order=rule.order).run_rule(rule)
        assert np.array_equal(plain.start_s, table.start_s), "where nothing is interrupted"
    other = Engine(trace, spec, order=rule.order, rules=logged)
    check_equal(table, other.run(load_scheduler(policy)))


def test_broker_its_restart_and_a_replay_agree(tmp_path: Path) -> None:
    policy = Policy("easy", order="area", predictions="revised")
    journal = Journal(tmp_path / "journal.sqlite3")
    broker = HandBroker(load_scheduler(policy), journal)
    broker.says("n0", hello("n0", 4))
    for number in range(1, 9):
        broker.ask(submit(1 + number % 2))
        broker.wait(3.0, "n0")
    for job in (1, 2):
        broker.says("n0", launched(job))
    broker.wait(10.0, "n0")
    broker.says("n0", ended(1))
    for _ in range(40):
        broker.wait(14.0, "n0")
    broker.ask(submit(3))
    broker.says("n0", ended(2))
    job = broker.state.cluster.arrays.job
    waiting = [broker.state.cluster.slot_of(seq) for seq in broker.state.cluster.waiting(0)]
    revised = [int(job.seq[slot]) for slot in waiting if job.predicted_s[slot] != job.first_predicted_s[slot]]
    assert revised
    told = explain(broker.state, broker.state.job_of_seq[revised[0]], None, broker.now_s)
    assert any("revised since, from similar jobs" in line for line in told.details)
    ran = [broker.state.job_of_seq[seq].seq for seq in broker.state.cluster.running()]
    broker.wait(600.0)
    assert broker.ask(DownNode(node="n0")) == Ok()  # its jobs are queued again
    again = [broker.state.cluster.slot_of(seq) for seq in ran]
    assert all(job.attempt[slot] == 2 for slot in again)
    of_burst = {
        (int(job.burst[slot]), float(job.predicted_s[slot] / job.first_predicted_s[slot])) for slot in again
    }
    assert len(of_burst) == len(set(job.burst[again])), "jobs of one burst are revised alike"
    assert any(shift != 1.0 for _, shift in of_burst)
    state = BrokerState(Predictions(RUNNING_MEAN), broker.state.order)
    state.replay(journal.rows())
    assert state.cluster.digest() == broker.state.cluster.digest()
    made = redecide(journal_events(journal.path), load_scheduler(policy))
    kept = [record for batch in broker.records for record in batch.records]
    assert len(kept) > 4
    assert [record.action for record in made] == [record.action for record in kept]
    assert [record.state_digest for record in made] == [record.state_digest for record in kept]
    journal.close()


def test_revising_is_a_setting_of_any_policy_without_true_durations() -> None:
    assert load_scheduler(Policy("gittins", share={"min_speed": 0.5}, predictions="revised")).order.revised
    for policy in (REVISED, Policy("ppo")):
        assert load_policy(policy, None, 100.0)[0].order.revised, "as in a broker"
    assert not Policy("srtf", predictions="revised").oracle, "either the truth, or revised"
