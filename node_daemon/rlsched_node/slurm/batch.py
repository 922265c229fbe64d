"""The command of each rank of a job whose script is for Slurm: `python -I -S batch.py TERMS SCRIPT...`.

On the first node, this command runs the script, and the server of the job's steps. On each other node, it is
an agent, which runs the tasks that the server sends. Server and agents end when the script ends. TERMS is the
JSON object `terms` of `launch.batch_command`. This process receives the job's key in an environment variable.
The script and the tasks read the key from a file, so that a script that prints its environment does not print
the key.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

if __name__ == "__main__":  # the isolated interpreter's path lacks this directory and the package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
from rlsched_node.processes import shortage
from rlsched_node.processes.shim import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from rlsched_node.slurm.agent import Agent
from rlsched_node.slurm.hostlist import counted
from rlsched_node.slurm.key import AT_VARIABLE, keep_key
from rlsched_node.slurm.loop import Loop
from rlsched_node.slurm.names import reachable_names
from rlsched_node.slurm.plans import JobNode, spread
from rlsched_node.slurm.server import Server

KEY_VARIABLE: Final = "RLSCHED_STEPS_KEY"
BIN: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")
SIGNALS: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
)


def main(terms: dict[str, Any], command: list[str], reports_fd: int = -1) -> int:
    """Run the script if this is the first node, else an agent. Return the exit code.

    Args:
        terms: The terms of the rank.
        command: The script.
        reports_fd: Pipe on which a shortage is reported (`shortage.launcher_pipe`).
    """
    loop, key = Loop(), os.environ.pop(KEY_VARIABLE).encode()
    try:
        keep_key(os.environ, key)
    except OSError as error:
        _say(f"cannot write {error.filename}, which srun needs: {error.strerror}")
        return EXIT_NOT_EXECUTABLE
    if terms["rank"]:
        if reports_fd >= 0:  # the job's script may have begun on the first node
            os.close(reports_fd)
        agent = Agent(loop, key, terms, lambda names: node_environment(os.environ, terms, names))
        return agent.run(SIGNALS)
    loop.listen(*SIGNALS)
    nodes: list[str] = terms["nodes"]
    try:
        names = reachable_names(nodes, terms["hosts"])
    except OSError as error:
        _say(f"cannot look up the names of the job's nodes: {error.strerror}")
        shortage.report(reports_fd, error)
        return EXIT_NOT_EXECUTABLE
    try:
        listener = listening(terms["ports"] if len(nodes) > 1 else [])
    except OSError as error:
        _say(f"cannot listen for the other nodes at the ports {terms['ports']}: {error.strerror}")
        return 1
    env = script_environment(os.environ, terms, names)
    env[AT_VARIABLE] = f"127.0.0.1:{listener.getsockname()[1]}"
    asked = terms["asked_nodes"]
    if asked and asked != len(nodes):
        _say(f"the job asked for {asked} nodes, and has {len(nodes)}; srun uses all of them")
    slots = slots_of(terms["gpus"], env)
    shapes = [JobNode(*one) for one in zip(names, nodes, terms["gpus"], slots, strict=True)]
    server = Server(
        loop,
        key,
        listener,
        shapes,
        env,
        asked_nodes=asked,
        attempt=terms["attempt"],
        grace_s=float(env.get("RLSCHED_GRACE_S", "30")),
    )
    try:
        script = server.start(with_programs(command))
    except OSError as error:
        shortage.report(reports_fd, error)
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        _say(f"{error.filename}: {'command not found' if is_missing else error.strerror}")
        return EXIT_NOT_FOUND if is_missing else EXIT_NOT_EXECUTABLE
    if reports_fd >= 0:  # the script has begun
        os.close(reports_fd)
    return server.run(script)


def listening(ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens at the first free port. If `ports` is empty, use any port of 127.0.0.1.

    Raises:
        OSError: all ports are in use.
    """
    if not ports:
        return _not_blocking(socket.create_server(("127.0.0.1", 0)))
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    failure = OSError()
    for port in ports:
        try:
            return _not_blocking(socket.create_server(("", port), family=family, dualstack_ipv6=both))
        except OSError as error:
            failure = error
    raise failure


def _not_blocking(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


def node_environment(environ: Mapping[str, str], terms: dict[str, Any], names: list[str]) -> dict[str, str]:
    """Return the environment of the processes on this node, without a step's variables."""
    path = environ.get("PATH", os.defpath)
    env = dict(environ) | {
        "PATH": f"{BIN}{os.pathsep}{path}",
        "RLSCHED_STEPS_PYTHON": sys.executable,
        "SLURM_JOBID": environ["SLURM_JOB_ID"],
        "SLURM_JOB_NODELIST": ",".join(names),
        "SLURM_NODELIST": ",".join(names),
        "SLURMD_NODENAME": names[terms["rank"]],
        "SLURM_CPUS_ON_NODE": str(len(os.sched_getaffinity(0))),
    }
    num_nodes = len(terms["nodes"])
    if terms["asked_nodes"] not in (0, num_nodes) and env.get("SLURM_NTASKS_PER_NODE") == "1":
        env["SLURM_NTASKS"] = str(num_nodes)
    if "SLURM_NTASKS" in env:
        env["SLURM_NPROCS"] = env["SLURM_NTASKS"]
    return env


def script_environment(environ: Mapping[str, str], terms: dict[str, Any], names: list[str]) -> dict[str, str]:
    """Return the environment of the script.

    The number of a node's cores is in proportion to its GPUs. If the job requested no cores, all nodes are
    assumed to have as many cores as this node.
    """
    env = node_environment(environ, terms, names)
    gpus: list[int] = terms["gpus"]
    own, here = int(env["SLURM_CPUS_ON_NODE"]), gpus[terms["rank"]]
    cpus = [own * number // here if terms["cores"] else own for number in gpus]
    return env | {
        "SLURM_TASKS_PER_NODE": counted(slots_of(gpus, env)),
        "SLURM_JOB_CPUS_PER_NODE": counted(cpus),
    }


def slots_of(gpus: Sequence[int], env: Mapping[str, str]) -> list[int]:
    """Return the number of tasks that the job requested for each node; 1 if it requested none."""
    num_tasks = int(env.get("SLURM_NTASKS", "0")) or len(gpus)
    return spread(max(num_tasks, len(gpus)), gpus if num_tasks >= len(gpus) else [1] * len(gpus))


def with_programs(command: list[str]) -> list[str]:
    """Return the command, changed so that a shell script in it finds rlsched's `srun` first in PATH.

    An assignment of PATH replaces the first line (`#!...`) of the script. The environment would not suffice,
    because a login shell, such as `#!/bin/bash -l`, sets PATH itself.
    """
    found = list(command)
    for place, word in enumerate(found[1:], 1):
        if found[place - 1] == "-c" and word.startswith("#!"):
            _, newline, rest = word.partition("\n")
            found[place] = f"PATH='{BIN}':$PATH{newline}{rest}"
            break
    return found


def _say(text: str) -> None:
    """Write a line to the job's output."""
    with contextlib.suppress(OSError):
        print(f"rlsched: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:], shortage.launcher_pipe()))
