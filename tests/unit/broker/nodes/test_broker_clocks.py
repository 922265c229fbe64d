"""SM clocks in the broker's state machine: chosen as in the simulator, sent to nodes."""

from __future__ import annotations

import math
import re

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.entries import BrokerStarted, NodeUp, RankLaunched, decode_entry, encode_entry
from rlsched.broker.base.ledger_models import nearest_mhz, workload_number
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.cluster.arrays import CLOCKS_ALONE
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.start import start_action
from rlsched.models.catalogue import load_catalogue
from rlsched.wire.messages import (
    AttemptReport,
    ClockHeld,
    Explanation,
    HoldClock,
    Jobs,
    Launch,
    Launched,
    ListJobs,
    ListNodes,
    Nodes,
    Refused,
    Stats,
    StatsReport,
    Submitted,
    Why,
)
from tests.support.broker.hand import LIMITS, draft, ended, hello, launched, of_kind, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed

CLOCKS = list(range(1980, 344, -15))
BUSY, LIGHT = "bert-base-squad-b16", "vit-tiny"
"""Workloads with a high and a low sensitivity to the SM clock."""


def node(name: str = "n0", clocks: list[int] | None = None, note: str = "", gpu_type: str = "H100") -> object:
    told = hello(name)
    return msgspec.structs.replace(
        told, gpu_type=gpu_type, sm_clocks_mhz=CLOCKS if clocks is None else clocks, clocks_note=note
    )


def make(journal: Journal, weight: float, policy: str = "qssf-backfill") -> HandBroker:
    broker = HandBroker(load_scheduler(policy), journal, limits=LIMITS, speed_energy=weight)
    broker.says("n0", node())  # type: ignore[arg-type]
    return broker


def start(broker: HandBroker, **facts: object) -> Launch:
    """Submit a job that fits; returns the launch sent to the node."""
    before = len(broker.sent.orders)
    assert isinstance(broker.ask(submit(**facts)), Submitted)  # type: ignore[arg-type]
    (launch,) = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert isinstance(launch, Launch)
    return launch


def simulated_clock(weight: float, workload: str, waiting: int = 1) -> float:
    """The clock that `qssf-backfill` with weighed clocks gives a job in the simulator, on the same node."""
    policy = Policy("qssf-backfill", clock={"rule": "weighed", "energy_weight": weight})
    queue = OrderedQueue(policy.rule.order)
    cluster = ClusterState([NodeSpec(name="n0", gpus=4, gpu_type="H100")], queue)
    cluster.use_models(load_catalogue().arrays(cluster.kind_names))
    number = load_catalogue().number(workload)
    for _ in range(waiting):
        seq = cluster.add_job(num_gpus=1, submit_s=0.0, predicted_s=60.0, spread=1.0, workload=number)
    return start_action(cluster, 0, seq, start=policy.rule.options.start).sm_clock_frac


# ---- choice of the clock ---------------------------------------------------------------------------------


def test_without_a_weight_of_energy_no_clock_is_sent_or_shown(journal: Journal) -> None:
    broker = make(journal, 0.0)
    assert start(broker).sm_clock_mhz == 0
    assert broker.state.cluster.arrays.config[0].modelled == 0
    (job,) = jobs(broker)
    assert (job.sm_clock_frac, job.sm_clocks_mhz) == (1.0, [0])


@pytest.mark.parametrize("weight", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("workload", ["", BUSY, LIGHT])
def test_clock_of_a_start_is_that_of_the_simulator(journal: Journal, weight: float, workload: str) -> None:
    broker = make(journal, weight)
    clock = simulated_clock(weight, workload)
    assert start(broker, workload=workload).sm_clock_mhz == nearest_mhz(CLOCKS, clock)
    assert jobs(broker)[0].sm_clock_frac == clock
    if weight == 1.0:
        assert 0.5 <= clock < 1.0


def test_clock_falls_with_the_weight_of_energy_and_rises_with_waiting_jobs() -> None:
    clocks = [simulated_clock(weight, "") for weight in (0.0, 0.2, 0.5, 1.0)]
    assert clocks[0] == 1.0
    assert sorted(clocks, reverse=True) == clocks
    assert len(set(clocks)) >= 3
    assert simulated_clock(0.5, "", waiting=4) > simulated_clock(0.5, "")


def test_job_can_set_its_own_weight_of_energy(journal: Journal) -> None:
    broker = make(journal, 0.0)
    assert start(broker).sm_clock_mhz == 0
    frugal = start(broker, speed_energy=1.0)
    assert frugal.sm_clock_mhz == nearest_mhz(CLOCKS, simulated_clock(1.0, ""))
    assert broker.state.cluster.arrays.config[0].modelled == CLOCKS_ALONE
    assert start(broker).sm_clock_mhz == 0, "the other jobs have the broker's weight"
    broker.says("n0", launched(2), ended(2))
    assert broker.state.cluster.arrays.config[0].modelled == 0, "no job sets a weight any more"


def test_job_can_ask_for_full_speed_where_energy_counts(journal: Journal) -> None:
    broker = make(journal, 1.0)
    assert start(broker, speed_energy=0.0).sm_clock_mhz == 0
    assert start(broker).sm_clock_mhz > 0


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"speed_energy": 1.5}, r"speed_energy must be 0 \(speed only\) to 1 \(energy only\), got 1.5"),
        ({"speed_energy": math.nan}, "got nan"),
        ({"workload": "resnet50"}, r"expected a workload of the catalogue, got 'resnet50' \(near: resnet"),
    ],
)
def test_invalid_weight_is_refused(journal: Journal, facts: dict[str, object], why: str) -> None:
    broker = make(journal, 0.0)
    refused = broker.ask(submit(**facts))  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    assert re.search(why, refused.message)
    assert broker.state.jobs == {}


def test_nearest_supported_clock_is_chosen() -> None:
    assert nearest_mhz([1410, 1395, 1380, 210], 0.985) == 1395
    assert nearest_mhz([1000, 900, 800], 0.85) == 900, "the higher of two equally near clocks"
    assert nearest_mhz([1410], 1.0) == nearest_mhz([], 0.6) == 0
    assert workload_number("no such workload") == 0


# ---- nodes that cannot set clocks ------------------------------------------------------------------------


def test_node_that_cannot_set_clocks_gets_none_and_shows_the_reason(journal: Journal) -> None:
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS, speed_energy=1.0)
    broker.says("n0", node(clocks=[], note="GPU 0: Insufficient Permissions"))  # type: ignore[arg-type]
    assert start(broker).sm_clock_mhz == 0
    assert jobs(broker)[0].sm_clock_frac == 1.0
    words = explained(broker, 1)
    assert "at the highest SM clock, with 1 as the weight of energy against speed" in words
    assert "node n0 cannot set clocks: GPU 0: Insufficient Permissions" in words
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert stats.speed_energy == 1.0
    assert stats.fixed_clocks == {"n0": "GPU 0: Insufficient Permissions"}
    (told,) = nodes(broker)
    assert (told.max_sm_clock_mhz, told.clocks_note) == (0, "GPU 0: Insufficient Permissions")


def test_gang_with_a_node_that_cannot_set_clocks_runs_at_full_clock(journal: Journal) -> None:
    broker = make(journal, 1.0)
    broker.says("n1", node("n1", clocks=[]))  # type: ignore[arg-type]
    broker.ask(submit(8))
    orders = of_kind([order for _, order in broker.sent.orders], Launch)
    assert [order.sm_clock_mhz for order in orders] == [0, 0]  # type: ignore[attr-defined]


def test_node_that_loses_the_permission_registers_again(journal: Journal) -> None:
    broker = make(journal, 1.0)
    assert start(broker).sm_clock_mhz > 0
    broker.says("n0", Launched(job=1, attempt=1, rank=0, pid=7, clock_note="NVML: No Permission"))
    assert "node n0 did not set its clocks: NVML: No Permission" in explained(broker, 1)
    broker.says("n0", node(clocks=[], note="NVML: No Permission"))  # type: ignore[arg-type]
    assert start(broker).sm_clock_mhz == 0


def test_unsupported_clocks_are_refused(journal: Journal) -> None:
    broker = make(journal, 1.0)
    for clocks in ([0], [-15, 1980], [1980] * 1001):
        (refused,) = broker.says("n1", node("n1", clocks=clocks))  # type: ignore[arg-type]
        assert isinstance(refused, Refused)
        assert "expected up to 1000 SM clocks of 1 to 100000 MHz" in refused.message


def test_gpu_type_that_registers_later_has_its_own_clocks(journal: Journal) -> None:
    broker = make(journal, 1.0)
    v100 = [*range(1530, 135, -15)]
    broker.says("n1", node("n1", clocks=v100, gpu_type="V100"))  # type: ignore[arg-type]
    assert start(broker, num_gpus=4).sm_clock_mhz in CLOCKS
    assert start(broker, num_gpus=4).sm_clock_mhz == nearest_mhz(v100, 952 / 1530)


# ---- lists, explanations, restarts -----------------------------------------------------------------------


def test_clock_is_shown(journal: Journal) -> None:
    broker = make(journal, 0.0)
    mhz = start(broker, speed_energy=1.0, workload=BUSY).sm_clock_mhz
    broker.says("n0", Launched(job=1, attempt=1, rank=0, pid=7, sm_clock_mhz=mhz))
    (job,) = jobs(broker)
    assert (job.sm_clocks_mhz, job.speed_energy, job.workload) == ([mhz], 1.0, BUSY)
    assert f"at {job.sm_clock_frac:.2f} of the highest SM clock, {mhz} MHz" in explained(broker, 1)
    assert "with 1 as the weight of energy against speed (set for this job)" in explained(broker, 1)


def test_restart_and_replay_have_the_same_clocks(journal: Journal) -> None:
    broker = make(journal, 0.5)
    for number in range(6):
        broker.ask(submit(2, workload=("", BUSY, LIGHT)[number % 3], speed_energy=(None, 1.0)[number % 2]))
        broker.wait(7.0, "n0")
    broker.says("n0", launched(1), ended(1))
    broker.wait(20.0, "n0")
    broker.says("n0", launched(2), ended(2))
    clocks = [one.sm_clock_frac for one in decided(journal) if isinstance(one, Start)]
    assert len(set(clocks)) > 1
    state = replayed(journal)
    assert state.cluster.digest() == broker.state.cluster.digest()
    assert [job.attempt.sm_clock_frac for job in state.jobs.values() if job.attempt] == [
        job.attempt.sm_clock_frac for job in broker.state.jobs.values() if job.attempt
    ]
    made = redecide(journal_events(journal.path), load_scheduler("qssf-backfill"))
    assert [record.action for record in made] == decided(journal)
    kept = [record for batch in broker.records for record in batch.records]
    assert [record.state_digest for record in made] == [record.state_digest for record in kept]


def test_new_weight_after_a_restart_is_replayed_from_there(journal: Journal) -> None:
    make(journal, 0.0).ask(submit(1))
    later = HandBroker(
        load_scheduler("qssf-backfill"), journal, limits=LIMITS, now_s=2_000.0, speed_energy=1.0
    )
    later.says("n0", node())  # type: ignore[arg-type]
    assert start(later).sm_clock_mhz > 0
    events = journal_events(journal.path)
    assert [one.speed_energy for one in events.instants if one.speed_energy is not None] == [1.0]
    made = redecide(events, load_scheduler("qssf-backfill"))
    assert [record.action for record in made] == decided(journal)


def test_journal_without_clocks_is_read() -> None:
    entries = [
        BrokerStarted(epoch=1, cluster="c", version="0", policy="p", fallback="", order="submit"),
        draft(),
        RankLaunched(job=1, attempt=1, rank=0, pid=7),
        NodeUp(name="n0", gpus=4, gpu_type="h200", gpu_uuids=[], cpus=1, memory_mib=1, vc="", boot_id=""),
    ]
    new = {"speed_energy", "workload", "sm_clock_mhz", "clock_note", "sm_clocks_mhz", "clocks_note"}
    for entry in entries:
        fields = msgspec.msgpack.decode(encode_entry(entry))
        old = msgspec.msgpack.encode({name: value for name, value in fields.items() if name not in new})
        found = decode_entry(old)
        assert msgspec.msgpack.encode(found) == msgspec.msgpack.encode(entry), "nan differs from nan"


# ---- the clock of a running job --------------------------------------------------------------------------


def test_running_job_keeps_its_clock(journal: Journal) -> None:
    broker = make(journal, 0.5)
    low = start(broker, num_gpus=4).sm_clock_mhz
    assert low > 0
    broker.says("n0", Launched(job=1, attempt=1, rank=0, pid=7, sm_clock_mhz=low))
    for _ in range(5):
        broker.wait(10.0, "n0")
        broker.ask(submit(4))
    back = msgspec.structs.replace(node(), attempts=[report(1, low)])  # type: ignore[type-var]
    assert of_kind(broker.says("n0", back), HoldClock) == []  # type: ignore[arg-type]
    assert orders(broker, HoldClock) == []
    assert jobs(broker)[0].sm_clocks_mhz == [low]


def test_clock_is_sent_again_to_a_node_that_could_not_set_it(journal: Journal) -> None:
    broker = make(journal, 0.5)
    low = start(broker, num_gpus=4).sm_clock_mhz
    broker.says("n0", Launched(job=1, attempt=1, rank=0, pid=7, clock_note="NVML: Timeout"))
    assert orders(broker, HoldClock) == [], "not yet"
    back = msgspec.structs.replace(node(), attempts=[report(1, 0)])  # type: ignore[type-var]
    out = broker.says("n0", back)  # type: ignore[arg-type]
    hold = HoldClock(epoch=1, job=1, attempt=1, rank=0, sm_clock_mhz=low)
    assert of_kind(out, HoldClock) == [hold]  # type: ignore[arg-type]
    assert jobs(broker)[0].sm_clocks_mhz == [0], "until the node reports it"
    broker.says("n0", ClockHeld(job=1, attempt=1, rank=0, sm_clock_mhz=low))
    assert jobs(broker)[0].sm_clocks_mhz == [low]
    assert replayed(journal).jobs[1].attempt == broker.state.jobs[1].attempt


# ---- the policy ------------------------------------------------------------------------------------------


def test_strategy_observes_the_weight_of_the_broker_and_the_clocks(journal: Journal) -> None:
    """In the columns that the simulator fills, by the same code."""
    strategy = Strategy.from_layers(np.zeros((NUM_DIALS, NUM_COLUMNS + 1)))
    scheduler = load_scheduler(Policy("qssf-backfill", dials=strategy.text))
    broker = HandBroker(scheduler, journal, limits=LIMITS, speed_energy=0.5)
    broker.says("n0", node())  # type: ignore[arg-type]
    clocks = []
    for number, weight in enumerate((None, 1.0), start=1):
        start(broker, speed_energy=weight)
        broker.says("n0", launched(number))
        clocks.append(jobs(broker)[-1].sm_clock_frac)
    broker.wait(601.0, "n0")
    broker.ask(submit(4))
    seen = dict(zip(NAMES, broker.state.cluster.arrays.dials.seen[0].tolist(), strict=True))
    assert seen["energy_weight"] == 0.5, "not the weight of a job"
    assert seen["mean_clock"] == pytest.approx(np.mean(clocks) - 1.0)
    assert 1.0 > clocks[0] > clocks[1]


# ---- helpers ---------------------------------------------------------------------------------------------


def jobs(broker: HandBroker) -> list:  # type: ignore[type-arg]
    reply = broker.ask(ListJobs())
    assert isinstance(reply, Jobs)
    return reply.jobs


def nodes(broker: HandBroker) -> list:  # type: ignore[type-arg]
    reply = broker.ask(ListNodes())
    assert isinstance(reply, Nodes)
    return reply.nodes


def explained(broker: HandBroker, job: int) -> str:
    reply = broker.ask(Why(job=job))
    assert isinstance(reply, Explanation)
    return "; ".join([reply.summary, *reply.details])


def orders(broker: HandBroker, kind: type) -> list[object]:
    return of_kind([order for _, order in broker.sent.orders], kind)


def decided(journal: Journal) -> list[object]:
    return [one.action for one in journal_events(journal.path).decisions]


def report(job: int, mhz: int) -> AttemptReport:
    return AttemptReport(job=job, attempt=1, rank=0, state="running", sm_clock_mhz=mhz)
