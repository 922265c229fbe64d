"""Options of Slurm's commands that rlsched's verbs lack, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INSTEAD: Final[Mapping[str, Mapping[str, str]]] = {
    "queue": {
        "--start": "the columns starts and ends are forecasts, and `rlsched why JOB` explains one job",
        "-r": "the waiting tasks of an array are one row; `rlsched queue -j ARRAY` selects them",
        "--array": "the waiting tasks of an array are one row; `rlsched queue -j ARRAY` selects them",
        "-O": "use -o COLUMN,... with field names of --json",
        "--Format": "use -o COLUMN,... with field names of --json",
        "-q": "QOS is --priority here; use --json, which has the field priority",
        "--qos": "QOS is --priority here; use --json, which has the field priority",
        "-s": "`srun` prints the steps of a job in the job's output; `rlsched logs JOB` shows it",
        "--steps": "`srun` prints the steps of a job in the job's output; `rlsched logs JOB` shows it",
    },
    "history": {
        "-p": "use --csv for a parsable table, and --vc for a partition",
        "--parsable": "use --csv",
        "-P": "use --csv",
        "--parsable2": "use --csv",
        "-b": "use -o job,state,exit_code",
        "--brief": "use -o job,state,exit_code",
        "-l": "use --json or --csv, which have all fields",
        "--long": "use --json or --csv, which have all fields",
        "-a": "all users are listed without --user",
        "--allusers": "all users are listed without --user",
        "-N": "use --csv, which has the field nodes",
        "--nodelist": "use --csv, which has the field nodes",
    },
    "nodes": {
        "-s": "use `rlsched status`, which counts nodes by state",
        "--summarize": "use `rlsched status`, which counts nodes by state",
        "-r": "use -t up",
        "--responding": "use -t up",
        "-d": "use -t down",
        "--dead": "use -t down",
        "-T": "there are no reservations",
        "-O": "use -o COLUMN,... with field names of --json",
        "--Format": "use -o COLUMN,... with field names of --json",
    },
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
"""Verb of rlsched -> (option of the corresponding Slurm command -> what to use in rlsched instead)."""
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
STATES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("timeout", "to", "out_of_memory", "oom", "node_fail", "nf"),
            *("boot_fail", "bf", "deadline", "dl", "launch_failed", "lf"),
        ),
        "such jobs are failed here, and the column reason has the cause",
    ),
    **dict.fromkeys(
        ("preempted", "pr", "requeued", "rq", "requeue_hold", "rh"),
        "such jobs are queued here, and the column reason has the cause",
    ),
    **dict.fromkeys(("completing", "cg", "stage_out", "so"), "such jobs are running here"),
    **dict.fromkeys(("suspended", "s", "stopped", "st"), "jobs are not suspended here"),
}
"""State of Slurm that rlsched lacks, in lower case -> text about the state of such jobs in rlsched."""


def _pairs(text: str) -> dict[str, str]:
    """Return a dict from a text such as `jobid=job user=user`: word of Slurm -> column of rlsched."""
    return {word: column for word, _, column in (pair.partition("=") for pair in text.split())}


COLUMNS: Final = _pairs(
    "jobid=job jobname=name username=user partition=vc statelong=state exitcode=exit_code "
    "derivedexitcode=exit_code nodelist=nodes numcpus=num_cpus start=start_s starttime=start_s "
    "end=end_s endtime=end_s submit=submit_s submittime=submit_s arrayjobid=array "
    "arraytaskid=task planned=wait_s consumedenergyraw=energy_j ncpus=num_cpus nodehost=name "
    "statecompact=state gres=gpus tres=num_gpus alloctres=num_gpus reqtres=num_gpus "
    "prioritylong=priority "
) | dict.fromkeys(("elapsed", "elapsedraw"), "gpu_s, GPU-seconds,")
"""Column of `squeue -O`, `sacct -o` or `sinfo -O`, in lower case -> column of rlsched's lists."""
LETTERS: Final = _pairs(
    "i=job A=job F=array K=task j=name u=user a=account P=vc T=state t=state r=reason R=reason "
    "S=start_s V=submit_s e=end_s N=nodes C=num_cpus m=memory_mib p=priority Q=queue_key "
    "b=num_gpus f=gpu_types n=name G=gpus E=reason "
)
"""Letter of `squeue -o` or `sinfo -o` -> column of rlsched's lists."""
