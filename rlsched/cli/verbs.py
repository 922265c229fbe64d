"""Summaries of the verbs (subcommands), and the extras that they need. This module imports no verb."""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Workloads": {
        "trace": "Describe, convert and generate job traces, and predict run times.",
        "cluster": "Make a cluster file from the nodes of a Slurm cluster.",
        "models": "Show the speed and power of known workloads by GPU type.",
        "signal": "Generate, describe and convert series of electricity prices or carbon intensity.",
    },
    "Policies": {
        "policies": "List the named policies, and show one as TOML.",
        "evaluate": "Replay a trace under several policies and compare them.",
        "whatif": "Replay the job history of your cluster under other policies.",
        "shadow": "Report per day how a shadow policy would have changed your Slurm's schedule.",
        "train": "Train a policy on your job history, and measure its gain.",
        "warm": "Compile a policy in advance, so that its first use is fast.",
        "board": "Show decisions and training curves in TensorBoard.",
    },
    "A cluster": {
        "up": "Start a local cluster: a broker, and nodes with simulated GPUs.",
        "broker": "Run the broker, which schedules the jobs.",
        "node": "Run a node daemon, which starts jobs; drain, resume and remove nodes.",
        "engine": "Let rlsched schedule the jobs of a Slurm cluster.",
        "quota": "Limit the resources of users, accounts and VCs, and show their use.",
        "keys": "Create, list and revoke keys, and connect other machines to the broker.",
        "journal": "Check, export, back up, restore and compact the broker's journal.",
    },
    "Jobs": {
        "submit": "Submit a job: a command, or a script.",
        "run": "Run a job, show its output and return its exit code; Ctrl-C ends the job.",
        "queue": "List waiting and running jobs.",
        "history": "List finished and running jobs.",
        "account": "Sum up finished jobs: GPU-hours, energy, waiting times, outcomes.",
        "why": "Explain why a job waits, or why it runs where it does.",
        "explain": "Explain a job's history or a decision, and list the alternatives that the policy had.",
        "logs": "Show the output of a job.",
        "cancel": "Cancel jobs.",
        "hold": "Hold waiting jobs.",
        "release": "Release held jobs.",
        "requeue": "End running jobs, and requeue them.",
        "update": "Change submitted jobs: priority, time limit, begin, dependency.",
        "nodes": "List the nodes and their free resources.",
        "top": "Show the whole cluster on one live screen.",
        "predictor": "Show the recent accuracy of predicted run times and starts.",
        "policy": "Change the policy of a running broker.",
        "doctor": "Check this machine for problems, and print how to fix them.",
        "metrics": "Serve the broker's metrics to Prometheus.",
        "notify": "Send webhooks or mail about jobs submitted with --notify.",
        "status": "Report whether the broker is healthy, also by exit code for monitoring.",
    },
}
"""Section of the help page -> (verb of rlsched -> its summary), in the order of the help page."""

SUMMARIES: dict[str, str] = {verb: line for section in SECTIONS.values() for verb, line in section.items()}

ELSEWHERE: dict[str, str] = {
    "sbatch": "submit",
    "srun": "run",
    "salloc": "run",
    "squeue": "queue",
    "scancel": "cancel",
    "sinfo": "nodes",
    "sacct": "history",
    "sreport": "account",
    "scontrol": "explain, nodes, hold, release, requeue, update, or node drain",
    "sprio": "why JOB",
    "sshare": "account",
    "sstat": "top",
    "sacctmgr": "quota",
    "sdiag": "status",
    "job": "queue, why, or history",
    "jobs": "queue",
    "list": "queue",
    "show": "queue, nodes, or why",
    "ls": "queue",
    "ps": "queue",
    "kill": "cancel",
    "output": "logs",
    "serve": "broker",
    "daemon": "node",
    "start": "up",
}
"""Command of Slurm or a similar tool -> the verb or verbs that replace it, as text."""

_EXTRA_OF_MODULE = {
    "torch": "train",
    "stable_baselines3": "train",
    "gymnasium": "train",
    "tqdm": "train",
    "tensorboard": "board",
    "numba": "broker",
    "llvmlite": "broker",
    "zmq": "broker",
    "prometheus_client": "metrics",
    "pynvml": "node",
    "pyarrow": "parquet",
    "matplotlib": "report",
    "sklearn": "predict",
    "ray": "ray",
}
_EXTRA_OF_VERB = {
    "train": "train",
    "board": "board",
    "node": "node",
    "up": "broker,node",
}


def extra_for(module: str, verb: str) -> str | None:
    """Return the extra that provides a missing module for a verb; None if no extra provides the module.

    The extra of a verb does not contain Ray.
    """
    extra = _EXTRA_OF_MODULE.get(module.partition(".")[0])
    return extra if extra == "ray" else extra and _EXTRA_OF_VERB.get(verb, extra)
