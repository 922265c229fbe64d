"""Types of the keywords of `Client.submit` and `Client.update`.

This module does not use `from __future__ import annotations`, because annotations would then be strings, and
Python would compile each of them when the classes are created.
"""

from collections.abc import Sequence
from typing import TypedDict

from rlsched.wire.messages import DependsOn, Launcher, OpenMode, Priority, Share


class JobAsked(TypedDict, total=False):
    """Keywords of `Client.submit`, described in the docstring of that method."""

    num_gpus: int
    name: str
    vc: str
    user: str
    num_cpus: int
    memory_mib: int
    gpu_memory_mib: int
    gpu_types: Sequence[str]
    preferred_types: Sequence[str]
    exclusive: bool
    time_limit_s: float | None
    env: dict[str, str] | None
    cwd: str | None
    output: str
    error: str
    open_mode: OpenMode
    preemptible: bool
    slack_s: float
    speed_energy: float | None
    workload: str
    share: Share
    lost_after_s: float | None
    priority: Priority
    account: str
    notify: Sequence[str]
    hold: bool
    begin_s: float | None
    depends_on: Sequence[DependsOn]
    singleton: bool
    array: str
    launcher: Launcher
    grace_s: float | None
    token: str | None


class Changes(TypedDict, total=False):
    """Keywords of `Client.update`, described in the docstring of that method."""

    name: str
    priority: Priority
    time_limit_s: float
    begin_s: float
    depends_on: list[DependsOn]
    singleton: bool
    lost_after_s: float
    share: Share
    array_limit: int
    gpu_types: list[str]
    preferred_types: list[str]
    grace_s: float
    slack_s: float
