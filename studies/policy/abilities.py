"""Optional abilities of a rule, under short names: sharing, clocks, cores, ..."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rlsched.decide.policies.policy import Policy


class Ability(NamedTuple):
    """Some settings with a short name.

    Attributes:
        label: Suffix of the name of a policy that has it.
        settings: As in a TOML file.
    """

    label: str
    settings: dict[str, Any]


CORES: Final = Ability("cores", {"cores": True})
REVISED: Final = Ability("revised", {"predictions": "revised"})
SHARING: Final = Ability("share", {"share": {}})


def share(min_speed: float, **more: Any) -> Ability:
    """Jobs share GPUs if all keep this much of their speed; `more`: other settings of sharing."""
    return Ability(f"share {min_speed:g}", {"share": {"min_speed": min_speed, **more}})


def fixed_clock(at: float) -> Ability:
    """One SM clock for all jobs, of the maximum."""
    return Ability(f"clock {at:g}", {"clock": {"rule": "fixed", "at": at}})


def slowdown(most: float) -> Ability:
    """The clock of least energy within a slowdown."""
    return Ability(f"slowdown {most:g}", {"clock": {"rule": "slowdown", "slowdown": most}})


def lull(most: float) -> Ability:
    """The clock of least energy within a slowdown, only while no other job waits."""
    return Ability(f"lull {most:g}", {"clock": {"rule": "lull", "slowdown": most}})


def weighed(weight: float) -> Ability:
    """The clock with the least weighted sum of the costs of time and energy."""
    return Ability(f"weight {weight:g}", {"clock": {"rule": "weighed", "energy_weight": weight}})


def able(policy: Policy, *more: Ability) -> Policy:
    """A policy with abilities; their labels are suffixes of its name."""
    settings = {key: value for one in more for key, value in one.settings.items()}
    return policy.with_settings(**settings).named(" ".join((policy.name, *(one.label for one in more))))
