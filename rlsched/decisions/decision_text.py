"""Describes decisions as text: the action, the alternatives with their values, and the prices."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.plans.plan_text import in_words, outcome, span
from rlsched.decide.record import DecisionRecord, Half, PlanSeen
from rlsched.decide.rows.reasons import REASON_TEXT
from rlsched.decide.schema import SCHEMA

MOST_ROWS: Final = 6
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
    """Return a text that names the source of a decision, such as the policy, a rule or the guard."""
    return {
        "policy": f"the policy {record.policy_id}",
        "rule": f"the rule {record.policy_id}",
        "guard": f"the guard ({record.guard})",
        "search": f"look-ahead over the policy {record.policy_id}",
        "automatic": "no policy: there was only one option",
    }[record.source]


def ranked_plans(record: DecisionRecord) -> list[tuple[PlanSeen, str, str]]:
    """Return the plans of a decision as (plan, description, outcome).

    The chosen plan is first, then possible plans by value, then plans that were not possible.
    """
    compared = sum(not plan.verdict for plan in record.plans) > 1

    def rank(plan: PlanSeen) -> tuple[bool, bool, float]:
        return (not plan.chosen, bool(plan.verdict), -(plan.worth or 0.0))

    return [
        (plan, in_words(plan, record.names.job), outcome(plan, compared))
        for plan in sorted(record.plans, key=rank)
    ]


def rows_in_words(record: DecisionRecord) -> list[tuple[str, str, str, int]]:
    """Return the rows from which a network chose, as (description, outcome, half, index in the half).

    The chosen row of each half is first, then the most probable rows. The result is empty if a rule decided.
    The index is -1 if an entry stands for several omitted rows.
    """
    found: list[tuple[str, str, str, int]] = []
    for half in record.halves:
        chances = probabilities(half, record.temperature)
        order = sorted(
            range(len(half.seqs)), key=lambda row: (row != half.choice, -chances[row] if len(chances) else 0)
        )
        for row in order[:MOST_ROWS]:
            words = row_in_words(record, half, row)
            notes = ["taken"] if row == half.choice else []
            if not half.legal[row]:
                notes.append(f"not open: {REASON_TEXT.get(half.reasons[row], 'not legal')}")
            elif len(chances):
                notes.append(f"probability {chances[row]:.2f}")
            if row == half.reference:
                notes.append("the rule's choice")
            found.append((words, ", ".join(notes) or "open", half.kind, row))
        if len(order) > MOST_ROWS:
            found.append((f"{len(order) - MOST_ROWS} more", "", half.kind, -1))
    return found


def row_in_words(record: DecisionRecord, half: Half, row: int) -> str:
    """Return a text that describes a row of a half: a job, with its node if the row names one, or *wait*."""
    seq = half.seqs[row]
    if seq < 0:
        return "wait"
    node = half.nodes[row]
    where = f" on {record.names.node(node)}" if node >= 0 else ""
    return f"{record.names.job(seq)}{where}"


def features_of(record: DecisionRecord, half: Half) -> list[dict[str, float]]:
    """Return the network's inputs for each row of a half, by column name.

    If the record has another feature schema, the columns are named by number: `column 0`, ...
    """
    if not half.features or not half.seqs:
        return []
    values = np.frombuffer(half.features, dtype=np.float32).reshape(len(half.seqs), -1)
    names = [name for name, _ in SCHEMA.features] if record.schema_hash == SCHEMA.hash else []
    named = names if len(names) == values.shape[1] else [f"column {k}" for k in range(values.shape[1])]
    return [dict(zip(named, row, strict=True)) for row in values.tolist()]


def probabilities(half: Half, temperature: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the probabilities of the rows of a half, (K,): the softmax of the legal rows' logits.

    Illegal rows have probability 0. The result is empty if the record has no logits. At temperature 0
    (arg max), temperature 1 is used, which shows how sure the network was, not how the action was drawn.
    """
    if not half.logits:
        return np.empty(0)
    logits = np.where(half.legal, np.asarray(half.logits, dtype=np.float64), -np.inf)
    scaled = logits / (temperature if temperature > 0 else 1.0)
    if not np.isfinite(scaled).any():
        return np.zeros(len(logits))
    weights = np.exp(scaled - scaled.max())
    result: np.ndarray[tuple[int], np.dtype[np.float64]] = weights / weights.sum()
    return result


def rule_would(record: DecisionRecord) -> str:
    """Return a text that describes the reference rule's choice; "" if no network decided."""
    if not record.halves:
        return ""
    if all(half.choice == half.reference for half in record.halves):
        return "the same"
    return " and ".join(
        row_in_words(record, half, half.reference)
        for half in record.halves
        if 0 <= half.reference < len(half.seqs)
    )


def prices_in_words(record: DecisionRecord) -> list[tuple[str, float]]:
    """Return the prices at the time of a decision as (name for users, price)."""
    return [(PRICE_NAMES.get(name, name), value) for name, value in record.prices.items()]
