"""Combines the outcomes of an evaluation into one report."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.objective import Objective
from rlsched.workload.load import crowded_vcs, offered_load
from rlsched_agents.evaluate.as_recorded import as_recorded
from rlsched_agents.evaluate.findings import PolicyUsed
from rlsched_agents.evaluate.metrics import Metrics, mean_over_seeds, schedule_metrics
from rlsched_agents.evaluate.modelled import Basis
from rlsched_agents.evaluate.pairs import compare
from rlsched_agents.evaluate.report import EvaluationReport
from rlsched_agents.evaluate.scoring import score
from rlsched_agents.evaluate.verdict import cautions_of, verdict_of
from rlsched_envs.sim.modelling import Models

if TYPE_CHECKING:
    from rlsched.cluster.spec import ClusterSpec
    from rlsched.decide.policies.policy import Policy
    from rlsched.workload.trace import Trace
    from rlsched_agents.evaluate.run import Outcome
    from rlsched_agents.evaluate.windows import MeasuredWindow
    from rlsched_envs.sim.job_table import JobTable

NAMED_JOBS = 5
"""Number of rejected jobs that are named for each reason."""


def build_report(
    trace: Trace,
    spec: ClusterSpec,
    window: MeasuredWindow,
    seeds: list[int],
    outcomes: list[Outcome],
    baseline: str | None = None,
    models: Models | None = None,
    prediction: str = "",
    *,
    scaled: bool = False,
    profiled: NDArray[np.bool_] | None = None,
    objective: Objective | None = None,
) -> EvaluationReport:
    """Combine the outcomes of an evaluation into a report.

    Args:
        trace: The whole trace.
        spec: The simulated cluster.
        window: Defines which jobs are measured.
        seeds: The requested seeds.
        outcomes: Outcomes of all policies, one per seed, or a single one for a policy that ignores the seed.
        baseline: The policy to compare with; None: the first policy.
        models: Models of speed and power of the runs; None: jobs ran as recorded in the trace.
        prediction: Predictor for jobs whose run time the trace does not predict.
        scaled: Whether the number of nodes of the simulated cluster differs from the number in its file.
        profiled: (J,) whether the workload of each job comes from a learnt profile; None: no profiles were
            given.
        objective: Defines the cost of a policy relative to the baseline; None: no costs are reported.

    Raises:
        InputError: the baseline is not among the policies.
    """
    first = outcomes[0].table
    basis = None if models is None else Basis(first.trace, spec, window.measured(first.trace), models)
    tables: dict[str, list[JobTable]] = {}
    metrics: dict[str, list[Metrics]] = {}
    chosen: dict[str, Policy] = {}
    for outcome in outcomes:
        measured = window.measured(outcome.table.trace)
        name = outcome.policy.name
        chosen[name] = outcome.policy
        tables.setdefault(name, []).append(outcome.table)
        metrics.setdefault(name, []).append(
            schedule_metrics(outcome.table, spec.num_gpus, measured, wall_s=outcome.wall_s, basis=basis)
        )
    against = baseline or next(iter(tables))
    if against not in tables:
        raise InputError(f"baseline {against!r} is not among the policies: {', '.join(tables)}")
    measured = window.measured(first.trace)
    jobs = first.trace.select(measured)
    load = offered_load(jobs, spec)
    made = EvaluationReport(
        trace=trace.name,
        cluster=spec.name,
        nodes=spec.num_nodes,
        gpus=spec.num_gpus,
        mig_slices=spec.num_slices,
        devices=spec.num_devices,
        load_frac=None if math.isnan(load) else load,
        seeds=seeds,
        policies={name: mean_over_seeds(runs) for name, runs in metrics.items()},
        settings={name: PolicyUsed(toml=one.toml, digest=one.digest) for name, one in chosen.items()},
        since_s=window.since_s if math.isfinite(window.since_s) else None,
        until_s=window.until_s if math.isfinite(window.until_s) else None,
        baseline=against,
        paired={
            name: compare(*paired_runs(runs, tables[against]), measured)
            for name, runs in tables.items()
            if name != against
        },
        scores={
            name: score(
                *paired_runs(runs, tables[against]),
                measured,
                objective,
                0.0 if models is None else models.energy_weight,
            )
            for name, runs in tables.items()
            if name != against and objective is not None
        },
        objective="" if objective is None else objective.toml,
        rejected_reasons=rejected_reasons(first, measured),
        models=models,
        profiled=None if profiled is None else int(np.count_nonzero(profiled[window.measured(trace)])),
        prediction=prediction,
        predicted_by=predicted_by(jobs, prediction, is_fed=any(one.is_fed for one in outcomes)),
        recorded=as_recorded(first.trace, measured, first.rejected, scaled=scaled),
        fed_truth=[name for name, policy in chosen.items() if policy.oracle],
        crowded_vcs=crowded_vcs(jobs, spec),
        currency="" if models is None or spec.energy is None else spec.energy.currency,
    )
    cautions = cautions_of(made)
    if spec.energy is not None and models is None:
        cautions.append(
            "The cluster file has [energy], but without --models energy, cost and carbon are unknown"
            + (", and the power limit does not apply." if spec.energy.is_limited else ".")
        )
    return msgspec.structs.replace(made, verdict=verdict_of(made), cautions=cautions)


def predicted_by(jobs: Trace, kind: str, *, is_fed: bool) -> str:
    """Return a sentence about where the predicted run times come from; "" if the predictor is not known.

    Args:
        jobs: The measured jobs, with the predictions that the trace contains.
        kind: Predictor for jobs whose run time the trace does not predict, one of
            `rlsched.workload.predict.kinds.KINDS`.
        is_fed: Whether a policy uses predictions.
    """
    if not kind:
        return ""
    if not is_fed:
        return "Predicted run times: none of these policies uses them."
    missing = int(np.count_nonzero(~np.isfinite(jobs.predicted_s)))
    if not missing:
        return "Predicted run times: the trace's own."
    if missing == len(jobs):
        return f"Predicted run times: {kind} (--prediction), from jobs that had ended before."
    return (
        f"Predicted run times: {kind} (--prediction) for {missing:,} of {len(jobs):,} jobs, the trace's own "
        "for the others."
    )


def paired_runs(ours: list[JobTable], theirs: list[JobTable]) -> tuple[list[JobTable], list[JobTable]]:
    """Pair the runs of two policies by seed. A single run is paired with each run of the other policy."""
    seeds = max(len(ours), len(theirs))
    return (ours * seeds if len(ours) == 1 else ours), (theirs * seeds if len(theirs) == 1 else theirs)


def rejected_reasons(table: JobTable, measured: NDArray[np.bool_]) -> dict[str, int]:
    """Return the number of measured jobs that can never run, by reason, the most frequent reason first."""
    jobs = np.flatnonzero(measured & table.rejected)
    return dict(Counter(str(table.reject_reason[job]) for job in jobs).most_common())


def rejected_lines(table: JobTable, measured: NDArray[np.bool_]) -> list[str]:
    """Return one line per reason why measured jobs can never run: count, reason, IDs of the first jobs."""
    jobs_of: dict[str, list[str]] = {}
    for job in np.flatnonzero(measured & table.rejected):
        jobs_of.setdefault(table.reject_reason[job], []).append(str(table.trace.job_id[job]))
    return [
        f"{len(jobs)} rejected: {reason} ({', '.join(jobs[:NAMED_JOBS])}"
        f"{', ...' if len(jobs) > NAMED_JOBS else ''})"
        for reason, jobs in jobs_of.items()
    ]
