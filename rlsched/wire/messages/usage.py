"""Usage of a node's ranks and GPUs, as measured by the node."""

import msgspec


class RankUsage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Usage of one rank in the measured time; a value that the node cannot measure is None.

    The struct is encoded as an array, so new fields are added at the end. Fractions are in thousandths.
    Values are means over the rank's GPUs and over the measured time, unless documented otherwise.
    """

    measured_s: int = 0
    """Measured time, seconds."""
    energy_mj: int | None = None
    """The rank's part of the energy of its GPUs, millijoules."""
    gpu_milli: int | None = None
    """Fraction of time in which a kernel ran."""
    gpu_memory_mib: int | None = None
    """Maximum memory in use on one GPU: by the rank's processes if the driver reports this, else in total."""
    sm_active_milli: int | None = None
    """Fraction of multiprocessors with work. Measured by GPM (NVML's GPU performance monitoring), like the
    next three fields."""
    sm_occupancy_milli: int | None = None
    tensor_milli: int | None = None
    """Fraction of time in which tensor cores worked."""
    dram_milli: int | None = None
    """Fraction of the memory bandwidth in use."""
    sm_clock_mhz: int | None = None
    power_limited_milli: int | None = None
    """Fraction of time in which a power limit reduced the clock."""
    heat_limited_milli: int | None = None
    """Fraction of time in which heat, or a slowdown by the hardware, reduced the clock."""
    temperature_c: int | None = None
    """Maximum temperature, degrees Celsius."""
    pcie_mib_s: int | None = None
    """PCIe traffic, sum of both directions."""
    cpu_milli: int | None = None
    """CPU time per second, thousandths of a core."""
    cpu_high_milli: int | None = None
    """Maximum of `cpu_milli` in a period of about 10 s."""
    throttled_milli: int | None = None
    """Fraction of CPU periods in which the rank's control group was throttled; None: no limit."""
    io_wait_milli: int | None = None
    """Fraction of time in which a process waited for input or output (pressure stall information)."""
    read_mib: int | None = None
    """Data read from storage."""
    memory_mib: int | None = None
    """Maximum resident memory; with control groups, the anonymous and shared memory of the rank's group."""
    shared_gpu_milli: int | None = None
    """Fraction of time in which a kernel of the rank's own processes ran while other ranks used the same
    GPUs. None: no other rank used these GPUs, or the driver does not report usage by process."""

    def is_sound(self) -> bool:
        """Return whether each field is None, or at least 0 and below `MOST`; for received messages."""
        values = (getattr(self, field) for field in self.__struct_fields__)
        return all(value is None or 0 <= value < MOST for value in values)


MOST = 1 << 53
"""Upper bound of the fields of `RankUsage`. Floats represent all integers up to this bound exactly."""


class SeenUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of a job as shown to users; a value is None if no node can measure it.

    For a running job, this is the recent usage; for a finished job, the usage of the whole last attempt.
    Values are means over the job's GPUs and over time, unless documented otherwise.
    """

    at_s: float | None = None
    """Time of the last report, Unix seconds; None for a finished job."""
    energy_j: float | None = None
    """Energy since the start of this attempt, joules."""
    gpu_frac: float | None = None
    """Fraction of time in which a kernel ran."""
    gpu_memory_mib: int | None = None
    """Maximum memory in use on one GPU."""
    sm_active_frac: float | None = None
    """Fraction of multiprocessors with work."""
    sm_occupancy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    sm_clock_mhz: int | None = None
    power_limited_frac: float | None = None
    """Fraction of time in which a power limit reduced the clock."""
    heat_limited_frac: float | None = None
    """Fraction of time in which heat, or a slowdown by the hardware, reduced the clock."""
    temperature_c: int | None = None
    """Maximum temperature, degrees Celsius."""
    pcie_mib_s: int | None = None
    cores: float | None = None
    """Number of CPU cores that all ranks of the job keep busy."""
    throttled_frac: float | None = None
    """Fraction of CPU periods in which a limit throttled the job."""
    io_wait_frac: float | None = None
    """Fraction of time in which the job waited for input or output."""
    read_mib: int | None = None
    """Data read from storage, sum of all ranks."""
    memory_mib: int | None = None
    """Maximum resident memory of a rank."""


class ProfileFigure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure of a job's profile: the expected value with its origin, and the observed value.

    Attributes:
        field: Name of the figure, as in `rlsched models`.
        gpu_type: GPU type to which the figure applies.
        value: Expected value.
        spread: Standard deviation of ln(value).
        status: Origin: `learnt`, `measured`, `estimated`, `named` or `median`, the most certain first.
        source: Description of the origin.
        count: Number of attempts or observations behind a learnt value.
        seen: Value observed in the present or last attempt; None: not measured.
        num_gpus: Number of GPUs to which the figure `scaling` applies; None for all other figures.
    """

    field: str
    gpu_type: str
    value: float
    spread: float
    status: str
    source: str
    count: int = 0
    seen: float | None = None
    num_gpus: int | None = None


class RankMetered(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Recent usage of one rank."""

    job: int
    attempt: int
    rank: int
    usage: RankUsage
    """Usage of about the last 10 s."""
    energy_mj: int | None = None
    """Energy since the rank's start, millijoules."""
    outside_mps: bool = False
    """Whether the rank uses its GPUs without MPS although it should use MPS."""


class Metered(msgspec.Struct, frozen=True, kw_only=True, tag="metered", forbid_unknown_fields=True):
    """Measurements of a node. Sent only if `Welcome.hears_usage` is True; a lost message is not repeated."""

    ranks: list[RankMetered] = []
    """Usage of the ranks whose values have changed; once a minute, usage of all ranks."""
    power_w: float | None = None
    """Power of all GPUs of the node, W; None if a GPU does not report its power."""
    day: str = ""
    """Date at the node, such as 2026-11-25."""
    energy_day_j: float | None = None
    """Energy of the node's GPUs since the beginning of `day`, with and without jobs, joules."""
