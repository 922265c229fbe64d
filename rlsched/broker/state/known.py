"""The class `Known`: fields of the broker's state, and simple queries.

The module `broker_state` applies facts (journal entries) to the fields.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from rlsched.broker.base.eligibility import Eligibility
from rlsched.broker.base.entries import BasePart, BillPriced, ChosenPolicy, EnergyPriced, JobSubmitted
from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.broker.base.numbers import NumberOfSeq, Numbers
from rlsched.broker.base.profiles import Profiles
from rlsched.broker.state.accounts import AccountMembers
from rlsched.broker.state.arrays import Arrays, JobArray
from rlsched.broker.state.bills import JobBill, PriceSums, job_bill, spans_of
from rlsched.broker.state.fair_share import FairShareUsage
from rlsched.broker.state.finished_job import job_of
from rlsched.broker.state.finished_table import EndedTable
from rlsched.broker.state.gates import Gates
from rlsched.broker.state.gpu_handover import GpuHandover
from rlsched.broker.state.holdings import NodeHoldings
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.broker.state.nodes import Node
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.priorities import Priorities
from rlsched.broker.state.quotas import QuotaTable
from rlsched.cluster.demand import Demand
from rlsched.cluster.state import ClusterState
from rlsched.decide.options import PriceOptions
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.errors import JournalError
from rlsched.wire.messages import UsedSpan


class Known:
    """State of the broker, without the code that applies facts (journal entries) to it.

    Args:
        predictions: Run-time predictions, which receive every submission, start and end, in order.
        order: Order of the queue.
        half_life_s: Half-life of a user's usage, seconds; infinite: fair share is off.

    Attributes:
        cluster: The ledger: the cluster state as the scheduler sees it.
        jobs: Unfinished jobs and the latest finished jobs, by job number. `forget` removes finished jobs from
            it. The method `job` also finds the removed jobs, in `table`.
        ended_jobs: (end in Unix seconds, job number) of the finished jobs in `jobs`, in order of their end.
        numbers: All job numbers, ascending.
        table: The journal's table of finished jobs; None: all finished jobs are in `jobs`.
        job_of_seq: Live jobs by their sequence number in `cluster`.
        number_of_seq: Job number of every job that has been in `cluster`, by sequence number.
        tokens: Job number by submission token, of the jobs in `jobs`. `job_of_token` also finds other jobs.
        nodes: Nodes by name, in order of registration.
        epoch: Epoch of the last broker that opened the journal, 0 before the first.
        last_number: Highest job number assigned, including numbers assigned before a restore from a backup.
        last_attempt: Attempt number set by the last restore from a backup. New attempts get higher numbers.
        highest_attempt: Highest number of any attempt of any job.
        restored_s: Time of the last restore from a backup, Unix seconds; None: never.
        taken_over: Whether the last restore was a takeover: a standby continued from its copy of the journal.
        awaited: Nodes that have not registered since the restore; they might run jobs that are not in the
            journal.
        identity: Random ID of the cluster (`BrokerStarted.cluster`).
        chosen: The policy set by `rlsched policy set`, if it is in use; else None.
        order: Order of the queue.
        now_s: Time of the last entry, Unix seconds.
        asked_for_s: By partition: time of the next decision, as its last `Wait` action requested, Unix
            seconds.
        decisions: Number of decisions by source.
        contested: Number of decisions with more than one legal action, by source.
        interventions: Number of decisions of the guard (which limits a policy), by reason. The reason is
            the text before the colon in `Decided.guard`.
        outcomes: Number of finished jobs by state.
        seats: Preempted jobs whose processes still run on GPUs that are allocated to other jobs.
        models: Models of job speed that the ledger uses: all models if jobs can share GPUs, otherwise at most
            the models of clocks.
        on_finished: Called with each job that finishes, when the entry that ends it is applied.
        priorities: Levels and weights of live jobs.
        usage: GPU-seconds charged to users, for fair share.
        profiles: Learnt resource use of jobs.
        holdings: GPUs that the broker cannot allocate, such as GPUs held by jobs of other systems.
        eligibility: Waiting jobs that are not in the queue, and the reasons.
        arrays: Job arrays; their tasks are in `jobs`.
        gates: Holds, begin times and dependencies.
        quotas: Limits for users, accounts and VCs, and their usage.
        accounts: Accounts to which users can charge jobs.
        energy_price: The last journal entry about the price of electricity; None if no price was recorded.
        price_options: Options by which jobs wait for a lower price; None: no jobs wait for it, or unknown.
        price_sums: Integral of this price over time.
        bill_price: The last journal entry about the series that only bills use; None if there was none.
        bill_price_sums: Integral of this series over time.
        health_failures: Number of times that a healthy node became unhealthy, summed over all nodes.
        ran_on: By user: bit mask of the nodes, by ledger index, that have started a job of the user.
        policy_id: ID of the policy that decides; used when a base is restored.
    """

    def __init__(self, predictions: Predictions, order: Order, half_life_s: float = math.inf) -> None:
        self.cluster = ClusterState.empty(OrderedQueue(order))
        self.cluster.stops_take_time = True
        self.predictions = predictions
        self.jobs: dict[int, Job] = {}
        self.ended_jobs: deque[tuple[float, int]] = deque()
        self.numbers = Numbers()
        self.table: EndedTable | None = None
        self.job_of_seq: dict[int, Job] = {}
        self.number_of_seq = NumberOfSeq()
        self.tokens: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.epoch = 0
        self.last_number = 0
        self.last_attempt = self.highest_attempt = 0
        self.restored_s: float | None = None
        self.taken_over = False
        self.awaited: set[str] = set()
        self.identity = ""
        self.chosen: ChosenPolicy | None = None
        self.order = order
        self.now_s = 0.0
        self.decisions: dict[str, int] = {}
        self.contested: dict[str, int] = {}
        self.interventions: dict[str, int] = {}
        self.outcomes: dict[str, int] = {}
        self.asked_for_s: dict[str, float] = {}
        self.seats = GpuHandover()
        self.models = LedgerModels(self.cluster)
        self.on_finished: Callable[[Job], object] = _nobody
        self.priorities = Priorities(self.cluster)
        self.usage = FairShareUsage(half_life_s)
        self.profiles = Profiles()
        self.holdings = NodeHoldings(self.cluster)
        self.eligibility = Eligibility(self.cluster)
        self.gates = Gates(self.eligibility)
        self.arrays = Arrays(self.gates)
        self.quotas = QuotaTable(self.eligibility)
        self.accounts = AccountMembers()
        self.energy_price: EnergyPriced | None = None
        self.price_options: PriceOptions | None = None
        self.price_sums = PriceSums()
        self.bill_price: BillPriced | None = None
        self.bill_price_sums = PriceSums()
        self.health_failures = 0
        self.ran_on: dict[str, int] = {}
        self._can_run: dict[tuple[str, Demand], bool] = {}
        self.policy_id = ""
        self._base: list[BasePart] = []

    def set_price(self, entry: EnergyPriced, now_s: float) -> None:
        """Set the price of electricity and the power limit. `now_s`: time of `entry`, Unix seconds."""
        self.price_sums = self.price_sums.after(entry, now_s, self._oldest_s())
        self.energy_price = entry
        self.models.limit_power(entry.limit_w, entry.limit_falls, soft=entry.limit_soft)
        self.cluster.set_price(
            entry.ratio, entry.outlook, entry.until_s, entry.from_s, entry.ahead, entry.rank
        )

    def set_bill_price(self, entry: BillPriced, now_s: float) -> None:
        """Set the price that only bills use. `now_s`: time of `entry`, Unix seconds."""
        self.bill_price_sums = self.bill_price_sums.after(entry, now_s, self._oldest_s())
        self.bill_price = entry

    def _oldest_s(self) -> float:
        """Return the start of the oldest attempt on any node, Unix seconds; infinite if there is none."""
        numbers = {number for node in self.nodes.values() for number in node.live_jobs}
        attempts = (self.jobs[number].attempt for number in numbers)
        return min((one.seated_s for one in attempts if one is not None), default=math.inf)

    def job_bill(self, job: Job, used_j: float | None, now_s: float) -> JobBill:
        """Return the bill of a job; arguments as in `rlsched.broker.state.bills.job_bill`."""
        return job_bill(self.price_sums, self.bill_price_sums, job, used_j, now_s)

    def spans_of(self, job: Job, attempt: Attempt, used_j: float | None, end_s: float) -> list[UsedSpan]:
        """Return the use of a job's attempt up to `end_s`; see `rlsched.broker.state.bills.spans_of`."""
        if attempt.seated_s == math.inf:
            return []
        gpu_s = job.spec.num_gpus * (attempt.held_s if attempt.has_ended else attempt.held_until_s(end_s))
        return spans_of(self.price_sums, self.bill_price_sums, attempt, gpu_s, used_j, end_s)

    def clear_on_finished(self) -> None:
        """Stop calling `on_finished` for finished jobs."""
        self.on_finished = _nobody

    def can_ever_run(self, vc: str, demand: Demand) -> bool:
        """Return whether a job's demand fits the registered nodes if all nodes are up and idle."""
        known = self._can_run.get((vc, demand))
        if known is None:
            gone = self.removed_nodes()
            known = self.cluster.can_ever_run(vc, demand, gone) and not self.is_uneven(vc, demand.gpus)
            self._can_run[vc, demand] = known
        return known

    def removed_nodes(self) -> set[int]:
        """Return the ledger indexes of nodes that were replaced, or that an operator removed."""
        there = {node.number for node in self.nodes.values() if not node.removed}
        return set(range(len(self.cluster.node_names))) - there

    def is_uneven(self, vc: str, num_gpus: int) -> bool:
        """Return whether a job would get unequal numbers of GPUs on its nodes, and their engine forbids this.

        An engine forbids this if it lacks the ability `per_node_indices`. All its nodes in a partition have
        the same number of GPUs, so a job of several nodes must request a multiple of this number.
        """
        own, shared = self.cluster.partitions_of(vc)
        part_of = self.cluster.arrays.node.part_of
        sizes = [
            node.spec.gpus
            for node in self.nodes.values()
            if not node.spec.capabilities.per_node_indices and part_of[node.number] in (own, shared)
        ]
        return any(0 < size < num_gpus and num_gpus % size for size in sizes)

    @property
    def num_finished(self) -> int:
        """Number of jobs that have ever finished."""
        return sum(self.outcomes.values())

    def fenced_jobs(self, node: Node) -> list[Job]:
        """Return the jobs that `node` kills after `lost_after_s` without a broker, ordered by job number."""
        if not node.spec.capabilities.fences:
            return []
        jobs = [self.jobs[number] for number in sorted(node.live_jobs)]
        return [job for job in jobs if job.spec.lost_after_s]

    def has_begun(self, job: int, attempt: int) -> bool:
        """Return whether the journal contains attempt `attempt` of a job, or a later one."""
        known = self.job(job)
        return known is not None and known.attempt is not None and attempt <= known.attempt.number

    def job(self, number: int) -> Job | None:
        """Return a job from memory or from the journal's table; None: the job does not exist.

        Raises:
            JournalError: the job's row is damaged.
        """
        job = self.jobs.get(number)
        if job is not None or self.table is None or number not in self.numbers:
            return job
        row = self.table.row(number)
        return None if row is None else job_of(row)

    def called(self, number: int) -> str:
        """Return the job ID for users: the job number, or `17_3` for task 3 of array 17."""
        try:
            job = self.job(number)
        except JournalError:
            job = None
        return str(number) if job is None else job.called

    def spec(self, number: int) -> JobSubmitted | None:
        """Return the submission of a job or an array by its number; None: there is no such job.

        Raises:
            JournalError: the job's row is damaged.
        """
        array = self.arrays.known.get(number)
        if array is not None:
            return array.spec
        job = self.job(number)
        return None if job is None else job.spec

    def task(self, array: JobArray, task: int) -> int | None:
        """Return the job number of an array's task; None: not a job yet, or the job's row was removed.

        Raises:
            JournalError: a row is damaged.
        """
        live = array.live.get(task)
        if live is not None:
            return live
        found = self.job_of_token(f"{array.spec.token}/{task}")
        return None if found is None else found.number

    def job_of_token(self, token: str) -> Job | None:
        """Return the job that was submitted with this token; None: there is no such job.

        Raises:
            JournalError: the job's row is damaged.
        """
        number = self.tokens.get(token)
        if number is not None:
            return self.jobs[number]
        if self.table is None or len(self.numbers) == len(self.jobs):
            return None
        row = self.table.row_of_token(token)
        return None if row is None else job_of(row)

    def knows_token(self, token: str) -> bool:
        """Return whether a job was submitted with this token; False if the job's row is damaged."""
        try:
            return self.job_of_token(token) is not None
        except JournalError:
            return False

    def forget(self, now_s: float, keep_s: float, most: int) -> None:
        """Remove finished jobs from memory. They stay in the journal's table.

        Args:
            now_s: Present time, Unix seconds. Jobs that ended at this time stay in memory, because they may
                not be in the journal yet.
            keep_s: Time after the end of a job until it is removed, seconds.
            most: Maximum number of finished jobs in memory. If there are more, the oldest are removed
                earlier.
        """
        while self.ended_jobs and self.ended_jobs[0][0] < now_s:
            over_s, number = self.ended_jobs[0]
            if now_s - over_s <= keep_s and len(self.ended_jobs) <= most:
                return
            self.ended_jobs.popleft()
            job = self.jobs.pop(number)
            self.tokens.pop(job.spec.token, None)


def _nobody(job: Job) -> None:
    """Do nothing for a finished job; the default of `on_finished`."""
