"""What a broker's ledger knows of speeds: nothing, until energy counts for somebody or GPUs are shared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.errors import InputError
from rlsched.models.clocks import relative_time

if TYPE_CHECKING:
    from rlsched.models.arrays import ModelArrays
    from rlsched.models.catalogue.catalogue import Catalogue


class LedgerModels:
    """Gives a `ClusterState` the models that its broker's decisions need, and no more.

    Where GPUs are shared they are all of them, as in a simulator, but that each job has the cores that it
    asked for. Else they choose clocks as long as energy counts: where the broker weighs it, and while a live
    job asks for that itself. Else there are none: every start is at the full clock, and no node is told
    anything of clocks. A job runs as the workload that it names does on the same GPU type, or as the median
    of the catalogue where nothing is known of it (`rlsched.broker.state.asked.runs_as`).

    Args:
        cluster: The ledger.

    Attributes:
        shares: Whether GPUs are shared.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._asking: set[int] = set()
        self.shares = False
        self._gpus: dict[int, tuple[str, int]] = {}  # by node: type of its GPUs, and memory of each, MiB
        self._of_type: dict[str, dict[int, int]] = {}  # by type: nodes whose GPUs have so much memory
        self._known: tuple[Any, ...] | None = None  # what the ledger's models are of

    def weigh(self, speed_energy: float) -> None:
        """What energy counts against time from now on, for jobs that do not say it themselves."""
        self._cluster.weigh_energy(speed_energy)
        self._mind(speed_energy)

    def share(self, shares: bool) -> None:
        """Whether jobs may share GPUs from now on; those that do already go on."""
        self.shares = shares
        for number, node in enumerate(self._cluster.nodes if shares else ()):
            self._note_gpus(number, node)
        self._mind(self._cluster.energy_counts)

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

    def node(self, number: int, sm_clocks_mhz: Sequence[int], *, shares: bool = False) -> None:
        """A node has registered with these clocks, none: they cannot be set; `shares`: several jobs a GPU."""
        self._cluster.fix_clocks(number, not sm_clocks_mhz)
        self._cluster.let_share(number, shares=shares)
        if self.shares:
            self._note_gpus(number, self._cluster.nodes[number])
        self._mind(self._cluster.energy_counts)

    def speed_frac(self, workload: str, gpu_type: str, sm_clock_frac: float) -> float:
        """How fast a workload runs alone at a clock on a GPU type by the catalogue; 1 at the highest."""
        if sm_clock_frac >= 1.0:
            return 1.0
        bound = float(_models((gpu_type,)).trait.clock_bound[workload_number(workload), 0])
        kernel: Any = relative_time
        return 1.0 / float(kernel.py_func(bound, sm_clock_frac))  # a single number is worth no compiling

    def shared_frac(self, seq: int) -> float:
        """How fast a running job is predicted to be beside its co-tenants; 1: it has none."""
        s, slot = self._cluster.arrays, self._cluster.slot_of(seq)
        if not self._cluster.beside(seq) or not self.shares:
            return 1.0
        from rlsched.cluster.speed import shared_on

        return float(shared_on(s, slot, int(s.job.head[slot]) // MAX_TENANTS))

    def _mind(self, speed_energy: float) -> None:
        wanted = self.shares or speed_energy > 0.0 or bool(self._asking)
        kinds = tuple(self._cluster.kind_names) if wanted else ()
        memory_mib = self._gpu_memory_mib(kinds) if self.shares else ()
        known = (self.shares, kinds, memory_mib) if kinds else None
        if known == self._known:
            return
        self._known = known
        if known is None:
            self._cluster.clock_by_models(None)
        elif self.shares:
            self._cluster.use_models(_of_nodes(kinds, memory_mib), cores_as_asked=True)
        else:
            self._cluster.clock_by_models(_models(kinds))

    def _gpu_memory_mib(self, kinds: tuple[str, ...]) -> tuple[int, ...]:
        """Of the smallest GPU of each type here, MiB; 0 where no node of it says."""
        return tuple(min(self._of_type.get(name, ()), default=0) for name in kinds)

    def _note_gpus(self, number: int, node: NodeSpec) -> None:
        now, before = (node.gpu_type, node.gpu_memory_mib), self._gpus.get(number)
        if now == before:
            return
        self._gpus[number] = now
        for gpus, change in ((before, -1), (now, 1)):
            if gpus is not None and gpus[1]:
                of_type = self._of_type.setdefault(gpus[0], {})
                of_type[gpus[1]] = of_type.get(gpus[1], 0) + change
                if not of_type[gpus[1]]:
                    del of_type[gpus[1]]


def _of_nodes(kinds: tuple[str, ...], gpu_memory_mib: Sequence[int]) -> ModelArrays:
    """What the catalogue says of these GPU types, with the memory that they have here where that is known."""
    models = _models(kinds)
    gpu = np.array(models.gpu).view(np.recarray)
    for kind, mib in enumerate(gpu_memory_mib):
        if mib:
            gpu.memory_mib[kind] = mib
    return models._replace(gpu=gpu)


@cache
def catalogue() -> Catalogue:
    """The catalogue of workloads that comes with rlsched."""
    from rlsched.models.catalogue import load_catalogue

    return load_catalogue()


@cache
def _models(kinds: tuple[str, ...]) -> ModelArrays:
    """What the catalogue says of these GPU types."""
    return catalogue().arrays(kinds)


def workload_number(name: str) -> int:
    """Number of a workload of the catalogue; 0 for "", and for one that this version does not know."""
    try:
        return catalogue().number(name) if name else 0
    except InputError:
        return 0


def unknown_workload(name: str) -> str:
    """Why there is no such workload, "" where there is."""
    try:
        catalogue().number(name) if name else None
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
