"""Creates the scheduler of a policy: a rule defined by settings, or a scheduler from an entry point."""

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
"""Entry point group. Each entry point is `NAME = MODULE:FACTORY`, called as FACTORY(policy, seed). A policy
selects an entry point by its setting `rule`, which is NAME."""


def scheduler_names() -> list[str]:
    """Return the names of all installed schedulers that are not rules."""
    return sorted(point.name for point in _points())


def load_scheduler(policy: Policy | str | Path, *, seed: int = 0) -> Scheduler:
    """Return the scheduler of a policy.

    Args:
        policy: The policy, or an argument of `Policy.of`.
        seed: Seed of the scheduler's random draws.

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
    """Return the scheduler of a policy that is a class in a user's file.

    An `__init__` gets the policy and the seed. Three settings apply to the scheduler: `predictions`, `own`
    (numbers), and `order` (the queue order) if the class has no `order`.

    Raises:
        InputError: the scheduler cannot be created, or a setting is set that the scheduler does not read.
    """
    policy.check_read("order", "own", "predictions")
    settings, kind = policy.settings, loaded(policy.settings.rule)
    try:
        made: Scheduler = kind() if kind.__init__ is object.__init__ else kind(policy, seed)
    except Exception as error:  # a user's file may raise anything
        raise InputError(
            f"{settings.rule}: this policy cannot be created: {type(error).__name__}: {error}"
        ) from error
    made.name = getattr(made, "name", policy.name)
    made.policy_id = getattr(made, "policy_id", policy.policy_id)
    made.oracle = made.oracle or policy.oracle
    if made.order == Scheduler.order:
        made.order = order_of(settings)
    if made.reference is None:  # a user's scheduler may fail
        behind = plain_rule(settings)
        made.reference = behind if order_of(behind.settings) == made.order else None
    return made


def _points() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))
