"""With `+revise` a compiled rule, a scheduler, a network and a broker decide alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.book import Book
from rlsched.broker.explain import explain
from rlsched.broker.fakes import HandBroker
from rlsched.broker.journal import Journal
from rlsched.broker.policy import load_policy
from rlsched.broker.predictions import RUNNING_MEAN, Predictions
from rlsched.broker.replay import journal_events, redecide
from rlsched.decide.clocked import with_clocks
from rlsched.decide.scheduler import load_scheduler, revises_predictions
from rlsched.errors import UnknownSchedulerError
from rlsched.workload.synth import synthesize
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.engine import Engine
from tests.contract.test_gittins_two_ways import check_equal
from tests.unit.broker_machine.hand import ended, hello, launched, submit


def test_rule_scheduler_and_network_start_the_same_jobs() -> None:
    trace, spec = synthesize("helios", jobs=500, load=1.2, gpus=32, seed=3, predictability="causal")

    def engine() -> Engine:
        return Engine(trace, spec, order="predicted_size")

    rule = load_scheduler("easy:size+revise")
    table = engine().run_rule(rule.rule)  # type: ignore[attr-defined]
    network = NetworkConfig(order="predicted_size", revises=True)
    for other in (
        rule,
        load_scheduler("ppo:untrained+reserve+revise"),
        PpoScheduler(initial_weights(network, 0), network),
    ):
        assert np.array_equal(engine().run(other).start_s, table.start_s)
    plain = engine().run_rule(load_scheduler("easy:size").rule)  # type: ignore[attr-defined]
    assert not np.array_equal(plain.start_s, table.start_s)


@pytest.mark.parametrize("policy", ["gittins", "qssf-backfill", "tiresias"])
def test_jobs_that_can_be_interrupted_are_revised_alike(policy: str) -> None:
    trace, spec = synthesize("helios", jobs=300, load=1.2, gpus=32, seed=5, predictability="causal")
    rule = load_scheduler(f"{policy}+revise")
    compiled = Engine(trace, spec, order=rule.order)
    compiled._give_lives()
    table = compiled.run_rule(rule.rule)  # type: ignore[attr-defined]
    if policy == "qssf-backfill":
        plain = Engine(trace, spec, order=rule.order).run_rule(rule.rule)  # type: ignore[attr-defined]
        assert np.array_equal(plain.start_s, table.start_s), "where nothing is interrupted"
    other = Engine(trace, spec, order=rule.order)
    other._give_lives()
    check_equal(table, other.run(rule))


def test_a_broker_its_restart_and_a_replay_come_to_the_same(tmp_path: Path) -> None:
    policy = "easy:qssf,0s+revise"
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
    job = broker.book.cluster.arrays.job
    waiting = [broker.book.cluster.slot_of(seq) for seq in broker.book.cluster.waiting(0)]
    revised = [int(job.seq[slot]) for slot in waiting if job.predicted_s[slot] != job.first_predicted_s[slot]]
    assert revised
    told = explain(broker.book, broker.book.job_of_seq[revised[0]], None, broker.now_s)
    assert any("by what jobs like it have done" in line for line in told.details)
    ran = [broker.book.job_of_seq[seq].seq for seq in broker.book.cluster.running()]
    broker.wait(100.0)  # the node is lost, its jobs are queued again
    again = [broker.book.cluster.slot_of(seq) for seq in ran]
    assert all(job.attempt[slot] == 2 for slot in again)
    of_burst = {(int(job.burst[slot]), float(job.predicted_s[slot] / job.first_predicted_s[slot])) for slot in again}
    assert len(of_burst) == len(set(job.burst[again])), "siblings that were queued at once are revised alike"
    assert any(shift != 1.0 for _, shift in of_burst)
    book = Book(Predictions(RUNNING_MEAN), broker.book.order, revises=True)
    book.replay(journal.rows())
    assert book.cluster.digest() == broker.book.cluster.digest()
    made = redecide(journal_events(journal.path), load_scheduler(policy))
    kept = [record for batch in broker.records for record in batch.records]
    assert len(kept) > 4
    assert [record.action for record in made] == [record.action for record in kept]
    assert [record.state_digest for record in made] == [record.state_digest for record in kept]
    journal.close()


def test_names_say_so_once_and_where_it_means_something() -> None:
    assert revises_predictions(load_scheduler("gittins+share=0.5+revise"))
    assert not revises_predictions(load_scheduler("ppo:untrained"))
    for name in ("easy:size+revise", "ppo"):
        assert revises_predictions(with_clocks(load_scheduler(name), 60.0))
        assert revises_predictions(load_policy(name, None, 100.0)[0]), "as a broker has it"
    for name in (
        "ppo:untrained+revise+reserve",
        "ppo:untrained+reserve+revise+preempt",
        "ppo+preempt+reserve",
    ):
        with pytest.raises(UnknownSchedulerError, match="says what it may do already"):
            load_scheduler(name)
    with pytest.raises(UnknownSchedulerError, match="revised already"):
        load_scheduler("qssf+revise+revise")
    with pytest.raises(UnknownSchedulerError, match="true run times"):
        load_scheduler("srtf+revise")
    assert load_scheduler("ppo:untrained+revise").policy_id.endswith("+revise")  # type: ignore[attr-defined]


def test_what_a_card_says_of_revising_holds_whatever_it_may_do() -> None:
    """The default policy revises predictions where it preempts, too."""
    assert load_scheduler("ppo").order == "predicted_size"
    assert revises_predictions(load_scheduler("ppo"))
    assert revises_predictions(load_scheduler("ppo+reserve"))
    assert revises_predictions(load_scheduler("ppo+preempt"))
    assert not revises_predictions(load_scheduler("ppo:untrained+preempt"))


def test_a_recipe_trains_for_what_it_serves() -> None:
    with pytest.raises(ValueError, match=r"network\.revises and episode\.revising"):
        Recipe(network=NetworkConfig(revises=True))
