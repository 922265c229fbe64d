"""Options of `rlsched node`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlsched.wire.messages import TIME_SLICING

DEFAULT_MAX_OUTPUT_MIB = 1024
DEFAULT_KEEP_OUTPUT_DAYS = 30.0


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node.

    Attributes:
        name: The node's name; the node's key must have the same name.
        broker: Addresses (tcp://HOST:PORT) of the broker and its standbys, separated by commas.
        directory: The node's own directory.
        gpu_type: GPU model, named as in the cluster file.
        vc: The virtual cluster that owns this node; "": the node serves all virtual clusters.
        forget_cluster: If a broker of another cluster answers, join its cluster and end the jobs that run
            here.
        end_jobs: End the jobs when the daemon is stopped, instead of leaving them to the next daemon.
        max_output_mib: Maximum output of a rank on disk, MiB; 0: no limit.
        min_free_mib: Free space on the disk of `directory` that is required to start a rank, MiB; None: the
            default of `refuse_on_full_disk`.
        max_processes: Maximum number of processes and threads of a rank; 0: no limit; None: the default of
            `most_processes`.
        keep_output_days: Days for which the output of a finished job is kept.
        pass_env: Names of environment variables that the daemon passes to jobs, in addition to the default
            ones (`INHERITED` in `processes.launch`).
        run_as: User that runs the jobs; None: the daemon's own user.
        run_as_owner: Each job runs as the account of its owner.
        host: Address at which other nodes reach this node; "": the address from which this node reaches the
            broker.
        accounts: Account name by person (user name at the broker), for persons whose account has another
            name; None: `--users` was not given.
        allow_root: Jobs may run as root.
        gpm: Read GPU performance monitoring if the GPUs have it.
        sharing: How jobs share GPUs: `time-slicing` or `mps`.
        torch_memory_limit: Limit the GPU memory of PyTorch in jobs that can share GPUs by time slicing.
        record_gpus: File to which GPU readings are recorded; None: no recording.
        health_check: Command that checks whether the node is fit for jobs; "": no command.
        health_check_every_s: Seconds from one start of the health check to the next.
        health_check_timeout_s: Time-out for the health check, seconds.
    """

    name: str
    broker: str
    directory: Path
    gpu_type: str = "generic"
    vc: str = ""
    forget_cluster: bool = False
    end_jobs: bool = False
    max_output_mib: int = DEFAULT_MAX_OUTPUT_MIB
    min_free_mib: int | None = None
    max_processes: int | None = None
    keep_output_days: float = DEFAULT_KEEP_OUTPUT_DAYS
    pass_env: tuple[str, ...] = ()
    run_as: str | None = None
    run_as_owner: bool = False
    host: str = ""
    accounts: dict[str, str] | None = None
    allow_root: bool = False
    gpm: bool = True
    sharing: str = TIME_SLICING
    torch_memory_limit: bool = False
    record_gpus: Path | None = None
    health_check: str = ""
    health_check_every_s: float = 60.0
    health_check_timeout_s: float = 30.0
