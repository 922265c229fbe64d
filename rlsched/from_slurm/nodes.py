"""Converts the nodes in the output of `scontrol show node` or `sinfo` to a cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rlsched.cluster.spec import MAX_GPUS_PER_NODE, SHARED_PARTITION, ClusterSpec, NodeGroup
from rlsched.errors import InputError

SINFO_FORMAT: Final = "%N|%R|%c|%m|%G|%T"
SCONTROL: Final = ("scontrol", "show", "node", "--oneliner")
SINFO: Final = ("sinfo", "--Node", "--noheader", f"--format={SINFO_FORMAT}")
_EMPTY: Final = ("", "(null)", "N/A", "none")
_GPU: Final = re.compile(r"gpu(?::(?P<type>[^:()]+))?:(?P<count>\d+)(?:\(.*\))?")
_ONE_NAME_EACH: Final = re.compile(r"\D*\d+")
_GENERIC: Final = "generic"
_GONE: Final = ("FUTURE",)
_AWAY: Final = ("DOWN", "DRAIN", "FAIL")
_KEY: Final = r"(?:^|\s){}=(\S*)"


class _Node(NamedTuple):
    """A node as Slurm lists it."""

    name: str
    gpus: int
    gpu_type: str
    cpus: int
    memory_mib: int
    partitions: frozenset[str]
    state: str


@dataclass(frozen=True)
class Imported:
    """A cluster imported from Slurm, and the names of its nodes.

    Attributes:
        cluster: The cluster.
        names: Name of a node in the cluster, such as `n3`, by the node's name in Slurm.
        notes: Differences from Slurm, one sentence each.
    """

    cluster: ClusterSpec
    names: dict[str, str]
    notes: tuple[str, ...]


def imported(text: str, name: str, where: str) -> Imported:
    """Make a cluster from Slurm's list of nodes.

    Nodes in exactly one partition belong to a VC with the name of this partition. Nodes in several partitions
    serve every VC.

    Args:
        text: Output of `scontrol show node`, or of `sinfo -N -h -o '%N|%R|%c|%m|%G|%T'`.
        name: Name of the cluster.
        where: Source to name in messages.

    Raises:
        InputError: the text is not the output of one of these commands, a value is malformed, or no node has
            a GPU.
    """
    nodes = _of_scontrol(text, where) if "NodeName=" in text else _of_sinfo(text, where)
    there = [node for node in nodes if not any(word in node.state for word in _GONE)]
    if not any(node.gpus for node in there):
        raise InputError(
            f"{where}: none of its {len(there):,} nodes has a GPU: expected Gres=gpu:TYPE:COUNT, "
            "as configured by GresTypes=gpu and gres.conf"
        )
    groups: dict[NodeGroup, list[str]] = {}
    for node in there:
        vc = next(iter(node.partitions)) if len(node.partitions) == 1 else None
        if vc in ("", SHARED_PARTITION):
            vc = None
        group = NodeGroup(
            gpus=node.gpus, gpu_type=node.gpu_type, cpus=node.cpus, memory_mib=node.memory_mib, vc=vc
        )
        groups.setdefault(group, []).append(node.name)
    counted = [_counted(group, len(names)) for group, names in groups.items()]
    order = [one for names in groups.values() for one in names]
    spec = ClusterSpec(name=name, nodes=tuple(counted))
    spec.check(where)
    return Imported(spec, {one: f"n{at}" for at, one in enumerate(order)}, tuple(_notes(there, nodes)))


def _counted(group: NodeGroup, count: int) -> NodeGroup:
    return NodeGroup(
        count=count,
        gpus=group.gpus,
        gpu_type=group.gpu_type,
        cpus=group.cpus,
        memory_mib=group.memory_mib,
        vc=group.vc,
    )


def _notes(there: list[_Node], nodes: list[_Node]) -> Iterable[str]:
    sharing = Counter(
        " and ".join(sorted(node.partitions)) for node in there if len(node.partitions) > 1 and node.gpus
    )
    for partitions, count in sharing.items():
        yield f"{count:,} nodes are shared by {partitions}: they serve jobs of every partition here"
    alone = sum(not node.partitions for node in there)
    if alone:
        yield f"{alone:,} nodes are in no partition: they serve jobs of every partition here"
    away = sum(any(word in node.state for word in _AWAY) for node in there)
    if away:
        yield f"{away:,} nodes are down or drained now: they are counted; --events says when they were away"
    if len(nodes) > len(there):
        yield f"{len(nodes) - len(there):,} nodes of state FUTURE are left out"
    untyped = sum(node.gpus > 0 and node.gpu_type == _GENERIC for node in there)
    if untyped:
        yield f"{untyped:,} nodes do not say the type of their GPUs: generic"
    mixed = sorted({node.gpu_type for node in there if "+" in node.gpu_type})
    for one in mixed:
        yield f"nodes with GPUs of several types are called {one}: no job that asks for one type runs there"


def _of_scontrol(text: str, where: str) -> list[_Node]:
    found = []
    for record in re.split(r"(?m)(?=^NodeName=)", text):
        if not record.startswith("NodeName="):
            continue

        def value(*keys: str, record: str = record) -> str:
            for key in keys:
                match = re.search(_KEY.format(key), record)
                if match is not None and match[1] not in _EMPTY:
                    return match[1]
            return ""

        name = value("NodeName")
        gpus, gpu_type = _gpus(value("Gres"), f"{where}: node {name}")
        found.append(
            _Node(
                name=name,
                gpus=gpus,
                gpu_type=gpu_type,
                cpus=_whole(value("CPUEfctv", "CPUTot"), "CPUTot", f"{where}: node {name}"),
                memory_mib=_whole(value("RealMemory"), "RealMemory", f"{where}: node {name}"),
                partitions=frozenset(filter(None, value("Partitions").split(","))),
                state=value("State").upper(),
            )
        )
    return found


def _of_sinfo(text: str, where: str) -> list[_Node]:
    found: dict[str, _Node] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("|")]
        at = f"{where}: line {number}"
        if len(cells) != SINFO_FORMAT.count("|") + 1:
            raise InputError(
                f"{at}: expected the output of `scontrol show node`, or of `sinfo -N -h -o "
                f"'{SINFO_FORMAT}'`, got {line.strip()[:60]!r}"
            )
        name, partition, cpus, memory, gres, state = cells
        if (name, partition) == ("NODELIST", "PARTITION"):
            continue
        gpus, gpu_type = _gpus("" if gres in _EMPTY else gres, at)
        before = found[name].partitions if name in found else frozenset()
        found[name] = _Node(
            name=name,
            gpus=gpus,
            gpu_type=gpu_type,
            cpus=_whole(cpus, "CPUs", at),
            memory_mib=_whole(memory, "memory", at),
            partitions=before | {partition.removesuffix("*")},
            state=state.upper(),
        )
    if not found:
        raise InputError(f"{where}: expected the output of `scontrol show node`, got nothing")
    return list(found.values())


def _whole(text: str, what: str, at: str) -> int:
    """Parse a whole number; return 0 for an empty text. sinfo prints `64+` if the nodes of a line differ."""
    plain = text.removesuffix("+")
    if plain and not plain.isdecimal():
        raise InputError(f"{at}: {what}: expected a whole number, got {text[:40]!r}")
    return int(plain or 0)


def _gpus(gres: str, at: str) -> tuple[int, str]:
    """Parse the number and the type of a node's GPUs from a text such as `gpu:a100:8(S:0-1),shard:16`."""
    counts: Counter[str] = Counter()
    for part in re.split(r",(?![^()]*\))", gres):
        if part.partition(":")[0].partition("(")[0] != "gpu":
            continue
        match = _GPU.fullmatch(part)
        if match is None and part.partition("(")[0] != "gpu":
            raise InputError(f"{at}: Gres: expected gpu:TYPE:COUNT, got {part[:60]!r}")
        counts[(match["type"] if match else "") or ""] += int(match["count"]) if match else 1
    total = counts.total()
    if total > MAX_GPUS_PER_NODE:
        raise InputError(f"{at}: expected at most {MAX_GPUS_PER_NODE} GPUs in a node, got {total}")
    types = [one for one in counts if counts[one] and one]
    if len(types) > 1 and all(counts[one] == 1 and _ONE_NAME_EACH.fullmatch(one) for one in types):
        types = []  # each GPU has its own type name (i0, i1, ...), so that a job can request this GPU
    return total, "+".join(types) or _GENERIC
