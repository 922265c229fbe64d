"""What a policy may do on a cluster, and the rule that it follows where it may do that."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rlsched.decide.order.keys import Order
from rlsched.decide.policy import Policy
from rlsched.decide.rules.steps import CompiledRule
from rlsched.decide.settings import Migrate, Preempt

_PREEMPTING: Final = Policy("gittins")
_ONCE_DECLARED: Final = Preempt(declared=True)
_RESERVING: Final = Policy("easy", order="area^0.7", reserve_after="1h")
_PLAIN: Final = Policy("qssf-backfill")


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
        base = _PREEMPTING if self.preemption else _RESERVING if self.reservations else _PLAIN
        more: dict[str, Any] = {"predictions": "revised"} if revised else {}
        if self.declared and not self.preemption:
            more["preempt"] = _ONCE_DECLARED
        if migrate is not None and (self.preemption or self.declared):
            more["migrate"] = migrate
        return base.with_settings(**more)

    def rule(self, *, revised: bool = False) -> CompiledRule:
        """The same, compiled."""
        return self.reference(revised=revised).rule

    def order(self, *, revised: bool = False) -> Order:
        """What the queue of a policy goes by that may do this."""
        return self.rule(revised=revised).order
