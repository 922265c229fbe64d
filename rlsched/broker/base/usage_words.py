"""Formats the resource use of a job as text and as table cells."""

from __future__ import annotations

from collections.abc import Iterator

from rlsched.wire.messages import SeenUsage

_J_PER_KWH = 3.6e6


def energy(joules: float) -> str:
    """Format an energy, given in joules: `1.25 kWh`, or small values as `38.2 Wh`."""
    kwh = joules / _J_PER_KWH
    return f"{kwh:,.2f} kWh" if kwh >= 0.1 else f"{kwh * 1e3:,.1f} Wh"


def money(cost: float, currency: str) -> str:
    """Format a cost: `12.30 EUR`, or small amounts as `0.0123 EUR`."""
    return f"{cost:,.2f} {currency}" if abs(cost) >= 0.1 else f"{cost:.4f} {currency}"


def carbon(kg: float) -> str:
    """Format an amount of CO2 equivalent, given in kg: `1.25 kg`, or small amounts as `38.2 g`."""
    return f"{kg:,.2f} kg" if kg >= 0.1 else f"{kg * 1e3:,.1f} g"


def memory(mib: float) -> str:
    """Format an amount of memory, given in MiB: `17.4 GiB`, or small values as `310 MiB`."""
    return f"{mib / 1024:,.1f} GiB" if mib >= 1000 else f"{mib:,.0f} MiB"


def share(frac: float | None) -> str:
    """Format a fraction (0 to 1) in per cent: `87 %`; "" for an unknown fraction (None)."""
    return "" if frac is None else f"{100 * frac:.0f} %"


def in_words(usage: SeenUsage) -> list[str]:
    """Describe the resource use in lines of text; unknown values are left out."""
    return [line for line in (_gpus(usage), _clock(usage), _cpu(usage)) if line]


def _gpus(usage: SeenUsage) -> str:
    if usage.gpu_frac is None and usage.gpu_memory_mib is None:
        return ""
    when = "lately its GPUs" if usage.at_s is not None else "its GPUs"
    parts = [] if usage.gpu_frac is None else [f"worked {share(usage.gpu_frac)} of the time"]
    if usage.gpu_memory_mib is not None:
        parts.append(f"had {memory(usage.gpu_memory_mib)} in use (the fullest)")
    named = {
        "multiprocessors active": usage.sm_active_frac,
        "occupancy": usage.sm_occupancy_frac,
        "tensor cores": usage.tensor_frac,
        "memory bandwidth": usage.dram_frac,
    }
    counted = [f"{name} {share(frac)}" for name, frac in named.items() if frac is not None]
    return "; ".join([f"{when} {' and '.join(parts)}", *([", ".join(counted)] if counted else [])])


def _clock(usage: SeenUsage) -> str:
    parts = [] if usage.sm_clock_mhz is None else [f"SM clock {usage.sm_clock_mhz:,} MHz"]
    if usage.power_limited_frac:
        parts.append(f"held down by a power limit {share(usage.power_limited_frac)} of the time")
    if usage.heat_limited_frac:
        parts.append(f"held down by heat {share(usage.heat_limited_frac)} of the time")
    if usage.temperature_c is not None:
        parts.append(f"{usage.temperature_c} °C")
    if usage.pcie_mib_s is not None:
        parts.append(f"PCIe {usage.pcie_mib_s:,} MiB/s")
    return ", ".join(parts)


def _cpu(usage: SeenUsage) -> str:
    parts = [] if usage.cores is None else [f"it keeps {usage.cores:.1f} CPU cores busy"]
    if usage.memory_mib is not None:
        parts.append(f"{memory(usage.memory_mib)} of memory (its largest rank)")
    if usage.throttled_frac:
        parts.append(f"held back by its CPU limit {share(usage.throttled_frac)} of the time")
    if usage.io_wait_frac:
        parts.append(f"waits for input or output {share(usage.io_wait_frac)} of the time")
    if usage.read_mib:
        parts.append(f"{memory(usage.read_mib)} read")
    return ", ".join(parts)


def cells(usage: SeenUsage | None) -> Iterator[str]:
    """Yield four table cells: GPU use, GPU memory, busy CPU cores, host memory; "" if a value is unknown."""
    if usage is None:
        yield from ("", "", "", "")
        return
    yield share(usage.gpu_frac)
    yield "" if usage.gpu_memory_mib is None else memory(usage.gpu_memory_mib)
    yield "" if usage.cores is None else f"{usage.cores:.1f}"
    yield "" if usage.memory_mib is None else memory(usage.memory_mib)
