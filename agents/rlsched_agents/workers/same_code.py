"""Check that a Ray worker runs the same code as the process that sends it work."""

from __future__ import annotations

import hashlib
import socket
from functools import cache
from pathlib import Path

import numba
import numpy as np

import rlsched
import rlsched_agents
import rlsched_envs
from rlsched.decide.dials.strategy import STRATEGY_FILE, default_checkpoint
from rlsched.errors import RlschedError


@cache
def build_id() -> str:
    """Return an ID of the code: versions of packages, and a hash of sources and the default strategy."""
    digest = hashlib.sha256()
    for package in (rlsched, rlsched_envs, rlsched_agents):
        root = Path(next(iter(package.__path__)))
        for source in sorted(root.rglob("*.py")):
            digest.update(f"{package.__name__}/{source.relative_to(root)}\0".encode())
            digest.update(source.read_bytes())
    default = default_checkpoint() / STRATEGY_FILE
    digest.update(default.read_bytes() if default.is_file() else b"")
    versions = f"numpy {np.__version__}, numba {numba.__version__}"
    return f"rlsched {rlsched.__version__} ({digest.hexdigest()[:12]}), {versions}"


def other_code(sender: str) -> RlschedError | None:
    """Return the error of a worker whose code differs from the sender's, or None if the code is the same.

    `sender`: `build_id()` of the sender.
    """
    if sender == build_id():
        return None
    return RlschedError(
        f"Ray node {socket.gethostname()} runs other code than this side: {build_id()} there, "
        f"{sender} here; install the same rlsched, numpy and numba on every node"
    )
