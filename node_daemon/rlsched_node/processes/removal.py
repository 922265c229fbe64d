"""Removal of a job's directory. The directory may have any content, and may change during the removal.

A daemon that runs as root removes the directory with the file permissions of its owner (setfsuid(2)). No path
is resolved: each step uses one name below an open directory, and no link is followed. Directories of any
depth are moved up to the top directory before they are emptied.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_GROUP = 65534


def remove_tree(path: Path, until_s: float = float("inf")) -> bool:
    """Remove a directory and its content, as far as possible and until `until_s`.

    Args:
        path: The directory. Only the daemon may write to its parent. A link is removed, not its target.
        until_s: Time at which to stop, monotonic seconds; another call removes the rest.

    Returns:
        Whether the directory is removed.
    """
    with contextlib.suppress(OSError):
        top = _open_top(path)
        if top is None:
            os.unlink(path)
            return True
        try:
            owner = os.fstat(top)
            with contextlib.suppress(OSError):
                os.fchmod(top, 0o700)
            with _rights_of(owner.st_uid, owner.st_gid):
                _empty(top, until_s)
        finally:
            os.close(top)
        os.rmdir(path)
    return not os.path.lexists(path)


def _open_top(path: Path) -> int | None:
    """Open a directory; return None if it is not a directory."""
    try:
        return os.open(path, _DIRECTORY)
    except PermissionError:  # the job may have the daemon's own uid
        os.chmod(path, 0o700)
        return os.open(path, _DIRECTORY)
    except OSError:
        if path.is_symlink() or not path.is_dir():
            return None
        raise


@contextlib.contextmanager
def _rights_of(uid: int, gid: int) -> Iterator[None]:
    """Access files with the permissions of this user, if this process runs as root and the user is not root.

    Raises:
        OSError: the user cannot be changed.
    """
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    libc, groups = ctypes.CDLL(None), os.getgroups()
    libc.setfsuid.restype = libc.setfsgid.restype = ctypes.c_uint
    gid = gid or _NO_GROUP
    os.setgroups([])
    try:
        libc.setfsgid(gid)
        libc.setfsuid(uid)
        if (libc.setfsuid(-1), libc.setfsgid(-1)) != (uid, gid):  # -1 changes nothing, and returns the value
            raise OSError(0, "cannot act as the owner of a directory")
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)
        os.setgroups(groups)


def _empty(top: int, until_s: float) -> None:
    """Remove the content of the directory `top`. Subdirectories of any depth are first moved into `top`."""
    moved = secrets.token_hex(4)
    names = (f"{moved}.{number}" for number in itertools.count())
    found = _clear(top, top, names, until_s)
    while found and time.monotonic() < until_s:
        name = found.pop()
        with contextlib.suppress(OSError):
            below = _open_below(top, name)
            try:
                found += _clear(below, top, names, until_s)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)


def _clear(directory: int, top: int, names: Iterator[str], until_s: float) -> list[str]:
    """Remove the files in a directory, and move its subdirectories to `top`. Return their names in `top`."""
    moved = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if time.monotonic() >= until_s:
                break
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=directory)
                elif directory == top:
                    moved.append(entry.name)
                else:
                    moved.append(_move_up(entry.name, directory, top, names))
    return moved


def _move_up(name: str, directory: int, top: int, names: Iterator[str]) -> str:
    other = next(names)
    try:
        os.rename(name, other, src_dir_fd=directory, dst_dir_fd=top)
    except PermissionError:  # the directory is not writable
        os.chmod(name, 0o700, dir_fd=directory)
        os.rename(name, other, src_dir_fd=directory, dst_dir_fd=top)
    return other


def _open_below(top: int, name: str) -> int:
    fd = -1
    with contextlib.suppress(PermissionError):
        fd = os.open(name, _DIRECTORY, dir_fd=top)
    if fd < 0:
        os.chmod(name, 0o700, dir_fd=top)
        fd = os.open(name, _DIRECTORY, dir_fd=top)
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o700)
    return fd
