"""Candidates of a decision: its numbered alternatives. A replay can choose another candidate.

A candidate is the choice of the static rule (the policy's rule without dials), or a plan (a possible
placement of a job).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.plans.plan_text import in_words
from rlsched.decide.record import DecisionRecord
from rlsched.errors import InputError

RULE: Final = "rule"
"""Name of the candidate that is the static rule's choice."""


@dataclass(frozen=True)
class Candidate:
    """One alternative of a decision.

    Attributes:
        number: Number of the candidate within the decision, from 1; 0 for the static rule's choice.
        of: Kind of the candidate: `rule` (the choice of the static rule), or `plan`.
        at: Index of the plan in the plans of the decision record; -1 for the static rule's choice.
        taken: Whether the scheduler chose this candidate.
        words: Description for users.
    """

    number: int
    of: Literal["rule", "plan"]
    at: int
    taken: bool
    words: str


def candidates(record: DecisionRecord) -> list[Candidate]:
    """Return the candidates of a decision, including the chosen one.

    If the static rule (a rule without dials, which are settings that change while it runs) did not make the
    decision, its choice is the first candidate. The others are the plans that were possible.
    """
    found: list[Candidate] = []
    if record.source != "rule" or record.reference:
        whose = f" ({record.reference})" if record.reference else ""
        found.append(Candidate(0, "rule", -1, False, f"the rule's choice{whose}"))
    number = 1
    waited = isinstance(record.action, Wait)
    for at, plan in enumerate(record.plans):
        taken = plan.chosen or (waited and plan.how == "later")
        if not plan.verdict:
            found.append(Candidate(number, "plan", at, taken, in_words(plan, record.names.job)))
            number += 1
    return found


def candidate(record: DecisionRecord, asked: str) -> Candidate:
    """Return a candidate. `asked` is its number, or `rule` for the choice of the static rule.

    Raises:
        InputError: the decision has no such candidate.
    """
    known = candidates(record)
    wanted = 0 if asked == RULE else int(asked) if asked.isdecimal() and len(asked) < 9 else -1
    for one in known:
        if one.number == wanted:
            return one
    numbers = [one.number for one in known if one.number]
    have = f"1 to {numbers[-1]}" if len(numbers) > 1 else "only 1" if numbers else "none with a number"
    if wanted == 0:
        raise InputError(
            f"--instead {asked}: the rule itself made decision {record.number}; give the number of another "
            f"candidate: {have}"
        )
    raise InputError(
        f"--instead {asked[:40]!r}: expected {RULE!r} or the number of a candidate; candidates of decision "
        f"{record.number}: {have}"
    )


def numbers_of_plans(record: DecisionRecord) -> dict[int, int]:
    """Return a dict: index in the record of a plan that was possible -> its number as a candidate."""
    return {one.at: one.number for one in candidates(record) if one.of == "plan"}


def as_another(record: DecisionRecord, other: DecisionRecord | None) -> Candidate | None:
    """Return the candidate of a decision with the same action as a decision of another run; None: none has.

    The candidate that the scheduler chose is left out. Jobs of the two runs are matched by displayed ID.

    Args:
        record: Record of the decision.
        other: Record of the decision of the other run; None: the other run only waited.
    """
    action = None if other is None else other.action
    found = [one for one in candidates(record) if not one.taken and _as(record, one, other)]
    if isinstance(action, Start) and other is not None and action.gpus:
        plan = next((plan for plan in other.plans if plan.chosen), None)
        for one in found:
            if plan is not None and one.of == "plan" and record.plans[one.at].node == plan.node:
                return one
    return found[0] if found else None


def _as(record: DecisionRecord, one: Candidate, other: DecisionRecord | None) -> bool:
    action = None if other is None else other.action
    names = record.names.jobs
    if isinstance(action, Start) and other is not None:
        job, shares = other.names.jobs.get(action.seq, ""), action.share_with >= 0
        if one.of == "plan":
            plan = record.plans[one.at]
            if names.get(record.turn) != job or plan.how != ("share" if shares else "free"):
                return False
            return not shares or names.get(plan.share_with) == other.names.jobs.get(action.share_with)
        return False
    if isinstance(action, Preempt):
        return False
    return one.of == "plan" and record.plans[one.at].how == "later"
