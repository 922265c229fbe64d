"""Offers waiting Slurm jobs to the broker, withdraws them, and checks that the broker still has the jobs.

An offer is a submission of the Slurm job to the broker. A withdrawal cancels the broker's job only.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import Counter

from rlsched.engine.desk import Desk
from rlsched.engine.facts import Facts, SlurmJob, SlurmNode
from rlsched.engine.orders import (
    Offer,
    gpus_of,
    is_left,
    lacks_gpus,
    marks_of_taken_back,
    may_be_taken_back,
    submission,
)
from rlsched.engine.steps import Ask
from rlsched.transport.keys import KeyPair
from rlsched.wire.messages import Cancel, JobInfo, Jobs, ListJobs, Refused, Submitted
from rlsched.wire.states import CANCELLED, COMPLETED, LIVE, QUEUED, WITHDRAWN

_log = logging.getLogger("rlsched.engine")
PROOF_DIGITS = 32
"""Number of hexadecimal digits of the proof, the last part of a token (which identifies a job to the broker).

The proof is computed with the gateway's secret, so that a user cannot submit a job with another job's token.
"""


def offer_secret(pair: KeyPair) -> bytes:
    """Return a gateway's secret for tokens. The secret depends only on the key pair, not on restarts."""
    return hashlib.sha256(b"tokens of offers" + pair.secret).digest()


class Offers:
    """Offers jobs that can start, and withdraws jobs that no longer can.

    Args:
        desk: State that the parts of the gateway share.

    Attributes:
        queue_keys: Sort key of each job in the broker's last list of jobs, by the broker's job ID.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._offers: dict[str, Offer] = {}
        self.queue_keys: dict[int, float] = {}
        self._looked_round_s = -1e9
        self._has_offered = False
        self._live: set[int] = set()
        self._queued: set[int] = set()
        self._pages: dict[int, float] = {}

    def update_offers(self, facts: Facts) -> None:
        """Offer jobs that can start, and withdraw jobs that no longer can."""
        if not self._has_offered:
            self._has_offered = True
            self._learn_of_cancelled(facts)
        active = self._desk.at_work()
        in_array = Counter(facts.jobs[key].array for key in active if key in facts.jobs)
        for key, offer in self._offers.items():
            job = facts.jobs.get(key)
            if job is not None and job.state == "PENDING" and key not in active and not offer.withdrawn:
                in_array[job.array] += 1
        nodes = {partition: node for node, partition in self._desk.nodes(facts)}
        for job in facts.jobs.values():
            if is_left(job, self._desk.partitions) and lacks_gpus(job):
                self._desk.leave(job, (job.marks or {})["left"])
            elif is_left(job, self._desk.partitions):
                self._desk.writer.release(job.key)
            if not self._desk.is_ours(job) or job.key in active or not self._desk.is_open(job):
                continue
            known = self._offers.get(job.key)
            if known is None and not job.runs and not self._may_start(job, facts.now_s):
                continue
            if known is None and not self._gpus(job, nodes):
                self._desk.leave(job, "shape")
            elif known is None and not (job.array and 0 < job.array_limit <= in_array[job.array]):
                in_array[job.array] += 1
                self._add(job)
        for offer in list(self._offers.values()):
            self._mind(offer, facts, active, nodes)
        limited = self._desk.limited_until_s
        self._desk.limited_until_s = {key: at_s for key, at_s in limited.items() if facts.now_s < at_s}

    def take_back(self, facts: Facts) -> None:
        """Hold jobs again that were released while no broker decided."""
        for job in facts.jobs.values():
            if may_be_taken_back(job, self._desk.partitions):
                marks = marks_of_taken_back(job, more=job.key in self._offers)
                self._desk.writer.take_back(job.key, marks)

    def _learn_of_cancelled(self, facts: Facts) -> None:
        """Add an offer for each Slurm job that was cancelled while no gateway ran.

        The gateway then withdraws these offers, which cancels the broker's jobs.
        """
        for job in facts.jobs.values():
            if self._desk.is_ours(job) and job.state == "CANCELLED":
                self._add(job)
                self._offers[job.key].was_cancelled = True

    def _drop(self, key: str) -> None:
        """Remove an offer that the broker no longer has, or never had."""
        del self._offers[key]
        self._desk.offered.pop(key, None)

    def _may_start(self, job: SlurmJob, now_s: float) -> bool:
        if now_s < self._desk.limited_until_s.get(job.key, 0.0):
            return False
        begins = 0.0 if job.restarts else job.eligible_s  # Slurm itself delays a requeued job
        return not job.depends and not job.is_held_by_user and begins <= now_s

    def _add(self, job: SlurmJob) -> None:
        marks = job.marks or {}
        stamp, count = marks["s"], job.mark("o")
        said = f"{self._desk.name}-{self._desk.cluster}-{job.key}-{stamp}-{count}"
        proof = hmac.new(self._desk.secret, said.encode(), hashlib.sha256).hexdigest()[:PROOF_DIGITS]
        self._offers[job.key] = Offer(job.key, stamp, f"{said}-{proof}")

    def _mind(self, offer: Offer, facts: Facts, active: set[str], nodes: dict[str, SlurmNode]) -> None:
        """Send an offer to the broker, or withdraw it, as the job's state requires."""
        job, now_s = facts.jobs.get(offer.key), facts.now_s
        if offer.key in active:
            return
        is_same = job is not None and (job.marks or {}).get("s") == offer.stamp
        is_waiting = is_same and job is not None and self._desk.is_open(job)
        was_decided = is_same and job is not None and "j" in (job.marks or {})
        if was_decided and not is_waiting and not offer.withdrawn and not offer.was_cancelled:
            if offer.job is None and job is not None and job.is_over:
                self._drop(offer.key)  # the answer to the submission was lost, but the job ran
            return  # the job's attempt reports the end, and `_listed` then removes the offer
        is_there = is_waiting and job is not None and (job.runs or self._may_start(job, now_s))
        if not is_there and not offer.withdrawn and not (offer.was_cancelled and offer.job is None):
            offer.withdrawn, offer.asked_s = True, -1e9
            if is_waiting and job is not None:
                self._desk.writer.mark(job.key, {**(job.marks or {}), "o": str(job.mark("o") + 1)})
        if now_s - offer.asked_s < self._desk.times.ask_again_s or now_s < offer.not_before_s:
            return
        if offer.withdrawn and offer.job is not None:
            offer.asked_s = now_s
            self._desk.withdrawn.add(offer.job)
            self._desk.out.append(Ask(("cancel", offer.key), Cancel(job=offer.job)))
        elif offer.withdrawn:
            self._drop(offer.key)
        elif offer.job is None and job is not None:
            offer.asked_s = now_s
            gpus = self._gpus(job, nodes) or 1
            said = submission(job, offer.token, offer.stamp, gpus, preempts=self._desk.preempts)
            self._desk.out.append(Ask(("submit", offer.key), said))

    def _gpus(self, job: SlurmJob, nodes: dict[str, SlurmNode]) -> int:
        return gpus_of(job, nodes.get(job.partition)) if self._desk.places else job.mark("g")

    def _not_taken(self, offer: Offer, why: str, now_s: float) -> None:
        job = self._desk.job(offer.key)
        if "is rejected" in why and job is not None:
            _log.warning("Slurm's job %s is left to Slurm: %s", offer.key, why)
            self._desk.leave(job, "rejected")
            self._drop(offer.key)
        else:
            offer.not_before_s = now_s + self._desk.times.look_round_s

    def look_round(self, now_s: float) -> None:
        """Ask the broker for its list of jobs, if the interval since the last list has elapsed."""
        if self._desk.registered and now_s - self._looked_round_s >= self._every_s:
            self._looked_round_s, self._live, self._queued, self._pages = now_s, set(), set(), {}
            self._desk.asks_for_live()
            self._desk.out.append(Ask(("jobs", ""), ListJobs()))

    @property
    def _every_s(self) -> float:
        return self._desk.times.look_round_s if self._desk.places else self._desk.times.order_s

    def accepted_offers(self) -> list[Offer]:
        """Return the offers that the broker has accepted, except offers that are being withdrawn."""
        return [offer for offer in self._offers.values() if offer.job is not None and not offer.withdrawn]

    def withdraw(self, key: str) -> None:
        """Withdraw a job from the broker."""
        if key in self._offers:
            self._offers[key].withdrawn, self._offers[key].asked_s = True, -1e9

    def handle_offer_answer(self, about: tuple[str, str], answer: object, now_s: float) -> None:
        """Handle the broker's answer to a question about an offer or about all offers."""
        kind, key = about
        offer = self._offers.get(key)
        if kind == "submit" and offer is not None:
            if isinstance(answer, Submitted):
                offer.job = self._desk.offered[key] = answer.job
                self._live.add(answer.job)
            elif isinstance(answer, Refused) and offer.was_cancelled:
                self._drop(key)
            elif isinstance(answer, Refused):
                self._not_taken(offer, answer.message, now_s)
        elif kind == "cancel" and offer is not None and offer.withdrawn:
            self._drop(key)
        elif kind == "jobs" and isinstance(answer, Jobs):
            self._listed(answer, now_s)
        elif kind == "job" and offer is not None and isinstance(answer, Jobs) and answer.jobs:
            self._over_there(offer, answer.jobs[0])

    def clear(self) -> None:
        """Remove all offers because the broker's journal was replaced. All jobs are then offered again."""
        self._offers.clear()
        self._desk.offered.clear()

    def _listed(self, answer: Jobs, now_s: float) -> None:
        """Handle one page of the broker's list of jobs.

        After the last page, ask the broker about each offered job that still waits or runs in Slurm, but is
        not live in the list.
        """
        self._live |= {job.job for job in answer.jobs if job.state in LIVE}
        self._queued |= {job.job for job in answer.jobs if job.state == QUEUED}
        self._pages.update((job.job, job.queue_key) for job in answer.jobs if job.queue_key is not None)
        if answer.omitted and answer.jobs:
            before = min(job.job for job in answer.jobs)
            self._desk.out.append(Ask(("jobs", ""), ListJobs(before=before)))
            return
        self.queue_keys, self._pages = self._pages, {}
        self._desk.has_live(self._live)
        active = self._desk.at_work()
        for offer in list(self._offers.values()):
            if offer.job is None or offer.withdrawn or offer.key in active:
                continue
            job = self._desk.job(offer.key)
            if now_s - offer.asked_s < self._desk.times.ask_again_s:
                continue
            if offer.job not in self._live and (job is None or job.is_over):
                self._drop(offer.key)
            elif offer.job not in self._live:
                self._desk.out.append(Ask(("job", offer.key), ListJobs(job=offer.job)))
            elif offer.job in self._queued and job is not None and job.state == "CANCELLED":
                offer.withdrawn, offer.asked_s = True, -1e9

    def _over_there(self, offer: Offer, known: JobInfo) -> None:
        """Handle a job that the broker considers ended, but that still waits in Slurm."""
        job = self._desk.job(offer.key)
        if known.state in LIVE or job is None or not self._desk.waits(job):
            return
        if known.reason == WITHDRAWN:  # this gateway withdrew the job, and the write of the mark was lost
            self._desk.writer.mark(job.key, {**(job.marks or {}), "o": str(job.mark("o") + 1)})
        elif known.state in (CANCELLED, COMPLETED):
            _log.info(
                "cancelling Slurm's job %s: the broker's job %d is %s", offer.key, known.job, known.state
            )
            self._desk.writer.cancel(offer.key)
        else:
            _log.warning(
                "Slurm's job %s is left to Slurm: the broker's job %d is %s",
                offer.key,
                known.job,
                known.state,
            )
            self._desk.leave(job, known.state)
        self._drop(offer.key)
