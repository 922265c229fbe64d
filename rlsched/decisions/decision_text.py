"""Describes decisions as text: the action, the alternatives with their values, and the prices."""

from __future__ import annotations

from typing import Final

from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.plans.plan_text import in_words, outcome, span
from rlsched.decide.record import DecisionRecord, PlanSeen

PRICE_NAMES: Final = {
    "gpu_time": "a GPU-second",
    "gpu_types": "faster GPU types",
    "energy": "energy against time",
}


def done(record: DecisionRecord) -> str:
    """Return a text that describes the action of a decision."""
    job = record.names.job
    match record.action:
        case Start(seq=seq, gpus=gpus, sm_clock_frac=clock):
            count = f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s")
            for plan in record.plans:
                if plan.chosen:
                    return f"start {job(seq)} on {count}: {in_words(plan, job)}"
            return f"start {job(seq)} on {count}" + (f", clock {clock:.2f}" if clock != 1.0 else "")
        case Preempt(seq=seq, moved_for=other):
            gains = other if other >= 0 else record.turn
            return f"preempt {job(seq)}" + (f" for {job(gains)}" if gains >= 0 else "")
        case Wait(until_s=until_s):
            return "wait" if until_s is None else f"wait for {span(until_s - record.now_s)} at most"


def decided_by(record: DecisionRecord) -> str:
    """Return a text that names what made a decision, such as the policy, a rule or the guard."""
    return {
        "policy": f"the policy {record.policy_id}",
        "rule": f"the rule {record.policy_id}",
        "guard": f"the guard ({record.guard})",
        "automatic": "no policy: there was only one option",
        "engine": "its engine",
        "search": f"a look-ahead over the policy {record.policy_id}",
    }[record.source]


def ranked_plans(record: DecisionRecord) -> list[tuple[PlanSeen, str, str]]:
    """Return the plans (possible placements) of a decision as tuples (plan, description, outcome).

    The order is: the chosen plan, the other possible plans (highest value first), the plans that were not
    possible.
    """
    compared = sum(not plan.verdict for plan in record.plans) > 1

    def rank(plan: PlanSeen) -> tuple[bool, bool, float]:
        return (not plan.chosen, bool(plan.verdict), -(plan.worth or 0.0))

    return [
        (plan, in_words(plan, record.names.job), outcome(plan, compared))
        for plan in sorted(record.plans, key=rank)
    ]


def prices_in_words(record: DecisionRecord) -> list[tuple[str, float]]:
    """Return the prices that the policy used in a decision, as pairs: name to show to users, price."""
    return [(PRICE_NAMES.get(name, name), value) for name, value in record.prices.items()]
