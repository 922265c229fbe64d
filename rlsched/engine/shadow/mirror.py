"""Finds new events of jobs in a Slurm cluster: jobs that can start, began or ended, with Slurm's times.

The events are found by comparison of facts (Slurm's state at one query) with the state of a shadow's broker.
The module does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal

from rlsched.broker.nodes.launches import VANISHED_EXIT_CODE
from rlsched.broker.state.broker_state import BrokerState
from rlsched.engine.facts import Facts, SlurmJob, SlurmNode
from rlsched.engine.orders import PROGRAM, is_about_node
from rlsched.engine.partitions import held_by_others, nodes_with_gpus
from rlsched.terminal.visible import visible
from rlsched.wire.messages import AttemptReport, Capabilities, Hello, Holding, Submit

Kind = Literal["ended", "came", "left", "began"]
_ORDER: Final[dict[str, int]] = {"ended": 0, "left": 1, "came": 2, "began": 3}
"""Order of events within one instant, as in a broker's decision cycle; starts by Slurm are last."""
KILLED_EXIT_CODE: Final = 143
STEP_S: Final = 0.001
BEHIND_S: Final = 1.0
"""The facts of a query can lack events of the last `BEHIND_S` seconds before the query."""
AGAIN_S: Final = 1.0
"""If Slurm reports a start more than this many seconds after the recorded start, the job was requeued."""


@dataclass(frozen=True)
class News:
    """An event of a job.

    Attributes:
        at_s: Time of the event in Slurm, Unix seconds.
        kind: The job can start (`came`), can no longer start (`left`), `began`, or `ended`.
        key: Slurm's job ID.
        job: The job in Slurm's facts; None: Slurm no longer knows the job.
        end: (exit code, reason), if `kind` is `ended`.
    """

    at_s: float
    kind: Kind
    key: str
    job: SlurmJob | None
    end: tuple[int, str] = (0, "")


@dataclass
class Followed:
    """A job of Slurm that was submitted to the shadow's broker and has not ended.

    Attributes:
        token: Token of the job's submission.
        start_s: Time of the job's start, None while it waits.
    """

    token: str
    start_s: float | None = None


class Mirror:
    """Compares facts of a Slurm cluster with the state of the shadow's broker.

    Args:
        name: Prefix of the tokens of submissions.
        cluster: Slurm's ClusterName.
        partitions: Partitions that the shadow follows.
        state: The broker's state.
        preempts: Whether jobs that Slurm can requeue are submitted as preemptible.

    Attributes:
        followed: Followed jobs that have not ended, by Slurm's job ID.
        unfit: Reason why the broker's ledger of GPUs cannot represent the placement of a job, by Slurm's job
            ID.
        left: Number of jobs that only Slurm can place, by reason, since the caller last cleared `left`.
    """

    def __init__(
        self,
        name: str,
        cluster: str,
        partitions: tuple[str, ...],
        state: BrokerState,
        *,
        preempts: bool = False,
    ) -> None:
        self.name, self.cluster, self.partitions = name, cluster, partitions
        self._state, self._preempts = state, preempts
        self.followed: dict[str, Followed] = {}
        self.unfit: dict[str, str] = {}
        self.left: dict[str, int] = {}
        self._left: set[str] = set()
        self._over: set[str] = set()
        for job in state.job_of_seq.values():
            start_s = job.attempt.start_s if job.active is not None and job.attempt is not None else None
            self.followed[key_of(job.spec.token)] = Followed(job.spec.token, start_s)

    # ---- nodes ------------------------------------------------------------------------------------

    def nodes(self, facts: Facts) -> dict[str, tuple[SlurmNode, str]]:
        """Return a dict: name -> (node, partition), for all nodes with GPUs in the followed partitions."""
        return nodes_with_gpus(facts, self.partitions)

    def hello(self, node: SlurmNode, partition: str, reports: list[AttemptReport]) -> Hello:
        """Return the registration message of a node, with a list of the node's attempts."""
        can = Capabilities(per_node_indices=False, preempts=self._preempts, clocks=False)
        return Hello(
            name=node.name,
            gpus=node.gpus,
            gpu_type=node.gpu_type,
            vc=partition,
            cluster=self._state.identity,
            attempts=reports,
            clocks_note="its engine is Slurm",
            capabilities=can,
        )

    def unfollowed_holdings(self, facts: Facts, news: Sequence[News]) -> dict[str, list[Holding]]:
        """Return, by node, the GPUs of running jobs that are not followed and have no event in `news`."""
        known = {one.key for one in news} | {job.key for job in facts.jobs.values() if is_done(job)}
        known |= self.followed.keys() - self.unfit.keys()
        return held_by_others(facts, known)

    # ---- jobs -------------------------------------------------------------------------------------

    def news(self, facts: Facts, since_s: float) -> list[News]:
        """Return the new events in order. Jobs that ended before `since_s` are left out."""
        sizes = {partition: node.gpus for node, partition in self.nodes(facts).values()}
        found: list[News] = []
        in_array = Counter(facts.jobs[key].array for key in self.followed if key in facts.jobs)
        for job in facts.jobs.values():
            if job.key not in self._over and job.key not in self.unfit:
                found += self._of_job(job, facts.now_s, since_s, sizes, in_array)
        for key, followed in self.followed.items():
            if key not in facts.jobs and key not in self.unfit:
                if followed.start_s is None:
                    found.append(News(facts.now_s, "left", key, None))
                else:
                    found.append(News(facts.now_s, "ended", key, None, (VANISHED_EXIT_CODE, "vanished")))
        self._over &= facts.jobs.keys()
        self._left &= facts.jobs.keys()
        self.unfit = {key: why for key, why in self.unfit.items() if key in facts.jobs}
        return sorted(found, key=lambda one: (one.at_s, _ORDER[one.kind]))

    def _of_job(
        self, job: SlurmJob, now_s: float, since_s: float, sizes: dict[str, int], in_array: Counter[int]
    ) -> Iterator[News]:
        followed = self.followed.get(job.key)
        waits = followed is None or followed.start_s is None
        if followed is not None and followed.start_s is not None:
            again = job.start_s > followed.start_s + AGAIN_S
            if is_done(job) and not again:
                yield News(job.end_s or now_s, "ended", job.key, job, end_of(job))
                return
            if job.runs and not again:
                return
            at_s = min(job.start_s, now_s) if again and job.start_s else now_s
            yield News(at_s, "ended", job.key, job, (KILLED_EXIT_CODE, "node_stopped"))  # a requeue
            waits = True
        vc = self.vc_of(job)
        if vc not in sizes or (followed is None and not self._is_comparable(job, sizes[vc])):
            return
        began = bool(job.nodes) and 0 < job.start_s <= now_s and (job.runs or job.is_over)
        is_old = is_done(job) and (job.end_s <= since_s - BEHIND_S or self._has_followed(job))
        if began and followed is None and is_old:
            if job.is_over:
                self._over.add(job.key)
        elif began and waits:
            if followed is None:
                yield News(min(job.eligible_s or job.start_s, job.start_s), "came", job.key, job)
            yield News(job.start_s, "began", job.key, job)
            if is_done(job):
                yield News(max(job.end_s, job.start_s + STEP_S), "ended", job.key, job, end_of(job))
        elif job.state == "PENDING" and may_start(job, now_s):
            if followed is None and not (job.array and 0 < job.array_limit <= in_array[job.array]):
                in_array[job.array] += 1
                yield News(job.eligible_s or job.submit_s, "came", job.key, job)
        elif followed is not None:
            yield News(job.end_s if job.is_over and job.end_s else now_s, "left", job.key, job)
        elif job.is_over:
            self._over.add(job.key)

    def vc_of(self, job: SlurmJob) -> str:
        """Return the first of a job's partitions that the shadow follows; "" if it follows none of them."""
        return next((name for name in job.partition.split(",") if name in self.partitions), "")

    def _has_followed(self, job: SlurmJob) -> bool:
        """Return whether the broker's state already has an attempt of this job, as after a restart."""
        for again in count():
            known = self._state.job_of_token(self._token(job, again))
            if known is None or known.attempt is not None:
                return known is not None
        return False

    def _token(self, job: SlurmJob, again: int) -> str:
        return f"{self.name}-{self.cluster}-{job.key}-{job.submit_s:.0f}-{again}"

    def _is_comparable(self, job: SlurmJob, node_gpus: int) -> bool:
        if not job.gpus_asked and not job.is_exclusive:
            return False
        why = job.bound or ("" if shape_of(job, node_gpus) else "part of the GPUs of several nodes")
        if why and job.key not in self._left and not job.is_over:
            self._left.add(job.key)
            self.left[why] = self.left.get(why, 0) + 1
        return not why

    def submission(self, job: SlurmJob, node_gpus: int) -> Submit:
        """Return a job's submission to the broker, with a new token if the job was withdrawn before."""
        tokens = (self._token(job, again) for again in count())
        return Submit(
            token=next(token for token in tokens if not self._state.knows_token(token)),
            command=[PROGRAM, job.key, f"{job.submit_s:.0f}"],
            num_gpus=shape_of(job, node_gpus),
            name=visible(job.name)[:200],
            vc=self.vc_of(job),
            user=job.user,
            time_limit_s=job.time_limit_s,
            preemptible=self._preempts and job.may_requeue,
            lost_after_s=0.0,
        )

    def forget(self, key: str, *, is_over: bool) -> None:
        """Stop following a job, permanently if `is_over`."""
        self.followed.pop(key, None)
        if is_over:
            self._over.add(key)

    def is_known_over(self, key: str) -> bool:
        """Return whether the shadow knows that a job has ended, or has stopped following it (`give_up`)."""
        return key in self._over or key in self.unfit

    def give_up(self, key: str, why: str) -> None:
        """Stop following a job that the ledger cannot represent.

        Its GPUs are then reported as used by other jobs, and its start is not compared with the policy.
        """
        self.followed.pop(key, None)
        self.unfit[key] = why
        self.left[why] = self.left.get(why, 0) + 1


def key_of(token: str) -> str:
    """Return Slurm's job ID, from the token of the job's submission."""
    return token.rsplit("-", 3)[1]


def is_first_offer(token: str) -> bool:
    """Return whether a token is the first token of its job: the job was never withdrawn and offered again."""
    return token.endswith("-0")


def is_done(job: SlurmJob) -> bool:
    """Return whether a job has ended, so that its GPUs are free; its epilog can still run."""
    return job.is_over or (job.state == "COMPLETING" and job.end_s > 0.0)


def may_start(job: SlurmJob, now_s: float) -> bool:
    """Return whether a job waits only for nodes, and not for its user, other jobs, a time or a limit."""
    return (
        not (job.is_held or job.is_held_by_user or job.depends)
        and 0.0 < job.eligible_s <= now_s
        and is_about_node(job.reason or "None")
    )


def shape_of(job: SlurmJob, node_gpus: int) -> int:
    """Return the number of GPUs that the broker must allocate for a job; 0 if it cannot represent the job.

    The broker cannot represent a job that uses several nodes, but not all their GPUs.
    """
    nodes, asked = job.num_nodes, job.gpus_asked
    if job.is_exclusive:
        return max(nodes, -(-asked // node_gpus)) * node_gpus
    if nodes == 1 and asked <= node_gpus:
        return asked
    return asked if asked == max(nodes, asked // node_gpus) * node_gpus else 0


def end_of(job: SlurmJob) -> tuple[int, str]:
    """Return (exit code, reason) of an ended job."""
    code, reason = job.exit_code, job.end_reason
    if job.state == "COMPLETED":
        return 0, ""
    if reason == "node_stopped":  # Slurm did not requeue the job, so that it has ended
        return KILLED_EXIT_CODE, "cancelled"
    if job.state == "COMPLETING":
        return (code, "cancelled") if code > 128 else (code, "")
    if code == 0:
        code = KILLED_EXIT_CODE if reason in ("cancelled", "time_limit") else 1
    return code, reason
