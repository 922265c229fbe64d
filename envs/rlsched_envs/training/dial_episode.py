"""Compiled episodes in which the caller sets the dials, which adjust the prices of a rule.

The rule first runs the window with all dials at 0. The cost curve of this run is the reference. Then the
window runs again: whenever the dials are due, the run stops with an observation, and the caller gets the cost
so far and sets the dials.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records
from rlsched.compile.jit import kernel
from rlsched.compile.reference import by_reference
from rlsched.decide.dials.turning import set_dials, turn_due
from rlsched.decide.options import energy_weight
from rlsched_envs.sim.constants import DIALS_DUE
from rlsched_envs.sim.events import rewind
from rlsched_envs.sim.loop import Curve, run_rule
from rlsched_envs.sim.sim_arrays import SimArrays
from rlsched_envs.training import batch

BEGIN: Final = 0
STEP: Final = 1
LEAVE: Final = 2

ACCOUNT: Final = np.dtype(
    [
        ("at", np.int64),  # index of the reference run's latest instant
        ("work_s", np.float64),  # run times of all jobs, on unshared GPUs at full clock
        ("cost", np.float64),  # cost in excess of the reference's, up to the last step
    ],
    align=True,
)
"""Costs of an episode, one entry per episode."""


@by_reference
class DialEpisode(NamedTuple):
    """Arrays of a batch of episodes. The first axis is the episode, except for `quiet`."""

    sim: SimArrays
    curve: Curve
    quiet: NDArray[np.int64]  # (1,) -1: `length` of a curve that records nothing
    account: Records  # (1,) ACCOUNT


@kernel
def _play(sim: SimArrays, o: Any, curve: Curve) -> bool:
    """Advance until dials are due, and write the observation. Returns False at the end of the episode."""
    due = run_rule(sim, o, sim.truth.shape[0] + 1, curve) == DIALS_DUE
    if due:
        turn_due(sim.state, sim.progress.run[0].now_s)
    return due


@kernel
def _is_next(curve: Curve, at: int, now_s: float) -> bool:
    """Return whether the next point of the reference's curve counts in the cost up to `now_s`.

    Of the points at exactly `now_s`, only the first counts, because the others include preemptions that the
    decisions of this instant make.
    """
    next_s = curve.instant.at_s[at + 1]
    return next_s < now_s or (next_s == now_s and curve.instant.at_s[at] < now_s)


@kernel
def _cost(sim: SimArrays, curve: Curve, account: Any, over: bool) -> float:
    """Return the cost so far in excess of the reference's, in per cent of the reference's total cost.

    100 x ((1 - w) x time in excess / the reference's time in the system + w x energy in excess / the
    reference's energy); w: weight of energy. `over`: whether all jobs have ended; the costs of the complete
    reference run are then subtracted.
    """
    now_s, length, at = sim.progress.run[0].now_s, curve.length[0], account.at
    while at + 1 < length and (over or _is_next(curve, at, now_s)):
        at += 1
    account.at = at
    latest, last, books = curve.instant[at], curve.instant[length - 1], sim.progress.books[0]
    since_s = 0.0 if over else now_s - latest.at_s
    time_s = sim.progress.run[0].queued_s + books.lost_s - latest.cost_s - latest.slope * since_s
    energy_j = books.jobs_j - latest.energy_j - latest.power_w * since_s
    weight = energy_weight(sim.state)
    relative = (1.0 - weight) * time_s / max(last.cost_s + account.work_s, 1.0)
    return 100.0 * (relative + weight * energy_j / max(last.energy_j, 1.0))


@kernel
def _begin(sim: SimArrays, o: Any, curve: Curve, quiet: NDArray[np.int64], account: Any) -> bool:
    """Run the reference, then advance until dials are due for the first time; False if they never are."""
    rewind(sim)
    curve.length[0], account.at, account.cost, account.work_s = 0, 0, 0.0, 0.0
    for row in range(sim.truth.shape[0]):
        account.work_s += sim.truth.duration_s[row]
    due = True
    while due:
        due = _play(sim, o, curve)
    if curve.length[0] <= 0:
        return False  # no room for the whole curve
    rewind(sim)
    return _play(sim, o, Curve(curve.instant, quiet))


@kernel
def step_all(
    b: DialEpisode,
    o: Any,
    what: NDArray[np.int64],
    moved: NDArray[np.float64],
    seen: NDArray[np.float32],
    rewards: NDArray[np.float32],
    dones: NDArray[np.bool_],
) -> None:
    """Start, step or skip each of N episodes, with dial positions `moved` (N, D).

    `what`: (N,) BEGIN, STEP or LEAVE (unchanged).

    Writes the observations to `seen`, (N, F), and the results to `rewards` and `dones`, (N,).
    """
    for k in range(what.shape[0]):
        if what[k] == LEAVE:
            continue
        sim, account = batch.view_run(b.sim, k), b.account[k, 0]
        curve = Curve(b.curve.instant[k], b.curve.length[k])
        rewards[k] = 0.0
        if what[k] == BEGIN:
            dones[k] = not _begin(sim, o, curve, b.quiet, account)
        else:
            set_dials(sim.state, 0, moved[k])
            dones[k] = not _play(sim, o, Curve(curve.instant, b.quiet))
            cost = _cost(sim, curve, account, dones[k])
            rewards[k] = account.cost - cost
            account.cost = cost
        for column in range(seen.shape[1]):
            seen[k, column] = sim.state.dials.seen[0, column]
