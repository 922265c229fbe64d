"""`simulate`: replays a trace under several policies and returns the results as objects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.objective import Objective
from rlsched.terminal.progress import Progress
from rlsched.workload.load import offered_load
from rlsched.workload.predict.kinds import chosen_kind, kind_for
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.build import build_report, rejected_lines
from rlsched_agents.evaluate.jobs import MeasuredJobs
from rlsched_agents.evaluate.jobs_out import seed_stem, write_jobs
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.report import EvaluationReport, write_json
from rlsched_agents.evaluate.run import (
    Outcome,
    Task,
    distinct,
    load_policies,
    predictions_for,
    replay_tasks,
    run_tasks,
)
from rlsched_agents.evaluate.scoring import check_objective
from rlsched_agents.evaluate.windows import MeasuredWindow, scaled_cluster, window_of
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import read_node_events

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Chosen = str | Path | Policy
"""A policy, or a name or file that `Policy.of` accepts."""


class Run:
    """Results of one policy.

    Attributes:
        policy: The policy.
        seeds: Results of the measured jobs, by seed; one entry if the policy does not depend on the seed.
        metrics: Metrics, as means over the seeds.
    """

    def __init__(self, policy: Policy, seeds: dict[int, MeasuredJobs], metrics: Metrics) -> None:
        self.policy, self.seeds, self.metrics = policy, seeds, metrics

    @property
    def jobs(self) -> MeasuredJobs:
        """The results of the measured jobs in the run with the first seed."""
        return next(iter(self.seeds.values()))


class Runs(Mapping[str, Run]):
    """Results of several policies on the same jobs: a mapping from names to `Run`, in the order given.

    Attributes:
        trace: The whole trace.
        cluster: The simulated cluster, after scaling.
        window: Defines which jobs are measured.
        models: Models of speed and power; None: jobs ran as recorded in the trace.
        load_frac: Offered load of the measured jobs; None if undefined.
        prediction: Predictor for jobs whose run time the trace does not predict.
        scaled: Whether the number of nodes of the simulated cluster differs from the number in its
            description.
        profiled: (J,) whether the workload of each job comes from a learnt profile; None: no profiles were
            given.
        objective: Defines the cost of a policy relative to the baseline; None: no costs are reported.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: ClusterSpec,
        window: MeasuredWindow,
        seeds: Sequence[int],
        outcomes: list[Outcome],
        models: Models | None,
        prediction: str,
        *,
        scaled: bool = False,
        profiled: NDArray[np.bool_] | None = None,
        objective: Objective | None = None,
    ) -> None:
        self.profiled, self.objective = profiled, objective
        self.trace, self.cluster, self.window, self.models = trace, cluster, window, models
        self.prediction, self.scaled = prediction, scaled
        self._seeds, self._outcomes = list(seeds), outcomes

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @cached_property
    def _runs(self) -> dict[str, Run]:
        jobs: dict[str, dict[int, MeasuredJobs]] = {}
        policies: dict[str, Policy] = {}
        for one in self._outcomes:
            measured = self.window.measured(one.table.trace)
            policies[one.policy.name] = one.policy
            jobs.setdefault(one.policy.name, {})[one.seed] = MeasuredJobs(one.table, self.cluster, measured)
        metrics = self.compare().policies
        return {name: Run(policy, jobs[name], metrics[name]) for name, policy in policies.items()}

    def compare(self, baseline: str | None = None) -> EvaluationReport:
        """Compare each policy with the baseline on the same jobs. `print` shows the report as tables.

        Args:
            baseline: The policy to compare with; None: the first policy.

        Raises:
            InputError: the baseline is not among the policies.
        """
        if baseline not in self._reports:
            self._reports[baseline] = build_report(
                self.trace,
                self.cluster,
                self.window,
                self._seeds,
                self._outcomes,
                baseline,
                self.models,
                self.prediction,
                scaled=self.scaled,
                profiled=self.profiled,
                objective=self.objective,
            )
        return self._reports[baseline]

    @cached_property
    def _reports(self) -> dict[str | None, EvaluationReport]:
        return {}

    @property
    def load_frac(self) -> float | None:
        """Offered load of the measured jobs on the cluster; None if undefined."""
        load = offered_load(self.trace.select(self.window.measured(self.trace)), self.cluster)
        return None if math.isnan(load) else load

    @property
    def rejected(self) -> list[str]:
        """One line per reason why measured jobs can never run: count, reason, and IDs of the first jobs."""
        table = self._outcomes[0].table
        return rejected_lines(table, self.window.measured(table.trace))

    def to_json(self, path: str | Path, baseline: str | None = None) -> None:
        """Write the result of `compare` as JSON.

        Raises:
            InputError: the file cannot be written, or the baseline is not among the policies.
        """
        write_json(self.compare(baseline), path)

    def to_html(self, path: str | Path, baseline: str | None = None) -> None:
        """Write a page with plots: waits by job size, tails of waits, GPU use over time, gains and losses.

        Raises:
            InputError: the file cannot be written, or the baseline is not among the policies.
            ImportError: matplotlib is missing (`rlsched[report]`).
        """
        from rlsched_agents.evaluate.page import write_page

        write_page(self.compare(baseline), self._jobs(), Path(path))

    def plot(self) -> Figure:
        """Draw the comparison of the policies: `runs.plot().savefig("runs.png")`.

        Raises:
            ImportError: matplotlib is missing (`rlsched[report]`).
        """
        from rlsched_agents.evaluate.plot import plot

        return plot(self.compare(), self._jobs())

    def _jobs(self) -> dict[str, MeasuredJobs]:
        return {name: run.jobs for name, run in self.items()}

    def write_jobs(self, folder: str | Path) -> None:
        """Write CSV files of the jobs and the attempts of each policy and seed.

        The files of the first seed are `NAME.csv` and `NAME.segments.csv`, the files of other seeds
        `NAME.seedK.csv` and `NAME.seedK.segments.csv`.

        Raises:
            InputError: the folder is not writable.
        """
        for one in self._outcomes:
            stem = seed_stem(one.policy.name, one.seed, self._seeds)
            measured = self.window.measured(one.table.trace)
            write_jobs(one.table, self.cluster, measured, folder, stem)


def simulate(
    trace: Trace | str | Path,
    cluster: ClusterSpec | str | Path,
    policies: Chosen | Sequence[Chosen] | Mapping[str, Chosen],
    *,
    load: float | None = None,
    nodes: int | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
    seeds: Sequence[int] = (0,),
    models: Models | str | Path | None = None,
    profiles: str | Path | None = None,
    prediction: str | None = None,
    objective: Objective | str | Path | None = None,
    records: str | Path | None = None,
    logdir: str | Path | None = None,
    workers: int = 1,
    ray: str | None = None,
    progress: bool | None = None,
) -> Runs:
    """Replay a trace under several policies.

    Args:
        trace: The jobs, or their file.
        cluster: The cluster, or its file.
        policies: One policy, several policies, or a mapping from names of your choice to policies.
        load: Offered load to which the nodes of all virtual clusters are scaled; None: no scaling.
        nodes: Number of nodes to which the cluster is scaled; None: no scaling.
        since_s: Only jobs submitted at or after this second of the trace are measured; the replay starts 7
            days before it.
        until_s: Only jobs submitted before this second of the trace are measured.
        seeds: Seeds of the policies; results are means over the seeds.
        models: Models of speed and power, a models file, or "default"; None: jobs run as recorded in the
            trace.
        profiles: Directory or journal of a broker; requires models. A job runs as the workload that the
            broker has learnt from jobs of the same user and command line (`with_profiles`). Pairs of
            workloads have the speeds that the broker has observed.
        prediction: Predictor for jobs whose run time the trace does not predict: `hedge` or `running-mean`.
            None: `hedge` if the trace names users, jobs or commands, else `running-mean`.
        objective: Defines the cost of a policy relative to the baseline: a name
            (`rlsched.objective.PRESETS`) or a TOML file; None: no costs are reported.
        records: Folder that gets a store of decisions for each policy.
        logdir: Folder that gets a TensorBoard log of the decisions.
        workers: Number of processes for policies that are not compiled rules. With `ray`: number of tasks
            that run at the same time; 0: no limit.
        ray: Address of a Ray cluster that runs policies that are not compiled rules: `local`, `auto`,
            HOST:PORT or ray://HOST:PORT.
        progress: True: show progress on standard error, as bars on a terminal, otherwise as lines. None: show
            bars on a terminal only. False: show nothing.

    Raises:
        UnknownPolicyError: there is no such policy.
        CheckpointError: a policy's checkpoint cannot be used.
        InputError: a file cannot be read, arguments are in conflict, or predictions are needed and
            scikit-learn is missing.

    >>> runs = simulate("t.csv.gz", "c.toml", ["fifo", "qssf-backfill"], load=0.9)  # doctest: +SKIP
    >>> print(runs.compare(baseline="fifo"))  # doctest: +SKIP
    """
    sweep = _sweep(workers, ray)
    chosen = distinct(_named(policies))
    using = models_of(models)
    chosen_kind(prediction)
    wanted = None if objective is None else Objective.of(objective)
    if not (seeds := list(dict.fromkeys(seeds))):
        raise InputError("seeds: expected one or more seeds, got none")
    loaded = load_policies(chosen, using, seeds)
    if profiles is not None and using is None:
        raise InputError(
            "--profiles needs models, because it changes the workloads of jobs: give --models too"
        )
    trace = trace if isinstance(trace, Trace) else Trace.read(trace)
    profiled = None
    if profiles is not None and using is not None:
        from rlsched_agents.evaluate.profiled import with_profiles  # needs the broker's packages

        trace, profiled, pairs = with_profiles(trace, profiles)
        using = msgspec.structs.replace(using, pairs=(*pairs, *using.pairs))
    kind = kind_for(trace, prediction)
    described = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec.read(cluster)
    if wanted is not None:
        check_objective(wanted, described, using)
    window = window_of(trace, since_s, until_s)
    spec = scaled_cluster(trace, described, window, nodes=nodes, load=load)
    events = read_node_events(spec.node_events, spec) if spec.node_events else ()
    looked_at = using is not None or records is not None or logdir is not None
    with Progress(shown=progress is not False, lines=progress is True) as shown:
        if progress is True:
            names = ", ".join(one.name for one in chosen)
            shown.print_line(f"{trace.name}: {len(trace):,} jobs on {spec.num_gpus:,} GPUs, under {names}")
        bar = shown.begin("predicting run times")
        predictions = predictions_for(
            loaded,
            trace,
            spec,
            window,
            looked_at=looked_at,
            kind=kind,
            progress=lambda done: shown.update(bar, done),
        )
        tasks = replay_tasks(
            trace,
            spec,
            window,
            predictions,
            chosen,
            seeds,
            records=Path(records) if records else None,
            logdir=Path(logdir) if logdir else None,
            rules=RunRules(max_retries=spec.max_retries, node_events=events),
            models=using,
            loaded=loaded,
        )
        outcomes = _run(tasks, sweep, shown)
    return Runs(
        trace,
        spec,
        window,
        seeds,
        outcomes,
        using,
        kind,
        scaled=spec.nodes != described.nodes,
        profiled=profiled,
        objective=wanted,
    )


def _named(policies: Chosen | Sequence[Chosen] | Mapping[str, Chosen]) -> list[Policy]:
    if isinstance(policies, Mapping):
        return [Policy.of(one).named(name) for name, one in policies.items()]
    if isinstance(policies, str | Path | Policy):
        policies = [policies]
    made = [Policy.of(one) for one in policies]
    if not made:
        raise InputError("expected one or more policies, got none; `rlsched policies` lists all names")
    return made


def models_of(models: Models | str | Path | None) -> Models | None:
    """Return the models: as given, read from a file, or the default ones for "default"; None for None.

    Raises:
        InputError: the file cannot be read, or a setting is wrong.
    """
    if models is None:
        return None
    if isinstance(models, Models):
        models.check("models")
        return models
    return Models() if str(models) == "default" else Models.read(models)


def _sweep(workers: int, ray: str | None) -> Any:
    """Return the function that runs tasks: in processes of this machine, or on a Ray cluster.

    This function imports Ray, so that a missing Ray raises ImportError before the trace is read.
    """
    if ray is None:
        return partial(run_tasks, workers=max(workers, 1))
    from rlsched_agents.evaluate.ray_sweep import run_on_ray

    return partial(run_on_ray, address=ray, workers=workers or None)


def _run(tasks: list[Task], sweep: Any, progress: Progress) -> list[Outcome]:
    """Run the tasks, each with its own progress bar."""
    several = len({task.seed for task in tasks}) > 1
    bar_of = {
        (one.policy.name, one.seed): progress.begin(
            f"{one.policy.name} seed {one.seed}" if several else one.policy.name
        )
        for one in tasks
    }

    def show(policy: str, seed: int, done: float) -> None:
        progress.update(bar_of[policy, seed], done)

    outcomes: list[Outcome] = sweep(tasks, progress=show)
    return outcomes
