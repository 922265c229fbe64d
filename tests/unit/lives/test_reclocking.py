"""Clocks of running jobs that change: work and energy by hand, and rules that follow the queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.abilities import read_abilities
from rlsched.decide.actions import SetClock, Start
from rlsched.errors import AllocationError
from rlsched_agents.heuristics.queue_order import RULES, QueueOrder
from rlsched_envs.engine import Engine
from rlsched_envs.job_table import JobTable
from tests.unit.lives.play import trace_of
from tests.unit.lives.test_changing_speed import (
    GPT2,
    LIGHT,
    NO_NOISE,
    V100,
    draws,
    play,
    slower,
)

TWO_V100 = (NodeGroup(gpus=2, gpu_type="V100"),)
LOW, MIDDLE = (float(x) for x in V100.levels_frac[[3, 1]])
SWITCH_S = float(V100.switch_s)


@pytest.mark.parametrize(("first", "then"), [(1.0, LOW), (LOW, 1.0), (MIDDLE, LOW)])
def test_work_left_is_timed_anew_and_energy_is_what_both_clocks_draw(first: float, then: float) -> None:
    table = play(
        [(0, 1000, 1), (200, 10, 1)],
        [GPT2, LIGHT],
        {0: [Start(0, (0,), sm_clock_frac=first)], 200: [SetClock(0, then), Start(1, (1,))]},
        nodes=TWO_V100,
    )
    done = (200 - SWITCH_S) / slower(GPT2, first)
    end_s = 200 + (1000 - done) * slower(GPT2, then)
    assert table.end_s[0] == pytest.approx(end_s, rel=1e-12)
    assert table.end_s[1] == 210.0, "nobody else is touched"
    assert table.energy is not None
    drawn_j = 200 * draws(GPT2, first) + (end_s - 200) * draws(GPT2, then)
    assert table.energy.job_j[0] == pytest.approx(drawn_j, rel=1e-12)
    assert table.segments is not None
    assert table.segments.books is not None
    assert table.segments.books.clock_s[0] == pytest.approx(200 * first + (end_s - 200) * then, rel=1e-12)


def test_the_clock_that_it_has_already_costs_nothing() -> None:
    actions = {0: [Start(0, (0,), sm_clock_frac=LOW)], 200: [SetClock(0, LOW), Start(1, (1,))]}
    table = play([(0, 1000, 1), (200, 10, 1)], [GPT2, LIGHT], actions, nodes=TWO_V100)
    assert table.end_s[0] == pytest.approx(1000 * slower(GPT2, LOW), rel=1e-12)


def test_those_who_share_have_the_highest_clock_of_them() -> None:
    """The second lowers its own clock, which changes nothing as long as the first keeps its own."""
    alone = {0: [Start(0, (0,), sm_clock_frac=MIDDLE)], 20: [Start(1, (0,), sm_clock_frac=MIDDLE, beside=0)]}
    jobs, who = [(0, 300, 1), (20, 300, 1), (100, 10, 1)], [LIGHT, LIGHT, LIGHT]
    kept = play(jobs, who, alone | {100: [Start(2, (1,))]}, nodes=TWO_V100)
    one = play(jobs, who, alone | {100: [SetClock(1, LOW), Start(2, (1,))]}, nodes=TWO_V100)
    both = play(
        jobs, who, alone | {100: [SetClock(1, LOW), SetClock(0, LOW), Start(2, (1,))]}, nodes=TWO_V100
    )
    np.testing.assert_array_equal(one.end_s[0], kept.end_s[0])
    assert (both.end_s[:2] > kept.end_s[:2]).all()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (SetClock(1, LOW), "job 1 is not running"),
        (SetClock(0, 0.4), "expected an SM clock of 0.5 to 1"),
        (SetClock(7, LOW), "no live job has number 7"),
    ],
)
def test_what_is_not_legal(change: SetClock, why: str) -> None:
    with pytest.raises(AllocationError, match=why):
        play([(0, 50, 1), (20, 10, 1)], [GPT2, LIGHT], {0: [Start(0, (0,))], 20: [change]}, nodes=TWO_V100)


# ---- rules ----------------------------------------------------------------------------------------


def by_rule(words: str, jobs: Sequence[tuple[float, float, float]], who: Sequence[str]) -> JobTable:
    """Compiled and stepwise, which agree."""
    rule = QueueOrder(RULES["fifo-backfill"]).with_abilities(words, read_abilities(words, words.split("+")))
    tables = []
    for compiled in (True, False):
        engine = Engine(
            trace_of(jobs, workload=list(who)),
            ClusterSpec(name="hand", nodes=TWO_V100),
            order="submit",
            information="oracle",
            models=NO_NOISE,
        )
        tables.append(engine.run_rule(rule.rule) if compiled else engine.run(rule))
    np.testing.assert_array_equal(tables[0].end_s, tables[1].end_s)
    return tables[0]


CROWD = [(0.0, 1000.0, 2.0), (30.0, 500.0, 2.0), (90.0, 500.0, 2.0)]
"""The first has both GPUs; two more come and wait."""


def test_a_job_is_hurried_when_others_come_to_wait_for_it() -> None:
    """Alone it runs at the clock of least energy. Of a dwell of a minute the job at 30 s comes too early."""
    start = by_rule("lull=9", CROWD[:1], [GPT2])
    low = slower(GPT2, LOW)
    assert start.end_s[0] == pytest.approx(1000 * low, rel=1e-12)
    hurried = by_rule("lull=9+reclock=1m", CROWD, [GPT2] * 3)
    assert hurried.end_s[0] == pytest.approx(90 + 1000 - (90 - SWITCH_S) / low, rel=1e-12)
    sooner = by_rule("lull=9+reclock=10s", CROWD, [GPT2] * 3)
    assert sooner.end_s[0] == pytest.approx(30 + 1000 - (30 - SWITCH_S) / low, rel=1e-12)
    kept = by_rule("lull=9", CROWD, [GPT2] * 3)
    assert kept.end_s[0] == pytest.approx(1000 * low, rel=1e-12)


def test_a_job_is_let_rest_when_the_queue_is_gone() -> None:
    """It starts while another waits, at full clock; that one ends before it does."""
    jobs = [(0.0, 1000.0, 1.0), (0.0, 100.0, 1.0), (0.0, 50.0, 1.0)]
    table = by_rule("lull=9+reclock=10s", jobs, [GPT2] * 3)
    kept = by_rule("lull=9", jobs, [GPT2] * 3)
    assert table.end_s[0] > kept.end_s[0]
    assert table.energy is not None
    assert kept.energy is not None
    assert table.energy.job_j[0] < kept.energy.job_j[0]


def test_a_queue_that_is_as_it_was_changes_no_clock() -> None:
    """The job counts itself among those that wait, as it did when it started."""
    for weight in ("0.2", "0.5", "0.8"):
        words = f"weight={weight}"
        jobs = [(0.0, 1000.0, 1.0), (100.0, 10.0, 1.0), (300.0, 10.0, 1.0)]
        kept, followed = by_rule(words, jobs, [GPT2] * 3), by_rule(f"{words}+reclock=10s", jobs, [GPT2] * 3)
        np.testing.assert_array_equal(kept.end_s, followed.end_s)
