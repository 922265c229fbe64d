"""The settings of a submission, each declared once: type, default, range, and command-line options.

`Submit`, the journal's entry for a submission, dry runs, the checks of the broker, and the options of
`rlsched submit`, `run` and `update` are derived from this file. Type checkers need the keywords of
`Client.submit` and `Client.update` written out; a test compares these keywords with this file.
"""

import math
from typing import Annotated, Final, Literal

import msgspec

from rlsched.wire.declared import Option, Setting

Share = Literal["auto", "yes", "no"]
"""Whether a job may share its GPUs with others."""
Priority = Literal["low", "normal", "high", "urgent"]
Launcher = Literal["none", "torchrun", "per-gpu"]
"""How a rank's command is started: once per node; once per node under torchrun; once per GPU."""
OpenMode = Literal["auto", "truncate", "append"]
"""Files of `output` and `error`: emptied at a job's first start and continued at later ones; emptied at each
start; never emptied."""
DependencyKind = Literal["after", "afterany", "afterok", "afternotok"]
NOTIFY_EVENTS: Final = ("start", "requeue", "end", "fail")
"""Events that send a notification: the job's first process runs; the job is requeued; ends; fails."""
MAX_GANG_GPUS: Final = 65_536
MAX_CORES: Final = 1 << 24
MAX_MEMORY_MIB: Final = 1 << 40
MAX_NAME_CHARACTERS: Final = 200
MAX_SLACK_S: Final = 31_536_000
LAST_S: Final = 253_402_300_799
"""Last second of the year 9999, Unix seconds."""


class DependsOn(msgspec.Struct, frozen=True, array_like=True):
    """A dependency on another job; `rlsched.broker.state.gates` describes the kinds."""

    kind: DependencyKind
    job: int


class Tasks(msgspec.Struct, frozen=True, array_like=True):
    """Tasks of an array: `first`, `first + step`, ... up to `last`."""

    first: int
    last: int
    step: int = 1


class JobNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a submission on which forecasts depend. `DryRun` has the same settings."""

    num_gpus: Annotated[
        int,
        Setting(
            Option("-G --gpus N", "GPUs of the whole job.  [default: 1]", kind="gpus"),
            Option(
                "--gpus-per-node N", "GPUs on each node, as in Slurm; multiplied by --nodes.", kind="gpus"
            ),
            Option("--gres gpu:N", "Same as --gpus-per-node; gpu:TYPE:N and TYPE:N name the type too."),
            Option(
                "--gpus-per-task N", "GPUs of each task, as in Slurm; multiplied by --ntasks.", kind="gpus"
            ),
            Option(
                "-N --nodes N",
                "Number of nodes; only multiplies --gpus-per-node, --gres, --mem.",
                kind="count",
            ),
            Option("-n --ntasks N", "Number of tasks; only multiplies --gpus-per-task, -c.", kind="count"),
            least=1,
            most=MAX_GANG_GPUS,
        ),
    ]
    gpu_types: Annotated[
        list[str],
        Setting(
            Option(
                "--gpu-type TYPE,...",
                "Only these GPU types, as `rlsched nodes` shows them or shorter: H100; A100,H100; any.",
                "New accepted GPU types, or any.",
            ),
            Option("-C --constraint TYPE|...", "Same as --gpu-type, as in Slurm."),
            changes="task",
            scontrol="Features",
        ),
    ] = []
    """Accepted GPU types, as `rlsched.models.gpu_types.stands_for` interprets them; empty: any type."""
    num_cpus: Annotated[
        int,
        Setting(
            Option(
                "-c --cpus-per-task N",
                "Dedicated CPU cores per task; multiplied by --ntasks  [default: cores that no job "
                "requested, shared]",
                kind="count",
            ),
            least=0,
            most=MAX_CORES,
        ),
    ] = 0
    """CPU cores of the whole job; 0: none requested."""
    memory_mib: Annotated[
        int,
        Setting(
            Option(
                "--mem SIZE",
                "Host memory on each node, multiplied by --nodes: 64G, 500M or MiB. A job that uses more is "
                "ended, out of memory  [default: the share of its GPUs, if the node has control groups]",
            ),
            Option("--mem-per-gpu SIZE", "Host memory per GPU."),
            Option("--mem-per-cpu SIZE", "Host memory per core of -c."),
            least=0,
            most=MAX_MEMORY_MIB,
        ),
    ] = 0
    """Host memory of the whole job, MiB; 0: none requested."""
    gpu_memory_mib: Annotated[
        int,
        Setting(
            Option(
                "--gpu-memory SIZE",
                "Minimum memory of each GPU, free when the job starts  [default: any GPU]",
            ),
            least=0,
            most=MAX_MEMORY_MIB,
        ),
    ] = 0
    exclusive: Annotated[
        bool,
        Setting(
            Option(
                "--exclusive",
                "Give the job whole nodes: it starts on nodes without other jobs, and no other job starts "
                "there while it runs. It uses the GPUs that it requested.",
            )
        ),
    ] = False
    vc: Annotated[
        str, Setting(Option("-p --vc --partition VC", "Virtual cluster to run in."), characters=64)
    ] = ""
    time_limit_s: Annotated[
        float | None,
        Setting(
            Option(
                "-t --time TIME",
                "Time limit, after which the job is ended: minutes, 1:30:00, 1-12 (days-hours), 90m or 1h.",
                "New time limit: minutes, 1:30:00, 90m; UNLIMITED.",
            ),
            Option("--time-limit SECONDS", *["Same as --time, in seconds."] * 2, kind="number"),
            least=0,
            changes="task",
            scontrol="TimeLimit",
        ),
    ] = None
    preemptible: Annotated[
        bool,
        Setting(
            Option(
                "--preemptible",
                "Allow preemption for other jobs (SIGTERM, then SIGKILL). The job is started again "
                "later, unless it exits with code 0.",
            )
        ),
    ] = False
    workload: Annotated[
        str,
        Setting(
            Option(
                "--workload NAME",
                "Workload as `rlsched models` lists it; the SM clock depends on it  [default: unknown]",
            ),
            characters=64,
        ),
    ] = ""


class JobSettings(JobNeeds, frozen=True, kw_only=True):
    """All settings of a submission, as in the request and in the journal."""

    token: Annotated[str, Setting(characters=128)]
    """Identifies the submission: a repeated request with the same token queues no second job."""
    command: Annotated[list[str], Setting()]
    name: Annotated[
        str,
        Setting(
            Option(
                "-J --name --job-name NAME", "Name of the job  [default: the program's name]", "New name."
            ),
            characters=MAX_NAME_CHARACTERS,
            changes="running",
            scontrol="JobName Name",
        ),
    ] = ""
    env: Annotated[
        dict[str, str],
        Setting(
            Option("--env K=V", "Environment variable; may be repeated."),
            Option(
                "--export WHAT",
                "Environment variables to pass on: ALL, NONE, or names and NAME=VALUE separated by commas.",
                default="ALL",
            ),
        ),
    ] = {}
    cwd: Annotated[
        str,
        Setting(
            Option("-D --cwd --chdir DIR", "Working directory  [default: the current one]"), characters=4096
        ),
    ] = ""
    output: Annotated[
        str,
        Setting(
            Option(
                "-o --output PATTERN",
                "File for the job's output, also kept for `rlsched logs`. %j: job, %A: array, %a: task, %x: "
                "name, %u: user, %N: node, %n and %t: rank, %%: a percent sign  [default: no file]",
            ),
            characters=4096,
        ),
    ] = ""
    """Below the working directory unless absolute; patterns as in `rlsched.broker.base.output_files`."""
    error: Annotated[
        str,
        Setting(
            Option(
                "-e --error PATTERN",
                "File for the job's standard error, which is then not in the file of --output.",
            ),
            characters=4096,
        ),
    ] = ""
    open_mode: Annotated[
        OpenMode,
        Setting(
            Option(
                "--open-mode",
                "Files of --output and --error: truncate: emptied at each start; append: never; auto: at the "
                "first start only.",
            )
        ),
    ] = "auto"
    begin_s: Annotated[
        float | None,
        Setting(
            Option(
                "-b --begin TIME",
                "Earliest start: now+1h, 16:00, 2026-11-01T13:30.",
                "Earliest start: now+1h, 16:00, 2026-11-01T13:30; now.",
            ),
            least=0,
            most=LAST_S,
            expects="a time in Unix seconds",
            changes="waiting",
            scontrol="StartTime",
        ),
    ] = None
    depends_on: Annotated[
        list[DependsOn],
        Setting(
            Option(
                "-d --dependency WHAT",
                "Wait for other jobs: after, afterany, afterok, afternotok with job numbers (afterok:17:18), "
                "singleton; separate several by commas, all have to be met.",
                'New dependencies, which replace the present ones; "": none.',
            ),
            changes="waiting",
            scontrol="Dependency",
        ),
    ] = []
    tasks: Annotated[
        list[Tasks],
        Setting(
            Option(
                "-a --array TASKS",
                "Queue one task per number, with the number as RLSCHED_ARRAY_TASK in its environment: 0-99, "
                "1,3,7; 0-99%8: at most 8 run at once.",
            ),
            keyword="array",
        ),
    ] = []
    """Tasks of a job array, each a job of its own; empty: a single job."""
    array_limit: Annotated[
        int,
        Setting(
            Option(
                "--array-limit N",
                update="Maximum number of tasks to run at once; 0: no limit.",
                kind="number",
            ),
            least=0,
            most=math.inf,
            expects="0 or more",
            changes="waiting",
            scontrol="ArrayTaskThrottle",
            keyword="array",
        ),
    ] = 0
    launcher: Annotated[
        Launcher,
        Setting(
            Option(
                "--launch",
                "none: once on each node; torchrun: under torchrun, which starts a process per GPU; "
                "per-gpu: once per GPU, with RANK, WORLD_SIZE and LOCAL_RANK set.",
            )
        ),
    ] = "none"
    grace_s: Annotated[
        float | None,
        Setting(
            Option(
                "--grace TIME",
                "Time between SIGTERM and SIGKILL, at the time limit and when the job is cancelled or "
                "preempted: 60s, 5m; at most the broker's --max-grace-s  [default: the broker's --grace-s]",
                "Time between SIGTERM and SIGKILL: 60s, 5m.",
            ),
            changes="task",
        ),
    ] = None
    """Time between SIGTERM and SIGKILL, seconds; None: the broker's setting."""
    slack_s: Annotated[
        float,
        Setting(
            Option(
                "--slack TIME",
                "Delay that you accept for cheaper electricity: 6h, 30m. A policy with the setting price may "
                "start the job later, and pause it with --preemptible.  [default: none]",
                "Delay from submission that the user accepts for cheaper electricity: 6h, 30m; 0: none.",
            ),
            Option(
                "--start-by WHEN",
                "Latest start, in the forms of --begin: the slack is the time until then. If all GPUs are "
                "taken then, the job starts later.",
            ),
            Option(
                "--finish-by WHEN",
                "Latest end, in the forms of --begin: the slack is the time until then, less the time limit, "
                "which is required (-t).",
            ),
            least=0,
            most=MAX_SLACK_S,
            expects="0 to a year, in seconds",
            changes="running",
        ),
    ] = 0.0
    """Delay that the user accepts for cheaper electricity, seconds."""
    speed_energy: Annotated[
        float | None,
        Setting(
            Option(
                "--speed-energy W",
                "Weight of energy against time: 0 only speed, 1 only energy  [default: the broker's]",
                kind="number",
            ),
            least=0,
            most=1,
            expects="0 (speed only) to 1 (energy only)",
        ),
    ] = None
    lost_after_s: Annotated[
        float | None,
        Setting(
            Option(
                "--lost-after TIME",
                "Time for which a node of the job may be unreachable, or the broker down, before the node "
                "ends the job and the broker requeues it: 10m, 1h, never.  [default: the broker's "
                "--lost-after, by default never]",
                "Same as for `rlsched submit`.",
            ),
            changes="task",
        ),
    ] = None
    """Time without contact after which a node ends the job, seconds; None: the broker's setting. 0: never, so
    the job continues on an unreachable node."""
    share: Annotated[
        Share,
        Setting(
            Option(
                "--share",
                "Whether the job may share its GPUs with other jobs, if the broker has --share. auto: if "
                "--workload is given, or jobs with this command have been measured.",
                update="Whether the job may share its GPUs; jobs that share them now stay.",
            ),
            changes="running",
        ),
    ] = "auto"
    """`auto`: the job may share if its needs are known (`rlsched.broker.state.job_requests`)."""
    priority: Annotated[
        Priority,
        Setting(
            Option(
                "--priority",
                "Higher-priority jobs start first. The broker limits the highest a user may request.",
                update="New priority; higher-priority jobs start first.",
            ),
            changes="running",
            scontrol="Priority",
        ),
    ] = "normal"
    notify: Annotated[
        str,
        Setting(
            Option(
                "--notify WHAT",
                "Events that send a notification, if the operator runs `rlsched notify`: some of start, "
                "requeue, end, fail, separated by commas. fail: only if the job fails.",
            ),
            Option(
                "--mail-type WHAT", "Same as --notify, with Slurm's names: BEGIN, END, FAIL, REQUEUE, ALL."
            ),
            characters=64,
        ),
    ] = ""
    user: Annotated[
        str,
        Setting(
            Option("--user NAME", "Submit as this user, for admins  [default: your key's user]"),
            characters=64,
        ),
    ] = ""
    account: Annotated[
        str,
        Setting(
            Option("-A --account NAME", "Account to charge  [default: your first account]"), characters=64
        ),
    ] = ""


class JobChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a submission, in the request and in the journal.

    A field that is None leaves the setting unchanged; `JobSettings` describes the settings.
    """

    job: int
    tasks: list[Tasks] = []
    """Change only these tasks of an array, including tasks that are not jobs yet."""
    name: str | None = None
    priority: Priority | None = None
    time_limit_s: float | None = None
    """New time limit; infinite: no limit."""
    begin_s: float | None = None
    """New earliest start; a time in the past: the job may start immediately."""
    depends_on: list[DependsOn] | None = None
    """New dependencies, which replace the present ones."""
    lost_after_s: float | None = None
    share: Share | None = None
    array_limit: int | None = None
    gpu_types: list[str] | None = None
    """New accepted GPU types; empty: any type."""
    grace_s: float | None = None
    slack_s: float | None = None
    """New delay that the user accepts for cheaper electricity, counted from submission."""
