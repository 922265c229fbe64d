"""Usage of the ranks on a node, and of its GPUs, as measured by the node."""

import msgspec


class RankUsage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Usage of one rank while it was measured; None for a value that its node cannot measure.

    Integers without names: it is sent every 10 s, and stored in the journal. New fields are added at the end.
    Shares are in thousandths, means over the rank's GPUs and over time unless documented otherwise.
    """

    measured_s: int = 0
    """Measured time, seconds."""
    energy_mj: int | None = None
    """Its part of the energy of its GPUs, millijoules."""
    gpu_milli: int | None = None
    """Time in which a kernel ran."""
    gpu_memory_mib: int | None = None
    """Maximum on one GPU: of its own processes if the driver reports them, else of the GPU."""
    sm_active_milli: int | None = None
    """Share of multiprocessors with work, from GPM like the next three."""
    sm_occupancy_milli: int | None = None
    tensor_milli: int | None = None
    """Time in which tensor cores worked."""
    dram_milli: int | None = None
    """Memory bandwidth."""
    sm_clock_mhz: int | None = None
    power_limited_milli: int | None = None
    """Time in which a power limit reduced the clock."""
    heat_limited_milli: int | None = None
    """Time in which heat, or the hardware's own brake, reduced the clock."""
    temperature_c: int | None = None
    """Maximum."""
    pcie_mib_s: int | None = None
    """Both directions."""
    cpu_milli: int | None = None
    """CPU time per second, 1000: one core."""
    cpu_high_milli: int | None = None
    """Maximum over one second."""
    throttled_milli: int | None = None
    """CPU periods in which its control group was throttled; None if it has no limit."""
    io_wait_milli: int | None = None
    """Time in which a process of it waited for input or output (pressure stall information)."""
    read_mib: int | None = None
    """Read from storage."""
    memory_mib: int | None = None
    """Maximum resident memory; with control groups, the memory charged to its group."""
    shared_gpu_milli: int | None = None
    """Time in which a kernel of its own processes ran, while other ranks used its GPUs too; None: they did
    not, or the driver does not report it by process."""

    def is_sound(self) -> bool:
        """Whether no field is negative or absurd: values from a node are checked on arrival."""
        values = (getattr(self, field) for field in self.__struct_fields__)
        return all(value is None or 0 <= value < MOST for value in values)


MOST = 1 << 53
"""Upper bound of every figure of a rank; floats represent it exactly."""


class SeenUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of a job as shown to people: recent for a running job, from its start on for a finished one.

    None for a value that no node can measure. Means over its GPUs and over time, unless documented otherwise.
    """

    at_s: float | None = None
    """Time of the last report, Unix seconds; None for a finished job."""
    energy_j: float | None = None
    """From the start of this attempt on, joules."""
    gpu_frac: float | None = None
    """Time in which a kernel ran."""
    gpu_memory_mib: int | None = None
    """Maximum on one GPU."""
    sm_active_frac: float | None = None
    """Share of multiprocessors with work."""
    sm_occupancy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    sm_clock_mhz: int | None = None
    power_limited_frac: float | None = None
    """Time in which a power limit reduced the clock."""
    heat_limited_frac: float | None = None
    """Time in which heat, or the hardware's brake, reduced the clock."""
    temperature_c: int | None = None
    """Maximum."""
    pcie_mib_s: int | None = None
    cores: float | None = None
    """CPU cores that all its ranks keep busy."""
    throttled_frac: float | None = None
    """CPU periods in which a limit throttled it."""
    io_wait_frac: float | None = None
    """Time in which it waited for input or output."""
    read_mib: int | None = None
    """Read from storage in the same period."""
    memory_mib: int | None = None
    """Maximum resident memory of a rank."""


class RankMetered(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Recent usage of one rank."""

    job: int
    attempt: int
    rank: int
    usage: RankUsage
    """Usage of the last 10 s or so."""
    energy_mj: int | None = None
    """Energy from its start on, millijoules."""
    outside_mps: bool = False
    """It should share its GPUs under MPS, and runs on them without."""


class Metered(msgspec.Struct, frozen=True, kw_only=True, tag="metered", forbid_unknown_fields=True):
    """Measurements of a node; sent with `Welcome.hears_usage`, and may be lost without harm."""

    ranks: list[RankMetered] = []
    """Ranks whose figures have changed, and every rank once a minute."""
    power_w: float | None = None
    """Power of all its GPUs, W; None if not all of them report it."""
    day: str = ""
    """Its date, such as 2026-11-25."""
    energy_day_j: float | None = None
    """Energy of its GPUs since that day began, with and without jobs, joules."""
