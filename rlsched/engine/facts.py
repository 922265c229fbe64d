"""State of a Slurm cluster: jobs, nodes and partitions, parsed from Slurm's JSON. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from rlsched.errors import RlschedError

MARK = "rlsched:"
"""Start of the AdminComment of a job held by job_submit.lua; `key=value` pairs follow, separated by `;`."""
USER_HOLD = "[held]"
"""Start of the Comment of a job that its user holds. Priority 0 does not identify such a job, because the
gateway also sets priority 0 to hold a job.
"""
UNLIMITED_MIN = 365 * 24 * 60
"""Time limit from which on a job is treated as unlimited (a year), minutes."""
LIVE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
_OVER = {
    "COMPLETED": "",
    "FAILED": "",
    "OUT_OF_MEMORY": "",
    "CANCELLED": "cancelled",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_stopped",
    "BOOT_FAIL": "node_stopped",
    "PREEMPTED": "node_stopped",
    "REVOKED": "cancelled",
}
"""End reason (an entry of `END_REASONS`) for each Slurm state of an ended job."""
_BAD_NODE = (
    "DOWN",
    "DRAIN",
    "FAIL",
    "MAINT",
    "RESERVED",
    "NOT_RESPONDING",
    "POWERED_DOWN",
    "POWERING",
    "REBOOT",
)
_INDEXED = re.compile(r"gpu:(?P<kind>[^:,()]*?)(?P<index>\d+):1(?:\(.*)?")
_GRES = re.compile(r"gpu(?::(?P<kind>[^:,()]+))?:(?P<count>\d+)")
_ASKED = re.compile(r"gpu(?:[:=](?P<kind>[^:=,\d][^:=,]*))?(?:[:=](?P<count>\d+))?(?=,|$)")
_USED = re.compile(r"gpu(?::[^:,()]+)?:\d+\((?:S:[^,)]*,)?IDX:(?P<indices>[\d,-]*)\)")


class SlurmError(RlschedError):
    """Slurm does not answer, or its answer cannot be parsed."""


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, or one task of an array.

    Attributes:
        key: ID of the job for `scontrol`: job ID, or array job ID and task ID joined by `_`.
        marks: Key-value pairs in the AdminComment after `MARK`; None: rlsched has not marked the job.
        nodes: Nodes on which the job runs.
        gpus: Indices of the job's GPUs on each of `nodes`, empty if Slurm does not report them.
        is_commented: Whether the AdminComment has content that rlsched did not write.
        gpus_asked: Total number of GPUs that the job requests, of any type.
        may_requeue: Whether Slurm can requeue the job: a batch job without `--no-requeue`.
        nice: Nice value, as in `scontrol show job`.
        submit_s: Time of the submission, or requeue, Unix seconds.
        end_reason: One of `END_REASONS`, if the job has ended.
        num_nodes: Minimum number of nodes that the job requests.
        bound: Kind of request that the broker does not support; "" if it supports the job.
    """

    key: str
    name: str
    user: str
    partition: str
    state: str
    reason: str
    is_held: bool
    is_held_by_user: bool
    depends: bool
    eligible_s: float
    restarts: int
    marks: dict[str, str] | None
    is_commented: bool = False
    gpus_asked: int = 0
    nice: int = 0
    submit_s: float = 0.0
    array: int
    array_limit: int
    is_exclusive: bool
    may_requeue: bool
    time_limit_s: float | None
    nodes: list[str]
    gpus: list[list[int]]
    start_s: float
    end_s: float
    exit_code: int
    num_nodes: int = 1
    bound: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.state in _OVER

    @property
    def end_reason(self) -> str:
        """Reason for the job's end."""
        return _OVER.get(self.state, "")

    @property
    def runs(self) -> bool:
        """Whether the job runs on its nodes."""
        return self.state in LIVE

    def mark(self, name: str, default: int = 0) -> int:
        """Return the number in the mark with this name; `default` if there is no such number."""
        said = (self.marks or {}).get(name, "")
        return int(said) if said.isdecimal() else default


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node.

    Attributes:
        gpus: Number of GPUs.
        types: GRES type of each GPU, by GPU index, if all types differ, so that a job can request one
            particular GPU; otherwise empty.
        unusable: Reason why the node can get no jobs; "" if the node can get jobs.
    """

    name: str
    partitions: list[str]
    gpus: int
    gpu_type: str
    types: list[str]
    unusable: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """State of a Slurm cluster at the time `now_s` (Unix seconds): jobs by key, nodes by name."""

    now_s: float
    jobs: dict[str, SlurmJob]
    nodes: dict[str, SlurmNode]


def jobs_of(text: bytes, said_by: str = "`squeue --json`") -> dict[str, SlurmJob]:
    """Parse the jobs of `squeue --json`, or of slurmrestd; each task of an array becomes a job.

    Raises:
        SlurmError: the text cannot be parsed.
    """
    try:
        return {job.key: job for one in _said(text, "jobs") for job in _jobs(one)}
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SlurmError(f"{said_by}: cannot parse the output: {type(error).__name__}: {error}") from error


def nodes_of(text: bytes, said_by: str = "`sinfo --json`") -> dict[str, SlurmNode]:
    """Parse the nodes of `sinfo --json`, or of slurmrestd; return them by name.

    Raises:
        SlurmError: the text cannot be parsed.
    """
    try:
        return {node.name: node for node in map(_node, _said(text, "nodes"))}
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SlurmError(f"{said_by}: cannot parse the output: {type(error).__name__}: {error}") from error


def _said(text: bytes, what: str) -> list[dict[str, Any]]:
    """Return the list with the key `what` from Slurm's JSON.

    If the controller is down, Slurm's commands exit with code 0, and print an empty list and `errors`.
    """
    said = msgspec.json.decode(text)
    errors = said.get("errors") or []
    if errors:
        raise SlurmError(
            f"Slurm returned no list of {what}: {errors[0].get('description') or errors[0].get('error')}"
        )
    found: list[dict[str, Any]] = said[what]
    return found


def marks_of(comment: str) -> dict[str, str] | None:
    """Parse the marks in an AdminComment; return None if the comment is not rlsched's."""
    if not comment.startswith(MARK):
        return None
    pairs = (one.partition("=") for one in comment.removeprefix(MARK).split(";"))
    return {name: value for name, _, value in pairs if name}


def comment_of(marks: dict[str, str]) -> str:
    """Return the AdminComment with these marks."""
    return MARK + ";".join(f"{name}={value}" for name, value in marks.items())


def hosts_of(text: str) -> list[str]:
    """Expand a list of nodes such as `n[1-3,07],login`."""
    found: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        found += _hosts(part)
    return found


def _hosts(part: str) -> Iterator[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if match is None:
        yield part
        return
    head, inside, tail = match.groups()
    for one in inside.split(","):
        low, _, high = one.partition("-")
        for number in range(int(low), int(high or low) + 1):
            for rest in _hosts(tail):
                yield f"{head}{number:0{len(low)}d}{rest}"


def numbers_of(text: str) -> list[int]:
    """Expand a list of numbers such as `0,2-3,10-20:5`."""
    found: list[int] = []
    for one in filter(None, text.split(",")):
        among, _, step = one.partition(":")
        low, _, high = among.partition("-")
        found += range(int(low), int(high or low) + 1, int(step or 1))
    return found


def _jobs(one: dict[str, Any]) -> Iterator[SlurmJob]:
    array = _number(one.get("array_job_id"))
    waiting = one.get("array_task_string") or ""
    if array and waiting:
        for task in numbers_of(waiting.partition("%")[0]):
            yield _job(one, f"{array}_{task}", array)
    elif array and one.get("array_task_id") is not None:
        yield _job(one, f"{array}_{_number(one['array_task_id'])}", array)
    else:
        yield _job(one, str(one["job_id"]), 0)


def _job(one: dict[str, Any], key: str, array: int) -> SlurmJob:
    state = one["job_state"]
    if isinstance(state, list):  # newer versions: the state, and then flags
        state = "COMPLETING" if "COMPLETING" in state else state[0]
    limit_min = _number(one.get("time_limit"))
    nodes = hosts_of(one.get("nodes") or "")
    detail = [
        sorted({i for used in _USED.finditer(text) for i in numbers_of(used["indices"])})
        for text in one.get("gres_detail") or []
    ]
    shared = one.get("shared")
    return SlurmJob(
        key=key,
        name=one.get("name") or "",
        user=one.get("user_name") or str(one.get("user_id", "")),
        partition=one.get("partition") or "",
        state=state,
        reason=one.get("state_reason") or "",
        is_held=_number(one.get("priority")) == 0,
        is_held_by_user=(one.get("comment") or "").startswith(USER_HOLD),
        depends="unfulfilled" in (one.get("dependency") or ""),
        eligible_s=float(_number(one.get("eligible_time"))),
        restarts=_number(one.get("restart_cnt")),
        marks=marks_of(one.get("admin_comment") or ""),
        is_commented=bool(one.get("admin_comment")) and marks_of(one["admin_comment"]) is None,
        gpus_asked=_gpus_asked(one),
        nice=_nice(one.get("nice")),
        submit_s=float(_number(one.get("submit_time"))),
        array=array,
        array_limit=_number(one.get("array_max_tasks")),
        is_exclusive=shared == "none" or shared == ["none"],
        may_requeue=bool(one.get("requeue")) and bool(one.get("batch_flag", True)),
        time_limit_s=60.0 * limit_min if 0 < limit_min < UNLIMITED_MIN else None,
        nodes=nodes,
        gpus=detail if len(detail) == len(nodes) else [],
        start_s=float(_number(one.get("start_time"))),
        end_s=float(_number(one.get("end_time"))),
        exit_code=_exit_code(one.get("exit_code")),
        num_nodes=max(_number(one.get("node_count")), 1),
        bound=_bound(one),
    )


def _bound(one: dict[str, Any]) -> str:
    asked = ",".join(one.get(said) or "" for said in ("tres_per_job", "tres_per_node", "tres_per_task"))
    wants = {
        "features": one.get("features"),
        "a node list": one.get("required_nodes") or one.get("excluded_nodes"),
        "licences": one.get("licenses"),
        "a reservation": one.get("resv_name"),
        "a GPU type": any(match["kind"] for match in _ASKED.finditer(asked)),
        "GPUs by socket": "gpu" in (one.get("tres_per_socket") or ""),
        "other parts that start with it": _number(one.get("het_job_id")),
    }
    return next((what for what, wanted in wants.items() if wanted), "")


def _gpus_asked(one: dict[str, Any]) -> int:
    per_node, per_job, per_task = (
        sum(int(match["count"] or 1) for match in _ASKED.finditer(one.get(name) or ""))
        for name in ("tres_per_node", "tres_per_job", "tres_per_task")
    )
    nodes, tasks = _number(one.get("node_count")) or 1, _number(one.get("tasks")) or 1
    return per_job or per_node * nodes or per_task * tasks


def _nice(said: Any) -> int:
    """Parse a nice value. Slurm 22.05 prints a negative value modulo 2**32."""
    nice = _number(said)
    return nice - (1 << 32) if nice >= 1 << 31 else nice


def _number(said: Any) -> int:
    """Parse a number in Slurm's JSON; newer versions print an object, {"set": true, "number": 3}."""
    if isinstance(said, dict):
        return int(said.get("number") or 0) if said.get("set", True) else 0
    return int(said or 0)


def _exit_code(said: Any) -> int:
    """Parse an exit code: 0 to 255, or 128 + signal if a signal ended the job.

    The input is a wait status, or the form that later versions of Slurm print.
    """
    if isinstance(said, dict) and "return_code" in said:
        signalled = _number((said.get("signal") or {}).get("id"))
        return 128 + signalled if signalled else _number(said["return_code"]) & 0xFF
    status = _number(said)
    return 128 + (status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def _node(one: dict[str, Any]) -> SlurmNode:
    gres = re.sub(r"\(S:[^)]*\)", "", one.get("gres") or "")
    parts = [part for part in gres.split(",") if part.startswith("gpu")]
    indexed = [match for match in map(_INDEXED.fullmatch, parts) if match is not None]
    counted = [match for match in map(_GRES.match, parts) if match is not None]
    gpus = sum(int(match["count"]) for match in counted)
    types: list[str] = []
    if gpus and len(indexed) == gpus and {int(m["index"]) for m in indexed} == set(range(gpus)):
        types = [m["kind"] + m["index"] for m in sorted(indexed, key=lambda m: int(m["index"]))]
        kind = indexed[0]["kind"].rstrip("-_")
        kind = "" if kind == "i" else kind.removesuffix("-i").removesuffix("_i")
    else:
        kind = next((match["kind"] for match in counted if match["kind"]), "")
    said = one.get("state") or ""
    words = [said] if isinstance(said, str) else list(said)
    words = [word.upper() for word in [*words, *(one.get("state_flags") or [])]]
    bad = [word for word in words if word.startswith(_BAD_NODE)]
    why = f"{' '.join(dict.fromkeys(bad)).lower()} in Slurm" if bad else ""
    reason = one.get("reason") or ""
    return SlurmNode(
        name=one["name"],
        partitions=list(one.get("partitions") or []),
        gpus=gpus,
        gpu_type=kind or "generic",
        types=types,
        unusable=f"{why}: {reason}" if why and reason else why,
    )
