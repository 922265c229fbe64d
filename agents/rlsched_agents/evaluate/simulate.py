"""`simulate`: replay a trace under several policies; what came of it as objects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.terminal.progress import Progress
from rlsched.workload.load import offered_load
from rlsched.workload.predict.kinds import chosen_kind, kind_for
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.build import build_report, rejected_lines
from rlsched_agents.evaluate.jobs import Jobs
from rlsched_agents.evaluate.jobs_out import seed_stem, write_jobs
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.report import Report, write_json
from rlsched_agents.evaluate.run import (
    Outcome,
    Task,
    check_policies,
    distinct,
    predictions_for,
    replay_tasks,
    run_tasks,
)
from rlsched_agents.evaluate.windows import Window, scaled_cluster, window_of
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import read_node_events

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Chosen = str | Path | Policy
"""A policy, or what `Policy.of` reads."""


class Run:
    """What came of one policy.

    Attributes:
        policy: Who decided.
        seeds: Jobs by the seed of the policy's draws; one alone where seeds do not matter.
        metrics: Means over the seeds.
    """

    def __init__(self, policy: Policy, seeds: dict[int, Jobs], metrics: Metrics) -> None:
        self.policy, self.seeds, self.metrics = policy, seeds, metrics

    @property
    def jobs(self) -> Jobs:
        """The jobs, under the first seed."""
        return next(iter(self.seeds.values()))


class Runs(Mapping[str, Run]):
    """What came of several policies on the same jobs, by name, in the order asked for.

    Attributes:
        trace: The whole trace.
        cluster: What was replayed on, after scaling.
        window: Which jobs are measured.
        models: How fast jobs ran and what they drew; None: as the trace says.
        load_frac: Offered load of the measured jobs, None where there is none.
        prediction: Who predicted the run times that the trace does not.
        scaled: Whether the cluster has other nodes than was described.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: ClusterSpec,
        window: Window,
        seeds: Sequence[int],
        outcomes: list[Outcome],
        models: Models | None,
        prediction: str,
        *,
        scaled: bool = False,
    ) -> None:
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
        jobs: dict[str, dict[int, Jobs]] = {}
        policies: dict[str, Policy] = {}
        for one in self._outcomes:
            measured = self.window.measured(one.table.trace)
            policies[one.policy.name] = one.policy
            jobs.setdefault(one.policy.name, {})[one.seed] = Jobs(one.table, self.cluster, measured)
        metrics = self.compare().policies
        return {name: Run(policy, jobs[name], metrics[name]) for name, policy in policies.items()}

    def compare(self, baseline: str | None = None) -> Report:
        """All numbers, and every policy against one of them on the same jobs; `print` shows tables.

        Args:
            baseline: The policy to compare with; None: the first.

        Raises:
            InputError: it is not among the policies.
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
            )
        return self._reports[baseline]

    @cached_property
    def _reports(self) -> dict[str | None, Report]:
        return {}

    @property
    def load_frac(self) -> float | None:
        """Offered load of the measured jobs on the cluster; None where there is none."""
        load = offered_load(self.trace.select(self.window.measured(self.trace)), self.cluster)
        return None if math.isnan(load) else load

    @property
    def rejected(self) -> list[str]:
        """One line a reason: how many measured jobs can never run, why, and the first of them by name."""
        table = self._outcomes[0].table
        return rejected_lines(table, self.window.measured(table.trace))

    def to_json(self, path: str | Path, baseline: str | None = None) -> None:
        """Write what `compare` gives as JSON.

        Raises:
            InputError: the file cannot be written, or the baseline is not among the policies.
        """
        write_json(self.compare(baseline), path)

    def to_html(self, path: str | Path, baseline: str | None = None) -> None:
        """Write a page with plots: waiting by size, tails, utilisation over time, who gained and who lost.

        Raises:
            InputError: the file cannot be written, or the baseline is not among the policies.
            ImportError: matplotlib is missing (`rlsched[report]`).
        """
        from rlsched_agents.evaluate.page import write_page

        write_page(self.compare(baseline), self._jobs(), Path(path))

    def plot(self) -> Figure:
        """Draw how the policies compare: `runs.plot().savefig("runs.png")`.

        Raises:
            ImportError: matplotlib is missing (`rlsched[report]`).
        """
        from rlsched_agents.evaluate.plot import plot

        return plot(self.compare(), self._jobs())

    def _jobs(self) -> dict[str, Jobs]:
        return {name: run.jobs for name, run in self.items()}

    def write_jobs(self, folder: str | Path) -> None:
        """Write the jobs of every policy and seed: `NAME.csv`, `NAME.segments.csv`, `NAME.seedK.csv`.

        Raises:
            InputError: the folder cannot be written to.
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
    prediction: str | None = None,
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
        policies: Who decides: one, several, or several by a name of your own.
        load: Scale the nodes of every virtual cluster to this offered load.
        nodes: So many nodes instead of the cluster's own.
        since_s: Measure jobs submitted from here on, seconds of the trace; the replay starts 7 days earlier.
        until_s: Measure jobs submitted before this.
        seeds: Seeds of the policies' draws; numbers are means over them.
        models: How fast jobs run and what they draw, or a models file, or "default"; None: jobs run as the
            trace says.
        prediction: Who predicts run times that the trace does not: `hedge` or `running-mean`; None: the hedge
            where the trace names users, jobs or commands. What it says of a trace is kept in the user's cache
            folder.
        records: Folder for a store of decisions of each policy.
        logdir: Folder for the decisions, for TensorBoard.
        workers: Processes to run policies in that are no compiled rules; with `ray`, tasks at once (0: all).
        ray: Run these on a Ray cluster: `local`, `auto`, HOST:PORT or ray://HOST:PORT.
        progress: Whether to say on standard error how far it is: by bars where that is a terminal, and by a
            line now and then elsewhere; None: by bars alone.

    Raises:
        UnknownPolicyError: there is no such policy.
        CheckpointError: a policy's checkpoint cannot be used.
        InputError: a file cannot be read, something does not go together, or predictions are needed and
            scikit-learn is missing.

    >>> runs = simulate("t.csv.gz", "c.toml", ["fifo", "qssf-backfill"], load=0.9)  # doctest: +SKIP
    >>> print(runs.compare(baseline="fifo"))  # doctest: +SKIP
    """
    sweep = _sweep(workers, ray)
    chosen = distinct(_named(policies))
    using = models_of(models)
    chosen_kind(prediction)
    check_policies(chosen, using)
    trace = trace if isinstance(trace, Trace) else Trace.read(trace)
    kind = kind_for(trace, prediction)
    described = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec.read(cluster)
    window = window_of(trace, since_s, until_s)
    spec = scaled_cluster(trace, described, window, nodes=nodes, load=load)
    events = read_node_events(spec.node_events, spec) if spec.node_events else ()
    seeds = list(dict.fromkeys(seeds))
    looked_at = using is not None or records is not None or logdir is not None
    with Progress(shown=progress is not False, lines=progress is True) as shown:
        if progress is True:
            names = ", ".join(one.name for one in chosen)
            shown.say(f"{trace.name}: {len(trace):,} jobs on {spec.num_gpus:,} GPUs, under {names}")
        bar = shown.begin("predicting run times")
        predictions = predictions_for(
            chosen,
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
        )
        outcomes = _run(tasks, sweep, shown)
    return Runs(trace, spec, window, seeds, outcomes, using, kind, scaled=spec.nodes != described.nodes)


def _named(policies: Chosen | Sequence[Chosen] | Mapping[str, Chosen]) -> list[Policy]:
    if isinstance(policies, Mapping):
        return [Policy.of(one).named(name) for name, one in policies.items()]
    if isinstance(policies, str | Path | Policy):
        policies = [policies]
    made = [Policy.of(one) for one in policies]
    if not made:
        raise InputError("expected a policy or more, got none; `rlsched policies` lists those with a name")
    return made


def models_of(models: Models | str | Path | None) -> Models | None:
    """Models from what a person writes for them: a file, "default", or None for none.

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
    """What runs tasks. Asked for first: where Ray is missing, that is said before a long read."""
    if ray is None:
        return partial(run_tasks, workers=max(workers, 1))
    from rlsched_agents.evaluate.ray_sweep import run_on_ray

    return partial(run_on_ray, address=ray, workers=workers or None)


def _run(tasks: list[Task], sweep: Any, progress: Progress) -> list[Outcome]:
    """Run the tasks, each under a bar of its own."""
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
