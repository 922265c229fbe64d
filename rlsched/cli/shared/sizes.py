"""Memory sizes on the command line, in the syntax of `sbatch`: `64G`, `500M`, `1.5T`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from rlsched.cli.shared.gpus_asked import num_tasks
from rlsched.errors import InputError

_SIZE: Final = r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?"
_WHOLE_MEMORY: Final = (
    "without the option, a job has memory in proportion to its GPUs, and all memory with all GPUs of a node"
)
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


def num_cores(asked: Mapping[str, Any], num_gpus: int) -> int:
    """Return the number of CPU cores that the whole job requests; 0: no option requests cores.

    `num_gpus` is the number of GPUs of the whole job.

    Raises:
        InputError: two options request cores, or the options on tasks are invalid.
    """
    per_gpu, per_task = asked["cpus_per_gpu"], asked["cpus_per_task"]
    if per_gpu and per_task:
        raise InputError("--cpus-per-gpu and -c: expected one of the two, got both")
    return per_gpu * num_gpus if per_gpu else (per_task or 0) * (num_tasks(asked) or 1)


def memory_mib(asked: Mapping[str, Any], num_gpus: int) -> int:
    """Return the host memory that the whole job requests, MiB; 0: no option requests memory.

    `num_gpus` is the number of GPUs of the whole job.

    Raises:
        InputError: two options request memory, a size is 0 (in Slurm: all memory of a node), or memory per
            core is requested without cores.
    """
    given = [name for name in ("mem", "mem_per_gpu", "mem_per_cpu") if asked[name]]
    if len(given) > 1:
        raise InputError("expected only one of --mem, --mem-per-gpu and --mem-per-cpu")
    if not given:
        return 0
    times = {
        "mem": asked["nodes"] or 1,
        "mem_per_gpu": num_gpus,
        "mem_per_cpu": num_cores(asked, num_gpus),
    }[given[0]]
    option = "--" + given[0].replace("_", "-")
    if not times:
        raise InputError(f"{option}: use it together with -c, because it is the memory per core")
    size = size_mib(asked[given[0]], option)
    if not size:
        raise InputError(f"{option} {asked[given[0]]}: expected a size such as 64G; {_WHOLE_MEMORY}")
    return size * times
