"""Messages that every client sends or receives: submissions, the serving broker, refusals."""

from typing import Annotated, NamedTuple

import msgspec

from rlsched.wire.declared import Option, Setting
from rlsched.wire.messages.job_settings import JobSettings


class AttemptKey(NamedTuple):
    """The identity of one rank in one attempt of a job.

    Attributes:
        job: Job ID.
        attempt: Number of the job's attempt, from 1.
        rank: Index of the rank, from 0. A rank is the part of a job that runs on one node.
        cluster: ID of the cluster to which the job belongs, because a node can run ranks of several clusters.
            "": the cluster of the broker that uses this key.
    """

    job: int
    attempt: int
    rank: int
    cluster: str = ""

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt}.{self.rank}"


class OfRank(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one rank.

    Attributes:
        job: Job ID.
        attempt: Number of the job's attempt, from 1.
        rank: Index of the rank, from 0.
    """

    job: int
    attempt: int
    rank: int

    @property
    def key(self) -> AttemptKey:
        """Identity of the rank, without a cluster."""
        return AttemptKey(self.job, self.attempt, self.rank)


class Submit(
    JobSettings,
    frozen=True,
    kw_only=True,
    tag="submit",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Queue a job. If this `token` was used before, no job is added, and the answer names the earlier job.

    A field that has its default value is not sent: an older broker refuses requests with fields that it does
    not know.
    """

    hold: Annotated[bool, Setting(Option("-H --hold", "Hold the job until `rlsched release`."))] = False
    singleton: Annotated[bool, Setting()] = False
    """The job waits until all earlier jobs with its name and user have ended; set by `--dependency`."""


class SubmitMany(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="submit_many",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Queue all of these jobs, or none of them. A refusal names the refused job by its position, from 1."""

    jobs: list[Submit]
    env: dict[str, str] = {}
    """Environment variables common to all jobs; a job's own variables override them."""
    check: bool = False
    """True: the broker queues nothing, and only reports whether it would accept all jobs."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """The answer to `Submit`: the job is in the journal on disk."""

    job: int


class SubmittedMany(msgspec.Struct, frozen=True, kw_only=True, tag="submitted_many"):
    """The answer to `SubmitMany`: the jobs are in the journal on disk, in the order of the request.

    `jobs` is empty if the request was only a check.
    """

    jobs: list[int]


class WhoServes(msgspec.Struct, frozen=True, kw_only=True, tag="who_serves", forbid_unknown_fields=True):
    """Ask a broker for its epoch. Clients with several addresses send this before anything else."""


class Serving(msgspec.Struct, frozen=True, kw_only=True, tag="serving"):
    """The answer to `WhoServes`: identity of the broker at this address."""

    cluster: str
    """See `Welcome.cluster`."""
    epoch: int
    """Epoch of the broker; in a cluster, the broker with the highest epoch decides. 0: a standby."""
    person: str = ""
    """Owner of the key that sent the request."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request is refused or cannot be understood; `message` gives the reason in one line."""

    message: str
