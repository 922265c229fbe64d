"""What the broker knows, and simple questions about it; `book` says how facts change it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from rlsched.broker.base.eligibility import Eligibility
from rlsched.broker.base.entries import BasePart, ChosenPolicy, JobSubmitted
from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.broker.base.numbers import NumberOfSeq, Numbers
from rlsched.broker.base.profiles import Profiles
from rlsched.broker.state.accounts import Accounts
from rlsched.broker.state.arrays import Arrays, JobArray
from rlsched.broker.state.ended import job_of
from rlsched.broker.state.ended_table import EndedTable
from rlsched.broker.state.fair_share import Usage
from rlsched.broker.state.gates import Gates
from rlsched.broker.state.held import HeldGpus
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.nodes import Node
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.priorities import Priorities
from rlsched.broker.state.quotas import Quotas
from rlsched.broker.state.seats import Seats
from rlsched.cluster.demand import Demand
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.errors import JournalError


class Known:
    """Everything that the broker knows.

    Args:
        predictions: Told of every submission, start and end, in order.
        order: What the queue goes by.
        half_life_s: Half of what a user has used is forgotten after so long; infinite: nothing is.

    Attributes:
        cluster: What the scheduler sees.
        jobs: By number: those that are not over, and some of those that are (`forget`). See `job`.
        ended_jobs: (when, number) of those of `jobs` that are over, in order.
        numbers: Those of all jobs, ascending.
        table: The journal's table of jobs that are over; None: all of them are in `jobs`.
        job_of_seq: Live jobs, by their number in `cluster`.
        number_of_seq: Job number of every job that has been in `cluster`.
        tokens: Submission token -> job number, of `jobs`. See `job_of_token`.
        nodes: By name, in order of registration.
        epoch: Of the last broker that took the journal up, 0 before the first.
        last_number: The highest job number that has been given, here or before a backup was restored.
        last_attempt: Attempts that begin have higher numbers.
        highest_attempt: The highest number of any attempt of any job.
        restored_s: When the journal was restored from a backup last, Unix seconds; None: never.
        taken_over: That was a standby's copy, and no backup.
        awaited: Nodes that have not registered since then, and may run what the journal does not know.
        identity: `BrokerStarted.cluster`.
        chosen: `BrokerStarted.chosen` of the last one.
        order: What the queue goes by.
        now_s: Time of the last entry, Unix seconds.
        asked_for_s: Partition -> when its last *wait* asked to be asked again, Unix seconds.
        decisions: Decisions by source.
        contested: Those in which more than one row was legal, by source.
        interventions: Decisions of the guard by its reason: the word before the colon.
        outcomes: Jobs that are over, by state.
        seats: Which preempted jobs have not left their GPUs yet.
        models: Which models the ledger has: none, for SM clocks, or all, where GPUs are shared.
        over: Told of each job that is over, at that very fact.
        priorities: Levels and weights of live jobs.
        usage: What users have used.
        profiles: What jobs of a kind use.
        held: GPUs that others than this broker's jobs have.
        eligibility: Which waiting jobs are kept out of the queue, and why.
        arrays: Job arrays; their tasks are in `jobs`.
        gates: Holds, times to begin and dependencies.
        quotas: Limits of users, accounts and VCs, and what they have.
        accounts: Who may charge jobs to what.
        health_failures: How often a node's own checks began to fail.
        ran_on: By person: the nodes that have started a job of theirs, a bit for each node's number.
        policy_id: Who decides; asked where a journal begins with a base.
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
        self.seats = Seats()
        self.models = LedgerModels(self.cluster)
        self.over: Callable[[Job], object] = _nobody
        self.priorities = Priorities(self.cluster)
        self.usage = Usage(half_life_s)
        self.profiles = Profiles()
        self.held = HeldGpus(self.cluster)
        self.eligibility = Eligibility(self.cluster)
        self.gates = Gates(self.eligibility)
        self.arrays = Arrays(self.gates)
        self.quotas = Quotas(self.eligibility)
        self.accounts = Accounts()
        self.health_failures = 0
        self.ran_on: dict[str, int] = {}
        self._can_run: dict[tuple[str, Demand], bool] = {}
        self.policy_id = ""
        self._base: list[BasePart] = []

    def tell_nobody(self) -> None:
        """From now on nobody is told of jobs that are over."""
        self.over = _nobody

    def can_ever_run(self, vc: str, demand: Demand) -> bool:
        """Whether a gang would fit the idle cluster, with every node up that has registered."""
        known = self._can_run.get((vc, demand))
        if known is None:
            gone = self.gone()
            known = self.cluster.can_ever_run(vc, demand, gone) and not self.is_uneven(vc, demand.gpus)
            self._can_run[vc, demand] = known
        return known

    def gone(self) -> set[int]:
        """Numbers of the ledger's nodes that others took the place of, or that an operator removed."""
        there = {node.number for node in self.nodes.values() if not node.removed}
        return set(range(len(self.cluster.node_names))) - there

    def is_uneven(self, vc: str, num_gpus: int) -> bool:
        """Whether a gang would have other GPU numbers on one node than on another, where an engine cannot.

        Nodes of such an engine are all alike in their partition (`Members`), and a gang that no node holds
        takes whole ones first: so its size says it, before anything is decided.
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
    def ended(self) -> int:
        """Jobs that are over."""
        return sum(self.outcomes.values())

    def fenced_jobs(self, node: Node) -> list[Job]:
        """Jobs with a rank on a node that it ends by their `lost_after_s`, by number."""
        if not node.spec.capabilities.fences:
            return []
        jobs = [self.jobs[number] for number in sorted(node.live_jobs)]
        return [job for job in jobs if job.spec.lost_after_s]

    def gave(self, job: int, attempt: int) -> bool:
        """Whether this journal has begun such an attempt, or a later one of its job."""
        known = self.job(job)
        return known is not None and known.attempt is not None and attempt <= known.attempt.number

    def job(self, number: int) -> Job | None:
        """A job, also one that has been forgotten; None: there is none.

        Raises:
            JournalError: its row is damaged.
        """
        job = self.jobs.get(number)
        if job is not None or self.table is None or number not in self.numbers:
            return job
        row = self.table.row(number)
        return None if row is None else job_of(row)

    def called(self, number: int) -> str:
        """What people call a job: its number, or `17_3` for task 3 of array 17."""
        try:
            job = self.job(number)
        except JournalError:
            job = None
        return str(number) if job is None else job.called

    def spec(self, number: int) -> JobSubmitted | None:
        """What was submitted under this number, a job or an array; None: nothing.

        Raises:
            JournalError: its row is damaged.
        """
        array = self.arrays.known.get(number)
        if array is not None:
            return array.spec
        job = self.job(number)
        return None if job is None else job.spec

    def task(self, array: JobArray, task: int) -> int | None:
        """The job that a task of an array is or was; None where it has not become one, or long ago.

        Raises:
            JournalError: a row is damaged.
        """
        live = array.live.get(task)
        if live is not None:
            return live
        found = self.job_of_token(f"{array.spec.token}/{task}")
        return None if found is None else found.number

    def job_of_token(self, token: str) -> Job | None:
        """The job that was submitted with this token; None: there is none.

        Raises:
            JournalError: its row is damaged.
        """
        number = self.tokens.get(token)
        if number is not None:
            return self.jobs[number]
        if self.table is None or len(self.numbers) == len(self.jobs):
            return None
        row = self.table.row_of_token(token)
        return None if row is None else job_of(row)

    def knows_token(self, token: str) -> bool:
        """Whether a job was submitted with this token; not where its row is damaged."""
        try:
            return self.job_of_token(token) is not None
        except JournalError:
            return False

    def forget(self, now_s: float, keep_s: float, most: int) -> None:
        """Let jobs that are over leave the memory; the journal's table has them.

        Args:
            now_s: Unix seconds; those of this instant stay, as they may not be in the journal yet.
            keep_s: Those that have been over for longer leave ...
            most: ... and the first of the others, until there are so many.
        """
        while self.ended_jobs and self.ended_jobs[0][0] < now_s:
            over_s, number = self.ended_jobs[0]
            if now_s - over_s <= keep_s and len(self.ended_jobs) <= most:
                return
            self.ended_jobs.popleft()
            job = self.jobs.pop(number)
            self.tokens.pop(job.spec.token, None)


def _nobody(job: Job) -> None:
    """Told of a job that is over."""
