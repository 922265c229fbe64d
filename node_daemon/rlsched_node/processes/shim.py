"""The shim: the process between the node daemon and one rank of a job.

The shim outlives the daemon, runs the command in its own process group, enforces the time limit, and writes
the exit code to disk.

The isolated interpreter runs this file as a plain script (`python -I -S shim.py LABEL`), so it imports only
the standard library, and modules of this package with the same restriction. Shim and daemon communicate by
files in the directory of the attempt's records. The shim receives this directory as an open descriptor, so
that neither its command line nor the job's environment shows the path:

    launch.json   in:  the command and its conditions: `LaunchRecord` in store.py
    kill          in:  grace_s, reason; read when SIGTERM arrives
    limit         in:  time_limit_s, replaces the value of launch.json; read at the start and at SIGUSR1
    pid           out: identity of this process; made with link(2), so exactly one side can claim an attempt
    exit          out: exit_code, reason, ended_s, ran_s, has_left; made from `exit.tmp`, whose space was
                  reserved

A running daemon also receives a byte on a pipe when the attempt is claimed, and the exit record when the
attempt ends. It prefers the pipe, because a job of the same user could write the file.

Exit codes: the command's exit code; 128 + n if signal n ended the command; 124 at the time limit; 127 if the
command does not exist; 126 if the command or its working directory cannot be used. A failed command gets
the reason `out_of_memory` if the kernel has killed processes of its group because memory was short, and
`gpu_out_of_memory` if its last output reports that a GPU was out of memory. A command that never began,
because the node had no free process or no memory for it, gets the reason `not_started` and exit code 126.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":  # the isolated interpreter's path lacks this directory and the package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
from rlsched_node import records
from rlsched_node.isolation.cgroup import Cgroup
from rlsched_node.lease_file import Fence, since_boot_s
from rlsched_node.processes import shortage
from rlsched_node.processes.mps_commands import TERMINATE_S, CommandError, terminate_clients
from rlsched_node.processes.output import OutputBound, tells_of_gpu_memory
from rlsched_node.processes.streams import LOG, Streams, copied_bytes, copies_of
from rlsched_node.records import claim, exit_record, write_exit

EXIT_TIME_LIMIT = 124
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_KILLED = 143
OUT_OF_MEMORY = "out_of_memory"
GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
PIPE_FD = 3
"""Descriptor of the pipe on which a shim reports its claim and the end of its rank to the daemon."""
RECORDS_FD = 4
"""Descriptor of the directory with the attempt's records."""
CLAIMED = b"."
UMASK_VARIABLE = "RLSCHED_UMASK"
DEFAULT_GRACE_S = 30.0
"""Copy of `rlsched.wire.messages.DEFAULT_GRACE_S`, for launch records without a grace period."""
STRAGGLER_GRACE_S = 2.0
GIVE_UP_S = 5.0
"""Maximum time from the first SIGKILL, seconds; then the shim leaves remaining processes to the daemon."""
KILL_ROUNDS = 10
"""Maximum number of listings of the processes to kill in one call of `kill_all`."""
LOOK_AT_LIMIT = signal.SIGUSR1
SIGNALS = {
    *(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    LOOK_AT_LIMIT,
}
_IGNORED = [
    number
    for number in signal.valid_signals()
    if signal.getsignal(number) in (signal.SIG_IGN, signal.default_int_handler)
]
"""Signals whose default action is restored for the command."""
_set_handler = getattr(signal.signal, "__wrapped__", signal.signal)
_set_mask = getattr(signal.pthread_sigmask, "__wrapped__", signal.pthread_sigmask)
"""`pthread_sigmask` without its look-up of names, because a shim must start fast."""
_OOM_SCORE = "/proc/self/oom_score_adj"
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def boot_id() -> str:
    """Return the kernel's ID of this boot; "" if it is unknown."""
    try:
        return records.read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
    except OSError:
        return ""


def read_stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (the state) on; None if there is no such process."""
    try:
        return records.read(f"/proc/{pid}/stat").rpartition(b")")[2].decode("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(pid: int) -> set[int]:
    """Return the IDs of all descendants of a process."""
    children: dict[str, list[int]] = {}
    for one in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        fields = read_stat(one)
        if fields is not None:
            children.setdefault(fields[1], []).append(one)
    found, parents = set[int](), [pid]
    while parents:
        below = children.get(str(parents.pop()), [])
        found.update(below)
        parents += below
    return found


def start_ticks(pid: int) -> int | None:
    """Return the clock ticks from boot to a process's start; None if it has exited or is a zombie."""
    fields = read_stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def kill_all(find: Callable[[], set[int]]) -> int:
    """SIGKILL processes, also if they fork faster than they are listed. Return how many got SIGKILL.

    Listed processes are first stopped with SIGSTOP, until a listing has no new process.

    Args:
        find: Function that lists the processes, called in each round.
    """
    found, stopped = find(), set[int]()
    for _ in range(KILL_ROUNDS):
        if found <= stopped:
            break
        for pid in found - stopped:
            _kill(os.kill, pid, signal.SIGSTOP)
        stopped |= found
        found = find()
    for pid in found:
        _kill(os.kill, pid, signal.SIGKILL)
    return len(found)


def write_line(line: str) -> None:
    """Write one line to the job's output; it is lost if the disk is full."""
    with contextlib.suppress(OSError):
        os.write(2, f"rlsched: {line}\n".encode(errors="replace"))


def prctl(option: int, value: int | bytes) -> bool:
    """Call prctl(2). Return whether it succeeded."""
    try:
        return bool(_libc.prctl(option, value, 0, 0, 0) == 0)
    except AttributeError:
        return False


def become_subreaper() -> bool:
    """Make this process the parent of orphaned descendants. Return whether the kernel supports that.

    Without support, a killed shim leaves processes behind.
    """
    return prctl(_PR_SET_CHILD_SUBREAPER, 1)


def give_up_oom_protection() -> None:
    """Drop the OOM protection that was inherited from the daemon, because the job would inherit it too."""
    with contextlib.suppress(OSError, ValueError):
        if int(records.read(_OOM_SCORE)) < 0:
            records.write(_OOM_SCORE, b"0")


def set_limits(setup: dict[str, Any]) -> None:
    """Set the limits for the command and its descendants (`ProcessSetup`). Skips limits that fail."""
    if setup.get("cpus"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, setup["cpus"])
    for kind, name in ((resource.RLIMIT_DATA, "data_bytes"), (resource.RLIMIT_NPROC, "processes")):
        if setup.get(name):
            most = resource.getrlimit(kind)[1]
            bound = setup[name] if most == resource.RLIM_INFINITY else min(setup[name], most)
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (bound, bound))
    if setup.get("oom_score_adj"):
        with contextlib.suppress(OSError):
            records.write_existing(_OOM_SCORE, str(setup["oom_score_adj"]).encode())


def set_umask(env: dict[str, str]) -> None:
    """Set the umask of the submitter, `RLSCHED_UMASK`. Keeps the present umask if that value is not octal."""
    text = env.get(UMASK_VARIABLE)
    if text is None:
        return
    if not text or len(text) > 4 or text.strip("01234567"):
        write_line(f"{UMASK_VARIABLE}: expected an octal number such as 0022, got {text!r}; not used")
        return
    os.umask(int(text, 8) & 0o777)


def become_user(launch: dict[str, Any]) -> None:
    """Become the user that runs the command, and set the submitter's umask.

    Raises:
        OSError: this process may not become another user.
    """
    user = launch.get("user")
    if user:
        if user.get("umask") is not None:
            os.umask(user["umask"])
        os.initgroups(user["name"], user["gid"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    set_umask(launch["env"])


def run_command(launch: dict[str, Any], streams: Streams, shortage_fd: int) -> None:
    """Execute the command; called in the child process. Never returns.

    Args:
        launch: The launch record.
        streams: Output streams of the rank.
        shortage_fd: Pipe on which a lack of processes or memory is reported (`shortage.py`). It stays open
            in the command only if rlsched's own launcher runs the command.
    """
    code = EXIT_NOT_EXECUTABLE
    try:
        os.setpgid(0, 0)
        streams.redirect()
        give_up_oom_protection()
        set_limits(launch.get("setup") or {})
        become_user(launch)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in _IGNORED:
            _set_handler(number, signal.SIG_DFL)
        _set_mask(signal.SIG_SETMASK, ())
        command, env = launch["command"], launch["env"]
        try:
            os.chdir(launch["cwd"])
        except OSError as error:
            write_line(f"cannot enter the working directory {launch['cwd']}: {error.strerror}")
            shortage.report(shortage_fd, error)
            os._exit(code)
        if launch.get("has_launcher"):
            os.dup2(shortage_fd, shortage.LAUNCHER_FD)
        try:
            _execute(command, env)
        except (FileNotFoundError, NotADirectoryError):
            code = EXIT_NOT_FOUND
            write_line(f"{command[0]}: command not found")
        except OSError as error:
            write_line(f"{command[0]}: cannot be executed: {error.strerror}")
            shortage.report(shortage_fd, error)
    except BaseException as error:
        write_line(f"cannot start the command: {error!r}")
        if isinstance(error, OSError):
            shortage.report(shortage_fd, error)
    finally:
        os._exit(code)


def _execute(command: list[str], env: dict[str, str]) -> None:
    """Execute a command like `os.execvpe`, which is slower because it imports `warnings`.

    Raises:
        OSError: the command cannot be executed. The error is from the first directory of PATH that has the
            command.
    """
    name = command[0]
    if "/" in name:
        os.execve(name, command, env)
    found: OSError | None = None
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(directory, name), command, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            found = found or error
    raise found or missing


class ProcessGroup:
    """The command's process group, and the command's orphans, whose parent is this shim as a subreaper."""

    def __init__(self, launch: dict[str, Any], fence: Fence) -> None:
        self.reason = ""
        self.kill_at_s = math.inf
        self.began_s = time.monotonic()
        self.grace_s = float(launch.get("grace_s", DEFAULT_GRACE_S))
        self.limit_s = self.limit_at_s = math.inf
        self.set_limit(launch["time_limit_s"])
        self.read_limit()
        self.fence = fence
        self.streams = Streams(launch)
        is_copied = any(copy.source == LOG for copy in copies_of(launch))
        copied = functools.partial(copied_bytes, LOG) if is_copied else None
        self.output = OutputBound(LOG, launch.get("max_output_bytes"), copied)
        self.cgroup = Cgroup(launch.get("cgroup", ""))
        self.exit_code: int | None = None
        self.mps = launch.get("mps")
        self.told: set[int] = set()  # processes that got SIGTERM; the command's ID represents its group
        self.pid = 0
        self._shortage_fd = -1

    def start(self, launch: dict[str, Any]) -> bool:
        """Execute the command in a new process. Return False if the node has no process or memory for it.

        Raises:
            OSError: the process cannot be created for another reason.
        """
        self._shortage_fd, reports_fd = os.pipe()
        try:
            self.pid = self.cgroup.fork()
        except OSError as error:
            if not shortage.is_shortage(error):
                raise
            write_line(f"cannot create a process for the command: {error.strerror}")
            return False
        if self.pid == 0:
            run_command(launch, self.streams, reports_fd)
        os.close(reports_fd)
        with contextlib.suppress(OSError):  # the child has set its group itself, and may run the command now
            os.setpgid(self.pid, self.pid)
        return True

    def never_began(self) -> bool:
        """Return whether a shortage on the node prevented the command. Called once, after its process."""
        return shortage.was_reported(self._shortage_fd)

    def reap(self) -> bool:
        """Reap the processes that have ended. Return whether child processes are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = 128 - code if code < 0 else code

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group, and to orphans that left the group.

        Each process gets SIGTERM only once: a second one would interrupt a handler that saves a checkpoint.
        """
        told = self.told if number == signal.SIGTERM else set()
        mine, group = str(os.getpid()), str(self.pid)
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            fields = read_stat(pid)
            if fields is None or fields[1] != mine or fields[2] == group or fields[0] in "ZX":
                continue
            if pid not in told:
                _kill(os.kill, pid, number)
                told.add(pid)
        if self.pid not in told:
            _kill(os.killpg, self.pid, number)
            told.add(self.pid)

    def end(self, reason: str, grace_s: float) -> None:
        """Send SIGTERM now, SIGKILL after `grace_s` seconds. Another call can only make SIGKILL earlier."""
        if not self.reason:
            self.reason = reason
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        self.kill_at_s = min(self.kill_at_s, time.monotonic() + grace_s)

    def end_rest(self) -> None:
        """End the processes that a finished command left.

        The grace period is `STRAGGLER_GRACE_S`. If the rank was already being ended, the rank's grace period
        continues instead.
        """
        self.limit_at_s = math.inf
        if not self.reason:
            self.end("stragglers", STRAGGLER_GRACE_S)
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def step(self) -> None:
        """Wait for the next signal or deadline, and handle it."""
        until_s = (
            min(self.limit_at_s, self.kill_at_s, self.output.look_at_s, self.streams.look_at_s)
            - time.monotonic()
        )
        info = signal.sigtimedwait(SIGNALS, min(max(until_s, 0.0), self.fence.look_s))
        if info is not None and info.si_signo == LOOK_AT_LIMIT:
            self.read_limit()
        elif info is not None and info.si_signo != signal.SIGCHLD:
            order = self.read_kill()
            self.end(str(order.get("reason", "killed")), float(order.get("grace_s", self.grace_s)))
        grace_s = self.fence.closed_grace_s()
        if grace_s is not None:
            write_line(
                "no broker has answered for --lost-after; this job may start elsewhere, so it ends here"
            )
            self.end("fenced", grace_s)
        self.streams.merge()
        self.output.enforce()
        now_s = time.monotonic()
        if now_s >= self.limit_at_s:
            self.limit_at_s = math.inf
            write_line(f"time limit of {self.limit_s:g} s reached: ending the job")
            self.end("time_limit", self.grace_s)
        if now_s >= self.kill_at_s:
            self.end_gpu_work()
            self.cgroup.kill()
            kill_all(functools.partial(descendants, os.getpid()))
            self.signal(signal.SIGKILL)
            self.kill_at_s = now_s + 0.2

    def end_gpu_work(self) -> None:
        """Under MPS, end the rank's GPU work before the first SIGKILL.

        SIGKILL during GPU work could harm other ranks on the GPU. This method takes at most
        `TERMINATE_S`; with `--lost-after`, at most half of `Fence.margin_s`.
        """
        mps, self.mps = self.mps, None
        if mps:
            within_s = min(TERMINATE_S, self.fence.margin_s / 2)
            try:
                terminate_clients(mps, descendants(os.getpid()), within_s)
            except (CommandError, OSError) as error:
                write_line(f"SIGKILL before MPS ended the GPU work of this job: {error}")

    def set_limit(self, limit_s: float | None) -> None:
        """Set the time limit, seconds from the rank's start; None: no limit.

        Does nothing if the rank is being ended.
        """
        if not self.reason:
            self.limit_s = math.inf if limit_s is None else limit_s
            self.limit_at_s = self.began_s + self.limit_s

    def read_limit(self) -> None:
        """Apply the last time limit that the daemon has ordered, if any."""
        try:
            limit_s = json.loads(records.read("limit"))["time_limit_s"]
            self.set_limit(None if limit_s is None else float(limit_s))
        except (OSError, ValueError, TypeError, KeyError):
            return

    def read_kill(self) -> dict[str, Any]:
        """Return the daemon's order to end the rank; empty if the daemon has written no order."""
        try:
            order = json.loads(records.read("kill"))
        except (OSError, ValueError):
            return {}
        return order if isinstance(order, dict) else {}


def _kill(send: Any, target: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)


def supervise(launch: dict[str, Any]) -> tuple[int, str, bool]:
    """Run the command to its end, and end all its processes.

    Returns:
        Exit code, reason, and whether processes that could not be ended are left.
    """
    fence = Fence(
        launch.get("lease", ""), launch.get("lost_after_s", 0.0), launch.get("grace_s", DEFAULT_GRACE_S)
    )
    if fence.closed_grace_s() is not None:
        return EXIT_KILLED, "fenced", False
    rank = ProcessGroup(launch, fence)
    if not rank.start(launch):
        rank.streams.close()
        return EXIT_NOT_EXECUTABLE, shortage.NOT_STARTED, False
    while True:
        left = rank.reap()
        if rank.exit_code is not None:
            break
        rank.step()
    rank.streams.merge(is_last=True)
    exit_code = EXIT_TIME_LIMIT if rank.reason == "time_limit" else rank.exit_code
    reason = rank.reason
    if rank.never_began() and not reason:
        reason = shortage.NOT_STARTED
    elif exit_code and not reason and rank.cgroup.oom_kills():
        reason = OUT_OF_MEMORY
        write_line("the kernel ended a process of this job because memory was short (`rlsched submit --mem`)")
    elif exit_code and not reason and launch["gpus"] and tells_of_gpu_memory(LOG):
        reason = GPU_OUT_OF_MEMORY
    if left:
        rank.end_rest()
    give_up_s = rank.kill_at_s + GIVE_UP_S
    while (left := rank.reap()) and time.monotonic() < give_up_s:
        rank.step()
    if left:
        write_line("some processes of this job survive SIGKILL; its GPUs are in use until they have exited")
    rank.streams.close()
    rank.output.enforce(is_last=True)
    return exit_code, reason, left


def send_to_daemon(data: bytes) -> None:
    """Send data to the daemon that started this shim. A later daemon reads the shim's files instead."""
    with contextlib.suppress(OSError):
        os.write(PIPE_FD, data)


def main(records_fd: int) -> int:
    """Claim the attempt, run it and record its end. The caller has blocked `SIGNALS`."""
    os.fchdir(records_fd)
    os.close(records_fd)
    mine = os.getpid()
    try:
        launch = json.loads(records.read("launch.json"))
        if not claim(".", {"pid": mine, "start_ticks": start_ticks(mine), "boot_id": boot_id()}):
            return 0
    except FileNotFoundError:  # a later daemon has dropped the attempt, and can start it with another shim
        return 0
    send_to_daemon(CLAIMED)
    become_subreaper()
    began_s = since_boot_s()
    exit_code, reason, has_left = supervise(launch)
    record = exit_record(exit_code, reason, round(since_boot_s() - began_s, 3), has_left=has_left)
    try:
        write_exit(".", record)
    except OSError as error:
        write_line(f"the end could not be written to disk: {error.strerror}")
    send_to_daemon(record)
    return 0


def begin() -> int:
    """Run the shim. Its descriptors `PIPE_FD` and `RECORDS_FD` must be open. Return the exit code."""
    _set_mask(signal.SIG_BLOCK, SIGNALS)
    os.closerange(RECORDS_FD + 1, 1 << 16)  # descriptors that the daemon's own parent may have left open
    os.set_inheritable(PIPE_FD, False)
    return main(RECORDS_FD)


if __name__ == "__main__":
    sys.exit(begin())
