"""MIG: slices of GPUs, combinations of slices that fit on a GPU, and the speed of jobs on slices."""

from __future__ import annotations

from functools import cache
from itertools import count
from math import isnan, nan
from typing import Final, NamedTuple

from rlsched.compile.jit import kernel
from rlsched.models.gpu_types import GPU_FIGURES, NAME_TOLERANCE, canonical_kind, named_memory_mib
from rlsched.models.slice_name import slice_name

MEMORY_SLICES: Final = 8
COMPUTE_SLICES: Final = 7


class SliceProfile(NamedTuple):
    """One size of slice.

    Attributes:
        name: NVIDIA's name.
        compute: Number of compute slices, out of `COMPUTE_SLICES` of a GPU.
        memory: Number of memory slices, out of `MEMORY_SLICES` of a GPU.
        memory_mib: Usable memory, MiB.
        at_most: Maximum number of slices of this size on a GPU.
    """

    name: str
    compute: int
    memory: int
    memory_mib: int
    at_most: int


def _profiles(names: str, gib: tuple[float, float, float, float]) -> tuple[SliceProfile, ...]:
    """Return the five common profiles, 1g to 7g.

    `gib`: memory of a slice, GiB: (1g, 2g, 3g and 4g, 7g).
    """
    memory_gib = (gib[0], gib[1], gib[2], gib[2], gib[3])
    shapes = ((1, 1, 7), (2, 2, 3), (3, 4, 2), (4, 4, 1), (7, 8, 1))
    return tuple(
        SliceProfile(name, compute, memory, int(each * 1024), at_most)
        for name, each, (compute, memory, at_most) in zip(names.split(), memory_gib, shapes, strict=True)
    )


PROFILES: Final = {
    "A100-40GB": _profiles("1g.5gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb", (4.75, 9.75, 19.62, 39.38)),
    "A100-80GB": _profiles("1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", (9.50, 19.50, 39.25, 79.00)),
    "H100-80GB": _profiles("1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", (9.75, 19.62, 39.50, 79.25)),
    "H200-141GB": _profiles("1g.18gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb", (16.00, 32.50, 65.00, 140.00)),
}
"""Profiles by GPU, smallest first. Shapes and counts: NVIDIA's MIG guide, supported profiles. Memory: as
listed by `nvidia-smi mig -lgip` in GiB on such GPUs (public listings). For H200's 3g and 4g no listing was
found: twice the memory of its 2g is assumed.
"""

_STARTS: Final = {1: (0, 1, 2, 3, 4, 5, 6), 2: (0, 2, 4), 3: (0, 4), 4: (0,), 7: (0,)}
"""Memory slices at which a slice can begin, by number of compute slices (NVIDIA's MIG guide, placements)."""
_LENGTH: Final = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}

MEASURED_A100: Final[dict[tuple[str, int], tuple[float, float, float, float]]] = {
    ("bert", 2): (nan, 0.3891, 0.6268, 0.688),
    ("bert", 4): (nan, 0.325, 0.5556, 0.6148),
    ("bert", 6): (nan, nan, 0.5473, 0.6006),
    ("bert", 8): (nan, nan, 0.5174, 0.5739),
    ("cyclegan", 1): (0.24, 0.4605, 0.7174, 0.7806),
    ("cyclegan", 2): (nan, 0.3294, 0.5223, 0.6274),
    ("cyclegan", 3): (nan, 0.305, 0.4895, 0.5879),
    ("cyclegan", 4): (nan, nan, 0.4926, 0.5883),
    ("deepspeech2", 2): (0.2737, 0.6488, 0.8505, 0.9496),
    ("deepspeech2", 4): (0.0919, 0.2782, 0.3967, 0.5946),
    ("deepspeech2", 8): (0.0773, 0.6604, 0.8379, 0.9366),
    ("deepspeech2", 16): (nan, 0.625, 0.8056, 0.8571),
    ("embedding", 64): (0.6122, 0.8108, 0.9375, 0.9375),
    ("embedding", 128): (0.4444, 0.6809, 0.8889, 0.9143),
    ("embedding", 256): (0.3089, 0.5352, 0.7451, 0.8085),
    ("embedding", 512): (0.2407, 0.4298, 0.642, 0.7027),
    ("gnn", 64): (0.3656, 0.5879, 0.7748, 0.8478),
    ("gnn", 128): (0.2897, 0.4972, 0.6836, 0.7447),
    ("gnn", 256): (0.2385, 0.4298, 0.6198, 0.7177),
    ("gnn", 512): (nan, 0.4093, 0.58, 0.654),
    ("mobilenet", 64): (0.8103, 0.9038, 0.9741, 0.9843),
    ("mobilenet", 128): (0.7038, 0.8487, 0.9619, 0.9806),
    ("mobilenet", 256): (0.5561, 0.7941, 0.9205, 0.9567),
    ("mobilenet", 512): (0.3957, 0.666, 0.881, 0.9396),
    ("resnet", 64): (0.5787, 0.8927, 1.0035, 0.9561),
    ("resnet", 128): (0.4568, 0.7749, 0.9338, 0.9642),
    ("resnet", 256): (0.3227, 0.5833, 0.8514, 0.9292),
    ("resnet", 512): (0.2236, 0.4192, 0.6524, 0.7469),
    ("transformer", 16): (0.18, 0.3421, 0.558, 0.6161),
    ("transformer", 32): (0.163, 0.3161, 0.5328, 0.5932),
    ("transformer", 64): (nan, 0.3013, 0.5202, 0.5786),
    ("transformer", 128): (nan, nan, 0.5107, 0.5702),
}
"""Speed of a model at a batch size on slices 1g, 2g, 3g and 4g of an A100-40GB relative to 7g; nan: the model
did not fit, or was not measured. MISO's logs (SoCC'22; boringlee24/socc22-miso, MIT). Fits exclude the
outlier DeepSpeech2: for all other models, speeds decrease with batch size.
"""

MEASURED_GPU: Final = "A100-40GB"

BEND: Final = 2.62
"""Exponent in `slice_speed`. This exponent and SIZE_FRAC are fitted to `MEASURED_A100` without DeepSpeech2
(`studies/models/fit_sharing.py`).
"""
SIZE_FRAC: Final = (nan, 0.143, 0.263, 0.436, 0.505, nan, nan, 1.0)
"""Effective size of a slice, by number of compute slices: the speed of a job that keeps a whole GPU busy,
relative to 7g. The size of 1g is its fraction of the multiprocessors, a seventh. The other sizes are fitted
on A100, and also used for the other GPUs.
"""


@kernel
def slice_speed(demand: float, compute: int) -> float:
    """Return the modelled speed on a MIG slice relative to the whole GPU (7g), in (0, 1].

    A smooth roofline, (1 + d^p (r^-p - 1))^(-1/p), with d = `demand`, r = `SIZE_FRAC` and p = `BEND`. Jobs on
    other slices have no effect.

    Args:
        demand: Fraction of the GPU that the job keeps busy, 0 to 1. The job's solo utilisation is used (an
            assumption: MISO's logs contain no utilisation).
        compute: Number of compute slices: 1, 2, 3, 4 or 7.
    """
    return (1.0 + demand**BEND * (SIZE_FRAC[compute] ** -BEND - 1.0)) ** (-1.0 / BEND)


def measured_speed(model: str, batch: int, compute: int) -> float:
    """Return the speed of a model measured on a slice of an A100-40GB, relative to 7g; nan: not measured."""
    if compute == COMPUTE_SLICES:
        return 1.0 if (model, batch) in MEASURED_A100 else nan
    return MEASURED_A100.get((model, batch), (nan,) * 4)[compute - 1]


def combined_throughput(model: str, batch: int, compute: int) -> float:
    """Return the total throughput of equal jobs, one on each of as many equal slices as fit on a GPU.

    It is relative to one such job on the whole GPU (7g); nan: not measured.
    """
    return _at_most(compute) * measured_speed(model, batch, compute)


class Slice(NamedTuple):
    """A MIG slice: its GPU and its size.

    Attributes:
        gpu: Type of the GPU that has the slice, a key of `PROFILES`.
        profile: Size of the slice.
    """

    gpu: str
    profile: SliceProfile

    @property
    def memory_frac(self) -> float:
        """Fraction of the GPU's memory slices.

        The slice is assumed to draw this fraction of the GPU's idle power and of its static power.
        """
        return self.profile.memory / MEMORY_SLICES

    @property
    def compute_frac(self) -> float:
        """Fraction of the GPU's compute slices.

        The slice is assumed to draw this fraction of the GPU's power above static power, because there is no
        public data on the power of a slice.
        """
        return self.profile.compute / COMPUTE_SLICES

    @property
    def size_frac(self) -> float:
        """Effective size relative to the GPU: the speed of a job that keeps a whole GPU busy."""
        return SIZE_FRAC[self.profile.compute]

    def was_measured(self, workload: str) -> bool:
        """Return whether a workload of the catalogue was measured on this slice."""
        row = MEASURED_AS.get(workload)
        if row is None or self.gpu != MEASURED_GPU:
            return False
        return not isnan(measured_speed(*row, self.profile.compute))


MEASURED_AS: Final = {
    "gnn-b64": ("gnn", 64),
    "gnn-b256": ("gnn", 256),
    "cyclegan-monet2photo-b1": ("cyclegan", 1),
}
"""Workload of the catalogue -> its key in `MEASURED_A100`: model and batch size. The other models of
`MEASURED_A100` use data sets that differ from the catalogue's, or are unknown.
"""


@cache
def gpu_with_mig(gpu_type: str) -> str | None:
    """Return the key of `PROFILES` for a GPU type; None: the type's slices are unknown.

    If the name states no memory size, the size in `GPU_FIGURES` is assumed: `A100` is `A100-40GB`.
    """
    kind = canonical_kind(gpu_type)
    memory_mib = named_memory_mib(gpu_type) or GPU_FIGURES[kind]["memory_mib"].value
    for known in PROFILES:
        labelled_mib = named_memory_mib(known) or 0.0
        if canonical_kind(known) == kind and abs(memory_mib / labelled_mib - 1.0) <= NAME_TOLERANCE:
            return known
    return None


@cache
def slice_of(gpu_type: str) -> Slice | None:
    """Return the slice that a GPU type names (`A100-40GB/3g.20gb`); None: whole GPUs, or unknown."""
    name = slice_name(gpu_type)
    gpu = None if name is None else gpu_with_mig(name.whole)
    if name is None or gpu is None:
        return None
    return next((Slice(gpu, profile) for profile in PROFILES[gpu] if profile.name == name.profile), None)


def layout_fault(gpu_type: str, names: tuple[str, ...]) -> str:
    """Return why GPUs of this type cannot be partitioned into these slices; "" if they can.

    All slices of a node must be of one size, because a node has one GPU type.
    """
    gpu = gpu_with_mig(gpu_type)
    if gpu is None:
        return f"no slices are known for GPU type {gpu_type!r}; they are known for {', '.join(PROFILES)}"
    known = {profile.name: profile for profile in PROFILES[gpu]}
    for name in names:
        if name not in known:
            return f"expected slices of {gpu} ({', '.join(known)}), got {name!r}"
    if len(set(names)) > 1:
        return (
            f"expected slices of one size on a node, got {', '.join(names)}; "
            "give nodes of each size a [[nodes]] of their own"
        )
    if not layout_fits(tuple(known[name].compute for name in names)):
        most = _at_most(known[names[0]].compute)
        return f"{len(names)} slices {names[0]} cannot be made on one GPU at once, {most} can"
    return ""


def speed_on_slice(workload: str, util_frac: float, cut: Slice) -> float:
    """Return the speed of a workload of the catalogue on a slice relative to the whole GPU.

    Uses the measurement if there is one, else `slice_speed`.

    Args:
        workload: Name of the workload.
        util_frac: Utilisation of the whole GPU, used as the fraction that the workload keeps busy.
        cut: The slice.
    """
    if cut.was_measured(workload):
        return measured_speed(*MEASURED_AS[workload], cut.profile.compute)
    return float(slice_speed(util_frac, cut.profile.compute))


def layout_fits(compute: tuple[int, ...]) -> bool:
    """Return whether slices of these sizes fit on one GPU. MIG restricts their positions and total size.

    Args:
        compute: For each MIG slice, its number of compute slices: 1, 2, 3, 4 or 7.
    """
    return _placed(sorted(compute, key=lambda size: -_LENGTH[size]), 0)


def _placed(left: list[int], taken: int) -> bool:
    """Return whether the slices `left` fit on a GPU whose memory slices `taken` (a bit mask) are in use."""
    if not left:
        return True
    size = left[0]
    for start in _STARTS[size]:
        mask = ((1 << _LENGTH[size]) - 1) << start
        if not mask & taken and _placed(left[1:], taken | mask):
            return True
    return False


def _at_most(compute: int) -> int:
    """Return the maximum number of MIG slices on a GPU if each has `compute` compute slices."""
    return next(n for n in count(1) if not layout_fits((compute,) * (n + 1)))
