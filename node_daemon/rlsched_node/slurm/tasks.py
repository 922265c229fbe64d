"""The tasks on one node: processes, their output, input and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rlsched_node.processes.shim import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, read_stat
from rlsched_node.slurm.frames import READ_BYTES, Head
from rlsched_node.slurm.loop import READ, WRITE, Loop
from rlsched_node.slurm.outputs import ERR, OUT

LINGER_S: Final = 1.0
"""Time for which other processes of a task may run after its first process has exited, seconds; 0 under
Slurm."""
LOOK_S: Final = 0.05
"""Seconds between two checks for remaining processes of a task."""
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a task to end. After such a signal, the task's remaining processes are not killed after
`LINGER_S`."""
_LOGIN: Final = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ"})
_OF_THE_JOB: Final = ("SLURM", "RLSCHED_", "CUDA_")
"""Prefixes of variables that tasks always get, even if `srun --export` does not name them."""


class Task:
    """A task: a process in a process group of its own.

    Attributes:
        step: ID of the step.
        number: ID of the task in its step (`SLURM_PROCID`).
        process: The first process of the task.
        outputs: Pipes with the task's output, by stream; closed pipes are removed.
        stdin: Pipe to the task's standard input; None: closed, or the task has none.
        unread: Input that the task has not read yet.
        ends_input: Close the pipe when `unread` is empty.
        was_signalled: The task has received a signal of `ENDING`.
        has_exited: The process has exited, and is a zombie until the other processes of its group have ended.
        code: Exit code, 128 + signal number if a signal ended the process; None: not reaped yet.
    """

    def __init__(self, step: int, number: int, process: subprocess.Popen[bytes]) -> None:
        self.step, self.number, self.process = step, number, process
        pipes = ((OUT, process.stdout), (ERR, process.stderr))
        self.outputs: dict[int, Any] = {stream: pipe for stream, pipe in pipes if pipe is not None}
        self.reads: dict[int, Callable[[], bool]] = {}
        self.stdin: Any = process.stdin
        self.unread = bytearray()
        self.ends_input = self.was_signalled = self.has_exited = False
        self.code: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the task."""
        self.was_signalled = self.was_signalled or number in ENDING
        if self.code is None:  # until it is reaped, no other group gets its ID
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def leaves_processes(self) -> bool:
        """Return whether other processes of the group run."""
        group = str(self.process.pid)
        for pid in os.listdir("/proc"):
            fields = read_stat(int(pid)) if pid.isdigit() else None
            if fields is not None and fields[2] == group and fields[0] not in "ZX":
                return True
        return False


class Tasks:
    """All tasks of steps on this node.

    Args:
        loop: Watches pipes.
        env: Environment of this node's tasks, to which a step's changes are applied.
        report: Function that is called with each message for the server: `output`, `exited` and `taken`.
        is_blocked: Function that returns whether the receiver of a step's output is slow, so that the tasks
            must wait.
    """

    def __init__(
        self,
        loop: Loop,
        env: Mapping[str, str],
        report: Callable[[Head, bytes], None],
        is_blocked: Callable[[int], bool],
    ) -> None:
        self._loop, self._env = loop, env
        self._report, self._is_blocked = report, is_blocked
        self._tasks: dict[tuple[int, int], Task] = {}
        self._owed: set[int] = set()  # steps whose input has not been read by all tasks yet

    def __len__(self) -> int:
        return len(self._tasks)

    def handle(self, head: Head, data: bytes) -> None:
        """Handle a message of the server."""
        match head["do"]:
            case "start":
                self._start_all(head)
            case "input":
                self._give(head["step"], data)
            case "signal":
                for task in self._of(head["step"]):
                    if not (head["once"] and task.was_signalled):
                        task.signal(head["number"])

    def signal_all(self, number: int) -> None:
        """Forward a signal that the job received to all tasks. A task gets only one signal of `ENDING`."""
        for task in self._tasks.values():
            if not (number in ENDING and task.was_signalled):
                task.signal(number)

    def reap(self) -> None:
        """Find the tasks whose processes have exited. Called after SIGCHLD."""
        for task in list(self._tasks.values()):
            if not task.has_exited and _has_exited(task.process.pid):
                task.has_exited = True
                self._loop.after(LINGER_S, partial(self._end_rest, task))
                self._look(task)

    def watch_outputs(self) -> None:
        """Stop reading a task's output while its receiver is slow, else resume. Called after `Loop.turn`."""
        for task in self._tasks.values():
            self._watch_outputs(task)

    def _of(self, step: int) -> list[Task]:
        return [task for task in self._tasks.values() if task.step == step]

    # ---- start ------------------------------------------------------------------------------------

    def _start_all(self, step: Head) -> None:
        """Start the tasks of a step. A task that cannot be started is reported as ended."""
        env, opened = self._environment(step), set[str]()
        for own in step["tasks"]:
            number = own["number"]
            try:
                task = Task(step["step"], number, _process(step, own, env | own["env"], opened))
            except OSError as error:
                is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
                said = f"srun: error: {step['node']}: task {number}: {error.filename}: {error.strerror}\n"
                code = EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE
                self._loop.after(0.0, partial(self._report_failure, step["step"], number, said, code))
                continue
            self._tasks[task.step, number] = task
            for pipe in filter(None, (*task.outputs.values(), task.stdin)):
                os.set_blocking(pipe.fileno(), False)
            task.reads = {stream: partial(self._read, task, stream) for stream in task.outputs}
            self._watch_outputs(task)

    def _environment(self, step: Head) -> dict[str, str]:
        """Return the environment of a step's tasks: this node's environment with the changes of the step."""
        env = {name: value for name, value in self._env.items() if name not in step["unset"]}
        env |= step["env"]
        if step["only"] is not None:
            kept = {*step["only"], *_LOGIN}
            env = {name: value for name, value in env.items() if name in kept or name.startswith(_OF_THE_JOB)}
        own: dict[str, str] = step["set"]
        return env | own

    def _report_failure(self, step: int, number: int, said: str, code: int) -> None:
        self._report_of(step, number, "output", said.encode(errors="replace"), stream=ERR)
        self._report_of(step, number, "exited", code=code)

    def _report_of(self, step: int, task: int, what: str, data: bytes = b"", **more: int) -> None:
        self._report({"is": what, "step": step, "task": task, **more}, data)

    # ---- output and input -------------------------------------------------------------------------

    def _watch_outputs(self, task: Task) -> None:
        events = 0 if self._is_blocked(task.step) else READ
        for stream, pipe in task.outputs.items():
            self._loop.watch(pipe, events, task.reads[stream])

    def _read(self, task: Task, stream: int) -> bool:
        """Read a piece of output. Return whether there may be more."""
        pipe = task.outputs[stream]
        try:
            piece = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if piece:
            self._report_of(task.step, task.number, "output", piece, stream=stream)
            return True
        self._close_output(task, stream)
        return False

    def _close_output(self, task: Task, stream: int) -> None:
        pipe = task.outputs.pop(stream)
        self._loop.watch(pipe, 0, task.reads[stream])
        pipe.close()
        self._finish(task)

    def _give(self, step: int, data: bytes) -> None:
        """Write input to the tasks of a step that have a standard input. No data: close their input."""
        for task in self._of(step):
            if task.stdin is not None:
                task.unread += data
                task.ends_input = not data
                self._write(task)
        if data:
            self._owed.add(step)
            self._take(step)

    def _write(self, task: Task) -> None:
        try:
            while task.unread:
                del task.unread[: os.write(task.stdin.fileno(), task.unread)]
        except BlockingIOError:
            pass
        except OSError:  # the task has closed its end
            task.ends_input = True
            task.unread.clear()
        self._loop.watch(task.stdin, WRITE if task.unread else 0, partial(self._write_and_take, task))
        if task.ends_input and not task.unread:
            task.stdin.close()
            task.stdin = None

    def _write_and_take(self, task: Task) -> None:
        self._write(task)
        self._take(task.step)

    def _take(self, step: int) -> None:
        """Report once that all tasks of a step have read their input."""
        if step in self._owed and not any(task.unread for task in self._of(step)):
            self._owed.discard(step)
            self._report({"is": "taken", "step": step}, b"")

    # ---- end --------------------------------------------------------------------------------------

    def _end_rest(self, task: Task) -> None:
        """Kill the remaining processes of a task, unless the task has received a signal of `ENDING`."""
        if not task.was_signalled:
            task.signal(signal.SIGKILL)

    def _look(self, task: Task) -> None:
        """Reap the first process of a task as soon as no other process of the task runs."""
        if task.leaves_processes():
            self._loop.after(LOOK_S, partial(self._look, task))
            return
        code = task.process.wait()
        task.code = 128 - code if code < 0 else code
        if task.stdin is not None:
            task.ends_input = True
            task.unread.clear()
            self._write(task)
            self._take(task.step)
        self._loop.after(LINGER_S, partial(self._cut, task))
        self._finish(task)

    def _cut(self, task: Task) -> None:
        """Close the pipes of an ended task. Another process, such as a daemon, may still have them open."""
        if self._is_blocked(task.step):
            self._loop.after(LINGER_S, partial(self._cut, task))
            return
        for stream in list(task.outputs):
            while self._read(task, stream):
                pass
            if stream in task.outputs:
                self._close_output(task, stream)

    def _finish(self, task: Task) -> None:
        """Report the end of a task after its output."""
        key = task.step, task.number
        if task.code is not None and not task.outputs and key in self._tasks:
            del self._tasks[key]
            self._report_of(task.step, task.number, "exited", code=task.code)


def _process(step: Head, own: Head, env: dict[str, str], opened: set[str]) -> subprocess.Popen[bytes]:
    """Start the process of a task.

    Args:
        step: The step.
        own: The task: its ID (`number`), and the files of its streams.
        env: Environment of the task.
        opened: Files that other tasks of the step have opened on this node.

    Raises:
        OSError: the working directory, the program or a file cannot be used.
    """
    os.stat(step["cwd"])  # so that the error names it
    with contextlib.ExitStack() as files:

        def stream(path: str) -> Any:
            if not path:
                return subprocess.PIPE
            fresh = 0 if step["appends"] or path in opened else os.O_TRUNC
            opened.add(path)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | fresh, 0o666)
            files.callback(os.close, fd)
            return fd

        out = stream(own["stdout"])
        return subprocess.Popen(
            step["command"],
            cwd=step["cwd"],
            env=env,
            umask=step["umask"],
            process_group=0,
            stdin=subprocess.PIPE if step["input"] in ("all", own["number"]) else subprocess.DEVNULL,
            stdout=out,
            stderr=out if own["stderr"] and own["stderr"] == own["stdout"] else stream(own["stderr"]),
        )


def _has_exited(pid: int) -> bool:
    """Return whether a child process has exited; it stays a zombie."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
