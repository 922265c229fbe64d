"""Measures the importance of the columns (observed features) of a strategy on held-out windows.

The importance of a column is how much less the strategy saves if the column has random values (permutation
importance: Breiman, «Random Forests», Machine Learning 45, 2001). The values are drawn from all values of the
column in the windows.
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
from rlsched_envs.training.sources import Drawn, EpisodeSource

Floats = NDArray[np.float64]

WINDOWS: Final = 24
"""Default number of windows. Each runs once unchanged, and once per column in use with this column random."""
_RESAMPLES: Final = 2000


class ColumnImportance(msgspec.Struct, frozen=True):
    """Importance of one column.

    Attributes:
        name: Name of the column (`rlsched.decide.dials.observing.NAMES`).
        lost: How much less the strategy saves if this column has random values, per cent of the cost with all
            dials at 0.
        low, high: 95 % bootstrap interval of `lost` over the windows.
    """

    name: str
    lost: float
    low: float
    high: float


class Importance(msgspec.Struct, frozen=True):
    """Importance of all columns that have a weight in a strategy.

    Attributes:
        saved: Savings of the strategy with all columns, per cent of the cost with all dials at 0.
        columns: Importance of each column, most important first.
        windows: Number of windows.
    """

    saved: float
    columns: tuple[ColumnImportance, ...]
    windows: int

    def table(self) -> str:
        """Return the importance as a Markdown table."""
        head = ["| column | per cent lost without it | 95 % |", "|---|---:|---|"]
        rows = [f"| {one.name} | {one.lost:.2f} | {one.low:.2f} to {one.high:.2f} |" for one in self.columns]
        said = f"With all columns it saves {self.saved:.2f} % of the cost on {self.windows} held-out windows."
        return "\n".join([said, "", *head, *rows])


def columns_used(strategy: Strategy) -> list[int]:
    """Return the indices of the columns that have a weight other than 0 in the strategy."""
    first = strategy.matrices[0]
    return [column for column in range(NUM_COLUMNS) if first[:, column].any()]


def importance_of(
    strategy: Strategy,
    policy: Policy,
    sources: Sequence[EpisodeSource],
    drawn: Drawn,
    seed: int,
    windows: int = WINDOWS,
) -> Importance:
    """Return the importance of columns: run the same windows once per column, with this column random.

    Args:
        strategy: The trained strategy that sets the dials.
        policy: The rule whose dials are set.
        sources: Traces that windows are drawn from; they must not have jobs of the training data.
        drawn: How windows are drawn.
        seed: Seed of the draws.
        windows: Number of windows.
    """
    fleet, layers = fleet_of(policy, sources, drawn, seed, windows), strategy.matrices
    saved, seen = played(fleet, layers, seed)
    draws, columns = np.random.default_rng(seed), []
    for column in columns_used(strategy):
        values = seen[:, column]
        lost = saved - played(fleet, layers, seed, column, values, draws)[0]
        picks = np.random.default_rng(seed).integers(0, windows, (_RESAMPLES, windows))
        low, high = np.quantile(lost[picks].mean(axis=1), (0.025, 0.975))
        columns.append(ColumnImportance(NAMES[column], float(lost.mean()), float(low), float(high)))
    columns.sort(key=lambda one: -one.lost)
    return Importance(float(saved.mean()), tuple(columns), windows)


def fleet_of(
    policy: Policy, sources: Sequence[EpisodeSource], drawn: Drawn, seed: int, windows: int
) -> DialFleet:
    """Return simulated clusters that run windows. Sources with too few jobs are left out.

    Args:
        policy: The rule whose dials are set.
        sources: Traces that windows are drawn from.
        drawn: How windows are drawn.
        seed: Seed of the draws.
        windows: Number of windows.
    """
    fit = [source for source in sources if source.submit_s.size >= max(drawn.jobs // 3, 1)]
    return DialFleet(fit, windows, drawn, policy, seed)


def played(
    fleet: DialFleet,
    layers: Sequence[Floats],
    seed: int,
    column: int = -1,
    values: Floats | None = None,
    draws: np.random.Generator | None = None,
) -> tuple[Floats, Floats]:
    """Run W windows under a strategy.

    Args:
        fleet: Clusters that run the windows.
        layers: Matrices of the strategy.
        seed: Seed from which the windows are drawn.
        column: Index of the column that gets random values; -1: no column.
        values: (N,) values from which the values of `column` are drawn.
        draws: Random generator for these draws.

    Returns:
        The (W,) savings, per cent of the cost with all dials at 0, and the (N, F) observations in all
        windows.
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
    """Draw the `most` most important columns as a bar chart. Return a PNG, and its width and height, pixels.

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
