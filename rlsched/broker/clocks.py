"""What a broker's ledger knows of SM clocks: nothing, until energy counts for somebody."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from rlsched.cluster.state import ClusterState
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.models.arrays import ModelArrays
    from rlsched.models.catalogue.catalogue import Catalogue


class Clocks:
    """Keeps a `ClusterState` able to choose clocks as long as energy counts.

    It does where the broker weighs it, and while a live job asks for that itself. Else the ledger has no
    models, every start is at the full clock, and no node is told anything of clocks. A job runs as the
    workload that it names does on the same GPU type, or as the median of the catalogue where it names none.

    Args:
        cluster: The ledger.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._asking: set[int] = set()
        self._known: tuple[str, ...] | None = None  # GPU types that the ledger's models are of

    def weigh(self, speed_energy: float) -> None:
        """What energy counts against time from now on, for jobs that do not say it themselves."""
        self._cluster.weigh_energy(speed_energy)
        self._mind(speed_energy)

    def came(self, number: int, own: float | None) -> None:
        """A job has been queued, for which energy counts so much (None: what the broker says)."""
        if own:
            self._asking.add(number)
            self._mind(self._cluster.energy_counts)

    def gone(self, number: int) -> None:
        """A job is over."""
        if number in self._asking:
            self._asking.discard(number)
            self._mind(self._cluster.energy_counts)

    def node(self, number: int, sm_clocks_mhz: Sequence[int]) -> None:
        """A node has registered with these clocks; none: they cannot be set."""
        self._cluster.fix_clocks(number, not sm_clocks_mhz)
        self._mind(self._cluster.energy_counts)

    def _mind(self, speed_energy: float) -> None:
        wanted = speed_energy > 0.0 or bool(self._asking)
        kinds = tuple(self._cluster.kind_names) if wanted else None
        if kinds != self._known:
            self._known = kinds
            self._cluster.clock_by_models(_models(kinds) if kinds else None)


@cache
def _catalogue() -> Catalogue:
    from rlsched.models.catalogue import load_catalogue

    return load_catalogue()


@cache
def _models(kinds: tuple[str, ...]) -> ModelArrays:
    """What the catalogue says of these GPU types."""
    return _catalogue().arrays(kinds)


def workload_number(name: str) -> int:
    """Number of a workload of the catalogue; 0 for "", and for one that this version does not know."""
    try:
        return _catalogue().number(name) if name else 0
    except InputError:
        return 0


def unknown_workload(name: str) -> str:
    """Why there is no such workload, "" where there is."""
    try:
        _catalogue().number(name) if name else None
    except InputError as error:
        return str(error)
    return ""


def nearest_mhz(sm_clocks_mhz: Sequence[int], sm_clock_frac: float) -> int:
    """The clock of these nearest to this part of the highest, MHz; 0 for the full clock, and for none.

    Between two that are as near, the higher.
    """
    if sm_clock_frac >= 1.0 or not sm_clocks_mhz:
        return 0
    wanted = sm_clock_frac * max(sm_clocks_mhz)
    return min(sm_clocks_mhz, key=lambda mhz: (abs(mhz - wanted), -mhz))
