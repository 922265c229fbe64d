"""What a rule may do beside starting jobs on free GPUs: share them, lower clocks, move cores. Compiled.

All of it goes by predicted speeds (`rlsched.models.speed`), which the policy sees too. It needs models: on a
state without them nothing here is ever legal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rlsched.cluster.arrays import (
    CLOCKS_ALONE,
    MAX_TENANTS,
    RUNNING,
    UNCOUNTED,
    StateArrays,
)
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import spare_cpu_milli, spare_cpu_milli_each, tenants_of
from rlsched.cluster.room import takes_gpus_of
from rlsched.errors import UnknownSchedulerError
from rlsched.jit import kernel, large_kernel
from rlsched.models.clocks import DWELL_S, best_level, power_at, priced_level
from rlsched.models.memory import MAX_SHARING, fits_memory
from rlsched.models.speed import (
    asked_feed,
    cores_given,
    feed,
    gpu_kind,
    shared_on,
    shared_with,
)

ShareRule = Literal["never", "blocked", "lucid"]
"""Who shares GPUs: nobody; jobs that do not fit otherwise; as in Lucid, whoever may, before free GPUs."""
ClockRule = Literal["full", "fixed", "slowdown", "lull", "weighed"]
"""SM clock of a job: the highest; one for all; the one of least energy within a slowdown; the same, but the
highest while other jobs wait; the one where time and energy, weighed against each other, cost least."""

NEVER: Final = 0
BLOCKED: Final = 1
LUCID: Final = 2
_SHARE_CODES: Final = {"never": NEVER, "blocked": BLOCKED, "lucid": LUCID}
FULL: Final = 0
FIXED: Final = 1
SLOWDOWN: Final = 2
LULL: Final = 3
WEIGHED: Final = 4
_CLOCK_CODES: Final = {"full": FULL, "fixed": FIXED, "slowdown": SLOWDOWN, "lull": LULL, "weighed": WEIGHED}
MOST_PRESSURE: Final = 3.0
"""A second of GPU time is worth up to so much more where jobs wait for it: the queue's length a node."""

KEEP_FRAC: Final = 0.85
"""Speed that both jobs of a pair have to keep: the gate whose quality `docs/model/sharing.md` measures."""
LOOK_AT: Final = 16
"""Waiting jobs that are looked at for one that may share: a bound, as Slurm's `bf_max_job_test`."""
LUCID_MAX_GPUS: Final = 8
LUCID_SCORES: Final = 2
"""Lucid packs jobs of up to 8 GPUs whose scores (0 tiny, 1 medium, 2 jumbo) add up to 2 at most ..."""
LUCID_LONGER: Final = 2.0
"""... with a job whose predicted GPU-time is at least half of theirs (its artifact's `policy/lucid.py`)."""
LUCID_MEDIUM_UTIL: Final = 0.5
LUCID_JUMBO_UTIL: Final = 0.85
"""Lucid learns its scores by a decision tree over profiles; ours are cut by solo GPU utilisation alone, where
a pair of equals keeps nearly all of its speed (0.5) and where each falls below 0.85 of it."""


class AbilityCode(NamedTuple):
    """Abilities as kernels take them."""

    share: int
    most: int
    keep_frac: float
    clock: int
    clock_value: float
    cores: bool
    dwell_s: float


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule may do beside starting jobs on free GPUs.

    Attributes:
        share: Who shares GPUs.
        tenants: Jobs on a GPU at most (`MAX_SHARING`); what is measured is pairs.
        keep_frac: Predicted speed that all who share a GPU have to keep.
        clock: How a job's SM clock is chosen.
        clock_value: `fixed`: the clock, of the maximum. `slowdown`, `lull`: the slowdown allowed.
        cores: Whether input-bound jobs get idle cores, and others leave those that they have no use for.
        dwell_s: The clock of a running job is chosen anew at decision points, but a job keeps one for so long
            at least, seconds; infinite: until it ends.
    """

    share: ShareRule = "never"
    tenants: int = 2
    keep_frac: float = KEEP_FRAC
    clock: ClockRule = "full"
    clock_value: float = 1.0
    cores: bool = False
    dwell_s: float = math.inf

    @property
    def code(self) -> AbilityCode:
        """The abilities for kernels."""
        return AbilityCode(
            _SHARE_CODES[self.share],
            int(self.tenants),
            float(self.keep_frac),
            _CLOCK_CODES[self.clock],
            float(self.clock_value),
            bool(self.cores),
            float(self.dwell_s),
        )

    @property
    def needed(self) -> bool:
        """Whether there is any: models are needed then."""
        return self != NO_ABILITIES


NO_ABILITIES: Final = Abilities()
NO_ABILITY: Final = NO_ABILITIES.code
ABILITY_WORDS: Final = (
    "share, share=SPEED, tenants=N, clock=F, slowdown=B, lull=B, weight=W, reclock=TIME, cores"
)
LONGEST_DWELL_S: Final = 30 * 86_400.0
_DWELL_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def read_abilities(name: str, words: Sequence[str]) -> Abilities:
    """The abilities behind a policy's name.

    `share`: jobs that do not fit share GPUs where both keep 0.85 of their speed (`share=0.8`: 0.8 of it).
    `tenants=4`: those that share are up to four on a GPU, where all of them keep as much; else two.
    `clock=0.75`: all run at this SM clock. `slowdown=0.05`: each runs at the clock of least energy that makes
    it no more than 5 % slower. `lull=0.05`: the same while no other job waits, else the highest.
    `weight=0.3`: each runs where 0.7 of its time and 0.3 of its energy cost least, time counting more where
    jobs wait. `reclock=10m`, beside `weight` or `lull`: running jobs follow as the queue grows and shrinks,
    but keep a clock for so long at least. `cores`: input-bound jobs get idle cores.

    Raises:
        UnknownSchedulerError: a word is not known, comes twice, or its figure is out of range.
    """
    able = Abilities()
    seen: set[str] = set()
    for word in words:
        key, equals, text = word.partition("=")
        topic = "clock" if key in _CLOCKS else key
        value = _seconds(text) if key == "reclock" else _figure(text) if equals else None
        low, high = _RANGES.get(key, (0.0, 0.0))
        if topic in seen or (equals and (value is None or not low <= value <= high)):
            raise UnknownSchedulerError(
                f"policy {name!r}: expected each of {ABILITY_WORDS} once, F from 0.5 to 1, SPEED and W from "
                f"0 to 1, B from 0 to 10, N from 2 to {MAX_SHARING}, TIME from {DWELL_S:g}s to 30d, "
                f"got +{word}"
            )
        seen.add(topic)
        if key == "share":
            able = replace(able, share="blocked", keep_frac=KEEP_FRAC if value is None else value)
        elif key == "tenants" and value is not None and value == int(value):
            able = replace(able, tenants=int(value))
        elif key == "cores" and not equals:
            able = replace(able, cores=True)
        elif key == "reclock" and value is not None:
            able = replace(able, dwell_s=value)
        elif key in _CLOCKS and value is not None:
            able = replace(able, clock=_CLOCKS[key], clock_value=value)
        else:
            raise UnknownSchedulerError(
                f"policy {name!r}: unknown ability +{word}; known: {ABILITY_WORDS}, "
                "and repack, then revise at the very end"
            )
    if "tenants" in seen and "share" not in seen:
        raise UnknownSchedulerError(f"policy {name!r}: +tenants says how many share a GPU; add +share")
    if able.dwell_s < math.inf and able.clock not in ("weighed", "lull"):
        raise UnknownSchedulerError(
            f"policy {name!r}: +reclock lets running jobs follow the queue; add +weight=W or +lull=B"
        )
    return able


_RANGES: Final = {
    "share": (0.0, 1.0),
    "tenants": (2, MAX_SHARING),
    "clock": (0.5, 1.0),
    "slowdown": (0.0, 10.0),
    "lull": (0.0, 10.0),
    "weight": (0.0, 1.0),
    "reclock": (DWELL_S, LONGEST_DWELL_S),
}
_CLOCKS: Final[dict[str, ClockRule]] = {
    "clock": "fixed",
    "slowdown": "slowdown",
    "lull": "lull",
    "weight": "weighed",
}


def _figure(text: str) -> float | None:
    """A plain decimal number; None for anything else."""
    whole, _, part = text.partition(".")
    return float(text) if whole.isascii() and whole.isdigit() and (part or "0").isdigit() else None


def _seconds(text: str) -> float | None:
    """A time with its unit, such as `10m`, in seconds; None for anything else."""
    figure = _figure(text[:-1]) if text else None
    unit_s = _DWELL_UNIT_S.get(text[-1:])
    return None if figure is None or unit_s is None else figure * unit_s


@large_kernel
def clock_for(s: StateArrays, p: int, slot: int, kind: int, can: AbilityCode) -> float:
    """SM clock that a rule gives a job on GPUs of this type in partition `p`, of the maximum.

    A job that says itself what energy counts for it has that weighed, whatever the rule does. The job is one
    of those that wait, also where it runs already: the same queue gives it the same clock.
    """
    if not s.config[0].modelled or s.models.gpu.sliced[kind]:
        return 1.0
    rule, value = can.clock, can.clock_value
    if s.job.energy_ppm[slot] >= 0:
        rule, value = WEIGHED, s.job.energy_ppm[slot] / 1e6
    if rule == FULL:
        return 1.0
    jobs = s.derived.part.queue_len[p] + (s.job.status[slot] == RUNNING)
    if rule == LULL and jobs > 1:
        return 1.0
    if rule == FIXED:
        return value
    t, w = s.models.trait, s.job.workload[slot]
    rho, dynamic_w = t.clock_bound[w, kind], t.dynamic_w[w, kind]
    if rule == WEIGHED:
        level = weighed_level(s, p, kind, rho, dynamic_w, value, jobs)
    else:
        level = best_level(s.models.gpu, kind, rho, dynamic_w, value)
    return s.models.gpu.levels_frac[kind, level]


@kernel
def weighed_level(
    s: StateArrays, p: int, kind: int, clock_bound: float, dynamic_w: float, weight: float, jobs: int
) -> int:
    """Level of the clock where time and energy cost least, energy weighed by `weight` (0: the highest clock).

    Both are relative to the full clock. Time counts more the more jobs wait, this one included: others wait
    for it.
    """
    if weight == 0.0:
        return 0
    queued = jobs / max(s.derived.part.open_nodes[p], 1)
    time_price = (1.0 - weight) * (1.0 + min(queued, MOST_PRESSURE))
    full_w = power_at(s.models.gpu, kind, clock_bound, dynamic_w, 1.0)
    return priced_level(s.models.gpu, kind, clock_bound, dynamic_w, 0.0, time_price, weight / full_w)


@large_kernel
def cores_for(s: StateArrays, slot: int, gpus: NDArray[np.int32], can: AbilityCode) -> int:
    """CPU cores (thousandths) that a rule gives a job for each of these GPUs, which it is to start on.

    What the job asked for; with the ability, what it has a use for: less where that is enough, more where
    its nodes have cores to spare. Cores that are lent come back when the borrower ends: until then a node may
    have fewer than its free GPUs were to have, and a job that starts there gets its part of those.
    """
    asked = s.demand.cpu_milli_each[s.job.demand[slot]]
    if not can.cores or asked == 0 or gpus.shape[0] == 0 or s.demand.plain[s.job.demand[slot]] == 0:
        return asked
    if not s.config[0].modelled:
        return asked
    needed = 0.0
    for position in range(gpus.shape[0]):
        needed = max(needed, s.models.trait.cores_each[s.job.workload[slot], gpu_kind(s, gpus[position])])
    wanted = math.ceil(needed * 1000.0)
    position = 0
    while position < gpus.shape[0]:
        n, on_node = s.gpu.node[gpus[position]], 0
        while position < gpus.shape[0] and s.gpu.node[gpus[position]] == n:
            position, on_node = position + 1, on_node + 1
        if s.node.cpu_milli[n] < UNCOUNTED:
            part = min(asked, s.node.cpu_free_milli[n] // max(s.node.free[n], on_node))
            wanted = min(wanted, part + spare_cpu_milli(s, n) // on_node)
    return wanted


@large_kernel
def join_cores(s: StateArrays, slot: int, beside: int, kind: int) -> int:
    """CPU cores (thousandths) that a waiting job brings for each GPU that it comes to share.

    Spare ones of the nodes, as many as all of them together lack.
    """
    job, cores = s.job, s.models.trait.cores_each
    if s.demand.cpu_milli_each[job.demand[slot]] == 0:
        return 0
    g, held, needed = job.head[beside] // MAX_TENANTS, 0, cores[job.workload[slot], kind]
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0:
            held += job.cpu_milli_each[other]
            needed += cores[job.workload[other], kind]
    return max(min(math.ceil(1000.0 * needed) - held, spare_cpu_milli_each(s, beside)), 0)


@kernel
def _score(s: StateArrays, slot: int, kind: int) -> int:
    """Lucid's sharing score of a job: 0 tiny, 1 medium, 2 jumbo."""
    util = s.models.trait.util_frac[s.job.workload[slot], kind]
    return (util > LUCID_MEDIUM_UTIL) + (util > LUCID_JUMBO_UTIL)


@kernel
def pair_value(s: StateArrays, slot: int, beside: int, can: AbilityCode) -> float:
    """Predicted speed that is gained, and the running job's, if a waiting job joins a running one.

    That is the speed of both for a pair; beside several, the waiting job's, and one less what they lose.
    0 where it may not join.
    """
    job = s.job
    if job.gpus[slot] != job.gpus[beside]:
        return 0.0
    g = job.head[beside] // MAX_TENANTS
    if job.share_milli[beside] < WHOLE_GPU_MILLI:
        return _group_value(s, slot, beside, can) if can.most > 2 and can.share == BLOCKED else 0.0
    kind, demand = gpu_kind(s, g), job.demand[slot]
    if s.demand.memory_mib_each[demand] > 0:
        return 0.0
    t, mine, theirs = s.models.trait, job.workload[slot], job.workload[beside]
    memory_mib = s.models.gpu.memory_mib[kind]
    if not fits_memory(memory_mib, t.memory_mib[theirs, kind], 1, t.memory_mib[mine, kind]):
        return 0.0
    if can.share == LUCID:
        own, other = job.predicted_s[slot] * job.gpus[slot], job.predicted_s[beside] * job.gpus[beside]
        if job.gpus[slot] > LUCID_MAX_GPUS or own > LUCID_LONGER * other:
            return 0.0
        small = _score(s, slot, kind) + _score(s, beside, kind) <= LUCID_SCORES
        return 1.0 * (small and takes_gpus_of(s, demand, beside))
    one, two = t.beside[mine, kind, theirs], t.beside[theirs, kind, mine]
    if min(one, two) < can.keep_frac or not takes_gpus_of(s, demand, beside):
        return 0.0
    held = (job.cpu_milli_each[beside] + join_cores(s, slot, beside, kind)) / 1000.0
    needed = t.cores_each[mine, kind] + t.cores_each[theirs, kind]
    met = min(1.0, held / needed)
    one = min(one, feed(s, slot, kind, t.cores_each[mine, kind] * met)) / asked_feed(s, slot, kind)
    two = min(two, feed(s, beside, kind, t.cores_each[theirs, kind] * met)) / asked_feed(s, beside, kind)
    return one + two if min(one, two) >= can.keep_frac else 0.0


@large_kernel
def _group_value(s: StateArrays, slot: int, beside: int, can: AbilityCode) -> float:
    """`pair_value` where the running job shares its GPUs already."""
    job, t, g = s.job, s.models.trait, s.job.head[beside] // MAX_TENANTS
    kind, tenants, used_mib, held = gpu_kind(s, g), tenants_of(s, g), 0.0, 0
    if tenants >= can.most or s.demand.share_milli[job.demand[beside]] < WHOLE_GPU_MILLI:
        return 0.0
    needed = t.cores_each[job.workload[slot], kind]
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0:
            used_mib += t.memory_mib[job.workload[other], kind]
            needed += t.cores_each[job.workload[other], kind]
            held += job.cpu_milli_each[other]
    mine_mib = t.memory_mib[job.workload[slot], kind]
    if s.demand.memory_mib_each[job.demand[slot]] > 0 or not takes_gpus_of(s, job.demand[slot], beside):
        return 0.0
    if not fits_memory(s.models.gpu.memory_mib[kind], used_mib, tenants, mine_mib):
        return 0.0
    met = min(1.0, (held + join_cores(s, slot, beside, kind)) / 1000.0 / needed)
    value, slowest = 1.0, 1.0
    for k in range(-1, MAX_TENANTS):
        one = slot if k < 0 else s.gpu.tenant[g, k]
        if one >= 0:
            speed = shared_with(s, one, slot, g)
            cores = t.cores_each[job.workload[one], kind] * met
            speed = min(speed, feed(s, one, kind, cores)) / asked_feed(s, one, kind)
            slowest = min(slowest, speed)
            value += speed
            if k >= 0:
                before = min(shared_on(s, one, g), feed(s, one, kind, cores_given(s, one, kind)))
                value -= before / asked_feed(s, one, kind)
    return value if slowest >= can.keep_frac else 0.0


@large_kernel
def best_partner(s: StateArrays, p: int, slot: int, can: AbilityCode) -> int:
    """Running job of partition `p` that a waiting one had best share GPUs with, -1 for none.

    Best is the highest speed of both together, then the job that came first.
    """
    if s.demand.share_milli[s.job.demand[slot]] < WHOLE_GPU_MILLI or s.job.gpus[slot] == 0:
        return -1
    found, most = -1, 0.0
    for position in range(s.derived.running_len[0]):
        beside = s.derived.slot.running[position]
        if s.job.placed_in[beside] == p and s.job.gpus[beside] == s.job.gpus[slot]:
            value = pair_value(s, slot, beside, can)
            better = value > most or (value == most and found >= 0 and s.job.seq[beside] < s.job.seq[found])
            if value > 0.0 and better:
                found, most = beside, value
    return found


@large_kernel
def next_to_share(s: StateArrays, p: int, blocks: bool, can: AbilityCode) -> tuple[int, int]:
    """(waiting slot, running slot that it joins) of a rule's next pair in partition `p`; (-1, -1) for none.

    The first waiting job of the queue order that has a partner; of a rule that blocks, the very first alone.
    """
    if can.share == NEVER or not s.config[0].modelled or s.config[0].modelled == CLOCKS_ALONE:
        return -1, -1
    queue = s.derived.queue[p]
    for position in range(min(s.derived.part.queue_len[p], 1 if blocks else LOOK_AT)):
        beside = best_partner(s, p, queue[position], can)
        if beside >= 0:
            return queue[position], beside
    return -1, -1


@kernel
def energy_weight(s: StateArrays) -> float:
    """What energy counts against time, 0 to 1; nothing without models."""
    return s.config[0].energy_ppm / 1e6 if s.config[0].modelled else 0.0


@kernel
def job_energy_weight(s: StateArrays, slot: int) -> float:
    """What energy counts for a job: what it says itself, else `energy_weight`; nothing without models."""
    own = s.job.energy_ppm[slot]
    return energy_weight(s) if own < 0 or not s.config[0].modelled else own / 1e6


@kernel
def policy_abilities(s: StateArrays) -> AbilityCode:
    """What the reference rule of a policy may do on this state: nothing without models, else all of it.

    Where models are there for clocks alone, it weighs clocks.
    """
    if not s.config[0].modelled:
        return AbilityCode(NEVER, 2, 0.0, FULL, 1.0, False, np.inf)
    if s.config[0].modelled == CLOCKS_ALONE:
        return AbilityCode(NEVER, 2, 0.0, WEIGHED, energy_weight(s), False, np.inf)
    return AbilityCode(BLOCKED, 2, KEEP_FRAC, WEIGHED, energy_weight(s), True, np.inf)


@kernel
def partner_of(s: StateArrays, p: int, slot: int) -> int:
    """The running job that a policy's reference rule would let a waiting one share GPUs with, -1: none."""
    able = s.config[0].modelled != 0 and s.config[0].modelled != CLOCKS_ALONE
    return best_partner(s, p, slot, policy_abilities(s)) if able else -1
