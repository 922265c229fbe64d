"""The exception classes of rlsched.

RlschedError                 one clear line for users; the command line exits with `exit_code`
├── InputError               a value from the user is wrong (exit code 2)
│   ├── TraceError           a trace: file, row, column, what was expected
│   ├── ClusterSpecError     a cluster description
│   ├── CheckpointError      a checkpoint: missing, damaged, or with another feature schema
│   └── UnknownPolicyError   a policy name that is no preset, file or scheduler
├── AllocationError          the ledger rejects a change, which is then not made
├── NodeStateError           a node's state (on, draining, asleep, booting) does not allow a command
├── JournalError             the journal cannot be read or written
│   ├── JournalFullError     the journal's disk is full; nothing was written
│   ├── JournalHeldError     another broker uses the journal (exit code 2)
│   └── JournalLostError     the directory had another journal, or a longer journal (exit code 2)
├── SupersededError          a later broker of the cluster is active; this broker has stopped
├── WireError                a message is malformed, or has another protocol version (exit code 2)
├── BrokerUnavailableError   no broker answers at the address (exit code 2)
└── in rlsched_node: GpuError (an NVML error, a GPU is lost) and LaunchError (a rank cannot be started)
"""

from __future__ import annotations

from collections.abc import Iterable


class RlschedError(Exception):
    """Base class of all errors of rlsched. `str(error)` is one line that a user can act on."""

    exit_code = 1


class InputError(RlschedError):
    """A value from the user is wrong. The message states what was expected and found, where, and a remedy."""

    exit_code = 2


class TraceError(InputError):
    """A trace does not follow the normal form."""


class ClusterSpecError(InputError):
    """A cluster description is malformed."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or was made for another feature schema."""


class UnknownPolicyError(InputError):
    """There is no policy with this name."""


class AllocationError(RlschedError):
    """The ledger rejected a change, which was not made."""


class NodeStateError(RlschedError):
    """The state of a node (on, draining, asleep, booting) does not allow a command.

    The command was not executed.
    """


class JournalError(RlschedError):
    """The journal cannot be read or written."""


class JournalFullError(JournalError):
    """There is no space left for the journal; no entry of the batch was written."""


class JournalHeldError(JournalError):
    """Another broker uses the journal."""

    exit_code = 2


class JournalLostError(JournalError):
    """Files next to the journal show that the journal is missing, empty, too old, or another cluster's."""

    exit_code = 2


class SupersededError(RlschedError):
    """A later broker of the cluster is active: this broker must stop."""


class WireError(RlschedError):
    """A message is malformed, or has another protocol version."""

    exit_code = 2


class BrokerUnavailableError(RlschedError):
    """No broker answers at the address."""

    exit_code = 2


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X? ` with the known word that is most similar to `word`; "" if none is similar."""
    import difflib

    words = list(known)
    swapped = [one for one in words if sorted(one) == sorted(word)]  # get_close_matches misses short words
    near = difflib.get_close_matches(word, words, 1) or swapped
    return f"did you mean {near[0]}? " if near else ""
