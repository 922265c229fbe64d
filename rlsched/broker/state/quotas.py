"""Quotas: limits for users, accounts and VCs on jobs, on GPUs held at once and on GPU-hours per month.

GPUs are held from the decision that allocates them until the last process of the attempt has ended. GPU time
is charged from that decision until the attempt ends, or until the GPUs are allocated to other jobs. All
amounts are integers: GPUs in thousandths of a GPU, times in milliseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, cast

from rlsched.broker.base.eligibility import Eligibility
from rlsched.broker.base.entries import JobSubmitted, QuotaSet
from rlsched.decide.actions import Action, Preempt, Start
from rlsched.errors import InputError
from rlsched.wire.messages import PartyKind, QuotaInfo

DEFAULT = "default"
"""Name under which default limits are set. They apply to all names that have no limits of their own."""
_HOUR = 1000 * 3_600_000
"""One GPU-hour, in thousandths of a GPU x milliseconds."""
PartyKey = tuple[PartyKind, str]


class QuotaOwner(NamedTuple):
    """The user, account and VC to which a job is charged. `account` and `vc` are "" if the job has none."""

    user: str
    account: str
    vc: str

    def parties(self) -> Iterator[PartyKey]:
        """Yield the kind and the name of each party: user, account, VC."""
        yield "user", self.user
        if self.account:
            yield "account", self.account
        if self.vc:
            yield "vc", self.vc


def owner_of(job: JobSubmitted) -> QuotaOwner:
    """Return the user, account and VC to which a job is charged."""
    return QuotaOwner(job.user, job.account, job.vc)


class Quota(NamedTuple):
    """Limits for a user, an account or a VC; None: unlimited."""

    gpus: int | None = None
    jobs: int | None = None
    gpu_hours: float | None = None

    def or_else(self, other: Quota) -> Quota:
        """Return these limits, with each limit that is None replaced by the limit in `other`."""
        return Quota(
            other.gpus if self.gpus is None else self.gpus,
            other.jobs if self.jobs is None else self.jobs,
            other.gpu_hours if self.gpu_hours is None else self.gpu_hours,
        )


UNLIMITED = Quota()


@dataclass(slots=True, eq=False)
class Party:
    """A user, an account or a VC that is charged for jobs.

    Attributes:
        quota: Limits in force, including defaults.
        jobs: Number of waiting and running jobs.
        held_milli: GPUs held by these jobs, thousandths of a GPU.
        charged_milli: GPUs that are charged at present, thousandths of a GPU.
        used: GPU time charged from the start of the month to `since_ms`, thousandths of a GPU-millisecond.
        since_ms: Time up to which GPU time has been charged, Unix ms.
    """

    kind: PartyKind
    name: str
    quota: Quota = UNLIMITED
    jobs: int = 0
    held_milli: int = 0
    charged_milli: int = 0
    used: int = 0
    since_ms: int = 0

    def charge_until(self, now_ms: int, month_ms: int) -> None:
        """Charge this user, account or VC for its GPUs up to `now_ms`.

        `month_ms`: start of this month, Unix ms.
        """
        self.used = self.used_by(now_ms, month_ms)
        self.since_ms = now_ms

    def used_by(self, now_ms: int, month_ms: int) -> int:
        """Return the GPU time charged in this month up to `now_ms`, thousandths of a GPU-millisecond.

        `month_ms`: start of this month, Unix ms.
        """
        before = self.used if self.since_ms >= month_ms else 0
        return before + self.charged_milli * (now_ms - max(self.since_ms, month_ms))

    def __str__(self) -> str:
        """Return the name as in messages to users: `alice`, `account NAME` or `VC NAME`."""
        lead = {"user": "", "account": "account ", "vc": "VC "}[self.kind]
        return lead + (self.name or "the user without a name")


@dataclass(slots=True, eq=False)
class QuotaGroup:
    """Jobs with the same parties and the same number of GPUs.

    The waiting jobs of a group are either all eligible or all barred by a quota.

    Attributes:
        gpu_milli: GPUs of each job, thousandths of a GPU.
        parties: Parties to which the jobs are charged.
        seqs: Sequence numbers of the waiting jobs in the ledger.
        barred: Whether a quota makes the waiting jobs ineligible; meaningless while `seqs` is empty.
    """

    gpu_milli: int
    parties: list[Party]
    seqs: dict[int, None] = field(default_factory=dict)
    barred: bool = False


class QuotaTable:
    """Held and charged GPUs of all users, accounts and VCs (parties).

    Keeps jobs that would exceed a quota out of the queue.

    Args:
        eligibility: Receives the jobs that a quota keeps out of the queue.
    """

    def __init__(self, eligibility: Eligibility) -> None:
        self._eligibility = eligibility
        self._own: dict[PartyKey, Quota] = {}
        self._parties: dict[PartyKey, Party] = {}
        self._groups: dict[tuple[QuotaOwner, int], QuotaGroup] = {}
        self._group_of: dict[int, QuotaGroup] = {}
        self._charged: set[int] = set()
        self._waiting: dict[Party, dict[QuotaGroup, None]] = {}  # groups with waiting jobs, by party
        self._timed: dict[Party, int] = {}  # next review of the party, Unix ms
        self._month_ms = self._next_month_ms = 0
        self.due_s = math.inf
        """Time at which the next call of `review_quotas` is due, even if no job changes, Unix seconds."""

    # ---- events of jobs ---------------------------------------------------------------------------

    def add_waiting(self, seq: int, owner: QuotaOwner, num_gpus: int, now_s: float) -> None:
        """Register a waiting job, which has sequence number `seq` in the ledger (`ClusterState`)."""
        gpu_milli = num_gpus * 1000
        group = self._groups.get((owner, gpu_milli))
        if group is None:
            parties = [self._party(key) for key in owner.parties()]
            group = self._groups[owner, gpu_milli] = QuotaGroup(gpu_milli, parties)
        for party in group.parties:
            party.jobs += 1
        self._group_of[seq] = group
        self._wait(seq, group, now_s)

    def charge_action(self, action: Action, now_s: float) -> None:
        """Begin to charge for the job that `action` starts, or stop charging for the job that it preempts."""
        if isinstance(action, Start):
            self.charge_start(action.seq, now_s)
        elif isinstance(action, Preempt):
            self.stop_charge(action.seq, now_s)

    def charge_start(self, seq: int, now_s: float) -> None:
        """Begin to charge for a waiting job that starts."""
        group = self._wait_no_longer(seq, now_s)
        self._charged.add(seq)
        self._change(group, group.gpu_milli, group.gpu_milli, now_s)

    def stop_charge(self, seq: int, now_s: float) -> None:
        """Stop charging for a job that lost its GPUs to other jobs, although its processes still run."""
        self._charged.remove(seq)
        group = self._group_of[seq]
        self._change(group, 0, -group.gpu_milli, now_s)

    def return_gpus(self, seq: int, now_s: float, *, waits: bool) -> None:
        """Stop counting the GPUs of an ended attempt as held and charged.

        `waits`: whether the job is queued again. If so, the caller must requeue the job in the ledger first.
        """
        group = self._group_of[seq]
        charged = group.gpu_milli if seq in self._charged else 0
        self._charged.discard(seq)
        self._change(group, -group.gpu_milli, -charged, now_s)
        if waits:
            self._wait(seq, group, now_s)
        else:
            self._forget(seq, group)

    def remove_cancelled(self, seq: int, now_s: float) -> None:
        """Remove a waiting job that was cancelled."""
        self._forget(seq, self._wait_no_longer(seq, now_s))

    # ---- limits and time --------------------------------------------------------------------------

    def set(self, entry: QuotaSet, now_s: float) -> None:
        """Set the limits for a user, an account or a VC."""
        key, quota = (entry.kind, entry.name), Quota(entry.gpus, entry.jobs, entry.gpu_hours)
        if quota == UNLIMITED:
            self._own.pop(key, None)
        else:
            self._own[key] = quota
        for known, party in self._parties.items():
            if known == key or (entry.name == DEFAULT and known[0] == entry.kind):
                party.quota = self._in_force(known)
                self._look_at(party, now_s)

    def review_quotas(self, now_s: float) -> None:
        """Update which waiting jobs are eligible, for the parties whose review is due at `now_s`.

        A review is due when a new month begins, or when a party may have used up its GPU-hours.
        """
        now_ms = round(now_s * 1000)
        for party in [party for party, due_ms in self._timed.items() if due_ms <= now_ms]:
            self._look_at(party, now_s)

    def entries(self) -> list[QuotaSet]:
        """Return the journal entries that restore all limits."""
        return [
            QuotaSet(kind=kind, name=name, **quota._asdict()) for (kind, name), quota in self._own.items()
        ]

    def party_charges(self) -> list[tuple[str, str, int, int]]:
        """Return (kind, name, GPU time, time) of each charged user, account and VC.

        GPU time: as charged in the current month up to the time (Unix ms), thousandths of a GPU-millisecond.
        """
        return [
            (party.kind, party.name, party.used, party.since_ms)
            for party in self._parties.values()
            if party.since_ms
        ]

    def restore_quotas(
        self,
        limits: Sequence[QuotaSet],
        charged: Sequence[tuple[str, str, int, int]],
        barred: Sequence[int],
        now_s: float,
    ) -> None:
        """Restore limits, charges, and the jobs that a quota keeps out of the queue (`barred`).

        The caller must add the live jobs first, while no limit is set. If the eligibility of a job has
        changed since `barred` was stored, the next call of `review_quotas` updates it.
        """
        for one in limits:
            self._own[one.kind, one.name] = Quota(one.gpus, one.jobs, one.gpu_hours)
        for kind, name, used, since_ms in charged:
            party = self._party((cast("PartyKind", kind), name))
            party.used, party.since_ms = used, since_ms
        for key, party in self._parties.items():
            party.quota = self._in_force(key)
        kept_out = set(barred)
        for group in self._groups.values():
            group.barred = not kept_out.isdisjoint(group.seqs)
        if barred:
            self._eligibility.bar(barred, "Quota")
        for party, groups in self._waiting.items():
            self._plan(party, now_s)
            if party in self._timed and any(self._has_no_room(one, now_s) != one.barred for one in groups):
                self._timed[party] = round(now_s * 1000)
        self.due_s = min(self._timed.values()) / 1000 if self._timed else math.inf

    # ---- descriptions -----------------------------------------------------------------------------

    def own_limits(self, kind: PartyKind, name: str) -> Quota:
        """Return the limits that were set for this user, account or VC by name, without default limits."""
        return self._own.get((kind, name), UNLIMITED)

    def limited_names(self, kind: PartyKind) -> frozenset[str]:
        """Return the names that have limits of their own."""
        return frozenset(name for known, name in self._own if known == kind and name != DEFAULT)

    def check(self, owner: QuotaOwner, num_gpus: int, beside: Counter[PartyKey]) -> None:
        """Check that the quotas allow the submission of a job.

        Args:
            owner: User, account and VC to which the job is charged.
            num_gpus: Number of GPUs of the job.
            `beside`: By user, account or VC: number of jobs accepted earlier in the same batch.

        Raises:
            InputError: a quota forbids the job.
        """
        for key in owner.parties() if self._own else ():
            party = self._parties.get(key) or Party(*key, self._in_force(key))
            quota, jobs = party.quota, party.jobs + beside[key]
            if quota.jobs is not None and jobs >= quota.jobs:
                raise InputError(
                    f"quota: {party} has {jobs} of {quota.jobs} jobs, waiting and running; "
                    "submit when one has finished"
                )
            if quota.gpus is not None and num_gpus > quota.gpus:
                raise InputError(
                    f"quota: {party} may have {quota.gpus} GPUs at once, this job requests {num_gpus}; "
                    "request fewer GPUs"
                )
            if quota.gpu_hours == 0:
                raise InputError(
                    f"quota: {party} has a limit of 0 GPU-hours; an admin changes it with `rlsched quota set`"
                )

    def reasons(self, seq: int, now_s: float) -> list[str]:
        """Return the reasons why quotas keep a waiting job out of the queue, one line for each limit."""
        group = self._group_of[seq]
        return [line for party in group.parties for line in self._words(party, group.gpu_milli, now_s)]

    def rows(self, now_s: float) -> list[QuotaInfo]:
        """Return all limits with the current usage, by kind and name; default limits first in each kind."""
        self._turn_month(round(now_s * 1000))
        limited = {key for key, party in self._parties.items() if party.quota != UNLIMITED} | {*self._own}
        order = sorted(
            limited, key=lambda key: (("user", "account", "vc").index(key[0]), key[1] != DEFAULT, key)
        )
        return [self._row(key, now_s) for key in order]

    def _row(self, key: PartyKey, now_s: float) -> QuotaInfo:
        own, party = self._own.get(key, UNLIMITED), self._parties.get(key, Party(*key))
        quota = own if key[1] == DEFAULT else self._in_force(key)
        return QuotaInfo(
            kind=key[0],
            name=key[1],
            gpus=quota.gpus,
            jobs=quota.jobs,
            gpu_hours=quota.gpu_hours,
            by_default=[limit for limit, a, b in zip(quota._fields, own, quota, strict=True) if a != b],
            gpus_now=party.held_milli / 1000,
            jobs_now=party.jobs,
            gpu_hours_used=party.used_by(round(now_s * 1000), self._month_ms) / _HOUR,
        )

    def _words(self, party: Party, gpu_milli: int, now_s: float) -> Iterator[str]:
        quota, has = party.quota, party.held_milli
        if quota.gpus is not None and has + gpu_milli > quota.gpus * 1000:
            if gpu_milli > quota.gpus * 1000:
                yield f"{party} may have {quota.gpus} GPUs at once, it needs {_gpus(gpu_milli)}"
            elif has == quota.gpus * 1000:
                yield f"{party} has {_gpus(has)} of {quota.gpus} GPUs at once"
            else:
                yield f"{party} has {_gpus(has)} of {quota.gpus} GPUs at once, it needs {_gpus(gpu_milli)}"
        if self._is_used_up(party, round(now_s * 1000)):
            used = party.used_by(round(now_s * 1000), self._month_ms) / _HOUR
            again = datetime.fromtimestamp(self._next_month_ms / 1000, UTC)
            yield (
                f"{party} has used {used:.1f} of {quota.gpu_hours:g} GPU-hours this month, "
                f"the next begins {again:%Y-%m-%d} UTC"
            )

    # ---- internals --------------------------------------------------------------------------------

    def _in_force(self, key: PartyKey) -> Quota:
        quota = self._own.get(key, UNLIMITED).or_else(self._own.get((key[0], DEFAULT), UNLIMITED))
        return quota if quota != UNLIMITED else UNLIMITED

    def _party(self, key: PartyKey) -> Party:
        party = self._parties.get(key)
        if party is None:
            party = self._parties[key] = Party(*key, self._in_force(key))
        return party

    def _wait(self, seq: int, group: QuotaGroup, now_s: float) -> None:
        """Add a waiting job to its `QuotaGroup`, and make the job ineligible if a quota bars the group."""
        if not group.seqs:
            for party in group.parties:
                self._waiting.setdefault(party, {})[group] = None
                self._plan(party, now_s)
            group.barred = self._has_no_room(group, now_s)
        group.seqs[seq] = None
        if group.barred:
            self._eligibility.bar([seq], "Quota")

    def _wait_no_longer(self, seq: int, now_s: float) -> QuotaGroup:
        group = self._group_of[seq]
        del group.seqs[seq]
        self._eligibility.forget_waiting(seq)
        if not group.seqs:
            for party in group.parties:
                del self._waiting[party][group]
                self._plan(party, now_s)
        return group

    def _forget(self, seq: int, group: QuotaGroup) -> None:
        del self._group_of[seq]
        for party in group.parties:
            party.jobs -= 1

    def _change(self, group: QuotaGroup, held_milli: int, charged_milli: int, now_s: float) -> None:
        """Change the held and the charged GPUs of each user, account and VC of a group by these numbers."""
        now_ms = round(now_s * 1000)
        self._turn_month(now_ms)
        limited = False
        for party in group.parties:
            party.charge_until(now_ms, self._month_ms)
            party.held_milli += held_milli
            party.charged_milli += charged_milli
            limited = limited or party.quota is not UNLIMITED
        if limited:
            for party in group.parties:
                self._look_at(party, now_s)

    def _look_at(self, party: Party, now_s: float) -> None:
        """Update which waiting jobs of a user, account or VC are eligible, and plan the next such review."""
        for group in self._waiting.get(party, ()):
            barred = self._has_no_room(group, now_s)
            if barred != group.barred:
                group.barred = barred
                if barred:
                    self._eligibility.bar(list(group.seqs), "Quota")
                else:
                    self._eligibility.clear(list(group.seqs), "Quota", now_s)
        self._plan(party, now_s)

    def _has_no_room(self, group: QuotaGroup, now_s: float) -> bool:
        now_ms = round(now_s * 1000)
        for party in group.parties:
            gpus = party.quota.gpus
            if gpus is not None and party.held_milli + group.gpu_milli > gpus * 1000:
                return True
            if self._is_used_up(party, now_ms):
                return True
        return False

    def _is_used_up(self, party: Party, now_ms: int) -> bool:
        if party.quota.gpu_hours is None:
            return False
        self._turn_month(now_ms)
        return party.used_by(now_ms, self._month_ms) >= party.quota.gpu_hours * _HOUR

    def _plan(self, party: Party, now_s: float) -> None:
        """Set when the eligible jobs of a user, account or VC must be reviewed.

        This is the time when its GPU-hours are used up, or when a new month begins.
        """
        if party.quota.gpu_hours is None and party not in self._timed:
            return
        if party.quota.gpu_hours is None or not self._waiting.get(party):
            self._timed.pop(party, None)
        else:
            now_ms = round(now_s * 1000)
            self._turn_month(now_ms)
            left = math.ceil(party.quota.gpu_hours * _HOUR) - party.used_by(now_ms, self._month_ms)
            due_ms = self._next_month_ms
            if left > 0 and party.charged_milli > 0:
                due_ms = min(due_ms, now_ms - -left // party.charged_milli)
            self._timed[party] = due_ms
        self.due_s = min(self._timed.values()) / 1000 if self._timed else math.inf

    def _turn_month(self, now_ms: int) -> None:
        if not self._month_ms <= now_ms < self._next_month_ms:
            first = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
                day=1, hour=0, minute=0, second=0, microsecond=0
            )
            following = (first.year + first.month // 12, first.month % 12 + 1)
            self._month_ms = round(first.timestamp() * 1000)
            self._next_month_ms = round(datetime(*following, 1, tzinfo=UTC).timestamp() * 1000)


def _gpus(milli: int) -> str:
    return f"{milli / 1000:g}"
