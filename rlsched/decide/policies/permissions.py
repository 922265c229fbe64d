"""Permissions of a policy on a cluster, and the reference rule within these permissions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from rlsched.decide.policies.policy import Policy

if TYPE_CHECKING:  # a network at run time does not need kernels
    from rlsched.decide.order.keys import Order
    from rlsched.decide.rules.steps import CompiledRule


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of a policy in addition to starting jobs that fit; sharing and clocks follow from models.

    Attributes:
        preemption: The policy may preempt running jobs, except jobs that must not be preempted.
        reservations: The policy may reserve GPUs for jobs that do not fit.
        declared: The policy may preempt jobs that declare themselves preemptible. Reservations end when the
            first such job is submitted.
    """

    preemption: bool = False
    reservations: bool = False
    declared: bool = False

    def reference(self, *, revised: bool = False) -> Policy:
        """Return the strongest rule within these permissions; an untrained policy decides as this rule.

        Args:
            revised: Whether predictions of waiting jobs are revised by other jobs of their burst.
        """
        return _reference(self, revised)

    def rule(self, *, revised: bool = False) -> CompiledRule:
        """Return the reference rule, compiled."""
        return self.reference(revised=revised).rule

    def order(self, *, revised: bool = False) -> Order:
        """Return the queue order of a policy with these permissions."""
        return self.rule(revised=revised).order


@cache
def _reference(permissions: Permissions, revised: bool) -> Policy:
    """Return the reference rule: see `Permissions.reference`."""
    if permissions.preemption:
        base = Policy("gittins")
    elif permissions.reservations:
        base = Policy("easy", order="area^0.7", reserve_after="1h")
    else:
        base = Policy("qssf-backfill")
    more: dict[str, Any] = {"predictions": "revised"} if revised else {}
    if permissions.declared and not permissions.preemption:
        more["preempt"] = {"declared": True}
    made = base.with_settings(**more)
    return made.named("reference") if made != base else made
