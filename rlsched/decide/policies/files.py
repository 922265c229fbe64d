"""Files that a policy names: their paths made absolute, or their content copied into its settings."""

from __future__ import annotations

import os
from pathlib import Path

from rlsched.decide.own import NO_PATHS, file_of, is_inline, is_own, moved
from rlsched.decide.policies.policy import Policy


def with_whole_paths(policy: Policy) -> Policy:
    """Return the policy with absolute paths of the files that exist now."""
    rule, changed = policy.settings.rule, dict[str, str]()
    if is_own(rule) and file_of(rule).exists():
        changed["rule"] = moved(rule, file_of(rule).resolve())
    for name in ("checkpoint", "dials"):
        text = getattr(policy.settings, name)
        if text not in NO_PATHS and not is_inline(text) and os.path.exists(text):
            changed[name] = str(Path(text).resolve())
    return policy.with_settings(**changed).named(policy.name) if changed else policy


def to_send(policy: Policy) -> Policy:
    """Return the policy for a broker that may run elsewhere: its strategy inlined, its paths absolute.

    The path of a strategy file that does not exist on this machine stays, for the broker to resolve.

    Raises:
        InputError: the strategy file cannot be read, or does not fit this version.
    """
    policy = with_whole_paths(policy)
    dials = policy.settings.dials
    if not dials or is_inline(dials) or not os.path.exists(dials):
        return policy
    from rlsched.decide.dials.strategy import Strategy

    return policy.with_settings(dials=Strategy.read(dials).text).named(policy.name)
