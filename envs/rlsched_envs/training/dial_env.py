"""`rlsched/Cluster-v0`: a rule schedules jobs on a GPU cluster; an agent sets the rule's dials (settings)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import gymnasium as gym
import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import records
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.objective import DEFAULT, NUM_TERMS, TERMS, Objective, Term, ratios
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.loop import new_curve
from rlsched_envs.training import batch
from rlsched_envs.training.actions import FOR_SB3, check_live, checked_dials, spaces
from rlsched_envs.training.dial_episode import ACCOUNT, BEGIN, LEAVE, STEP, DialEpisode, step_all
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.windows import DialledRuns, draw_setting

DEFAULT_POLICY = "tuned"
_TRIES = 100


class DialFleet:
    """N simulated clusters that step together. Each runs one window (part of a trace) after the other.

    Args:
        sources: Traces that windows are drawn from; a source is chosen in proportion to its weight.
        count: Number of clusters.
        drawn: How windows are drawn.
        policy: The rule whose dials are set.
        seed: Seed of the draws; None: a random seed.
        in_pairs: Whether clusters 2 k and 2 k + 1 get the same random draws, so that they run the same
            windows.
        objective: Defines the rewards.

    Attributes:
        observations: (N, F) float32, with the columns of `rlsched.decide.dials.observing.NAMES`. The step
            after the next one overwrites this array.
        rewards: (N,) float32, rewards of the last step.
        dones: (N,) bool, whether the episode of each cluster ended in the last step.
        live: (N,) bool, whether each cluster has an episode that has started and not ended.
        penalties: (NUM_TERMS,) penalty for each bound of the objective, in episodes that start from now on.
            -1: `PENALTY` x the episode's excess over the bound is added to the cost.
    """

    def __init__(
        self,
        sources: Sequence[EpisodeSource],
        count: int,
        drawn: Drawn,
        policy: Policy,
        seed: int | None,
        *,
        in_pairs: bool = False,
        objective: Objective | None = None,
    ) -> None:
        self._sources, self._drawn, self._in_pairs = list(sources), drawn, in_pairs
        self._policy = policy
        weights = np.array([source.weight for source in sources])
        self._weights = weights / weights.sum()
        self._runs = DialledRuns(count, sources, drawn, policy, outside=True, objective=objective)
        curve = new_curve(6 * drawn.jobs + 1)
        self._episodes = DialEpisode(
            self._runs.batch,
            batch.stack(curve, count),
            np.full(1, -1, np.int64),
            records((count, 1), ACCOUNT),
        )
        self._step_all = self._runs.compiled(step_all, records=True)
        self.observations, self._earlier = (np.zeros((count, NUM_COLUMNS), np.float32) for _ in range(2))
        self.rewards, self.dones = np.zeros(count, np.float32), np.zeros(count, np.bool_)
        self.live = np.zeros(count, np.bool_)
        self._returns, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._names, self._began = [""] * count, time.time()
        self.penalties = np.full(NUM_TERMS, -1.0)
        self.reseed(seed)

    def reseed(self, seed: int | None) -> None:
        """Restart the random draws of all clusters with this seed; None: with a random seed.

        The random seed is drawn when the next episode starts. A copy made before then draws another seed.
        """
        self._is_unseeded, seed, count = seed is None, seed or 0, self.dones.size
        streams = [k // 2 if self._in_pairs else k for k in range(count)]
        self._rngs = [np.random.default_rng([seed, stream]) for stream in streams]

    def reseed_one(self, k: int, seed: int) -> None:
        """Restart the draws of cluster `k`, to get the windows of a single environment with this seed."""
        self._seed_at_last()
        self._rngs[k] = np.random.default_rng([seed, 0])

    def _seed_at_last(self) -> None:
        if self._is_unseeded:
            entropy = np.random.SeedSequence().entropy
            assert isinstance(entropy, int)
            self.reseed(entropy)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "is_unseeded": self._is_unseeded,
            "made": (self._sources, self.dones.size, self._drawn, self._policy, 0),
            "in_pairs": self._in_pairs,
            "objective": self._runs.objective,
            "rngs": [dict(rng.bit_generator.state) for rng in self._rngs],
            "names": list(self._names),
            "arrays": batch.leaves(self._episodes),
            "penalties": self.penalties,
            "results": self._results(),
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        kept = {name: saved[name] for name in ("in_pairs", "objective")}
        DialFleet.__init__(self, *saved["made"], **kept)
        for rng, state in zip(self._rngs, saved["rngs"], strict=True):
            rng.bit_generator.state = state
        self._names, self._is_unseeded = saved["names"], saved["is_unseeded"]
        self.penalties = saved["penalties"]
        batch.restore(self._episodes, saved["arrays"])
        for mine, other in zip(self._results(), saved["results"], strict=True):
            mine[...] = other

    def get_arrays(self) -> list[NDArray[Any]]:
        """Return the state of the running episodes and of the random draws as arrays for a file."""
        draws = {"rngs": [rng.bit_generator.state for rng in self._rngs], "names": self._names}
        encoded = np.frombuffer(msgspec.json.encode(draws), np.uint8)
        return [encoded, *(array.copy() for array in (*self._results(), *batch.leaves(self._episodes)))]

    def set_arrays(self, saved: Sequence[NDArray[Any]]) -> None:
        """Restore the state that `get_arrays` returned.

        Raises:
            ValueError: the state has another number of clusters, or windows of another size.
        """
        results = self._results()
        encoded, rest, episodes = saved[0], saved[1 : 1 + len(results)], saved[1 + len(results) :]
        batch.restore(self._episodes, episodes)
        batch.restore(results, rest)
        draws = msgspec.json.decode(encoded.tobytes())
        for rng, state in zip(self._rngs, draws["rngs"], strict=True):
            rng.bit_generator.state = state
        self._names, self._is_unseeded = draws["names"], False

    def _results(self) -> tuple[NDArray[Any], ...]:
        return self.observations, self.rewards, self.dones, self.live, self._returns, self._lengths

    def begin(self, k: int) -> None:
        """Start an episode on cluster `k`: draw a window, and run it until its dials must be set.

        A window in which dials are never set is replaced by another one.

        Raises:
            InputError: `_TRIES` windows were drawn, and none of them needs dials.
        """
        self._seed_at_last()
        rng, what = self._rngs[k], np.full(self.dones.size, LEAVE)
        what[k] = BEGIN
        for _ in range(_TRIES):
            source = self._sources[int(rng.choice(len(self._sources), p=self._weights))]
            self._runs.load(k, draw_setting(source, self._drawn, rng))
            account, runs = self._episodes.account, self._runs
            account.weight[k, 0], account.offset[k, 0] = runs.weights[k], runs.offsets[k]
            account.limit[k, 0], account.penalty[k, 0] = runs.objective.limits, self.penalties
            self._go(what, np.zeros((self.dones.size, NUM_DIALS)))
            if not self.dones[k]:
                self._names[k], self._returns[k], self._lengths[k] = source.name, 0.0, 0
                self.live[k] = True
                return
        raise InputError(f"expected a window with decisions, got none in {_TRIES} windows; raise the load")

    def _go(self, what: NDArray[np.int64], moved: NDArray[np.float64]) -> None:
        rewards, dones = self.rewards, self.dones
        self._step_all(
            self._episodes, self._runs.rule.options, what, moved, self.observations, rewards, dones
        )

    def step(self, moved: NDArray[np.float64], *, restart: bool = True) -> list[dict[str, Any]]:
        """Set the dials of all clusters, and advance each cluster until its dials must be set again.

        A cluster that is not `live` stays unchanged, with reward 0 and `dones` False.

        Args:
            moved: (N, D) positions of the dials, -1 to 1.
            restart: Whether a cluster whose episode ends starts another episode at once.

        Returns:
            The `info` of each cluster; empty if its episode did not end.
        """
        self.rewards[~self.live], self.dones[~self.live] = 0.0, False
        self.observations, self._earlier = self._earlier, self.observations
        self.observations[~self.live] = self._earlier[~self.live]
        self._go(np.where(self.live, STEP, LEAVE), moved)
        self._returns += self.rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.dones.size)]
        for k in np.flatnonzero(self.dones).tolist():
            infos[k] = self._summary(k)
            infos[k]["terminal_observation"] = self.observations[k].copy()
            self.live[k] = False
            if restart:
                reward = self.rewards[k]
                self.begin(k)
                self.rewards[k], self.dones[k] = reward, True
        return infos

    def _summary(self, k: int) -> dict[str, Any]:
        episodes = self._episodes
        account = episodes.account[k, 0]
        last = episodes.curve.instant[k][int(episodes.curve.length[k, 0]) - 1]
        jobs, work_s = episodes.sim.truth.shape[1], float(account.offset[Term.TIME])
        mine, other = account.terms, last["terms"]
        return {
            "episode": {
                "r": float(self._returns[k]),
                "l": int(self._lengths[k]),
                "t": round(time.time() - self._began, 3),
            },
            "ratios": dict(zip(TERMS, ratios(mine, other, account.offset).tolist(), strict=True)),
            "schedule": {
                "delay_mean_s": float(mine[Term.TIME]) / jobs,
                "reference_delay_mean_s": float(other[Term.TIME]) / jobs,
                "jct_mean_s": (float(mine[Term.TIME]) + work_s) / jobs,
                "reference_jct_mean_s": (float(other[Term.TIME]) + work_s) / jobs,
                "energy_j": float(mine[Term.ENERGY]),
                "reference_energy_j": float(other[Term.ENERGY]),
                **self._money_of(mine, other),
                "source": self._names[k],
            },
        }

    def _money_of(self, mine: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, float]:
        """Return {"money_frac": cost of electricity / cost in the reference run}, or {} without prices."""
        if self._episodes.sim.progress.signal.shape[2] == 0:
            return {}
        return {"money_frac": float(mine[Term.MONEY]) / max(float(other[Term.MONEY]), 1.0)}


class ClusterEnv(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A GPU cluster on which a rule decides. The agent sets the rule's dials.

    **Episode.** A window (part) of a trace on a small cluster, with models of speed and power (`Drawn`). The
    rule starts jobs, lets them share GPUs, preempts them and sets clocks. The dials adjust how the rule
    weighs these actions.

    **Observation.** Box (F,) float32, -3 to 3: F = 68 named features of waiting, running and arriving jobs,
    of the accuracy of predictions, of the permitted actions, and of the price of electricity
    (`rlsched.decide.dials.observing.NAMES`). A live broker can compute all of them.

    **Action.** Box (D,) float32, -1 to 1: D = 11 dials as fractions of their ranges
    (`rlsched.cluster.dials.DIALS`). 0 leaves the rule's settings unchanged. The agent acts again at the first
    event after 10 simulated minutes or 32 arrivals, whichever comes first.

    **Reward.** The reference is a run of the same window by the same rule with all dials at 0. w is the
    weight of energy, T the jobs' time in the system up to now, E the energy up to now, and T', E' the same of
    the reference. The excess cost is 100 x ((1 - w) x (T - T') / (T' at its end) + w x (E - E') / (E' at its
    end)). The reward is the decrease of the excess cost since the last step. The return is
    thus the saving in per cent; with all dials at 0 it is exactly 0. With prices (`Drawn.slack_fracs`), money
    takes the place of energy, and time is only the part beyond a job's slack (the delay that its user
    accepts).

    Another `objective` has its own terms, weights and bounds (`rlsched.objective`). If the ratio of a term to
    the reference exceeds the term's bound in an episode, 5 x the excess is added to the cost.

    **Termination.** An episode terminates when the last job of the window has ended. It is never truncated. A
    step before the first `reset`, or after the end, raises `gymnasium.error.ResetNeeded`.

    **Draws.** `reset(seed=...)` determines the windows. Without a seed, each environment draws other windows,
    as does each copy made before the first `reset`. Later copies continue exactly from the state of the
    original.

    **Info.** At the end of an episode, `info["schedule"]` contains mean delay and JCT in seconds and energy
    in joules, for the agent and for the reference. With prices, a delay is only the part beyond the slack. If
    the objective has classes of jobs, delays and run times are multiplied by the weights of the classes.
    `info["ratios"]` has the ratio of each term (`rlsched.objective.TERMS`) to the reference; 1 for terms that
    the run does not record.

    Args:
        trace: Trace to draw windows from, or its file; default: 20,000 synthetic Helios-like jobs.
        cluster: Cluster of the trace, or its file; required with `trace`.
        sources: Several traces, each with its own cluster, instead of `trace` and `cluster`.
        drawn: How windows are drawn.
        policy: The rule whose dials are set.
        objective: Defines the reward: a name (`rlsched.objective.PRESETS`) or a TOML file. Default: time, and
            energy or (with prices) money, weighted by the window's weight of energy.

    Raises:
        InputError: a trace without a cluster, a cluster without a trace, an unreadable file, or an objective
            that needs prices in windows without prices.

    >>> import gymnasium, rlsched
    >>> trace, cluster = rlsched.synthesize("helios", jobs=2000, load=0.9, gpus=64)
    >>> env = gymnasium.make("rlsched/Cluster-v0", trace=trace, cluster=cluster)
    >>> env.observation_space.shape, env.action_space.shape
    ((68,), (11,))
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        trace: Trace | str | Path | None = None,
        cluster: ClusterSpec | str | Path | None = None,
        *,
        sources: Sequence[EpisodeSource] | None = None,
        drawn: Drawn | None = None,
        policy: Policy | str = DEFAULT_POLICY,
        objective: Objective | str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        sources = sources_of(trace, cluster, sources)
        self.render_mode = render_mode
        seen, moved = spaces()
        self.observation_space = cast("gym.spaces.Space[NDArray[np.float32]]", seen)
        self.action_space = cast("gym.spaces.Space[NDArray[np.float32]]", moved)
        named = Objective.of(objective or DEFAULT)
        self._fleet = DialFleet(sources, 1, drawn or Drawn(), without_dials(policy), None, objective=named)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new episode; there are no options."""
        del options
        super().reset(seed=seed)
        if seed is not None:
            self._fleet.reseed(seed)
        self._fleet.begin(0)
        return self._fleet.observations[0].copy(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Set the dials, and advance until they must be set again. Values outside -1 to 1 are clipped.

        Raises:
            ValueError: the action has another shape, is not an array of real numbers, or is not finite.
            ResetNeeded: no episode has started, or the last one has ended.
        """
        check_live(self._fleet.live)
        moved = checked_dials(action, (NUM_DIALS,))
        info = self._fleet.step(moved[None], restart=False)[0]
        for key in FOR_SB3:
            info.pop(key, None)
        done = bool(self._fleet.dones[0])
        return self._fleet.observations[0].copy(), float(self._fleet.rewards[0]), done, False, info


def without_dials(policy: Policy | str) -> Policy:
    """Return the policy without its strategy, so that the caller can set the dials of its rule."""
    return Policy.of(policy).with_settings(dials="")


class SourceArguments(TypedDict, total=False):
    """Types of the arguments of `sources_of`, for constructors that forward these arguments."""

    trace: Trace | str | Path | None
    cluster: ClusterSpec | str | Path | None
    sources: Sequence[EpisodeSource] | None


def sources_of(
    trace: Trace | str | Path | None = None,
    cluster: ClusterSpec | str | Path | None = None,
    sources: Sequence[EpisodeSource] | None = None,
) -> Sequence[EpisodeSource]:
    """Return the sources of windows: `sources`, or the trace with its cluster.

    If no argument is given, the source is a synthetic trace of 20,000 jobs.

    Raises:
        InputError: `sources` and a trace or cluster are given, only one of trace and cluster is given, or a
            file cannot be read.
    """
    if sources is not None:
        if trace is not None or cluster is not None:
            raise InputError("expected a trace with a cluster, or sources, got both; leave out one")
        return sources
    if trace is None and cluster is None:
        return [EpisodeSource.from_trace(*synthesize("helios", jobs=20_000, load=0.95, gpus=128, seed=0))]
    if trace is None or cluster is None:
        given, lacking = ("cluster", "trace") if trace is None else ("trace", "cluster")
        raise InputError(f"expected a trace and a cluster, got only a {given}: give its {lacking} too")
    jobs = trace if isinstance(trace, Trace) else Trace.read(trace)
    spec = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec.read(cluster)
    return [EpisodeSource.from_trace(jobs, spec)]
