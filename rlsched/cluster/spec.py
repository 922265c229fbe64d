"""The description of a cluster: TOML in, frozen structs out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from rlsched.errors import ClusterSpecError

MAX_GPUS_PER_NODE = 64
SHARED_PARTITION = "shared"
"""Name of the partition of the nodes that serve every VC; no VC may have it."""


class NodeGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`count` nodes that are alike.

    Attributes:
        count: How many nodes of this kind there are.
        gpus: GPUs on each node.
        gpu_type: Name of the GPU model, `generic` where it does not matter.
        cpus: CPU cores on each node, 0 where unknown.
        memory_mib: Host memory on each node, 0 where unknown.
        vc: The virtual cluster that owns these nodes; None: they serve every one.
    """

    count: int = 1
    gpus: int
    gpu_type: str = "generic"
    cpus: int = 0
    memory_mib: int = 0
    vc: str | None = None


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One node: a `NodeGroup` of one, with a name."""

    name: str
    gpus: int
    gpu_type: str = "generic"
    cpus: int = 0
    memory_mib: int = 0
    vc: str | None = None


class ClusterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cluster as its operator describes it. Nodes are numbered in the order of the groups."""

    name: str
    nodes: tuple[NodeGroup, ...]

    @classmethod
    def read(cls, path: str | Path) -> ClusterSpec:
        """Read a TOML file.

        Raises:
            ClusterSpecError: the file is missing, not TOML, has an unknown key, or holds no GPU.
        """
        path = Path(path)
        try:
            spec = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), cls)
        except OSError as error:
            raise ClusterSpecError(f"{path}: cannot read this cluster file: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ClusterSpecError(f"{path}: expected UTF-8 text (TOML), got other bytes") from error
        except tomllib.TOMLDecodeError as error:
            raise ClusterSpecError(f"{path}: not valid TOML: {error}") from error
        except msgspec.ValidationError as error:
            raise ClusterSpecError(
                f"{path}: {error}; expected `name` and [[nodes]] with count, gpus, "
                "gpu_type, cpus, memory_mib, vc"
            ) from error
        spec.check(str(path))
        return spec

    def check(self, where: str = "cluster") -> None:
        """Refuse counts below zero, a VC without a name of its own, and a cluster without GPUs.

        Raises:
            ClusterSpecError: naming the group at fault.
        """
        for position, group in enumerate(self.nodes):
            at = f"{where}: nodes[{position}]"
            if group.count < 0:
                raise ClusterSpecError(f"{at}: count must be 0 or more, got {group.count}")
            if not 0 <= group.gpus <= MAX_GPUS_PER_NODE:
                raise ClusterSpecError(f"{at}: gpus must be 0 to {MAX_GPUS_PER_NODE}, got {group.gpus}")
            if group.cpus < 0 or group.memory_mib < 0:
                raise ClusterSpecError(f"{at}: cpus and memory_mib must be 0 or more")
            if group.vc in ("", SHARED_PARTITION):
                raise ClusterSpecError(
                    f"{at}: vc {group.vc!r} cannot be the name of a virtual cluster; "
                    "leave vc out for nodes that serve every one"
                )
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
        """GPUs in all groups."""
        return sum(group.count * group.gpus for group in self.nodes)

    def expand(self) -> list[NodeSpec]:
        """One `NodeSpec` a node, named n0, n1, ... in order."""
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
                )
                for k in range(group.count)
            )
        return specs

    @classmethod
    def uniform(
        cls, nodes: int, gpus: int = 8, *, name: str = "uniform", gpu_type: str = "generic", cpus: int = 0
    ) -> ClusterSpec:
        """`nodes` nodes of `gpus` GPUs each, one pool."""
        return cls(name=name, nodes=(NodeGroup(count=nodes, gpus=gpus, gpu_type=gpu_type, cpus=cpus),))

    def write(self, path: str | Path) -> None:
        """Write a TOML file; `read` gives it back.

        Raises:
            ClusterSpecError: the place cannot be written to.
        """
        try:
            Path(path).write_text(self.to_toml(), encoding="utf-8")
        except OSError as error:
            raise ClusterSpecError(f"{path}: cannot write this cluster: {error.strerror}") from error

    def to_toml(self) -> str:
        """This description as TOML; `read` gives it back."""
        lines = [f"name = {_quote(self.name)}"]
        for group in self.nodes:
            lines += [
                "",
                "[[nodes]]",
                f"count = {group.count}",
                f"gpus = {group.gpus}",
                f"gpu_type = {_quote(group.gpu_type)}",
            ]
            lines += [f"cpus = {group.cpus}"] if group.cpus else []
            lines += [f"memory_mib = {group.memory_mib}"] if group.memory_mib else []
            lines += [f"vc = {_quote(group.vc)}"] if group.vc is not None else []
        return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()
