"""Windows of jobs that a rule is run on again and again, each time with other dials, compiled.

What a strategy that sets dials is trained on, and judged by: the same jobs, predictions and luck each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, records
from rlsched.cluster.dials import NETWORK
from rlsched.decide.dials.strategy import dial_arrays
from rlsched.decide.options import RuleOptions
from rlsched.decide.policy import Policy
from rlsched.jit import kernel
from rlsched_envs import batch
from rlsched_envs.constants import FINISHED
from rlsched_envs.events import rewind
from rlsched_envs.loop import NO_CURVE, Curve, for_run, run_rule
from rlsched_envs.sim_arrays import SimArrays
from rlsched_envs.small_clusters import (
    blank_run,
    class_numbers,
    gang_sizes,
    load_window,
    node_size,
    set_models,
)
from rlsched_envs.sources import EpisodeConfig, EpisodeSource, Window, draw_window

COST: Final = np.dtype(
    [
        ("delay_s", np.float64),  # JCT beyond the run times alone at full clock, job-seconds
        ("energy_j", np.float64),  # of the jobs
        ("over", np.int64),  # 1: all jobs have ended
    ]
)
"""What came of one run of a window."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A window, and what holds in it.

    Attributes:
        source: Name of the trace that it is of.
        at: Number of its first job there: windows that overlap are not independent.
        window: Its jobs.
        kind: GPU type, position in `GPU_TYPES`.
        energy_weight: What energy counts against time, 0 to 1.
        preemptible_frac: Share of its jobs that may be preempted.
        restart_s: What a preempted job pays.
        key: What its draws go by.
    """

    source: str
    window: Window
    kind: int
    energy_weight: float
    preemptible_frac: float
    restart_s: float
    key: int

    @property
    def work_s(self) -> float:
        """Run times of its jobs alone at full clock, job-seconds."""
        return float(self.window.duration_s.sum())


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """What settings are drawn from, beside the jobs (`EpisodeConfig`).

    Attributes:
        preemptible_fracs: Shares of preemptible jobs, each as likely.
        restart_s: The least restart cost and the highest, seconds.
        energy_weights: Weights of energy, each as likely.
        kinds: GPU types, each as likely.
    """

    preemptible_fracs: tuple[float, ...] = (0.0, 0.5, 1.0)
    restart_s: tuple[float, float] = (30.0, 300.0)
    energy_weights: tuple[float, ...] = (0.0,)
    kinds: tuple[int, ...] = (0, 1, 2)


def draw_setting(
    source: EpisodeSource, config: EpisodeConfig, drawn: Range, rng: np.random.Generator
) -> Setting:
    """Draw a window of a source, and what holds in it."""
    window = draw_window(source, config, rng)
    low, high = drawn.restart_s
    return Setting(
        source=source.name,
        window=window,
        kind=int(rng.choice(drawn.kinds)),
        energy_weight=float(rng.choice(drawn.energy_weights)),
        preemptible_frac=float(rng.choice(drawn.preemptible_fracs)),
        restart_s=float(np.exp(rng.uniform(np.log(low), np.log(high)))),
        key=int(rng.integers(2**62)),
    )


@kernel
def run_windows(b: SimArrays, o: object, which: NDArray[np.int64], cost: object, curve: Curve) -> None:
    """Run a rule on these windows of a batch, each from its beginning. `cost`: (n,) COST, what came of it."""
    for at in range(which.shape[0]):
        sim = batch.view_run(b, which[at])
        rewind(sim)
        status = run_rule(sim, o, sim.truth.shape[0] + 1, curve)
        cost.delay_s[at] = sim.progress.run[0].queued_s + sim.progress.books[0].lost_s
        cost.energy_j[at] = sim.progress.books[0].jobs_j
        cost.over[at] = status == FINISHED


class Windows:
    """N settings, ready to be run.

    Args:
        settings: The windows.
        sources: Where they were drawn from.
        config: Likewise.
        policy: Its settings make a rule that takes dials; one that preempts jobs as they declare it.
        assumed_scale: Factor on the assumed figures of the catalogue of workloads.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        sources: Sequence[EpisodeSource],
        config: EpisodeConfig,
        policy: Policy,
        *,
        assumed_scale: float = 1.0,
    ) -> None:
        self.settings = tuple(settings)
        self.work_s = np.array([one.work_s for one in settings])
        rule, gangs = policy.rule, gang_sizes(sources, config)
        before = msgspec.structs.replace(rule.order, until_declared=False)
        after = msgspec.structs.replace(before, by="index")
        one = blank_run(config, node_size(sources), gangs, after, modelled=True, assumed_scale=assumed_scale)
        dialled = one._replace(state=one.state._replace(dials=dial_arrays(1, NETWORK, [np.zeros((0, 0))])))
        self._batch = batch.stack_run(dialled, len(settings))
        class_of, state = class_numbers(gangs), self._batch.state
        for k, setting in enumerate(settings):
            load_window(self._batch, k, setting.window, class_of)
            set_models(self._batch, k, True, setting.kind, setting.energy_weight, setting.key)
            preempts = setting.preemptible_frac > 0.0
            (after if preempts else before).write(state.order.code[k])
            state.config.preempts[k, 0] = preempts
            state.config.reserve_after_s[k, 0] = np.inf if preempts else rule.options.reserve_after_s
            pinned = np.random.default_rng(setting.key).random(config.rows) >= setting.preemptible_frac
            self._batch.truth.pinned[k] = pinned
            self._batch.progress.run.restart_s[k, 0] = setting.restart_s
        steps = dataclasses.replace(rule.steps, dialled=True)
        self._options = rule.options
        self._run = for_run(run_windows, steps, logged=False, modelled=True)

    def __len__(self) -> int:
        return len(self.settings)

    def run(
        self,
        layers: Sequence[NDArray[np.float64]],
        which: Sequence[int] | None = None,
        options: RuleOptions | None = None,
    ) -> Records:
        """Run the rule, its dials set by a linear map or a network, on all windows or on some.

        Args:
            layers: As `Strategy.layers`; all 0: the rule as its settings say.
            which: The windows, by number.
            options: What the rule is told instead of what its policy says.

        Returns:
            (n,) COST.

        Raises:
            RuntimeError: the jobs of a window did not all end.
        """
        chosen = np.arange(len(self)) if which is None else np.asarray(which, np.int64)
        cost, dials = records(len(chosen), COST), dial_arrays(1, NETWORK, list(layers))
        mine = self._batch.state.dials._replace(
            first=dials.first,
            second=dials.second,
            last=dials.last,
            between=dials.between,
            moved=dials.moved,
        )
        run = self._batch._replace(state=self._batch.state._replace(dials=mine))
        self._run(run, options or self._options, chosen, cost, NO_CURVE)
        if not cost.over.all():
            raise RuntimeError(f"the jobs of window {chosen[np.argmin(cost.over)]} did not all end")
        return cost
