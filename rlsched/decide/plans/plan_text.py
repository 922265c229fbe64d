"""Functions that describe the plans (ways to start a job) of a decision record as text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from rlsched.decide.record import PlanSeen


def in_words(plan: PlanSeen, job: Callable[[int], str]) -> str:
    """Return a description of a plan, without its outcome.

    Args:
        plan: The plan.
        job: Returns the display name of a job, given its sequence number in the cluster's state.
    """
    where = _nodes(plan) if plan.node else "free GPUs"
    if plan.gpu_type:
        where += f" ({plan.gpu_type})"
    if plan.how == "preempt":
        return f"{job(plan.share_with)} is preempted"
    if plan.how == "later":
        if plan.wait_s is None:
            return "later: the running jobs hold too few GPUs to make room"
        return f"later: in about {span(plan.wait_s)}" if plan.wait_s > 0.0 else "later"
    if plan.how == "share":
        where = f"share the GPUs of {job(plan.share_with)}" + (f" ({plan.gpu_type})" if plan.gpu_type else "")
        if plan.tenants:
            lost = plan.speed_frac - plan.gain_frac
            where += f": {plan.speed_frac:.2f} of its speed, the others lose {lost:.2f}"
            if plan.asked_frac is not None:
                where += f", {plan.gain_frac:.2f} gained for {plan.asked_frac:.2f} asked"
    if plan.verdict:
        return where
    where += f", predicted to run {span(plan.run_s)}"
    if plan.sm_clock_frac < 1.0:
        where += f" at {plan.sm_clock_frac:.2f} of the highest SM clock"
    return where + (f", {plan.power_w:.0f} W more" if plan.power_w else "")


def _nodes(plan: PlanSeen) -> str:
    return f"node {plan.node}" if plan.nodes == 1 else f"node {plan.node} and {plan.nodes - 1} more"


def outcome(plan: PlanSeen, compared: bool) -> str:
    """Return the outcome of a plan as text, with the plan's worth if several plans were `compared`."""
    if plan.chosen:
        return "taken"
    if plan.verdict:
        return f"not open: {plan.verdict}"
    return (
        f"worth {plan.worth:.2f}" if compared and plan.worth is not None and plan.how != "later" else "open"
    )


def span(seconds: float) -> str:
    """Return a duration as text, such as `2 h 5 min`."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    left = max(0, round(seconds))
    for (word, size), (small_word, small) in pairwise(units):
        if left >= size:
            rest = left % size // small
            return f"{left // size} {word}" + (f" {rest} {small_word}" if rest else "")
    return f"{left} s"
