"""What `rlsched node` was told."""

from __future__ import annotations

from pathlib import Path

import msgspec

DEFAULT_MAX_OUTPUT_MIB = 1024
DEFAULT_KEEP_OUTPUT_DAYS = 30.0


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node.

    Attributes:
        name: The node's name, the one in its key.
        broker: tcp://HOST:PORT, or several with commas between: the broker's and those of its standbys.
        directory: The node's own directory.
        gpu_type: GPU model as the cluster's description names it.
        vc: The VC that owns this node; "" serves every one.
        forget_cluster: Join the first broker of another cluster that answers, and end the jobs that run here.
        end_jobs: End the jobs when the daemon is stopped, instead of leaving them to the next one.
        max_output_mib: What the output of a rank may take on disk; 0: whatever it likes.
        min_free_mib: No rank is started with less space on the disk of `directory`; None: see
            `refuse_on_full_disk`.
        max_processes: Processes and threads of a rank; 0: no bound; None: see `most_processes`.
        keep_output_days: How long the output of a job stays that is over.
        pass_env: More variables of the daemon's environment that jobs get.
        run_as: As whom jobs run; None: as the daemon's own user.
        run_as_owner: Each job runs as the account of the person whose it is.
        host: Where other nodes reach this one; "": the address from which it reaches the broker.
        accounts: Accounts by person, where they have another name; None: no file says so.
        allow_root: Jobs may run as root.
        gpm: GPU performance monitoring is read where there is any.
        record_gpus: Where what the GPUs show is written; None: nowhere.
        health_check: A command that says whether the node is fit for jobs; "" where there is none.
        health_check_every_s: How often it is run.
        health_check_timeout_s: How long it may take.
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
    record_gpus: Path | None = None
    health_check: str = ""
    health_check_every_s: float = 60.0
    health_check_timeout_s: float = 30.0
