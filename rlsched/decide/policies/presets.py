"""The named policies: a one-line description of each, and its settings."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rlsched.decide.own import DEFAULT


class Preset(NamedTuple):
    """A named policy.

    Attributes:
        line: One-line description.
        settings: Settings of the policy, as in a TOML file.
    """

    line: str
    settings: dict[str, Any]


_TUNED: Final[dict[str, Any]] = {
    "order": "area^0.7",
    "predictions": "revised",
    "reserve_after": "1h",
    "preempt": {"by": "gittins", "declared": True},
    "share": {
        "when": "better",
        "max_jobs": 4,
        "min_speed": 0.5,
        "min_gain": 0.15,
        "by_hold": 5.0,
    },
    "clock": {"rule": "weighed"},
    "cores": True,
    "types": {"price": 0.3, "later": 2.0},
    "slack": {},
    "plain_without_models": True,
}
_PRICED: Final[dict[str, Any]] = {
    **_TUNED,
    "price": {"defer": 1.0, "pause": 1.0, "longer_than": "10m", "spare": 0.5},
}

PRESETS: Final[dict[str, Preset]] = {
    "fifo": Preset("first come, first served; the queue blocks", {"blocks": True}),
    "sjf": Preset(
        "shortest job first, by true run times; the queue blocks",
        {"order": "predicted", "blocks": True, "predictions": "oracle"},
    ),
    "qssf": Preset(
        "least predicted GPU time first; the queue blocks (Hu et al., SC'21)",
        {"order": "area", "blocks": True},
    ),
    "fifo-backfill": Preset("first come, first served; jobs that do not fit are skipped", {}),
    "sjf-backfill": Preset(
        "shortest job first, by true run times; jobs that do not fit are skipped",
        {"order": "predicted", "predictions": "oracle"},
    ),
    "qssf-backfill": Preset(
        "least predicted GPU time first; jobs that do not fit are skipped (Hu et al., SC'21)",
        {"order": "area"},
    ),
    "easy": Preset(
        "EASY backfill: the first job that does not fit has a reservation (Lifka, JSSPP 1995)",
        {"reserve_after": "0s"},
    ),
    "reserve": Preset(
        "least predicted GPU time first; long jobs leave a quarter of the GPUs free",
        {"order": "area", "leave_free": {"longer_than": "12h", "share": 0.25}},
    ),
    "tiresias": Preset(
        "two levels of attained service, preempts every minute (Gu et al., NSDI'19)",
        {"preempt": {"by": "quota", "threshold_gpu_s": 18_000.0, "tick": "1m"}},
    ),
    "srtf": Preset(
        "shortest remaining time first, by true run times, preempts (Schrage, 1968)",
        {"order": "remaining", "predictions": "oracle", "preempt": {"by": "quota", "tick": "0s"}},
    ),
    "gittins": Preset(
        "least service per completion first, preempts (Gittins, 1979)",
        {"preempt": {"by": "gittins"}},
    ),
    "pack": Preset(
        "qssf-backfill; a job that does not fit shares the GPUs of a running one (needs models)",
        {"order": "area", "share": {}},
    ),
    "lucid": Preset(
        "Lucid's packing in QSSF order, its profiler charged (Hu et al., ASPLOS'23; needs models)",
        {"order": "area", "share": {"when": "lucid"}, "profile": {"run": "200s", "max_gpus": 8}},
    ),
    "ppo": Preset(
        "priced, with dials set by the network that ships (checkpoints/default), trained by PPO",
        {**_PRICED, "dials": DEFAULT},
    ),
    "tuned": Preset(
        "preempts or reserves, shares and clocks as jobs and models permit; its dials can be learned",
        _TUNED,
    ),
    "priced": Preset(
        "tuned; follows the price of electricity: jobs with slack wait or pause for cheaper hours",
        _PRICED,
    ),
    "price-window": Preset(
        "tuned; a job with slack starts in the cheapest window of its run time (Hanafy et al., ASPLOS'24)",
        {**_TUNED, "price": {"window": True}},
    ),
    "price-percentile": Preset(
        "tuned; jobs with slack wait or pause above the 30th percentile of the past week's prices",
        {**_TUNED, "price": {"percentile": 0.3}},
    ),
    "random": Preset(
        "starts any job that fits, or waits, with equal probability", {"rule": "random", "order": "area"}
    ),
}
"""The presets by name."""
