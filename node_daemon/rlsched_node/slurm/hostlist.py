"""Lists of nodes in Slurm's notation: `n[1-3,07],login`."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_HOSTS = 65_536
"""Maximum number of nodes in an expanded list, as in Slurm."""


def expanded(text: str) -> list[str]:
    """Return the nodes in a list such as `n[1-3,07],login`, in the order of the list.

    Raises:
        ValueError: the text is not such a list, or has more than `MAX_HOSTS` nodes.
    """
    found: list[str] = []
    for part in _parts(text):
        for host in _hosts(part):
            found.append(host)
            if len(found) > MAX_HOSTS:
                raise ValueError(f"more than {MAX_HOSTS} nodes")
    return found


def _parts(text: str) -> list[str]:
    """Split a list at its commas outside of brackets."""
    if not re.fullmatch(r"(?:[^][]|\[[^][]*\])*", text):
        raise ValueError("unbalanced brackets")
    return [part for part in re.findall(r"(?:[^],[]|\[[^]]*\])+", text) if part.strip()]


def _hosts(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    for one in inside.split(","):
        low, dash, high = one.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ValueError(f"expected numbers in brackets, got {one!r}")
        for number in range(int(low), int(high or low) + 1):
            for ending in _hosts(tail):
                yield f"{head}{number:0{len(low)}d}{ending}"


def counted(numbers: list[int]) -> str:
    """Return counts in Slurm's notation of tasks per node: `2(x3),1` for the counts 2, 2, 2 and 1."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][0] == number:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in found)
