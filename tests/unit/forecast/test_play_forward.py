"""A state played forward: a world with a known future, and invariants of any other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.loop import decide_all
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import permit
from rlsched.forecast.arrivals import RecentJobs
from rlsched.forecast.world import HORIZON_S, HypotheticalJob, World
from rlsched_envs.sim.play_forward import PlayForward, go_on


def world_of(
    jobs: list[tuple[int, float, float, float]], now_s: float, past: RecentJobs | None = None, gpus: int = 2
) -> World:
    """Jobs (GPUs, predicted, spread, limit) that came at 0 to one node; jobs that fit have started."""
    scheduler = load_scheduler("fifo")
    state = ClusterState.from_spec(ClusterSpec.uniform(1, gpus), OrderedQueue(scheduler.order))
    permit(state, scheduler)
    for num_gpus, predicted_s, spread, limit_s in jobs:
        said = {"predicted_s": predicted_s, "spread": spread, "time_limit_s": limit_s}
        state.add_job(num_gpus=num_gpus, submit_s=0.0, preemptible=False, **said)
    for _ in decide_all(state, scheduler, 0.0):
        pass
    assert scheduler.rule is not None
    return World(state, scheduler.rule, now_s, {}, past or RecentJobs())


def test_certain_jobs_are_foreseen_to_the_second() -> None:
    world = world_of([(2, 100.0, 0.0, math.nan), (1, 50.0, 0.0, math.nan), (2, 30.0, 0.0, math.nan)], 40.0)
    ahead = PlayForward(8).play(world)
    assert ahead.running.tolist() == [True, False, False]
    assert ahead.start_s == pytest.approx(np.array([[0.0] * 8, [100.0] * 8, [150.0] * 8]), abs=1e-3)
    assert ahead.end_s == pytest.approx(np.array([[100.0] * 8, [150.0] * 8, [180.0] * 8]), abs=1e-3)
    assert PlayForward(1).list_schedule(world).start_s[:, 0] == pytest.approx([0.0, 100.0, 150.0], abs=1e-3)


def test_job_beyond_its_prediction_ends_by_its_limit() -> None:
    world = world_of([(2, 10.0, 1.0, 600.0), (2, 10.0, 1.0, math.nan)], 590.0)
    ahead = PlayForward(32).play(world)
    assert (ahead.end_s[0] > 590.0).all()
    assert (ahead.end_s[0] <= 600.0).all()
    assert (ahead.start_s[1] <= 600.0).all()


def test_job_that_never_fits_is_beyond_the_horizon() -> None:
    world = world_of([(2, 30 * 86_400.0, 0.0, math.nan), (2, 10.0, 0.0, math.nan)], 60.0)
    ahead = PlayForward(32).play(world)
    assert np.isinf(ahead.start_s[1]).all()
    assert np.isinf(ahead.end_s).all()


def test_state_stays_unchanged_and_a_future_can_be_played_again() -> None:
    world = world_of([(1, 100.0, 1.0, math.nan)] * 6, 10.0)
    before = world.state.digest()
    player = PlayForward(16)
    first, second = player.play(world), player.play(world)
    assert world.state.digest() == before
    assert (first.start_s == second.start_s).all()
    assert (first.end_s == second.end_s).all()


def test_hypothetical_job_waits_behind_the_queue() -> None:
    world = world_of([(2, 100.0, 0.0, math.nan), (2, 50.0, 0.0, math.nan)], 40.0)
    ahead = PlayForward(4).play(world, HypotheticalJob(Demand(gpus=1), "", 40.0, 20.0, 0.0))
    assert ahead.seqs[-1] == -1
    assert ahead.start_s[-1] == pytest.approx([150.0] * 4, abs=1e-3)
    assert ahead.end_s[-1] == pytest.approx([170.0] * 4, abs=1e-3)
    later = PlayForward(4).play(world, HypotheticalJob(Demand(gpus=1), "", 4_000.0, 20.0, 0.0))
    assert later.start_s[-1] == pytest.approx([4_000.0] * 4, abs=1e-3)
    assert world.state.waiting(0) == [1], "no job was queued"


def test_list_scheduling_of_a_hypothetical_job() -> None:
    world = world_of([(2, 100.0, 0.0, math.nan), (2, 50.0, 0.0, math.nan)], 40.0)
    listed = PlayForward(1).list_schedule(world, HypotheticalJob(Demand(gpus=1), "", 40.0, 20.0, 1.0))
    assert listed.start_s[:, 0] == pytest.approx([0.0, 100.0, 150.0], abs=1e-3)
    assert listed.end_s[-1, 0] == pytest.approx(170.0, abs=1e-3)


@pytest.mark.parametrize(
    ("beside", "start_s"),
    [
        ({}, 40.0),
        ({"gpu_types": ("H100",)}, 100.0),
        ({"gpu_types": ("A100", "H100")}, 40.0),
        ({"cpu_milli": 12_000}, 300.0),
        ({"cpu_milli": 4_000}, 40.0),
        ({"memory_mib": 30 << 10, "gpu_types": ("T4",)}, 300.0),
        ({"gpu_memory_mib": 60 << 10}, 100.0),
    ],
)
def test_cores_memory_and_type_of_a_hypothetical_job_count(beside: dict[str, object], start_s: float) -> None:
    """The GPUs of the T4 node are free, and its cores and memory are not; the H100 is taken until 100 s."""
    scheduler = load_scheduler("fifo")
    nodes = [
        NodeSpec(name=kind, gpus=2, gpu_type=kind, cpus=cpus, memory_mib=32 << 10, gpu_memory_mib=mib)
        for kind, cpus, mib in (("H100", 4, 80 << 10), ("T4", 16, 15 << 10), ("A100", 4, 40 << 10))
    ]
    state = ClusterState(nodes, OrderedQueue(scheduler.order))
    permit(state, scheduler)
    said = {"spread": 0.0, "submit_s": 0.0, "time_limit_s": math.nan, "preemptible": False}
    for demand, predicted_s in (
        (Demand(gpus=2, gpu_types=("H100",)), 100.0),
        (Demand(gpus=1, gpu_types=("T4",), cpu_milli=8_000, memory_mib=8 << 10), 300.0),
    ):
        state.add_job(demand=demand, predicted_s=predicted_s, **said)  # type: ignore[arg-type]
    for _ in decide_all(state, scheduler, 0.0):
        pass
    assert scheduler.rule is not None
    world = World(state, scheduler.rule, 40.0, {}, RecentJobs())
    asked = HypotheticalJob(Demand(gpus=1, **beside), "", 40.0, 20.0, 0.0)  # type: ignore[arg-type]
    for ahead in (PlayForward(2).play(world, asked), PlayForward(1).list_schedule(world, asked)):
        assert ahead.start_s[-1] == pytest.approx(start_s, abs=1e-3)


def test_hypothetical_job_on_an_empty_cluster() -> None:
    """The first of the recorded arrivals, of 10 s, comes again with it and may start before it."""
    alone = world_of([], 10_000.0)
    past, state = RecentJobs(), alone.state
    demand, vc = state.demand_number(Demand(gpus=2)), state.vc_number("")
    for number, run_s in enumerate((10.0, math.nan)):
        past.add((number, 5_000.0 * number, run_s, 100.0, 1.0, math.nan, demand, vc, 1))
    world = World(state, alone.rule, alone.now_s, {}, past)
    asked = HypotheticalJob(Demand(gpus=1), "", alone.now_s, 20.0, 0.0)
    ahead, listed = PlayForward(4).play(world, asked), PlayForward(4).list_schedule(world, asked)
    assert listed.start_s.tolist() == [[alone.now_s]]
    assert (ahead.start_s[-1] <= alone.now_s + 10.0).all()
    assert ahead.end_s - ahead.start_s == pytest.approx(20.0, abs=1e-3)


def test_burst_of_equal_jobs_makes_the_last_start_as_unsure_as_one_job() -> None:
    """Earlier bursts of ten ran alike. Ten jobs wait: all are short, or all are long."""
    now_s = 500_000.0
    alone = world_of([(2, 3_600.0, 1.0, math.nan)] * 11, 0.0)
    past, state, draws = RecentJobs(), alone.state, np.random.default_rng(0)
    demand, vc = state.demand_number(Demand(gpus=2)), state.vc_number("")
    for number in range(300):
        if number % 10 == 0:
            common_s = 3_600.0 * float(np.exp(draws.standard_normal()))
        at_s = 1_000.0 * (number // 10) + number % 10
        past.add((number, at_s, common_s, 3_600.0, 1.0, math.nan, demand, vc, 1))
    for number in range(11):
        past.add((300 + number, now_s - 100.0, math.nan, 3_600.0, 1.0, math.nan, demand, vc, 1))
    numbers = {seq: 300 + seq for seq in range(11)}
    spreads = []
    for known in ({}, numbers):
        ahead = PlayForward(64).play(World(state, alone.rule, 10.0, {}, past, known))
        low, high = np.quantile(ahead.start_s[-1], (0.1, 0.9))
        spreads.append(high / low)
    assert spreads[1] > 1.5 * spreads[0]


def test_recent_arrivals_come_again() -> None:
    """Jobs that all ran 100 s came every 100 s of the last day, as many as there is room for."""
    alone = world_of([(2, 86_450.0, 0.0, math.nan), (2, 50.0, 0.0, math.nan)], 86_400.0)
    past, state = RecentJobs(), alone.state
    demand, vc = state.demand_number(Demand(gpus=2)), state.vc_number("")
    for number in range(864):
        past.add((number, 100.0 * number, 100.0, 100.0, 0.0, math.nan, demand, vc, 1))
    busy = World(state, alone.rule, alone.now_s, {}, past)
    asked = HypotheticalJob(Demand(gpus=2), "", alone.now_s + 3_600.0, 10.0, 0.0)
    waits = PlayForward(16).play(busy, asked).start_s[-1] - asked.submit_s
    assert (PlayForward(16).play(alone, asked).start_s[-1] == asked.submit_s).all()
    assert (waits > 60.0).mean() > 0.5


def test_arrivals_come_again_to_the_current_nodes() -> None:
    """Nodes of a VC have joined since, which takes the number of the shared partition."""
    alone = world_of([(2, 86_450.0, 0.0, math.nan)], 86_400.0)
    past, state = RecentJobs(), alone.state
    demand, vc = state.demand_number(Demand(gpus=2)), state.vc_number("")
    assert state.partitions_of("") == (-1, 0)
    for number in range(864):
        past.add((number, 100.0 * number, 100.0, 100.0, 0.0, math.nan, demand, vc, 1))
    state.add_node(NodeSpec(name="a0", gpus=2, vc="a"))
    assert state.partitions_of("a") == (0, 1)
    world = World(state, alone.rule, alone.now_s, {}, past)
    waits = {}
    for vc_name in ("a", ""):
        asked = HypotheticalJob(Demand(gpus=2), vc_name, alone.now_s + 3_550.0, 10.0, 0.0)
        waits[vc_name] = PlayForward(8).play(world, asked).start_s[-1] - asked.submit_s
    assert (waits["a"] == 0.0).all()
    assert (waits[""] > 10.0).all()


def test_stopped_future_continues_as_a_longer_one() -> None:
    inf = math.inf
    start = np.array([[5.0, 20.0, inf, 30.0], [inf, 50.0, inf, inf]])
    end = start + 1.0
    go_on(start, end, np.array([10.0, inf, 10.0, inf]))
    assert start.tolist() == [[5.0, 20.0, 20.0, 30.0], [50.0, 50.0, inf, inf]]
    assert end.tolist() == [[6.0, 21.0, 21.0, 31.0], [51.0, 51.0, inf, inf]]


job = st.tuples(
    st.integers(1, 4),
    st.floats(1.0, 1e5),
    st.floats(0.0, 2.0),
    st.sampled_from([math.nan, 60.0, 9_000.0]),
)


PLAYER = PlayForward(4)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.lists(job, min_size=1, max_size=12), st.floats(1.0, 1e5))
@example([(1, 1.0, 2.2250738585e-313, math.nan)], 2.0)
@example([(1, 1.0, 0.0, math.nan), (1, 64357.0, 2.0, math.nan), (4, 1.0, 0.0, 60.0)], 21_142.0)
def test_no_forecast_is_before_now_and_no_job_outlives_its_limit(
    jobs: list[tuple[int, float, float, float]], now_s: float
) -> None:
    ahead = PLAYER.play(world_of(jobs, now_s, gpus=4))
    waits = ~ahead.running
    assert (ahead.start_s[waits] >= now_s).all()
    assert (ahead.end_s >= now_s).all()
    assert (ahead.end_s >= ahead.start_s).all()
    later = ahead.start_s[np.isfinite(ahead.start_s)]
    assert (later <= now_s + HORIZON_S).all()
    for row, seq in enumerate(ahead.seqs.tolist()):
        limit_s = jobs[seq][3]
        known = np.isfinite(ahead.end_s[row]) & np.isfinite(ahead.start_s[row])
        if waits[row] and not math.isnan(limit_s):
            assert (ahead.end_s[row][known] - ahead.start_s[row][known] <= limit_s * (1.0 + 1e-9)).all()
