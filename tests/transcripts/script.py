"""Plays a transcript: commands to the broker's state machine, each with its output.

A transcript is a text file. A line that starts with `#` is a comment. Each other line before `----` is a
command; the lines after it, up to an empty line, are the facts that the broker journals (`fact`), messages
to nodes (`send`) and answers to clients (`reply`), in order.

    nodes n0 n1 gpus=4 [boot=b1]        nodes register
    submit gpus=2 [preemptible] ...     a client submits `true`; `NAME=VALUE` sets a field of `Submit`
    launched n0 1.1.0                   the process of rank 0 of attempt 1 of job 1 runs
    ended n0 1.1.0 [exit=3] [reason=..] ... has ended
    refused n0 1.1.0 WHY                ... could not be started
    hello n0 gpus=4 1.1.0 [boot=b2]     a node registers again and reports what runs
    leaving n0                          its daemon stops
    cancel 1 / requeue 1 / hold 1 / release 1
    drain n0 [requeue] / resume n0 / down n0 / remove n0
    wait 20 [n0 n1]                     time passes, seconds; heartbeats come from these nodes
    kill                                kill -9 of the broker, and a new one on its journal
    back up / restore / take over       of the journal, with a new broker on it
    queue / node                        the states of jobs, of nodes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from rlsched.broker.base.entries import BrokerStarted
from rlsched.broker.base.limits import Limits
from rlsched.broker.events import Commit, DropNode, Effect, Event, Reply, SendNode
from rlsched.broker.journal.backup import back_up, restore, take_over
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.recovery import recover_state
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    Cancel,
    Capabilities,
    DownNode,
    DrainNode,
    Ended,
    Hello,
    Hold,
    Launched,
    LaunchRefused,
    Leaving,
    NodeMessage,
    Release,
    RemoveNode,
    Requeue,
    ResumeNode,
    Submit,
)
from tests.support.broker.hand_broker import HandBroker

LIMITS = Limits(
    heartbeat_s=2.0, lease_s=20.0, launch_timeout_s=30.0, kill_again_s=10.0, drain_s=60.0, ended_s=math.inf
)
BEGAN_S = 1_000.0
_ABSOLUTE = {"until_s", "ended_s", "begin_s"}
"""Fields with times of day; shown relative to the start of the transcript."""
_LEFT_OUT = {
    *("token", "version", "policy", "fallback", "order", "predicted_s", "spread", "predicted_by", "said"),
    *("command", "env", "cwd", "name", "capabilities", "host", "boot_id", "directory_id"),
    *("counted", "profiles"),
    *("cluster", "gpus_of_ranks", "master", "hosts", "heartbeat_s", "number", "partition", "contested"),
    *(
        "hears_power",
        "hears_limits",
        "hears_usage",
        "hears_clock",
        "hears_output",
        "hears_memory",
        "gpu_uuids",
        "cpus",
        "marks_hold",
    ),
    *("grace_s", "num_ranks", "launcher", "last_number", "last_attempt", "vc"),
    *("gpu_type", "memory_mib", "num_cpus"),
}
"""Fields that no transcript shows."""


class Script:
    """Plays transcripts.

    Args:
        directory: Folder of the journal.
        policy: The policy of the broker.
    """

    def __init__(self, directory: Path, policy: str = "fifo-backfill") -> None:
        self._directory, self._policy = directory, policy
        self._path = directory / "broker" / JOURNAL_FILE
        self._said: list[str] = []
        self._submitted = 0
        self._commands: dict[str, Callable[[list[str], dict[str, str]], object]] = {
            "nodes": self._nodes,
            "submit": self._submit,
            "launched": self._launched,
            "ended": self._ended,
            "refused": self._refused,
            "hello": self._hello,
            "leaving": lambda words, _: self._says(words[0], Leaving(name=words[0])),
            "cancel": lambda words, _: self._asks(Cancel(job=int(words[0]))),
            "requeue": lambda words, _: self._asks(Requeue(job=int(words[0]))),
            "hold": lambda words, _: self._asks(Hold(job=int(words[0]))),
            "release": lambda words, _: self._asks(Release(job=int(words[0]))),
            "drain": lambda words, _: self._asks(DrainNode(node=words[0], requeue="requeue" in words)),
            "resume": lambda words, _: self._asks(ResumeNode(node=words[0])),
            "down": lambda words, _: self._asks(DownNode(node=words[0])),
            "remove": lambda words, _: self._asks(RemoveNode(node=words[0])),
            "wait": lambda words, _: self._broker.wait(float(words[0]), *words[1:]),
            "kill": lambda _, __: self._restart(),
            "back": lambda _, __: back_up(self._path, self._directory / "copy.sqlite"),
            "restore": lambda _, __: self._restore(),
            "take": lambda _, __: self._take_over(),
            "queue": lambda _, __: self._said.extend(self._jobs()),
            "node": lambda _, __: self._said.extend(self._states()),
        }
        self._broker = self._started()

    def close(self) -> None:
        """Close the journal."""
        self._broker.journal.close()

    def play(self, command: str) -> list[str]:
        """Run a command and return its output, a line each.

        Raises:
            KeyError: there is no such command.
        """
        self._said = []
        verb, *words = command.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        self._commands[verb]([word for word in words if "=" not in word], fields)
        return self._said

    # ---- the broker -------------------------------------------------------------------------------

    def _started(self) -> HandBroker:
        self._path.parent.mkdir(exist_ok=True)
        broker = _Printing(self._policy, Journal(self._path), self._said)
        broker.told = self._tell
        return broker

    def _restart(self) -> None:
        self._broker.journal.close()
        self._broker = self._started()

    def _restore(self) -> None:
        self._broker.journal.close()
        restore(self._directory / "copy.sqlite", self._path.parent)
        self._broker = self._started()

    def _take_over(self) -> None:
        """A standby takes over its copy of the journal."""
        self._broker.journal.close()
        journal = Journal(self._path)
        take_over(journal, recover_state(journal, Predictions("running-mean"), load_scheduler(self._policy)))
        journal.close()
        self._broker = self._started()

    def _tell(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._said.extend(_lines(effect))

    def _says(self, node: str, message: NodeMessage) -> None:
        self._broker.says(node, message)

    def _asks(self, message: object) -> None:
        self._broker.ask(message)  # type: ignore[arg-type]

    # ---- commands ---------------------------------------------------------------------------------

    def _nodes(self, names: list[str], fields: dict[str, str]) -> None:
        for name in names:
            self._says(name, _hello(name, fields))

    def _hello(self, words: list[str], fields: dict[str, str]) -> None:
        name, *ranks = words
        reports = [AttemptReport(**_key(rank), state="running") for rank in ranks]
        self._says(name, _hello(name, {"cluster": "c1", **fields}, reports))

    def _submit(self, words: list[str], fields: dict[str, str]) -> None:
        self._submitted += 1
        more = {name: msgspec.json.decode(value) for name, value in fields.items() if name != "gpus"}
        more |= dict.fromkeys(words, True)
        facts = {
            "command": ["true"],
            "token": f"t{self._submitted}",
            "num_gpus": int(fields.get("gpus", "1")),
            **more,
        }
        self._asks(msgspec.convert(facts, Submit))

    def _launched(self, words: list[str], _: dict[str, str]) -> None:
        node, rank = words
        self._says(node, Launched(**_key(rank), pid=100))

    def _ended(self, words: list[str], fields: dict[str, str]) -> None:
        node, rank = words
        code, reason = int(fields.get("exit", "0")), fields.get("reason", "")
        self._says(node, Ended(**_key(rank), exit_code=code, reason=reason))

    def _refused(self, words: list[str], _: dict[str, str]) -> None:
        node, rank, *why = words
        self._says(node, LaunchRefused(**_key(rank), message=" ".join(why)))

    def _jobs(self) -> Iterator[str]:
        for number, job in sorted(self._broker.state.jobs.items()):
            place = ""
            if job.active is not None:
                ranks = [f"{rank.node}{rank.gpus} {rank.state}" for rank in job.active.ranks]
                place = f" on {', '.join(ranks)}"
            code = "" if job.exit_code is None else f", exit code {job.exit_code}"
            why = f": {job.reason}" if job.reason else ""
            yield f"job {number} {job.state}{place}{code}{why}"

    def _states(self) -> Iterator[str]:
        for name, node in sorted(self._broker.state.nodes.items()):
            why = f": {node.reason}" if node.reason else ""
            jobs = f", jobs {sorted(node.live_jobs)}" if node.live_jobs else ""
            yield f"node {name} {node.state}{jobs}{why}"


class _Printing(HandBroker):
    """A broker by hand that passes the output of each batch on before it is carried out."""

    told: Callable[[Sequence[Effect]], None]

    def __init__(self, policy: str, journal: Journal, said: list[str]) -> None:
        self.told = lambda effects: said.extend(line for effect in effects for line in _lines(effect))
        super().__init__(load_scheduler(policy), journal, limits=LIMITS, now_s=BEGAN_S)

    def batch(self, events: Sequence[Event], *, after_s: float = 0.001) -> list[object]:  # type: ignore[override]
        """As `HandBroker.batch`."""
        handle = self.machine.handle_batch

        def handled(events: Sequence[Event], now_s: float) -> list[Effect]:
            effects = handle(events, now_s)
            self.told(effects)
            return effects

        self.machine.handle_batch = handled  # type: ignore[method-assign]
        try:
            return list(super().batch(events, after_s=after_s))
        finally:
            self.machine.handle_batch = handle  # type: ignore[method-assign]


def _hello(name: str, fields: dict[str, str], reports: Sequence[AttemptReport] = ()) -> Hello:
    return Hello(
        name=name,
        gpus=int(fields.get("gpus", "4")),
        boot_id=fields.get("boot", "b1"),
        cluster=fields.get("cluster", ""),
        attempts=list(reports),
        capabilities=Capabilities(fences=True),
    )


def _key(rank: str) -> dict[str, int]:
    return dict(zip(("job", "attempt", "rank"), map(int, rank.split(".")), strict=True))


def _lines(effect: Effect) -> Iterator[str]:
    match effect:
        case Commit(entries=facts):
            yield from (f"fact {_shown(fact)}" for fact in facts)
        case SendNode(node=node, message=message):
            yield f"send {node} {_shown(message)}"
        case Reply(message=message):
            yield f"reply {_shown(message)}"
        case DropNode(node=node):
            yield f"drop {node}"


def _shown(struct: msgspec.Struct) -> str:
    """The kind of a struct and its fields, without defaults and `_LEFT_OUT`."""
    words = [type(struct).__name__]
    names = sorted(struct.__struct_fields__, key=lambda name: name != "job")  # fields of a base come first
    values = {name: getattr(struct, name) for name in names}
    if {"job", "attempt", "rank"} <= values.keys():
        words.append(".".join(str(values.pop(name)) for name in ("job", "attempt", "rank")))
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    for name, value in values.items():
        is_node = name == "name" and "job" not in values
        if name == "epoch" and not isinstance(struct, BrokerStarted):
            continue
        if (name in _LEFT_OUT and not is_node) or value == defaults[name] or value in ("", [], {}, None):
            continue
        words.append(f"{name}={_value(name, value)}")
    return " ".join(words)


def _value(name: str, value: object) -> str:
    if isinstance(value, msgspec.Struct):
        return f"({_shown(value)})"
    if name in _ABSOLUTE and isinstance(value, float) and math.isfinite(value):
        return f"+{value - BEGAN_S:g}"
    if isinstance(value, str):
        return f"'{value}'" if " " in value else value
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")
