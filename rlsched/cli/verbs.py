"""Summaries of the verbs, and the extras that the verbs need; available without an import of the verbs."""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Workloads": {
        "trace": "Describe, convert, synthesize and predict traces.",
        "cluster": "Make a cluster file from the nodes of a Slurm cluster.",
        "models": "Show known figures of workloads on GPU types.",
        "signal": "Generate, describe and convert prices and carbon intensity of electricity.",
    },
    "Policies": {
        "policies": "List the named policies, and show one as TOML.",
        "evaluate": "Replay a trace under several policies and compare them.",
        "whatif": "Replay your own history under other policies.",
        "shadow": "Compare a policy with your Slurm by day, and show what it would have changed.",
        "train": "Find better settings and dials of a rule for your history, with the gain.",
        "warm": "Compile the kernels of a policy ahead, so that the first start is quick.",
        "board": "Open TensorBoard on decisions and training curves.",
    },
    "A cluster": {
        "up": "Start a whole local cluster in the foreground.",
        "broker": "Run the broker, which schedules the jobs.",
        "node": "Run a node daemon, which starts processes; drain, resume, remove nodes.",
        "engine": "Let rlsched schedule the jobs of a Slurm cluster.",
        "quota": "Limit the resources of users, accounts and VCs, and show their use.",
        "keys": "Create, list and revoke keys, and join from another machine.",
        "journal": "Check, export, back up, restore and compact the broker's journal.",
    },
    "Jobs": {
        "submit": "Submit a job: a command, or a script.",
        "run": "Run a job as if it were local: its output, its exit code, Ctrl-C.",
        "queue": "List waiting and running jobs.",
        "history": "List finished and running jobs.",
        "account": "Sum up finished jobs: GPU-hours, energy, waiting, outcomes.",
        "why": "Explain why a job waits, or why it runs where it does.",
        "explain": "Explain a job's history or a decision: the alternatives, and their prices.",
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
        "status": "Report whether the broker is healthy; an exit code for monitoring.",
    },
}
"""Summaries of this project's verbs, by section, in the order of the help page."""

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
    "scontrol": "hold, release, requeue, update, or node drain",
    "sprio": "why JOB",
    "sshare": "account",
    "sstat": "top",
    "sacctmgr": "quota",
    "sdiag": "status",
    "jobs": "queue",
    "list": "queue",
    "ls": "queue",
    "ps": "queue",
    "kill": "cancel",
    "output": "logs",
    "serve": "broker",
    "daemon": "node",
    "start": "up",
}
"""For each command of Slurm, and words of similar tools, the verb or verbs that replace it."""

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
    """Return the extra to install if a verb lacks a module; None if the module belongs to no extra."""
    extra = _EXTRA_OF_MODULE.get(module.partition(".")[0])
    return extra and _EXTRA_OF_VERB.get(verb, extra)
