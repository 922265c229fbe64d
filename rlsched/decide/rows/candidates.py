"""The legal candidates of a decision: Python interface to `rows.windows` and `rows.variants`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster import placement
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.compiled import for_state
from rlsched.decide.plans import holds
from rlsched.decide.record import Half
from rlsched.decide.rows import arrays as window_arrays
from rlsched.decide.rows import variants, windows
from rlsched.decide.rows.reasons import LEGAL
from rlsched.decide.start import can_set_clocks, join_action, policy_start, start_action


@dataclass(frozen=True)
class CandidateRows:
    """The rows of one half of a decision; K rows are in use, padding is cut off.

    Attributes:
        kind: `job` (row 0 is *wait*, the others jobs) or `how` (each row a variant of one job).
        seqs: (K,) job numbers, -1 for *wait*.
        nodes: (K,) first node of the placement, -1 if there is none.
        reasons: (K,) reason codes of `rows.reasons`, LEGAL if the row may be taken.
        features: (K, F) float32, the actor's columns.
        reference: Row that the reference rule takes.
        arrays: The underlying buffers, padded to the full window.
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
        return self.reasons == LEGAL

    @property
    def passes_over(self) -> bool:
        """Whether a *wait* keeps back a job that could start."""
        rows = len(self.seqs)
        return bool((self.legal[1:] & (self.arrays.out[1:rows] < 0)).any())

    def action(self, state: ClusterState, partition: int, row: int) -> Start:
        """Return the start that a row of the second half describes.

        The placement rule chooses the place of a job with only one way to start, and of a gang that spans
        several nodes.
        """
        seq, partner = int(self.seqs[row]), int(self.arrays.partner[row])
        if partner >= 0:
            other = int(state.arrays.job.seq[partner])
            return join_action(state, partition, seq, other, policy_start(state))
        slot = state.slot_of(seq)
        one_way = len(self.seqs) == 1 or variants.has_one_way(state.arrays, partition, slot)
        node = -1 if one_way else int(self.nodes[row])
        start = variant_action(state, partition, seq, node)
        clock = float(self.arrays.clock[row]) if can_set_clocks(state, start.gpus) else 1.0
        return msgspec.structs.replace(start, sm_clock_frac=clock)

    def half(self, logits: NDArray[np.floating] | None, choice: int) -> Half:
        """Return this half in the form of a `DecisionRecord`."""
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


def job_candidates(state: ClusterState, partition: int, now_s: float) -> CandidateRows:
    """Return the first half: *wait* and the jobs of the partition's window."""
    arrays = window_arrays.fresh_window()
    for_state(windows.job_window, state)(state.arrays, partition, now_s, arrays)
    return _window("job", state, arrays)


def variant_candidates(state: ClusterState, partition: int, seq: int, now_s: float) -> CandidateRows:
    """Return the second half: the ways to start a job that fits this partition now."""
    arrays = window_arrays.fresh_window()
    slot = state.slot_of(seq)
    for_state(variants.variant_window, state)(state.arrays, partition, slot, now_s, arrays)
    return _window("how", state, arrays)


def _window(kind: str, state: ClusterState, arrays: window_arrays.WindowArrays) -> CandidateRows:
    rows, reference = int(arrays.info[0]), int(arrays.info[1])
    slots = arrays.slot[:rows]
    return CandidateRows(
        kind,
        np.where(slots >= 0, state.arrays.job.seq[slots], -1),
        arrays.node[:rows],
        arrays.reason[:rows],
        arrays.features[:rows],
        reference,
        arrays,
    )


def contested(state: ClusterState, partition: int) -> bool:
    """Return whether there is a choice: not all waiting jobs can start at once."""
    return not placement.all_fit(state.arrays, partition)


def variant_action(state: ClusterState, partition: int, seq: int, node: int = -1) -> Start:
    """Return the start that a policy would choose for a job that fits.

    With models, the job starts at the clock of the reference rule, with the cores that it needs.
    """
    return start_action(state, partition, seq, node, start=policy_start(state))


def weighs_energy(state: ClusterState, seq: int) -> bool:
    """Return whether a clock is chosen for a job: models exist, and energy has a weight."""
    if not state.needs.models:
        return False
    own = int(state.arrays.job.energy_ppm[state.slot_of(seq)])
    return own > 0 if own >= 0 else state.energy_weight > 0.0


def first_in_order(state: ClusterState, partition: int, now_s: float) -> int:
    """Return the number of the first waiting job in queue order that can start now, -1 if none can."""
    position = holds.first_startable(state.arrays, partition, now_s)
    return int(state.arrays.job.seq[state.queue(partition)[position]]) if position >= 0 else -1


def hold(state: ClusterState, window: CandidateRows, now_s: float) -> Wait:
    """Hold back the jobs of this window that fit, from now on, and return the *wait*."""
    windows.note_wait(state.arrays, window.arrays, now_s)
    return Wait()
