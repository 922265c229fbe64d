"""What is counted between two settings of the dials, compiled: arrivals over time, and how predictions do.

Simulator and broker call these where a job comes and where it ends.
"""

from __future__ import annotations

import math
from typing import Final

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.dials import NOBODY, SPANS_S
from rlsched.jit import kernel

EVERY_S: Final = 600.0
EVERY_ARRIVALS: Final = 32
"""Dials are held for so long, or for so many arrivals."""
REMEMBERED_ENDS: Final = 200.0
"""How predictions do is told by about so many of the last ends."""
_SPANS: Final = len(SPANS_S)


@kernel
def partition_of(s: StateArrays, slot: int) -> int:
    """The partition that a job counts for: its VC's own, where there is one."""
    own = s.job.own_partition[slot]
    return own if own >= 0 else s.job.shared_partition[slot]


@kernel
def reset_dials(s: StateArrays) -> None:
    """All dials to 0, nothing counted."""
    for p in range(s.dials.dial.shape[0]):
        d, c = s.dials.dial[p], s.dials.counted[p]
        d.gate_pair = d.gate_more = d.by_length = d.by_left = 0.0
        d.gpu_price = d.margin = d.must_stay = d.patience = d.type_price = d.next_s = 0.0
        d.due = d.arrivals = 0
        for k in range(_SPANS):
            c.jobs[k] = c.gpu_s[k] = 0.0
        c.noted_s = c.first_s = c.ended = c.said = c.took = 0.0
        c.said_square = c.took_square = c.said_took = 0.0


@kernel
def fade(s: StateArrays, p: int, now_s: float) -> None:
    """Bring the counts of arrivals in partition `p` up to now."""
    c = s.dials.counted[p]
    for k in range(_SPANS):
        left = math.exp(-(now_s - c.noted_s) / SPANS_S[k])
        c.jobs[k] *= left
        c.gpu_s[k] *= left
    c.noted_s = now_s


@kernel
def note_arrival(s: StateArrays, slot: int, now_s: float) -> None:
    """A job has come."""
    if s.dials.who[0] == NOBODY:
        return
    p = partition_of(s, slot)
    c = s.dials.counted[p]
    if c.noted_s == 0.0 and c.jobs[_SPANS - 1] == 0.0:
        c.first_s = c.noted_s = now_s
    fade(s, p, now_s)
    work_gpu_s = s.job.predicted_s[slot] * max(s.job.gpus[slot], 1) * s.job.share_milli[slot] / 1000.0
    for k in range(_SPANS):
        c.jobs[k] += 1.0
        c.gpu_s[k] += work_gpu_s
    s.dials.dial[p].arrivals += 1
    _look_whether_due(s, p, now_s)


@kernel
def note_end(s: StateArrays, slot: int, run_s: float, now_s: float) -> None:
    """A job has ended that ran so long, its earlier attempts too."""
    if s.dials.who[0] == NOBODY:
        return
    p = partition_of(s, slot)
    c, left = s.dials.counted[p], 1.0 - 1.0 / REMEMBERED_ENDS
    said, took = math.log(max(s.job.predicted_s[slot], 1.0)), math.log(max(run_s, 1.0))
    c.ended = c.ended * left + 1.0
    c.said = c.said * left + said
    c.took = c.took * left + took
    c.said_square = c.said_square * left + said * said
    c.took_square = c.took_square * left + took * took
    c.said_took = c.said_took * left + said * took
    _look_whether_due(s, p, now_s)


@kernel
def _look_whether_due(s: StateArrays, p: int, now_s: float) -> None:
    d = s.dials.dial[p]
    if d.arrivals >= EVERY_ARRIVALS or now_s >= d.next_s:
        d.due = 1
