"""Compiled episodes in which the caller sets the dials (numbers that adjust how a rule weighs its actions).

The rule first runs the window with all dials at 0, for the reference costs. Then the window runs again, and
stops whenever the dials must be set.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records
from rlsched.compile.jit import kernel
from rlsched.compile.reference import by_reference
from rlsched.decide.constants import PRICED
from rlsched.decide.dials.turning import set_dials, turn_due
from rlsched.energy.relative import LEAST_RATIO
from rlsched.objective import LEAST, NUM_TERMS, PENALTY, Term
from rlsched_envs.sim.constants import DIALS_DUE
from rlsched_envs.sim.costs import terms_so_far
from rlsched_envs.sim.events import rewind
from rlsched_envs.sim.loop import Curve, run_rule
from rlsched_envs.sim.signals import PRICE
from rlsched_envs.sim.sim_arrays import SimArrays
from rlsched_envs.training import batch

BEGIN: Final = 0
STEP: Final = 1
LEAVE: Final = 2

ACCOUNT: Final = np.dtype(
    [
        ("at", np.int64),  # index of the latest instant up to now in the reference's cost curve
        ("cost", np.float64),  # excess cost compared with the reference, up to the last step
        ("terms", np.float64, (NUM_TERMS,)),  # results of `costs.terms_so_far` at the last step
        ("weight", np.float64, (NUM_TERMS,)),  # from `Objective.weights`; next two: `offsets`, `limits`
        ("offset", np.float64, (NUM_TERMS,)),
        ("limit", np.float64, (NUM_TERMS,)),
        ("penalty", np.float64, (NUM_TERMS,)),  # of each bound; -1: `PENALTY` x the excess over the bound
    ],
    align=True,
)
"""Costs of an episode, one entry per episode."""


@by_reference
class DialEpisode(NamedTuple):
    """Arrays of a batch of episodes. All have an entry per episode, except `quiet`, which is shared."""

    sim: SimArrays
    curve: Curve
    quiet: NDArray[np.int64]  # (1,) -1, used as `Curve.length` of runs that record no costs
    account: Records  # (1,) ACCOUNT


@kernel
def _play(sim: SimArrays, o: Any, curve: Curve) -> bool:
    """Run the window until dials must be set, then write the observations; return False if the run ends."""
    due = run_rule(sim, o, sim.truth.shape[0] + 1, curve) == DIALS_DUE
    if due:
        turn_due(sim.state, sim.progress.run[0].now_s)
    return due


@kernel
def _is_next(curve: Curve, at: int, now_s: float) -> bool:
    """Return whether point `at` + 1 of the reference's cost curve is before `now_s`, or the first at `now_s`.

    If several points are at exactly `now_s`, the later ones contain the cost of preemptions that were decided
    at this instant.
    """
    next_s = curve.instant.at_s[at + 1]
    return next_s < now_s or (next_s == now_s and curve.instant.at_s[at] < now_s)


@kernel
def _cost(sim: SimArrays, curve: Curve, account: Any, over: bool) -> float:
    """Return the cost up to now less the reference's, in per cent of the reference's total cost.

    The relative difference of a term of the objective (`rlsched.objective`) is (term - reference's term at
    the same time) / (reference's final term + offset). Each term adds 100 x weight x its relative difference
    to the result. A term with a bound also adds 100 x penalty x its relative difference. A penalty of -1
    means that there is no fixed penalty: the term then adds 100 x `PENALTY` x its excess over the bound.

    `over`: whether all jobs have ended. If not, and with prices of electricity, energy that the reference has
    used and the run has not is assumed to be used later. It is charged at the mean price of about a day.
    """
    now_s, length, at = sim.progress.run[0].now_s, curve.length[0], account.at
    while at + 1 < length and (over or _is_next(curve, at, now_s)):
        at += 1
    account.at = at
    latest, last, frac = curve.instant[at], curve.instant[length - 1], 0.0
    following = curve.instant[min(at + 1, length - 1)]
    if following.at_s > latest.at_s:
        frac = (now_s - latest.at_s) / (following.at_s - latest.at_s)
    terms_so_far(sim, account.terms)
    owed, relative, beyond = 0.0, 0.0, 0.0
    if PRICED and not over:
        before_j = latest.terms[Term.ENERGY] + frac * (
            following.terms[Term.ENERGY] - latest.terms[Term.ENERGY]
        )
        owed = _mean_price(sim) * (account.terms[Term.ENERGY] - before_j)
    for k in range(NUM_TERMS):
        weight, limit = account.weight[k], account.limit[k]
        if weight > 0.0 or limit < np.inf:
            more = account.terms[k] - (latest.terms[k] + frac * (following.terms[k] - latest.terms[k]))
            if k == Term.MONEY:
                more -= owed
            whole = max(last.terms[k] + account.offset[k], LEAST)
            relative += weight * more / whole
            if account.penalty[k] >= 0.0:
                beyond += account.penalty[k] * more / whole
            elif limit < np.inf:
                excess = max(more / whole - (limit - 1.0), 0.0) - max(1.0 - limit, 0.0)
                beyond += PENALTY * excess
    return 100.0 * (relative + beyond)


@kernel
def _mean_price(sim: SimArrays) -> float:
    """Return the mean price of about a day: the current price divided by the current price ratio."""
    x, now_s, ratio = sim.progress, sim.progress.run[0].now_s, sim.state.config[0].price_ratio
    k = min(int((now_s - x.books[0].grid_from_s) / x.books[0].grid_step_s), x.signal.shape[1] - 1)
    return x.signal[PRICE + 2, k] / max(ratio, LEAST_RATIO)


@kernel
def _begin(sim: SimArrays, o: Any, curve: Curve, quiet: NDArray[np.int64], account: Any) -> bool:
    """Run the window with all dials at 0 (the reference), then run it again until dials must be set.

    Return whether dials must be set. Also return False if the cost curve is too short for the reference.
    """
    rewind(sim)
    curve.length[0], account.at, account.cost = 0, 0, 0.0
    due = True
    while due:
        due = _play(sim, o, curve)
    if curve.length[0] <= 0:
        return False  # the curve has no room for all instants
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
    """Start, step or skip each of N episodes.

    Args:
        b: The episodes.
        o: Options of the rule.
        what: (N,) BEGIN, STEP or LEAVE (the episode stays unchanged).
        moved: (N, D) positions of the dials, for STEP.
        seen: (N, F), receives the observations.
        rewards: (N,), receives the rewards.
        dones: (N,), receives whether each episode has ended.
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
