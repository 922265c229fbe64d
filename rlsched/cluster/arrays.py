"""The arrays of a cluster's state: NamedTuples of numpy arrays that compiled kernels read and write.

Sizes: N nodes, G GPUs, J job slots, P partitions, C demand classes; M is the largest number of GPUs on one
node. A slot is an entry of the job arrays. Only live jobs have slots. A job is identified and ordered by its
`seq`, never by its slot.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import MAX_KINDS, WHOLE_GPU_MILLI
from rlsched.cluster.dials import DialArrays, no_dials
from rlsched.compile.reference import by_reference
from rlsched.energy.limits import FALLS
from rlsched.energy.relative import AHEAD_H, OUTLOOK
from rlsched.models.arrays import ModelArrays, no_models
from rlsched.models.arrays import Records as Records

MAX_TENANTS: Final = 8
"""Maximum number of jobs on one GPU."""
WORD_BITS: Final = 32
"""Nodes per word of a bit set."""

NODE_UP: Final = 0
NODE_DRAINED: Final = 1
NODE_DOWN: Final = 2
NODE_ASLEEP: Final = 3
NODE_BOOTING: Final = 4

SLOT_EMPTY: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
LEAVING: Final = 3
"""Status of a preempted job that has no GPUs, but has processes that have not exited yet
(`ClusterState.stops_take_time`).
"""
INELIGIBLE: Final = 4
"""Status of a job that is in no queue until a condition is met: `rlsched/broker/base/eligibility.py`."""
DEFERRED: Final = 5
"""Status of a waiting job that is kept out of the queues because of the price of electricity or the power
limit (`rlsched.decide.price`).
"""

CLOCKS_ALONE: Final = 2
"""Value of `config.modelled`: models only choose clocks, as in a broker. No job has co-tenants, and each job
has the cores that it requested.
"""

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
        ("modelled", np.int64),  # 1: `models` give the speed and power of jobs; 0: every job runs as
        # in its trace; else CLOCKS_ALONE
        ("preempts", np.int64),  # 1: a policy may preempt running jobs
        ("reserve_after_s", np.float64),  # waiting time after which a policy's starts must not delay
        # the first job that does not fit, seconds; infinite: no reservations
        ("energy_ppm", np.int64),  # weight of energy against time, millionths; jobs can have another weight
        ("price_ratio", np.float64),  # price of electricity now, relative to the mean of about a day
        # (`rlsched.energy.relative`); 0: unknown
        ("price_until_s", np.float64),  # time when the price changes next; infinite: not known
        ("price_outlook", np.float64, (len(OUTLOOK),)),  # columns of `rlsched.energy.relative.OUTLOOK`
        ("limited", np.int64),  # 1: there is a power limit, which may change with `price_until_s`
        ("limit_w", np.float64),  # power limit of all nodes now, W; infinite: none
        ("clock_cap", np.float64, (2,)),  # highest SM clock under the limit, fraction of the maximum: of GPUs
        # with an urgent job, and of GPUs with only flexible jobs (`rlsched.decide.limit`)
        ("lends_cores", np.int64),  # 1: each job has at least the cores that it requested, and cores beyond
        # them are lent (`rlsched.cluster.loans`), as in a broker; 0: jobs can have fewer, or keep more
        ("within_parts", np.int64),  # 1: no job requests more than its GPUs' part of the cores and memory of
        # its nodes (`rlsched.cluster.demand.within_parts`)
        ("price_rank", np.float64),  # `rlsched.energy.relative.price_ranks`, if the policy reads it; else 0
        ("price_from_s", np.float64),  # start of the first hour of `price_sums`
        ("price_sums", np.float64, (AHEAD_H,)),  # integral of the price relative to the mean, from
        # `price_from_s` to the end of each of the next hours, in hours: sums of
        # `rlsched.energy.relative.prices_ahead`, if the policy reads them; else 0
        ("limit_soft", np.int64),  # 1: urgent jobs may exceed the power limit
        ("fall_s", np.float64, (FALLS,)),  # times at which the limit will fall, as announced; infinite: none
        ("fall_w", np.float64, (FALLS,)),  # the limit from then on, W: lower than all limits before
        ("limits_memory", np.int64),  # 0: `gpu.usable_mib` and `gpu.joinable_mib` are UNCOUNTED on all GPUs
    ],
    align=True,
)
"""Configuration of this cluster, the price of its electricity and its power limit, one entry."""


class PowerClass(IntEnum):
    """Classes of jobs under a power limit: urgent jobs have no slack, flexible jobs have some."""

    URGENT = 0
    FLEXIBLE = 1


COUNTERS: Final = np.dtype(
    [
        ("live_jobs", np.int64),
        ("next_seq", np.int64),
        ("decisions", np.int64),  # index of the next decision
    ],
    align=True,
)
"""Counters of this cluster, one entry."""

SCRATCH: Final = np.dtype(
    [
        ("others", np.int64, (MAX_TENANTS,)),  # workloads of the co-tenants of a job, to compute its speed
        ("outs", np.int64),  # number of entries in `slot.quota_out`
        ("ins", np.int64),  # number of entries in `slot.quota_in`
        ("out_at", np.int64),  # next entry of `slot.quota_out` to process; `in_at` likewise
        ("in_at", np.int64),
        ("look_s", np.float64),  # lower bound of `look_s` of all running jobs
        ("deferred", np.int64),  # number of DEFERRED jobs
        ("rank_s", np.float64),  # time of the next change of a waiting job's place in the queue, by its slack
        ("summed_s", np.float64),  # time of the latest `decide.clearing.sum_work`
        ("defer_s", np.float64),  # time when the first DEFERRED job has used up the slack that it may use
        ("first_seq", np.int64, (1 + FALLS,)),  # `seq` of the job for which power is kept before later jobs
        # start: under the limit now, and under each announced limit
        ("first_w", np.float64, (1 + FALLS,)),  # power that is kept for it, W
        ("usable", np.int64, (MAX_KINDS,)),  # by GPU type: highest `limit._usable` of its nodes, -1: no node
        ("hosts", np.int64, (MAX_KINDS,)),  # by GPU type: the node with this value
        ("room_w", np.float64, (1 + FALLS, 2)),  # power that a job of each class may add when it starts, W:
        # under the limit now, and under each announced limit
        ("stops", np.int64),  # 1: jobs may be preempted to keep the power limit
    ],
    align=True,
)
"""Working memory of kernels, one entry."""

ORDER: Final = np.dtype(
    [
        ("by", np.int64),  # code of the queue order, 0: submission
        ("gpus_power", np.float64),  # exponent in the key (predicted run time) x GPUs^gpus_power
        ("revises", np.int64),  # 1: run times of other jobs of a burst revise predictions of waiting jobs
        ("spread", np.float64),  # this and all fields below: parameters of the index,
        # `decide.order.gittins.Gittins`
        ("trust", np.float64),
        ("of_mean", np.int64),
        ("index_gpus_power", np.float64),
        ("margin", np.float64),
        ("age_step", np.float64),
        ("first_age_s", np.float64),
        ("tick_s", np.float64),
        ("threshold_gpu_s", np.float64),
        ("early_ln_weight", np.float64),  # this and the fields below: weights of jobs with slack,
        # `decide.settings.SlackSettings`
        ("late_ln_weight", np.float64),
        ("early_until", np.float64),
        ("late_from", np.float64),
    ],
    align=True,
)
"""The queue order, one entry. The ledger stores the entry for `decide.order` and does not read it."""

NODE: Final = np.dtype(
    [
        ("cpu_milli", np.int64),  # CPU cores, thousandths; UNCOUNTED if unknown
        ("cpu_free_milli", np.int64),
        ("memory_mib", np.int64),  # UNCOUNTED if unknown
        ("memory_free_mib", np.int64),
        ("gpus", np.int32),
        ("first_gpu", np.int32),  # global index of the node's first GPU
        ("part_of", np.int32),  # index of the node's partition
        ("status", np.int32),  # NODE_UP ... NODE_BOOTING; jobs start only on NODE_UP
        ("free", np.int32),  # number of wholly free GPUs, for any status; 0 while a job has the whole node
        ("kind", np.int32),  # index of the GPU type
        ("fixed_clock", np.int32),  # 1: the SM clocks of the GPUs cannot be set
        ("unshared", np.int32),  # 1: each GPU runs one job at a time
        ("lends", np.int32),  # 1: the node lends idle cores, and can withdraw them
        (
            "idle_w",
            np.float64,
        ),  # idle power without the GPUs, W; this field and the fields below are set only with models
        ("core_w", np.float64),  # power that each busy core adds, W
        ("asleep_w", np.float64),  # power of the whole node asleep, W
        ("boot_w", np.float64),  # power of the whole node booting, W
    ],
    align=True,
)
"""One entry per node."""
NO_JOINS: Final = -1
"""Value of `gpu.joinable_mib`: no job may join the jobs on the GPU."""
UNCOUNTED: Final = 1 << 60
"""Value for cores or memory that a node's description omits, and for memory of a GPU without a limit. It is
more than all jobs together request."""

DEMAND: Final = np.dtype(
    [
        ("kinds", np.int64),  # bit mask of accepted GPU types, or ANY_KIND
        ("cpu_milli_each", np.int64),  # cores per GPU, thousandths; of the whole job if it has no GPUs
        ("memory_mib_each", np.int64),
        ("gpu_free_mib", np.int64),  # memory that must be free on each GPU at the start, MiB; 0: none
        ("arrived", np.int64),  # number of jobs of this class so far
        (
            "error_square",
            np.float64,
        ),  # revised predictions: sum of ln(run time / first_predicted_s)^2 of ended jobs; old jobs decay
        ("error_count", np.float64),
        ("own_square", np.float64),  # the same for deviations of ln(run time / first_predicted_s) from the
        # mean of the burst's earlier jobs
        ("own_count", np.float64),
        ("burst_last_s", np.float64),  # arrival of the last job of the latest burst
        ("burst_spread", np.float64),  # this and the next four fields: the latest burst, as in JOB
        ("burst_ln_sum", np.float64),
        ("burst_ended", np.int64),
        ("burst", np.int64),
        ("burst_vc", np.int32),
        ("gpus", np.int32),
        ("share_milli", np.int32),
        ("plain", np.int32),  # 1: counts of free GPUs suffice to check whether jobs of the class fit
        ("exclusive", np.int32),  # 1: jobs of the class get whole nodes
        ("preferred", np.int32),  # class by which jobs are placed on preferred GPU types; -1: none
    ],
    align=True,
)
"""One entry per demand class: jobs with the same request."""

GPU: Final = np.dtype(
    [
        ("usable_mib", np.int64),  # memory that jobs can get together, as the node reported; UNCOUNTED: all
        ("joinable_mib", np.int64),  # largest need of a job that may join the jobs on this GPU, MiB;
        # NO_JOINS: no job may join; UNCOUNTED: no limit, as after the end of any of these jobs
        ("node", np.int32),
        ("free_milli", np.int32),  # 1,000 = wholly free; 0 while a job has the whole node
        ("tenant", np.int32, (MAX_TENANTS,)),  # job slot, -1 if none
        ("link", np.int32, (MAX_TENANTS,)),  # next place of the same job: gpu * MAX_TENANTS + place; -1: none
        ("power_w", np.float64),  # power of all GPUs that these jobs have, W; this field and the fields
        # below are set only with models, and only on the first GPU of these jobs
        ("idle_w", np.float64),  # power of all these GPUs if the jobs did not run, W
        ("clock_frac", np.float64),  # SM clock of all these GPUs
        ("clock_since_s", np.float64),  # time of the last change of the clock, s
    ],
    align=True,
)
"""One entry per GPU, in global numbering."""

JOB: Final = np.dtype(
    [
        ("seq", np.int64),  # arrival number
        (
            "moved_for",
            np.int64,
        ),  # `seq` of the job for which this job was preempted; -1: none, or this job has started again
        ("moved_attempt", np.int64),  # attempt of the job `moved_for` at the time of the preemption
        ("key", np.float64),  # sort key in the queue, set when the job is queued
        ("submit_s", np.float64),
        ("predicted_s", np.float64),  # predicted run time, set at submission and at each revision
        ("spread", np.float64),  # standard deviation of ln(run time / predicted_s)
        ("limit_s", np.float64),  # the user's time limit, nan if none
        ("first_predicted_s", np.float64),  # if predictions are revised: the prediction at submission
        ("burst", np.int64),  # arrival number of the first job of this job's burst
        ("burst_ended", np.int64),  # number of jobs of the burst that have ended
        ("burst_ln_sum", np.float64),  # sum of ln(run time / first_predicted_s) of these ended jobs
        ("burst_spread", np.float64),  # spread of the first job of the burst
        ("look_s", np.float64),  # time of the next age check (`decide.order.bursts`) of a running job
        ("start_s", np.float64),  # start of the current attempt, nan while the job waits
        ("attained_gpu_s", np.float64),  # GPU-seconds of earlier attempts, and a correction for changes of
        # `share_milli` in the current attempt
        ("overhead_left_s", np.float64),  # time that the job must still spend on its restart, s
        ("saved_s", np.float64),  # work of earlier attempts that need not be done again
        ("ln_weight", np.float64),  # ln of the weight in the queue order; 0: weight 1
        ("sm_clock_frac", np.float64),
        ("cpu_milli_each", np.int64),  # cores per place, thousandths
        (
            "gpu_need_mib",
            np.int64,
        ),  # memory that the job uses on each GPU, MiB; -1: as models predict for the workload
        ("rate", np.float64),  # speed relative to unshared GPUs at full clock
        ("rate_since_s", np.float64),
        ("status", np.int32),  # SLOT_EMPTY, WAITING, RUNNING, LEAVING, INELIGIBLE, DEFERRED
        ("vc", np.int32),  # index of the VC's name, -1 if none
        ("own_partition", np.int32),  # partition of the VC's own nodes, -1 if the VC has no nodes
        ("shared_partition", np.int32),  # partition of the nodes that serve every VC, -1 if there is none
        ("placed_in", np.int32),  # partition in which the job runs, -1 while it waits
        ("gpus", np.int32),  # GPUs of the gang; 0: CPU only
        ("share_milli", np.int32),  # share of each GPU, thousandths
        ("demand", np.int32),  # index of the demand class
        ("host", np.int32),  # first node on which the job runs, -1 while it waits
        ("attempt", np.int32),  # number of the current attempt, from 1
        ("preemptions", np.int32),
        ("pinned", np.int32),  # 1: must not be preempted
        ("unshared", np.int32),  # 1: the job must not share GPUs with other jobs
        ("workload", np.int32),  # index in the catalogue of workloads, 0: unknown
        ("energy_ppm", np.int32),  # weight of energy, millionths; -1: the cluster's weight
        ("reference_kind", np.int32),  # GPU type of the stated run time; -1: the type on which the job runs
        ("generation", np.int32),  # incremented with every change of the rate
        ("level", np.int32),  # priority: jobs of higher levels start first; 0: default
        ("head", np.int32),  # first place of the allocation, as gpu * MAX_TENANTS + k; -1: none
        ("slack_s", np.float64),  # delay that the user accepts; 0: none. Must be
        # followed by exactly the two fields below (`rlsched.cluster.digest`)
        ("core_need_milli", np.int64),  # cores per GPU that the job can use, learnt from earlier attempts,
        # thousandths; 0: as its workload
        ("dynamic_ratio", np.float64),  # dynamic power, learnt from earlier attempts, relative to that of the
        # workload; 0: as its workload
    ],
    align=True,
)
"""One entry per slot; a slot whose `status` is SLOT_EMPTY holds stale data."""

SLOT: Final = np.dtype(
    [
        ("key", np.float64),  # JOB.key of a waiting slot
        ("ln_age", np.float64),  # scratch: ln(age / prediction) of a running slot of a burst
        ("leave", np.float64),  # scratch: preemption score of a running slot; -inf: must not be preempted
        ("speed", np.float64),  # cached `present_speed` of a running slot; nan: must be computed again
        ("open_key", np.float64),  # scratch: `key` of a waiting slot, infinite if the slot is skipped
        ("quota_out", np.int32),  # scratch list: the running slots that lose their quota
        ("quota_in", np.int32),  # scratch list: the waiting slots that have quota
        ("stack", np.int32),  # all slots: the first J - live entries are empty, the others hold live jobs
        ("stack_at", np.int32),  # position of a slot in `stack`
        ("running", np.int32),  # the first `running_len` entries are running slots
        ("running_at", np.int32),  # position of a running slot in `running`
        ("next_of_burst", np.int32),  # scratch: the next running slot of a burst
        ("next_alike", np.int32),  # next running slot of the same class and partition, -1: none
        ("back_alike", np.int32),  # previous running slot of the same class and partition, -1: none
        ("child", np.int32, (2,)),  # pairing heaps of waiting slots, own and shared partition: first child
        ("next", np.int32, (2,)),  # next sibling in the pairing heap
        ("back", np.int32, (2,)),  # previous sibling in the pairing heap; for a first child, the parent
    ],
    align=True,
)
"""Derived data of job slots, one entry per slot."""

CLASS_QUEUE: Final = np.dtype(
    [
        ("asked_at", np.int64),  # `part.changes` when `fits` was last computed
        ("least_s", np.float64),  # lower bound of the predicted run times of the waiting jobs
        ("fits", np.int32),  # 1: a job of the class can start
        ("node_size", np.int32),  # most places on one idle node, whether or not the node is up; class of
        # preferred types: as for the class with the preference
        ("root", np.int32),  # slot of the first waiting job by (key, seq), -1 if none waits
        ("waiting", np.int32),
        ("running", np.int32),  # slot of a running job, -1: none; `next_alike` links the other running jobs
        ("delays", np.int32),  # scratch: whether jobs of the class would delay the job with the reservation
    ],
    align=True,
)
"""Derived data of a demand class in a partition: the jobs of the class, and whether one can start now."""

PARTITION: Final = np.dtype(
    [
        ("changes", np.int64),  # incremented with every change of a node
        ("arrivals", np.int64),  # incremented with every job that is queued
        ("work_gpu_ms", np.int64),  # `decide.clearing.sum_work`, with `price.spare`; else 0
        ("seen_changes", np.int64),  # values of `changes` and `arrivals` when a rule last found no move
        ("seen_arrivals", np.int64),
        ("open_gpus", np.int32),  # GPUs on nodes that are up
        ("open_nodes", np.int32),
        ("free_gpus", np.int32),  # free GPUs on nodes that are up
        ("node_size", np.int32),  # GPUs of the largest node, whether or not the node is up
        ("queue_len", np.int32),
        ("kind", np.int32),  # GPU type of most GPUs of the partition
    ],
    align=True,
)
"""Derived data of partitions, one entry per partition."""


@by_reference
class Index(NamedTuple):
    """Index of the state: data that `rebuild_index` derives from the other arrays; not part of a digest."""

    slot: Records  # (J,) SLOT
    part: Records  # (P,) PARTITION
    holes: NDArray[np.int32]  # (P, M + 1) number of nodes that are up, by number of free GPUs
    whole: NDArray[np.int32]  # (P, M + 1) number of nodes that are up and wholly free, by number of GPUs
    by_free: NDArray[np.int64]  # (P, M + 1, words) bit sets of the nodes counted in `holes`
    by_whole: NDArray[np.int64]  # (P, M + 1, words) bit sets of the nodes counted in `whole`
    class_queue: Records  # (P, C) CLASS_QUEUE
    queue: NDArray[np.int32]  # (P, J) waiting slots by (key, seq), if `config.sorts_queue` is 1
    running_len: NDArray[np.int32]  # (1,) number of running slots


@by_reference
class OrderArrays(NamedTuple):
    """The order of the queue, for kernels."""

    code: Records  # (1,) ORDER, or (2,): the second order applies once a job may be preempted
    cost: NDArray[np.float64]  # (spreads, ages) `order.gittins.gittins_table`; NO_COSTS for other orders

    @property
    def may_change(self) -> bool:
        """Whether there is a second queue order, which replaces the first when a preemptible job arrives."""
        return len(self.code) > 1


@by_reference
class StateArrays(NamedTuple):
    """The complete state of a cluster, in few arrays, because every kernel call passes all of them."""

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
    """Return `count` zeroed entries."""
    return np.zeros(count, dtype).view(np.recarray)


def columns(entries: Records) -> NDArray[Any]:
    """Return a record array as a plain structured array, whose columns are read ten times as fast."""
    return np.ndarray.view(entries, np.ndarray)


def bit_set_words(nodes: int) -> int:
    """Return the number of words of a node set (`index`): a bit per node, then a bit per word of these."""
    low = max(1, -(-nodes // WORD_BITS))
    return low + -(-low // WORD_BITS)


NO_COSTS: Final = np.zeros((0, 0))
"""Value of `OrderArrays.cost` for orders without a Gittins index. The array is read-only like that of
`gittins_table`, because numba would compile every kernel again for a writable array.
"""
NO_COSTS.flags.writeable = False


def by_submission() -> OrderArrays:
    """Return the queue order by time of submission. With this order, predictions are not revised."""
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
    """Return the arrays of a state of this size. They describe no nodes and no jobs yet.

    The caller fills `node`, `gpu` and `demand`, and then calls `rebuild_index`.
    """
    gpu = records(gpus, GPU)
    gpu.free_milli[:] = WHOLE_GPU_MILLI
    gpu.usable_mib[:] = gpu.joinable_mib[:] = UNCOUNTED
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
    config.reserve_after_s = config.price_until_s = config.limit_w = np.inf
    config.clock_cap[:], config.fall_s[:], config.fall_w[:] = 1.0, np.inf, np.inf
    job, demand = records(slots, JOB), records(demands, DEMAND)
    job.head[:] = job.host[:] = demand.preferred[:] = -1
    return StateArrays(
        node,
        gpu,
        job,
        demand,
        index,
        config,
        records(1, COUNTERS),
        records(1, SCRATCH),
        order or by_submission(),
        no_models(),
        no_dials(partitions),
    )


def grown(state: StateArrays, *, slots: int = 0, demands: int = 0) -> StateArrays:
    """Return the state with room for at least `slots` jobs and `demands` demand classes in total.

    The caller must rebuild the index.
    """
    partitions, sizes = state.derived.holes.shape
    slots, demands = max(slots, state.job.shape[0]), max(demands, state.demand.shape[0])
    fresh = empty_state(state.node.shape[0], 0, slots, partitions, sizes - 1, demands=demands)
    fresh.job[: state.job.shape[0]] = state.job
    fresh.demand[: state.demand.shape[0]] = state.demand
    return state._replace(job=fresh.job, demand=fresh.demand, derived=fresh.derived)
