"""Episodes of many clusters in one batch of arrays: draws, steps and summaries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import records
from rlsched.compile.jit import specialise
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.rows.arrays import empty_window
from rlsched.decide.rules.steps import RULES
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES
from rlsched.errors import InputError
from rlsched_envs.sim import loop
from rlsched_envs.sim.loop import for_run, new_curve
from rlsched_envs.training import batch
from rlsched_envs.training.curriculum import Stage
from rlsched_envs.training.episode import KNOWN, TURN, EpisodeArrays
from rlsched_envs.training.small_clusters import (
    GPU_TYPES,
    blank_run,
    class_numbers,
    gang_sizes,
    load_window,
    node_size,
    set_models,
)
from rlsched_envs.training.sources import EpisodeConfig, EpisodeJobs, EpisodeSource, draw_window

NOTHING_MORE = Permissions()
PREEMPTION = Permissions(preemption=True)
RESERVATIONS = Permissions(reservations=True)
_TRIES = 100
_REMEMBERED = 256
"""Number of jobs whose columns a window caches; enough for all live jobs, because low slots fill first."""


class Fleet:
    """N clusters of up to `config.nodes_high` nodes, and their current episodes.

    Attributes:
        observations: (N, K, F + C) float32; the next step overwrites the array that the step before the last
            returned.
        masks: (N, K) bool.
        rewards: (N,) float32.
        dones: (N,) bool.
        live: (N,) bool; whether the cluster's episode has started and not ended.

    Args:
        sources: Traces to draw windows from.
        num_envs: Number of clusters.
        config: Configuration of episodes.
        seed: Seed of the draws; None: a random seed.
    """

    def __init__(
        self, sources: Sequence[EpisodeSource], num_envs: int, config: EpisodeConfig, seed: int | None
    ) -> None:
        size = node_size(sources)
        self.config = config
        self._sources = list(sources)
        self.enter(None)
        gangs = gang_sizes(sources, config)
        self._class_of = class_numbers(gangs)
        self._arrays = _blank_batch(config, size, gangs, num_envs)
        other = self._arrays.window._replace(features=self._arrays.window.features.copy())
        self._before = self._arrays._replace(window=other)
        self.observations = self._arrays.window.features
        self._returns = np.zeros(num_envs)
        self._names = [""] * num_envs
        self._began = time.time()
        self.masks = np.zeros((num_envs, config.window_rows), np.bool_)
        self.rewards = np.zeros(num_envs, np.float32)
        self.dones, self.live = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._step_all = _compiled(config)
        self._step_entry: Callable[..., Any] | None = (
            None  # alternates between two sets of arrays of equal types
        )
        self.reseed(seed)

    def reseed(self, seed: int | None) -> None:
        """Restart the random draws of all clusters with this seed.

        With None, the system supplies a seed at the start of the next episode. Copies of this object that are
        made earlier get other seeds, and so draw other windows.
        """
        self._is_unseeded, seed = seed is None, seed or 0
        self._rngs = [np.random.default_rng([seed, k]) for k in range(self.dones.size)]
        self._sampling = np.array(
            [np.random.SeedSequence(seed).generate_state(1, np.uint64)[0], 0], np.uint64
        )

    def reseed_one(self, k: int, seed: int) -> None:
        """Restart the random draws of cluster `k`: the draws of a single cluster with this seed."""
        self._seed_at_last()
        self._rngs[k] = np.random.default_rng([seed, 0])

    def _seed_at_last(self) -> None:
        if self._is_unseeded:
            self.reseed(drawn_seed())

    def enter(self, stage: Stage | None) -> None:
        """Draw the next episodes from this stage of a curriculum; with None, from the whole mixture.

        Raises:
            InputError: the stage names an unknown source, or excludes all sources.
        """
        names = [source.name for source in self._sources]
        unknown = [start for start in stage.sources if not _any_begins(names, start)] if stage else []
        weights = np.array([one.weight * (stage.factor(one.name) if stage else 1.0) for one in self._sources])
        if unknown or not weights.sum() > 0:
            raise InputError(
                f"curriculum, stage until {stage.until_frac if stage else 1:g}: expected weights of "
                f"{', '.join(sorted(set(names)))} that are not all 0, got "
                f"{', '.join(unknown) or 'none above 0'}"
            )
        self._stage, self._drawn = stage, stage.narrowed(self.config) if stage else self.config
        self._weights = weights / weights.sum()

    def get_state(self) -> dict[str, Any]:
        """Return all state that determines the next steps, except the stage, as plain data and arrays."""
        return {
            "sources": [source.digest for source in self._sources],
            "rngs": [dict(rng.bit_generator.state) for rng in self._rngs],
            "names": list(self._names),
            "returns": self._returns.copy(),
            "arrays": [array.copy() for array in batch.leaves(self._arrays)],
            "sampling": self._sampling.copy(),
            "masks": self.masks.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `get_state` returned.

        Raises:
            ValueError: the state has another number of clusters, or other episodes or traces.
        """
        mine = [source.digest for source in self._sources]
        if state.get("sources", mine) != mine:  # missing in states of older versions
            raise ValueError(
                "its episodes are of traces with other jobs, run times, predictions or nodes of the same name"
            )
        batch.restore(self._arrays, state["arrays"])
        for rng, saved in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = saved
        self._names = list(state["names"])
        self._returns[:] = state["returns"]
        self._sampling[:], self.masks[:] = state["sampling"], state["masks"]
        self.live[:] = self.masks.any(axis=1)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "made": (self._sources, self.dones.size, self.config, 0),
            "stage": self._stage,
            "is_unseeded": self._is_unseeded,
            "state": self.get_state(),
            "results": (self.rewards.copy(), self.dones.copy(), self.live.copy()),
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        Fleet.__init__(self, *saved["made"])
        self.enter(saved["stage"])
        self._is_unseeded = saved["is_unseeded"]
        self.set_state(saved["state"])
        self.rewards[:], self.dones[:], self.live[:] = saved["results"]

    def begin(self, k: int) -> None:
        """Draw an episode with at least one decision for cluster `k`.

        Raises:
            InputError: no such episode was found: the traces have no contention at these loads.
        """
        self._seed_at_last()
        rng, config = self._rngs[k], self.config
        for _ in range(_TRIES):
            source = self._sources[int(rng.choice(len(self._sources), p=self._weights))]
            load_window(self._arrays.sim, k, draw_window(source, self._drawn, rng), self._class_of)
            modelled, timed = rng.random() < config.modelled_frac, rng.random() < config.time_alone_frac
            weight, kind, key = (
                float(rng.random()),
                int(rng.integers(len(GPU_TYPES))),
                int(rng.integers(2**62)),
            )
            set_models(self._arrays.sim, k, modelled, (kind,), 0.0 if timed or not modelled else weight, key)
            drains = int(rng.random() < config.drain_frac)
            self._draw_permissions(k, rng)
            if self._begin(k, config.warmup_jobs + config.agent_jobs, drains):
                self._names[k] = source.name
                self._returns[k] = 0.0
                return
        raise InputError(
            f"no contested decision in {_TRIES} windows of {', '.join(s.name for s in self._sources)}: "
            "raise the load or shrink the cluster"
        )

    def replay(self, k: int, window: EpisodeJobs, permissions: Permissions) -> bool:
        """Start this window in cluster `k`, without models; the agent decides until the last job has ended.

        Returns False if there is nothing to decide, after the reference has run the whole episode.

        Raises:
            ValueError: `config` has no episodes with these permissions, so no kernel is compiled for them.
        """
        config = self.config
        if (permissions.preemption and not config.preempting_frac) or (
            permissions.reservations and not config.reserving_frac
        ):
            raise ValueError(f"a replay with {permissions} needs a config of such episodes")
        load_window(self._arrays.sim, k, window, self._class_of)
        set_models(self._arrays.sim, k, False, (0,), 0.0, 0)
        self._permit(k, permissions)
        return self._begin(k, config.rows, 1)

    def _begin(self, k: int, handover_row: int, drains: int) -> bool:
        """Start the loaded episode in cluster `k`. Returns False if the episode has nothing to decide."""
        turn, rows = self._arrays.turn, np.full(self.dones.size, batch.LEAVE)
        turn.warmup_row[k, 0], turn.handover_row[k, 0] = self.config.warmup_jobs, handover_row
        turn.drains[k, 0], rows[k] = drains, batch.BEGIN
        rewards, dones = np.empty_like(self.rewards), np.empty_like(self.dones)
        self._step_all(self._arrays, rows, self.masks, rewards, dones)
        self.live[k] = not dones[k]
        return bool(self.live[k])

    def starts(self, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the (T,) start times, seconds, of cluster `k`'s jobs, in its run and in the reference's."""
        arrays = self._arrays
        return arrays.sim.progress.outcome.start_s[k].copy(), arrays.known.reference_start_s[k].copy()

    def _permit(self, k: int, permissions: Permissions) -> None:
        """Set the permissions of cluster `k`; its queue gets the order of the corresponding rule."""
        state, rule = self._arrays.sim.state, permissions.rule(revised=self.config.revising)
        rule.order.write(state.order.code[k])
        state.config.preempts[k, 0] = permissions.preemption
        state.config.reserve_after_s[k, 0] = rule.options.reserve_after_s

    def _draw_permissions(self, k: int, rng: np.random.Generator) -> None:
        """Draw the permissions of cluster `k`: which jobs can be preempted, whether jobs get reservations."""
        config, permissions = self.config, NOTHING_MORE
        if config.preempting_frac == config.reserving_frac == 0:
            return
        lot, half = rng.random(), rng.random() < config.pinned_frac
        truth = self._arrays.sim.truth
        if lot < config.preempting_frac:
            permissions = PREEMPTION
        elif lot < config.preempting_frac + config.reserving_frac:
            permissions = RESERVATIONS
        self._permit(k, permissions)
        truth.pinned[k] = rng.random(truth.pinned.shape[1]) < (0.5 if half else 0.0)
        self._arrays.sim.progress.run.restart_s[k, 0] = config.restart_s

    def reference_row(self, k: int) -> int:
        """Return the row that the reference rule would take in cluster `k`."""
        return int(self._arrays.window.info[k, 1])

    def legal_rows(self) -> NDArray[np.bool_]:
        """Return the (N, K) mask of rows that `step` accepts: all rows of a cluster without an episode."""
        return self.masks | ~self.live[:, None]

    def sample_rows(self, rows: NDArray[np.int64]) -> None:
        """Draw a legal row for each cluster, with equal probability, into `rows`."""
        batch.sample(self.masks, self._sampling, rows)

    def step(self, rows: NDArray[np.int64], *, restart: bool = True) -> list[dict[str, Any]]:
        """Apply a legal row in each cluster, and advance to the next decision.

        With `restart`, a cluster whose episode ends starts another episode. A cluster that is not `live`
        stays unchanged, with reward 0, and is not done. Returns the infos.
        """
        before = self.observations
        self._arrays, self._before = self._before, self._arrays
        self.observations = self._arrays.window.features
        rows = np.ascontiguousarray(rows, np.int64)
        if not self.live.all():
            rows = np.where(self.live, rows, batch.LEAVE)
            self.rewards[~self.live], self.dones[~self.live] = 0.0, False
        if self._step_entry is None:
            self._step_entry = self._step_all.bound(self._arrays, rows, self.masks, self.rewards, self.dones)
        self._step_entry(self._arrays, rows, self.masks, self.rewards, self.dones)
        self._returns += self.rewards
        infos: list[dict[str, Any]] = [{} for _ in range(self.dones.size)]
        for k in np.flatnonzero(self.dones).tolist():
            infos[k] = self._summary(k)
            infos[k]["terminal_observation"] = before[k].copy()
            self.live[k] = False
            if restart:
                self.begin(k)
        return infos

    def _summary(self, k: int) -> dict[str, Any]:
        e = self._arrays
        turn, first = e.turn[k, 0], int(e.turn.warmup_row[k, 0])
        truth, progress = e.sim.truth, e.sim.progress
        submit, duration = truth.submit_s[k, first:], truth.duration_s[k, first:]
        started = progress.outcome.start_s[k, first:]
        if e.sim.state.config.preempts[k, 0]:
            started = progress.outcome.end_s[k, first:] - duration
        queue = started - submit
        reference = e.known.reference_start_s[k, first:] - submit
        capacity = float(e.sim.state.derived.part.open_gpus[k].sum()) * float(
            np.nanmax(progress.outcome.end_s[k])
        )
        return {
            "episode": {
                "r": float(self._returns[k]),
                "l": int(turn.decisions),
                "t": round(time.time() - self._began, 3),
            },
            "schedule": {
                "queue_mean_s": float(queue.mean()),
                "reference_queue_mean_s": float(reference.mean()),
                "jct_mean_s": float((queue + duration).mean()),
                "reference_jct_mean_s": float((reference + duration).mean()),
                "gpu_utilisation_frac": float(progress.run.gpu_s[k, 0]) / max(capacity, 1.0),
                "regret_job_s": float(turn.regret),
                "source": self._names[k],
            },
        }


def drawn_seed() -> int:
    """Return a seed of 128 bits from the system."""
    entropy = np.random.SeedSequence().entropy
    assert isinstance(entropy, int)
    return entropy


def _compiled(config: EpisodeConfig) -> Any:
    """Return `batch.step_all`, compiled for the episodes that the config allows."""
    modelled = config.modelled_frac > 0
    more = config.preempting_frac > 0 or config.reserving_frac > 0
    rules = {
        "play_greedy": RULES["greedy"],
        "play_gittins": RULES["gittins"] if more else None,
        "play_backfill": RULES["backfill"] if more else None,
    }
    plays = {
        name: steps and for_run(loop.run_rule, steps, logged=False, modelled=modelled, records=True)
        for name, steps in rules.items()
    }
    return specialise(
        batch.step_all,
        LOGGED=False,
        MODELLED=modelled,
        PREEMPTING=more,
        RESERVING=more,
        **plays,
    )


def _blank_batch(
    config: EpisodeConfig, gpus_per_node: int, gangs: Sequence[int], num_envs: int
) -> EpisodeArrays:
    """Create arrays for this number of episodes; their windows share one scratch array."""
    one = blank_episode(config, gpus_per_node, gangs)
    stacked: EpisodeArrays = batch.stack(one, num_envs)
    w = one.window
    window = stacked.window._replace(
        picks=w.picks, logs=w.logs, shared=w.shared, profile=w.profile, places=w.places, claim=w.claim
    )
    sim = batch.stack_run(one.sim, num_envs, learns=config.learning and config.modelled_frac > 0)
    return stacked._replace(window=window, sim=sim, quiet=one.quiet)


def _any_begins(names: Sequence[str], start: str) -> bool:
    return any(name.startswith(start) for name in names)


def blank_episode(config: EpisodeConfig, gpus_per_node: int, gangs: Sequence[int]) -> EpisodeArrays:
    """Create arrays for one episode with these gang sizes on `config.nodes_high` nodes in one partition."""
    rows = config.rows
    most = PREEMPTION if config.preempting_frac > 0 else NOTHING_MORE  # the variant with the larger arrays
    run = blank_run(config, gpus_per_node, gangs, most.order(), modelled=config.modelled_frac > 0)
    NOTHING_MORE.order(revised=config.revising).write(run.state.order.code)
    run.progress.books.learns = config.learning
    instants = (4 if config.preempting_frac > 0 else 2) * rows + 1
    window = empty_window(config.window_rows, _REMEMBERED)
    return EpisodeArrays(
        run,
        window._replace(features=np.zeros((config.window_rows, NUM_FEATURES + NUM_CRITIC), np.float32)),
        new_curve(instants),
        np.full(1, -1, np.int64),
        records(rows, KNOWN),
        np.zeros(NUM_CRITIC, np.float32),
        records(1, TURN),
    )
