"""Settings for putting a cluster's idle nodes to sleep, from which a `PowerDownService` is made."""

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
"""Number of nodes of the cluster for which the defaults of `KeepRule` were chosen."""
_WAKE_SHARE: Final = 1.6
"""Default ratio of `wake_buffer_nodes` to `buffer_nodes`, as in `KeepRule` (40 and 25 nodes)."""

_NUMBERS: Final = ("buffer_nodes", "wake_buffer_nodes", "ramp_nodes", "headroom_nodes")


class PowerDownPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for putting nodes to sleep; each set of interchangeable nodes gets its own service.

    Node counts apply to the whole cluster. If `buffer_nodes` is not given, missing node counts have the
    defaults of `KeepRule`, in proportion to the size of the cluster.

    Attributes:
        forecast: Forecast of the highest future demand. `trailing`: the recent maximum; `persistence`: the
            current demand.
        over: Time span of the maximum for `trailing`, a multiple of `slot`.
        slot: Length of a time slot. The demand of a slot is the maximum demand in the slot. Nodes are put to
            sleep at the end of a slot.
        falling: Nodes are put to sleep only if demand is below its mean in this time, a multiple of `slot`,
            or has not changed in this time; 0: at any demand.
        idle: Idle time after which a node can sleep.
        buffer_nodes: Number of nodes to keep awake above the forecast.
        wake_buffer_nodes: Number of nodes to keep awake above demand after a wake-up; None: 1.6 times
            `buffer_nodes`.
        ramp_nodes: Maximum number of nodes to put to sleep per review; 0: no limit.
        headroom_nodes: Number of free awake nodes below which nodes are woken, even if no job waits.
        review: Time between two reviews, which wake nodes and record demand. Reviews are at multiples of this
            time. While jobs wait and nodes sleep, further reviews follow scheduling decisions (`NEED_S`).
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
        """Check that the settings are consistent.

        Raises:
            InputError: a setting is invalid; the message names it.
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
        for name in _NUMBERS:
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"{where}: {name}: expected 0 nodes or more, got {getattr(self, name)}")

    def next_review_s(self, now_s: float) -> float:
        """Return the time of the first review after `now_s`, seconds."""
        return (now_s // self.review + 1) * float(self.review)

    @property
    def demand_forecast(self) -> DemandForecast:
        """Return the forecast that these settings select."""
        return (
            Persistence() if self.forecast == "persistence" else TrailingMaximum(round(self.over / self.slot))
        )

    @property
    def rule(self) -> KeepRule:
        """These settings as a `KeepRule`. Its node counts apply to the whole cluster; see `rule_for`."""
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
        """Return a power-down service for each set of interchangeable nodes, given the sizes of the sets.

        Node counts, such as buffers, are divided among the sets in proportion to size, and rounded up.
        """
        return [self.service(size, sum(sizes)) for size in sizes]

    def service(self, size: int, total: int) -> PowerDownService:
        """Return the power-down service of a set of `size` nodes, in a cluster of `total` nodes."""
        return PowerDownService(self.rule_for(size, total), self.demand_forecast, float(self.slot))

    def rule_for(self, size: int, total: int) -> KeepRule:
        """Return `rule` with node counts scaled to a set of `size` nodes, in a cluster of `total` nodes."""
        rule, scaled = self.rule, dict[str, int]()
        for name in _NUMBERS:
            is_default = self.buffer_nodes is None and getattr(self, name) is None
            of_nodes = CHOSEN_FOR_NODES if is_default else max(total, 1)
            scaled[name] = math.ceil(getattr(rule, name) * size / of_nodes)
        return msgspec.structs.replace(rule, **scaled)
