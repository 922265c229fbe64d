"""What a policy may do on a cluster, and the rule that it follows where it may do that."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from rlsched.decide.policies.policy import Policy
from rlsched.decide.settings import Migrate

if TYPE_CHECKING:  # the runtime of a network has no use for kernels
    from rlsched.decide.order.keys import Order
    from rlsched.decide.rules.steps import CompiledRule


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may do beside starting jobs that fit; sharing and clocks follow from models.

    Attributes:
        preemption: Preempt running jobs, but those that must not be.
        reservations: Keep GPUs for jobs that do not fit.
        declared: Preempt jobs that declare it, once one has been submitted; nothing is reserved then.
    """

    preemption: bool = False
    reservations: bool = False
    declared: bool = False

    def reference(self, *, revised: bool = False, migrate: Migrate | None = None) -> Policy:
        """The strongest rule that does no more than this: a policy before training decides as it does.

        Args:
            revised: Whether predictions of waiting jobs follow what jobs of their burst do.
            migrate: When running jobs are moved, where jobs may be preempted.
        """
        return _reference(self, revised, migrate)

    def rule(self, *, revised: bool = False) -> CompiledRule:
        """The same, compiled."""
        return self.reference(revised=revised).rule

    def order(self, *, revised: bool = False) -> Order:
        """What the queue of a policy goes by that may do this."""
        return self.rule(revised=revised).order


@cache
def _reference(permissions: Permissions, revised: bool, migrate: Migrate | None) -> Policy:
    """See `Permissions.reference`."""
    if permissions.preemption:
        base = Policy("gittins")
    elif permissions.reservations:
        base = Policy("easy", order="area^0.7", reserve_after="1h")
    else:
        base = Policy("qssf-backfill")
    more: dict[str, Any] = {"predictions": "revised"} if revised else {}
    if permissions.declared and not permissions.preemption:
        more["preempt"] = {"declared": True}
    if migrate is not None and (permissions.preemption or permissions.declared):
        more["migrate"] = migrate
    made = base.with_settings(**more)
    return made.named("reference") if made != base else made
