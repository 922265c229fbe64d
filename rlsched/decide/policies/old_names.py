"""Replacements of policy names of earlier versions, such as `easy:size,1h+share=0.5`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

_ORDERS: Final = {"fifo": "submit", "sjf": "predicted", "qssf": "area", "size": "area^0.7"}


def _easy(order: str = "fifo", patience: str = "") -> list[str]:
    if order not in _ORDERS:
        return [f"reserve_after={order}"]
    patience = patience or ("1h" if order == "size" else "")
    return [f"order={_ORDERS[order]}", *([f"reserve_after={patience}"] if patience else [])]


def _reserve(longer_than: str = "12h", share: str = "0.25") -> list[str]:
    return [f"leave_free.longer_than={longer_than}", f"leave_free.share={share}"]


def _tiresias(threshold: str = "18000", clear: str = "") -> list[str]:
    return [f"preempt.threshold_gpu_s={threshold}", *(["preempt.by=service"] if clear else [])]


def _gittins(*numbers: str) -> list[str]:
    names = ("spread", "trust", "gpus_power", "margin")
    return [f"preempt.{name}={number}" for name, number in zip(names, numbers, strict=False) if number]


_ARGUMENTS: Final[dict[str, Callable[..., list[str]]]] = {
    "easy": _easy,
    "reserve": _reserve,
    "tiresias": _tiresias,
    "gittins": _gittins,
    "pack": lambda speed="0.7": [f"share.min_speed={speed}"],
    "lucid": lambda seconds="200": [f"profile.run={seconds}s"],
    "rollout": lambda samples="8": [f"samples={samples}"],
}
"""Settings that followed a colon, by the name before it."""


def _clock(rule: str, setting: str) -> Callable[[str], list[str]]:
    return lambda value: [f"clock.rule={rule}", *([f"clock.{setting}={value}"] if value else [])]


_WORDS: Final[dict[str, Callable[[str], list[str]]]] = {
    "share": lambda speed: [f"share.min_speed={speed}" if speed else "share={}"],
    "tenants": lambda jobs: [f"share.max_jobs={jobs}"],
    "clock": _clock("fixed", "at"),
    "slowdown": _clock("slowdown", "slowdown"),
    "lull": _clock("lull", "slowdown"),
    "weight": _clock("weighed", "energy_weight"),
    "cores": lambda _: ["cores=true"],
    "revise": lambda _: ["predictions=revised"],
    "search": lambda much: [
        f"search.time_ms={much.removesuffix('ms')}" if much.endswith("ms") else f"search.samples={much or 8}"
    ],
}
"""Settings that followed a plus."""


def new_spelling(name: str, presets: Collection[str]) -> str:
    """Return the replacement of an old name, "" if it is not an old name.

    >>> new_spelling("pack:0.7+cores", ["pack"]).partition("write ")[2]
    '--policy pack --set share.min_speed=0.7 --set cores=true, or a TOML file'
    """
    plain, _, words = name.partition("+")
    base, colon, argument = plain.partition(":")
    if base == "sgf-age":
        return "it was removed; `easy` with reserve_after=12h comes nearest"
    if base not in presets or not (colon or words):
        return ""
    if name == "rollout:clairvoyant":
        return "it is called `clairvoyant` now"
    if base == "ppo" and words in ("reserve", "preempt"):
        return "there is one `ppo`: its permissions follow from the cluster and the jobs"
    said = list[str]()
    if colon and base in _ARGUMENTS:
        try:
            said += _ARGUMENTS[base](*argument.split(","))
        except TypeError:  # more arguments than the old name took
            said += ["PATH=VALUE"]
    for word in words.split("+"):
        key, _, value = word.partition("=")
        said += _WORDS[key](value) if key in _WORDS else []
    policy = plain if base == "ppo" and argument else base
    flags = " ".join(f"--set {_quoted(one)}" for one in dict.fromkeys(said) or ["PATH=VALUE"])
    return f"settings are no part of a name any more; write --policy {policy} {flags}, or a TOML file"


def _quoted(change: str) -> str:
    """A setting, quoted for a shell."""
    return f"'{change}'" if "{" in change else change
