"""Measures how a strategy sets its dials on held-out windows, by hour of the day and by price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import Strategy, dials_of
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched_agents.dials.importance import fleet_of, played
from rlsched_agents.dials.judging import Floats
from rlsched_envs.training.sources import Drawn, EpisodeSource

WINDOWS: Final = 24
"""Default number of windows."""
HOURS: Final = 24
PRICES: Final = (0.8, 1.2)
"""Limits between low, middle and high prices, relative to the mean price of about a day."""
GROUPS: Final = ("low price", "middle price", "high price")
_BLOCK_H: Final = 4


class Habits(msgspec.Struct, frozen=True):
    """Mean positions of dials.

    Attributes:
        cells: (D, 24, 3) mean position of each of D dials, by hour of the day, and by group of prices
            (`GROUPS`); nan: the dials were never set at this hour and price.
        counts: (24, 3) how often the dials were set at this hour and price.
        windows: Number of windows.
    """

    cells: Floats
    counts: Floats
    windows: int

    @property
    def has_prices(self) -> bool:
        """Whether any price was low or high. Without prices, the group is always `middle price`."""
        return bool(self.counts[:, [0, 2]].any())

    def mean(self, hours: slice = slice(None), prices: slice = slice(None)) -> Floats:
        """Return the (D,) mean positions of the dials at these hours and prices; nan: never set."""
        weights = self.counts[hours, prices]
        total = np.nansum(self.cells[:, hours, prices] * weights, axis=(1, 2))
        return total / weights.sum() if weights.any() else np.full(len(self.cells), np.nan)

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the head and the rows of a table with a row per dial.

        The columns are mean positions: one for each four hours of the day, then one for each group of prices.
        """
        head, columns = ["dial"], list[Floats]()
        for first in range(0, HOURS, _BLOCK_H):
            head.append(f"{first}-{first + _BLOCK_H - 1} h")
            columns.append(self.mean(hours=slice(first, first + _BLOCK_H)))
        for group, name in enumerate(GROUPS if self.has_prices else ()):
            head.append(name)
            columns.append(self.mean(prices=slice(group, group + 1)))
        rows = [
            (f"`{name}`", *("-" if np.isnan(column[dial]) else f"{column[dial]:+.2f}" for column in columns))
            for dial, name in enumerate(RANGES)
        ]
        return tuple(head), rows


def habits_of(
    strategy: Strategy,
    policy: Policy,
    sources: Sequence[EpisodeSource],
    drawn: Drawn,
    seed: int,
    windows: int = WINDOWS,
) -> Habits:
    """Run windows under a strategy; return the mean positions of its dials.

    The arguments are as in `importance.importance_of`.
    """
    _, seen = played(fleet_of(policy, sources, drawn, seed, windows), strategy.matrices, seed)
    return habits_in(strategy, seen, windows)


def habits_in(strategy: Strategy, seen: Floats, windows: int) -> Habits:
    """Return the mean positions to which a strategy sets its dials for N observations, `seen` (N, F)."""
    dials = dials_of(strategy.matrices, seen, strategy.output) * np.array(list(RANGES.values()))
    angle = np.arctan2(seen[:, NAMES.index("hour_sin")], seen[:, NAMES.index("hour_cos")])
    hour = (np.round(angle / (2.0 * np.pi) * HOURS, 6) % HOURS).astype(np.intp)
    group = np.searchsorted(np.log(PRICES), seen[:, NAMES.index("price")])
    counts = np.zeros((HOURS, len(GROUPS)))
    np.add.at(counts, (hour, group), 1.0)
    sums = np.zeros((HOURS, len(GROUPS), len(RANGES)))
    np.add.at(sums, (hour, group), dials)
    with np.errstate(invalid="ignore"):
        return Habits(np.moveaxis(sums / counts[..., None], -1, 0), counts, windows)


def picture(found: Habits) -> tuple[bytes, int, int]:
    """Draw the dials by hour and price, one panel per dial. Return a PNG, and its width and height, pixels.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from io import BytesIO

    from matplotlib.figure import Figure

    columns = 3
    lines = -(-len(RANGES) // columns)
    groups = list(range(len(GROUPS))) if found.has_prices else [1]
    width, height = 10.0, lines * (0.8 + 0.25 * len(groups))
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    fields = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
    for field in fields[len(RANGES) :]:
        field.set_visible(False)
    for dial, (name, most) in enumerate(RANGES.items()):
        field, shown = fields[dial], found.cells[dial][:, groups].T[::-1]
        drawn = field.imshow(shown, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        field.set_title(f"{name} (±{most:g})", fontsize=9)
        field.set_xticks(range(0, HOURS, 6))
        labels = [GROUPS[group].removesuffix(" price") if found.has_prices else "" for group in groups[::-1]]
        field.set_yticks(range(len(groups)), labels, fontsize=8)
        figure.colorbar(drawn, ax=field, ticks=[-most, 0.0, most])
    figure.supxlabel("hour of the day", fontsize=9)
    out = BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue(), round(width * 100), round(height * 100)
