"""`rlsched/Rows-v0`: one simulated GPU cluster as a Gymnasium environment with one job per action."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.trace import Trace
from rlsched_envs.training.actions import checked_rows
from rlsched_envs.training.dial_env import FOR_SB3, check_live, sources_of
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource
from rlsched_envs.training.vector import row_columns, row_spaces


class RowsEnv(gym.Env[NDArray[np.float32], np.int64]):
    """A GPU cluster whose waiting jobs the agent starts or holds back.

    **Episode.** A window of a trace (`EpisodeConfig`): the reference rule, `qssf-backfill`, schedules the
    warm-up, and then the agent decides. `reset` returns at the first contested decision. If all waiting jobs
    can start at once, or there is only one legal row, the environment acts without the agent.

    **Observation.** Box (K, F) float32. K: `WINDOW_ROWS` = 24 rows, or the config's `window_rows`. First half
    of a decision: row 0 is *wait*, the others are waiting jobs (the first that fit, the oldest, the first
    that do not fit). Second half: the variants of the job just chosen. Unused rows are zero. F:
    `NUM_FEATURES` = 49 columns, with units in `rlsched.decide.schema.ACTOR_FEATURES`. A live broker can
    compute all of them (run times are causal predictions, never the true run times). With `oracle`, the shape
    is (K, F + C): C = `NUM_CRITIC` = 9 more columns, `CRITIC_FEATURES`, contain the truth and the future
    (waiting jobs compared with the reference run's, true run times, the reference's queue in the next hours).
    These columns are for a critic during training. A broker cannot fill them, so a policy that reads them
    cannot be served.

    **Action.** Discrete(K): a row. `action_masks()` returns the (K,) mask of legal rows. Not legal are: a job
    that does not fit or is held back; *wait* while `GUARD_FREE_FRAC` = 0.5 of the GPUs are free and a job can
    start; any other row while an overdue job (first held back `MAX_HOLD_S` = 43,200 s ago) can start. A
    *wait* is binding: it holds back the jobs that fit, in favour of the blocked job (the first in queue order
    that does not fit), until the blocked job starts, `HOLD_S` = 1,800 s have passed, or half of the GPUs are
    free. The reference's row replaces an illegal row, and `info["illegal_action"]` is then true.

    **Reward.** Minus (regret now - regret at the last decision) x 100 / (queueing of the reference in this
    episode, job-seconds), where regret is the integral over time of (jobs waiting - jobs waiting in the
    reference's run), job-seconds. The return is the share of the reference's queueing that the agent saved,
    in per cent; an agent that follows the reference gets exactly 0.

    **Models** (`EpisodeConfig.modelled_frac`). A share of the episodes has models of speed and power. A job
    that does not fit can then share the GPUs of a running job, the second half also offers SM clocks, and the
    reference has the same abilities (`decide.options.policy_start`). The weight of energy relative to time is
    drawn for each episode, and is a column of each row. The reward is then (1 - weight) x the reward above,
    with time lost while running counted like queueing, less weight x 100 x (energy in excess of the
    reference / the reference's energy) x (the reference's time in the system / its queueing).

    **Preemption** (`EpisodeConfig.preempting_frac`). In a share of the episodes jobs may be preempted: they
    save their work and pay `restart_s` to continue; in some of these episodes, half of the jobs must not be
    preempted. The queue order is then the Gittins index (`rlsched.decide.order.gittins`), `gittins` is the
    reference, and a job that does not fit has a row that preempts for it: one running job per decision, the
    first in the order of preemption. Regret is then the JCT in excess of the reference: waiting and restarts.
    A preempting row is legal if the index of each job to be preempted is higher by the rule's margin; a row
    without preemption is always legal.

    **Termination.** When the last job of the window has ended. After the agent's arrivals the reference rule
    schedules the tail, except in a share `drain_frac` of the episodes, in which the agent continues to the
    last job. In both cases the cost of delayed jobs counts. Episodes are never truncated. Random draws, and
    steps outside an episode, are as in `ClusterEnv`.

    **Info.** At the end `info["schedule"]`: mean queueing delay and JCT in seconds, for the agent and for the
    reference, `gpu_utilisation_frac`, `regret_job_s`.

    Args:
        trace: Trace to draw windows from, or its file; default: 20,000 synthetic Helios-like jobs.
        cluster: Cluster of the trace, or its file; required with `trace`.
        sources: Several traces, each with its own cluster, instead of `trace` and `cluster`.
        config: Configuration of episodes.
        oracle: Whether observations also have the columns of the critic.

    Raises:
        InputError: a trace without a cluster, a cluster without a trace, or an unreadable file.

    >>> import gymnasium, rlsched
    >>> trace, cluster = rlsched.synthesize("helios", jobs=2000, load=0.9, gpus=64)
    >>> env = gymnasium.make("rlsched/Rows-v0", trace=trace, cluster=cluster)
    >>> env.observation_space.shape, env.action_space.n
    ((24, 49), np.int64(24))
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        trace: Trace | str | Path | None = None,
        cluster: ClusterSpec | str | Path | None = None,
        *,
        sources: Sequence[EpisodeSource] | None = None,
        config: EpisodeConfig | None = None,
        oracle: bool = False,
        render_mode: str | None = None,
    ) -> None:
        sources = sources_of(trace, cluster, sources)
        self.render_mode = render_mode
        config = config or EpisodeConfig()
        box, rows = row_spaces(config.window_rows, oracle=oracle)
        self._columns = row_columns(oracle=oracle)
        self.observation_space: gym.spaces.Space[NDArray[np.float32]] = cast(
            "gym.spaces.Space[NDArray[np.float32]]", box
        )
        self.action_space: gym.spaces.Space[np.int64] = rows
        self._fleet = Fleet(sources, 1, config, None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new episode; there are no options."""
        del options
        super().reset(seed=seed)
        if seed is not None:
            self._fleet.reseed(seed)
        self._fleet.begin(0)
        return self._seen(self._fleet.observations[0]), {}

    def _seen(self, window: NDArray[np.float32]) -> NDArray[np.float32]:
        return window[:, : self._columns].copy()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the (K,) mask of the rows that are legal now; all rows before `reset` and after the end."""
        return self._fleet.legal_rows()[0]

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply a row, and advance to the next decision. The reference's row replaces an illegal row.

        Raises:
            ValueError: the action is not a single whole number from 0 to K - 1.
            ResetNeeded: no episode has started, or the last one has ended.
        """
        check_live(self._fleet.live)
        asked = int(checked_rows(action, (), self._fleet.config.window_rows))
        legal = bool(self._fleet.masks[0, asked])
        row = asked if legal else self._fleet.reference_row(0)
        info = self._fleet.step(np.array([row], np.int64), restart=False)[0]
        info["illegal_action"] = not legal
        done = bool(self._fleet.dones[0])
        seen = info["terminal_observation"] if done else self._fleet.observations[0]
        for key in FOR_SB3:
            info.pop(key, None)
        return self._seen(seen), float(self._fleet.rewards[0]), done, False, info
