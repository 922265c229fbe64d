"""Schedulers by policy: rules are made of its settings, others are found as entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from rlsched.decide.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError

GROUP = "rlsched.schedulers"
"""Entry points `NAME = MODULE:FACTORY`, called as FACTORY(policy, seed); NAME is what `rule` says."""


def scheduler_names() -> list[str]:
    """Names of all installed schedulers; rules are no part of them."""
    return sorted(point.name for point in _points())


def load_scheduler(policy: Policy | str | Path, *, seed: int = 0) -> Scheduler:
    """The scheduler of a policy.

    Args:
        policy: The policy, or what `Policy.of` reads.
        seed: Seed of its draws.

    Raises:
        UnknownPolicyError: there is no such policy.
        InputError: a setting is wrong, or names a scheduler that is not installed.
    """
    policy = Policy.of(policy)
    if not policy.scheduler:
        return RuleScheduler(policy)
    for point in _points():
        if point.name == policy.scheduler:
            made: Scheduler = point.load()(policy, seed)
            return made
    raise InputError(
        f"policy {policy.name!r}: rule: expected one of {', '.join(scheduler_names())}, or the path of a "
        f"Python file, got {policy.scheduler!r}"
    )


def _points() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))
