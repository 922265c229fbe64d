"""Options of Slurm's commands that rlsched's verbs lack, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INSTEAD: Final[Mapping[str, Mapping[str, str]]] = {
    "cancel": {
        "-s": "jobs get SIGTERM, then SIGKILL after the grace time, and no other",
        "--signal": "jobs get SIGTERM, then SIGKILL after the grace time, and no other",
        "-b": "jobs get SIGTERM, then SIGKILL after the grace time, and no other",
        "-f": "jobs get SIGTERM, then SIGKILL after the grace time, and no other",
        "-A": "use --user, --state, --name or --vc",
        "--account": "use --user, --state, --name or --vc",
        "-w": "use `rlsched nodes`, which lists the jobs of each node",
        "--nodelist": "use `rlsched nodes`, which lists the jobs of each node",
        "-i": "no question is asked; `rlsched queue` with the same options lists the jobs",
        "--interactive": "no question is asked; `rlsched queue` with the same options lists the jobs",
    },
}
"""Verb -> (option of the Slurm command of the same purpose -> what to use in rlsched)."""
UPDATES: Final[Mapping[str, str]] = {
    "nodename": "use `rlsched node drain NAME --reason TEXT` or `rlsched node resume NAME`",
    "node": "use `rlsched node drain NAME --reason TEXT` or `rlsched node resume NAME`",
    "partitionname": "partitions are VCs here, which have no state; use `rlsched node drain`",
    "partition": "the VC of a job cannot be changed; cancel the job, and submit it with --vc",
    "account": "the account of a job cannot be changed; cancel the job, and submit it with --account",
    "reservationname": "there are no reservations",
    "userid": "the user of a job cannot be changed",
}
"""Word of `scontrol update` that `rlsched update` lacks, in lower case -> what to use in rlsched."""
