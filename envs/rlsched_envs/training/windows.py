"""Windows of jobs on small clusters, for policies whose dials somebody sets: drawn, loaded and run.

What a strategy is trained on, and judged by: the same jobs, predictions and luck each time.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from rlsched_envs.sim.constants import FINISHED
from rlsched_envs.sim.events import rewind
from rlsched_envs.sim.loop import NO_CURVE, Curve, for_run, run_rule
from rlsched_envs.sim.sim_arrays import SimArrays
from rlsched_envs.training import batch
from rlsched_envs.training.small_clusters import (
    GPU_TYPES,
    blank_run,
    class_numbers,
    gang_sizes,
    load_window,
    node_size,
    set_models,
)
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource, Window, draw_window

COST: Final = np.dtype(
    [
        ("delay_s", np.float64),  # JCT beyond the run times alone at full clock, job-seconds
        ("energy_j", np.float64),  # of the jobs
        ("over", np.int64),  # 1: all jobs have ended
    ]
)
"""What came of one run of a window."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What windows are drawn from; each choice of several is as likely as the others.

    Attributes:
        jobs: Jobs of a window.
        load_low: Offered load is drawn between this ...
        load_high: ... and this.
        nodes_low: Nodes are drawn between this ...
        nodes_high: ... and this.
        block_jobs: As in `EpisodeConfig`.
        known_low: As in `EpisodeConfig` ...
        known_high: ... as is this.
        preemptible_fracs: Shares of jobs that may be preempted.
        restart_low_s: What a preempted job pays is drawn evenly by its logarithm, between this ...
        restart_high_s: ... and this.
        energy_weights: What energy counts against time.
        kinds: GPU types, positions in `GPU_TYPES`.
        mixed_frac: Share of windows on clusters whose nodes are of all these types in turn; run times are
            then of the first of them, drawn at random.
    """

    jobs: int = 1500
    load_low: float = 0.85
    load_high: float = 1.05
    nodes_low: int = 6
    nodes_high: int = 10
    block_jobs: int = 0
    known_low: float = 0.0
    known_high: float = 0.0
    preemptible_fracs: tuple[float, ...] = (0.0, 0.5, 1.0)
    restart_low_s: float = 30.0
    restart_high_s: float = 300.0
    energy_weights: tuple[float, ...] = (0.0, 0.0, 0.3)
    kinds: tuple[int, ...] = tuple(range(len(GPU_TYPES)))
    mixed_frac: float = 0.0

    @property
    def window(self) -> EpisodeConfig:
        """What its jobs are drawn from."""
        return EpisodeConfig(
            warmup_jobs=0,
            agent_jobs=self.jobs,
            tail_jobs=0,
            load_low=self.load_low,
            load_high=self.load_high,
            nodes_low=self.nodes_low,
            nodes_high=self.nodes_high,
            block_jobs=self.block_jobs,
            known_low=self.known_low,
            known_high=self.known_high,
        )


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A window, and what holds in it.

    Attributes:
        source: Name of the trace that it is of.
        group: Source and stretch of it that the window begins in: windows of one group have jobs in common.
        window: Its jobs.
        kinds: GPU types of its nodes, in turn; positions in `GPU_TYPES`.
        energy_weight: What energy counts against time, 0 to 1.
        preemptible_frac: Share of its jobs that may be preempted.
        restart_s: What a preempted job pays.
        key: What its draws go by.
    """

    source: str
    group: str
    window: Window
    kinds: tuple[int, ...]
    energy_weight: float
    preemptible_frac: float
    restart_s: float
    key: int

    @property
    def work_s(self) -> float:
        """Run times of its jobs alone at full clock, job-seconds."""
        return float(self.window.duration_s.sum())


def draw_setting(source: EpisodeSource, drawn: Drawn, rng: np.random.Generator) -> Setting:
    """Draw a window of a source, and what holds in it."""
    window = draw_window(source, drawn.window, rng)
    kinds = (int(rng.choice(drawn.kinds)),)
    if drawn.mixed_frac > 0.0 and rng.random() < drawn.mixed_frac:
        kinds = tuple(rng.permutation(drawn.kinds).tolist())
    return Setting(
        source=source.name,
        group=f"{source.name}/{window.first // drawn.jobs}",
        window=window,
        kinds=kinds,
        energy_weight=float(rng.choice(drawn.energy_weights)),
        preemptible_frac=float(rng.choice(drawn.preemptible_fracs)),
        restart_s=float(np.exp(rng.uniform(np.log(drawn.restart_low_s), np.log(drawn.restart_high_s)))),
        key=int(rng.integers(2**62)),
    )


class DialledRuns:
    """A batch of runs under a rule that takes dials.

    Args:
        count: How many.
        sources: Where their windows will be from.
        drawn: Likewise.
        policy: Its settings make the rule; one that preempts jobs as they declare it.
        assumed_scale: Factor on the assumed figures of the catalogue of workloads.
        outside: Whether the caller sets the dials whenever they are due, and not a network.

    Attributes:
        batch: The runs.
        rule: The rule.
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
    ) -> None:
        rule, config, size = policy.rule, drawn.window, node_size(sources)
        gangs = gang_sizes(sources, config)
        one = blank_run(config, size, gangs, _indexed(rule), modelled=True, assumed_scale=assumed_scale)
        dials = dial_arrays(1, OUTSIDE if outside else NETWORK, [np.zeros((0, 0))])
        one = one._replace(state=one.state._replace(dials=dials))
        self.batch: SimArrays = batch.stack_run(one, count)
        self.rule: CompiledRule = rule
        self._class_of = class_numbers(gangs)
        self._steps = rule.steps.with_dials()

    def compiled(self, template: Any, *, records: bool) -> Any:
        """A kernel for these runs; `records`: whether their costs are noted."""
        return for_run(template, self._steps, logged=False, modelled=True, records=records)

    def load(self, k: int, setting: Setting) -> None:
        """Put a setting into run `k`."""
        truth = self.batch.truth
        load_window(self.batch, k, setting.window, self._class_of)
        set_models(self.batch, k, True, setting.kinds, setting.energy_weight, setting.key)
        truth.reference_kind[k] = setting.kinds[0] if len(setting.kinds) > 1 else -1
        self.follow(k, self.rule, preempts=setting.preemptible_frac > 0.0)
        chance = np.random.default_rng(setting.key).random(truth.pinned.shape[1])
        truth.pinned[k] = chance >= setting.preemptible_frac
        self.batch.progress.run.restart_s[k, 0] = setting.restart_s

    def follow(self, k: int, rule: CompiledRule, *, preempts: bool) -> None:
        """Let run `k` go by a rule of the same steps."""
        state = self.batch.state
        order = _indexed(rule) if preempts else msgspec.structs.replace(rule.order, until_declared=False)
        order.write(state.order.code[k])
        state.config.preempts[k, 0] = preempts
        state.config.reserve_after_s[k, 0] = np.inf if preempts else rule.options.reserve_after_s


def _indexed(rule: CompiledRule) -> Order:
    """What the queue of a rule goes by once jobs give way."""
    return msgspec.structs.replace(rule.order, until_declared=False, by="index")


@kernel
def run_windows(b: SimArrays, o: Any, which: NDArray[np.int64], cost: Any, curve: Curve) -> None:
    """Run a rule on these windows of a batch, each from its beginning. `cost`: (n,) COST, what came of it."""
    for at in range(which.shape[0]):
        sim = batch.view_run(b, which[at])
        rewind(sim)
        status = run_rule(sim, o, sim.truth.shape[0] + 1, curve)
        cost.delay_s[at] = sim.progress.run[0].queued_s + sim.progress.books[0].lost_s
        cost.energy_j[at] = sim.progress.books[0].jobs_j
        cost.over[at] = status == FINISHED


class Windows:
    """N settings, ready to be run; arguments as of `DialledRuns`.

    Attributes:
        settings: The windows.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        sources: Sequence[EpisodeSource],
        drawn: Drawn,
        policy: Policy,
        *,
        assumed_scale: float = 1.0,
    ) -> None:
        self.settings = tuple(settings)
        self._runs = DialledRuns(len(settings), sources, drawn, policy, assumed_scale=assumed_scale)
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
        """Run the rule, its dials set by a linear map or a network, on all windows or on some.

        Args:
            layers: As `Strategy.layers`; all 0: the rule as its settings say.
            which: The windows, by number.
            policy: Whose settings hold instead of those that the windows were made for; its rule has the
                same steps.

        Returns:
            (n,) COST.

        Raises:
            RuntimeError: the jobs of a window did not all end.
        """
        chosen = np.arange(len(self)) if which is None else np.asarray(which, np.int64)
        rule = self._rule_of(policy or self._policy, chosen)
        cost, dials = records(len(chosen), COST), dial_arrays(1, NETWORK, list(layers))
        state = self._runs.batch.state
        mine = state.dials._replace(
            first=dials.first,
            second=dials.second,
            last=dials.last,
            between=dials.between,
            moved=dials.moved,
        )
        run = self._runs.batch._replace(state=state._replace(dials=mine))
        self._run(run, rule.options, chosen, cost, NO_CURVE)
        if not cost.over.all():
            raise RuntimeError(f"the jobs of window {chosen[np.argmin(cost.over)]} did not all end")
        return cost

    def _rule_of(self, policy: Policy, which: NDArray[np.int64]) -> CompiledRule:
        """The rule of a policy, which these windows go by from now on."""
        if policy not in self._rules:
            self._rules[policy] = policy.rule
        rule = self._rules[policy]
        for k in which.tolist():
            if self._followed[k] != policy:
                self._runs.follow(k, rule, preempts=self.settings[k].preemptible_frac > 0.0)
                self._followed[k] = policy
        return rule
