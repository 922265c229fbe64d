"""What the command line knows about its verbs without importing them: a summary, and the extra they need."""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Workloads": {
        "trace": "Describe, convert, synthesize and predict traces.",
        "cluster": "Make a cluster file from the nodes of a Slurm.",
        "models": "Show what is known of workloads on GPU types.",
    },
    "Policies": {
        "policies": "List the policies that have a name, and show one as TOML.",
        "evaluate": "Replay a trace under several policies and compare them.",
        "whatif": "Say what other policies would have made of your own history.",
        "shadow": "Say by day how a policy agrees with your Slurm, and what would have changed.",
        "train": "Find settings and dials of a rule that pay on your history, and say by how much.",
        "train-rows": "Train PPO on the choice of the next job, for research.",
        "warm": "Compile ahead what a policy needs, so that the first start is quick.",
        "board": "Open TensorBoard on decisions and training curves.",
    },
    "A cluster": {
        "up": "Start a whole local cluster in the foreground.",
        "broker": "Run the broker, which decides.",
        "node": "Run a node daemon, which starts processes; drain, resume, remove nodes.",
        "engine": "Let a Slurm that you have run the jobs, and rlsched decide.",
        "quota": "Limit what users, accounts and VCs have, and show what they use.",
        "keys": "Make, list and revoke keys, and join from another machine.",
        "journal": "Check, export, back up, restore and compact the broker's journal.",
    },
    "Jobs": {
        "submit": "Submit a job: a command, or a script.",
        "run": "Run a job as if it were here: its output, its exit code, Ctrl-C.",
        "queue": "List waiting and running jobs.",
        "history": "List jobs that are over and jobs that run.",
        "account": "Add up jobs that are over: GPU-hours, energy, waiting, outcomes.",
        "why": "Say why a job waits, or why it runs where it does.",
        "explain": "Tell the story of a job or a decision: what else was possible, what it was worth.",
        "logs": "Show the output of a job.",
        "cancel": "Cancel jobs.",
        "hold": "Keep waiting jobs out of the queue.",
        "release": "Let held jobs into the queue.",
        "requeue": "End running jobs, and queue them again.",
        "update": "Change what was submitted: priority, time limit, begin, dependency.",
        "nodes": "List the nodes and what is free on them.",
        "top": "Show the whole cluster on one live screen.",
        "predictor": "Say how good predictions of run times and starts have lately been.",
        "policy": "Change who decides in a broker that runs.",
        "doctor": "Say what is wrong on this machine, and what to do.",
        "metrics": "Serve the broker's figures to Prometheus.",
        "notify": "Tell of jobs by webhook or mail, for those who asked for it.",
        "status": "Say whether the broker is all right; an exit code for monitoring.",
    },
}
"""Verbs of this project by section, in the order in which help lists them; other installed verbs follow."""

SUMMARIES: dict[str, str] = {verb: line for section in SECTIONS.values() for verb, line in section.items()}

SLURMS: dict[str, str] = {
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
}
"""What Slurm's commands are called here."""

_EXTRA_OF_MODULE = {
    "torch": "train",
    "stable_baselines3": "train",
    "sb3_contrib": "train",
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
    "train-rows": "train",
    "board": "board",
    "node": "node",
    "up": "broker,node",
}


def extra_for(module: str, verb: str) -> str | None:
    """The extra to install when `verb` misses `module`; None: the module belongs to no extra."""
    extra = _EXTRA_OF_MODULE.get(module.partition(".")[0])
    return extra and _EXTRA_OF_VERB.get(verb, extra)
