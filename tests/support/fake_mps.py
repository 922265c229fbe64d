"""A fake `nvidia-cuda-mps-control` for tests: `install` puts it, its server and a client into a directory.

The control daemon listens on a Unix socket in its pipe directory, starts a server for the first client, and
answers `get_server_list`, `get_client_list PID`, `terminate_client SERVER PID` and `quit`. The file
`terminated` in its pipe directory has a line `SERVER PID STATE` for each `terminate_client`, with the
client's state in /proc. The file `mode` next to the program changes it:

    refuse    `-d` fails
    hang      `-d` and every command take a minute
    forget    the daemon lists no client
    stubborn  the daemon ignores `quit` and SIGTERM
    fault     if a client is killed, all other clients end with it, and the server logs the killed client
    crash     if a client is killed, the server and all other clients end with it
    kill PID POINT
              at this point, kill -9 of a process; then wait there until the mode changes

Points: `start` (`-d` begins), `started` (the daemon listens, and `-d` has not ended), `quit` (before the
command is sent), `quitting` (the daemon has the command), `quitted` (its server has ended, and it has not).

Only the standard library: the copies run without the package.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

CONTROL, SERVER, CLIENT = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "mps-client"
PUBLIC_PYTHON = "/usr/bin/python3"
"""An interpreter that other accounts may run too: the tests' own may be in a directory of root."""
_OWN_NAME = sys.argv[0]


def install(directory: Path, interpreter: str = sys.executable) -> Path:
    """Install the three programs. Returns the file of the mode."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # accounts of jobs run them
    for name in (CONTROL, SERVER, CLIENT):
        program = directory / name
        program.write_text(f"#!{interpreter} -S\n{Path(__file__).read_text()}")
        program.chmod(0o755)
    return directory / "mode"


def connect(pipes: str, pid: int) -> socket.socket:
    """Become a client; it stays one while the socket is open.

    Raises:
        OSError: no control daemon listens.
    """
    link = socket.socket(socket.AF_UNIX)
    link.connect(f"{pipes}/control")
    link.sendall(f"client {pid}\n".encode())
    assert link.recv(16) == b"ok"
    return link


def _mode() -> str:
    with contextlib.suppress(OSError):
        return Path(_OWN_NAME).with_name("mode").read_text().strip()
    return ""


def _kill_at(point: str) -> None:
    """Kill the process of the mode, if it lives and the mode is for this point."""
    mode = _mode()
    kind, *words = mode.split() or [""]
    if kind != "kill" or words[1] != point:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(words[0]), signal.SIGKILL)
        while _mode() == mode:
            time.sleep(0.01)


def _serve(pipes: str) -> None:
    """The control daemon."""
    if _mode() == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{pipes}/control.new")
    listening.listen()
    os.rename(f"{pipes}/control.new", f"{pipes}/control")
    choice, clients = selectors.DefaultSelector(), dict[socket.socket, int]()
    choice.register(listening, selectors.EVENT_READ)
    server: subprocess.Popen[bytes] | None = None
    while True:
        for key, _ in choice.select():
            if key.fileobj is listening:
                link, _ = listening.accept()
                choice.register(link, selectors.EVENT_READ)
                continue
            link = key.fileobj  # type: ignore[assignment]
            if link.fileno() < 0:  # a fault has ended it
                continue
            try:
                words = link.recv(1 << 12).decode().split()
                if words == ["quit"] and _mode() != "stubborn":
                    _kill_at("quitting")
                    if server is not None:
                        server.kill()
                        server.wait()
                    os.unlink(f"{pipes}/control")
                    _kill_at("quitted")
                    link.sendall(b"\n")
                    return
                if words[:1] == ["client"]:
                    if server is None or server.poll() is not None:
                        server = subprocess.Popen([str(Path(_OWN_NAME).with_name(SERVER))])
                    clients[link] = int(words[1])
                if words[:1] == ["leave"]:
                    clients.pop(link, None)
                answer = _answer(words, pipes, server, list(clients.values()))
                link.sendall(answer)
            except OSError:  # its process was killed
                answer = b""
            if not answer:
                killed = clients.pop(link, 0)
                ended = [link]
                if killed and server is not None and _mode() in ("fault", "crash"):
                    _fault(killed, server)
                    ended += clients
                    clients.clear()
                for one in ended:
                    choice.unregister(one)
                    one.close()


def _fault(killed: int, server: subprocess.Popen[bytes]) -> None:
    """The server's part of a fault by a client that was killed."""
    if _mode() == "crash":
        server.kill()
        server.wait()
        return
    with Path(os.environ["CUDA_MPS_LOG_DIRECTORY"], "server.log").open("a") as log:
        log.write(f"[Server {server.pid}] Client {{PID: {killed}, Context ID: 0}} fatal exception\n")


def _answer(
    words: list[str], pipes: str, server: subprocess.Popen[bytes] | None, clients: list[int]
) -> bytes:
    """The control daemon's answer to a command or a new client; nothing: it is the end of the connection."""
    match words:
        case []:
            return b""
        case ["client" | "leave", _]:
            return b"ok"
        case ["terminate_client", of_server, pid]:
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                with Path(pipes, "terminated").open("a") as file:
                    file.write(f"{of_server} {pid} {state}\n")
            return b"0\n"
    listed = [] if server is None or server.poll() is not None else [server.pid]
    if words[0] == "get_client_list":
        listed = clients if _mode() != "forget" else []
    return ("\n".join(map(str, listed)) + "\n").encode()


def _control(args: list[str], pipes: str) -> int:
    if _mode() == "hang":
        time.sleep(60)
    if args == ["-d"]:
        if _mode() == "refuse":
            print("Failed to start: no device")
            return 1
        _kill_at("start")
        if os.fork() == 0:
            os.setsid()
            _serve(pipes)
        if _mode().startswith("kill"):
            while not Path(pipes, "control").exists():
                time.sleep(0.01)
            _kill_at("started")
        return 0
    command = sys.stdin.buffer.read()
    if command == b"quit\n":
        _kill_at("quit")
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(f"{pipes}/control")
    except OSError:
        print("Cannot find MPS control daemon process")
        return 1
    link.sendall(command)
    print(link.recv(1 << 12).decode(), end="")
    return 0


def _client(command: list[str]) -> None:
    """Become a client if a daemon can be reached, else run without MPS, as CUDA does; then run a command."""
    with contextlib.suppress(OSError, KeyError):
        link = connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.getpid())
        os.set_inheritable(link.fileno(), True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    match Path(_OWN_NAME).name:
        case "nvidia-cuda-mps-control":
            code = _control(sys.argv[1:], os.environ["CUDA_MPS_PIPE_DIRECTORY"])
            sys.stdout.flush()
            os._exit(code)
        case "nvidia-cuda-mps-server":
            signal.pause()
        case "mps-client":
            _client(sys.argv[1:])
