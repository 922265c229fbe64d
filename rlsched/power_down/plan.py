"""A power-down rule in a few words, and the services that it stands for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rlsched.errors import InputError
from rlsched.power_down.service import KeepRule, PowerDown, PowerDownService
from rlsched.workload.predict.node_demand import SLOT_S, DemandForecast, Persistence, TrailingMaximum

REVIEW_S: Final = 60.0
"""Time between two looks at the nodes: demand is heard at once, while nodes sleep by slots of ten minutes."""
CHOSEN_FOR_NODES: Final = 420
"""The defaults of `KeepRule` are for so many nodes."""
_WAKE_SHARE: Final = 1.6
"""Buffer after a wake-up over buffer, of the same defaults: 40 and 25 nodes."""
_RULE: Final = re.compile(
    r"(?P<forecast>trailing:(?P<count>\d+(?:\.\d+)?)(?P<unit>min|h|d)|persistence)(?P<nodes>(?:,\d+){1,4})"
)
_UNIT_S: Final = {"min": 60.0, "h": 3600.0, "d": 86400.0}
FORM: Final = (
    "`default`, or `trailing:3h,BUFFER[,WAKE_BUFFER[,RAMP[,HEADROOM]]]` (a time in min, h or d; nodes of the "
    "whole cluster), or `persistence,BUFFER[,...]`"
)


@dataclass(frozen=True)
class PowerDownPlan:
    """How the nodes of a cluster sleep: one service for each set of nodes that can stand in for each other.

    Attributes:
        text: As it was given.
        forecast: Of the highest demand ahead, in every set.
        rule: How many nodes to keep, of a cluster with `nodes`.
        nodes: See `rule`; None: the cluster's own number.
        review_s: Time between two looks at the nodes.
    """

    text: str = "default"
    forecast: DemandForecast = TrailingMaximum(18)  # noqa: RUF009 - frozen
    rule: KeepRule = KeepRule()  # noqa: RUF009 - frozen
    nodes: int | None = CHOSEN_FOR_NODES
    review_s: float = REVIEW_S

    @classmethod
    def parse(cls, text: str) -> PowerDownPlan:
        """The plan that a text names.

        Raises:
            InputError: the text has another form than `FORM`.
        """
        if text == "default":
            return cls()
        found = _RULE.fullmatch(text)
        if found is None:
            raise InputError(f"power-down rule {text!r}: expected {FORM}")
        forecast: DemandForecast = Persistence()
        if found["count"] is not None:
            slots = float(found["count"]) * _UNIT_S[found["unit"]] / SLOT_S
            if slots < 1 or slots != int(slots):
                raise InputError(
                    f"power-down rule {text!r}: expected a multiple of 10 min after `trailing:`, got "
                    f"{found['count']}{found['unit']}"
                )
            forecast = TrailingMaximum(int(slots))
        buffer, *others = (int(count) for count in found["nodes"][1:].split(","))
        names = ("wake_buffer_nodes", "ramp_nodes", "headroom_nodes")
        given = {
            "wake_buffer_nodes": math.ceil(buffer * _WAKE_SHARE),
            **dict(zip(names, others, strict=False)),
        }
        return cls(text, forecast, KeepRule(buffer_nodes=buffer, **given), None)

    def services(self, sizes: Sequence[int]) -> list[PowerDown]:
        """A service for each set of so many nodes; buffers and ramps are split by size, rounded up."""
        of = self.nodes or max(sum(sizes), 1)
        return [PowerDownService(self._scaled(size / of), self.forecast) for size in sizes]

    def _scaled(self, share: float) -> KeepRule:
        rule = self.rule
        return KeepRule(
            buffer_nodes=math.ceil(rule.buffer_nodes * share),
            wake_buffer_nodes=math.ceil(rule.wake_buffer_nodes * share),
            ramp_nodes=math.ceil(rule.ramp_nodes * share),
            falling_slots=rule.falling_slots,
            headroom_nodes=math.ceil(rule.headroom_nodes * share),
            min_awake_s=rule.min_awake_s,
            min_asleep_s=rule.min_asleep_s,
        )
