"""`srun` in a job of a script with `#SBATCH` lines: runs a command as a step on the job's nodes.

`srun` asks the server of the job's steps to start the tasks, prints their output, and forwards its own
standard input and signals.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import sys
from typing import Final

if __name__ == "__main__":  # the isolated interpreter's path lacks this directory and the package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
from rlsched_node.slurm import outputs
from rlsched_node.slurm.frames import Head, Link
from rlsched_node.slurm.key import AT_VARIABLE, kept_key
from rlsched_node.slurm.loop import READ, Loop
from rlsched_node.slurm.options import USAGE, Parsed, UsageError, parsed
from rlsched_node.slurm.outputs import ERR, OUT

FORWARDED: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)
EXIT_USAGE, EXIT_FAILED = 2, 1
INPUT_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 1 << 16
"""Maximum length of a line that is printed as a whole; longer lines are printed in pieces."""


class Output:
    """Prints the output of tasks, whole lines at a time, so that lines of several tasks do not mix.

    Args:
        fd: Descriptor to which the output is printed.
        label_width: Width of the task ID before each line, characters; None: lines have no task ID.
        only: ID of the only task whose output is printed; None: the output of all tasks is printed.
        is_unbuffered: Print output immediately, also incomplete lines. No effect on lines with a task ID.
    """

    def __init__(self, fd: int, label_width: int | None, only: int | None, *, is_unbuffered: bool) -> None:
        self.fd, self._label_width, self._only, self._is_unbuffered = fd, label_width, only, is_unbuffered
        self._parts: dict[tuple[int, int], bytes] = {}

    def take(self, task: int, stream: int, data: bytes) -> None:
        """Print the complete lines of a piece of output. Store an incomplete line until its end arrives."""
        if self._only not in (None, task):
            return
        text = self._parts.pop((task, stream), b"") + data
        if self._is_unbuffered and self._label_width is None:
            _write(self.fd, text)
            return
        end = text.rfind(b"\n") + 1
        if self._label_width is None:
            end = max(end, text.rfind(b"\r") + 1)  # a progress bar returns to the start of its line
        if len(text) - end > MAX_LINE_BYTES:
            end = len(text)
        if end < len(text):
            self._parts[task, stream] = text[end:]
        if end:
            self._print(task, text[:end])

    def finish(self, task: int) -> None:
        """Print the last, incomplete lines of a task that has ended."""
        for key in [key for key in self._parts if key[0] == task]:
            self._print(task, self._parts.pop(key))

    def _print(self, task: int, text: bytes) -> None:
        if self._label_width is not None:
            label = f"{task:{self._label_width}}: ".encode()
            text = b"".join(label + line + b"\n" for line in text.removesuffix(b"\n").split(b"\n"))
        _write(self.fd, text)


class Client:
    """A running `srun`.

    Args:
        loop: The loop.
        asked: The parsed command line.
        environ: The environment.
    """

    def __init__(self, loop: Loop, asked: Parsed, environ: dict[str, str]) -> None:
        self._loop, self._asked, self._environ = loop, asked, environ
        self._options = asked.options
        self.code: int | None = None
        self._outputs: dict[int, Output] = {}
        self._has_started = False
        self._input: str | int = "none"
        host, _, port = environ[AT_VARIABLE].rpartition(":")
        self._link = Link(
            loop,
            socket.create_connection((host, int(port)), 10.0),
            kept_key(environ),
            is_server=False,
            receive=self._take_message,
            closed=self._lose,
        )
        attempt = f"{environ['RLSCHED_JOB']}.{environ['RLSCHED_ATTEMPT']}"
        self._link.send({"role": "srun", "attempt": attempt})

    def run(self) -> int:
        """Run the step to its end. Return its exit code."""
        self._loop.on_signal = self._forward
        while self.code is None:
            self._loop.turn()
        return self.code

    def _forward(self, number: int) -> None:
        """Forward a signal to the tasks. If the tasks have not started yet, the signal ends this process."""
        if self._has_started:
            self._link.send({"do": "signal", "number": number})
        elif number != signal.SIGCONT:
            self.code = 128 + number

    def _lose(self, why: str) -> None:
        if self.code is None:
            _complain(f"error: the server of the job's steps has left: {why or 'it has ended'}")
            self.code = EXIT_FAILED

    def _take_message(self, head: Head, data: bytes) -> None:
        """Handle a message of the server."""
        match head["is"]:
            case "welcome":
                self._link.send(self._request())
            case "started":
                self._has_started = True
                self._open_outputs(head["step"], head["tasks"])
                self._watch_input()
            case "output":
                self._outputs[head["stream"]].take(head["task"], head["stream"], data)
            case "exited":
                self._show_end(head)
            case "taken":
                self._watch_input()
            case "note":
                if not self._options["quiet"]:
                    _write(2, data)
            case "refused":
                _complain(f"error: {head['why']}")
                self.code = head["code"]
            case "ended":
                self.code = head["code"]

    def _request(self) -> Head:
        self._input = self._input_to()
        own, only = _exports(self._options["export"], self._environ)
        return {
            "do": "step",
            "rank": int(self._environ["RLSCHED_NODE_RANK"]),
            "options": self._options,
            "command": self._asked.command,
            "cwd": os.getcwd(),
            "umask": _umask(),
            "env": self._environ,
            "set": own,
            "only": only,
            "input": self._input,
        }

    # ---- output -----------------------------------------------------------------------------------

    def _open_outputs(self, step: int, num_tasks: int) -> None:
        """Open the files of `--output` and `--error` that all tasks share."""
        width = len(str(num_tasks - 1)) if self._options["label"] else None
        values = outputs.step_values(self._environ, step)
        made: dict[str, Output] = {}
        for stream, pattern in zip((OUT, ERR), outputs.patterns(self._options), strict=True):
            path = outputs.file_of(str(pattern), values) if outputs.is_of_srun(pattern) else ""
            only = int(pattern) if pattern is not None and pattern.isdecimal() else None
            if path not in made:
                fd = self._open(path) if path else stream
                made[path or str(stream)] = Output(fd, width, only, is_unbuffered=self._options["unbuffered"])
            self._outputs[stream] = made[path or str(stream)]

    def _open(self, path: str) -> int:
        how = os.O_APPEND if self._options["open_mode"] == "append" else os.O_TRUNC
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o666)
        except OSError as error:
            _complain(f"error: {path}: {error.strerror}")
            self.code = EXIT_FAILED
            return os.open(os.devnull, os.O_WRONLY)

    def _show_end(self, head: Head) -> None:
        """Print the remaining output of an ended task and, if the task failed, how it ended."""
        for output in self._outputs.values():
            output.finish(head["task"])
        code = head["code"]
        if code and not head["is_lost"]:
            how = signal.strsignal(code - 128) if code > 128 else None
            said = how if how is not None else f"Exited with exit code {code}"
            _complain(f"error: {head['node']}: task {head['task']}: {said}")

    # ---- input ------------------------------------------------------------------------------------

    def _input_to(self) -> str | int:
        """Return which tasks get the standard input: `all`, `none`, or the ID of one task.

        If `--input` names a file, the file becomes the standard input.
        """
        to = self._options["input"]
        if to is not None and to.isdecimal():
            return int(to)
        if to == "none" or (to in (None, "all") and _is_nothing(0)):
            return "none"
        if to not in (None, "all"):
            fd = os.open(to, os.O_RDONLY)
            os.dup2(fd, 0)
            os.close(fd)
        return "all"

    def _watch_input(self) -> None:
        if self._input == "none":
            return
        try:
            self._loop.watch(0, READ, self._read_input)
        except PermissionError:  # a file is always ready
            self._loop.after(0.0, self._read_input)

    def _read_input(self) -> None:
        """Send a piece of the standard input; the next follows when the tasks have read it."""
        self._loop.watch(0, 0, self._read_input)
        try:
            data = os.read(0, INPUT_BYTES)
        except OSError:
            data = b""
        self._link.send({"do": "input"}, data)


def main(words: list[str], environ: dict[str, str]) -> int:
    """Run `srun`. Return its exit code: the highest exit code of the tasks."""
    _open_standard_streams()
    if not environ.get(AT_VARIABLE):
        return _run_another(words, environ)
    try:
        asked = parsed(words, environ)
    except UsageError as error:
        _complain(f"error: {error}")
        return EXIT_USAGE
    if asked.wants_help:
        print(USAGE)
        return 0
    if not asked.command:
        _complain("error: expected a command")
        return EXIT_USAGE
    if asked.ignored and not asked.options["quiet"]:
        _complain(f"note: ignored, has no effect in rlsched: {', '.join(asked.ignored)}")
    loop = Loop()
    loop.listen(*(number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN))
    try:
        return Client(loop, asked, environ).run()
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError as error:
        _complain(
            f"error: {error.filename or 'the server of the job' + chr(39) + 's steps'}: {error.strerror}"
        )
        return EXIT_FAILED


def _run_another(words: list[str], environ: dict[str, str]) -> int:
    """Run Slurm's own `srun`: this process has rlsched's `srun` in PATH, but runs in no job with steps."""
    mine = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "srun")
        if os.path.realpath(folder) != os.path.realpath(mine) and os.access(path, os.X_OK):
            os.execve(path, ["srun", *words], environ)
    _complain("error: expected a job of a script with #SBATCH lines; in other jobs there are no steps")
    return EXIT_USAGE


def _exports(text: str, environ: dict[str, str]) -> tuple[dict[str, str], list[str] | None]:
    """Return the variables that `--export` sets, and the names of variables that it passes on; None: all.

    Args:
        text: `ALL`, `NONE`, or names and NAME=VALUE separated by commas.
        environ: The environment.
    """
    parts = [part for part in text.split(",") if part]
    own = dict(part.split("=", 1) for part in parts if "=" in part)
    names = [part for part in parts if "=" not in part]
    if "ALL" in names:
        return own, None
    return own, [name for name in names if name in environ]


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _is_nothing(fd: int) -> bool:
    """Return whether a descriptor is /dev/null."""
    found = os.fstat(fd)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev


def _open_standard_streams() -> None:
    """Open standard streams that the caller has closed, so that no other file gets descriptor 0, 1 or 2."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _write(fd: int, data: bytes) -> None:
    """Write all of the data, even if the descriptor is non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        _write(2, f"srun: {text}\n".encode(errors="replace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ)))
