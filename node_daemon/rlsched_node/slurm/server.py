"""The server of a job's steps, on the job's first node. It also runs the job's script.

On each other node, an agent (`agent.py`) runs the tasks of the steps.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from signal import SIGCHLD, SIGCONT, SIGKILL, SIGTERM
from typing import Final

from rlsched_node.processes.shim import STRAGGLER_GRACE_S
from rlsched_node.slurm.frames import BACKLOG_BYTES, Head, Link
from rlsched_node.slurm.loop import READ, Loop
from rlsched_node.slurm.outputs import ERR
from rlsched_node.slurm.plans import JobNode, Plan, PlanError, Use, plan
from rlsched_node.slurm.steps import Node, Step, start_message
from rlsched_node.slurm.tasks import ENDING, Tasks

EXIT_REFUSED: Final = 1
EXIT_LOST: Final = 1
HANDSHAKE_S: Final = 10.0
"""Maximum time for a new peer to prove that it has the job's key, seconds."""
ACCEPT_S: Final = 0.5
"""Pause after a connection could not be accepted, seconds."""
MAX_STRANGERS: Final = 64
"""Maximum number of connected peers that have not proven yet that they have the job's key."""
FLUSH_S: Final = 5.0
"""Maximum time to send the last messages to agents, seconds."""
WAITS_S: Final = 10.0
"""Time after which `srun` prints why its step waits, seconds."""


class Server:
    """Runs the script, and the steps that `srun` asks for.

    Args:
        loop: The loop.
        key: The job's key.
        listener: Listening socket.
        nodes: Nodes of the job, in the order of ranks; the first is this node.
        env: Environment of the script.
        asked_nodes: Number of nodes that the job requested; 0: it requested none.
        attempt: ID of the job's attempt; agents and `srun` must send the same ID.
        grace_s: Seconds between SIGTERM and SIGKILL for a step that is ended.
    """

    def __init__(
        self,
        loop: Loop,
        key: bytes,
        listener: socket.socket,
        nodes: Sequence[JobNode],
        env: Mapping[str, str],
        *,
        asked_nodes: int,
        attempt: str,
        grace_s: float,
    ) -> None:
        self._loop, self._key, self._listener = loop, key, listener
        self._nodes, self._env = [Node(shape) for shape in nodes], dict(env)
        self._nodes[0].env = self._env
        self._asked_nodes, self._attempt, self._grace_s = asked_nodes, attempt, grace_s
        self._tasks = Tasks(loop, self._env, partial(self._take_report, 0), self._is_blocked)
        self._steps: dict[int, Step] = {}
        self._strangers: dict[Link, float] = {}
        self._next_step = 0
        self._script_code: int | None = None
        self._is_ending = False
        loop.watch(listener, READ, self._accept)

    # ---- the script -------------------------------------------------------------------------------

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start the script.

        Raises:
            OSError: the script cannot be executed.
        """
        return subprocess.Popen(command, env=self._env)

    def run(self, script: subprocess.Popen[bytes]) -> int:
        """Run the script to its end, and end its steps. Return the script's exit code."""
        self._loop.on_signal = partial(self._signal, script)
        while not self._is_done():
            self._loop.turn()
            self._tasks.watch_outputs()
            self._pause_agents()
        self._end_agents()
        return self._script_code or 0

    def _reap_script(self, script: subprocess.Popen[bytes]) -> None:
        """If the script has ended, end its steps."""
        if self._script_code is None and (code := script.poll()) is not None:
            self._script_code = 128 - code if code < 0 else code
            self._end_steps()

    def _signal(self, script: subprocess.Popen[bytes], number: int) -> None:
        """Forward a signal from the shim to the tasks. The script and `srun` get the signal from the shim."""
        if number == SIGCHLD:
            self._tasks.reap()
            self._reap_script(script)
            return
        if number in ENDING:
            self._is_ending = True
        self._tasks.signal_all(number)
        if number == SIGTERM:
            self._tasks.signal_all(SIGCONT)

    def _end_steps(self) -> None:
        """End the steps that still run after the script has ended.

        SIGKILL follows SIGTERM after the job's grace period if the job is being ended, otherwise after
        `STRAGGLER_GRACE_S`.
        """
        for step in list(self._steps.values()):
            if step.plan is None:
                self._refuse(step, "the script has ended")
            else:
                self._end(step, self._grace_s if self._is_ending else STRAGGLER_GRACE_S)

    def _is_done(self) -> bool:
        """Return whether the script and all steps have ended.

        If the script has succeeded, return False also while an agent of another node has not connected yet.
        """
        if self._script_code is None or any(step.plan for step in self._steps.values()):
            return False
        waits = self._script_code == 0 and not self._is_ending
        return not waits or all(node.env is not None for node in self._nodes)

    def _end_agents(self) -> None:
        """Send the agents the order to end."""
        links = [node.link for node in self._nodes if node.link is not None]
        for link in links:
            link.send({"do": "end"})
        give_up_s = time.monotonic() + FLUSH_S
        while any(link.backlog_bytes for link in links) and time.monotonic() < give_up_s:
            self._loop.turn(0.1)

    # ---- connections ------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # too many open files, for example
            self._loop.watch(self._listener, 0, self._accept)
            self._loop.after(ACCEPT_S, partial(self._loop.watch, self._listener, READ, self._accept))
            return
        now_s = time.monotonic()
        for link, since_s in list(self._strangers.items()):
            if now_s - since_s > HANDSHAKE_S:
                link.close()
        if len(self._strangers) >= MAX_STRANGERS:
            next(iter(self._strangers)).close()
        link = Link(self._loop, sock, self._key, is_server=True)
        link.closed = lambda _: self._strangers.pop(link, None)
        link.receive = partial(self._meet, link)
        self._strangers[link] = now_s

    def _meet(self, link: Link, head: Head, _: bytes) -> None:
        """Handle the first message of a peer that has the job's key: an agent or `srun`."""
        self._strangers.pop(link, None)
        names = [node.shape.name for node in self._nodes]
        if head["attempt"] != self._attempt:
            link.close()
        elif head["role"] == "srun":
            link.closed = lambda _: None
            link.receive = partial(self._request, link)
            link.send({"is": "welcome"})
        else:
            rank = int(head["rank"])
            link.closed = lambda _: self._lose(rank)
            link.receive = partial(self._take_report, rank)
            self._nodes[rank].link = link
            link.send({"do": "welcome", "names": names})

    def _lose(self, rank: int) -> None:
        """Record that the tasks of a node have ended, because its agent has disconnected."""
        node = self._nodes[rank]
        node.link = None
        for step in list(self._steps.values()):
            for task in list(step.running.get(rank, ())):
                text = f"srun: error: {node.shape.name}: task {task}: the connection to the node was lost\n"
                self._show(step, task, ERR, text.encode())
                self._end_task(step, rank, task, EXIT_LOST, is_lost=True)

    def _pause_agents(self) -> None:
        """Stop reading from agents while their output waits for a slow `srun`."""
        slow = [step for step in self._steps.values() if self._is_blocked(step.number)]
        for rank, node in enumerate(self._nodes):
            if node.link is not None:
                node.link.pause(any(step.running.get(rank) for step in slow))

    def _is_blocked(self, number: int) -> bool:
        step = self._steps.get(number)
        return step is not None and step.client.backlog_bytes >= BACKLOG_BYTES

    # ---- requests of srun -------------------------------------------------------------------------

    def _request(self, client: Link, head: Head, _: bytes) -> None:
        """Handle a request for a step."""
        step = Step(self._next_step, client, head)
        client.closed = lambda _: self._abandon(step)
        client.receive = partial(self._order, step)
        if self._script_code is not None:
            self._refuse(step, "the script has ended")
            return
        self._next_step += 1
        self._steps[step.number] = step
        self._loop.after(WAITS_S, partial(self._announce, step))
        self._start_waiting()

    def _order(self, step: Step, head: Head, data: bytes) -> None:
        """Handle a message of `srun` after its request for a step: a signal or input for the tasks."""
        if step.number not in self._steps or step.plan is None:
            return
        if head["do"] == "signal":
            self._signal_step(step, head["number"], is_once=self._is_ending and head["number"] in ENDING)
        elif head["do"] == "input":
            step.input_waits = len(step.plan.nodes) if data else 0
            self._send_all(step, {"do": "input", "step": step.number}, data)

    def _abandon(self, step: Step) -> None:
        """End the step of an `srun` that has exited."""
        if step.plan is None:
            self._steps.pop(step.number, None)
        elif step.number in self._steps:
            self._end(step, STRAGGLER_GRACE_S)

    def _refuse(self, step: Step, why: str) -> None:
        self._steps.pop(step.number, None)
        step.client.send({"is": "refused", "why": why, "code": EXIT_REFUSED})

    def _announce(self, step: Step) -> None:
        """Print once why a step waits."""
        if step.number in self._steps and step.plan is None and not step.was_announced:
            step.was_announced = True
            absent = [node.shape.name for node in self._nodes if node.env is None]
            why = f"node {', '.join(absent)}" if absent else "GPUs or tasks of other steps"
            self._note(step, f"srun: step {step.number} waits for {why}\n")

    def _note(self, step: Step, text: str) -> None:
        step.client.send({"is": "note"}, text.encode())

    # ---- steps ------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Start the steps that wait, in the order of their requests, as far as nodes and GPUs are free."""
        for step in list(self._steps.values()):
            if step.plan is not None:
                continue
            job, used = [node.shape for node in self._nodes], [node.used for node in self._nodes]
            try:
                found = plan(step.options, job, used, self._asked_nodes)
            except PlanError as error:
                self._refuse(step, str(error))
                continue
            if found is None or any(self._nodes[rank].env is None for rank in found.nodes):
                continue
            lost = [self._nodes[rank] for rank in found.nodes if rank and self._nodes[rank].link is None]
            if lost:
                self._refuse(step, f"the connection to the node {lost[0].shape.name} was lost")
            else:
                self._start(step, found)

    def _start(self, step: Step, found: Plan) -> None:
        step.plan = found
        for rank, taken in zip(found.nodes, found.taken, strict=True):
            self._take(rank, taken, 1)
        step.running = {rank: set(tasks) for rank, tasks in zip(found.nodes, found.tasks, strict=True)}
        step.client.send({"is": "started", "step": step.number, "tasks": sum(found.counts)})
        if step.options["time_s"] is not None:
            self._loop.after(step.options["time_s"], partial(self._time_out, step))
        for place, rank in enumerate(found.nodes):
            self._send(rank, start_message(step, found, place, self._nodes))

    def _take(self, rank: int, taken: Use, sign: int) -> None:
        """Mark GPUs and slots of a node as used by a step (`sign` 1), or as free again (`sign` -1)."""
        node = self._nodes[rank]
        gpus = {*node.used.gpus, *taken.gpus} if sign > 0 else {*node.used.gpus} - {*taken.gpus}
        node.used = Use(gpus, node.used.slots + sign * taken.slots)

    def _send_all(self, step: Step, head: Head, data: bytes = b"") -> None:
        """Send a message to all nodes of a step."""
        for rank in step.plan.nodes if step.plan is not None else ():
            self._send(rank, head, data)

    def _send(self, rank: int, head: Head, data: bytes = b"") -> None:
        link = self._nodes[rank].link
        if rank == 0:
            self._tasks.handle(head, data)
        elif link is not None:
            link.send(head, data)

    # ---- reports of nodes -------------------------------------------------------------------------

    def _take_report(self, rank: int, head: Head, data: bytes) -> None:
        """Handle a report of a node."""
        if head["is"] == "ready":
            self._nodes[rank].env = head["env"]
            self._start_waiting()
            return
        step = self._steps.get(head["step"])
        if step is None:
            return
        if head["is"] == "output":
            self._show(step, head["task"], head["stream"], data)
        elif head["is"] == "exited":
            self._end_task(step, rank, head["task"], head["code"])
        elif head["is"] == "taken" and step.input_waits:
            step.input_waits -= 1
            if not step.input_waits:
                step.client.send({"is": "taken"})

    def _show(self, step: Step, task: int, stream: int, data: bytes) -> None:
        step.client.send({"is": "output", "task": task, "stream": stream}, data)

    def _end_task(self, step: Step, rank: int, task: int, code: int, *, is_lost: bool = False) -> None:
        """Record the end of a task. The step ends with its last task."""
        if task not in step.running.get(rank, ()):
            return
        step.running[rank].discard(task)
        step.code = max(step.code, code)
        name = self._nodes[rank].shape.name
        step.client.send({"is": "exited", "task": task, "node": name, "code": code, "is_lost": is_lost})
        if not any(step.running.values()):
            self._finish(step)
        elif code and step.options["kill_on_bad_exit"]:
            self._end(step, self._grace_s)
        elif step.options["wait_s"] and not step.is_ending:
            self._loop.after(step.options["wait_s"], partial(self._end, step, self._grace_s))

    def _finish(self, step: Step) -> None:
        assert step.plan is not None
        del self._steps[step.number]
        for rank, taken in zip(step.plan.nodes, step.plan.taken, strict=True):
            self._take(rank, taken, -1)
        step.client.send({"is": "ended", "code": step.code})
        self._start_waiting()

    def _time_out(self, step: Step) -> None:
        if step.number in self._steps and not step.is_ending:
            self._note(step, f"srun: error: step {step.number}: time limit reached\n")
            self._end(step, self._grace_s)

    def _end(self, step: Step, grace_s: float) -> None:
        """End the tasks of a step: SIGTERM now, SIGKILL after `grace_s` seconds."""
        if step.number not in self._steps or step.is_ending:
            return
        step.is_ending = True
        self._signal_step(step, SIGTERM, is_once=True)
        self._signal_step(step, SIGCONT)
        self._loop.after(grace_s, partial(self._kill, step))

    def _kill(self, step: Step) -> None:
        if step.number in self._steps:
            self._signal_step(step, SIGKILL)

    def _signal_step(self, step: Step, number: int, *, is_once: bool = False) -> None:
        """Send a signal to a step's tasks. `is_once`: skip tasks that already got a signal of `ENDING`."""
        self._send_all(step, {"do": "signal", "step": step.number, "number": number, "once": is_once})
