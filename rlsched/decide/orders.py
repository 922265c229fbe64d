"""The orders of a queue, and what a network that keeps its queue by one may do and follows."""

from __future__ import annotations

from typing import Final, Literal

Order = Literal["submit", "predicted", "predicted_gpu_time", "remaining", "index", "predicted_size"]
"""Key of the queue order: submission time, predicted run time, predicted run time x GPUs, remaining run time
(predicted run time, less the work saved by earlier attempts, plus what the restart costs), the Gittins index
(`cluster.gittins`, as it is by default), predicted run time x GPUs^0.7."""

NETWORK_ORDERS: Final[dict[str, Order]] = {"+preempt": "index", "+reserve": "predicted_size"}
"""Behind the name of a network: the order of its queue, which says what it may do and which rule it follows.

By predicted GPU time it follows `qssf-backfill`; by the index it may preempt, and follows `gittins`; by size
no start may delay the job that has the reservation (`decide.easy`), and it follows `easy:size`.
"""

REVISING: Final = "+revise"
"""Behind the name of a scheduler: predictions of waiting jobs are revised for it (`cluster.siblings`)."""

REPACKING: Final = "+repack"
"""Behind the name of a scheduler that preempts by the index: it moves running jobs too (`decide.repack`)."""

REFERENCE_RULES: Final[dict[Order, str]] = {
    "predicted_gpu_time": "qssf-backfill",
    "index": "gittins",
    "predicted_size": "easy:size",
}
"""The rule that a network follows before it is trained, by the order of its queue."""


def rule_followed(order: Order, *, revises: bool) -> str:
    """The name of that rule, where predictions are revised or not."""
    return REFERENCE_RULES[order] + (REVISING if revises else "")
