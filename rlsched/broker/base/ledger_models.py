"""Models of speed and power in a broker's ledger. The ledger has only the models that decisions need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.speed import cap_on, shared_on
from rlsched.cluster.state import ClusterState
from rlsched.cluster.watts import set_node_watts
from rlsched.errors import InputError
from rlsched.models.clocks import relative_time
from rlsched.models.learning import Observed
from rlsched.models.observed import LearntPairs
from rlsched.models.power import NodePower
from rlsched.models.sharing import factors_of_util

if TYPE_CHECKING:
    from rlsched.models.arrays import ModelArrays, Records
    from rlsched.models.catalogue.catalogue import Catalogue


class LedgerModels:
    """Sets the models that the ledger (a `ClusterState`) uses, limited to the models that decisions need.

    - If jobs can share GPUs, the ledger has all models, as in a simulator. Jobs get at least the cores that
      they requested, and idle cores are lent (`rlsched.cluster.loans`).
    - Otherwise, if the broker or a live job weighs energy against time, or if power is limited, the ledger
      has only the models of clocks.
    - Otherwise the ledger has no models: all jobs start at the highest clock, and nodes get no clock orders.

    A job is modelled by its workload in the catalogue (`rlsched.broker.state.job_requests.runs_as`), or by
    the median of all workloads if its workload is not known.

    Attributes:
        shares: Whether jobs can share GPUs.
        limits_power: Whether the cluster has power limits.
        pairs: Observed speeds of jobs that shared GPUs, from which the models learn.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        cluster.lend_cores()
        self.pairs = LearntPairs()
        self._asking: set[int] = set()
        self.shares = self.limits_power = False
        self._gpus: dict[int, tuple[str, int]] = {}  # by node: (GPU type, memory of one GPU in MiB)
        self._of_type: dict[str, dict[int, int]] = {}  # by GPU type: GPU memory in MiB -> number of nodes
        self._known: tuple[Any, ...] | None = None  # key of the ledger's current models

    def weigh(self, speed_energy: float) -> None:
        """Set the weight of energy against time, 0 to 1, for jobs that set no weight."""
        self._cluster.weigh_energy(speed_energy)
        self._update_models(speed_energy)

    def share(self, shares: bool) -> None:
        """Set whether jobs may start to share GPUs. Jobs that already share GPUs continue to share them."""
        self.shares = shares
        for number, node in enumerate(self._cluster.nodes if shares else ()):
            self._note_gpus(number, node)
        self._update_models(self._cluster.energy_counts)

    def limit_power(
        self, limit_w: float | None, falls: Sequence[tuple[float, float]] = (), *, soft: bool = False
    ) -> None:
        """Set the power limit of the cluster; arguments as in `rlsched.cluster.shape`."""
        self._cluster.limit_power(limit_w, falls, soft=soft)
        if self.limits_power == (limit_w is not None):
            return
        self.limits_power = limit_w is not None
        for number, node in enumerate(self._cluster.nodes if self.limits_power else ()):
            set_node_watts(self._cluster.arrays.node[number : number + 1], node, NodePower())
        self._update_models(self._cluster.energy_counts)

    def add_energy_weight(self, number: int, own: float | None) -> None:
        """Record a live job's weight of energy against time.

        `number`: job number. `own`: weight that the job set, 0 to 1; None: the job uses the broker's weight.
        """
        if own:
            self._asking.add(number)
            self._update_models(self._cluster.energy_counts)

    def remove_energy_weight(self, number: int) -> None:
        """Remove the weight that `add_energy_weight` recorded for job `number`, which has finished."""
        if number in self._asking:
            self._asking.discard(number)
            self._update_models(self._cluster.energy_counts)

    def node(
        self, number: int, sm_clocks_mhz: Sequence[int], *, shares: bool = False, lends: bool = False
    ) -> None:
        """Record features of a node.

        Args:
            number: Index of the node in the ledger.
            sm_clocks_mhz: SM clocks of its GPUs, MHz; empty: clocks cannot be set.
            shares: Whether jobs can share its GPUs.
            lends: Whether the node lends idle cores (`Capabilities.lends`).
        """
        self._cluster.fix_clocks(number, not sm_clocks_mhz)
        self._cluster.let_share(number, shares=shares)
        self._cluster.let_lend(number, lends=lends)
        if self.shares:
            self._note_gpus(number, self._cluster.nodes[number])
        if self.limits_power:
            rows = self._cluster.arrays.node[number : number + 1]
            set_node_watts(rows, self._cluster.nodes[number], NodePower())
        self._update_models(self._cluster.energy_counts)

    def speed_frac(self, workload: str, gpu_type: str, sm_clock_frac: float) -> float:
        """Return a workload's speed at an SM clock, relative to its speed at the highest SM clock.

        The workload has no co-tenants.
        """
        if sm_clock_frac >= 1.0:
            return 1.0
        bound = float(_models((gpu_type,)).trait.clock_bound[workload_number(workload), 0])
        kernel: Any = relative_time
        return 1.0 / float(kernel.py_func(bound, sm_clock_frac))  # one value: not worth compiling

    def observe(self, seen: Observed) -> None:
        """Learn from the observed speed of a job with its only co-tenant; see `LearntPairs.observe`."""
        if self.shares and self._known is not None:
            self.pairs.observe(self._cluster.arrays.models, self._cluster.kind_names, seen, workload_number)

    def clock_cap(self, seq: int) -> float:
        """Return the highest SM clock that the cluster's power limit permits for the GPUs of a job.

        The result is a fraction of the GPUs' highest clock; 1 without a limit, and for a job without GPUs.
        """
        s = self._cluster.arrays
        caps = s.config[0].clock_cap
        if not self.limits_power or caps.min() >= 1.0:
            return 1.0
        slot = self._cluster.slot_of(seq)
        if s.job.head[slot] < 0:
            return 1.0
        urgent_cap, flexible_cap = caps.tolist()
        return float(cap_on(s, int(s.job.head[slot]) // MAX_TENANTS, urgent_cap, flexible_cap))

    def can_learn(self, kind: int, workload: int, partner: int) -> bool:
        """Return whether `observe` can learn from a pair of workloads (catalogue indexes).

        The result is True if jobs can share GPUs, both workloads are known, and the catalogue has no
        measurement of the pair on this GPU type.
        """
        if not self.shares or self._known is None or workload <= 0 or partner <= 0:
            return False
        return bool(np.isnan(self._cluster.arrays.models.pair[kind, workload, partner]))

    def shared_frac(self, seq: int) -> float:
        """Return a job's predicted speed relative to its speed without co-tenants; 1 without co-tenants."""
        s, slot = self._cluster.arrays, self._cluster.slot_of(seq)
        others = self._cluster.beside(seq)
        if not others or not self.shares:
            return 1.0
        if len(others) == 1:
            kind = int(s.node.kind[s.gpu.node[int(s.job.head[slot]) // MAX_TENANTS]])
            partner = int(s.job.workload[self._cluster.slot_of(others[0])])
            return float(s.models.trait.beside[int(s.job.workload[slot]), kind, partner])
        return float(shared_on(s, slot, int(s.job.head[slot]) // MAX_TENANTS))

    def _update_models(self, speed_energy: float) -> None:
        wanted = self.shares or speed_energy > 0.0 or bool(self._asking) or self.limits_power
        kinds = tuple(self._cluster.kind_names) if wanted else ()
        memory_mib = self._gpu_memory_mib(kinds) if self.shares else ()
        known = (self.shares, kinds, memory_mib) if kinds else None
        if known == self._known:
            return
        self._known = known
        if known is None:
            self._cluster.clock_by_models(None)
        elif self.shares:
            self._cluster.use_models(_of_nodes(kinds, memory_mib))
            self.pairs.put_into(self._cluster.arrays.models, kinds, workload_number)
        else:
            self._cluster.clock_by_models(_models(kinds))

    def _gpu_memory_mib(self, kinds: tuple[str, ...]) -> tuple[int, ...]:
        """Return the memory of the smallest GPU of each type, MiB; 0 if no node of that type reports it."""
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
    """Return the catalogue's models of these GPU types, with the GPU memory of this cluster if known.

    The result is a copy, because observed pairs of jobs change the models of a ledger.
    """
    models = _models(kinds)
    gpu = np.array(models.gpu).view(np.recarray)
    for kind, mib in enumerate(gpu_memory_mib):
        if mib:
            gpu.memory_mib[kind] = mib
    return models._replace(gpu=gpu, trait=np.array(models.trait).view(np.recarray))


@cache
def catalogue() -> Catalogue:
    """Load the catalogue of workloads that comes with rlsched."""
    from rlsched.models.catalogue import load_catalogue

    return load_catalogue()


@cache
def _models(kinds: tuple[str, ...]) -> ModelArrays:
    """Return the catalogue's models of these GPU types."""
    return catalogue().arrays(kinds)


@cache
def traits_of(gpu_type: str) -> Records:
    """Return the figures (dtype `TRAIT`) of the catalogue's workloads on a GPU type, one record per workload.

    Index 0 is the median of all workloads. The first workload of the catalogue has index 1.
    """
    return catalogue().traits([gpu_type])[:, 0]


@cache
def factors_of(gpu_type: str) -> tuple[tuple[float, float], ...]:
    """Return (sensitivity, pressure) of each workload on a GPU type, in catalogue order.

    Sensitivity is how much a co-tenant slows the workload down. Pressure is how much the workload slows a
    co-tenant down. Factors that the catalogue lacks are computed from the workload's GPU time
    (`factors_of_util`).
    """
    found = []
    for row in traits_of(gpu_type)[1:]:
        own = float(row.sensitivity), float(row.pressure)
        found.append(factors_of_util(float(row.util_frac)) if math.isnan(sum(own)) else own)
    return tuple(found)


def workload_number(name: str) -> int:
    """Return the index of a workload in the catalogue, from 1; 0 for "" and for an unknown name."""
    try:
        return catalogue().number(name) if name else 0
    except InputError:
        return 0


def workload_name(number: int) -> str:
    """Return the name of the workload with this index in the catalogue; "" for 0, an unknown workload."""
    return catalogue().names[number - 1] if number > 0 else ""


def unknown_workload(name: str) -> str:
    """Return an error message, in one line, if the workload name is not in the catalogue, else ""."""
    try:
        catalogue().number(name) if name else None
    except InputError as error:
        return str(error)
    return ""


def lowered_mhz(sm_clocks_mhz: Sequence[int], sm_clock_frac: float) -> int:
    """Return the clock to set for a fraction of the highest clock, MHz, rounded down to a supported clock.

    If no supported clock is that low, return the lowest. Return 0 (no limit) if the fraction is 1, or if no
    clocks are known.
    """
    if sm_clock_frac >= 1.0 or not sm_clocks_mhz:
        return 0
    wanted = sm_clock_frac * max(sm_clocks_mhz)
    return max((mhz for mhz in sm_clocks_mhz if mhz <= wanted), default=min(sm_clocks_mhz))


def nearest_mhz(sm_clocks_mhz: Sequence[int], sm_clock_frac: float) -> int:
    """Return the supported clock nearest to a fraction of the highest clock, MHz.

    Of two equally near clocks, return the higher. Return 0 (no limit) if the fraction is 1, or if no clocks
    are known.
    """
    if sm_clock_frac >= 1.0 or not sm_clocks_mhz:
        return 0
    wanted = sm_clock_frac * max(sm_clocks_mhz)
    return min(sm_clocks_mhz, key=lambda mhz: (abs(mhz - wanted), -mhz))
