"""Draws each node as a bar with one letter per GPU (the user who has the GPU), and the legend."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from rich.text import Text

from rlsched.cli.users.overview.picture import Picture, UserSummary
from rlsched.terminal.show import count
from rlsched.terminal.visible import visible
from rlsched.wire.messages import JobInfo, NodeInfo

FREE, ABSENT, OTHERS = "·", "×", "#"
MAX_BAR: Final = 32
"""Maximum number of GPUs of a node for which a bar has one character per GPU."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HUES: Final = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
_NO_USER: Final = "(no user)"


class Marks:
    """Letters and colours of users. A user keeps letter and colour while the screen is open."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def letter_of(self, user: str) -> Text:
        """Return the letter of a user: the first unused letter of the user's name, else of the alphabet."""
        letter = self._letters.get(user)
        if letter is None:
            taken = set(self._letters.values())
            wishes = chain((sign for sign in user if sign in _LETTERS), _LETTERS)
            letter = next(
                (sign for sign in wishes if sign not in taken), _LETTERS[len(taken) % len(_LETTERS)]
            )
            self._letters[user] = letter
        hue = list(self._letters).index(user) % len(_HUES)
        return Text(letter, style=_HUES[hue])


def nodes_title(picture: Picture) -> Text:
    title = Text(f"NODES {len(picture.nodes):,}", style="bold")
    shared = ", underlined: shared" if any(job.beside for job in picture.running) else ""
    return title.append(
        f"  letters: users, below{shared}; {FREE} free, {ABSENT} absent, {OTHERS} others'", style="dim"
    )


def node_cells(picture: Picture, marks: Marks) -> list[Text]:
    width = max((len(visible(node.name)) for node in picture.nodes), default=0)
    return [_node(node, picture.jobs_by_gpu.get(node.name, {}), marks, width) for node in picture.nodes]


def _node(node: NodeInfo, held: dict[int, JobInfo], marks: Marks, width: int) -> Text:
    """Return the name of a node, followed by its bar: one character per GPU.

    A character is the letter of the GPU's user, or a sign: free, absent, or used by a process that rlsched
    did not start. For a node with more than `MAX_BAR` GPUs, each character appears once, followed by its
    count.
    """
    is_up = node.state == "up"
    away = "blue" if node.state in ("asleep", "waking") else "red"
    text = Text(visible(node.name).ljust(width + 1), style="" if is_up else away)
    unknown = max(node.gpus - len(held) - node.free_gpus, 0) if is_up else 0
    nobody = [gpu for gpu in range(node.gpus) if gpu not in held]
    others = set(nobody[len(nobody) - unknown :])
    signs = [
        _of_job(held[gpu], marks)
        if gpu in held
        else Text(OTHERS if gpu in others else FREE if is_up else ABSENT, style="dim" if is_up else away)
        for gpu in range(node.gpus)
    ]
    text.append_text(Text().join(signs) if node.gpus <= MAX_BAR else _counted(signs))
    if not is_up:
        text.append(f" {node.state}", style=away)
    return text


def _of_job(job: JobInfo, marks: Marks) -> Text:
    """Return the letter of the job's user, underlined if the job shares its GPUs."""
    sign = marks.letter_of(job.user)
    if job.beside:
        sign.stylize("underline")
    return sign


def _counted(signs: Sequence[Text]) -> Text:
    """Return each different character of a node's bar once, with its number of GPUs: `a12 b4 ·16`."""
    found: dict[str, tuple[Text, int]] = {}
    for sign in signs:
        found[sign.plain] = (sign, found.get(sign.plain, (sign, 0))[1] + 1)
    return Text(" ").join(sign + Text(str(count)) for sign, count in found.values())


def owner_cell(owner: UserSummary, marks: Marks) -> Text:
    text = marks.letter_of(owner.user) + Text(
        f" {visible(owner.user) or _NO_USER} {count(owner.gpus, 'GPU')}"
    )
    if owner.waiting:
        text.append(f", {owner.waiting:,} waiting for {owner.wanted_gpus:,}", style="dim")
    return text
