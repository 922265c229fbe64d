"""Reads a history of jobs in any supported format, for commands that accept more than rlsched's traces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.formats.frame import Request
from rlsched.workload.formats.registry import FORMATS, NORMAL, convert_original, no_gpus, recognise
from rlsched.workload.trace import Trace

JOURNAL = "journal"
"""Name of the format of journals of a broker or of a shadow."""
_WRITE_ONE = "write a cluster file (docs/reference/clusters.md) and give it by --cluster"


@dataclass(frozen=True)
class JobHistory:
    """A history of jobs, read from a file, or from a folder of published files.

    Attributes:
        trace: Jobs of the history.
        cluster: The cluster on which they ran.
        format: Name of the format.
        skipped: Number of rows that were left out: malformed ones, and ones that are not jobs.
    """

    trace: Trace
    cluster: ClusterSpec
    format: str
    skipped: int

    @classmethod
    def read(cls, path: Path, cluster: Path | None, name: str = "") -> JobHistory:
        """Read a history.

        Args:
            path: The file or folder.
            cluster: Cluster file (TOML); None: the history describes the nodes.
            name: Name of the format; "": the format is detected.

        Raises:
            InputError: the format is not recognised, no job has a GPU, or no cluster is given and the history
                does not describe the nodes.
            TraceError: the file cannot be read.
        """
        if name == JOURNAL or (not name and (path.is_dir() or path.suffix == ".sqlite")):
            from rlsched.broker.queries.as_history import history_of, is_journal

            if name or is_journal(path):
                told = history_of(path)
                its = ClusterSpec.read(cluster) if cluster is not None else told.cluster
                return cls(told.trace, its, JOURNAL, 0)
        name = name or recognise(path)
        spec = ClusterSpec.read(cluster) if cluster is not None else None
        if spec is None and (name == NORMAL or (name in FORMATS and not FORMATS[name].nodes)):
            form = "the normal form" if name == NORMAL else name
            raise InputError(f"{path}: {form} does not describe nodes; {_WRITE_ONE}")
        if name == NORMAL:
            trace, skipped = Trace.read(path), 0
        else:
            called = None if spec is not None else path.name.partition(".")[0]
            conversion = convert_original(name, Request(path, cluster_name=called))
            trace, spec = conversion.trace, spec or conversion.cluster
            skipped = conversion.accounts[0].rows - conversion.accounts[0].kept
        if spec is None:
            raise InputError(f"{path}: this {name} history names no nodes; {_WRITE_ONE}")
        lacking = no_gpus(name, trace)
        if lacking is not None:
            raise InputError(f"{path}: {lacking}")
        return cls(trace, spec, name, skipped)
