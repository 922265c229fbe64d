"""The forker: a small process that forks shims for its daemon, because a new interpreter starts slowly.

The isolated interpreter runs this script (`python -I -S forker.py FD`). FD is a packet socket: the daemon
sends the path of an attempt's records and a pipe, and receives the process ID of the shim. The shim is a
child of the daemon, and outlives daemon and forker. When the daemon exits, the forker exits too.
"""

from __future__ import annotations

import codecs
import gc
import os
import socket
import sys

if __name__ == "__main__":  # the isolated interpreter's path lacks this directory and the package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
from rlsched_node.isolation import clone
from rlsched_node.processes import shim

MAX_PATH_BYTES = 1 << 14
_PR_SET_NAME = 15


def serve(control: socket.socket) -> int:
    """Fork shims until the daemon exits."""
    try:
        while _serve_one(control):
            pass
    except ConnectionError:  # the daemon was killed, and had not read the last answer
        pass
    return 0


def _serve_one(control: socket.socket) -> bool:
    """Fork one shim. Return False if the daemon has exited."""
    path, pipes, _, _ = socket.recv_fds(control, MAX_PATH_BYTES, 1)
    if not path:
        return False
    try:
        answer = str(_fork(os.fsdecode(path), pipes[0]))
    except OSError as error:
        answer = f"cannot fork: {error.strerror}"
    for pipe in pipes:
        os.close(pipe)
    control.send(answer.encode())
    return True


def _fork(path: str, pipe: int) -> int:
    """Fork a shim as a child of the daemon. Return its process ID."""
    pid = clone.fork(clone.PARENT)
    if pid < 0:
        return _fork_twice(path, pipe)
    if pid == 0:
        _become_shim(path, pipe)
    return pid


def _fork_twice(path: str, pipe: int) -> int:
    """Fork a shim without clone3. The shim becomes an orphan; the daemon, a subreaper, becomes its parent."""
    told, tells = os.pipe()
    middle = os.fork()
    if middle == 0:
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                os.write(tells, str(pid).encode())
                os._exit(0)
        _become_shim(path, pipe)
    os.close(tells)
    os.waitpid(middle, 0)
    with os.fdopen(told) as file:
        pid = int(file.read() or -1)
    if pid <= 0:
        raise OSError(0, "the second fork failed")
    return pid


def _become_shim(path: str, pipe: int) -> None:
    """Turn the new process into a shim. Never returns.

    The shim gets the same descriptors as after a start with `python shim.py`.
    """
    code = 1
    try:
        os.setsid()
        records = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        wanted = (
            os.open(os.devnull, os.O_RDONLY),
            os.open(os.path.join(path, "output.log"), os.O_WRONLY | os.O_APPEND),
            pipe,
            records,
        )
        high = [os.dup2(fd, 100 + number) for number, fd in enumerate(wanted)]
        for fd, target in zip(high, (0, 1, shim.PIPE_FD, shim.RECORDS_FD), strict=True):
            os.dup2(fd, target, inheritable=target < shim.PIPE_FD)
        os.dup2(1, 2)
        shim.prctl(_PR_SET_NAME, os.path.basename(path).encode())
        code = shim.begin()
    except BaseException as error:
        shim.write_line(f"the shim did not start: {error!r}")
    finally:
        os._exit(code)


if __name__ == "__main__":
    os.closerange(shim.PIPE_FD + 1, 1 << 16)
    for codec in ("ascii", "utf-8"):  # load the codecs once; otherwise each shim would load them
        codecs.lookup(codec)
    gc.freeze()  # objects that exist now stay shared with the shims
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
