"""How the idle nodes of a cluster are put to sleep, as settings, and the services that they stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from rlsched.errors import InputError
from rlsched.power_down.service import KeepRule, PowerDown, PowerDownService
from rlsched.settings import Seconds
from rlsched.workload.predict.node_demand import SLOT_S, DemandForecast, Persistence, TrailingMaximum

CHOSEN_FOR_NODES: Final = 420
"""The defaults of `KeepRule` are for so many nodes."""
_WAKE_SHARE: Final = 1.6
"""Buffer after a wake-up over buffer, of the same defaults: 40 and 25 nodes."""


class PowerDownPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How nodes sleep: one service for each set of nodes that can stand in for each other.

    Numbers of nodes are of the whole cluster. What is not given is the default of `KeepRule`, scaled from the
    `CHOSEN_FOR_NODES` nodes that it was chosen for.

    Attributes:
        forecast: Of the highest demand ahead. `trailing`: the highest of late comes back; `persistence`: what
            is wanted now stays wanted.
        over: `trailing`: how far it looks back, a multiple of `slot`.
        slot: Demand counts by its highest within so long, and nodes go to sleep when such a time has ended.
        falling: Nodes sleep only while demand is below its mean over so long, a multiple of `slot`; 0: at any
            time.
        idle: A node sleeps only once it has been idle for so long.
        buffer_nodes: Awake above the forecast.
        wake_buffer_nodes: Awake above demand after a wake-up; None: 1.6 times the buffer.
        ramp_nodes: At most so many go to sleep at one review; 0: no limit.
        headroom_nodes: Wake as soon as fewer awake nodes are free, before jobs wait.
        review: Time between two looks at the nodes. Demand is heard at once; nodes sleep by slots.
    """

    forecast: Literal["trailing", "persistence"] = "trailing"
    over: Seconds = Seconds(10_800.0)
    slot: Seconds = Seconds(SLOT_S)
    falling: Seconds = Seconds(KeepRule().falling_slots * SLOT_S)
    idle: Seconds = Seconds(0.0)
    buffer_nodes: int | None = None
    wake_buffer_nodes: int | None = None
    ramp_nodes: int | None = None
    headroom_nodes: int = 0
    review: Seconds = Seconds(60.0)

    def check(self, where: str) -> None:
        """Find out whether the settings go together.

        Raises:
            InputError: naming the setting.
        """
        slot = self.slot.text
        if self.slot <= 0:
            raise InputError(f"{where}: slot: expected a time above 0, got {self.slot.text}")
        if self.over < self.slot or self.over % self.slot:
            raise InputError(f"{where}: over: expected a multiple of slot ({slot}), got {self.over.text}")
        if self.falling < 0 or self.falling % self.slot:
            raise InputError(
                f"{where}: falling: expected 0, or a multiple of slot ({slot}), got {self.falling.text}"
            )
        if self.idle < 0:
            raise InputError(f"{where}: idle: expected a time of 0 or above, got {self.idle.text}")
        if self.review <= 0:
            raise InputError(f"{where}: review: expected a time above 0, got {self.review.text}")
        for name in ("buffer_nodes", "wake_buffer_nodes", "ramp_nodes", "headroom_nodes"):
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"{where}: {name}: expected 0 nodes or more, got {getattr(self, name)}")

    @property
    def demand_forecast(self) -> DemandForecast:
        """The forecast."""
        return (
            Persistence() if self.forecast == "persistence" else TrailingMaximum(round(self.over / self.slot))
        )

    @property
    def rule(self) -> KeepRule:
        """How many nodes to keep: of the whole cluster, or of `CHOSEN_FOR_NODES` where no buffer is given."""
        plain = KeepRule()
        buffer, wake = self.buffer_nodes, self.wake_buffer_nodes
        if buffer is not None and wake is None:
            wake = math.ceil(buffer * _WAKE_SHARE)
        return KeepRule(
            buffer_nodes=plain.buffer_nodes if buffer is None else buffer,
            wake_buffer_nodes=plain.wake_buffer_nodes if wake is None else wake,
            ramp_nodes=plain.ramp_nodes if self.ramp_nodes is None else self.ramp_nodes,
            headroom_nodes=self.headroom_nodes,
            falling_slots=round(self.falling / self.slot),
            min_idle_s=float(self.idle),
        )

    def services(self, sizes: Sequence[int]) -> list[PowerDown]:
        """A service for each set of so many nodes; buffers and ramps are split by size, rounded up."""
        return [self.service(size, sum(sizes)) for size in sizes]

    def service(self, size: int, total: int) -> PowerDownService:
        """The service of a set of so many of all nodes."""
        return PowerDownService(self.rule_for(size, total), self.demand_forecast, float(self.slot))

    def rule_for(self, size: int, total: int) -> KeepRule:
        """How many nodes to keep of a set of so many of all nodes."""
        of = CHOSEN_FOR_NODES if self.buffer_nodes is None else max(total, 1)
        return _scaled(self.rule, size / of)


def _scaled(rule: KeepRule, share: float) -> KeepRule:
    names = ("buffer_nodes", "wake_buffer_nodes", "ramp_nodes", "headroom_nodes")
    scaled = {name: math.ceil(getattr(rule, name) * share) for name in names}
    return msgspec.structs.replace(rule, **scaled)
