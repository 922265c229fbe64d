"""Memory sizes on the command line, in the syntax of `sbatch`: `64G`, `500M`, `1.5T`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from rlsched.errors import InputError

_SIZE: Final = r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?"
_MIB_OF: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def size_mib(text: str, option: str) -> int:
    """Return a memory size, MiB, from a number with K, M (the default), G or T, as in Slurm.

    Raises:
        InputError: the text is not a size.
    """
    found = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    if found is None:
        raise InputError(f"{option} {text!r}: expected a size such as 64G, 500M or 1.5T, or a number of MiB")
    return math.ceil(float(found[1]) * _MIB_OF[(found[2] or "M").upper()])


def num_tasks(asked: Mapping[str, Any]) -> int | None:
    """Return the number of tasks of the whole job, counted as in `sbatch`; None: no option sets it."""
    per_node = asked["ntasks_per_node"]
    tasks: int | None = asked["ntasks"] or (per_node and per_node * (asked["nodes"] or 1))
    return tasks


def memory_mib(asked: Mapping[str, Any], num_gpus: int) -> int:
    """Return the host memory that the whole job requests, MiB; 0: no option requests memory.

    `num_gpus` is the number of GPUs of the whole job.

    Raises:
        InputError: two options request memory, or memory per core is requested without cores.
    """
    given = [name for name in ("mem", "mem_per_gpu", "mem_per_cpu") if asked[name]]
    if len(given) > 1:
        raise InputError("expected only one of --mem, --mem-per-gpu and --mem-per-cpu")
    if not given:
        return 0
    times = {
        "mem": asked["nodes"] or 1,
        "mem_per_gpu": num_gpus,
        "mem_per_cpu": (asked["cpus_per_task"] or 0) * (num_tasks(asked) or 1),
    }[given[0]]
    option = "--" + given[0].replace("_", "-")
    if not times:
        raise InputError(f"{option}: use it together with -c, because it is the memory per core")
    return size_mib(asked[given[0]], option) * times
