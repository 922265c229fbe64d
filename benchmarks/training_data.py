"""Training data of the policy `ppo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from rlsched.cluster.spec import ClusterSpec
from rlsched.energy.convert import convert
from rlsched.energy.series import HOUR_S
from rlsched.energy.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.dials.training_data import TrainingData, synthetic_data
from rlsched_envs.training.tariffs import Tariff

REAL: Final = {"helios_venus": 1.0, "philly": 1.0, "ms_itp_07": 0.5, "ms_itp_08": 0.5}
"""Real traces and the weight of each in episodes; their predictions are weak (causal means)."""
SYNTHETIC: Final = {"helios": 4.0, "philly": 1.5, "itp": 1.0}
"""Profiles of the generator, and their weights; their predictions are informative."""

ZONES: Final = ("de-lu", "us-cal-ciso", "us-tex-erco")
"""Price zones with day-ahead prices, files of the folder `energy`."""
PRICES: Final = "price_usd_mwh"
SHAPES: Final = ("solar", "wind", "spiky")
"""Shapes of synthetic prices, if the folder does not exist."""
FIRST_DAY: Final = datetime(2023, 1, 1, tzinfo=UTC)
DAYS: Final = 731
FILLED_H: Final = 48.0
KNOWN_AHEAD_S: Final = 12 * HOUR_S
"""Synthetic prices have the days of the real ones. Gaps of up to `FILLED_H` are filled. Day-ahead prices are
known for 12 to 36 hours.
"""


def read_prices(
    folder: Path, zones: Sequence[str], known_ahead_s: float, column: str = PRICES
) -> list[Tariff]:
    """Return the prices of real zones, or other columns of `ZONE.csv.gz` in `folder`.

    Raises:
        InputError: a file cannot be read.
    """
    found = (convert(folder / f"{zone}.csv.gz", "plain", column, FILLED_H).series for zone in zones)
    return [Tariff.of(one, known_ahead_s) for one in found]


def flat_price() -> Tariff:
    """Return a constant price."""
    return Tariff.of(synthesize("flat", FIRST_DAY, DAYS, seed=0), KNOWN_AHEAD_S)


def training_prices(folder: Path) -> list[Tariff]:
    """Return the prices of `ZONES`, or synthetic ones if `folder` lacks them, and a constant price."""
    if all((folder / f"{zone}.csv.gz").is_file() for zone in ZONES):
        return [*read_prices(folder, ZONES, KNOWN_AHEAD_S), flat_price()]
    drawn = (synthesize(like, FIRST_DAY, DAYS, seed=0) for like in SHAPES)
    return [*(Tariff.of(one, KNOWN_AHEAD_S) for one in drawn), flat_price()]


def default_data(folder: Path, seed: int) -> list[TrainingData]:
    """Training data of the default policy: real traces of a folder, and synthetic ones of a seed."""
    real = [weighted(read(folder, name), weight) for name, weight in REAL.items()]
    return [*real, *synthetic(seed)]


def synthetic(seed: int) -> list[TrainingData]:
    """The synthetic traces of a seed, with informative predictions."""
    return [_weighted_synthetic(like, weight, seed) for like, weight in SYNTHETIC.items()]


@cache
def _weighted_synthetic(like: str, weight: float, seed: int) -> TrainingData:
    return weighted(synthetic_data(like, seed, "informative"), weight)


@cache
def read(folder: Path, name: str) -> TrainingData:
    """One real trace, split by time. `folder` has `NAME.csv.gz` and `NAME.cluster.toml`.

    Raises:
        InputError: A file cannot be read.
    """
    return TrainingData.cut(
        Trace.read(folder / f"{name}.csv.gz"), ClusterSpec.read(folder / f"{name}.cluster.toml")
    )


def weighted(data: TrainingData, weight: float) -> TrainingData:
    """Return the data with a weight: episodes are drawn `weight` times as often as from data of weight 1."""
    return replace(data, train=replace(data.train, weight=weight))
