"""What a node measures of the ranks that run on it, and of its GPUs."""

import msgspec


class RankUsage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one rank used while it was measured; None where its node cannot tell.

    Whole numbers and no names: it is sent every 10 s, and stands in the journal. New fields come at the end.
    Shares are in thousandths, means over the rank's GPUs and over time unless they say otherwise.
    """

    measured_s: int = 0
    """How long it was looked at, seconds."""
    energy_mj: int | None = None
    """Its part of what its GPUs drew, millijoules."""
    gpu_milli: int | None = None
    """Time in which a kernel ran."""
    gpu_memory_mib: int | None = None
    """Highest on one GPU: of its own processes where the driver tells, else of the GPU."""
    sm_active_milli: int | None = None
    """Multiprocessors with work, by GPM as the next three."""
    sm_occupancy_milli: int | None = None
    tensor_milli: int | None = None
    """Time in which tensor cores worked."""
    dram_milli: int | None = None
    """Memory bandwidth."""
    sm_clock_mhz: int | None = None
    power_limited_milli: int | None = None
    """Time in which the clock was kept down by a power limit ..."""
    heat_limited_milli: int | None = None
    """... or by heat, or by the hardware's own brake."""
    temperature_c: int | None = None
    """Highest."""
    pcie_mib_s: int | None = None
    """Both directions."""
    cpu_milli: int | None = None
    """CPU time a second, 1000: one core."""
    cpu_high_milli: int | None = None
    """Highest second."""
    throttled_milli: int | None = None
    """CPU periods in which its control group was held back; None where it has no limit."""
    io_wait_milli: int | None = None
    """Time in which some of its processes waited for input or output (pressure stall information)."""
    read_mib: int | None = None
    """Read from storage."""
    memory_mib: int | None = None
    """Highest of its resident memory; by control groups with what they charge to it."""

    def is_sound(self) -> bool:
        """Whether no field is negative or absurd: a node's word is checked where it enters."""
        values = (getattr(self, field) for field in self.__struct_fields__)
        return all(value is None or 0 <= value < MOST for value in values)


MOST = 1 << 53
"""No figure of a rank is as large; floats hold it exactly."""


class SeenUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job uses, as people see it: of one that runs lately, of one that is over from its start on.

    None where no node of its can tell. Means over its GPUs and over time, unless they say otherwise.
    """

    at_s: float | None = None
    """When it was told last, Unix seconds; None of a job that is over."""
    energy_j: float | None = None
    """From the start of this attempt on."""
    gpu_frac: float | None = None
    """Time in which a kernel ran."""
    gpu_memory_mib: int | None = None
    """Highest on one GPU."""
    sm_active_frac: float | None = None
    """Multiprocessors with work."""
    sm_occupancy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    sm_clock_mhz: int | None = None
    power_limited_frac: float | None = None
    """Time in which a power limit kept the clock down ..."""
    heat_limited_frac: float | None = None
    """... or heat, or the hardware's brake."""
    temperature_c: int | None = None
    """Highest."""
    pcie_mib_s: int | None = None
    cores: float | None = None
    """CPU cores that all its ranks keep busy."""
    throttled_frac: float | None = None
    """CPU periods in which a limit held it back."""
    io_wait_frac: float | None = None
    """Time in which it waited for input or output."""
    read_mib: int | None = None
    """Read from storage, in the same time as all else."""
    memory_mib: int | None = None
    """Highest of the resident memory of a rank."""


class RankMetered(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one rank has used lately."""

    job: int
    attempt: int
    rank: int
    usage: RankUsage
    """Of the last 10 s or so."""
    energy_mj: int | None = None
    """From its start on."""


class Metered(msgspec.Struct, frozen=True, kw_only=True, tag="metered", forbid_unknown_fields=True):
    """What a node has measured; sent where `Welcome.hears_usage` was said, and lost without harm."""

    ranks: list[RankMetered] = []
    """Those whose figures have changed, and each once a minute."""
    power_w: float | None = None
    """What all its GPUs draw, W; None where not all of them say."""
    day: str = ""
    """Its date, such as 2026-11-25."""
    energy_day_j: float | None = None
    """What its GPUs have drawn since that day began, with jobs and without, joules."""
