"""Queries slurmrestd, which returns the JSON of `squeue --json` and `sinfo --json`. Starts no process."""

from __future__ import annotations

import getpass
import http.client
import os
import re
import socket
from typing import Final

import msgspec

from rlsched.engine.facts import SlurmError
from rlsched.errors import InputError

KNOWN: Final = (0, 0, 37), (0, 0, 44)
"""Oldest and newest supported version of slurmrestd's interface."""
MOST_BYTES: Final = 1 << 30
_ADDRESS: Final = re.compile(r"unix:(?P<path>/.+)|http://(?P<host>[^/:]+):(?P<port>\d{1,5})/?")
_JOBS: Final = re.compile(r"/slurm/v(\d+)\.(\d+)\.(\d+)/jobs/?")


class SlurmRest:
    """A client of slurmrestd over a unix socket or HTTP. Sends the token in `SLURM_JWT`, if set.

    Args:
        address: unix:/PATH or http://HOST:PORT.
        timeout_s: Time-out for an answer, seconds.

    Attributes:
        address: The argument `address`.
        version: Interface version in use, the newest supported one; "" before `check`.

    Raises:
        InputError: the address is invalid.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        found = _ADDRESS.fullmatch(address)
        if found is None:
            raise InputError(f"--slurmrestd {address}: expected unix:/PATH or http://HOST:PORT")
        self.address, self.version = address, ""
        self._at, self._timeout_s = found, timeout_s

    def check(self) -> str:
        """Select the newest supported version of the interface, and return it.

        Raises:
            InputError: slurmrestd does not answer, or has no supported version.
        """
        try:
            paths = msgspec.json.decode(self._get("/openapi"), type=_OpenApi).paths
        except (SlurmError, msgspec.MsgspecError) as error:
            raise InputError(
                f"--slurmrestd {self.address}: {error}; check that slurmrestd runs at this address"
            ) from error
        spoken = sorted(tuple(map(int, found.groups())) for found in map(_JOBS.fullmatch, paths) if found)
        known = [one for one in spoken if KNOWN[0] <= one <= KNOWN[1]]
        if not known:
            first, last, has = (_dotted(one) for one in (*KNOWN, spoken[-1] if spoken else ()))
            raise InputError(
                f"--slurmrestd {self.address}: expected version v{first} to v{last}, got {has or 'none'}"
            )
        self.version = _dotted(known[-1])
        return self.version

    def jobs(self) -> bytes:
        """Return the jobs as `squeue --json` prints them.

        Raises:
            SlurmError: slurmrestd does not answer, or refuses.
        """
        return self._get(f"/slurm/v{self.version}/jobs")

    def nodes(self) -> bytes:
        """Return the nodes as `sinfo --json` prints them.

        Raises:
            SlurmError: slurmrestd does not answer, or refuses.
        """
        return self._get(f"/slurm/v{self.version}/nodes")

    def _get(self, path: str) -> bytes:
        said = f"slurmrestd {path}"
        line = self._connection()
        try:
            line.request("GET", path, headers=_headers())
            answer = line.getresponse()
            body = answer.read(MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise SlurmError(f"{said}: {error or type(error).__name__}") from error
        finally:
            line.close()
        if answer.status != http.HTTPStatus.OK:
            raise SlurmError(f"{said}: {answer.status} {answer.reason}{_why(body)}")
        return body

    def _connection(self) -> http.client.HTTPConnection:
        path, host, port = self._at["path"], self._at["host"], self._at["port"]
        if path:
            return _ByUnixSocket(path, self._timeout_s)
        return http.client.HTTPConnection(host, int(port), timeout=self._timeout_s)


class _ByUnixSocket(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _OpenApi(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


class _Error(msgspec.Struct):
    description: str = ""
    error: str = ""


class _Errors(msgspec.Struct):
    errors: list[_Error] = []


def _headers() -> dict[str, str]:
    token = os.environ.get("SLURM_JWT", "")
    named = {"X-SLURM-USER-NAME": getpass.getuser(), "X-SLURM-USER-TOKEN": token} if token else {}
    return {"Accept": "application/json", **named}


def _why(body: bytes) -> str:
    """Return the error description from the body of a response."""
    try:
        errors = msgspec.json.decode(body, type=_Errors).errors
    except msgspec.MsgspecError:
        return ""
    return next((f": {one.description or one.error}" for one in errors if one.description or one.error), "")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
