"""One MPS control daemon: its processes, its commands and the log of its servers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rlsched.errors import RlschedError
from rlsched_node.isolation.user import JobUser
from rlsched_node.processes import shim
from rlsched_node.processes.mps_commands import PROGRAM, Account, CommandError, numbers, run
from rlsched_node.processes.store import MpsTerms

SERVER: Final = "nvidia-cuda-mps-server"
PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
START_S: Final = 3.0
"""Time-out for the start of a control daemon, seconds. The node daemon's loop waits for the start."""
COMMAND_S: Final = 5.0
"""Time-out for a command, seconds."""
QUIT_S: Final = 5.0
"""Time-out for the exit of a control daemon after `quit`, and again after SIGTERM, seconds."""
MOST_SOCKET_BYTES: Final = 107
"""Maximum length of a Unix socket's path, bytes."""
LONGEST_SOCKET: Final = "control_privileged"
_COMM: Final = PROGRAM[:15]
_POLL_S: Final = 0.02
_EMPTY_LISTINGS: Final = 3
"""After this number of consecutive listings of /proc without MPS processes, all MPS processes are assumed to
have ended. A single listing can miss a daemon that is just being forked."""
_MOST_LOG_BYTES: Final = 1 << 20
_FATAL = re.compile(rb"fatal (?:exception|fault|error)", re.IGNORECASE)
_CLIENT = re.compile(rb"client[^\n]*?\bpid:?\s*(\d+)", re.IGNORECASE)


class MpsError(RlschedError):
    """The control daemon cannot be started, or does not answer."""


class MpsProcesses(NamedTuple):
    """Process IDs of a control daemon (0: it does not run) and its servers.

    The processes are found by their name and their pipe directory.
    """

    control: int
    servers: frozenset[int]


class MpsControl:
    """A control daemon with its own directories, which serves the jobs of one user account.

    Args:
        directory: Directory of this daemon; `pipe` and `log` in it belong to the account, with mode 0700.
        uuids: UUIDs of the GPUs that the clients share; MPS renumbers indices.
        user: Account of the clients, which also runs the daemon; None: the account of this process.
        inherited: Environment from which `PATH`, `LD_LIBRARY_PATH` and `LANG` are taken.
        spared: Process IDs that the node daemon never treats as processes of a rank. This class adds the IDs
            of the control daemon, its servers and its commands.

    Attributes:
        servers: Process IDs of the control daemon's servers, as listed in its last answer.
    """

    def __init__(
        self,
        directory: Path,
        uuids: Sequence[str],
        user: JobUser | None,
        inherited: Mapping[str, str],
        spared: set[int],
    ) -> None:
        self.pipes, self.logs = directory / "pipe", directory / "log"
        self._user, self._spared = user, spared
        self.servers = frozenset[int]()
        self._read_to = 0
        kept = {name: inherited[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in inherited}
        self._env = kept | {
            PIPES: str(self.pipes),
            LOGS: str(self.logs),
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        }

    def start(self) -> int:
        """Start the control daemon, and return its process ID.

        Raises:
            MpsError: the daemon does not run after `START_S`, or cannot be started.
        """
        try:
            for path in (self.pipes, self.logs):
                os.mkdir(path, 0o700)
                if self._user is not None:
                    os.chown(path, self._user.uid, self._user.gid)
        except OSError as error:
            raise MpsError(f"cannot make {error.filename}: {error.strerror}") from error
        until_s = time.monotonic() + START_S
        self._run("-d", "", START_S)
        while time.monotonic() < until_s:
            found = find_processes(self.pipes).control
            self._spared.update({found} - {0})
            if found and (self.pipes / "control").exists():
                return found
            time.sleep(_POLL_S)
        raise MpsError(f"{PROGRAM} -d ended, and no control daemon runs")

    def clients(self) -> frozenset[int]:
        """Return the process IDs of all clients of the daemon's servers.

        Raises:
            MpsError: the daemon does not answer.
        """
        self.servers = servers = numbers(self._run("", "get_server_list", COMMAND_S))
        self._spared.update(servers)
        found = frozenset[int]()
        for server in servers:
            found |= numbers(self._run("", f"get_client_list {server}", COMMAND_S))
        return found

    def quit(self) -> bool:
        """End the control daemon and its servers: `quit`, then SIGTERM, then SIGKILL.

        Takes 20 seconds at most. Returns whether all have ended.
        """
        runs = find_processes(self.pipes).control > 0
        if runs:
            with contextlib.suppress(MpsError):
                self._run("", "quit", COMMAND_S)
        for number in (*([0] if runs else []), signal.SIGTERM, signal.SIGKILL):
            until_s, empty = time.monotonic() + QUIT_S, 0
            while time.monotonic() < until_s or 0 < empty < _EMPTY_LISTINGS:
                found = find_processes(self.pipes)
                left = {found.control, *found.servers} - {0}
                for pid in left if number else ():
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
                empty = 0 if left else empty + 1
                if empty == _EMPTY_LISTINGS:
                    return True
                time.sleep(_POLL_S)
        return False

    def new_faults(self) -> list[int]:
        """Return the fatal exceptions that the servers have logged since the last call.

        Each entry is the process ID of the client that caused the exception; 0 if the log does not name it.
        NVIDIA does not document the wording: any line with `fatal exception`, `fatal fault` or `fatal error`
        is taken.
        """
        try:
            with (self.logs / "server.log").open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = max(self._read_to if self._read_to <= size else 0, size - _MOST_LOG_BYTES)
                file.seek(begin)
                whole, end, _ = file.read(size - begin).rpartition(b"\n")
        except OSError:
            return []
        self._read_to = begin + len(whole) + len(end)
        found = []
        for line in whole.splitlines():
            if _FATAL.search(line):
                client = _CLIENT.search(line)
                found.append(0 if client is None else int(client[1]))
        return found

    @property
    def terms(self) -> MpsTerms:
        """The program, environment and account with which a shim sends commands to this control daemon."""
        account = self._account
        return MpsTerms(
            program=self._program,
            env=self._env,
            uid=None if account is None else account.uid,
            gid=None if account is None else account.gid,
        )

    @property
    def _program(self) -> str:
        return shutil.which(PROGRAM, path=self._env.get("PATH")) or PROGRAM

    @property
    def _account(self) -> Account | None:
        user = self._user
        return None if user is None or user.uid == os.geteuid() else Account(user.uid, user.gid)

    def _run(self, option: str, command: str, timeout_s: float) -> str:
        """Run the control program with an option and a line on its standard input. Return its output."""
        began: list[int] = []

        def spare(pid: int) -> None:
            began.append(pid)
            self._spared.add(pid)

        try:
            return run(
                self._program,
                self._env,
                self._account,
                option=option,
                command=command,
                timeout_s=timeout_s,
                began=spare,
            )
        except CommandError as error:
            raise MpsError(str(error)) from error
        finally:
            self._spared.difference_update(began)


def is_installed(path: str | None) -> bool:
    """Return whether a search path contains the control program; None: the search path of this process."""
    return shutil.which(PROGRAM, path=path) is not None


def find_processes(pipes: Path) -> MpsProcesses:
    """Find the control daemon and the servers that use a pipe directory."""
    control, servers = 0, set[int]()
    for pid, found, args in _all_mps():
        if found == os.fsencode(pipes):
            if b"-d" in args:
                control = pid
            elif any(os.path.basename(arg) == SERVER.encode() for arg in args):
                servers.add(pid)
    return MpsProcesses(control, frozenset(servers))


def pipes_of(pid: int) -> str | None:
    """Return the pipe directory of a process; None if the process is not of MPS, or not readable."""
    fields = shim.read_stat(pid)
    if fields is None or fields[0] in "ZX" or not _is_named(pid):
        return None
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    mark = f"{PIPES}=".encode()
    return next((os.fsdecode(entry[len(mark) :]) for entry in entries if entry.startswith(mark)), None)


def _all_mps() -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Yield process ID, pipe directory and arguments of each MPS process on this machine."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (pipes := pipes_of(int(name))) is not None:
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                yield int(name), os.fsencode(pipes), file.read().split(b"\0")


def _is_named(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip() == _COMM
    except OSError:
        return False
