"""Another choice in a broker whose nodes sleep: a node that has jobs then does not go to sleep."""

from __future__ import annotations

import math
from pathlib import Path

from rlsched.broker.base.entries import Decided, NodeSlept
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.nodes.sleepers import SleepPlan
from rlsched.cli.operators.sleeping import sleep_plan
from rlsched.decide.actions import Start
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.candidates import candidates
from rlsched_agents.whatif.continued_state import Ends, Life
from rlsched_agents.whatif.course import Watch
from rlsched_agents.whatif.from_journal import _OUTSIDE
from tests.support.broker.hand import LIMITS, ended, hello, launched, states, submit
from tests.support.broker.hand_broker import HandBroker

SLEEP = SleepPlan(plan=sleep_plan(None, "2m"), suspend_timeout_s=30.0, resume_timeout_s=300.0)


def live(broker: HandBroker, seconds: float) -> None:
    """Time passes; the nodes that are up send heartbeats."""
    until_s = broker.now_s + seconds
    while broker.now_s < until_s:
        broker.wait(1.0, *(name for name, is_now in states(broker).items() if is_now == "up"))


def test_node_with_jobs_after_the_other_choice_stays_awake(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    broker = HandBroker(load_scheduler("fifo-backfill"), Journal(path), limits=LIMITS, sleep=SLEEP)
    for name in ("n0", "n1"):
        broker.says(name, hello(name))
    live(broker, 5.0)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    live(broker, 70.0)
    broker.says("n0", ended(1))
    live(broker, 200.0)
    assert set(states(broker).values()) == {"asleep"}
    record = next(one for kept in broker.records for one in kept.records if isinstance(one.action, Start))
    broker.journal.close()
    rows = read_journal(path)
    at = next(
        k
        for k, row in enumerate(rows)
        if isinstance(row.entry, Decided) and row.entry.number == record.number
    )
    slept = {row.entry.name: row.now_s for row in rows if isinstance(row.entry, NodeSlept)}
    was, other = (Life(load_scheduler("fifo-backfill"), Watch()) for _ in range(2))
    was.follow(rows)
    later = next(one for one in candidates(record) if not one.taken)
    other.follow(rows[:at])
    other.choose(record, later)
    outside = [row for row in rows[at + 1 :] if isinstance(row.entry, _OUTSIDE)]
    other.go_on(Ends(was.past_events()), outside, math.inf)
    (attempt,) = other.past_events().jobs["1"].attempts
    (recorded,) = was.timeline.jobs["1"].attempts
    assert attempt.start_s > record.now_s
    assert attempt.end_s - attempt.start_s == recorded.end_s - recorded.start_s
    node = attempt.nodes[0]
    assert attempt.start_s < slept[node] < attempt.end_s, "the recorded power-down falls into the attempt"
    assert other.state.nodes[node].state == "up"
    assert {one.state for name, one in other.state.nodes.items() if name != node} == {"asleep"}
