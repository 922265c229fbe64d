"""The interface of forecasters: input, output, and loading. Forecasters are installed as entry points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.forecast.arrivals import RecentJobs

if TYPE_CHECKING:
    from rlsched.cluster.demand import Demand
    from rlsched.cluster.state import ClusterState
    from rlsched.decide.rules.steps import CompiledRule

Floats = NDArray[np.float64]

GROUP: Final = "rlsched.forecasters"
"""Entry point group. Each entry point is `NAME = MODULE:FACTORY`; FACTORY is called without arguments."""
DEFAULT: Final = "futures"
FUTURES: Final = 64
HORIZON_S: Final = 7 * 86_400.0
"""Horizon of forecasts; later times are shown as «not within 7 days»."""
QUANTILES: Final = (0.1, 0.5, 0.9)


class HypotheticalJob(NamedTuple):
    """A hypothetical job that is not submitted.

    Attributes:
        demand: Requested whole GPUs and other resources.
        vc: Virtual cluster of the job.
        submit_s: Time at which the job would be submitted, seconds.
        predicted_s: Predicted median run time, seconds.
        spread: Standard deviation of the logarithm of the run time.
        limit_s: Time limit, seconds; nan: no limit.
        preemptible: Whether the job can be preempted.
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
        """Number of whole GPUs."""
        return self.demand.gpus


@dataclass(frozen=True)
class World:
    """Input of a forecast. It contains only data that a broker has.

    Attributes:
        state: The cluster and its live jobs; a forecaster does not change it.
        rule: Scheduling rule that makes the decisions in the simulated futures.
        now_s: Present time.
        chances: Predicted (BINS,) distribution of the run time, by the job's sequence number in the state.
            For a job without an entry, the predicted median and spread in the state are used.
        past: Recent jobs.
        numbers: Sequence number of a live job in the state -> ID under which `past` has the same job. A job
            without an entry belongs to no burst.
    """

    state: ClusterState
    rule: CompiledRule
    now_s: float
    chances: dict[int, Floats]
    past: RecentJobs
    numbers: dict[int, int] = field(default_factory=dict)

    @cached_property
    def served(self) -> NDArray[np.int32]:
        """Own and shared partition of each VC, (1 + count of VCs, 2); -1: none.

        Row 0 is for jobs without a VC, row 1 + v for the VC with index v.
        """
        names = ["", *self.state.vc_names]
        return np.array([self.state.partitions_of(name) for name in names], np.int32).reshape(-1, 2)


@dataclass(frozen=True)
class Ahead:
    """Simulated times of L live jobs in S futures.

    Attributes:
        seqs: (L,) sequence numbers of the jobs in the state; -1 for the hypothetical job, which is last.
        running: (L,) whether the job runs now.
        start_s: (L, S) time of the job's start; infinite if beyond the horizon; the actual start if the job
            runs now.
        end_s: (L, S) time of the job's end; infinite if beyond the horizon.
    """

    seqs: NDArray[np.int64]
    running: NDArray[np.bool_]
    start_s: Floats
    end_s: Floats


class Forecaster(Protocol):
    """Simulates futures of a state.

    Attributes:
        futures: Maximum number of futures, S.
    """

    futures: int

    def play(self, world: World, asked: HypotheticalJob | None = None) -> Ahead:
        """Simulate futures of all live jobs or, if `asked` is given, of this hypothetical job only."""

    def list_schedule(self, world: World, asked: HypotheticalJob | None = None) -> Ahead:
        """Simulate list scheduling: a single future with predicted run times, and without arrivals."""


def forecaster_names() -> list[str]:
    """Return the names of all installed forecasters."""
    return sorted(point.name for point in entry_points(group=GROUP))


def load_forecaster(name: str = DEFAULT) -> Forecaster:
    """Load a forecaster by its name.

    Raises:
        InputError: No forecaster has this name, or the forecaster cannot be loaded.
    """
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                made: Forecaster = point.load()()
            except (ImportError, AttributeError) as error:
                raise InputError(f"forecaster {name!r} cannot be loaded: {error}") from error
            return made
    known = ", ".join(forecaster_names()) or "none is installed"
    raise InputError(f"expected an installed forecaster ({known}), got {name!r}")
