"""Cost of a refresh of all forecasts: one Markdown row a policy.

    .venv/bin/python benchmarks/bench_forecast.py

1,000 jobs wait on a cluster of 512 GPUs. The forecasts assume that jobs arrive at the same rate as before.
All forecasts are corrected by a full record of earlier forecasts. Kernels are compiled before the timing.
Figures are CPU seconds of this process, the median of three refreshes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time

import numpy as np

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.loop import decide_all
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import permit
from rlsched.decisions.schema import ForecastSeen
from rlsched.forecast.arrivals import RecentJobs
from rlsched.forecast.keeping import Keeping, LiveJob
from rlsched.forecast.record import OF_ONE, RECENT, SIZES
from rlsched.forecast.world import World
from rlsched_envs.sim.play_forward import PlayForward

POLICIES = ("tuned", "easy", "qssf-backfill")
GAP_S, SPREAD = 60.0, 1.0


def world_of(policy: str, waiting: int) -> World:
    """A full cluster of 64 nodes of 8 GPUs, with this many waiting jobs."""
    scheduler = load_scheduler(policy)
    assert scheduler.rule is not None
    state = ClusterState.from_spec(ClusterSpec.uniform(64, 8), OrderedQueue(scheduler.order))
    permit(state, scheduler)
    past, draws, now_s, is_full = RecentJobs(), np.random.default_rng(0), 0.0, False
    while len(state.waiting(0)) < waiting:
        now_s += GAP_S
        predicted_s = float(draws.lognormal(8.0, 1.5))
        gpus = int(draws.choice([1, 2, 4, 8, 16], p=[0.5, 0.15, 0.15, 0.15, 0.05]))
        seq = state.add_job(
            num_gpus=gpus, preemptible=False, submit_s=now_s, predicted_s=predicted_s, spread=SPREAD
        )
        demand = state.demand_number(Demand(gpus=gpus))
        past.add((seq, now_s, math.nan, predicted_s, SPREAD, math.nan, demand, -1, 1))
        if not is_full:
            for _ in decide_all(state, scheduler, now_s):
                pass
            is_full = int(state.arrays.derived.part.free_gpus[0]) < 3
    numbers = {seq: seq for seq in past.rows["number"].tolist()}
    return World(state, scheduler.rule, now_s, {}, past, numbers)


def full_keeping() -> Keeping:
    """Return a `Keeping` with enough recorded forecasts for all corrections."""
    keeping, draws = Keeping(), np.random.default_rng(0)
    for number in range(RECENT):
        for what, size in itertools.product(("start", "end", "end-running"), SIZES):
            raw = np.sort(draws.lognormal(9.0, 1.0, 3)).tolist()
            seen_s = float(draws.lognormal(9.0, 1.5))
            said = {"low_s": raw[0], "median_s": raw[1], "high_s": raw[2], "raw": raw, "list_s": raw[1]}
            keeping.record.add(
                ForecastSeen(
                    time_s=float(number),
                    job="",
                    num_gpus=size,
                    what=what,
                    seen_s=seen_s,
                    said_s=float(number // OF_ONE),
                    **said,
                )
            )
    return keeping


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--waiting", type=int, default=1_000)
    options = parser.parse_args()
    for policy in POLICIES:
        world, player, times = world_of(policy, options.waiting), PlayForward(), list[float]()
        gpus = world.state.arrays.job.gpus
        live = {seq: LiveJob(str(seq), float(gpus[world.state.slot_of(seq)])) for seq in world.numbers}
        player.play(world)
        player.list_schedule(world)
        for _ in range(3):
            keeping = full_keeping()
            began_s = time.process_time()
            ahead = player.play(world)
            keeping.correct(ahead, player.list_schedule(world), live, world.now_s)
            times.append(time.process_time() - began_s)
        jobs = f"{options.waiting:,} waiting, {len(world.state.running())} running, 512 GPUs"
        futures = ahead.start_s.shape[1]
        took = f"{statistics.median(times):.2f} CPU s"
        print(f"| forecasts of all jobs, `{policy}` | {jobs} | {took} | {futures} futures |", flush=True)


if __name__ == "__main__":
    main()
