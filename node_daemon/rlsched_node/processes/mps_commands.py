"""Commands to an MPS control daemon. The shim imports this module, so it imports only the standard library.

Only this module runs `nvidia-cuda-mps-control`, whose interface changes between versions. Each command is a
separate process with a time-out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

PROGRAM: Final = "nvidia-cuda-mps-control"
TERMINATE_S: Final = 2.0
"""Maximum time by which `terminate_clients` delays SIGKILL, seconds. Less than `HARD_KILL_AFTER_S`."""


class Account(NamedTuple):
    """Account that runs the MPS control program, if it is not the account of this process."""

    uid: int
    gid: int


class CommandError(Exception):
    """The MPS control program cannot be run, fails, or does not answer in time."""


def run(
    program: str,
    env: Mapping[str, str],
    account: Account | None,
    *,
    option: str = "",
    command: str = "",
    timeout_s: float,
    began: Callable[[int], object] | None = None,
) -> str:
    """Run `nvidia-cuda-mps-control` with an option and a line on its standard input. Return its output.

    The output goes to a file, because a daemon that the program starts would keep a pipe open.

    Args:
        program: Path of the program.
        env: Complete environment of the program.
        account: Account that runs the program; None: the account of this process.
        option: Argument of the program; "": no argument.
        command: Line on the program's standard input; "": empty input.
        timeout_s: Time-out, seconds.
        began: Function that is called with the process ID of the program; None: no function.

    Raises:
        CommandError: the program cannot be run, fails, or does not answer in time.
    """
    import subprocess  # here: a new shim must start fast
    import tempfile

    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [PROGRAM, *([option] if option else [])],
                executable=program,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd="/",
                start_new_session=True,
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else [],
            )
        except OSError as error:
            raise CommandError(f"cannot run {PROGRAM}: {error.strerror}") from error
        if began is not None:
            began(process.pid)
        try:
            assert process.stdin is not None
            with contextlib.suppress(OSError), process.stdin as stdin:
                stdin.write(f"{command}\n".encode() if command else b"")
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            what = command or option
            raise CommandError(f"{PROGRAM}: no answer to {what!r} within {timeout_s:g} s") from error
        output.seek(0)
        text = output.read(1 << 16).decode(errors="replace")
    if code != 0:
        last = text.strip().splitlines()[-1:] or [f"exit code {code}"]
        raise CommandError(f"{PROGRAM}: {last[0][:200]}")
    return text


def terminate_clients(mps: Mapping[str, Any], pids: Collection[int], within_s: float) -> int:
    """End the GPU work of MPS clients before they get SIGKILL.

    According to NVIDIA, a client that is killed while it has work on the GPU can leave the other clients in
    an undefined state. `terminate_client` ends this work.

    Args:
        mps: `MpsTerms` of the launch record, as JSON: `program`, `env`, `uid` and `gid`.
        pids: Processes to be killed; processes that are not clients are skipped.
        within_s: Maximum time of all commands together, seconds.

    Returns:
        Number of clients whose work was ended.

    Raises:
        CommandError: a command fails or the time is up; the remaining clients are unchanged.
    """
    until_s = time.monotonic() + within_s
    account = None if mps.get("uid") is None else Account(mps["uid"], mps["gid"])

    def ask(command: str) -> str:
        left_s = until_s - time.monotonic()
        if left_s <= 0.0:
            raise CommandError(f"{PROGRAM}: no time left for {command!r}")
        return run(mps["program"], mps["env"], account, command=command, timeout_s=left_s)

    ended = 0
    for server in sorted(numbers(ask("get_server_list"))):
        for client in sorted(numbers(ask(f"get_client_list {server}")) & set(pids)):
            ask(f"terminate_client {server} {client}")
            ended += 1
    return ended


def numbers(text: str) -> frozenset[int]:
    """Return the process IDs in a text, one per line; other lines are messages."""
    return frozenset(int(line) for line in text.split() if line.isdigit())
