"""Functions for the names of GPU types that are MIG slices."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class SliceName(NamedTuple):
    """The two parts of a GPU type that is a MIG slice, such as `A100-40GB/3g.20gb`."""

    whole: str  # the type of the whole GPU
    profile: str  # NVIDIA's name of the slice


@cache
def slice_name(gpu_type: str) -> SliceName | None:
    """Return (type of the whole GPU, profile of the slice) of a slice's type; None for whole GPUs."""
    found = re.fullmatch(r"(.+)/(\d+g\.\d+gb)", gpu_type)
    return None if found is None else SliceName(found[1], found[2])


def is_slice(gpu_type: str) -> bool:
    """Return whether GPUs of this type are MIG slices."""
    return slice_name(gpu_type) is not None


def whole_type(gpu_type: str) -> str:
    """Return the type of the whole GPU for the type of a slice; for a whole GPU, return `gpu_type`."""
    name = slice_name(gpu_type)
    return gpu_type if name is None else name.whole
