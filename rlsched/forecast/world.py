"""What a forecaster is handed, and what it hands back; forecasters are found as entry points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.forecast.arrivals import Past

if TYPE_CHECKING:
    from rlsched.cluster.demand import Demand
    from rlsched.cluster.state import ClusterState
    from rlsched.decide.rules.steps import CompiledRule

Floats = NDArray[np.float64]

GROUP: Final = "rlsched.forecasters"
"""Entry points `NAME = MODULE:FACTORY`, called without arguments."""
DEFAULT: Final = "futures"
FUTURES: Final = 64
HORIZON_S: Final = 7 * 86_400.0
"""What has not come by then is «not within 7 days»."""
QUANTILES: Final = (0.1, 0.5, 0.9)


class Asked(NamedTuple):
    """A job that nobody has submitted.

    Attributes:
        demand: What it asks for: whole GPUs, and what stands beside them.
        vc: Its virtual cluster.
        submit_s: When it would come.
        predicted_s: Median run time.
        spread: Standard deviation of its logarithm.
        limit_s: Its time limit, nan: none.
        preemptible: Whether it may be preempted.
    """

    demand: Demand
    vc: str
    submit_s: float
    predicted_s: float
    spread: float
    limit_s: float = math.nan
    preemptible: bool = False

    @property
    def num_gpus(self) -> int:
        """Whole GPUs."""
        return self.demand.gpus


@dataclass(frozen=True)
class World:
    """All that a forecast is made of: what a broker knows, and nothing else.

    Attributes:
        state: The cluster and its live jobs; a forecaster leaves it as it is.
        rule: The rule that decides in the futures.
        now_s: Now.
        chances: By number of a live job in the state, (BINS,) what is predicted of its run time; where there
            is nothing, the lognormal of the state's prediction counts.
        past: What came lately.
        numbers: By number of a live job in the state, its number in `past`; those that are not in it are in
            no burst.
    """

    state: ClusterState
    rule: CompiledRule
    now_s: float
    chances: dict[int, Floats]
    past: Past
    numbers: dict[int, int] = field(default_factory=dict)

    @cached_property
    def served(self) -> NDArray[np.int32]:
        """(1 + VCs, 2) own and shared partition of the VC with the number one less; of none at first."""
        names = ["", *self.state.vc_names]
        return np.array([self.state.partitions_of(name) for name in names], np.int32).reshape(-1, 2)


@dataclass(frozen=True)
class Ahead:
    """What became of L live jobs in S futures.

    Attributes:
        seqs: (L,) their numbers in the state; -1: the job that nobody has submitted, which comes last.
        running: (L,) whether each runs now.
        start_s: (L, S) when each starts, infinite: not within the horizon; of one that runs, its start.
        end_s: (L, S) likewise when it ends.
    """

    seqs: NDArray[np.int64]
    running: NDArray[np.bool_]
    start_s: Floats
    end_s: Floats


class Forecaster(Protocol):
    """Plays a state forward.

    Attributes:
        futures: S, how many futures at most.
    """

    futures: int

    def play(self, world: World, asked: Asked | None = None) -> Ahead:
        """Futures of all live jobs, or of one more job alone."""

    def listed(self, world: World, asked: Asked | None = None) -> Ahead:
        """The one future in which nothing comes and all run for their predicted times: list scheduling."""


def forecaster_names() -> list[str]:
    """Names of all installed forecasters."""
    return sorted(point.name for point in entry_points(group=GROUP))


def load_forecaster(name: str = DEFAULT) -> Forecaster:
    """A forecaster by its name.

    Raises:
        InputError: there is none of this name, or it cannot be loaded.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                made: Forecaster = point.load()()
            except (ImportError, AttributeError) as error:
                raise InputError(f"forecaster {name!r} cannot be loaded: {error}") from error
            return made
    known = ", ".join(forecaster_names()) or "none is installed"
    raise InputError(f"unknown forecaster {name!r}; known: {known}")
