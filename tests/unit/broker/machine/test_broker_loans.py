"""Idle CPU cores that a broker lends: orders to nodes, withdrawals, explanations, restarts."""

from __future__ import annotations

from contextlib import ExitStack, closing

import msgspec
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.wire.messages import (
    TIME_SLICING,
    AttemptReport,
    Capabilities,
    Explanation,
    Hello,
    Jobs,
    Launch,
    ListJobs,
    RankUsage,
    Stats,
    StatsReport,
    Why,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import LIMITS, ended, hello, launched, of_kind, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed

HUNGRY, FRUGAL = "resnet18-imagenet-b128", "gpt2-b4"
"""Workloads that can use 8.66 cores and 1 core per GPU."""
LENDS = Policy("fifo-backfill", share={}, cores=True)


def node(*jobs: int, lends: bool = True) -> Hello:
    """A node with four GPUs and 16 cores, on which these jobs run."""
    can = Capabilities(shares=True, lends=lends, sharing=TIME_SLICING, gpu_memory_mib=16_160, fences=True)
    runs = [AttemptReport(job=job, attempt=1, rank=0, state="running") for job in jobs]
    return msgspec.structs.replace(hello("n0", 4, *runs), gpu_type="V100", capabilities=can, cpus=16)


def make(journal: Journal, policy: Policy = LENDS, *jobs: int, shares: bool = True) -> HandBroker:
    broker = HandBroker(RuleScheduler(policy), journal, limits=LIMITS, shares=shares)
    broker.says("n0", node(*jobs))
    return broker


def begin(broker: HandBroker, workload: str, cores: int, gpus: int = 1) -> Launch:
    before = len(broker.sent.orders)
    broker.ask(submit(gpus, workload=workload, num_cpus=cores, share="no"))
    (order,) = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert isinstance(order, Launch)
    broker.says("n0", launched(order.job))
    return order


def lent(broker: HandBroker) -> list[int]:
    """Cores lent to each live job, as users see them."""
    reply = broker.ask(ListJobs())
    assert isinstance(reply, Jobs)
    return [row.lent_cpus for row in sorted(reply.jobs, key=lambda row: row.job)]


def why(broker: HandBroker, job: int) -> str:
    reply = broker.ask(Why(job=job))
    assert isinstance(reply, Explanation)
    return str(reply)


def test_idle_cores_are_lent_until_a_job_requests_them(journal: Journal) -> None:
    broker = make(journal)
    order = begin(broker, HUNGRY, 2)
    assert (order.cores, order.lent_cores) == (2, 7)
    assert "has 7 idle cores in addition to its 2 requested, until another job requests them" in why(
        broker, 1
    )
    order = begin(broker, FRUGAL, 8)
    assert (order.cores, order.lent_cores) == (8, 0)
    assert lent(broker) == [0, 0]
    assert "idle core" not in why(broker, 1)
    broker.says("n0", ended(2))
    order = begin(broker, HUNGRY, 4, gpus=2)
    assert (order.cores, order.lent_cores) == (4, 10), "5 cores for each of two GPUs"
    assert lent(broker) == [0, 10]
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert stats.lent_cpus == 10
    attempts = [broker.state.jobs[job].attempt for job in (1, 3)]
    assert [one is not None and one.was_lent for one in attempts] == [True, True]
    broker.says("n0", ended(3))
    broker.says("n0", ended(1))
    assert broker.state.cluster.arrays.node.cpu_free_milli[0] == 16_000


@pytest.mark.parametrize("off", ["policy", "share", "node"])
def test_no_loans(journal: Journal, off: str) -> None:
    policy = (
        LENDS.with_settings(cores=False)
        if off == "policy"
        else LENDS.with_settings(plain_without_models=True)
    )
    broker = make(journal, policy, shares=off != "share")
    if off == "node":
        broker.says("n0", node(lends=False))
    order = begin(broker, HUNGRY, 2)
    assert (order.cores, order.lent_cores) == (2, 0)


def test_repeated_order_has_the_loan_of_now(journal: Journal) -> None:
    broker = make(journal)
    broker.ask(submit(workload=HUNGRY, num_cpus=2, share="no"))
    broker.ask(submit(workload=FRUGAL, num_cpus=9, share="no"))
    before = len(broker.sent.orders)
    broker.says("n0", node())
    first, second = of_kind([order for _, order in broker.sent.orders[before:]], Launch)
    assert isinstance(first, Launch)
    assert isinstance(second, Launch)
    assert (first.cores, first.lent_cores) == (2, 0)
    assert (second.cores, second.lent_cores) == (9, 0)


@pytest.mark.parametrize("change", ["restart", "restart without sharing", "compaction"])
def test_restart_keeps_loans_and_free_cores(journal: Journal, change: str) -> None:
    policy = LENDS.with_settings(plain_without_models=True)
    broker = make(journal, policy)
    begin(broker, HUNGRY, 2)
    begin(broker, HUNGRY, 3)
    assert lent(broker) == [7, 4]
    with closing(journal), ExitStack() as stack:
        if change == "compaction":
            journal.close()
            journal = stack.enter_context(compacted(journal.path, broker.now_s + 1.0))
        after = make(journal, policy, 1, 2, shares=change != "restart without sharing")
        assert lent(after) == [7, 4]
        assert after.state.cluster.arrays.node.cpu_free_milli[0] == 11_000
        begin(after, FRUGAL, 8)
        assert lent(after) == [0, 0, 0], "three cores are free: less than each loan"
        for job in (1, 2, 3):
            after.says("n0", ended(job))
        assert after.state.cluster.arrays.node.cpu_free_milli[0] == 16_000


@pytest.mark.parametrize(("used_milli", "expected"), [(3_900, 1), (1_000, 0), (6_400, 4)])
@pytest.mark.parametrize("restarts", [False, True])
def test_jobs_borrow_what_earlier_attempts_of_the_command_used(
    journal: Journal, used_milli: int, expected: int, restarts: bool
) -> None:
    """The GPU time is that of a workload that needs one core."""
    broker = make(journal)
    command = ["python", "train.py", "--seed", "1"]
    broker.ask(submit(num_cpus=4, command=command, share="no"))
    broker.says("n0", launched(1))
    usage = RankUsage(measured_s=100, gpu_milli=960, cpu_milli=used_milli)
    broker.says("n0", msgspec.structs.replace(ended(1), usage=usage))
    if restarts:
        broker = make(journal)
    broker.ask(submit(num_cpus=4, command=[*command[:-1], "2"], share="no"))
    (order,) = (one for _, one in broker.sent.orders if isinstance(one, Launch) and one.job == 2)
    assert (order.cores, order.lent_cores) == (4, expected)
    assert replayed(journal).cluster.digest() == broker.state.cluster.digest()
    again = make(journal, LENDS, *([2] if restarts else []))
    assert again.state.cluster.cpu_milli_each(1) == (4_000, 1000 * expected)


def test_attempts_with_a_loan_teach_only_cores_and_memory(journal: Journal) -> None:
    broker = make(journal)
    usage = RankUsage(measured_s=100, gpu_milli=800, cpu_milli=6_000, memory_mib=900, gpu_memory_mib=2_000)
    for job, cores, name in ((1, 2, "lent"), (2, 16, "own")):
        broker.ask(submit(num_cpus=cores, command=["python", f"{name}.py"], workload=HUNGRY, share="no"))
        broker.says("n0", launched(job))
        broker.says("n0", msgspec.structs.replace(ended(job), usage=usage))
    found = {one.command: set(one.fields) for one in broker.state.profiles.kept_profiles()}
    learnt, whole = {"cores_each", "host_mib", "memory_mib"}, {"util_frac", "full_util_frac"}
    assert sorted(found.values(), key=len) == [learnt, learnt | whole]


def test_journal_with_loans_replays_bit_for_bit(journal: Journal) -> None:
    broker = make(journal)
    for workload, cores in ((HUNGRY, 2), (HUNGRY, 3), (FRUGAL, 8)):
        begin(broker, workload, cores)
    broker.says("n0", ended(1))
    begin(broker, HUNGRY, 1)
    events = journal_events(journal.path)
    records = redecide(events, RuleScheduler(LENDS))
    made = [one.action for instant in events.instants for one in instant.decisions]
    assert [record.action for record in records] == made
    assert len({getattr(action, "cpu_milli_each", -1) for action in made}) > 3
