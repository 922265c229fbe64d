"""Time limits of running jobs: who may change them, and how the change reaches the nodes reliably."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from rlsched.broker.events import NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    Capabilities,
    Kill,
    Launch,
    LimitTime,
    Ok,
    TimeLimited,
    Update,
    Welcome,
    Why,
)
from tests.support.broker.gated import ADMIN, ask, new, refused
from tests.support.broker.hand import LIMITS, TICK, ended, hello, launched, make
from tests.support.broker.hand_broker import HandBroker


def runs(broker: HandBroker, limit_s: float = 100.0, **facts: object) -> int:
    """A job that runs on n0 with this limit; the node can change limits."""
    job = new(broker, time_limit_s=None if limit_s == math.inf else limit_s, **facts)
    broker.says("n0", msgspec.structs.replace(launched(job), limit_s=limit_s))
    return job


def orders(said: Sequence[object]) -> list[tuple[int, float]]:
    return [(order.rank, order.limit_s) for order in said if isinstance(order, LimitTime)]


def limited(job: int, limit_s: float) -> TimeLimited:
    return TimeLimited(job=job, attempt=1, rank=0, limit_s=limit_s)


def why(broker: HandBroker, job: int) -> str:
    return str(broker.ask(Why(job=job)))


def test_lowered_limit_is_sent_to_the_node_until_acknowledged(journal: Journal) -> None:
    broker = make(journal, 1)
    assert any(isinstance(order, Welcome) and order.hears_limits for _, order in broker.sent.orders)
    job = runs(broker)
    assert "its time limit of 1 min 40 s ends it in 1 min 40 s" in why(broker, job)
    first = len(broker.sent.orders)
    assert ask(broker, Update(job=job, time_limit_s=50.0)) == Ok()
    assert orders([order for _, order in broker.sent.orders[first:]]) == [(0, 50.0)]
    cluster = broker.state.cluster
    assert cluster.arrays.job.limit_s[cluster.slot_of(broker.state.jobs[job].seq)] == 50.0  # forecasts use it
    assert "ends it in 50 s; n0 has not answered to that yet" in why(broker, job)
    assert orders(broker.batch([TICK])) == [(0, 50.0)]  # the first may be lost
    assert orders(broker.says("n0", limited(job, 100.0))) == [(0, 50.0)]  # of an order before
    broker.says("n0", limited(job, 50.0))
    assert orders(broker.batch([TICK])) == []
    assert "not answered" not in why(broker, job)
    broker.says("n0", ended(job, exit_code=124, reason="time_limit"))
    assert broker.state.jobs[job].reason == "reached its time limit of 50 s"


def test_only_an_admin_raises_it(journal: Journal) -> None:
    broker = make(journal, 1)
    job = runs(broker)
    said = refused(broker, Update(job=job, time_limit_s=200.0))
    assert said.startswith(f"job {job} runs, with a time limit of 100 s: its user can lower the limit")
    assert "only an admin can raise" in refused(broker, Update(job=job, time_limit_s=math.inf))
    assert broker.state.jobs[job].spec.time_limit_s == 100.0
    assert ask(broker, Update(job=job, time_limit_s=math.inf), ADMIN) == Ok()
    assert orders(broker.batch([TICK])) == [(0, math.inf)]
    assert "it has no time limit any more; n0 has not answered" in why(broker, job)
    broker.says("n0", limited(job, math.inf))
    assert "time limit" not in why(broker, job)
    assert ask(broker, Update(job=job, time_limit_s=10.0)) == Ok()


def test_node_without_support_is_named_and_nothing_changes(journal: Journal) -> None:
    broker = make(journal, 1)
    job = new(broker, time_limit_s=100.0, lost_after_s=0.0)
    assert "node n0 is still starting it: try again" in refused(broker, Update(job=job, time_limit_s=50.0))
    broker.says("n0", launched(job))  # its daemon is older and reports no limit
    said = refused(broker, Update(job=job, time_limit_s=50.0))
    assert "node n0 started it with an rlsched too old" in said
    assert "\n" not in said
    broker.wait(LIMITS.lease_s + 5.0)
    assert "node n0 is unreachable: try again when the node is up" in refused(
        broker, Update(job=job, time_limit_s=50.0)
    )
    assert broker.state.jobs[job].spec.time_limit_s == 100.0
    assert not orders([order for _, order in broker.sent.orders])
    own = msgspec.structs.replace(hello("n0"), capabilities=Capabilities(holds_to=[], gpu_memory_mib=80_000))
    assert own.capabilities.is_own
    assert not Capabilities(places=False).is_own
    spec = msgspec.structs.replace(hello("s0"), capabilities=Capabilities(clocks=False))
    broker.says("s0", spec)
    other = new(broker, time_limit_s=100.0, num_gpus=4)
    broker.says("s0", launched(other))
    assert "node s0 belongs to another engine" in refused(broker, Update(job=other, time_limit_s=50.0))


def test_missed_change_is_sent_when_the_node_registers(journal: Journal) -> None:
    broker = make(journal, 1)
    job = runs(broker)
    assert ask(broker, Update(job=job, time_limit_s=50.0)) == Ok()
    again = HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS, now_s=broker.now_s + 1.0)
    assert again.state.jobs[job].spec.time_limit_s == 50.0
    report = AttemptReport(job=job, attempt=1, rank=0, state="running", limit_s=100.0)
    assert orders(again.says("n0", hello("n0", 4, report, cluster="c1"))) == [(0, 50.0)]
    report = msgspec.structs.replace(report, limit_s=50.0)
    assert orders(again.says("n0", hello("n0", 4, report, cluster="c1"))) == []


def test_requeued_job_starts_with_the_new_limit(journal: Journal) -> None:
    broker = make(journal, 1)
    job = runs(broker)
    assert ask(broker, Update(job=job, time_limit_s=50.0)) == Ok()
    broker.says("n0", ended(job, exit_code=143, reason="node_stopped"))
    (order,) = [o for _, o in broker.sent.orders if isinstance(o, Launch) and o.attempt == 2]
    assert order.time_limit_s == 50.0
    broker.says("n0", limited(job, 100.0))  # an answer for the previous attempt is ignored
    broker.says("n0", launched(job, 2))
    assert orders(broker.batch([TICK])) == []


@pytest.mark.parametrize("limit_s", [math.nan, 0.0, -1.0])
def test_invalid_answer_of_a_node_is_ignored(journal: Journal, limit_s: float) -> None:
    broker = make(journal, 1)
    job = runs(broker)
    broker.batch([NodeSaid("n0", 0, limited(job, limit_s)), NodeSaid("n0", 0, limited(77, 5.0))])
    assert not orders(broker.batch([TICK]))
    assert not any(isinstance(order, Kill) for _, order in broker.sent.orders)
