"""Settings of the models of speed and power of a run, and the arrays that follow from them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.cluster.watts import set_node_watts
from rlsched.errors import InputError
from rlsched.models.arrays import ModelArrays
from rlsched.models.catalogue import Catalogue, load_catalogue
from rlsched.models.gpu_types import GENERIC, canonical_kind
from rlsched.models.learning import Observed
from rlsched.models.memory import FAULT_FRAC, FAULT_SHARED, SHARING_MODES, SharingMode
from rlsched.models.power import NodePower
from rlsched.models.slice_name import whole_type
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import convert_settings, read_table
from rlsched.workload.trace import Trace
from rlsched_envs.sim.bills import Bill, of_day
from rlsched_envs.sim.physics import begin_books
from rlsched_envs.sim.sim_arrays import SimArrays

_MOST_MIB: Final = 2.0**40
_MOST_CORES: Final = 1e6
MOST_LUCK: Final = 2**53
"""Upper bound of the seeds in the field `luck` of `BOOKS`. Floats represent all smaller integers exactly."""


class Models(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Models of speed and power: the settings of a models file (TOML).

    Attributes:
        workload_seed: Seed of the draws for `noise`, and of the workloads of jobs whose workload is not in
            the trace.
        assumed_scale: Factor for figures of the catalogue that are assumed, not measured.
        noise: Whether speeds of pairs (two workloads on one GPU) that were not measured deviate at random
            from the formula.
        learning: Whether predicted speeds of pairs follow observed speeds; no effect without `noise`.
        energy_weight: Weight of energy relative to time, 0 to 1, for policies that consider energy.
        power_cap_frac: Power cap of each GPU, as a fraction of the power limit of its board.
        sharing_mode: How processes share a GPU: `time-sliced`; `mps`, where a GPU fault ends all processes on
            the GPU; or `mig`, which the models treat as `time-sliced`.
        fault_frac: Fraction of job failures that are GPU faults.
        pairs: Measured speeds of pairs, in addition to the catalogue's. If a pair occurs more than once, the
            last entry counts.
        node_power: Power of nodes without their GPUs.
        power_down: When idle nodes are put to sleep; None: all nodes stay on.
        lends_cores: How CPU cores move between jobs, if the policy moves cores. True: idle cores are lent
            until another job needs them, as in a broker; no job gets fewer cores than it requested. False: a
            job gives up cores that it cannot use, and keeps additional cores until it ends.
    """

    workload_seed: int = 0
    assumed_scale: float = 1.0
    noise: bool = True
    learning: bool = True
    energy_weight: float = 0.0
    power_cap_frac: float = 1.0
    sharing_mode: SharingMode = "time-sliced"
    fault_frac: float = FAULT_FRAC
    pairs: tuple[Observed, ...] = ()
    node_power: NodePower = NodePower()
    power_down: PowerDownPlan | None = None
    lends_cores: bool = False

    @classmethod
    def read(cls, path: str | Path) -> Models:
        """Read models from a TOML file; all settings are optional.

        Raises:
            InputError: the file cannot be read, is not TOML, or a setting is unknown or invalid.
        """
        models = convert_settings(read_table(path, "models file"), cls, str(path))
        models.check(str(path))
        return models

    def check(self, where: str) -> None:
        """Check that the settings are in range.

        Raises:
            InputError: a setting is out of range. The message names the setting, the expected and the given
            value.
        """
        for name, (low, high, expected) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{where}: {name}: expected {expected}, got {value:g}")
        for number, pair in enumerate(self.pairs):
            _check_pair(pair, f"{where}: pairs[{number}]")
        if self.power_down is not None:
            self.power_down.check(f"{where}: power_down")

    @property
    def in_words(self) -> str:
        """Description of the workload seed, and of all settings that differ from their defaults."""
        settings = (
            (f"workloads drawn with seed {self.workload_seed}", True),
            (f"assumed figures x {self.assumed_scale:g}", self.assumed_scale != 1.0),
            ("pairs without scatter", not self.noise),
            ("nothing learnt of pairs", not self.learning),
            (f"energy weighs {self.energy_weight:g}", self.energy_weight != 0.0),
            (f"power capped at {self.power_cap_frac:.0%} of each board's limit", self.power_cap_frac != 1.0),
            ("GPUs shared under MPS", self.sharing_mode == "mps"),
            (f"{len(self.pairs):,} more measured speeds of pairs", bool(self.pairs)),
            ("idle nodes sleep", self.power_down is not None),
            ("CPU cores lent as in a broker", self.lends_cores),
        )
        return ", ".join(words for words, said in settings if said)

    def catalogue(self) -> Catalogue:
        """Return the catalogue of workloads, with its assumed figures scaled."""
        return load_catalogue(assumed_scale=self.assumed_scale)

    def arrays(self, catalogue: Catalogue, kinds: Sequence[str]) -> ModelArrays:
        """Return a catalogue's arrays for the GPU types `kinds`, changed by `power_cap_frac` and `pairs`."""
        arrays = catalogue.arrays(kinds)
        arrays.gpu.cap_w = self.power_cap_frac * arrays.gpu.tdp_w
        for pair in self.pairs:
            one, other = catalogue.number(pair.workload), catalogue.number(pair.partner)
            for kind, name in enumerate(kinds):
                if _same_kind(name, pair.kind):
                    arrays.pair[kind, one, other] = pair.speed
        return arrays

    @property
    def spreading_frac(self) -> float:
        """Fraction of job failures that also end the other jobs on their GPUs."""
        return self.fault_frac if FAULT_SHARED[SHARING_MODES.index(self.sharing_mode)] else 0.0


_RANGES: Final[dict[str, tuple[float, float, str]]] = {
    "workload_seed": (0, 2**63 - 1, "a whole number, 0 or more"),
    "assumed_scale": (1e-9, 1e9, "a number above 0 (0.7, 1.3)"),
    "energy_weight": (0.0, 1.0, "a number from 0 to 1"),
    "power_cap_frac": (1e-9, 1.0, "a part of the board's limit, up to 1 (0.7)"),
    "fault_frac": (0.0, 1.0, "a share from 0 to 1"),
}


def _check_pair(pair: Observed, where: str) -> None:
    for key, name in (("workload", pair.workload), ("partner", pair.partner)):
        try:
            known = load_catalogue().number(name)
        except InputError as error:
            raise InputError(f"{where}: {key}: {error}") from None
        if not known:
            raise InputError(f"{where}: {key}: expected a workload of the catalogue, got ''")
    if not 0.0 < pair.speed <= 1.0:
        raise InputError(f"{where}: speed: expected a number above 0, up to 1, got {pair.speed:g}")


def _same_kind(kind: str, other: str) -> bool:
    """Return whether two names mean the same GPU type. Names outside `GPU_FIGURES` must be equal."""
    found = canonical_kind(kind)
    return kind == other or (found != GENERIC and found == canonical_kind(other))


def fair_cores_milli(spec: ClusterSpec) -> int:
    """Return the fewest CPU cores per GPU among nodes with GPUs, thousandths; 0: no core counts are known."""
    fair = [group.cpus * 1000 // group.gpus for group in spec.nodes if group.cpus and group.gpus]
    return min(fair, default=0)


def with_fair_cores(demand: Demand, fair_milli: int) -> Demand:
    """Return the demand; if it requests GPUs but no cores, add `fair_milli` thousandths of a core per GPU."""
    if demand.cpu_milli or not demand.gpus:
        return demand
    share = demand.gpus * demand.share_milli / 1000
    return msgspec.structs.replace(demand, cpu_milli=int(fair_milli * share))


def reference_kinds(demands: list[Demand], spec: ClusterSpec, kind_names: list[str]) -> NDArray[np.int32]:
    """Return for each of D demands the GPU type for which the run times in the trace hold.

    A GPU type is an index in `kind_names`. Traces do not record this type. The result is the only type that
    the demand requests, otherwise the most common type of the cluster. For MIG slices, it is the type of the
    whole GPU, which must be in `kind_names`. All entries are -1 if all nodes have the same type and no
    slices.
    """
    gpus: Counter[str] = Counter()
    for group in spec.nodes:
        gpus[whole_type(group.gpu_type)] += group.count * group.devices
    if len(+gpus) < 2 and not spec.num_slices:
        return np.full(len(demands), -1, np.int32)
    common = gpus.most_common(1)[0][0]
    asked = [one.gpu_types[0] if len(one.gpu_types) == 1 else common for one in demands]
    return np.array([kind_names.index(name if name in kind_names else common) for name in asked], np.int32)


def gpu_need_mib(trace: Trace) -> NDArray[np.int64]:
    """Return the (J,) memory per GPU that each job needs according to the trace, MiB; 0: unknown."""
    given = np.asarray(trace.extra.get("gpu_need_mib", np.zeros(len(trace))), np.float64)
    return np.ceil(np.clip(np.nan_to_num(given), 0.0, _MOST_MIB)).astype(np.int64)


def core_need_milli(trace: Trace) -> NDArray[np.int64]:
    """Return the (J,) cores per GPU that each job can use according to the trace, thousandths; 0: unknown."""
    given = np.asarray(trace.extra.get("core_need", np.zeros(len(trace))), np.float64)
    milli = 1000.0 * np.clip(np.nan_to_num(given), 0.0, _MOST_CORES)
    return np.ceil(np.round(milli, 6)).astype(np.int64)  # as a float, 1000 x 2.007 is above 2007


def power_ratio(trace: Trace) -> NDArray[np.float64]:
    """Return the (J,) dynamic power of each job relative to its workload in the catalogue; 0: unknown."""
    return np.nan_to_num(np.asarray(trace.extra.get("power_ratio", np.zeros(len(trace))), np.float64))


def restart_costs_s(arrays: SimArrays) -> NDArray[np.float64]:
    """Return the (T,) restart cost (time to save and to load) of each job's workload, seconds."""
    truth = arrays.truth
    return np.asarray(
        arrays.state.models.trait.checkpoint_s[truth.workload, np.maximum(truth.reference_kind, 0)]
    )


def job_keys(trace: Trace) -> NDArray[np.uint64]:
    """Return the (J,) keys of the jobs for random draws. A key depends only on the ID of the job."""
    digests = [hashlib.blake2b(str(job).encode(), digest_size=8).digest() for job in trace.job_id]
    return np.frombuffer(b"".join(digests), np.uint64).copy()


def set_watts(state: ClusterState, spec: ClusterSpec, power: NodePower | None = None) -> None:
    """Set in a cluster's state the power that nodes draw without their GPUs. `power` None: default values."""
    power, at = power or NodePower(), 0
    for group in spec.nodes:
        set_node_watts(state.arrays.node[at : at + group.count], group, power)
        at += group.count


def open_books(arrays: SimArrays, trace: Trace, rows: NDArray[np.intp], models: Models) -> None:
    """Initialise the power and the totals of a run. `rows`: indices in the trace of the run's jobs."""
    arrays.progress.outcome.key[:] = job_keys(trace.select(rows))
    books = arrays.progress.books
    books.noise, books.luck = models.noise, models.workload_seed % MOST_LUCK
    books.learns = models.learning and models.noise
    begin_books(arrays.progress, arrays.state)


class LimitKept(NamedTuple):
    """How well a run kept the power limit of its cluster, from the first submission to the last event.

    Attributes:
        capped_s: Time in which the limit lowered clocks, seconds.
        exceeded_s: Time in which the power was above the limit, seconds.
        exceeded_j: Energy above the limit, joules.
    """

    capped_s: float
    exceeded_s: float
    exceeded_j: float


@dataclass(frozen=True)
class Energy:
    """Energy of a run. Energies are in joules.

    Attributes:
        job_j: (J,) energy of each job: its share of the energy of its GPUs, plus the energy of its busy
            cores; 0 if the job never ran.
        idle_j: Energy that belongs to no job: of nodes without their GPUs, and of GPUs without jobs.
        cluster_j: Energy of the whole cluster from the first submission to the last event, accumulated
            separately from `job_j` and `idle_j`.
        span_s: Time from the first submission to the last event, seconds.
        cost: Cost of the energy, in the currency of the cluster's prices; None: the price is unknown.
        carbon: Emissions of the energy, kg CO2e; None: the carbon intensity is unknown.
        peak_w: Highest power of the whole cluster, as a mean over about 15 minutes.
        limit: How well the power limit was kept; None: there is no limit.
        hours_j: (24 x days,) energy of the whole cluster in each hour (UTC) from `hours_from_s` on; None: the
            wall-clock time is unknown. The last 24 entries also have the same hours of later days.
        hours_from_s: A midnight (UTC), seconds of the trace.
    """

    job_j: NDArray[np.float64]
    idle_j: float
    cluster_j: float
    span_s: float
    cost: Bill | None = None
    carbon: Bill | None = None
    peak_w: float = 0.0
    limit: LimitKept | None = None
    hours_j: NDArray[np.float64] | None = None
    hours_from_s: float = 0.0

    @property
    def hour_j(self) -> NDArray[np.float64] | None:
        """(24,) energy of the whole cluster in each hour of the day (UTC); None as for `hours_j`."""
        return None if self.hours_j is None else of_day(self.hours_j)

    def first_rows(self, rows: int) -> Energy:
        """Return a copy in which `job_j`, `cost` and `carbon` have only the first `rows` jobs."""
        return replace(
            self,
            job_j=self.job_j[:rows],
            cost=None if self.cost is None else self.cost.first_rows(rows),
            carbon=None if self.carbon is None else self.carbon.first_rows(rows),
        )
