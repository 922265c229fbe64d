"""The legal candidates of a decision, for Python callers: thin wrappers over `windows` and `variants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import placement
from rlsched.cluster.arrays import CLOCKS_ALONE
from rlsched.cluster.choose import choose
from rlsched.cluster.state import ClusterState
from rlsched.decide import holds, variants, window_arrays, windows
from rlsched.decide.abilities import (
    NO_ABILITIES,
    Abilities,
    clock_for,
    cores_for,
    join_cores,
)
from rlsched.decide.actions import SetClock, Start, Wait
from rlsched.decide.reclock import next_reclock
from rlsched.decide.record import Half
from rlsched.models.speed import gpu_kind


@dataclass(frozen=True)
class Window:
    """The rows of one half of a decision; K rows are in use, padding is cut off.

    Attributes:
        kind: `job` (row 0 is *wait*, the others jobs) or `how` (each row a variant of one job).
        seqs: (K,) job numbers, -1 for *wait*.
        nodes: (K,) first node of the placement, -1 where there is none.
        reasons: (K,) reason codes of `decide.window_arrays`, LEGAL where the row may be taken.
        features: (K, F) float32, the actor's columns.
        reference: Row that the reference rule takes.
        arrays: The buffers behind them, padded to the full window.
    """

    kind: str
    seqs: NDArray[np.int64]
    nodes: NDArray[np.int32]
    reasons: NDArray[np.int32]
    features: NDArray[np.float32]
    reference: int
    arrays: window_arrays.WindowArrays

    @property
    def legal(self) -> NDArray[np.bool_]:
        """(K,) whether each row may be taken."""
        return self.reasons == window_arrays.LEGAL

    @property
    def passes_over(self) -> bool:
        """Whether a *wait* keeps back a job that could start."""
        rows = len(self.seqs)
        return bool((self.legal[1:] & (self.arrays.out[1:rows] < 0)).any())

    def action(self, state: ClusterState, partition: int, row: int) -> Start:
        """The start that a row of the second half stands for.

        Of the one way to start a job, and of a gang over several nodes, the placement rule says where.
        """
        seq, beside = int(self.seqs[row]), int(self.arrays.beside[row])
        if beside >= 0:
            other = int(state.arrays.job.seq[beside])
            return join_action(state, partition, seq, other, policy_abilities(state))
        slot = state.slot_of(seq)
        one_way = len(self.seqs) == 1 or variants.has_one_way(state.arrays, partition, slot)
        node = -1 if one_way else int(self.nodes[row])
        start = variant_action(state, partition, seq, node)
        clock = float(self.arrays.clock[row]) if can_set_clocks(state, start.gpus) else 1.0
        return msgspec.structs.replace(start, sm_clock_frac=clock)

    def half(self, logits: NDArray[np.floating] | None, choice: int) -> Half:
        """This half for a `DecisionRecord`."""
        return Half(
            kind="job" if self.kind == "job" else "how",
            seqs=self.seqs.tolist(),
            nodes=self.nodes.tolist(),
            features=self.features.tobytes(),
            legal=self.legal.tolist(),
            reasons=self.reasons.tolist(),
            logits=[] if logits is None else [float(x) for x in logits],
            choice=choice,
            reference=self.reference,
        )


def job_candidates(state: ClusterState, partition: int, now_s: float) -> Window:
    """First half: *wait* and the jobs of the partition's window."""
    arrays = window_arrays.empty_window()
    windows.job_window(state.arrays, partition, now_s, arrays)
    return _window("job", state, arrays)


def variant_candidates(state: ClusterState, partition: int, seq: int, now_s: float) -> Window:
    """Second half: the ways to start a job that fits this partition now."""
    arrays = window_arrays.empty_window()
    variants.variant_window(state.arrays, partition, state.slot_of(seq), now_s, arrays)
    return _window("how", state, arrays)


def _window(kind: str, state: ClusterState, arrays: window_arrays.WindowArrays) -> Window:
    rows, reference = int(arrays.info[0]), int(arrays.info[1])
    slots = arrays.slot[:rows]
    return Window(
        kind,
        np.where(slots >= 0, state.arrays.job.seq[slots], -1),
        arrays.node[:rows],
        arrays.reason[:rows],
        arrays.features[:rows],
        reference,
        arrays,
    )


def has_startable(state: ClusterState, partition: int, now_s: float) -> bool:
    """Whether this is a decision point: some waiting job can start here now, and is not kept back."""
    return bool(holds.first_startable(state.arrays, partition, now_s) >= 0)


def has_released(state: ClusterState, partition: int, now_s: float) -> bool:
    """Whether a job's hold in this partition has ended before its time, and the job can start."""
    return bool(holds.any_released(state.arrays, partition, now_s))


def next_hold_end_s(state: ClusterState, now_s: float) -> float:
    """When the next job that a *wait* keeps back may start: a decision point; infinite if there is none."""
    return float(holds.next_hold_end_s(state.arrays, now_s))


def contested(state: ClusterState, partition: int) -> bool:
    """Whether there is something to decide: not everything that waits can start at once."""
    return not placement.all_fit(state.arrays, partition)


def start_action(
    state: ClusterState, partition: int, seq: int, node: int = -1, *, can: Abilities = NO_ABILITIES
) -> Start:
    """Start a job that fits: on this node, or where the placement rule puts it (`node` -1).

    `can`: what chooses its clock and its cores.
    """
    arrays, slot = state.arrays, state.slot_of(seq)
    gpus = np.zeros(int(arrays.job.gpus[slot]), np.int32)
    host = int(choose(arrays, partition, slot, node, gpus))
    clock, cores = 1.0, -1
    if gpus.size and can.needed:
        clock = clock_of(state, partition, seq, gpus.tolist(), can)
        cores = int(cores_for(arrays, slot, gpus, can.code))
    return Start(
        seq=seq,
        gpus=tuple(int(g) for g in gpus),
        share_milli=int(arrays.job.share_milli[slot]),
        sm_clock_frac=clock,
        node=-1 if gpus.size else host,
        cpu_milli_each=cores,
    )


def clock_of(state: ClusterState, partition: int, seq: int, gpus: Sequence[int], can: Abilities) -> float:
    """SM clock of a job on these GPUs, of the maximum: 1 where somebody cannot set it on all of them."""
    if not gpus or not can_set_clocks(state, gpus):
        return 1.0
    kind = gpu_kind(state.arrays, gpus[0])
    return float(clock_for(state.arrays, partition, state.slot_of(seq), kind, can.code))


def can_set_clocks(state: ClusterState, gpus: Sequence[int]) -> bool:
    """Whether the SM clocks of all these GPUs can be set."""
    return not state.arrays.node.fixed_clock[state.arrays.gpu.node[list(gpus)]].any()


def reclock_action(state: ClusterState, partition: int, now_s: float, can: Abilities) -> SetClock | None:
    """The next running job of a partition whose clock is to change now; None where none is."""
    position, clock = next_reclock(state.arrays, partition, 0, now_s, can.code)
    if position < 0:
        return None
    slot = state.arrays.derived.slot.running[position]
    return SetClock(seq=int(state.arrays.job.seq[slot]), sm_clock_frac=float(clock))


def join_action(state: ClusterState, partition: int, seq: int, beside: int, can: Abilities) -> Start:
    """Start a job on all the GPUs of the running job `beside`."""
    arrays, slot, other = state.arrays, state.slot_of(seq), state.slot_of(beside)
    gpus = state.gpus_of(beside)
    kind = gpu_kind(arrays, gpus[0])
    return Start(
        seq=seq,
        gpus=tuple(gpus),
        share_milli=int(arrays.job.share_milli[slot]),
        sm_clock_frac=float(clock_for(arrays, partition, slot, kind, can.code)),
        beside=beside,
        cpu_milli_each=int(join_cores(arrays, slot, other, kind)),
    )


def variant_action(state: ClusterState, partition: int, seq: int, node: int = -1) -> Start:
    """Start a job that fits as a policy would: with models, at the reference's clock, with cores by need."""
    return start_action(state, partition, seq, node, can=policy_abilities(state))


def weighs_energy(state: ClusterState, seq: int) -> bool:
    """Whether a clock is chosen for a job: there are models, and energy counts."""
    if not state.arrays.config[0].modelled:
        return False
    own = int(state.arrays.job.energy_ppm[state.slot_of(seq)])
    return own > 0 if own >= 0 else state.energy_weight > 0.0


def policy_abilities(state: ClusterState) -> Abilities:
    """`abilities.policy_abilities` for Python."""
    modelled = int(state.arrays.config[0].modelled)
    if not modelled:
        return NO_ABILITIES
    if modelled == CLOCKS_ALONE:
        return Abilities(clock="weighed", clock_value=state.energy_weight)
    return Abilities(share="blocked", clock="weighed", clock_value=state.energy_weight, cores=True)


def first_in_order(state: ClusterState, partition: int, now_s: float) -> int:
    """Number of the first waiting job of the queue order that can start now, -1 if none can."""
    position = holds.first_startable(state.arrays, partition, now_s)
    return int(state.arrays.job.seq[state.queue(partition)[position]]) if position >= 0 else -1


def hold(state: ClusterState, window: Window, now_s: float) -> Wait:
    """*Wait*: the jobs of this window that fit are passed over from now on."""
    windows.note_wait(state.arrays, window.arrays, now_s)
    return Wait()
