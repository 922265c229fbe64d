"""Runs windows (parts of traces) on small clusters, by a rule whose dials the caller or a strategy sets.

A window has the same jobs, predictions and random draws in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, records
from rlsched.cluster.dials import NETWORK, OUTSIDE
from rlsched.compile.jit import kernel
from rlsched.decide.dials.strategy import dial_arrays
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rules.steps import CompiledRule
from rlsched.energy.series import HOUR_S
from rlsched.errors import InputError
from rlsched.objective import DEFAULT, NUM_TERMS, Jobs, Objective, Term
from rlsched_envs.sim.constants import FINISHED
from rlsched_envs.sim.costs import terms_so_far
from rlsched_envs.sim.events import rewind
from rlsched_envs.sim.loop import NO_CURVE, Curve, for_run, run_rule
from rlsched_envs.sim.signals import rows_of
from rlsched_envs.sim.sim_arrays import SimArrays
from rlsched_envs.training import batch
from rlsched_envs.training.small_clusters import (
    blank_run,
    class_numbers,
    gang_sizes,
    load_window,
    node_size,
    set_models,
)
from rlsched_envs.training.sources import (
    LONG_SLACK_S,
    SHORT_JOB_S,
    SHORT_SLACK_S,
    Drawn,
    EpisodeJobs,
    EpisodeSource,
    draw_window,
)
from rlsched_envs.training.tariffs import HORIZON_H, Tariff

COST: Final = np.dtype(
    [
        ("delay_s", np.float64),  # sum over the jobs of JCT less run time on unshared GPUs at full clock,
        # less slack (the delay that the user accepts), job-seconds
        ("energy_j", np.float64),  # energy of the jobs, J
        ("money", np.float64),  # cost of this energy and of the idle power of nodes that run a job,
        # J x price; without prices: as `energy_j`
        ("late", np.int64),  # number of jobs with slack that are delayed by more than slack + `LATE_S`; this
        # and the next field: 0 if neither prices nor the objective need them
        ("urgent_s", np.float64),  # sum of JCT less run time over the jobs without slack, job-seconds
        ("terms", np.float64, (NUM_TERMS,)),  # all terms, by `rlsched.objective.TERMS`
        ("over", np.int64),  # 1: all jobs have ended
    ]
)
"""Fields of the result of one run of a window."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A window of jobs, and the conditions under which it runs.

    Attributes:
        source: Name of the trace.
        group: Name of the trace and of the part in which the window starts (with prices: tariff and quarter).
            Windows of a group can have jobs or prices in common.
        window: The jobs.
        kinds: Indices in `GPU_TYPES`: node n has the type `kinds[n % len(kinds)]`.
        energy_weight: Weight of energy relative to time, 0 to 1.
        preemptible_frac: Fraction of the jobs without slack that may be preempted.
        restart_s: Restart cost of a preempted job, seconds.
        key: Key of the random draws.
        slack_frac: Fraction of the jobs that have slack (a delay that the user accepts).
        tariff: Prices of electricity; None: the window has no prices.
        day: Day of the tariff on which the window begins.
    """

    source: str
    group: str
    window: EpisodeJobs
    kinds: tuple[int, ...]
    energy_weight: float
    preemptible_frac: float
    restart_s: float
    key: int
    slack_frac: float = 0.0
    tariff: Tariff | None = None
    day: int = 0

    @property
    def work_s(self) -> float:
        """Sum of the run times of the window's jobs on unshared GPUs at full clock, job-seconds."""
        return float(self.window.duration_s.sum())


def draw_setting(source: EpisodeSource, drawn: Drawn, rng: np.random.Generator) -> Setting:
    """Draw a window of a source, and the conditions under which it runs."""
    window = draw_window(source, drawn, rng)
    kinds = (int(rng.choice(drawn.kinds)),)
    if drawn.mixed_frac > 0.0 and rng.random() < drawn.mixed_frac:
        kinds = tuple(rng.permutation(drawn.kinds).tolist())
    group, priced = f"{source.name}/{window.first // drawn.jobs}", dict[str, Any]()
    if drawn.has_prices:
        if not source.tariffs:
            raise InputError(
                f"{source.name}: windows of jobs with slack need prices of electricity; call with_prices"
            )
        tariff = source.tariffs[int(rng.integers(len(source.tariffs)))]
        day = tariff.draw_day(float(window.submit_s[-1]), rng)
        group = f"{source.name}/{tariff.name}/{tariff.quarter(day)}"
        priced = {"slack_frac": float(rng.choice(drawn.slack_fracs)), "tariff": tariff, "day": day}
    return Setting(
        source=source.name,
        group=group,
        window=window,
        kinds=kinds,
        energy_weight=float(rng.choice(drawn.energy_weights)),
        preemptible_frac=float(rng.choice(drawn.preemptible_fracs)),
        restart_s=float(np.exp(rng.uniform(np.log(drawn.restart_low_s), np.log(drawn.restart_high_s)))),
        key=int(rng.integers(2**62)),
        **priced,
    )


class DialledRuns:
    """A batch of runs under a rule with dials.

    Args:
        count: Number of runs.
        sources: Sources of the windows.
        drawn: How the windows are drawn.
        policy: The policy whose settings define the rule. The rule preempts only jobs that may be preempted.
        assumed_scale: Factor for figures of the catalogue that are assumed, not measured.
        outside: Whether the caller sets the dials. If not, a network sets them.
        objective: Defines the cost of a run.

    Attributes:
        batch: The runs.
        rule: The rule.
        objective: Defines the cost of a run.
        offsets: (N, NUM_TERMS) from `Objective.offsets`.
        weights: (N, NUM_TERMS) from `Objective.weights`.

    Raises:
        InputError: the objective needs prices, and the windows have none.
    """

    def __init__(
        self,
        count: int,
        sources: Sequence[EpisodeSource],
        drawn: Drawn,
        policy: Policy,
        *,
        assumed_scale: float = 1.0,
        outside: bool = False,
        objective: Objective | None = None,
    ) -> None:
        self.objective = objective or DEFAULT
        if not drawn.has_prices and self.objective.needs_signal:
            needed = ", ".join(self.objective.needs_signal)
            raise InputError(
                f"objective: needs windows with prices of electricity for {needed}; give --signal FILE, or "
                "--signal flat for constant prices"
            )
        self.offsets, self.weights = (np.zeros((count, NUM_TERMS)) for _ in range(2))
        rule, size = policy.rule, node_size(sources)
        gangs = gang_sizes(sources, drawn)
        one = blank_run(drawn, size, gangs, _indexed(rule), modelled=True, assumed_scale=assumed_scale)
        dials = dial_arrays(1, OUTSIDE if outside else NETWORK, [np.zeros((0, 0))])
        one = one._replace(state=one.state._replace(dials=dials))
        if drawn.has_prices:
            one.progress.books.grid_step_s = HOUR_S
            one.progress.books.unused_sleep = 1.0
            signal = np.zeros((rows_of(rule.options.start.price.asked), HORIZON_H + 1))
            used = np.zeros(one.state.node.shape[0], np.int8)
            one = one._replace(progress=one.progress._replace(signal=signal, used=used))
        one.progress.books.by_job = self.objective.by_job or drawn.has_prices
        one.progress.books.tail_after_s = self.objective.tail_after
        self.batch: SimArrays = batch.stack_run(one, count)
        self.rule: CompiledRule = rule
        self._class_of = class_numbers(gangs)
        steps = rule.steps.with_dials()
        self._steps = steps.with_price() if drawn.has_prices else steps

    def compiled(self, template: Any, *, records: bool) -> Any:
        """Return a kernel compiled for these runs. `records`: whether it records cost curves."""
        return for_run(template, self._steps, logged=False, modelled=True, records=records)

    def load(self, k: int, setting: Setting) -> None:
        """Load a window and its conditions into run `k`."""
        truth = self.batch.truth
        load_window(self.batch, k, setting.window, self._class_of)
        set_models(self.batch, k, True, setting.kinds, setting.energy_weight, setting.key)
        truth.reference_kind[k] = setting.kinds[0] if len(setting.kinds) > 1 else -1
        self.follow(k, self.rule, preempts=setting.preemptible_frac > 0.0)
        chance = np.random.default_rng(setting.key).random(truth.pinned.shape[1])
        truth.pinned[k] = chance >= setting.preemptible_frac
        if setting.tariff is not None:
            slack_s = np.where(setting.window.predicted_s < SHORT_JOB_S, SHORT_SLACK_S, LONG_SLACK_S)
            other = np.random.default_rng([setting.key, 1]).random(slack_s.size)
            truth.slack_s[k] = np.where(other < setting.slack_frac, slack_s, 0.0)
            truth.pinned[k] &= truth.slack_s[k] == 0.0
            asked = self.rule.options.start.price.asked
            self.batch.progress.signal[k] = setting.tariff.signal(setting.day, asked)
        else:  # an earlier window of this run can have had prices
            truth.slack_s[k], self.batch.progress.signal[k] = 0.0, 0.0
        self.batch.progress.run.restart_s[k, 0] = setting.restart_s
        row, window, objective = truth[k], setting.window, self.objective
        jobs = Jobs(
            gpus=window.gpus,
            run_s=window.duration_s,
            predicted_s=window.predicted_s,
            slack_s=np.array(row.slack_s),
            preemptible=row.pinned == 0,
            vc=window.vc,
        )
        truth.weight[k] = objective.job_weights(jobs)
        self.offsets[k] = objective.offsets(jobs, window.nodes)
        self.weights[k] = objective.weights(setting.energy_weight, has_prices=setting.tariff is not None)

    def follow(self, k: int, rule: CompiledRule, *, preempts: bool) -> None:
        """Set the queue order, preemption and reservations of run `k` as a rule needs them.

        The rule must have the same functions (`Steps`) as the rule of the batch. `preempts`: whether the rule
        may preempt jobs in this run.
        """
        state = self.batch.state
        order = _indexed(rule) if preempts else msgspec.structs.replace(rule.order, until_declared=False)
        order.write(state.order.code[k])
        state.config.preempts[k, 0] = preempts
        state.config.reserve_after_s[k, 0] = np.inf if preempts else rule.options.reserve_after_s


def _indexed(rule: CompiledRule) -> Order:
    """Return a rule's queue order, with the Gittins index as key; runs with preemption need this order."""
    return msgspec.structs.replace(rule.order, until_declared=False, by="index")


@kernel
def run_windows(b: SimArrays, o: Any, which: NDArray[np.int64], cost: Any, curve: Curve) -> None:
    """Run n runs of a batch, with the indices `which`, from their start. Write the n results to `cost`."""
    for at in range(which.shape[0]):
        sim = batch.view_run(b, which[at])
        rewind(sim)
        status = run_rule(sim, o, sim.truth.shape[0] + 1, curve)
        terms = cost[at].terms
        terms_so_far(sim, terms)
        cost.delay_s[at], cost.energy_j[at], cost.money[at] = (
            terms[Term.TIME],
            terms[Term.ENERGY],
            terms[Term.MONEY],
        )
        cost.late[at], cost.urgent_s[at] = terms[Term.LATE], terms[Term.URGENT]
        cost.over[at] = status == FINISHED


@dataclass(frozen=True)
class WindowInputs:
    """Arguments with which a `Windows` object was created, so that another process can load its windows."""

    settings: tuple[Setting, ...]
    sources: Sequence[EpisodeSource]
    drawn: Drawn
    policy: Policy
    assumed_scale: float
    objective: Objective

    def load(self, count: int) -> Windows:
        """Load the first `count` windows."""
        return Windows(
            self.settings[:count],
            self.sources,
            self.drawn,
            self.policy,
            assumed_scale=self.assumed_scale,
            objective=self.objective,
        )


class Windows:
    """N windows that are loaded and ready to run.

    The arguments after `settings` are passed to `DialledRuns`, which describes them.

    Attributes:
        settings: The windows and their conditions.
        inputs: The arguments of the constructor.
        objective: Defines the cost of a run.
        offsets: (N, NUM_TERMS) from `Objective.offsets`.
        weights: (N, NUM_TERMS) from `Objective.weights`.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        sources: Sequence[EpisodeSource],
        drawn: Drawn,
        policy: Policy,
        *,
        assumed_scale: float = 1.0,
        objective: Objective | None = None,
    ) -> None:
        self.settings = tuple(settings)
        self._runs = DialledRuns(
            len(settings), sources, drawn, policy, assumed_scale=assumed_scale, objective=objective
        )
        self.objective, self.offsets = self._runs.objective, self._runs.offsets
        self.weights = self._runs.weights
        self.inputs = WindowInputs(self.settings, sources, drawn, policy, assumed_scale, self.objective)
        self._policy, self._followed = policy, [policy] * len(settings)
        self._rules: dict[Policy, CompiledRule] = {policy: self._runs.rule}
        for k, setting in enumerate(settings):
            self._runs.load(k, setting)
        self._run = self._runs.compiled(run_windows, records=False)

    def __len__(self) -> int:
        return len(self.settings)

    def run(
        self,
        layers: Sequence[NDArray[np.float64]],
        which: Sequence[int] | NDArray[np.int64] | None = None,
        policy: Policy | None = None,
    ) -> Records:
        """Run the rule, with dials set by a linear map or a network, on all or some windows.

        Args:
            layers: Matrices as in `Strategy.layers`.
            which: Indices of the windows to run; None: all.
            policy: Policy whose rule runs in place of the policy given at construction; it must have the same
                functions (`Steps`).

        Returns:
            Array (n,) of dtype `COST`.

        Raises:
            RuntimeError: some jobs of a window did not end.
        """
        chosen = np.arange(len(self)) if which is None else np.asarray(which, np.int64)
        rule = self._rule_of(policy or self._policy, chosen)
        cost, dials = records(len(chosen), COST), dial_arrays(1, NETWORK, list(layers))
        state = self._runs.batch.state
        mine = state.dials._replace(
            layer1=dials.layer1,
            layer2=dials.layer2,
            output=dials.output,
            scratch=dials.scratch,
            action=dials.action,
        )
        run = self._runs.batch._replace(state=state._replace(dials=mine))
        self._run(run, rule.options, chosen, cost, NO_CURVE)
        if not cost.over.all():
            raise RuntimeError(
                f"window {chosen[np.argmin(cost.over)]}: expected all jobs to end, some did not"
            )
        return cost

    def replace(self, k: int, setting: Setting) -> None:
        """Load another window in place of window `k`."""
        self.settings = (*self.settings[:k], setting, *self.settings[k + 1 :])
        self._runs.load(k, setting)
        self._followed[k] = self._policy

    def _rule_of(self, policy: Policy, which: NDArray[np.int64]) -> CompiledRule:
        """Set up the windows `which` for the rule of `policy`, and return this rule."""
        if policy not in self._rules:
            self._rules[policy] = policy.rule
        rule = self._rules[policy]
        for k in which.tolist():
            if self._followed[k] != policy:
                self._runs.follow(k, rule, preempts=self.settings[k].preemptible_frac > 0.0)
                self._followed[k] = policy
        return rule


class WindowsInTurn:
    """Windows that share the memory of one run: a window is loaded when it runs.

    The results are the same as of `Windows` that are all loaded.

    Args:
        inputs: The windows.
    """

    def __init__(self, inputs: WindowInputs) -> None:
        self._settings, self._windows, self._loaded = inputs.settings, inputs.load(1), 0

    def run(
        self, layers: Sequence[NDArray[np.float64]], which: Sequence[int], policy: Policy | None = None
    ) -> Records:
        """Run one window. `which` contains only its index; the other arguments are as in `Windows.run`."""
        (k,) = which
        if k != self._loaded:
            self._windows.replace(0, self._settings[k])
            self._loaded = k
        return self._windows.run(layers, [0], policy)
