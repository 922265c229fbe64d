"""What a strategy lives by: how much it saves less on held-out windows when a column tells it nothing.

Permutation importance (Breiman, «Random Forests», Machine Learning 45, 2001): at each setting of the dials
the column's value is that of some other moment of some window, drawn anew. All else is as it was, the jobs
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, Strategy
from rlsched.decide.policies.policy import Policy
from rlsched_envs.training.dial_env import DialFleet
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.windows import Drawn

Floats = NDArray[np.float64]

WINDOWS: Final = 24
"""Played once as they are, and once for each column that counts."""
_RESAMPLES: Final = 2000


class Column(msgspec.Struct, frozen=True):
    """One column.

    Attributes:
        name: One of `rlsched.decide.dials.observing.NAMES`.
        lost: Per cent of the reference's cost that are saved less without it; below 0: it misleads.
        low, high: 95 % bootstrap interval over the windows.
    """

    name: str
    lost: float
    low: float
    high: float


class Importance(msgspec.Struct, frozen=True):
    """Of all columns that have a weight.

    Attributes:
        saved: Per cent of the cost of the settings that the strategy saves with all of them.
        columns: The most important one first.
        windows: How many windows say so.
    """

    saved: float
    columns: tuple[Column, ...]
    windows: int

    def table(self) -> str:
        """As Markdown."""
        head = ["| column | per cent lost without it | 95 % |", "|---|---:|---|"]
        rows = [f"| {one.name} | {one.lost:.2f} | {one.low:.2f} to {one.high:.2f} |" for one in self.columns]
        said = (
            f"With all columns it saves {self.saved:.2f} % of the cost, on {self.windows} held-out windows."
        )
        return "\n".join([said, "", *head, *rows])


def columns_used(strategy: Strategy) -> list[int]:
    """Columns that have a weight."""
    first = np.array(strategy.layers[0])
    return [column for column in range(NUM_COLUMNS) if first[:, column].any()]


def importance_of(
    strategy: Strategy,
    policy: Policy,
    sources: Sequence[EpisodeSource],
    drawn: Drawn,
    seed: int,
    windows: int = WINDOWS,
) -> Importance:
    """Play the same windows with one column after the other telling nothing.

    Args:
        strategy: Sets the dials: what ES or PPO has found.
        policy: The rule whose dials they are.
        sources: What windows are drawn from; nothing of them has taught.
        drawn: What they are like.
        seed: Of the draws.
        windows: How many.
    """
    fit = [source for source in sources if source.submit_s.size >= max(drawn.jobs // 3, 1)]
    fleet = DialFleet(fit, windows, drawn, policy, seed)
    layers = [np.array(layer) for layer in strategy.layers]
    saved, seen = _played(fleet, layers, seed)
    draws, columns = np.random.default_rng(seed), []
    for column in columns_used(strategy):
        values = seen[:, column]
        lost = saved - _played(fleet, layers, seed, column, values, draws)[0]
        picks = np.random.default_rng(seed).integers(0, windows, (_RESAMPLES, windows))
        low, high = np.quantile(lost[picks].mean(axis=1), (0.025, 0.975))
        columns.append(Column(NAMES[column], float(lost.mean()), float(low), float(high)))
    columns.sort(key=lambda one: -one.lost)
    return Importance(float(saved.mean()), tuple(columns), windows)


def _played(
    fleet: DialFleet,
    layers: Sequence[Floats],
    seed: int,
    column: int = -1,
    values: Floats | None = None,
    draws: np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """(W,) per cent saved in each window, and (N, F) all that was seen while it was played.

    Args:
        fleet: Plays them, from the first draw of this seed on.
        layers: Of the strategy.
        seed: Of the windows.
        column: The one that tells nothing; -1: none.
        values: (N,) what it is, in turn.
        draws: Where it is drawn from.
    """
    windows = fleet.dones.size
    fleet.reseed(seed)
    for k in range(windows):
        fleet.begin(k)
    saved, playing, seen = np.zeros(windows), np.ones(windows, np.bool_), []
    while playing.any():
        moved = fleet.observations.astype(np.float64)
        seen.append(moved[playing])
        if values is not None and draws is not None:
            moved[:, column] = draws.choice(values, windows)
        for layer in layers:
            moved = np.tanh(moved @ layer[:, :-1].T + layer[:, -1])
        fleet.step(moved, restart=False)
        saved += np.where(playing, fleet.rewards, 0.0)
        playing &= ~fleet.dones
    return saved, np.concatenate(seen)


def picture(found: Importance, most: int = 20) -> tuple[bytes, int, int]:
    """Bars, the most important column first: a PNG, its width and height.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from io import BytesIO

    from matplotlib.figure import Figure

    shown = found.columns[:most][::-1]
    width, height = 7.0, 1.2 + 0.28 * len(shown)
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    axes = figure.subplots()
    lost = np.array([one.lost for one in shown])
    ends = np.array([(one.low, one.high) for one in shown])
    off = np.maximum(np.stack([lost - ends[:, 0], ends[:, 1] - lost]), 0.0)
    axes.barh(np.arange(len(shown)), lost, xerr=off, color="#4477aa", ecolor="#888888")
    axes.set_yticks(np.arange(len(shown)), [one.name for one in shown])
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel(f"per cent of the cost lost without it, of {found.saved:.2f} saved; bars: 95 %")
    axes.spines[["top", "right"]].set_visible(False)
    out = BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue(), round(width * 100), round(height * 100)
