"""Schedulers by policy: rules are made of its settings, others are found as entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from rlsched.decide.own import is_own, loaded
from rlsched.decide.policies.policy import Policy, plain_rule
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.making import order_of
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
    if is_own(policy.scheduler):
        return own_scheduler(policy, seed)
    for point in _points():
        if point.name == policy.scheduler:
            made: Scheduler = point.load()(policy, seed)
            return made
    raise InputError(
        f"policy {policy.name!r}: rule: expected one of {', '.join(scheduler_names())}, or the path of a "
        f"Python file, got {policy.scheduler!r}"
    )


def own_scheduler(policy: Policy, seed: int) -> Scheduler:
    """The scheduler of a policy, where that is a class in somebody's own file.

    It is made with the policy and the seed where it has an `__init__`, else with nothing. It reads what the
    settings say of order and predictions where its class does not name an order, and `own`.

    Raises:
        InputError: it cannot be made, or a setting is set that nobody reads.
    """
    policy.check_read("order", "own", "predictions")
    settings, kind = policy.settings, loaded(policy.settings.rule)
    try:
        made: Scheduler = kind() if kind.__init__ is object.__init__ else kind(policy, seed)
    except Exception as error:  # whatever is in somebody's file
        raise InputError(
            f"{settings.rule}: this policy cannot be made: {type(error).__name__}: {error}"
        ) from error
    made.name = getattr(made, "name", policy.name)
    made.policy_id = getattr(made, "policy_id", policy.policy_id)
    made.oracle = made.oracle or policy.oracle
    if made.order == Scheduler.order:
        made.order = order_of(settings)
    if made.reference is None:  # it may fail
        behind = plain_rule(settings)
        made.reference = behind if order_of(behind.settings) == made.order else None
    return made


def _points() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))
