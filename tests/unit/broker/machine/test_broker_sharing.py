"""Jobs that share GPUs under a broker: permission, messages to nodes, explanations, restarts."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from rlsched.broker.base.entries import Decided, GpuMemorySeen, JoinsLimited
from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.broker.base.profiles import Estimate, WorkloadProfile
from rlsched.broker.compaction import compaction
from rlsched.broker.journal.codec import unpack
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.journal.snapshots import picture_of
from rlsched.broker.queries.as_history import history_of
from rlsched.broker.state.base_ledger import fill, ledger_of
from rlsched.broker.state.job_requests import runs_as, sharing_of
from rlsched.broker.state.known import Known
from rlsched.cluster.arrays import CLOCKS_ALONE
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.models.catalogue import load_catalogue
from rlsched.wire.messages import (
    MPS,
    MPS_FAULT,
    MPS_NEIGHBOUR_FAULT,
    TIME_SLICING,
    Cancel,
    Capabilities,
    Ended,
    Explanation,
    GpuMemory,
    Held,
    Hello,
    History,
    Holding,
    JobInfo,
    Jobs,
    Kill,
    Launch,
    LaunchRefused,
    ListHistory,
    ListJobs,
    ListNodes,
    Metered,
    NodeInfo,
    NodeMessage,
    Nodes,
    Ok,
    RankMetered,
    RankUsage,
    Requeue,
    Stats,
    StatsReport,
    Update,
    Why,
)
from tests.support.broker.hand import LIMITS, draft, ended, hello, launched, of_kind, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed, shape

POLICY = "pack"
"""A job that does not fit shares the GPUs of a running one."""
LIGHT, FULL_MEMORY = "a2c-b64", "bert-large-squad-b8"
"""Workloads that share well, and one that fills the memory of a V100."""


def sharing_hello(gpus: int, *, shares: bool = True, cpus: int = 0, sharing: str = TIME_SLICING) -> Hello:
    can = Capabilities(shares=shares, sharing=sharing, gpu_memory_mib=16_160, fences=True)
    return msgspec.structs.replace(hello("n0", gpus), gpu_type="V100", capabilities=can, cpus=cpus)


def make(
    journal: Journal,
    *,
    shares: bool = True,
    node_shares: bool = True,
    gpus: int = 1,
    cpus: int = 0,
    scheduler: Scheduler | None = None,
    sharing: str = TIME_SLICING,
) -> HandBroker:
    broker = HandBroker(scheduler or load_scheduler(POLICY), journal, limits=LIMITS, shares=shares)
    broker.says("n0", sharing_hello(gpus, shares=node_shares, cpus=cpus, sharing=sharing))
    return broker


def begin(broker: HandBroker, **facts: object) -> Launch | None:
    """Submit a job; returns the launch sent to the node, or None if it waits."""
    before = len(broker.sent.orders)
    broker.ask(submit(**facts))  # type: ignore[arg-type]
    orders = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    if not orders:
        return None
    (order,) = orders
    assert isinstance(order, Launch)
    broker.says("n0", launched(order.job))
    return order


def info(broker: HandBroker, job: int) -> JobInfo:
    reply = broker.ask(ListJobs(job=job, finished=True))
    assert isinstance(reply, Jobs)
    return reply.jobs[0]


def why(broker: HandBroker, job: int) -> str:
    reply = broker.ask(Why(job=job))
    assert isinstance(reply, Explanation)
    return str(reply)


def test_two_jobs_share_a_gpu_and_end_separately(journal: Journal) -> None:
    broker = make(journal)
    one, two = begin(broker, workload=LIGHT), begin(broker, workload=LIGHT)
    assert one is not None
    assert two is not None
    assert (one.gpus, one.beside) == ([0], [])
    assert (two.gpus, two.beside) == ([0], [1])
    assert [info(broker, job).beside for job in (1, 2)] == [["2"], ["1"]]
    speed = info(broker, 2).speed_frac
    assert speed is not None
    assert 0.5 < speed < 1.0
    assert f"shares its GPUs with job 1 ({speed:.2f} of its unshared speed)" in why(broker, 2)
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert (stats.shares, stats.sharing, stats.running) == (True, 2, 2)

    broker.says("n0", ended(1, exit_code=3))
    assert (state(broker, 1), info(broker, 1).exit_code) == ("failed", 3)
    assert (state(broker, 2), info(broker, 2).beside, info(broker, 2).speed_frac) == ("running", [], 1.0)
    broker.says("n0", ended(2))
    assert (state(broker, 2), info(broker, 2).exit_code) == ("completed", 0)
    assert broker.state.cluster.arrays.node.free[0] == 1


def test_cancel_leaves_the_co_tenant_running(journal: Journal) -> None:
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    before = len(broker.sent.orders)
    broker.ask(Cancel(job=1))
    kills = of_kind([order for _, order in broker.sent.orders[before:]], Kill)
    assert [(order.job, order.attempt) for order in kills] == [(1, 1)]  # type: ignore[attr-defined]
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert (state(broker, 1), state(broker, 2)) == ("cancelled", "running")


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        ({"workload": LIGHT}, {"workload": LIGHT}, True),
        ({"workload": LIGHT}, {}, False),
        ({}, {"workload": LIGHT}, False),
        ({"share": "yes"}, {"share": "yes"}, True),
        ({"workload": LIGHT, "share": "no"}, {"workload": LIGHT}, False),
        ({"workload": LIGHT}, {"workload": LIGHT, "share": "no"}, False),
        ({"workload": LIGHT}, {"workload": FULL_MEMORY}, False),
        ({"workload": LIGHT}, {"workload": FULL_MEMORY, "gpu_memory_mib": 5_000}, True),
        ({"workload": FULL_MEMORY, "gpu_memory_mib": 5_000}, {"workload": LIGHT}, True),
        ({"workload": LIGHT, "gpu_memory_mib": 9_000}, {"workload": LIGHT, "gpu_memory_mib": 5_000}, True),
        ({"workload": LIGHT, "gpu_memory_mib": 9_000}, {"workload": LIGHT, "gpu_memory_mib": 6_000}, False),
    ],
)
def test_jobs_share_if_their_memory_fits(
    journal: Journal, first: dict[str, object], second: dict[str, object], is_shared: bool
) -> None:
    """90 % of the 16,160 MiB may be shared."""
    broker = make(journal)
    assert begin(broker, **first) is not None
    assert (begin(broker, **second) is not None) == is_shared


@pytest.mark.parametrize("facts", [{"shares": False}, {"node_shares": False}])
def test_no_sharing_if_the_operator_or_the_node_disables_it(journal: Journal, facts: dict[str, bool]) -> None:
    broker = make(journal, **facts)
    assert begin(broker, workload=LIGHT) is not None
    assert begin(broker, workload=LIGHT) is None


def test_changed_sharing_setting_applies_to_the_next_start(journal: Journal) -> None:
    broker = make(journal)
    begin(broker, workload=LIGHT)
    assert isinstance(broker.ask(Update(job=1, share="no")), Ok)
    assert begin(broker, workload=LIGHT) is None
    assert shape(replayed(journal))[0] == broker.state.cluster.digest()
    before = len(broker.sent.orders)
    broker.ask(Update(job=1, share="yes"))
    (order,) = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert isinstance(order, Launch)
    assert (order.job, order.beside) == (2, [1])
    assert info(broker, 1).share == "yes"


def as_shared(state: Known, job: int) -> tuple[bool, int]:
    """Whether the ledger lets a job share, and its GPU memory, MiB."""
    slot, jobs = state.cluster.slot_of(state.jobs[job].seq), state.cluster.arrays.job
    return not jobs.unshared[slot], int(jobs.gpu_need_mib[slot])


def check_restored(broker: HandBroker, job: int, expected: tuple[bool, int]) -> None:
    """The live ledger, and the ledgers of a snapshot, a replay and a base, share a job alike."""
    journal, digest = broker.journal, broker.state.cluster.digest()
    live = [(record.now_s, record.state_digest) for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), load_scheduler(POLICY))
    assert live == [(record.now_s, record.state_digest) for record in made]
    states = [broker.state, unpack(picture_of(broker.state)), replayed(journal)]
    cut = compaction.made(journal.path, broker.now_s + 1.0)
    assert cut is not None
    assert compaction.put(journal, cut)
    states.append(replayed(journal))
    assert [as_shared(one, job) for one in states] == [expected] * 4
    assert [one.cluster.digest() for one in states[1:3]] == [digest] * 2


def test_update_shares_no_job_that_may_no_longer_share(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_WORTH", 0)
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    broker.says("n0", ended(2, exit_code=1, reason="gpu_out_of_memory"))
    assert broker.state.jobs[2].alone
    before = len(broker.sent.orders)
    assert isinstance(broker.ask(Update(job=2, share="yes")), Ok)
    assert not of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    broker.says("n0", ended(1))
    assert state(broker, 2) == "launching"
    assert begin(broker, workload=LIGHT) is None
    check_restored(broker, 2, (False, 16_160))


def test_update_keeps_the_learnt_memory_need(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_WORTH", 0)
    broker = make(journal)
    can = Capabilities(shares=True, gpu_memory_mib=40_960, fences=True)
    large = msgspec.structs.replace(hello("n1", 1), gpu_type="A100", capabilities=can)
    assert begin(broker, workload=LIGHT, share="no") is not None
    broker.says("n1", large)
    broker.says("n0", ended(1, exit_code=1, reason="gpu_out_of_memory"))
    assert broker.state.jobs[1].gpu_memory_mib == 16_161
    assert isinstance(broker.ask(Update(job=1, share="yes")), Ok)
    assert begin(broker, gpu_memory_mib=16_384, share="no") is None
    check_restored(broker, 1, (True, 16_161))


def uses(broker: HandBroker, job: int, gpu_memory_mib: int) -> None:
    """The node reports a job's GPU memory, and a second passes."""
    attempt = broker.state.jobs[job].attempts
    usage = RankUsage(measured_s=10, gpu_memory_mib=gpu_memory_mib)
    broker.says("n0", Metered(ranks=[RankMetered(job=job, attempt=attempt, rank=0, usage=usage)]))
    broker.wait(1.0, "n0")


def test_memory_that_a_job_uses_beyond_its_request_counts_for_co_tenants(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_WORTH", 0)
    broker = make(journal)
    begin(broker, workload=LIGHT, gpu_memory_mib=4_096)
    for mib in (4_096, 9_100, 3_000, 9_100, 9_200, 200, 12_000):
        uses(broker, 1, mib)  # of two successive reports, the lower figure counts
    seen = [row.entry for row in journal.rows() if isinstance(row.entry, GpuMemorySeen)]
    assert seen == [GpuMemorySeen(job=1, gpu_memory_mib=9_216)]
    assert as_shared(broker.state, 1) == (True, 9_216)
    assert "its GPU memory counts as 9 GiB, because it was seen to use more" in why(broker, 1)
    assert begin(broker, workload=LIGHT, gpu_memory_mib=6_000) is None, "16,160 MiB less a margin of 10 %"
    order = begin(broker, workload=LIGHT, gpu_memory_mib=5_000)
    assert order is not None
    assert (order.beside, order.gpu_memory_mib) == ([1], 5_000)
    check_restored(broker, 1, (True, 9_216))


def test_memory_use_of_jobs_that_never_share_is_no_fact(journal: Journal) -> None:
    broker = make(journal)
    begin(broker, workload=LIGHT, gpu_memory_mib=4_096, share="no")
    for _ in range(3):
        uses(broker, 1, 9_100)
    assert not any(isinstance(row.entry, GpuMemorySeen) for row in journal.rows())


def test_attempt_out_of_gpu_memory_raises_the_need_of_later_jobs(journal: Journal) -> None:
    broker, train = make(journal), ["python", "train.py"]
    for _ in range(20):
        begin(broker, workload=LIGHT, gpu_memory_mib=4_000, command=train, share="no")
        number = len(broker.state.jobs)
        usage = RankUsage(measured_s=5, gpu_memory_mib=8_000)
        end = Ended(job=number, attempt=1, rank=0, exit_code=1, reason="gpu_out_of_memory", usage=usage)
        broker.says("n0", end, after_s=5.0)
    assert state(broker, 20) == "failed"
    begin(broker, workload=LIGHT, gpu_memory_mib=4_000, command=train)
    profile = broker.state.jobs[21].spec.profiles["V100"]
    assert profile.memory_mib is not None
    assert profile.memory_mib.value == pytest.approx(1.25 * 8_000.0), "not by its own bound"
    assert profile.memory_mib.count == 1, "a lower bound that is known teaches nothing"
    assert 10_000 < as_shared(broker.state, 21)[1] < 16_160


def test_need_learnt_from_a_full_gpu_is_at_most_the_gpu(journal: Journal) -> None:
    broker = make(journal)
    begin(broker, command=["python", "train.py"], share="no")
    usage = RankUsage(measured_s=5, gpu_memory_mib=16_000)
    end = Ended(job=1, attempt=1, rank=0, exit_code=1, reason="gpu_out_of_memory", usage=usage)
    broker.says("n0", end, after_s=5.0)
    broker.ask(submit(command=["python", "train.py"]))
    profile = broker.state.jobs[2].spec.profiles["V100"]
    assert profile.memory_mib is not None
    assert profile.memory_mib.value == pytest.approx(16_160.0)


def refused_beside(broker: HandBroker, *, attempt: int = 1, is_about_memory: bool = True) -> str:
    """The node refuses job 2 next to job 1. Returns its reason."""
    assert (state(broker, 2), info(broker, 2).beside) == ("launching", ["1"])
    why_not = "GPU 0 has 4000 of 16160 MiB free, and the job asks for 5000"
    if not is_about_memory:
        why_not = "GPU 0 is in use by process 4711 (python, 100 MiB), not started by rlsched"
    refusal = LaunchRefused(job=2, attempt=attempt, rank=0, message=why_not, is_for_now=True)
    broker.says("n0", msgspec.structs.replace(refusal, is_about_memory=is_about_memory))
    return why_not


def test_after_a_refusal_for_memory_jobs_that_need_less_join_until_a_job_ends(journal: Journal) -> None:
    broker = make(journal)
    begin(broker, workload=LIGHT)
    broker.ask(submit(workload=LIGHT, gpu_memory_mib=5_000))
    why_not = refused_beside(broker)
    job = broker.state.jobs[2]
    assert (job.state, job.alone, job.retries, job.attempts) == ("queued", False, 0, 1), "not again at once"
    assert job.gpu_memory_mib == 0, "it has not run, and needs what it requested"
    assert broker.state.nodes["n0"].state == "up"
    assert why_not in why(broker, 2)
    assert "GPU memory does not suffice" in why(broker, 2)
    limits = JoinsLimited(name="n0", most_mib={0: 4_999})
    assert limits in [row.entry for row in journal.rows()]
    broker.ask(submit(workload=LIGHT, gpu_memory_mib=5_000))
    assert state(broker, 3) == "queued", "it would be refused too"
    broker.ask(submit(workload=LIGHT, gpu_memory_mib=4_999))
    assert (state(broker, 4), info(broker, 4).beside) == ("launching", ["1"])
    assert shape(replayed(journal)) == shape(unpack(picture_of(broker.state))) == shape(broker.state)
    again = ledger_of(broker.state.cluster, "", preemptible=False)
    assert [node.joinable_mib for node in again.nodes] == [{0: 4_999}]
    broker.says("n0", launched(4))
    broker.says("n0", ended(4))
    assert broker.state.cluster.join_limits(0) == {}
    refused_beside(broker, attempt=2)
    broker.says("n0", ended(1))
    assert [info(broker, one).beside for one in (2, 3)] == [["3"], ["2"]], "they share with each other"
    assert (
        len(redecide(journal_events(journal.path), load_scheduler(POLICY))) == broker.state.cluster.decisions
    )
    assert shape(replayed(journal)) == shape(broker.state)


def test_refusal_without_co_tenants_drains_the_node(journal: Journal) -> None:
    broker = make(journal)
    broker.ask(submit(workload=LIGHT, gpu_memory_mib=5_000))
    broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="full", is_about_memory=True))
    assert broker.state.nodes["n0"].state == "drained", "it has reported no memory of its GPUs"


def test_no_job_joins_on_a_gpu_out_of_service_until_it_is_back(journal: Journal) -> None:
    """Its co-tenant continues there, so that the ledger cannot exclude the GPU yet."""
    broker = make(journal)
    begin(broker, workload=LIGHT)
    broker.ask(submit(workload=LIGHT))
    broker.says("n0", Held(held=[Holding(by="in use by process 4711", gpus=[0])]))
    why_not = refused_beside(broker, is_about_memory=False)
    job = broker.state.jobs[2]
    assert (job.state, job.alone, job.retries, job.attempts) == ("queued", False, 0, 1)
    assert broker.state.nodes["n0"].state == "up"
    assert f"n0 refused to start rank 0: {why_not}" in why(broker, 2)
    broker.ask(submit(workload=LIGHT))
    assert state(broker, 3) == "queued"
    assert shape(replayed(journal)) == shape(broker.state)
    broker.says("n0", Held(held=[]))
    assert (state(broker, 2), info(broker, 2).beside) == ("launching", ["1"])
    assert shape(replayed(journal)) == shape(broker.state)


def test_shared_gpu_leaves_room_for_memory_of_other_processes(journal: Journal) -> None:
    broker = make(journal)
    begin(broker, workload=LIGHT, gpu_memory_mib=5_000)
    broker.says("n0", GpuMemory(usable_mib={0: 9_999}))
    broker.ask(submit(workload=LIGHT, gpu_memory_mib=5_000))
    assert state(broker, 2) == "queued"
    broker.says("n0", GpuMemory(usable_mib={0: 10_000}))
    assert (state(broker, 2), info(broker, 2).beside) == ("launching", ["1"])


def test_memory_limit_of_mps_is_that_of_the_launch(journal: Journal) -> None:
    broker = make(journal, sharing=MPS)
    begin(broker, workload=LIGHT)
    for _ in range(2):
        uses(broker, 1, 9_100)
    assert "it has no memory limit" in why(broker, 1)
    assert "its GPU memory counts as 9 GiB" in why(broker, 1)


def test_shared_time_is_charged_by_share(journal: Journal) -> None:
    broker = make(journal)
    begin(broker, workload=LIGHT)
    broker.wait(10.0, "n0")
    begin(broker, workload=LIGHT)
    broker.wait(10.0, "n0")
    rows = broker.ask(ListHistory(states=["running"]))
    assert isinstance(rows, History)
    assert {job.job: job.gpu_s for job in rows.jobs} == pytest.approx({1: 15.0, 2: 5.0}, abs=0.1)
    broker.says("n0", ended(2))
    broker.wait(10.0, "n0")
    broker.says("n0", ended(1))
    assert broker.state.jobs[2].gpu_s == pytest.approx(5.0, abs=0.1)
    assert broker.state.jobs[1].gpu_s == pytest.approx(25.0, abs=0.1)


def test_restart_keeps_co_tenants(journal: Journal) -> None:
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    again = replayed(journal)
    assert shape(again) == shape(broker.state)
    assert again.cluster.arrays.config[0].modelled not in (0, CLOCKS_ALONE)


def test_journal_with_sharing_replays_bit_for_bit(journal: Journal) -> None:
    broker = make(journal, gpus=2)
    for number in range(6):
        begin(broker, num_gpus=1 + number % 2, workload=LIGHT)
        if number % 2:
            running = [job.number for job in broker.state.jobs.values() if job.state == "running"]
            broker.says("n0", ended(running[0]), after_s=5.0)
    live = [record for batch in broker.records for record in batch.records]
    made = redecide(journal_events(journal.path), load_scheduler(POLICY))
    told = [(record.now_s, record.state_digest, record.action) for record in live]
    assert told == [(record.now_s, record.state_digest, record.action) for record in made]
    assert any(getattr(record.action, "share_with", -1) >= 0 for record in made)


def test_base_keeps_the_slot_of_each_tenant(journal: Journal) -> None:
    """The first tenant has left: the second slot is the first one in use."""
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    broker.says("n0", ended(1))
    begin(broker, workload=LIGHT)
    before = broker.state.cluster
    after = ClusterState.empty(OrderedQueue(broker.machine.scheduler.order))
    after.stops_take_time = True
    after.lend_cores()
    jobs = broker.state.job_of_seq
    fill(
        after,
        ledger_of(before, "", preemptible=False),
        {seq: runs_as(job.spec) for seq, job in jobs.items()},
        "",
        broker.now_s,
    )
    for seq, job in jobs.items():
        after.share_job(seq, **sharing_of(job.spec))
    after.use_models(before.arrays.models)
    assert after.digest() == before.digest()
    assert [after.beside(seq) for seq in jobs] == [before.beside(seq) for seq in jobs]


def test_estimated_memory_decides_about_sharing() -> None:
    estimate = Estimate(0.31, 0.1, 4)
    seen = {"V100": WorkloadProfile(util_frac=estimate, memory_mib=Estimate(4000.0, 0.1, 4))}
    asked = draft()
    assert sharing_of(asked) == {"shares": False, "gpu_need_mib": -1}
    learnt = msgspec.structs.replace(asked, profiles=seen)
    assert sharing_of(learnt) == {"shares": True, "gpu_need_mib": 5050}  # 4000 MiB x e^0.233
    assert sharing_of(msgspec.structs.replace(learnt, gpu_memory_mib=6000))["gpu_need_mib"] == 6000
    memory_alone = msgspec.structs.replace(asked, profiles={"V100": WorkloadProfile(memory_mib=estimate)})
    assert not sharing_of(memory_alone)["shares"]
    catalogue = load_catalogue()
    utils = catalogue.traits(["V100"])["util_frac"][1:, 0]
    assert abs(utils[runs_as(learnt) - 1] - 0.31) == min(abs(utils - 0.31))
    assert runs_as(msgspec.structs.replace(learnt, workload=LIGHT)) == catalogue.number(LIGHT)
    assert runs_as(asked) == 0


def test_job_out_of_gpu_memory_while_sharing_is_requeued_for_exclusive_gpus(journal: Journal) -> None:
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    broker.says("n0", ended(2, exit_code=1, reason="gpu_out_of_memory"))
    job = broker.state.jobs[2]
    assert (job.state, job.retries, job.alone) == ("queued", 0, True)
    assert "it shares no GPUs: it was out of GPU memory on shared GPUs" in why(broker, 2)
    assert shape(replayed(journal)) == shape(broker.state)
    broker.says("n0", ended(1))
    assert state(broker, 2) == "launching"
    broker.says("n0", launched(2, 2))
    assert begin(broker, workload=LIGHT) is None
    broker.says("n0", ended(2, 2, exit_code=1, reason="gpu_out_of_memory"))
    assert state(broker, 2) == "failed"


def large(name: str, gpu_type: str, mib: int) -> Hello:
    """A node with one GPU that jobs share by time slicing."""
    can = Capabilities(shares=True, gpu_memory_mib=mib, fences=True)
    return msgspec.structs.replace(hello(name, 1), gpu_type=gpu_type, capabilities=can)


def out_of_memory_beside_another(journal: Journal, used_mib: int) -> HandBroker:
    """Job 2 ran out of memory next to job 1 on an A100 with 40,960 MiB; a V100 with 16,160 MiB is free."""
    broker = HandBroker(load_scheduler(POLICY), journal, limits=LIMITS, shares=True)
    broker.says("a", large("a", "A100", 40_960))
    for number in (1, 2):
        broker.ask(submit(workload=LIGHT))
        broker.says("a", launched(number))
    assert info(broker, 2).beside == ["1"]
    broker.says("v", large("v", "V100", 16_160))
    usage = RankUsage(measured_s=60, gpu_memory_mib=used_mib)
    end = Ended(job=2, attempt=1, rank=0, exit_code=1, reason="gpu_out_of_memory", usage=usage)
    broker.says("a", end, after_s=60.0)
    return broker


def node_of(broker: HandBroker, job: int) -> str:
    attempt = broker.state.jobs[job].active
    return "" if attempt is None else attempt.ranks[0].node


@pytest.mark.parametrize("used_mib", [0, 4_000, 30_000])
def test_job_out_of_memory_on_shared_gpus_gets_gpus_as_large(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, used_mib: int
) -> None:
    """The co-tenant may have left it little, so its use does not show that a smaller GPU suffices."""
    monkeypatch.setattr(compaction, "_WORTH", 0)
    broker = out_of_memory_beside_another(journal, used_mib)
    assert (state(broker, 2), broker.state.jobs[2].gpu_memory_mib) == ("queued", 40_960)
    assert "needs GPUs of 40 GiB" in info(broker, 2).reason
    broker.ask(submit(workload=LIGHT, share="no"))
    assert node_of(broker, 3) == "v", "other jobs still get the smaller GPU"
    broker.says("a", ended(1))
    assert (node_of(broker, 2), broker.state.jobs[2].retries) == ("a", 0)
    check_restored(broker, 2, (False, 40_960))


def test_job_out_of_memory_on_shared_gpus_may_still_be_moved_once_to_larger_ones(journal: Journal) -> None:
    broker = out_of_memory_beside_another(journal, 4_000)
    broker.says("a", ended(1))
    broker.says("h", large("h", "H100", 81_559))
    for attempt, node, needed_mib in ((2, "a", 40_960), (3, "h", 40_961)):
        job = broker.state.jobs[2]
        assert (node_of(broker, 2), job.gpu_memory_mib, job.retries) == (node, needed_mib, 0)
        assert shape(replayed(journal)) == shape(broker.state)
        broker.says("x", large("x", "B200", 183_359))
        broker.says(node, launched(2, attempt))
        broker.says(node, ended(2, attempt, exit_code=1, reason="gpu_out_of_memory"))
    assert state(broker, 2) == "failed"


def test_gpus_as_large_are_those_of_the_same_type(journal: Journal) -> None:
    """Drivers report slightly different sizes; the ledger counts the smallest for the type."""
    broker = HandBroker(load_scheduler(POLICY), journal, limits=LIMITS, shares=True)
    broker.says("a", large("a", "A100", 40_960))
    for number in (1, 2):
        broker.ask(submit(workload=LIGHT))
        broker.says("a", launched(number))
    broker.says("b", large("b", "A100", 40_536))
    broker.says("a", ended(2, exit_code=1, reason="gpu_out_of_memory"))
    assert (node_of(broker, 2), broker.state.jobs[2].gpu_memory_mib) == ("b", 40_536)


def test_why_names_the_reason_against_sharing(journal: Journal) -> None:
    broker = make(journal)
    begin(broker, workload=LIGHT)
    begin(broker)
    begin(broker, workload=LIGHT, share="no")
    begin(broker, workload=FULL_MEMORY)
    assert "`rlsched update --share yes` permits sharing" in why(broker, 2)
    assert "it shares no GPUs: as it was submitted" in why(broker, 3)
    assert "share the GPUs of job 1 (V100) (not open: GPU memory does not suffice)" in why(broker, 4)


def test_tenants_of_a_lost_node_are_requeued_and_share_again(journal: Journal) -> None:
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    broker.wait(LIMITS.lost_after_s + 5.0)
    assert [state(broker, job) for job in (1, 2)] == ["queued", "queued"]
    assert [broker.state.cluster.arrays.gpu.free_milli[0], broker.state.seats.emptied] == [1000, []]
    before = len(broker.sent.orders)
    broker.says("n0", sharing_hello(1))
    orders = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert [(order.job, order.attempt, order.beside) for order in orders] == [(1, 2, []), (2, 2, [1])]  # type: ignore[attr-defined]
    assert shape(replayed(journal)) == shape(broker.state)


def test_requeued_tenant_shares_again(journal: Journal) -> None:
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    assert isinstance(broker.ask(Requeue(job=1)), Ok)
    assert (state(broker, 2), broker.state.jobs[2].attempts) == ("running", 1)
    before = len(broker.sent.orders)
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    (order,) = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert isinstance(order, Launch)
    assert (order.job, order.attempt, order.beside) == (1, 2, [2])


def test_launches_are_repeated_with_co_tenants_when_a_node_registers(journal: Journal) -> None:
    """Its launches were lost: every unacknowledged launch is sent again, with its co-tenants."""
    broker = make(journal)
    for _ in range(2):
        broker.ask(submit(workload=LIGHT))
    before = len(broker.sent.orders)
    broker.says("n0", sharing_hello(1))
    orders = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert [(order.job, order.attempt, order.beside) for order in orders] == [(1, 1, [2]), (2, 1, [1])]  # type: ignore[attr-defined]


def test_preemption_of_a_tenant_leaves_its_co_tenant_and_a_third_job_waits(journal: Journal) -> None:
    policy = Policy("gittins", name="p", share={"max_jobs": 3})
    broker = make(journal, scheduler=load_scheduler(policy))
    for _ in range(2):
        begin(broker, workload=LIGHT, preemptible=True)
    state = broker.state
    seq = state.jobs[2].seq
    state.cluster.check_preempt(seq, broker.now_s + 1.0)
    entry = Decided(
        number=state.cluster.decisions,
        partition=state.cluster.partition_names[0],
        source="rule",
        action=Preempt(seq=seq),
        contested=False,
        guard="",
    )
    state.apply(entry, broker.now_s + 1.0)
    attempt, other = state.jobs[2].attempt, state.jobs[1].attempt
    assert attempt is not None
    assert other is not None
    assert (attempt.ending, attempt.tenants, other.tenants) == ("preempted", 1, 1)
    assert state.cluster.beside(state.jobs[1].seq) == []
    broker.now_s += 2.0
    before = len(broker.sent.orders)
    broker.ask(submit(workload=LIGHT))
    third = state.jobs[3].attempt
    assert third is not None
    assert third.leaving == {(2, 0)}
    assert not of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    broker.says("n0", ended(2, exit_code=143, reason="killed"))
    launches = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert 3 in [order.job for order in launches]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("asked", "is_shared"), [(4, True), (5, False)])
def test_sharing_job_has_exactly_the_requested_cores(journal: Journal, asked: int, is_shared: bool) -> None:
    """The first job has four of eight cores."""
    broker = make(journal, cpus=8)
    first, second = (begin(broker, workload=LIGHT, num_cpus=count) for count in (4, asked))
    assert first is not None
    assert first.cores == 4
    assert (second is not None) == is_shared
    if second is not None:
        assert second.cores == asked
        assert broker.state.cluster.arrays.node.cpu_free_milli[0] == 0
    else:
        assert "its nodes have too few cores to spare" in why(broker, 2)


def test_snapshot_keeps_co_tenants(journal: Journal) -> None:
    broker = make(journal)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    again = unpack(picture_of(broker.state))
    assert shape(again) == shape(broker.state)
    assert again.models.shares
    assert again.models.shared_frac(again.jobs[2].seq) == broker.state.models.shared_frac(again.jobs[2].seq)
    assert [again.cluster.beside(job.seq) for job in again.job_of_seq.values()] == [[1], [0]]


def test_history_marks_exclusive_jobs(journal: Journal) -> None:
    broker = make(journal)
    for share in ("auto", "no"):
        begin(broker, workload=LIGHT, share=share)
    assert history_of(journal.path).trace.extra["shares"].tolist() == ["", "false"]


def test_memory_of_a_gpu_type_is_its_minimum_in_any_order_of_registrations() -> None:
    def least(state: ClusterState) -> list[int]:
        return [int(mib) for mib in state.arrays.models.gpu.memory_mib]

    nodes = [
        NodeSpec(name=f"n{number}", gpus=2, gpu_type=kind, gpu_memory_mib=mib)
        for number, (kind, mib) in enumerate([("A100", 40_000), ("A100", 80_000), ("V100", 0)])
    ]
    state = ClusterState.empty(OrderedQueue(load_scheduler("tuned").order))
    models = LedgerModels(state)
    models.share(True)
    for number, node in enumerate(nodes):
        state.add_node(node)
        models.node(number, [], shares=True)
    assert least(state)[0] == 40_000
    by_catalogue = least(state)[1]
    assert by_catalogue > 0
    state.refit_node(0, cpus=0, memory_mib=0, gpu_memory_mib=60_000)
    models.node(0, [], shares=True)
    assert least(state) == [60_000, by_catalogue]
    late = LedgerModels(state)
    late.share(True)
    assert least(state) == [60_000, by_catalogue]


def test_mig_instances_are_not_shared(journal: Journal) -> None:
    broker = HandBroker(load_scheduler(POLICY), journal, limits=LIMITS, shares=True)
    can = Capabilities(shares=False, gpu_memory_mib=9_984, fences=True)
    kind = "NVIDIA H100 80GB HBM3/1g.10gb"
    broker.says("n0", msgspec.structs.replace(hello("n0", 2), gpu_type=kind, capabilities=can))
    begun = [begin(broker, workload=LIGHT) for _ in range(3)]
    assert [None if one is None else one.gpus for one in begun] == [[0], [1], None]
    assert "it runs on MIG instances: memory and multiprocessors are its own" in why(broker, 1)
    assert "MIG" not in why(broker, 3)


def test_launch_tells_whether_later_jobs_may_share_and_the_memory_need(journal: Journal) -> None:
    broker = make(journal, gpus=3)
    orders = [
        begin(broker, workload=LIGHT),
        begin(broker, workload=LIGHT, share="no"),
        begin(broker, workload=LIGHT, gpu_memory_mib=4096),
    ]
    assert [(order.shares, order.gpu_need_mib) for order in orders if order] == [
        (True, 0),
        (False, 0),
        (True, 4096),
    ]


def test_launch_without_share_shares_nothing(journal: Journal) -> None:
    order = begin(make(journal, shares=False), workload=LIGHT, gpu_memory_mib=4096)
    assert order is not None
    assert (order.shares, order.gpu_need_mib) == (False, 0)


def nodes_of(broker: HandBroker) -> NodeInfo:
    reply = broker.ask(ListNodes())
    assert isinstance(reply, Nodes)
    return reply.nodes[0]


def test_isolation_is_shown(journal: Journal) -> None:
    sliced = make(journal)
    begin(sliced, workload=LIGHT)
    assert "its GPUs are shared by time slicing: co-tenants take turns" in why(sliced, 1)
    assert info(sliced, 1).shared_by == [TIME_SLICING]
    assert nodes_of(sliced).sharing == TIME_SLICING
    assert "MPS" not in str(nodes_of(sliced).notes)


def test_isolation_by_mps_and_jobs_outside_of_it_are_shown(journal: Journal) -> None:
    broker = make(journal, gpus=2, sharing=MPS)
    begin(broker, workload=LIGHT, gpu_memory_mib=4096)
    begin(broker, workload=LIGHT, share="no")
    assert "a fatal GPU fault of one co-tenant ends all" in why(broker, 1)
    assert "its memory limit is 4 GiB" in why(broker, 1)
    assert "MPS" not in why(broker, 2)
    assert [info(broker, job).shared_by for job in (1, 2)] == [[MPS], []]
    assert (nodes_of(broker).sharing, nodes_of(broker).notes[-1]) == (MPS, "GPUs shared by MPS")
    rank = RankMetered(job=1, attempt=1, rank=0, usage=RankUsage(), outside_mps=True)
    broker.says("n0", Metered(ranks=[rank]))
    assert nodes_of(broker).notes[-1].startswith("job 1 without MPS")
    assert "on n0 it runs without MPS, by time slicing and without a memory limit" in why(broker, 1)
    assert state(broker, 1) == "running"
    broker.says("n0", Metered(ranks=[msgspec.structs.replace(rank, outside_mps=False)]))
    assert nodes_of(broker).notes[-1] == "GPUs shared by MPS"
    assert "without MPS" not in why(broker, 1)


def test_fault_under_mps_costs_neighbours_nothing(journal: Journal) -> None:
    broker = make(journal, sharing=MPS)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    broker.says("n0", ended(1, reason=MPS_NEIGHBOUR_FAULT, exit_code=1))
    broker.says("n0", ended(2, exit_code=1))
    assert state(broker, 2) == "failed"
    job = broker.state.jobs[1]
    assert (job.retries, job.losses, job.alone) == (0, 0, False)
    assert "ended by the GPU fault of a co-tenant, which ends all jobs of a GPU under MPS" in why(broker, 1)


def test_fault_of_unknown_cause_under_mps_ends_sharing(journal: Journal) -> None:
    broker = make(journal, sharing=MPS)
    for _ in range(2):
        begin(broker, workload=LIGHT)
    broker.says("n0", ended(1, reason=MPS_FAULT, exit_code=1), ended(2, reason=MPS_FAULT, exit_code=1))
    jobs = [broker.state.jobs[number] for number in (1, 2)]
    assert [(job.retries, job.losses, job.alone) for job in jobs] == [(0, 0, True)] * 2
    assert {state(broker, job) for job in (1, 2)} == {"launching", "queued"}


@pytest.mark.parametrize("fault", [MPS_NEIGHBOUR_FAULT, MPS_FAULT])
@pytest.mark.parametrize(
    "other",
    [
        ended(1, rank=1, exit_code=1),
        ended(1, rank=1, exit_code=137, reason="out_of_memory"),
        ended(1, rank=1, exit_code=1, reason="gpu_out_of_memory"),
        ended(1, rank=1, exit_code=143, reason="node_stopped"),
        LaunchRefused(job=1, attempt=1, rank=1, message="busy"),
    ],
    ids=["exit", "memory", "gpu-memory", "stopped", "refused"],
)
def test_gang_is_forgiven_a_fault_in_any_order_of_reports(
    journal: Journal, fault: str, other: NodeMessage
) -> None:
    """One rank has ended with a co-tenant; another one then fails for want of it."""
    first = {0: ended(1, rank=0, exit_code=1, reason=fault), 1: other, 2: ended(1, rank=2, exit_code=1)}
    found = set()
    for number, order in enumerate(itertools.permutations(first)):
        path = Journal(journal.path.with_name(f"{number}.sqlite"))
        broker = HandBroker(load_scheduler(POLICY), path, limits=LIMITS, shares=True)
        for rank in range(3):
            hi = msgspec.structs.replace(sharing_hello(1, sharing=MPS), name=f"n{rank}")
            broker.says(f"n{rank}", hi)
        broker.ask(submit(3, workload=LIGHT))
        for rank in (0, 2) if isinstance(other, LaunchRefused) else range(3):
            broker.says(f"n{rank}", launched(1, rank=rank))
        for rank in order:
            broker.says(f"n{rank}", first[rank])
        job = broker.state.jobs[1]
        found.add((job.live, job.retries, job.losses, job.alone))
        assert shape(replayed(path)) == shape(broker.state)
        path.close()
    assert found == {(True, 0, 0, fault == MPS_FAULT)}


def test_fault_does_not_forgive_a_user_whom_the_nodes_refuse(journal: Journal) -> None:
    refused = LaunchRefused(job=1, attempt=1, rank=1, message="no such user", is_about_owner=True)
    reports = {0: ended(1, rank=0, exit_code=1, reason=MPS_NEIGHBOUR_FAULT), 1: refused}
    for number, order in enumerate(itertools.permutations(reports)):
        path = Journal(journal.path.with_name(f"{number}.sqlite"))
        broker = HandBroker(load_scheduler(POLICY), path, limits=LIMITS, shares=True)
        for rank in range(2):
            broker.says(f"n{rank}", msgspec.structs.replace(sharing_hello(1, sharing=MPS), name=f"n{rank}"))
        broker.ask(submit(2, workload=LIGHT))
        for rank in order:
            broker.says(f"n{rank}", reports[rank])
        assert state(broker, 1) == "failed"
        path.close()


def test_memory_limit_of_mps_is_not_the_size_of_the_gpu(journal: Journal) -> None:
    broker = make(journal, sharing=MPS)
    begin(broker, workload=LIGHT, gpu_memory_mib=4096)
    broker.says("n0", ended(1, reason="gpu_out_of_memory", exit_code=1))
    job = broker.state.jobs[1]
    assert (job.alone, job.gpu_memory_mib, job.retries) == (True, 16_160, 0)
    assert state(broker, 1) == "launching"


@pytest.mark.parametrize("limits_torch", [False, True])
def test_memory_limit_of_torch_is_not_the_size_of_the_gpu(journal: Journal, limits_torch: bool) -> None:
    broker = make(journal)
    hello = sharing_hello(1)
    can = msgspec.structs.replace(hello.capabilities, limits_torch=limits_torch)
    broker.says("n0", msgspec.structs.replace(hello, capabilities=can))
    begin(broker, workload=LIGHT, gpu_memory_mib=4096)
    assert ("PyTorch's memory limit is 4 GiB" in why(broker, 1)) == limits_torch
    broker.says("n0", ended(1, reason="gpu_out_of_memory", exit_code=1))
    job = broker.state.jobs[1]
    assert (job.alone, state(broker, 1)) == ((True, "launching") if limits_torch else (False, "failed"))
