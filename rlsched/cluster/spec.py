"""The description of a cluster: reads TOML into frozen structs."""

from __future__ import annotations

import math
import shlex
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from rlsched.errors import ClusterSpecError
from rlsched.models.slice_name import slice_name, whole_type
from rlsched.settings import convert_settings, read_table

MAX_GPUS_PER_NODE = 64
Placement = Literal["consolidate", "best-fit", "worst-fit", "spread", "fgd"]
SHARED_PARTITION = "shared"
"""Name of the partition whose nodes serve every virtual cluster (VC); no VC may have this name."""


class _Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields that `NodeGroup` and a table [[nodes]] of a cluster file share."""

    count: int = 1
    gpus: int
    gpu_type: str = "generic"
    cpus: int = 0
    memory_mib: int = 0
    vc: str | None = None


class NodeGroup(_Nodes, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of `count` identical nodes.

    Jobs get GPUs: whole GPUs, or slices if GPUs are partitioned by MIG.

    Attributes:
        count: Number of nodes.
        gpus: Allocatable GPUs on each node: the slices if GPUs are partitioned.
        gpu_type: Name of the GPU model, `generic` if it does not matter; for slices, `A100-40GB/3g.20gb`.
        cpus: CPU cores on each node, 0 if unknown.
        memory_mib: Host memory on each node, MiB, 0 if unknown.
        vc: The virtual cluster that owns these nodes; None: the nodes serve all virtual clusters.
        slices: Number of MIG slices into which each GPU is partitioned; 0: GPUs are whole.
    """

    slices: int = 0

    @classmethod
    def sliced(
        cls,
        mig: tuple[str, ...],
        *,
        gpus: int,
        gpu_type: str,
        count: int = 1,
        cpus: int = 0,
        memory_mib: int = 0,
        vc: str | None = None,
    ) -> NodeGroup:
        """Return a group of nodes in which every GPU is partitioned into the same MIG slices.

        Args:
            mig: Profile of each slice on one GPU; all profiles must be equal.
            gpus: GPUs in each node.
            gpu_type: GPU model with MIG support.
            count: Number of nodes.
            cpus: CPU cores on each node.
            memory_mib: Host memory on each node, MiB.
            vc: The virtual cluster that owns the nodes.

        Raises:
            ClusterSpecError: the GPU has no MIG or no such profile, or these slices cannot coexist.
        """
        from rlsched.models.mig import layout_fault  # compiles kernels on import: imported only if needed

        fault = layout_fault(gpu_type, mig)
        if fault:
            raise ClusterSpecError(f"mig: {fault}")
        return cls(
            count=count,
            gpus=gpus * len(mig),
            gpu_type=f"{gpu_type}/{mig[0]}",
            cpus=cpus,
            memory_mib=memory_mib,
            vc=vc,
            slices=len(mig),
        )

    @property
    def devices(self) -> int:
        """GPUs in each node, whole or partitioned."""
        return devices(self)


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One node: the fields of a `NodeGroup`, and a name."""

    name: str
    gpus: int
    gpu_type: str = "generic"
    cpus: int = 0
    memory_mib: int = 0
    vc: str | None = None
    slices: int = 0
    gpu_memory_mib: int = 0
    """Memory of each GPU, MiB, 0 if unknown; the ledger uses the least value among nodes of one GPU type."""

    @property
    def devices(self) -> int:
        """GPUs in the node, whole or partitioned."""
        return devices(self)


def devices(node: NodeGroup | NodeSpec) -> int:
    """Return the number of GPUs in a node, whole or partitioned into slices."""
    return node.gpus // node.slices if node.slices else node.gpus


class _FileNodes(_Nodes, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table [[nodes]] of a cluster file: `gpus` and `gpu_type` describe the whole GPUs of a machine."""

    mig: tuple[str, ...] = ()

    def group(self) -> NodeGroup:
        """Return the nodes of this table as a group.

        Raises:
            ClusterSpecError: the GPU type cannot have the MIG slices in `mig`.
        """
        known = {name: getattr(self, name) for name in _Nodes.__struct_fields__}
        return NodeGroup.sliced(self.mig, **known) if self.mig else NodeGroup(**known)


class _SharedFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields that `ClusterSpec` and a cluster file share."""

    name: str
    placement: Placement = "consolidate"
    max_retries: int | None = None
    node_events: str = ""
    preemptible: Literal["declared", "all"] = "declared"
    energy: EnergySignals | None = None


class EnergySignals(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price and the carbon intensity of electricity over time, and the power limit of the cluster.

    Attributes:
        price: Path of a CSV file with the price per MWh (`rlsched.energy.series`); "": unknown.
        carbon: Path of a CSV file with the carbon intensity, g CO2e per kWh; "": unknown.
        currency: Unit of the price, for reports.
        pue: Power usage effectiveness: energy of the whole facility / energy of the hardware. Cost and carbon
            are multiplied by the PUE.
        begins: Wall-clock time of the trace's second 0, ISO 8601; without an offset it is UTC. "": the origin
            that the trace states.
        follow: Series that policies with the setting `price` follow; they follow `carbon` if there is no
            price file.
        known_ahead_h: Time for which future values are known, hours. It is 12 in a day-ahead market, because
            the prices of a day are published by noon of the day before. 0: only the current value is known.
        power_limit: Path of a CSV file with the highest power that the nodes may draw together, kW; "": no
            file.
        power_limit_kw: The power limit as a constant, kW; infinite: no limit.
        power_limit_known_ahead_h: Time for which future values of `power_limit` are known, hours.
        power_limit_kind: `soft`: jobs without slack are neither slowed down nor held back nor preempted.
        command: Command that prints a new version of the followed series' file, split into words as by a
            shell. A broker runs the command whenever the file is an hour old, and replaces the file. "": the
            file is only read.
    """

    price: str = ""
    carbon: str = ""
    currency: str = "EUR"
    pue: float = 1.0
    begins: str = ""
    follow: Literal["price", "carbon"] = "price"
    known_ahead_h: float = 0.0
    power_limit: str = ""
    power_limit_kw: float = math.inf
    power_limit_known_ahead_h: float = 0.0
    power_limit_kind: Literal["hard", "soft"] = "hard"
    command: str = ""

    def check(self, where: str) -> None:
        """Check the fields.

        Raises:
            ClusterSpecError: there is neither a price file, nor a carbon file, nor a power limit; or a field
                is invalid.
        """
        if not self.price and not self.carbon and not self.is_limited:
            raise ClusterSpecError(
                f"{where}: energy: expected price or carbon, a CSV file, or a power limit; got none"
            )
        if self.power_limit and self.power_limit_kw != math.inf:
            raise ClusterSpecError(f"{where}: energy: expected power_limit or power_limit_kw, got both")
        if not self.power_limit_kw > 0.0:
            raise ClusterSpecError(
                f"{where}: energy.power_limit_kw: expected kW above 0, got {self.power_limit_kw:g}"
            )
        if not 0.0 <= self.power_limit_known_ahead_h <= 24.0:
            raise ClusterSpecError(
                f"{where}: energy.power_limit_known_ahead_h: expected hours from 0 to 24, got "
                f"{self.power_limit_known_ahead_h:g}"
            )
        if self.power_limit_known_ahead_h and not self.power_limit:
            raise ClusterSpecError(
                f"{where}: energy.power_limit_known_ahead_h: expected power_limit, a CSV file, got none"
            )
        if self.power_limit_kind == "soft" and not self.is_limited:
            raise ClusterSpecError(f"{where}: energy.power_limit_kind: expected a power limit, got none")
        if not 1.0 <= self.pue <= 10.0:
            raise ClusterSpecError(f"{where}: energy.pue: expected a number from 1 to 10, got {self.pue:g}")
        if not 0.0 <= self.known_ahead_h <= 24.0:
            raise ClusterSpecError(
                f"{where}: energy.known_ahead_h: expected hours from 0 to 24, got {self.known_ahead_h:g}"
            )
        if self.follow == "carbon" and not self.carbon:
            raise ClusterSpecError(f"{where}: energy.follow: expected energy.carbon to name a file, got none")
        if self.begins and self.second_0 is None:
            raise ClusterSpecError(
                f"{where}: energy.begins: expected a time such as 2026-03-01T00:00Z, got {self.begins!r}"
            )
        try:
            words = self.command_words
        except ValueError as error:
            raise ClusterSpecError(f"{where}: energy.command: {error}: {self.command!r}") from error
        if self.command and not self.followed:
            raise ClusterSpecError(f"{where}: energy.command: expected a price or carbon file to renew")
        if self.command and not words:
            raise ClusterSpecError(f"{where}: energy.command: expected a command, got {self.command!r}")

    @property
    def command_words(self) -> list[str]:
        """The words of `command`, split as by a shell.

        Raises:
            ValueError: a quote is not closed.
        """
        return shlex.split(self.command)

    @property
    def is_limited(self) -> bool:
        """Whether there is a power limit."""
        return bool(self.power_limit) or self.power_limit_kw != math.inf

    @property
    def followed(self) -> str:
        """Path of the series that policies follow; "": there is none."""
        return self.price if self.follow == "price" and self.price else self.carbon

    @property
    def unfollowed(self) -> str:
        """Path of the series that policies do not follow, so that only bills use it; "": there is none."""
        return self.carbon if self.followed == self.price else self.price

    @property
    def second_0(self) -> datetime | None:
        """Wall-clock time of the trace's second 0; None: the origin that the trace states."""
        try:
            found = datetime.fromisoformat(self.begins)
        except ValueError:
            return None
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found

    def inside(self, folder: Path) -> EnergySignals:
        """Return a copy with this folder prepended to all file names."""
        named = {name: getattr(self, name) for name in ("price", "carbon", "power_limit")}
        return msgspec.structs.replace(
            self, **{name: str(folder / path) for name, path in named.items() if path}
        )


class _ClusterFile(_SharedFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of a cluster file (TOML)."""

    nodes: tuple[_FileNodes, ...]


class ClusterSpec(_SharedFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cluster as its operator describes it. Nodes are numbered in the order of the groups.

    Attributes:
        name: Display name.
        placement: The rule that picks a job's GPUs (`rlsched.cluster.choose`).
        max_retries: Number of times that a failed job is queued again; None: no limit.
        node_events: Path of a CSV file with the times when nodes go down, drain or come up, for simulated
            runs (`rlsched_envs.sim.node_events`); in a cluster file, relative to the file. "": nodes stay up.
        preemptible: Jobs that may be preempted. `declared`: only jobs that are declared preemptible. `all`:
            all jobs that do not refuse preemption.
        energy: Price and carbon of the electricity, and the power limit, for simulated runs with models; in a
            cluster file, file names are relative to the file. None: unknown.
        nodes: Groups of identical nodes.
    """

    nodes: tuple[NodeGroup, ...]

    @classmethod
    def read_energy(cls, path: str | Path) -> EnergySignals | None:
        """Read the energy of a cluster file, or of a TOML file that has only the table [energy].

        Returns:
            None for a cluster file without this table.

        Raises:
            InputError: the file cannot be read, or a value is invalid.
        """
        table = read_table(path, "cluster file")
        if set(table) != {"energy"}:
            return cls.read(path).energy
        energy = convert_settings(table["energy"], EnergySignals, f"{path}: energy").inside(Path(path).parent)
        energy.check(str(path))
        return energy

    @classmethod
    def read(cls, path: str | Path) -> ClusterSpec:
        """Read a TOML file.

        Raises:
            ClusterSpecError: the file is missing, is not TOML, has an unknown key or no GPU, or its GPUs
                cannot be partitioned as described.
        """
        path = Path(path)
        try:
            file = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _ClusterFile)
        except OSError as error:
            raise ClusterSpecError(f"{path}: cannot read this cluster file: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ClusterSpecError(f"{path}: expected UTF-8 text (TOML), got other bytes") from error
        except tomllib.TOMLDecodeError as error:
            raise ClusterSpecError(f"{path}: not valid TOML: {error}") from error
        except msgspec.ValidationError as error:
            raise ClusterSpecError(
                f"{path}: {error}; expected name, placement, max_retries, node_events, preemptible, "
                "[energy], and [[nodes]] with "
                "count, gpus, gpu_type, cpus, memory_mib, vc, mig"
            ) from error
        groups = []
        for position, nodes in enumerate(file.nodes):
            try:
                groups.append(nodes.group())
            except ClusterSpecError as error:
                raise ClusterSpecError(f"{path}: nodes[{position}]: {error}") from None
        spec = cls(
            name=file.name,
            placement=file.placement,
            max_retries=file.max_retries,
            node_events=str(path.parent / file.node_events) if file.node_events else "",
            preemptible=file.preemptible,
            energy=None if file.energy is None else file.energy.inside(path.parent),
            nodes=tuple(groups),
        )
        spec.check(str(path))
        return spec

    def check(self, where: str = "cluster") -> None:
        """Reject numbers below zero, a VC with an invalid name, and a cluster without GPUs.

        Raises:
            ClusterSpecError: a value is invalid; the message names the field or the group.
        """
        if self.max_retries is not None and self.max_retries < 0:
            raise ClusterSpecError(f"{where}: max_retries must be 0 or more, got {self.max_retries}")
        for position, group in enumerate(self.nodes):
            at = f"{where}: nodes[{position}]"
            if group.count < 0:
                raise ClusterSpecError(f"{at}: count must be 0 or more, got {group.count}")
            if not 0 <= group.gpus <= MAX_GPUS_PER_NODE:
                cut = f" ({group.devices} in {group.slices} slices each)" if group.slices else ""
                raise ClusterSpecError(f"{at}: gpus must be 0 to {MAX_GPUS_PER_NODE}, got {group.gpus}{cut}")
            name = slice_name(group.gpu_type)
            if name is not None and not group.slices:
                raise ClusterSpecError(
                    f"{at}: gpu_type {group.gpu_type!r} is a MIG slice; give gpu_type {name.whole!r}, "
                    f"the GPUs in the machine, and mig, the slices of each: [{_quote(name.profile)}, ...]"
                )
            if group.cpus < 0 or group.memory_mib < 0:
                raise ClusterSpecError(f"{at}: cpus and memory_mib must be 0 or more")
            if group.vc in ("", SHARED_PARTITION):
                raise ClusterSpecError(
                    f"{at}: vc {group.vc!r} cannot be the name of a virtual cluster; "
                    "leave vc out for nodes that serve every one"
                )
        if self.energy is not None:
            self.energy.check(where)
        if self.num_gpus == 0:
            raise ClusterSpecError(
                f"{where}: this cluster has no GPUs; give at least one [[nodes]] with count and gpus above 0"
            )

    @property
    def num_nodes(self) -> int:
        """Nodes in all groups."""
        return sum(group.count for group in self.nodes)

    @property
    def num_gpus(self) -> int:
        """Allocatable GPUs in all groups; a MIG slice counts as one."""
        return sum(group.count * group.gpus for group in self.nodes)

    @property
    def num_slices(self) -> int:
        """MIG slices in all groups."""
        return sum(group.count * group.gpus for group in self.nodes if group.slices)

    @property
    def num_devices(self) -> int:
        """GPUs in all groups, whole or partitioned."""
        return sum(group.count * group.devices for group in self.nodes)

    def expand(self) -> list[NodeSpec]:
        """Return one `NodeSpec` per node, named n0, n1, ... in order."""
        specs: list[NodeSpec] = []
        for group in self.nodes:
            first = len(specs)
            specs.extend(
                NodeSpec(
                    name=f"n{first + k}",
                    gpus=group.gpus,
                    gpu_type=group.gpu_type,
                    cpus=group.cpus,
                    memory_mib=group.memory_mib,
                    vc=group.vc,
                    slices=group.slices,
                )
                for k in range(group.count)
            )
        return specs

    @classmethod
    def uniform(
        cls,
        nodes: int,
        gpus: int = 8,
        *,
        name: str = "uniform",
        gpu_type: str = "generic",
        cpus: int = 0,
        placement: Placement = "consolidate",
        preemptible: Literal["declared", "all"] = "declared",
    ) -> ClusterSpec:
        """Return a cluster of `nodes` equal nodes with `gpus` GPUs each, which serve all virtual clusters."""
        group = NodeGroup(count=nodes, gpus=gpus, gpu_type=gpu_type, cpus=cpus)
        return cls(name=name, placement=placement, preemptible=preemptible, nodes=(group,))

    def write(self, path: str | Path) -> None:
        """Write this description to a TOML file that `read` accepts.

        Raises:
            ClusterSpecError: the file cannot be written.
        """
        try:
            Path(path).write_text(self.to_toml(), encoding="utf-8")
        except OSError as error:
            raise ClusterSpecError(f"{path}: cannot write this cluster: {error.strerror}") from error

    def to_toml(self) -> str:
        """Return this description as TOML that `read` accepts."""
        lines = [f"name = {_quote(self.name)}"]
        lines += [f"placement = {_quote(self.placement)}"] if self.placement != "consolidate" else []
        lines += [f"max_retries = {self.max_retries}"] if self.max_retries is not None else []
        lines += [f"node_events = {_quote(self.node_events)}"] if self.node_events else []
        lines += [f"preemptible = {_quote(self.preemptible)}"] if self.preemptible != "declared" else []
        if self.energy is not None:
            fields = msgspec.structs.asdict(self.energy)
            plain = msgspec.structs.asdict(EnergySignals())
            known = {name: value for name, value in fields.items() if value != plain[name]}
            lines += ["", "[energy]"]
            lines += [
                f"{name} = {_quote(value) if isinstance(value, str) else value}"
                for name, value in known.items()
            ]
        for group in self.nodes:
            lines += [
                "",
                "[[nodes]]",
                f"count = {group.count}",
                f"gpus = {group.devices}",
                f"gpu_type = {_quote(whole_type(group.gpu_type))}",
            ]
            name = slice_name(group.gpu_type)
            if name is not None:
                lines.append(f"mig = [{', '.join([_quote(name.profile)] * group.slices)}]")
            lines += [f"cpus = {group.cpus}"] if group.cpus else []
            lines += [f"memory_mib = {group.memory_mib}"] if group.memory_mib else []
            lines += [f"vc = {_quote(group.vc)}"] if group.vc is not None else []
        return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()
