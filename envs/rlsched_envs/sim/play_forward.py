"""Simulates many futures of a live cluster, with the simulator's own loop and the active rule.

`PlayForward` is registered as `futures` in the entry-point group `rlsched.forecasters`. A future starts from
a copy of the state. Run times are drawn, and arrivals resemble earlier hours and days. Nodes stay unchanged.
A preempted job keeps its work.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import DEFERRED, LEAVING, RUNNING, WAITING, OrderArrays, Records, empty_state
from rlsched.cluster.dials import NO_CONTROLLER, OUTSIDE, DialArrays
from rlsched.cluster.kernels import rebuild_index
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise
from rlsched.forecast.arrivals import BLOCK_S
from rlsched.forecast.bursts import Bursts
from rlsched.forecast.lengths import Lengths
from rlsched.forecast.run_time_draws import EVERY, outlived, run_times
from rlsched.forecast.world import FUTURES, HORIZON_S, Ahead, HypotheticalJob, World
from rlsched.workload.predict.distribution import BINS
from rlsched_envs.sim import loop
from rlsched_envs.sim.constants import NEED_SLOTS
from rlsched_envs.sim.copied_state import PackedRun, fill, let_run, pack
from rlsched_envs.sim.sim_arrays import TRUTH, SimArrays, new_progress

MORE_SLOTS: Final = 2_048
"""Maximum number of live jobs of a future, in addition to the jobs that are live now. A future ends at this
limit."""
MORE_ROWS: Final = 16_384
"""Maximum number of arrivals in a future. A future ends at this limit."""
MANY: Final = 500
"""Number of waiting jobs above which half as many futures are simulated, because each takes longer."""
_ROOM: Final = 256
_HALF: Final = 0.5

Floats = NDArray[np.float64]
_take_up = specialise(let_run, LOGGED=False, MODELLED=False, PHYSICS=False)


class PlayForward:
    """Simulates futures of a live cluster. Each thread needs its own instance.

    Args:
        futures: Number of futures, S; if more than `MANY` jobs wait, only half as many are simulated.
        horizon_s: Length of the futures, seconds.
        seed: Seed of the draws.
    """

    def __init__(self, futures: int = FUTURES, horizon_s: float = HORIZON_S, seed: int = 0) -> None:
        self.futures = futures
        self._horizon_s, self._seed = horizon_s, seed
        self._copies = _Copies()

    def play(self, world: World, asked: HypotheticalJob | None = None) -> Ahead:
        """Simulate futures, and return the starts and ends of all live jobs in each future.

        With a hypothetical job `asked`, a future ends when this job starts.
        """
        if asked is not None:
            world.state.demand_number(asked.demand)  # first: it can reallocate the arrays of the state
        live = self._copies.take(world)
        like = live.lengths(world)
        futures = self.futures if np.count_nonzero(~live.running) <= MANY else -(-self.futures // 2)
        run_s = live.run_times(world, futures, like)
        of_past = live.of_past(world)
        start_s, end_s = np.full((2, len(live.slots) + (asked is not None), futures), math.inf)
        stopped_s = np.full(futures, math.inf)
        for sample in range(futures):
            draws = np.random.default_rng((self._seed, sample))
            self._copies.begin(live, run_s[:, sample])
            extra = _asked_row(world.state, asked, (draws, like)) if asked is not None else None
            ran_s = world.past.rows["run_s"].copy()
            ran_s[of_past >= 0] = run_s[of_past[of_past >= 0], sample]
            blocks = next(most for every, most in _BLOCKS if sample % every == 0)
            start_s[:, sample], end_s[:, sample] = self._played(world, live, extra, draws, blocks, ran_s)
            if blocks < _ALL_BLOCKS:
                stopped_s[sample] = world.now_s + blocks * BLOCK_S
        go_on(start_s, end_s, stopped_s)
        return live.ahead(start_s, end_s, asked is not None)

    def list_schedule(self, world: World, asked: HypotheticalJob | None = None) -> Ahead:
        """Simulate one future with predicted run times and without new jobs (list scheduling)."""
        if asked is not None:
            world.state.demand_number(asked.demand)
        live = self._copies.take(world)
        self._copies.begin(live, live.predicted(world))
        extra = _asked_row(world.state, asked) if asked is not None else None
        start_s, end_s = self._played(world, live, extra, None)
        return live.ahead(start_s[:, None], end_s[:, None], asked is not None)

    def _played(
        self,
        world: World,
        live: _LiveJobs,
        extra: Records | None,
        draws: np.random.Generator | None,
        blocks: int = 0,
        ran_s: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """Simulate one future. Return the (L,) starts and (L,) ends of the live jobs; infinite if unknown.

        Args:
            world: The state from which the future starts.
            live: The L live jobs.
            extra: Row of a hypothetical job, or None. The future ends when this job starts. Both results
                then have L + 1 entries; the last one is for this job.
            draws: Random generator for the jobs that arrive. None: no jobs arrive, and the future lasts until
                the horizon.
            blocks: Maximum length of a future with arrivals, in time blocks of `BLOCK_S` seconds.
            ran_s: (N,) run time of each recent job in this future, nan if unknown.
        """
        run, rule = self._copies.work.sim, world.rule
        go_on_until = loop.for_run(loop.run_rule, rule.steps, logged=False, modelled=False)
        jobs, outcome = len(live.slots), run.progress.outcome
        until_s = world.now_s + self._horizon_s
        if draws is not None:
            until_s = min(until_s, world.now_s + blocks * BLOCK_S)
        row, extra_row, block = jobs, -1, 0
        while draws is not None and world.now_s + block * BLOCK_S < until_s:
            came = _coming(world, block, draws, ran_s)
            block += 1
            if extra is not None and extra_row < 0 and extra.submit_s[0] < world.now_s + block * BLOCK_S:
                came = np.concatenate([came, extra]).view(np.recarray)
                came = came[np.argsort(came["submit_s"], kind="stable")]
                extra_row = row + int(np.flatnonzero(came["workload"] == _MARK)[0])
                came["workload"] = 0
            if row + len(came) >= len(run.truth):
                break
            run.truth[row : row + len(came)] = came
            row += len(came)
            if go_on_until(run, rule.options, row, loop.NO_CURVE) == NEED_SLOTS:
                break
            if extra_row >= 0 and not np.isnan(outcome.start_s[extra_row]):
                break
            if extra is None and live.is_done(outcome):
                break
        else:
            if extra is not None and extra_row < 0:
                run.truth[row], extra_row, row = extra[0], row, row + 1
                run.truth.workload[extra_row] = 0
            run.truth[row] = _last_row(until_s)
            go_on_until(run, rule.options, row + 1, loop.NO_CURVE)
        wanted = list(range(jobs)) + ([extra_row] if extra is not None else [])
        start_s, end_s = outcome.start_s[wanted], outcome.end_s[wanted]
        stays = np.append(~live.may_stop, [True] if extra is not None else []).astype(np.bool_)
        will_end_s = start_s + run.truth.duration_s[wanted]
        will_end_s[:jobs][live.running] = live.end_s
        end_s = np.where(stays, will_end_s, end_s)
        start_s[:jobs][live.running] = live.started_s
        known = np.where(stays & (start_s <= until_s), world.now_s + self._horizon_s, until_s)
        return _within(start_s, until_s), _within(end_s, known)


def go_on(start_s: Floats, end_s: Floats, stopped_s: Floats) -> None:
    """Fill in the starts and ends that are missing in stopped futures with times from longer futures.

    A job that had not started at the stop gets its start and end from a longer future in which it starts
    after the stop. A running job gets its run time from a longer future in which it runs longer than it had
    run at the stop. If no longer future qualifies, the missing times are the stop time.

    Args:
        start_s: (L, S) start of each job in each future, infinite if missing; filled in place.
        end_s: (L, S) end of each job in each future, infinite if missing; filled in place.
        stopped_s: (S,) time at which each future stopped; infinite if it ran to the horizon.
    """
    for at_s in sorted({float(one) for one in stopped_s if one < math.inf}, reverse=True):
        short, longer = np.flatnonzero(stopped_s == at_s), np.flatnonzero(stopped_s > at_s)
        for row in np.flatnonzero(np.isinf(end_s[:, short]).any(axis=1)):
            waits = short[np.isinf(start_s[row, short])]
            runs = short[np.isinf(end_s[row, short]) & np.isfinite(start_s[row, short])]
            later = longer[start_s[row, longer] > at_s]
            if len(later):
                chosen = later[np.arange(len(waits)) % len(later)]
                start_s[row, waits], end_s[row, waits] = start_s[row, chosen], end_s[row, chosen]
            else:
                start_s[row, waits] = end_s[row, waits] = at_s
            begun = longer[np.isfinite(start_s[row, longer])]
            length_s = end_s[row, begun] - start_s[row, begun]
            for place, one in enumerate(runs.tolist()):
                enough = length_s[length_s > at_s - start_s[row, one]]
                longest_s = enough[place % len(enough)] if len(enough) else at_s - start_s[row, one]
                end_s[row, one] = start_s[row, one] + longest_s
    np.maximum(end_s, start_s, out=end_s)


_BLOCKS: Final = tuple(zip(EVERY, (28, 8, 2, 1), strict=True))
"""Pairs (n, blocks): every n-th future lasts `blocks` x `BLOCK_S` seconds. If several pairs apply to a
future, the first of these pairs counts.
"""
_ALL_BLOCKS: Final = 28
_MARK: Final = -7
"""Value of `workload` that marks the hypothetical job."""


class _LiveJobs(NamedTuple):
    """The live jobs of a copied state.

    Attributes:
        slots: (L,) slots of the jobs in the original state.
        job: (L,) JOB records of the jobs.
        running: (L,) whether each job runs.
        may_stop: (L,) whether the job can be preempted. If not, its start determines its end.
        started_s: (R,) starts of the running jobs.
        end_s: (R,) ends of the running jobs in the current future.
    """

    slots: NDArray[np.int32]
    job: NDArray[np.void]
    running: NDArray[np.bool_]
    may_stop: NDArray[np.bool_]
    started_s: Floats
    end_s: Floats

    def is_done(self, outcome: Records) -> bool:
        """Return whether the starts and ends of all live jobs are known."""
        jobs = len(self.slots)
        open_start = np.isnan(outcome.start_s[:jobs]) & ~self.running
        return not (open_start | (np.isnan(outcome.end_s[:jobs]) & self.may_stop)).any()

    def lengths(self, world: World) -> Lengths:
        """Return distributions of run time relative to prediction, from recently ended and running jobs."""
        came, gpus = world.past.rows, world.state.arrays.demand.gpus
        ended, runs = ~np.isnan(came["run_s"]), self.job[self.running]
        parts = (
            (gpus[came["demand"][ended]], gpus[runs["demand"]]),
            (came["run_s"][ended], world.now_s - runs["start_s"]),
            (came["predicted_s"][ended], runs["predicted_s"]),
            (came["spread"][ended], runs["spread"]),
        )
        both = [np.concatenate(part).astype(np.float64) for part in parts]
        return Lengths.from_runs(both[0], both[1], both[2], both[3], np.arange(len(both[0])) < ended.sum())

    def predicted(self, world: World) -> Floats:
        """Return the (L,) predicted (median) total run time of each live job."""
        return self._run_times(world, np.full((len(self.slots), 1), _HALF), self.job["predicted_s"])[:, 0]

    def run_times(self, world: World, samples: int, like: Lengths) -> Floats:
        """Draw (L, samples) total run times, correlated within a burst of similar jobs (`Bursts`).

        `like`: distributions of run time relative to prediction, as `lengths` returns them.
        """
        chances, age_s = self._chances(world), self._age_s(world)
        gpus, past = world.state.arrays.demand.gpus.astype(np.float64), world.past.rows
        mine, said_s = gpus[self.job["demand"]], self._first_predicted_s(world)
        bursts = Bursts.of_past(past, gpus[past["demand"]], like)
        gone = outlived(chances, said_s, self.job["spread"], age_s, (like, mine))
        rows, seqs = self._rows(world), self.job["seq"]
        where = bursts.places(rows, seqs, mine, gone, samples)
        return self._run_times(world, where, said_s, (like, mine))

    def of_past(self, world: World) -> NDArray[np.int64]:
        """Return for each of the N recent jobs (`world.past`) its index among the live jobs; -1: not live."""
        found, rows = np.full(len(world.past), -1, np.int64), self._rows(world)
        found[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        return found

    def _rows(self, world: World) -> NDArray[np.int64]:
        """Return for each of the L live jobs its row in the recent jobs (`world.past`); -1: no row."""
        return world.past.places([world.numbers.get(seq, -1) for seq in self.job["seq"].tolist()])

    def _first_predicted_s(self, world: World) -> Floats:
        """Return the (L,) median run times that were predicted at submission.

        With later predictions, information from other jobs of a burst would be used twice.
        """
        said_s = self.job["predicted_s"].copy()
        rows = self._rows(world)
        said_s[rows >= 0] = world.past.rows["predicted_s"][rows[rows >= 0]]
        return np.asarray(said_s)

    def _run_times(
        self, world: World, where: Floats, said_s: Floats, like: tuple[Lengths, Floats] | None = None
    ) -> Floats:
        job, chances, age_s = self.job, self._chances(world), self._age_s(world)
        return run_times(chances, said_s, job["spread"], job["limit_s"], age_s, where, like)

    def _age_s(self, world: World) -> Floats:
        """Return the (L,) elapsed run times, 0 for waiting jobs."""
        return np.where(self.running, np.maximum(world.now_s - self.job["start_s"], 0.0), 0.0)

    def _chances(self, world: World) -> Floats:
        """Return the (L, BINS) predicted distributions of run times; nan: only median and spread known."""
        chances = np.full((len(self.slots), BINS), math.nan)
        for row, seq in enumerate(self.job["seq"].tolist()):
            known = world.chances.get(seq)
            if known is not None:
                chances[row] = known
        return chances

    def ahead(self, start_s: Floats, end_s: Floats, asked: bool) -> Ahead:
        """Return (L, S) starts and ends in S futures as an `Ahead` object, which also names the jobs.

        `asked`: whether the last row belongs to a hypothetical job.
        """
        seqs = np.append(self.job["seq"], [-1] if asked else []).astype(np.int64)
        running = np.append(self.running, [False] if asked else []).astype(np.bool_)
        return Ahead(seqs, running, start_s, end_s)


class _Copies:
    """Two buffers with simulated runs: one keeps the copied state of a cluster, the other runs a future."""

    def __init__(self) -> None:
        self._base: PackedRun | None = None
        self._shape: tuple[object, ...] = ()
        self.work: PackedRun

    def take(self, world: World) -> _LiveJobs:
        """Copy the state of a cluster to the buffers, and return the live jobs of the state."""
        s, rule = world.state.arrays, world.rule
        job = s.job.view(np.ndarray)
        ran = np.sort(s.derived.slot.running[: s.derived.running_len[0]])
        waits = np.flatnonzero(np.isin(job["status"], (WAITING, LEAVING, DEFERRED)))
        slots = np.concatenate([ran, waits[np.argsort(job["seq"][waits])]]).astype(np.int32)
        base = self._sized(s, len(slots)).sim
        fill(base.state, s, slots)
        state, truth, progress = base.state, base.truth, base.progress
        state.job.status[: len(slots)][state.job.status[: len(slots)] != RUNNING] = WAITING
        state.config.sorts_queue = int(rule.sorted_queue)
        for mine, theirs in zip(state.dials, s.dials, strict=True):
            mine[...] = theirs
        if state.dials.controller[0] == OUTSIDE:  # in a future, dials keep their values
            state.dials.controller[0] = NO_CONTROLLER
        rebuild_index(state)
        truth[:] = np.zeros(1, TRUTH)
        truth.submit_s[:] = np.inf
        truth.fixed_end_s[:] = truth.limit_s[:] = np.nan
        truth.reference_kind[:] = -1
        progress.ends.row[:] = np.arange(len(progress.ends))
        progress.run[:] = 0
        run = progress.run[0]
        run.now_s, run.timer_s, run.review_s, run.next_row = world.now_s, np.inf, np.inf, len(slots)
        run.need_s, run.rest_s, run.undecided = np.inf, np.inf, 1
        progress.outcome.start_s[:] = progress.outcome.end_s[:] = np.nan
        mine = job[slots].copy()
        running = mine["status"] == RUNNING
        may_stop = (mine["pinned"] == 0) & rule.options.preempts
        started_s = mine["start_s"][running]
        return _LiveJobs(slots, mine, running, may_stop, started_s, np.zeros(len(ran)))

    def begin(self, live: _LiveJobs, run_s: Floats) -> None:
        """Start a future from the copied state. `run_s`: (L,) total run times of the live jobs."""
        assert self._base is not None
        self.work.memory[:] = self._base.memory
        run, jobs = self.work.sim, len(live.slots)
        live.end_s[:] = live.started_s + run_s[live.running]
        run.truth.duration_s[:jobs] = run_s
        run.truth.fixed_end_s[:jobs][live.running] = live.end_s
        _take_up(run, jobs)

    def _sized(self, like: Any, jobs: int) -> PackedRun:
        """Return the buffer for the copied state. Allocate both buffers again if other sizes are needed."""
        partitions, sizes = like.derived.holes.shape
        slots = -(-jobs // _ROOM) * _ROOM + MORE_SLOTS
        dials = tuple(part.shape for part in like.dials)
        counts = (len(like.node), len(like.gpu), partitions, sizes, len(like.demand), slots)
        shape = (counts, dials, like.order.code.shape, id(like.order.cost))
        if self._base is None or shape != self._shape:
            self._shape = shape
            order = OrderArrays(like.order.code.copy(), like.order.cost)
            state = empty_state(
                counts[0], counts[1], slots, partitions, sizes - 1, order=order, demands=counts[4]
            )
            state = state._replace(dials=DialArrays(*(part.copy() for part in like.dials)))
            truth = np.zeros(slots + MORE_ROWS, TRUTH).view(np.recarray)
            progress = new_progress(slots, truth, len(like.gpu), keep_placements=False)
            run = SimArrays(state, truth, progress)
            self._base, self.work = pack(run), pack(run)
        return self._base


def _coming(world: World, block: int, draws: np.random.Generator, ran_s: Floats | None) -> Records:
    """Return the TRUTH records (rows) of the jobs that arrive in one time block of a simulated future.

    These jobs are copies of recent jobs with new submission times.

    `ran_s`: (N,) run time of each recent job in this future, nan: unknown; None: run times are as recorded.
    """
    places, later_s = world.past.next_block(world.now_s, block, draws)
    rows = world.past.rows[places]
    found = np.zeros(len(rows), TRUTH).view(np.recarray)
    if not len(rows):
        return found
    for name in ("predicted_s", "spread", "limit_s", "demand", "vc"):
        found[name] = rows[name]
    found.own_partition, found.shared_partition = world.served[rows["vc"] + 1].T
    found.pinned, found.reference_kind = rows["pinned"], -1
    found.submit_s, found.fixed_end_s = rows["submit_s"] + later_s, np.nan
    found.duration_s = rows["run_s"] if ran_s is None else ran_s[places]
    nobody = np.isnan(found.duration_s)
    if nobody.any():
        some = rows[nobody]
        said = some["predicted_s"], some["spread"], some["limit_s"], np.zeros(len(some))
        at = draws.random((len(some), 1))
        found.duration_s[nobody] = run_times(np.full((len(some), BINS), np.nan), *said, at)[:, 0]
    return found


def _last_row(until_s: float) -> Records:
    """Return the TRUTH record (row) of a job whose arrival at `until_s` ends the future."""
    row = np.zeros(1, TRUTH).view(np.recarray)
    row.submit_s, row.fixed_end_s, row.limit_s, row.shared_partition = until_s, np.nan, np.nan, -1
    row.duration_s = row.predicted_s = row.spread = row.pinned = 1
    return row[0]


def _asked_row(
    state: ClusterState, asked: HypotheticalJob, drawn: tuple[np.random.Generator, Lengths] | None = None
) -> Records:
    """Return the TRUTH record (row) of a hypothetical job.

    Its run time is the predicted one, or a random one if `drawn` (generator, distributions) is given.
    """
    row = np.zeros(1, TRUTH).view(np.recarray)
    row.demand = state.demand_number(asked.demand)
    row.vc = state.vc_number(asked.vc)
    row.own_partition, row.shared_partition = state.partitions_of(asked.vc)
    row.submit_s, row.fixed_end_s, row.reference_kind = asked.submit_s, np.nan, -1
    row.predicted_s, row.spread, row.limit_s = asked.predicted_s, asked.spread, asked.limit_s
    row.pinned, row.workload = not asked.preemptible, _MARK
    unknown, at, of = np.full((1, BINS), np.nan), np.full((1, 1), _HALF), None
    if drawn is not None:
        at, of = drawn[0].random((1, 1)), (drawn[1], np.array([float(asked.num_gpus)]))
    said = row["predicted_s"], row["spread"], row["limit_s"], np.zeros(1)
    row.duration_s = run_times(unknown, *said, at, of)[:, 0]
    return row


def _within(time_s: Floats, until_s: float | Floats) -> Floats:
    """Return `time_s` with infinity in place of unknown times and of times after `until_s`."""
    return np.where(time_s <= until_s, time_s, math.inf)
