"""Cost of a policy relative to the baseline, as defined by an objective (`rlsched.objective`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.objective import NUM_TERMS, TERMS, Jobs, Objective, Term, cost, ratios
from rlsched.workload.trace import flags, slack_s
from rlsched_agents.evaluate.metrics import jct_s
from rlsched_agents.evaluate.pairs import Ratio, bounds_of, days, draws_of_days, ended_in_all
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.engine import run_time_s

if TYPE_CHECKING:
    from rlsched.cluster.spec import ClusterSpec
    from rlsched_envs.sim.job_table import JobTable
    from rlsched_envs.sim.modelling import Models

Floats = NDArray[np.float64]


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a policy relative to the baseline.

    Attributes:
        cost: Weighted mean of the terms' ratios (policy / baseline), without penalties for exceeded bounds.
            Below 1 is better.
        terms: These ratios by name of the term, for the terms that have a weight or a bound.
        bounds: Upper bounds of ratios, by the name of the term.
    """

    cost: Ratio
    terms: dict[str, Ratio]
    bounds: dict[str, float]

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Names of the terms whose ratios exceed their bounds."""
        return tuple(name for name, bound in self.bounds.items() if self.terms[name].ratio > bound)


def check_objective(objective: Objective, spec: ClusterSpec, models: Models | None) -> None:
    """Check that replays can measure all terms of an objective that have a weight or a bound.

    Raises:
        InputError: a term needs models, or a price or carbon intensity of the cluster.
    """
    modelled = ("energy", "money", "carbon", "peak", "wake_ups")
    needed = [name for name in modelled if objective.counts(name)]
    if needed and models is None:
        raise InputError(
            f"--objective: {', '.join(needed)} can be measured only with models of power; give --models too"
        )
    for name, known in (("money", "price"), ("carbon", "carbon")):
        if objective.counts(name) and (spec.energy is None or not getattr(spec.energy, known)):
            raise InputError(
                f"--objective: {name}: expected {known} in [energy] of the cluster file of {spec.name}, got "
                "none; add it, or use another objective"
            )


def score(
    ours: Sequence[JobTable],
    baseline: Sequence[JobTable],
    measured: NDArray[np.bool_],
    objective: Objective,
    energy_weight: float,
) -> Score:
    """Return the cost of a policy relative to the baseline, from replays of the same jobs.

    The terms cover the jobs that ended in all replays, and do not include idle power. Only the terms `peak`
    and `wake_ups` cover the whole replay. The confidence intervals are from a bootstrap over days of
    submissions, as in `pairs.compare`.

    Args:
        ours: Replays of the policy, one per seed.
        baseline: Replays of the baseline, one per seed.
        measured: (J,) whether each job is measured.
        objective: The objective, checked with `check_objective`.
        energy_weight: `Models.energy_weight`, which the default objective uses.
    """
    both = np.flatnonzero(ended_in_all([*ours, *baseline], measured))
    block = days(ours[0].trace.submit_s[both])
    offsets = objective.offsets_by_job(_jobs(ours[0], both))
    sides = [
        np.sum([_by_job(one, both, objective) + offsets for one in side], axis=0) for side in (ours, baseline)
    ]
    runs = [np.sum([_of_run(one) for one in side], axis=0) for side in (ours, baseline)]
    blocks = int(block[-1]) + 1 if block.size else 0
    sums = [np.array([np.bincount(block, row, blocks) for row in side]) for side in sides]
    drawn = draws_of_days(blocks).astype(np.float64)
    weights = objective.weights(energy_weight, has_prices=_has_prices(ours[0]))[None]
    ratio = _ratios(np.ones((1, blocks)), sums, runs)
    ratios_drawn = _ratios(drawn, sums, runs)
    limits = objective.limits
    no_penalty = np.zeros(NUM_TERMS)
    whole, of_draws = (cost(one, weights, limits, no_penalty) for one in (ratio, ratios_drawn))
    terms = {
        objective.name_of(name): _ratio(float(ratio[0, k]), ratios_drawn[:, k])
        for k, name in enumerate(TERMS)
        if name in objective.shown or (objective.is_default and weights[0, k] > 0.0)
    }
    bounds = {
        objective.name_of(name): float(limits[k]) for k, name in enumerate(TERMS) if np.isfinite(limits[k])
    }
    return Score(cost=_ratio(float(whole[0]), of_draws), terms=terms, bounds=bounds)


def _ratio(value: float, drawn: Floats) -> Ratio:
    return Ratio(value, *bounds_of(drawn))


def _ratios(drawn: Floats, sums: list[Floats], runs: list[Floats]) -> Floats:
    """Return the (D, NUM_TERMS) ratios of the policy to the baseline in D bootstrap draws.

    Args:
        drawn: (D, B) how often each draw has each block (day of submissions).
        sums: Terms of the policy, and of the baseline, each (NUM_TERMS, B), summed over the jobs of a block.
        runs: Terms of whole runs of the policy, and of the baseline, each (NUM_TERMS,).
    """
    mine, theirs = (drawn @ side.T + run for side, run in zip(sums, runs, strict=True))
    return ratios(mine, theirs, np.zeros(NUM_TERMS))


def _jobs(table: JobTable, which: NDArray[np.intp]) -> Jobs:
    """Return the properties of jobs that an objective uses. `which`: indices of the jobs.

    If a job has no predicted run time, its run time takes the place of the prediction.
    """
    trace, run_s = table.trace, run_time_s(table.trace)[which]
    predicted_s = trace.predicted_s[which]
    declared = flags(trace, "preemptible")[which] == 1
    return Jobs(
        gpus=trace.num_gpus[which],
        run_s=run_s,
        predicted_s=np.where(np.isfinite(predicted_s), predicted_s, run_s),
        slack_s=slack_s(trace)[which],
        preemptible=declared | (table.spec.preemptible == "all"),
        vc=np.asarray(trace.vc[which], np.str_),
    )


def _by_job(table: JobTable, which: NDArray[np.intp], objective: Objective) -> Floats:
    """Return how much each job adds to each term of the objective, (NUM_TERMS, J)."""
    jobs = _jobs(table, which)
    found = objective.terms_by_job(jobs, jct_s(table)[which] - jobs.run_s)
    attempts = table.attempts
    stopped = attempts.job[attempts.reason == PREEMPTED]
    found[Term.PREEMPTIONS] = np.bincount(stopped, minlength=len(table.trace))[which]
    if table.energy is not None:
        found[Term.ENERGY] = table.energy.job_j[which]
        bill = table.energy.carbon if objective.counts("carbon") else table.energy.cost
        found[Term.MONEY] = 0.0 if bill is None else bill.jobs[which]
    return found


def _of_run(table: JobTable) -> Floats:
    """Return the (NUM_TERMS,) terms that measure a whole run; 0 for terms that are sums over jobs.

    The term `wake_ups` is the number of woken nodes plus the number of nodes. The added constant (as in
    `Objective.offsets`) keeps a ratio of two small numbers near 1.
    """
    found = np.zeros(NUM_TERMS)
    found[Term.PEAK] = 0.0 if table.energy is None else table.energy.peak_w
    found[Term.WAKE_UPS] = table.spec.num_nodes + (0 if table.slept is None else table.slept.nodes_booted)
    return found


def _has_prices(table: JobTable) -> bool:
    return table.energy is not None and table.energy.cost is not None
