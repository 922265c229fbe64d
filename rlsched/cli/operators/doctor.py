"""`rlsched doctor`: checks whether this machine has what rlsched needs, and prints how to fix problems."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import click

from rlsched.cli.shared.options import JSON, BrokerAt, asking
from rlsched.errors import RlschedError
from rlsched.files.space import LOW_DISK_MIB
from rlsched.installing import install_command
from rlsched.terminal.show import print_json, print_sentences, skewed_nodes
from rlsched.terminal.visible import visible

WRONG = 1
_MOST_CHARS = 300
_COLOURS = {"ok": "green", "note": "yellow", "wrong": "red"}


class Finding(NamedTuple):
    """One result of a check.

    Attributes:
        `what`: Subject of the check, one or two words.
        state: `ok`, `note` (something that only some users need is missing) or `wrong` (must be fixed).
        line: One line for the user: the result and, for a problem, the remedy.
    """

    what: str
    state: Literal["ok", "note", "wrong"]
    line: str


@click.command()
@JSON
@asking
def doctor(as_json: bool, at: BrokerAt) -> int:
    """Check whether this machine can run rlsched, and print how to fix problems.

    Checks keys, the broker, the disk, GPUs, control groups and compiled kernels, and changes nothing. The
    exit code is 1 if something must be fixed.

    \b
    Example:
      rlsched doctor
      rlsched doctor --broker tcp://head:7461
    """
    from rlsched.transport.keys import default_home

    home = at.keys or default_home()
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "keys": lambda: _keys(home),
        "broker": lambda: _broker(at),
        "disk": lambda: _disk(home),
        "GPUs": _gpus,
        "control groups": _cgroups,
        "kernels": _kernels,
    }
    findings = [finding for what, check in checks.items() for finding in _looked_at(what, check)]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        said = (
            f"{click.style(f'{finding.state:5}', _COLOURS[finding.state])} {finding.what}: {finding.line}"
            for finding in findings
        )
        print_sentences(said, indent=6)
    return WRONG if any(finding.state == "wrong" for finding in findings) else 0


def _looked_at(what: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check. If the check raises an error, yield the error as a finding."""
    try:
        yield from check()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        yield Finding(what, "wrong", f"the check failed: {where}{error.strerror or error}")
    except Exception as error:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        yield Finding(what, "wrong", f"the check failed: {visible(' '.join(why.split()))[:_MOST_CHARS]}")


def _starting(home: Path) -> str:
    """Return a message if a broker with the keys in `home` is starting; else ""."""
    if find_spec("zmq") is None:
        return ""
    from rlsched.transport.starting import is_starting, starting_in

    where = starting_in(home)
    return is_starting(where) if where else ""


def _keys(home: Path) -> Iterator[Finding]:
    starting = "" if (home / "broker.public").is_file() else _starting(home)
    if starting:
        yield Finding("keys", "note", f"{starting}; it makes the keys in {home} before it is ready")
        return
    if not home.is_dir():
        yield Finding(
            "keys", "note", f"{home} does not exist yet; `rlsched up`, `broker` or `keys join` creates it"
        )
        return
    readable = [path for path in sorted(home.glob("*.key")) if path.stat().st_mode & 0o077]
    for path in readable:
        yield Finding("keys", "wrong", f"{path} can be read by others: run `chmod 600 {path}`")
    if readable:
        return
    if not (home / "broker.public").is_file():
        yield Finding(
            "keys", "note", f"{home} has no broker.public: start a broker here, or `rlsched keys join`"
        )
    else:
        yield Finding("keys", "ok", f"{home}")


def _broker(at: BrokerAt) -> Iterator[Finding]:
    if find_spec("zmq") is None:
        yield Finding("broker", "wrong", f"pyzmq is missing: {install_command('broker')}")
        return
    from rlsched.wire.messages import MAX_CLOCK_SKEW_S

    try:
        with at.client() as client:
            report = client.stats()
            nodes = client.nodes()
    except RlschedError as error:
        yield Finding("broker", "note", f"{error}")
        return
    yield Finding(
        "broker", "ok", f"{report.address or at.address}, rlsched {report.version}, policy {report.policy}"
    )
    asleep = sum(node.state in ("asleep", "waking") for node in nodes)
    there = ("up", "asleep", "waking")
    absent = [f"{node.name} ({node.state})" for node in nodes if node.state not in there]
    if absent:
        yield Finding("nodes", "wrong", f"{', '.join(absent)}: `rlsched nodes` shows why")
    else:
        yield Finding(
            "nodes",
            "ok" if nodes else "note",
            f"{len(nodes) - asleep} up" + (f", {asleep} asleep" if asleep else ""),
        )
    skews_s = {node.name: node.clock_skew_s or 0.0 for node in nodes}
    off_s = {name: skew_s for name, skew_s in skews_s.items() if abs(skew_s) > MAX_CLOCK_SKEW_S}
    for line in skewed_nodes(off_s, len(off_s)):
        yield Finding("time", "wrong", line)


def _disk(home: Path) -> Iterator[Finding]:
    where = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(where).free
    line = f"{free / (1 << 30):.1f} GiB free for {home}"
    if free < LOW_DISK_MIB << 20:
        yield Finding("disk", "wrong", f"{line}: make room, or give --dir on another disk")
    else:
        yield Finding("disk", "ok", line)


def _gpus() -> Iterator[Finding]:
    if find_spec("pynvml") is None:
        yield Finding(
            "GPUs", "note", f"nvidia-ml-py is missing, which a node needs: {install_command('node')}"
        )
        return
    import pynvml

    failures = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
    try:
        pynvml.nvmlInit()
    except failures as error:
        yield Finding("GPUs", "note", f"NVML finds none ({error}); `rlsched node --simulated` simulates some")
        return
    try:
        yield from _gpus_shown(failures)
    except failures as error:
        yield Finding("GPUs", "wrong", f"NVML cannot count them ({error}): check whether `nvidia-smi` can")
    finally:
        with suppress(*failures):
            pynvml.nvmlShutdown()


def _gpus_shown(failures: tuple[type[Exception], ...]) -> Iterator[Finding]:
    import pynvml

    count, driver = pynvml.nvmlDeviceGetCount(), "of unknown version"
    with suppress(*failures):
        driver = pynvml.nvmlSystemGetDriverVersion()
    silent = []
    for gpu in range(count):
        try:
            pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(gpu))
        except failures as error:
            silent.append(f"GPU {gpu} does not answer ({error})")
    if silent:
        advice = "the node starts no jobs on it; `nvidia-smi --gpu-reset` or a reboot may fix it"
        yield Finding("GPUs", "wrong", f"{count}, driver {driver}; {'; '.join(silent)}: {advice}")
    else:
        yield Finding("GPUs", "ok" if count else "note", f"{count}, driver {driver}")
    if count and os.geteuid() != 0:
        yield Finding("clocks", "note", "setting clocks needs a node daemon that runs as root")


WITHOUT_CONTROLLER = {
    "cpuset": "cores: limited by affinity, which a job can undo",
    "memory": "memory: limited per process, and only for a job that requests memory",
    "pids": "processes: limited per user, and not for root",
}
"""Missing control group controller -> how a node limits its jobs without it."""


def _cgroups() -> Iterator[Finding]:
    root = Path("/sys/fs/cgroup")
    if not (root / "cgroup.controllers").is_file():
        yield Finding(
            "control groups",
            "note",
            "no cgroup v2: processes that a killed job leaves are found by other means, and limits of jobs "
            "apply per process",
        )
        return
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        own = root / file.read().strip().rpartition("::")[2].lstrip("/")
    if not (os.access(own, os.W_OK) and os.access(own / "cgroup.procs", os.W_OK)):
        yield Finding(
            "control groups", "note", f"cannot create any in {own}: set Delegate=yes in the node's unit"
        )
        return
    yield Finding("control groups", "ok", f"a node started here can create some in {own}")
    present = set((own / "cgroup.controllers").read_text(encoding="ascii").split())
    missing = [f"{name} ({instead})" for name, instead in WITHOUT_CONTROLLER.items() if name not in present]
    if missing:
        yield Finding(
            "limits of jobs",
            "note",
            f"{own} has no controller {', '.join(missing)}: set Delegate=yes in its unit",
        )
    else:
        yield Finding(
            "limits of jobs", "ok", "cores, memory and processes of a job can be limited by its control group"
        )


def _kernels() -> Iterator[Finding]:
    if find_spec("numba") is None:
        yield Finding(
            "kernels", "note", f"numba is missing, which the broker needs: {install_command('broker')}"
        )
        return
    from rlsched.compile.kernel_cache import folder

    place = folder("entries").parent
    above = next(path for path in (place, *place.parents) if path.exists())
    if not os.access(above, os.W_OK):
        yield Finding(
            "kernels", "wrong", f"{above} is not writable: every start compiles again; set XDG_CACHE_HOME"
        )
        return
    kept = sum(1 for _ in place.rglob("*.nbi")) if place.exists() else 0
    line = (
        f"{kept} compiled in {place}"
        if kept
        else f"none compiled yet in {place}: the first start takes a minute"
    )
    yield Finding("kernels", "ok" if kept else "note", line)
