"""Environment variables that a launcher sets for one process, and that a submitted job must not inherit."""

from __future__ import annotations

from typing import Final

_TORCH: Final = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
_RLSCHED: Final = frozenset(
    {
        *("RLSCHED_JOB", "RLSCHED_ATTEMPT", "RLSCHED_ATTEMPT_DIR", "RLSCHED_GRACE_S"),
        *("RLSCHED_NODES", "RLSCHED_NUM_NODES", "RLSCHED_NODE_RANK", "RLSCHED_GPUS_ON_NODE"),
        *("RLSCHED_RANK", "RLSCHED_NUM_RANKS", "RLSCHED_FIRST_RANK"),
        *("RLSCHED_STEPS_KEY", "RLSCHED_STEPS_AT", "RLSCHED_STEPS_PYTHON"),
        *("RLSCHED_MASTER_ADDR", "RLSCHED_MASTER_PORT", "RLSCHED_ARRAY_JOB", "RLSCHED_ARRAY_TASK"),
        "CUDA_VISIBLE_DEVICES",
    }
)
_PREFIXES: Final = ("TORCHELASTIC_", "PET_", "SLURM_", "SLURMD_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")
_SETTINGS: Final = frozenset({"SLURM_CONF", "SLURM_JWT", "SLURM_TIME_FORMAT"})


def describes_a_process(name: str) -> bool:
    """Return whether a launcher (torchrun, rlsched, Slurm, MPI) sets this variable for a process of a job.

    If a job is submitted from within another job and inherits these variables, its processes behave as
    processes of the other job.
    """
    return name in _TORCH or name in _RLSCHED or (name.startswith(_PREFIXES) and name not in _SETTINGS)
