"""The arrays of a cluster's state: NamedTuples of numpy arrays that compiled kernels read and write.

N nodes, G GPUs, J job slots, P partitions, C demand classes, M the largest number of GPUs on one node. Live
jobs only are in slots; a job's identity and every order is its `seq`, never its slot.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.dials import DialArrays, no_dials
from rlsched.compile.reference import by_reference
from rlsched.models.arrays import ModelArrays, no_models
from rlsched.models.arrays import Records as Records

MAX_TENANTS: Final = 8
"""Jobs that one GPU can hold at most."""
WORD_BITS: Final = 32
"""Nodes that one word of a bit set stands for."""

NODE_UP: Final = 0
NODE_DRAINED: Final = 1
NODE_DOWN: Final = 2
NODE_ASLEEP: Final = 3
NODE_BOOTING: Final = 4

SLOT_EMPTY: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
LEAVING: Final = 3
"""Preempted, and not gone yet (`ClusterState.stops_take_time`): it holds no GPU, and is in no queue."""
INELIGIBLE: Final = 4
"""It would wait, and something keeps it out of the queues: `rlsched/broker/base/eligibility.py`."""

CLOCKS_ALONE: Final = 2
"""`config.modelled` where models choose clocks, and nothing else, as in a broker: jobs have their
GPUs to themselves, and the cores that they asked for."""
CORES_AS_ASKED: Final = 3
"""... where models say all, as in a broker that lets jobs share GPUs, but each job has the very cores that it
asked for: those of a real one are its own."""

CONSOLIDATE: Final = 0
BEST_FIT: Final = 1
WORST_FIT: Final = 2
SPREAD: Final = 3
FGD: Final = 4
PLACEMENT_CODES: Final = {
    "consolidate": CONSOLIDATE,
    "best-fit": BEST_FIT,
    "worst-fit": WORST_FIT,
    "spread": SPREAD,
    "fgd": FGD,
}

CONFIG: Final = np.dtype(
    [
        ("placement", np.int64),  # code of the placement rule, PLACEMENT_CODES
        ("sorts_queue", np.int64),  # 1: the index keeps each partition's sorted queue; 0: only its heaps,
        # for compiled rules on long queues
        ("modelled", np.int64),  # 1: `models` says how fast jobs run and what they draw; 0: every job runs as
        # its trace says; or CLOCKS_ALONE, or CORES_AS_ASKED
        ("preempts", np.int64),  # 1: a policy may preempt running jobs
        ("reserve_after_s", np.float64),  # under a policy no start delays the first job that has waited so
        # long and does not fit; infinite: none has a reservation
        ("energy_ppm", np.int64),  # what energy counts against time, millionths, where jobs do not say it
    ],
    align=True,
)
"""One entry: how this cluster is run."""

COUNTERS: Final = np.dtype(
    [
        ("live_jobs", np.int64),
        ("next_seq", np.int64),
        ("decisions", np.int64),  # number of the next decision
    ],
    align=True,
)
"""One entry: what has been counted so far."""

SCRATCH: Final = np.dtype(
    [
        ("others", np.int64, (MAX_TENANTS,)),  # workloads beside the one whose speed is asked
        ("outs", np.int64),  # entries of `slot.quota_out` ...
        ("ins", np.int64),  # ... and of `slot.quota_in` ...
        ("out_at", np.int64),  # ... and the next of each to be looked at
        ("in_at", np.int64),
        ("look_s", np.float64),  # no running job's `look_s` is before this
    ],
    align=True,
)
"""One entry: what a kernel needs while it runs."""

ORDER: Final = np.dtype(
    [
        ("by", np.int64),  # code of what the queue goes by, 0: submission
        ("gpus_power", np.float64),  # of the predicted run time x GPUs to this power
        ("revises", np.int64),  # 1: predictions of waiting jobs are revised by what jobs of their burst do
        ("spread", np.float64),  # how an index is made, `decide.order.gittins.Gittins` ...
        ("trust", np.float64),
        ("of_mean", np.int64),
        ("index_gpus_power", np.float64),
        ("margin", np.float64),
        ("age_step", np.float64),
        ("first_age_s", np.float64),
        ("tick_s", np.float64),
        ("threshold_gpu_s", np.float64),
    ],
    align=True,
)
"""One entry: what the queue goes by. The ledger keeps it for `decide.order`, and reads none of it."""

NODE: Final = np.dtype(
    [
        ("cpu_milli", np.int64),  # its cores, thousandths; UNCOUNTED where unknown
        ("cpu_free_milli", np.int64),
        ("memory_mib", np.int64),  # UNCOUNTED where unknown
        ("memory_free_mib", np.int64),
        ("gpus", np.int32),
        ("first_gpu", np.int32),  # global number of its GPU 0
        ("part_of", np.int32),  # its partition
        ("status", np.int32),  # NODE_UP ... NODE_BOOTING; jobs start on NODE_UP alone
        ("free", np.int32),  # wholly free GPUs, whatever the status
        ("kind", np.int32),  # number of its GPU type
        ("fixed_clock", np.int32),  # 1: nobody can set the SM clocks of its GPUs
        ("unshared", np.int32),  # 1: a GPU of it runs one job at a time
        (
            "idle_w",
            np.float64,
        ),  # power without its GPUs, nothing running; with models, as the next
        ("core_w", np.float64),  # more with each busy core
        ("asleep_w", np.float64),  # of the whole node, asleep ...
        ("boot_w", np.float64),  # ... and booting
    ],
    align=True,
)
"""One entry a node."""
UNCOUNTED: Final = 1 << 60
"""Cores or memory of a node whose description does not tell them: more than all jobs together ask for."""

DEMAND: Final = np.dtype(
    [
        ("kinds", np.int64),  # bit mask of GPU types that will do, ANY_KIND
        ("cpu_milli_each", np.int64),  # with each GPU; of the whole job where it has none
        ("memory_mib_each", np.int64),
        ("arrived", np.int64),  # jobs of this class so far
        (
            "error_square",
            np.float64,
        ),  # of bursts, fading: ln(run time / first_predicted_s)^2 of ended jobs ...
        ("error_count", np.float64),
        ("own_square", np.float64),  # ... of that less the mean of those of its burst that ended before
        ("own_count", np.float64),
        ("burst_last_s", np.float64),  # ... when the last job of its latest burst came ...
        ("burst_spread", np.float64),  # ... and of that burst what JOB has of one ...
        ("burst_ln_sum", np.float64),
        ("burst_ended", np.int64),
        ("burst", np.int64),
        ("burst_vc", np.int32),
        ("gpus", np.int32),
        ("share_milli", np.int32),
        ("plain", np.int32),  # 1: counts of free GPUs say whether it fits
    ],
    align=True,
)
"""One entry a demand class: jobs that ask for the same."""

GPU: Final = np.dtype(
    [
        ("node", np.int32),
        ("free_milli", np.int32),  # 1,000 = wholly free
        ("tenant", np.int32, (MAX_TENANTS,)),  # job slot, -1 where none
        ("link", np.int32, (MAX_TENANTS,)),  # next place of the same job, as gpu * MAX_TENANTS + k; -1 ends
        ("power_w", np.float64),  # with models, of the first GPU of its jobs: what all their GPUs draw ...
        ("idle_w", np.float64),  # ... and drew before
        ("clock_frac", np.float64),  # ... and their SM clock ...
        ("clock_since_s", np.float64),  # ... since when
    ],
    align=True,
)
"""One entry a GPU, in global numbering."""

JOB: Final = np.dtype(
    [
        ("seq", np.int64),  # arrival number
        ("held_for", np.int64),  # ... and while the job of this number waits too, -1: whatever happens
        (
            "moved_for",
            np.int64,
        ),  # preempted to make room for the job of this number, until it starts again; -1: not
        ("moved_attempt", np.int64),  # ... which goes before others until this attempt of it starts
        ("key", np.float64),  # its place in the order of the queue, handed in when it comes to wait
        ("submit_s", np.float64),
        ("predicted_s", np.float64),  # handed in at its submission, and again where it is revised
        ("spread", np.float64),  # standard deviation of ln(run time / predicted_s)
        ("limit_s", np.float64),  # the user's time limit, nan where none
        ("first_predicted_s", np.float64),  # where they are revised: the prediction at its submission ...
        ("burst", np.int64),  # ... the arrival number of the first job of its burst ...
        ("burst_ended", np.int64),  # ... how many jobs of that have ended ...
        ("burst_ln_sum", np.float64),  # ... the sum of their ln(run time / first_predicted_s) ...
        ("burst_spread", np.float64),  # ... the spread of its first job ...
        ("look_s", np.float64),  # ... and when its age says more, while it runs
        ("start_s", np.float64),  # start of the current attempt, nan while it waits
        ("held_since_s", np.float64),  # first time a *wait* passed it over though it fitted, nan if never
        ("held_until_s", np.float64),  # a *wait* keeps it back until then, -inf if none does ...
        ("attained_gpu_s", np.float64),  # service of earlier attempts; of this one what `share_milli` forgets
        ("overhead_left_s", np.float64),  # restart cost still to be paid
        ("saved_s", np.float64),  # work of earlier attempts that need not be done again
        ("ln_weight", np.float64),  # ln of its weight in the order, 0: as all others
        ("sm_clock_frac", np.float64),
        ("cpu_milli_each", np.int64),  # cores that go with each of its places
        (
            "gpu_need_mib",
            np.int64,
        ),  # memory that it takes on each GPU, -1: what models say of its workload
        ("rate", np.float64),  # speed relative to alone at full clock
        ("rate_since_s", np.float64),
        ("status", np.int32),  # SLOT_EMPTY, WAITING, RUNNING, LEAVING, INELIGIBLE
        ("vc", np.int32),  # number of the VC's name, -1 where none
        ("own_partition", np.int32),  # partition of its VC's own nodes, -1 where it has none
        ("shared_partition", np.int32),  # partition of the nodes that serve every VC, -1 where none
        ("held_for_slot", np.int32),  # where to look for that job
        ("placed_in", np.int32),  # partition it runs in, -1 while it waits
        ("gpus", np.int32),  # GPUs of the gang; 0: CPU only
        ("share_milli", np.int32),  # share of each of its GPUs
        ("demand", np.int32),  # its demand class
        ("host", np.int32),  # first node that it runs on, -1 while it waits
        ("attempt", np.int32),  # 1 for the first
        ("preemptions", np.int32),
        ("pinned", np.int32),  # 1: must not be preempted
        ("unshared", np.int32),  # 1: it shares its GPUs with no other job
        ("workload", np.int32),  # number in the catalogue of workloads, 0: unknown
        ("energy_ppm", np.int32),  # what energy counts for it, millionths; -1: what the cluster says
        ("reference_kind", np.int32),  # GPU type that its run time is of, -1: whichever it gets
        ("generation", np.int32),  # grows with every change of rate
        ("level", np.int32),  # its priority: those of a higher level go first, 0: as all others
        ("head", np.int32),  # first place of its allocation, as gpu * MAX_TENANTS + k; -1 = none
    ],
    align=True,
)
"""One entry a slot; a slot whose `status` is SLOT_EMPTY holds leftovers."""

SLOT: Final = np.dtype(
    [
        ("key", np.float64),  # JOB.key of a waiting slot
        ("ln_age", np.float64),  # scratch: ln(age / prediction) of a running slot of a burst
        ("leave", np.float64),  # scratch: what speaks for preempting a running slot, -inf: it must stay
        ("speed", np.float64),  # `present_speed` of a running slot, nan: not known since its GPUs changed
        ("open_key", np.float64),  # scratch: `key` of a waiting slot, infinite where it is passed over
        ("quota_out", np.int32),  # scratch: by position, running slots that lose their quota ...
        ("quota_in", np.int32),  # ... and waiting slots that have one
        ("stack", np.int32),  # all slots: the first J - live entries are empty ones, the others live jobs'
        ("stack_at", np.int32),  # position of a slot in `stack`
        ("running", np.int32),  # the first `running_len` entries are running slots
        ("running_at", np.int32),  # position of a running slot in `running`
        ("next_of_burst", np.int32),  # scratch: the next running slot of a burst
        ("next_alike", np.int32),  # of a running slot: the next of its class in its partition, -1 ends ...
        ("back_alike", np.int32),  # ... and the one before it
        ("child", np.int32, (2,)),  # pairing heaps of waiting slots, own and shared partition: first child
        ("next", np.int32, (2,)),  # ... next sibling
        ("back", np.int32, (2,)),  # ... previous sibling, or the parent of a first child
    ],
    align=True,
)
"""Derived, one entry a slot."""

CLASS_QUEUE: Final = np.dtype(
    [
        ("asked_at", np.int64),  # `part.changes` when `fits` was last worked out
        ("least_s", np.float64),  # none that waits is predicted to run shorter; it may be less than the least
        ("fits", np.int32),
        ("node_size", np.int32),  # most places on one node when idle, up or not
        ("root", np.int32),  # slot of the first waiting job by (key, seq), -1 where none waits
        ("waiting", np.int32),
        ("running", np.int32),  # one of its running jobs, -1 for none; the others follow (`next_alike`)
        ("delays", np.int32),  # scratch: whether its jobs would delay the one with the reservation
    ],
    align=True,
)
"""Derived, one entry a partition and demand class: its jobs, and whether a waiting one can start."""

PARTITION: Final = np.dtype(
    [
        ("changes", np.int64),  # grows with every change of a node
        ("arrivals", np.int64),  # grows with every job that comes to wait
        ("seen_changes", np.int64),  # both when a rule last had nothing more to start
        ("seen_arrivals", np.int64),
        ("open_gpus", np.int32),  # GPUs on nodes that are up
        ("open_nodes", np.int32),
        ("free_gpus", np.int32),  # free GPUs on nodes that are up
        ("node_size", np.int32),  # GPUs of the largest node, up or not
        ("queue_len", np.int32),
        ("kind", np.int32),  # GPU type of most of its GPUs
    ],
    align=True,
)
"""Derived, one entry a partition."""


@by_reference
class Index(NamedTuple):
    """Derived from the rest, and rebuilt from it by `rebuild_index`; never part of a digest."""

    slot: Records  # (J,) SLOT
    part: Records  # (P,) PARTITION
    holes: NDArray[np.int32]  # (P, M + 1) nodes that are up, by free GPUs
    whole: NDArray[np.int32]  # (P, M + 1) nodes that are up and wholly free, by their size
    by_free: NDArray[np.int64]  # (P, M + 1, words) bit sets of the nodes that are up, by free GPUs
    by_whole: NDArray[np.int64]  # (P, M + 1, words) ... of those that are wholly free, by their size
    class_queue: Records  # (P, C) CLASS_QUEUE
    queue: NDArray[np.int32]  # (P, J) waiting slots by (key, seq), where SORTS_QUEUE is set
    running_len: NDArray[np.int32]  # (1,)


@by_reference
class OrderArrays(NamedTuple):
    """What the queue goes by."""

    code: Records  # (1,) ORDER; (2,) where another takes its place once a job may be preempted
    cost: NDArray[np.float64]  # (spreads, ages) `order.gittins.gittins_table`; NO_COSTS without an index

    @property
    def may_change(self) -> bool:
        """Whether another order is to follow, or has followed."""
        return len(self.code) > 1


@by_reference
class StateArrays(NamedTuple):
    """All of a cluster's state. Few arrays, because every call of a kernel passes all of them."""

    node: Records  # (N,) NODE
    gpu: Records  # (G,) GPU
    job: Records  # (J,) JOB
    demand: Records  # (C,) DEMAND
    derived: Index
    config: Records  # (1,) CONFIG
    counters: Records  # (1,) COUNTERS
    scratch: Records  # (1,) SCRATCH
    order: OrderArrays
    models: ModelArrays
    dials: DialArrays


def records(count: int | tuple[int, ...], dtype: np.dtype[Any]) -> Records:
    """`count` zeroed entries."""
    return np.zeros(count, dtype).view(np.recarray)


def columns(entries: Records) -> NDArray[Any]:
    """The same entries as a plain array: a record array takes ten times as long to find a column in."""
    return np.ndarray.view(entries, np.ndarray)


def bit_set_words(nodes: int) -> int:
    """Words of a bit set of nodes: one bit a node, then one bit for each word of those."""
    low = max(1, -(-nodes // WORD_BITS))
    return low + -(-low // WORD_BITS)


NO_COSTS: Final = np.zeros((0, 0))
"""`OrderArrays.cost` without an index. It is read-only as a table is, which is part of an array's type: every
kernel of a state would be compiled twice."""
NO_COSTS.flags.writeable = False


def by_submission() -> OrderArrays:
    """The order of submission; predictions stay as they are."""
    return OrderArrays(records(1, ORDER), NO_COSTS)


def empty_state(
    nodes: int,
    gpus: int,
    slots: int,
    partitions: int,
    largest_node: int,
    *,
    order: OrderArrays | None = None,
    demands: int = 1,
    placement: str = "consolidate",
) -> StateArrays:
    """Arrays of these sizes: no nodes described, no jobs. Fill `node`, `gpu` and `demand`, then rebuild."""
    gpu = records(gpus, GPU)
    gpu.free_milli[:] = WHOLE_GPU_MILLI
    gpu.tenant[:] = gpu.link[:] = -1
    node = records(nodes, NODE)
    node.cpu_milli[:] = node.cpu_free_milli[:] = UNCOUNTED
    node.memory_mib[:] = node.memory_free_mib[:] = UNCOUNTED
    sets = (partitions, largest_node + 1, bit_set_words(nodes))
    index = Index(
        slot=records(slots, SLOT),
        part=records(partitions, PARTITION),
        holes=np.zeros((partitions, largest_node + 1), np.int32),
        whole=np.zeros((partitions, largest_node + 1), np.int32),
        by_free=np.zeros(sets, np.int64),
        by_whole=np.zeros(sets, np.int64),
        class_queue=records((partitions, demands), CLASS_QUEUE),
        queue=np.zeros((partitions, slots), np.int32),
        running_len=np.zeros(1, np.int32),
    )
    config = records(1, CONFIG)
    config.placement, config.sorts_queue = PLACEMENT_CODES[placement], 1
    config.reserve_after_s = np.inf
    job = records(slots, JOB)
    job.head[:] = job.host[:] = -1
    return StateArrays(
        node,
        gpu,
        job,
        records(demands, DEMAND),
        index,
        config,
        records(1, COUNTERS),
        records(1, SCRATCH),
        order or by_submission(),
        no_models(),
        no_dials(partitions),
    )


def grown(state: StateArrays, *, slots: int = 0, demands: int = 0) -> StateArrays:
    """The same state with room for so many jobs or demand classes; its index has to be rebuilt."""
    partitions, sizes = state.derived.holes.shape
    slots, demands = max(slots, state.job.shape[0]), max(demands, state.demand.shape[0])
    fresh = empty_state(state.node.shape[0], 0, slots, partitions, sizes - 1, demands=demands)
    fresh.job[: state.job.shape[0]] = state.job
    fresh.demand[: state.demand.shape[0]] = state.demand
    return state._replace(job=fresh.job, demand=fresh.demand, derived=fresh.derived)
