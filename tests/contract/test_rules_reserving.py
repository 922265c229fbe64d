"""`easy` and `reserve`: compiled, by the interface and in plain Python, and their promises."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.spec import NodeSpec
from rlsched.compile.jit import specialise
from rlsched.decide.actions import Start
from rlsched.decide.loop import decide_all
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.backfill import reservation
from rlsched_envs.sim import loop, moves
from rlsched_envs.sim.engine import Engine
from tests.quick import quick
from tests.support.sim.rule_cases import Case, cases, check_equal, check_valid, place, synthetic

RESERVATION = specialise(reservation, MODELLED=False)
SMALL = (
    Policy("easy"),
    Policy("easy", order="predicted", reserve_after="5s"),
    Policy("easy", order="area"),
    Policy("easy", order="area^0.7", reserve_after="20s"),
    Policy("reserve", leave_free={"longer_than": "10s"}),
)
LARGE = {
    "easy": Policy("easy"),
    "sjf 1 min": Policy("easy", order="predicted", reserve_after="1m"),
    "reserve 20 min": Policy("reserve", leave_free={"longer_than": "20m"}),
    "reserve 10 min": Policy("reserve", leave_free={"longer_than": "10m", "share": 0.1}),
}


@dataclass
class Plain:
    """A partition at one instant, in plain Python: waiting jobs, running jobs, free GPUs."""

    case: Case
    policy: Policy
    nodes: list[NodeSpec]
    members: list[int]
    free: dict[int, list[int]]
    running: dict[int, list[int]]  # row: its GPUs
    starts: list[float]
    now: float
    first: list[int]

    def where(self, row: int, free: dict[int, list[int]]) -> list[int]:
        return place(self.nodes, free, self.members, int(self.case.trace.num_gpus[row]))

    def predicted(self, row: int) -> float:
        return float(self.case.predictions.predicted_s[row])

    def predicted_end(self, row: int) -> float:
        end, ran = self.starts[row] + self.predicted(row), self.now - self.starts[row]
        return end if end >= self.now else self.now + max(self.predicted(row) - ran, 0.5 * ran, 1.0)

    def node_of(self, gpu: int) -> int:
        return int(np.searchsorted(self.first, gpu, side="right")) - 1

    def reserve(self, head: int) -> tuple[float, dict[int, list[int]]]:
        """Predicted time at which the job fits, and GPUs free then."""
        free = {n: list(gpus) for n, gpus in self.free.items()}
        ends = sorted((self.predicted_end(row), row) for row in self.running)
        for at in sorted({end for end, _ in ends}):
            for gpu in [gpu for end, row in ends if end == at for gpu in self.running[row]]:
                free[self.node_of(gpu)] = sorted([*free[self.node_of(gpu)], gpu])
            if self.where(head, free):
                return at, free
        return math.inf, free

    def keeps_reservation(self, row: int, head: int, shadow: float, free: dict[int, list[int]]) -> bool:
        if self.now + self.predicted(row) <= shadow:
            return True
        taken = set(self.where(row, self.free))
        rest = {n: [gpu for gpu in gpus if gpu not in taken] for n, gpus in free.items()}
        return bool(self.where(head, rest))

    def pick(self, waiting: list[int]) -> int | None:
        """The row that the rule starts next."""
        if self.policy.settings.leave_free is not None:
            return self.pick_by_reserve(waiting)
        head, shadow, then = -1, math.inf, self.free
        for row in waiting:
            if self.where(row, self.free):
                if head < 0 or self.keeps_reservation(row, head, shadow, then):
                    return row
            elif head < 0 and self.may_reserve(row):
                shadow, then = self.reserve(row)
                head = row if shadow < math.inf else -1
        return None

    def may_reserve(self, row: int) -> bool:
        after_s = self.policy.settings.reserve_after
        return after_s is not None and self.now - self.case.trace.submit_s[row] >= after_s

    def pick_by_reserve(self, waiting: list[int]) -> int | None:
        everything = sum(self.nodes[n].gpus for n in self.members)
        room = sum(len(self.free[n]) for n in self.members)
        leave = self.policy.settings.leave_free
        assert leave is not None
        share = leave.share * everything
        for row in waiting:
            gpus = int(self.case.trace.num_gpus[row])
            short = self.predicted(row) <= leave.longer_than
            if self.where(row, self.free) and (short or room - gpus >= share or everything - gpus < share):
                return row
        return None


def naive(case: Case, policy: Policy) -> tuple[list[float], list[tuple[int, ...]]]:
    """Starts and GPUs of the runnable jobs."""
    trace, nodes = case.trace, case.spec.expand()
    first = np.cumsum([0] + [node.gpus for node in nodes]).tolist()
    free = {n: list(range(first[n], first[n + 1])) for n in range(len(nodes))}
    owners = [*sorted({node.vc for node in nodes if node.vc is not None}), None]
    rejected = case.run_rule(policy).rejected
    order = policy.rule.order
    key = trace.submit_s
    if order.by == "area":
        key = case.predictions.predicted_s * trace.num_gpus**order.gpus_power
    starts, ends = [math.nan] * len(trace), [math.nan] * len(trace)
    given_gpus: list[tuple[int, ...]] = [()] * len(trace)
    todo = [row for row in range(len(trace)) if not rejected[row]]
    waiting: list[int] = []
    running: list[dict[int, list[int]]] = [{} for _ in owners]
    while todo or any(running):
        now = min([ends[row] for part in running for row in part] + [trace.submit_s[row] for row in todo[:1]])
        for part in running:
            for row in [row for row in part if ends[row] == now]:
                for gpu in part.pop(row):
                    n = int(np.searchsorted(first, gpu, side="right")) - 1
                    free[n] = sorted([*free[n], gpu])
        while todo and trace.submit_s[todo[0]] == now:
            waiting.append(todo.pop(0))
        waiting.sort(key=lambda row: (key[row], row))
        for number, owner in enumerate(owners):
            members = [n for n, node in enumerate(nodes) if node.vc == owner]
            while members:
                plain = Plain(case, policy, nodes, members, free, running[number], starts, now, first)
                row = plain.pick([row for row in waiting if owner is None or trace.vc[row] == owner])
                if row is None:
                    break
                gpus = plain.where(row, free)
                starts[row], ends[row], given_gpus[row] = now, now + trace.duration_s[row], tuple(gpus)
                waiting.remove(row)
                running[number][row] = gpus
                for n in members:
                    free[n] = [gpu for gpu in free[n] if gpu not in gpus]
    return starts, given_gpus


@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from(SMALL))
def test_compiled_equals_interface_equals_plain_python(case: Case, policy: Policy) -> None:
    compiled = case.run_rule(policy)
    check_equal(compiled, case.engine(policy).run(RuleScheduler(policy)))
    check_valid(compiled)
    starts, gpus = naive(case, policy)
    np.testing.assert_array_equal(compiled.start_s, starts)
    assert compiled.gpus == gpus


@pytest.mark.parametrize("like", quick(["helios", "philly", "itp"], "helios".__eq__))
@pytest.mark.parametrize("name", LARGE)
def test_compiled_equals_interface_on_synthetic_traces(name: str, like: str) -> None:
    case, policy = synthetic(like, seed=7), LARGE[name]
    compiled = case.run_rule(policy)
    records: list[DecisionRecord] = []
    stepped = case.engine(policy).run(
        RuleScheduler(policy), on_record=records.append if like == "helios" else None
    )
    check_equal(compiled, stepped)
    check_valid(compiled)
    assert compiled.decisions == int((~compiled.rejected).sum())
    if like == "helios":
        starts = [record for record in records if isinstance(record.action, Start)]
        assert len(starts) == compiled.decisions
        assert {record.source for record in records} == {"rule"}


def test_they_differ_from_each_other_and_from_the_plain_rules() -> None:
    case = synthetic("helios", seed=11)
    policies = [*LARGE.values(), Policy("fifo"), Policy("fifo-backfill"), Policy("qssf-backfill")]
    starts = {case.run_rule(policy).start_s.tobytes() for policy in policies}
    assert len(starts) == len(policies)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_extreme_settings_equal_other_rules(case: Case) -> None:
    """A reservation without waiting jobs has no effect; nor has a reserve for no job, or of nothing."""
    qssf = case.run_rule(Policy("qssf-backfill"))
    for policy in (
        Policy("easy", order="area", reserve_after=math.inf),
        Policy("reserve", leave_free={"longer_than": math.inf, "share": 0.9}),
        Policy("reserve", leave_free={"longer_than": 0.0, "share": 0.0}),
    ):
        check_equal(case.run_rule(policy), qssf)


def promises(case: Case) -> int:
    """Run EASY with exact predictions, and check that no reservation is ever missed. Returns their number."""
    scheduler = RuleScheduler(Policy("easy"))
    engine = Engine(case.trace, case.spec, order=scheduler.order, oracle=True)
    state, note_start = engine.state, loop.for_run(moves.note_start, None, logged=False, modelled=False)
    promised: dict[int, dict[int, float]] = {}  # job: partition: first reservation
    while engine.advance():
        now_s = engine.now_s
        for _, decision in decide_all(state, scheduler, now_s):
            if isinstance(decision.action, Start):
                note_start(engine.arrays, state.slot_of(decision.action.seq))
                mine = promised.get(decision.action.seq, {})
                assert now_s <= min(mine.values(), default=math.inf), "it starts as promised, or sooner"
        for partition in range(state.num_partitions):
            slot, at_s = RESERVATION(state.arrays, partition, now_s, 0.0)
            if slot >= 0:
                mine = promised.setdefault(int(state.arrays.job.seq[slot]), {})
                first_s = mine.setdefault(partition, at_s)
                assert now_s <= at_s <= first_s, "a reservation never moves back"
    return len(promised)


@settings(max_examples=80, deadline=None)
@given(cases())
def test_easy_keeps_its_first_promise_when_predictions_are_exact(case: Case) -> None:
    promises(case)


@pytest.mark.parametrize("like", ["helios", "philly"])
def test_easy_keeps_its_promises_on_synthetic_traces(like: str) -> None:
    assert promises(synthetic(like, seed=5)) > 10
