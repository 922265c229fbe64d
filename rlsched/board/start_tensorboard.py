"""Starts TensorBoard on a folder and runs it until Ctrl-C."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import click

from rlsched.errors import InputError


def serve(logdir: str | Path, *, host: str = "localhost", port: int = 6006) -> None:
    """Show `logdir` in TensorBoard until Ctrl-C, and print the address.

    Raises:
        InputError: there is no such folder, the host is unknown, the port is in use, or tensorboard is not
            installed.
    """
    if not Path(logdir).is_dir():
        raise InputError(f"{logdir}: expected a folder with stores of decisions or event files, found none")
    try:
        from tensorboard import program
    except ImportError as error:
        raise InputError(
            "`rlsched board` needs tensorboard, which is not installed; install rlsched[board]"
        ) from error
    try:
        socket.getaddrinfo(host, port)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host!r}: expected an address of this machine ({error})") from error
    tensorboard = program.TensorBoard()
    tensorboard.configure(
        argv=[None, "--logdir", str(logdir), "--host", host, "--port", str(port), "--reload_interval", "5"]
    )
    try:
        url = tensorboard.launch()
    except program.TensorBoardServerException as error:
        raise InputError(
            f"TensorBoard cannot serve on {host}:{port}: {str(error).strip()}; choose another --port"
        ) from error
    click.echo(f"TensorBoard shows {logdir} at {url} (Ctrl-C ends it)")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        click.echo("", err=True)
