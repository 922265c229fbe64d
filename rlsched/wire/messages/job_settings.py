"""The settings of a submission, each declared once: type, default, range, and command-line options.

Messages, journal entries, the checks of the broker and the options of commands are derived from this file. A
test compares the keywords of `Client.submit` and `Client.update` with this file.
"""

import math
from typing import Annotated, Final, Literal

import msgspec

from rlsched.wire.declared import Option, Setting

Share = Literal["auto", "yes", "no"]
"""Whether a job may share its GPUs with others."""
Priority = Literal["low", "normal", "high", "urgent"]
Launcher = Literal["none", "torchrun", "per-gpu"]
"""How a rank's command is started. `none`: once per node; `torchrun`: once per node under torchrun;
`per-gpu`: once per GPU."""
OpenMode = Literal["auto", "truncate", "append"]
"""When the files of `output` and `error` are emptied. `auto`: at a job's first start only; `truncate`: at
each start; `append`: never."""
DependencyKind = Literal["after", "afterany", "afterok", "afternotok"]
NOTIFY_EVENTS: Final = ("start", "requeue", "end", "fail")
"""Events that send a notification: the job's first process runs, the job is requeued, ends, or fails."""
MAX_GANG_GPUS: Final = 65_536
MAX_CORES: Final = 1 << 24
MAX_MEMORY_MIB: Final = 1 << 40
MAX_NAME_CHARACTERS: Final = 200
MAX_SLACK_S: Final = 31_536_000
LAST_S: Final = 253_402_300_799
"""Last second of the year 9999, Unix seconds."""


class DependsOn(msgspec.Struct, frozen=True, array_like=True):
    """A dependency on another job; `rlsched.workload.dependencies` describes the kinds."""

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
            Option("-G --gpus N", "Number of GPUs of the whole job.  [default: 1]", kind="gpus"),
            Option(
                "--gpus-per-node N",
                "Number of GPUs on each node, as in Slurm; the job requests this number times --nodes.",
                kind="gpus",
            ),
            Option(
                "--gres gpu:N",
                "Same as --gpus-per-node; the forms gpu:TYPE:N and TYPE:N also request a GPU type.",
            ),
            Option(
                "--gpus-per-task N",
                "Number of GPUs of each task, as in Slurm; the job requests this number times --ntasks.",
                kind="gpus",
            ),
            Option(
                "-N --nodes N",
                "Number of nodes by which --gpus-per-node, --gres and --mem are multiplied. The broker "
                "chooses the nodes, and can place the job on another number of nodes.",
                kind="count",
            ),
            Option(
                "-n --ntasks N",
                "Number of tasks; the values of --gpus-per-task and -c are per task. `rlsched run`, and srun "
                "in a script for Slurm (see --launch), start this number of tasks.",
                kind="count",
            ),
            Option(
                "--ntasks-per-node N",
                "Number of tasks on each node, in place of --ntasks; the job has this number times --nodes "
                "tasks.",
                kind="count",
            ),
            Option(
                "--ntasks-per-gpu N",
                "Number of tasks for each GPU, in place of --ntasks; with --ntasks and no number of GPUs, it "
                "sets the number of GPUs. srun gives each task its GPU.",
                kind="count",
            ),
            least=1,
            most=MAX_GANG_GPUS,
        ),
    ]
    gpu_types: Annotated[
        list[str],
        Setting(
            Option(
                "--gpu-type TYPE,...",
                "Accepted GPU types, named as in `rlsched nodes` or shorter, separated by commas: H100 or "
                "A100,H100; any: all types.",
                "New list of accepted GPU types, separated by commas; any: all types.",
            ),
            Option("-C --constraint TYPE|...", "Same as --gpu-type, as in Slurm."),
            changes="task",
            scontrol="Features",
        ),
    ] = []
    """Accepted GPU types, as `rlsched.models.gpu_types.stands_for` interprets them; empty: any type."""
    preferred_types: Annotated[
        list[str],
        Setting(
            Option(
                "--prefer TYPE,...",
                "Preferred GPU types, named as in --gpu-type: the job gets GPUs of these types if it can "
                "start on them at once, else of other accepted types. It does not wait for them.  "
                "[default: none]",
                "New list of preferred GPU types, separated by commas; any: no preference.",
            ),
            changes="task",
            scontrol="Prefer",
        ),
    ] = []
    """Preferred GPU types, with names as in `gpu_types`; empty: no preference."""
    num_cpus: Annotated[
        int,
        Setting(
            Option(
                "-c --cpus-per-task N",
                "Number of dedicated CPU cores per task, multiplied by --ntasks.  [default: the job shares "
                "the cores that no job requested]",
                kind="count",
            ),
            Option(
                "--cpus-per-gpu N",
                "Number of dedicated CPU cores for each GPU, in place of -c.",
                kind="count",
            ),
            least=0,
            most=MAX_CORES,
        ),
    ] = 0
    """CPU cores of the whole job; 0: the job requests no cores."""
    memory_mib: Annotated[
        int,
        Setting(
            Option(
                "--mem SIZE",
                "Host memory on each node, multiplied by --nodes: 64G, 500M, or a number of MiB. A job that "
                "uses more is ended as out of memory.  [default: on nodes with control groups, in "
                "proportion to the job's GPUs]",
            ),
            Option("--mem-per-gpu SIZE", "Host memory per GPU; SIZE as in --mem."),
            Option("--mem-per-cpu SIZE", "Host memory per CPU core of -c; SIZE as in --mem."),
            least=0,
            most=MAX_MEMORY_MIB,
        ),
    ] = 0
    """Host memory of the whole job, MiB; 0: the job requests no amount."""
    gpu_memory_mib: Annotated[
        int,
        Setting(
            Option(
                "--gpu-memory SIZE",
                "Memory that each GPU must have, and have free when the job starts; SIZE as in --mem.  "
                "[default: no minimum]",
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
                "Run the job on nodes without other jobs, and start no other job there while it runs. The "
                "job still uses only the GPUs that it requested.",
            )
        ),
    ] = False
    vc: Annotated[
        str,
        Setting(
            Option("-p --vc --partition VC", "Virtual cluster (in Slurm: partition) in which the job runs."),
            characters=64,
        ),
    ] = ""
    time_limit_s: Annotated[
        float | None,
        Setting(
            Option(
                "-t --time TIME",
                "Time limit, after which the job is ended: minutes, 1:30:00, 1-12 (days-hours), 90m or 1h.  "
                "[default: no limit]",
                "New time limit: minutes, 1:30:00 or 90m; UNLIMITED removes the limit.",
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
                "Permit the policy to preempt the job for other jobs: SIGTERM, then SIGKILL after the grace "
                "time. The job is started again later, unless it exits with code 0.",
            )
        ),
    ] = False
    workload: Annotated[
        str,
        Setting(
            Option(
                "--workload NAME",
                "Workload of the job, as listed by `rlsched models`; the choice of the SM clock depends on "
                "it.  [default: unknown]",
            ),
            characters=64,
        ),
    ] = ""


class JobSettings(JobNeeds, frozen=True, kw_only=True):
    """All settings of a submission; requests and journal entries have the same fields."""

    token: Annotated[str, Setting(characters=128)]
    """Identifies the submission: a repeated request with the same token queues no second job."""
    command: Annotated[list[str], Setting()]
    name: Annotated[
        str,
        Setting(
            Option(
                "-J --name --job-name NAME",
                "Name of the job  [default: the program's name]",
                "New name of the job.",
            ),
            characters=MAX_NAME_CHARACTERS,
            changes="running",
            scontrol="JobName Name",
        ),
    ] = ""
    env: Annotated[
        dict[str, str],
        Setting(
            Option("--env K=V", "Environment variable to set for the job; may be repeated."),
            Option(
                "--export WHAT",
                "Environment variables of this process to pass on to the job: ALL, NONE, or names and "
                "NAME=VALUE separated by commas.",
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
                "Write the job's output to this file; `rlsched logs` shows the output too. In PATTERN, %j "
                "stands for the job, %A for the array, %a for the task, %x for the name, %u for the user, "
                "%N for the node, %n and %t for the rank, and %% for a percent sign.  [default: no file]",
            ),
            characters=4096,
        ),
    ] = ""
    """Path of the file, below the working directory unless absolute. `rlsched.broker.base.output_files`
    describes its patterns."""
    error: Annotated[
        str,
        Setting(
            Option(
                "-e --error PATTERN",
                "Write the job's standard error to this file; PATTERN as in --output.  [default: the file "
                "of --output]",
            ),
            characters=4096,
        ),
    ] = ""
    open_mode: Annotated[
        OpenMode,
        Setting(
            Option(
                "--open-mode",
                "When to empty the files of --output and --error. truncate: at each start of the job; "
                "append: never; auto: at the first start only.",
            )
        ),
    ] = "auto"
    begin_s: Annotated[
        float | None,
        Setting(
            Option(
                "-b --begin TIME",
                "Earliest start, such as now+1h, 16:00 or 2026-11-01T13:30.  [default: now]",
                "New earliest start, such as now, now+1h, 16:00 or 2026-11-01T13:30.",
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
                "Start only when conditions on other jobs are met: after, afterany, afterok or afternotok "
                "with job numbers (afterok:17:18), or singleton. If several conditions are given, separated "
                "by commas, all must be met.",
                'New dependencies in place of all present dependencies; "" removes all dependencies.',
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
                "Submit an array with one task per number: 0-99 or 1,3,7; with 0-99%8 at most 8 tasks run "
                "at the same time. Each task has its number in the environment variable RLSCHED_ARRAY_TASK.",
            ),
            keyword="array",
        ),
    ] = []
    """Tasks of a job array; each task becomes a separate job. Empty: a single job."""
    array_limit: Annotated[
        int,
        Setting(
            Option(
                "--array-limit N",
                update="Maximum number of tasks of an array that run at the same time; 0: no limit.",
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
                "How to start COMMAND. none: once on each node; torchrun: under torchrun, which starts a "
                "process per GPU; per-gpu: once per GPU, with RANK, WORLD_SIZE and LOCAL_RANK set. Unless "
                "this option is given, scripts for Slurm run on the first node only: scripts with #SBATCH "
                "lines, shell scripts that call srun or scontrol show hostnames, and --wrap.",
            )
        ),
    ] = "none"
    grace_s: Annotated[
        float | None,
        Setting(
            Option(
                "--grace TIME",
                "Time between SIGTERM and SIGKILL when the job reaches its time limit, or is cancelled or "
                "preempted, such as 60s or 5m; at most the broker's --max-grace-s.  [default: the broker's "
                "--grace-s]",
                "New time between SIGTERM and SIGKILL, such as 60s or 5m.",
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
                "Delay that you accept, such as 6h or 30m. Other jobs may go first until half of it is used. "
                "A policy that follows the price of electricity may also start the job later and, with "
                "--preemptible, pause it.  [default: none]",
                "New delay that you accept, counted from the submission, such as 6h or 30m; 0: no delay.",
            ),
            Option(
                "--start-by WHEN",
                "Latest start that you accept, in place of --slack; WHEN as in --begin. If no GPUs are free "
                "at that time, the job starts later.",
            ),
            Option(
                "--finish-by WHEN",
                "Latest end that you accept, in place of --slack; WHEN as in --begin. Requires -t: the slack "
                "is the time until the latest end, minus the time limit.",
            ),
            least=0,
            most=MAX_SLACK_S,
            expects="0 to a year, in seconds",
            changes="running",
        ),
    ] = 0.0
    """Delay that the user accepts, seconds."""
    speed_energy: Annotated[
        float | None,
        Setting(
            Option(
                "--speed-energy W",
                "Weight of energy against speed, from 0 (only speed counts) to 1 (only energy counts).  "
                "[default: the broker's --speed-energy]",
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
                "Time without contact between the broker and a node of the job, after which the node ends "
                "the job and the broker requeues it: 10m, 1h, never.  [default: the broker's --lost-after, "
                "by default never]",
                "New time without contact between the broker and a node of the job, after which the job is "
                "requeued: 10m, 1h, never.",
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
                "Whether the job may share its GPUs with other jobs, if the broker runs with --share. auto: "
                "yes if --workload is given, or if jobs with this command have been measured.",
                update="Whether the job may share its GPUs with more jobs; present co-tenants stay.",
            ),
            changes="running",
        ),
    ] = "auto"
    """Whether the job may share its GPUs. `auto`: only if its needs are known
    (`rlsched.broker.state.job_requests`)."""
    priority: Annotated[
        Priority,
        Setting(
            Option(
                "--priority",
                "Jobs of a higher priority start first. The broker limits the highest priority that a user "
                "may request.",
                update="New priority; jobs of a higher priority start first.",
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
                "Events about which a notification is sent, if the operator runs `rlsched notify`: some of "
                "start, requeue, end and fail, separated by commas. fail: the job ends and has failed.",
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
            Option(
                "--user NAME",
                "Submit the job as this user; requires an admin key.  [default: the user of your key]",
            ),
            characters=64,
        ),
    ] = ""
    account: Annotated[
        str,
        Setting(
            Option("-A --account NAME", "Account to charge for the job.  [default: your first account]"),
            characters=64,
        ),
    ] = ""


class JobChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to the settings of a submitted job; requests and journal entries have the same fields.

    None leaves a setting unchanged. `JobSettings` describes the settings.
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
    preferred_types: list[str] | None = None
    """New preferred GPU types; empty: no preference."""
    grace_s: float | None = None
    slack_s: float | None = None
    """New delay that the user accepts, counted from submission."""
