"""The policy of a broker, and its records on disk."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.clocks import Clocks
from rlsched.broker.policy import load_policy
from rlsched.broker.records import LAST_RECORDS, RecordLog
from rlsched.cluster.spec import ClusterSpec, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide import scheduler as scheduler_module
from rlsched.decide.actions import SetClock, Start, Wait
from rlsched.decide.guard import Guarded
from rlsched.decide.loop import decide_all
from rlsched.decide.record import DecisionRecord, append_records, read_records
from rlsched.decide.scheduler import Decision, may_preempt, may_reclock
from rlsched.errors import InputError, JournalError


def record(number: int) -> DecisionRecord:
    return DecisionRecord(
        source="rule",
        policy_id="fifo",
        schema_hash="",
        state_digest="",
        number=number,
        now_s=1.0,
        partition="shared",
        halves=[],
        temperature=0.0,
        value=None,
        action=Wait(),
        took_us=1.0,
    )


def test_a_policy_is_guarded_by_the_fallback() -> None:
    scheduler, fallback = load_policy("qssf-backfill", None, 100.0)
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback) == ("qssf-backfill", "qssf-backfill")


EVERY_KIND = (
    *("fifo", "easy", "tiresias", "gittins", "rollout:2", "random"),
    *("ppo:untrained", "ppo:untrained+search=2", "ppo:untrained+preempt", "ppo:untrained+reserve+search=2"),
)


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize("reclock_s", [math.inf, 60.0])
def test_every_policy_has_clocks_chosen_and_the_guard_lets_them_pass(name: str, reclock_s: float) -> None:
    scheduler, _ = load_policy(name, None, 60_000.0, chooses_clocks=True, reclock_s=reclock_s)
    state = ClusterState([NodeSpec(name="n0", gpus=2, gpu_type="V100")], order=scheduler.order)
    clocks = Clocks(state)
    clocks.weigh(1.0)
    clocks.node(0, [1530, 952])
    state.add_job(num_gpus=1, submit_s=0.0, predicted_s=60.0, spread=1.0)
    seen = [decision.action for _, decision in decide_all(state, scheduler, 60.0, record=True)]
    (start,) = [action for action in seen if isinstance(action, Start)]
    assert start.sm_clock_frac in (1.0, *state.arrays.models.gpu.levels_frac[0].tolist())
    if name != "random":
        assert start.sm_clock_frac == 952 / 1530, "where energy alone counts"
    assert may_reclock(scheduler) == (reclock_s < math.inf)
    state.weigh_energy(0.0)
    seen = [decision.action for _, decision in decide_all(state, scheduler, 180.0, record=True)]
    changes = [action for action in seen if isinstance(action, SetClock)]
    assert [change.sm_clock_frac for change in changes] == ([1.0] if reclock_s < math.inf else [])
    assert getattr(scheduler, "interventions", {}) == {}


def test_a_late_decision_is_the_fallbacks() -> None:
    scheduler, _ = load_policy("qssf-backfill", None, 1e-6)
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), order=scheduler.order)
    for gpus in (1, 2):
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=1.0, spread=1.0)
    ((_, decision),) = decide_all(state, scheduler, 1.0, record=True)
    assert decision.source == "guard"
    assert decision.record is not None
    assert decision.record.guard == "late"


def test_a_rule_of_another_order_needs_no_fallback() -> None:
    scheduler, fallback = load_policy("fifo", None, 100.0)
    assert (scheduler.name, fallback) == ("fifo", "")


def test_a_policy_that_preempts_is_warm_and_serves() -> None:
    scheduler, fallback = load_policy("tiresias", None, 100.0)
    assert (scheduler.name, fallback, may_preempt(scheduler)) == ("tiresias", "", True)
    scheduler, fallback = load_policy("tiresias", "fifo-backfill", 100.0)
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback, may_preempt(scheduler)) == ("tiresias", "fifo-backfill", True)


def test_a_fallback_that_preempts_where_the_policy_does_not_is_refused() -> None:
    with pytest.raises(InputError, match="--fallback 'tiresias' preempts jobs, --policy 'fifo' does not"):
        load_policy("fifo", "tiresias", 100.0)


def test_a_fallback_of_another_order_is_refused() -> None:
    with pytest.raises(InputError, match="keeps the queue by"):
        load_policy("fifo", "qssf-backfill", 100.0)


@pytest.mark.parametrize("name", ["tiresias:3600,clear+repack", "gittins:2.5+repack"])
def test_a_rule_that_repacks_in_an_order_of_its_own_needs_no_fallback(name: str) -> None:
    scheduler, fallback = load_policy(name, None, 100.0)
    assert (scheduler.name, fallback, may_preempt(scheduler)) == (name, "", True)


@pytest.mark.parametrize("name", ["gittins+repack", "gittins+repack+revise", "gittins+revise+repack"])
def test_behind_one_of_the_order_of_gittins_stands_gittins_which_repacks(name: str) -> None:
    assert load_policy(name, None, 100.0)[1] == "gittins+repack"


@pytest.mark.parametrize(
    ("name", "fallback", "says"),
    [
        ("gittins", "gittins+repack", "'gittins' moves none, --fallback 'gittins+repack' moves running jobs"),
        ("gittins+repack", "gittins", "'gittins+repack' moves running jobs, --fallback 'gittins' moves none"),
        ("gittins:2.5+repack", "fifo-backfill", "moves running jobs, --fallback 'fifo-backfill' moves none"),
    ],
)
def test_only_one_of_the_two_that_repacks_is_refused(name: str, fallback: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        load_policy(name, fallback, 100.0)
    assert says in str(error.value)
    assert str(error.value).endswith("give both +repack, or neither")
    assert "\n" not in str(error.value)


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown policy 'x'; known: .*qssf-backfill"):
        load_policy("x", None, 100.0)


def test_a_policy_whose_package_is_missing_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "broken"

        def load(self) -> object:
            raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(scheduler_module, "_points", lambda: [Point()])
    with pytest.raises(InputError, match="policy 'broken' cannot be loaded: No module named 'torch'"):
        load_policy("broken", None, 100.0)


# ---- records --------------------------------------------------------------------------------------------


def test_records_are_appended_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "records.msgpack"
    log = RecordLog(path)
    assert log.last == []
    log.add([record(0), record(1)])
    log.close()
    again = RecordLog(path)
    assert again.last == [record(0), record(1)]
    again.add([record(2)])
    again.close()
    assert [kept.number for kept in read_records(path)] == [0, 1, 2]


@pytest.mark.parametrize("cut", [1, 3, 20])
def test_a_record_that_a_crash_cut_short_is_taken_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "records.msgpack"
    append_records(path, [record(0), record(1)])
    path.write_bytes(path.read_bytes()[:-cut])
    log = RecordLog(path)
    log.add([record(2)])
    log.close()
    assert [kept.number for kept in read_records(path)] == [0, 2]


def test_only_the_last_records_are_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "records.msgpack"
    append_records(path, [record(number) for number in range(LAST_RECORDS + 10)])
    log = RecordLog(path)
    assert [log.last[0].number, log.last[-1].number] == [10, LAST_RECORDS + 9]
    log.close()


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot keep decision records"):
        RecordLog(tmp_path / "file" / "records.msgpack")


def test_records_go_to_tensorboard_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    log = RecordLog(tmp_path / "records.msgpack", tmp_path / "tb")
    log.add([record(0)])
    log.flush()
    log.close()
    assert list((tmp_path / "tb").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("name", ["pack", "pack:0.5", "lucid", "fifo+clock=0.8", "qssf-backfill+cores"])
def test_a_broker_has_no_models_to_share_or_slow_by(name: str) -> None:
    with pytest.raises(InputError, match="by models of speed, which a broker does not have"):
        load_policy(name, None, 100.0)
    with pytest.raises(InputError, match="--fallback"):
        load_policy("qssf-backfill", name, 100.0)


RULES_ONLINE = ("fifo", "qssf", "fifo-backfill", "qssf-backfill", "easy", "sgf-age", "reserve", "random")


@pytest.mark.parametrize("name", [*RULES_ONLINE, "ppo:untrained"])
def test_no_policy_shares_gpus_or_sets_clocks_on_a_live_cluster(name: str) -> None:
    scheduler, _ = load_policy(name, None, 10_000.0, seed=3)
    state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), order=scheduler.order)
    rng = np.random.default_rng(5)
    started = 0
    for now_s in range(1, 40):
        state.add_job(
            num_gpus=int(rng.choice([1, 1, 2, 4, 8])), submit_s=float(now_s), predicted_s=60.0, spread=1.0
        )
        for _, decision in decide_all(state, scheduler, float(now_s)):
            if isinstance(decision.action, Start):
                started += 1
                assert (decision.action.sm_clock_frac, decision.action.beside) == (1.0, -1)
        for seq in state.running():
            if rng.random() < 0.3:
                state.release(seq, now_s + 0.5)
    assert started > 10
    assert (state.arrays.job.sm_clock_frac[state.arrays.job.seq >= 0] <= 1.0).all()
    assert ((state.arrays.gpu.tenant >= 0).sum(axis=1) <= 1).all()
    if isinstance(scheduler, Guarded):
        assert "illegal" not in scheduler.interventions


class Sharing:
    """A policy that wants to share, or to slow a job down, whatever the cluster is."""

    name = "sharing"
    order = "predicted_gpu_time"
    information = "causal"

    def __init__(self, **how: float) -> None:
        self._how = how

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Start the first that waits, in its way."""
        del now_s, record
        seq = state.waiting(partition)[0]
        return Decision(action=Start(seq, (0,), **self._how), source="policy")


@pytest.mark.parametrize("how", [{"sm_clock_frac": 0.75}, {"beside": 0}, {"cpu_milli_each": 9_000}])
def test_the_guard_takes_over_where_a_policy_would_do_what_is_not_legal(how: dict[str, float]) -> None:
    nodes = [NodeSpec(name="n0", gpus=2, cpus=8)]
    state = ClusterState(nodes)
    fallback = load_policy("qssf-backfill", None, 100.0)[0]
    guarded = Guarded(Sharing(**how), fallback, budget_ms=10_000.0)
    for _ in range(2):
        state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=1.0)
    state.start(0, [0], 0.0)
    decisions = [decision for _, decision in decide_all(state, guarded, 1.0)]
    assert guarded.interventions == {"illegal": 1}
    assert [decision.source for decision in decisions] == ["guard"]
    assert state.running() == [0, 1]
    assert state.gpus_of(1) == [1]
