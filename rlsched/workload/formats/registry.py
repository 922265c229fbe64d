"""The formats by name, and detection of a file's format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rlsched.errors import InputError, TraceError
from rlsched.workload.formats import acme, helios, openb, pai, philly, sacct, swf
from rlsched.workload.formats.account import MalformedError
from rlsched.workload.formats.frame import Conversion, Request
from rlsched.workload.formats.lines import read_lines
from rlsched.workload.formats.places import beside, named
from rlsched.workload.table_files import SUFFIXES
from rlsched.workload.trace import Trace
from rlsched.workload.validate import KNOWN

_LOOKED_AT = 50
"""Maximum number of lines read to detect a format. A workload log can begin with about 50 comment lines."""
_ONE_LINE = 4096
"""Maximum number of characters of a line that are used to detect a format."""


@dataclass(frozen=True)
class Format:
    """A publisher's format.

    Attributes:
        convert: Function that converts a file of this format.
        main: Possible names of the main file in a folder; empty: the user must name the file.
        header: Columns that identify the format: no other format has all of them. Empty: the format is not
            detected by its header.
        nodes: Possible names of the file that describes the nodes. Empty: the main file describes the nodes.
            None: no file describes the nodes.
        zone: Whether times can be in local time, and the option `--timezone` is accepted.
        exports: Whether the list of jobs can be in several files.
        gpus: Text that is printed if no job has GPUs: the cause, or how to get the GPUs.
    """

    convert: Callable[[Request], Conversion]
    main: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    nodes: tuple[str, ...] | None = None
    zone: bool = False
    exports: bool = False
    gpus: str = "its jobs asked for CPU cores only"


NORMAL = "normal"
"""Name of rlsched's own trace format, the normal form."""

FORMATS: dict[str, Format] = {
    "helios": Format(
        helios.convert, helios.MAIN, ("gpu_num", "vc", "state", "submit_time"), nodes=helios.NODES
    ),
    "philly": Format(philly.convert, philly.MAIN, nodes=philly.NODES, zone=True),
    "pai": Format(pai.convert, pai.MAIN, nodes=pai.NODES),
    "openb": Format(openb.convert, openb.MAIN, ("num_gpu", "gpu_milli", "pod_phase"), nodes=openb.NODES),
    "acme": Format(acme.convert, acme.MAIN, ("gpu_num", "type", "state", "submit_time")),
    "sacct": Format(sacct.convert, header=sacct.REQUIRED, zone=True, exports=True, gpus=sacct.GPUS),
    "swf": Format(swf.convert, nodes=(), gpus=swf.GPUS),
}


def convert_original(name: str, request: Request) -> Conversion:
    """Convert a file, or a folder with the publisher's files, that is in this format.

    Raises:
        InputError: the format is unknown, an option does not apply to the format, or the folder does not have
            exactly one main file.
        TraceError: the file is not in this format, or `request.strict` is true and a row is malformed.
    """
    found = FORMATS.get(name)
    if found is None:
        raise InputError(f"unknown format {name!r}; known: {', '.join([NORMAL, *FORMATS])}")
    if request.cluster_name is not None and found.nodes is None:
        raise InputError(f"{name} does not describe nodes; leave out --cluster-out")
    if request.timezone is not None and not found.zone:
        raise InputError(f"{name} needs no time zone; leave out --timezone")
    if request.processors != "cpus" and name != "swf":
        raise InputError(f"{name} distinguishes GPUs from CPU cores; leave out --processors")
    if request.more and not found.exports:
        several = ", ".join(one for one, its in FORMATS.items() if its.exports)
        raise InputError(
            f"{name} is read from one file, got {1 + len(request.more)}; several files are allowed only for: "
            f"{several}"
        )
    path = _main_file(name, found, request.path)
    if request.cluster_name is not None and found.nodes:
        beside(path, found.nodes)  # report a missing file before the work, not after it
    return found.convert(replace(request, path=path))


def _main_file(name: str, found: Format, path: Path) -> Path:
    if not path.is_dir():
        return path
    if not found.main:
        raise InputError(f"{path}: expected a file for {name}, got a folder")
    files = named(path, found.main)
    if len(files) != 1:
        wanted = " or ".join(found.main)
        shown = ", ".join(file.name for file in files[:4]) or "none"
        raise InputError(f"{path}: expected one {wanted} for {name}, got {shown}; name the file")
    return files[0]


def no_gpus(name: str, trace: Trace) -> str | None:
    """Return an explanation, in one line, if no job of a history has GPUs; None: some jobs have GPUs.

    Args:
        name: Name of the format of the history.
        trace: Jobs of the history (a trace converted from a log).
    """
    if (trace.num_gpus > 0).any():
        return None
    found = FORMATS.get(name)
    ask = "expected num_gpus above 0 in some row" if found is None else found.gpus
    return f"no job of this history has GPUs (jobs: {len(trace):,}): {ask}"


def recognise(path: Path) -> str:
    """Return the name of the format of a file or folder; `NORMAL` for rlsched's own format.

    Raises:
        InputError: the format is not recognised.
        TraceError: the file cannot be read.
    """
    if path.is_dir():
        names = [name for name, found in FORMATS.items() if named(path, found.main)]
        if len(names) == 1:
            return names[0]
        raise InputError(f"{path}: {_unlike(names)}")
    plain = path.name.lower().removesuffix(".gz")
    ours = path.name.lower().endswith(SUFFIXES)
    if plain.endswith(".parquet") or (ours and not path.is_file()):
        return NORMAL
    if plain.startswith(pai.MAIN[0]):
        return "pai"
    try:
        lines = [
            text for _, text in islice(read_lines(path), _LOOKED_AT) if not isinstance(text, MalformedError)
        ]
    except TraceError:
        if ours:
            return NORMAL
        raise
    name = _by_lines([line[:_ONE_LINE].strip() for line in lines])
    if name is not None:
        return name
    if ours:
        return NORMAL
    raise InputError(f"{path}: {_unlike([])}")


def _by_lines(lines: list[str]) -> str | None:
    first = lines[0] if lines else ""
    if first.startswith("["):
        return "philly"
    data = [line for line in lines if not line.startswith(";")]
    if first.startswith(";") or (data and len(data[0].split()) == len(swf.FIELDS) and "," not in data[0]):
        return "swf"
    columns = {cell.strip() for cell in first.split(sacct.DELIMITER if sacct.DELIMITER in first else ",")}
    if {column.name for column in KNOWN.values() if column.required} <= columns:
        return NORMAL
    return next(
        (name for name, one in FORMATS.items() if one.header and columns.issuperset(one.header)), None
    )


def _unlike(names: list[str]) -> str:
    found = f"looks like {' and '.join(names)}" if names else "looks like none of the known formats"
    return f"{found}; select one with --from ({', '.join(FORMATS)})"
