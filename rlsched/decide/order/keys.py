"""`Order`: the order of a queue, as data; and `order_key`: the compiled sort key of a job."""

from __future__ import annotations

import math
import re
from typing import Final, Literal

import msgspec

from rlsched.cluster.arrays import NO_COSTS, ORDER, OrderArrays, Records, StateArrays, records
from rlsched.compile.jit import kernel
from rlsched.decide.order.gittins import Gittins, job_index
from rlsched.decide.order.slack import slack_ln_weight
from rlsched.decide.settings import SlackSettings
from rlsched.errors import InputError

OrderKind = Literal["submit", "area", "remaining", "index"]
"""Key of an order. `submit`: time of submission. `area`: predicted run time x GPUs to a power. `remaining`:
predicted run time, less the work saved by earlier attempts, plus the restart cost, less the time run since
the start. `index`: the Gittins index (`decide.order.gittins`)."""

SUBMIT: Final = 0
AREA: Final = 1
REMAINING: Final = 2
INDEX: Final = 3
_CODES: Final[dict[OrderKind, int]] = {
    "submit": SUBMIT,
    "area": AREA,
    "remaining": REMAINING,
    "index": INDEX,
}


HALF_WEIGHT_S: Final = 86_400.0
"""In the order of submission, a job of half the weight counts as submitted this much later, seconds."""
LEVEL_LN: Final = 1000.0
"""Amount by which each priority level lowers a job's key, if keys are logarithms."""
LEVEL_S: Final = 1e13
"""Amount by which each priority level lowers a job's key, if keys are seconds or GPU-seconds. Floats of this
size resolve 2 ms.
"""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Order of a queue: jobs with the least key come first, jobs with equal keys in order of arrival.

    Attributes:
        by: The kind of key, see `OrderKind`.
        gpus_power: For `area`: the exponent of the number of GPUs; 0: only the predicted run time counts.
        index: For `index`: the parameters of the index.
        revised: Whether predictions of waiting jobs are revised, given run times of jobs of the same burst
            (`decide.order.bursts`).
        until_declared: Whether the order applies only until the first preemptible job is submitted. From then
            on the queue is in index order, and jobs may be preempted.
        slack: Weights of jobs with slack; None: their slack does not count.
    """

    by: OrderKind = "submit"
    gpus_power: float = 1.0
    index: Gittins = Gittins()
    revised: bool = False
    until_declared: bool = False
    slack: SlackSettings | None = None

    @classmethod
    def parse(cls, text: str) -> Order:
        """Parse an order from its name: `submit`, `predicted`, `area`, `area^0.7`, `remaining`, `index`.

        Raises:
            InputError: the name is unknown.
        """
        if text == "predicted":
            return cls(by="area", gpus_power=0.0)
        power = re.fullmatch(r"area(?:\^(\d+(?:\.\d+)?))?", text)
        if power is not None:
            return cls(by="area", gpus_power=float(power[1] or 1.0))
        for kind in ("submit", "remaining", "index"):
            if text == kind:
                return cls(by=kind)
        raise InputError(
            "expected an order: submit, predicted, area, area^POWER (area^0.7), remaining or index, "
            f"got {text!r}"
        )

    @property
    def name(self) -> str:
        """The name of this order, as in `parse`; with `until_declared`, `, index` is appended."""
        if self.until_declared:
            return f"{msgspec.structs.replace(self, until_declared=False).name}, index"
        if self.by != "area":
            return self.by
        if self.gpus_power == 0.0:
            return "predicted"
        return "area" if self.gpus_power == 1.0 else f"area^{self.gpus_power:g}"

    @property
    def preempts(self) -> bool:
        """Whether the order allows preemption, now or after the first preemptible job is submitted."""
        return self.by == "index" or self.until_declared

    @property
    def in_words(self) -> str:
        """The order as text for a message."""
        if self.slack is not None:
            return f"{msgspec.structs.replace(self, slack=None).in_words}, weighted by slack"
        if self.until_declared:
            now = msgspec.structs.replace(self, until_declared=False).in_words
            return f"{now}, and Gittins index once a job may be preempted"
        if self.by != "area":
            return {
                "submit": "submission time",
                "remaining": "predicted run time that is left",
                "index": "Gittins index",
            }[self.by]
        if self.gpus_power == 0.0:
            return "predicted run time"
        return "predicted run time x GPUs" + ("" if self.gpus_power == 1.0 else f"^{self.gpus_power:g}")

    @property
    def arrays(self) -> OrderArrays:
        """Return the order as arrays for kernels."""
        indexed = self.by == "index" or self.until_declared
        arrays = OrderArrays(
            records(2 if self.until_declared else 1, ORDER),
            self.index.table if indexed else NO_COSTS,
        )
        self.write(arrays.code[:1])
        if self.until_declared:
            msgspec.structs.replace(self, by="index", until_declared=False).write(arrays.code[1:])
        return arrays

    def write(self, code: Records) -> None:
        """Write this order to `code`, a record of type ORDER."""
        index = self.index
        code["by"], code["gpus_power"], code["revises"] = _CODES[self.by], self.gpus_power, self.revised
        for name in (
            "spread",
            "trust",
            "of_mean",
            "margin",
            "age_step",
            "first_age_s",
            "tick_s",
            "threshold_gpu_s",
        ):
            code[name] = getattr(index, name)
        slack = self.slack or SlackSettings(early_weight=1.0, late_weight=1.0)
        code["early_ln_weight"] = math.log(slack.early_weight)
        code["late_ln_weight"] = math.log(slack.late_weight)
        code["early_until"], code["late_from"] = slack.early_until, slack.late_from
        code["index_gpus_power"] = index.gpus_power


@kernel
def order_key(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the key of a live job in the queue's order, including its level and its weight.

    A job of weight w is ordered as if its cost were divided by w (the c mu rule). In the order of submission,
    such a job is ordered as if it had arrived log2(1 / w) x `HALF_WEIGHT_S` seconds later.
    """
    by, level, ln_weight = s.order.code[0].by, s.job.level[slot], _ln_weight(s, slot, now_s)
    if by == INDEX:
        return index_key(s, slot, now_s)
    key = _key_alone(s, slot, now_s)
    if level == 0 and ln_weight == 0.0:
        return key
    if by == SUBMIT:
        key -= ln_weight / math.log(2.0) * HALF_WEIGHT_S
    else:
        key *= math.exp(-ln_weight if key > 0.0 else ln_weight)
    return key - level * LEVEL_S


@kernel
def index_key(s: StateArrays, slot: int, now_s: float) -> float:
    """Return a live job's Gittins index, adjusted for level and weight; it changes while the job runs."""
    return job_index(s, slot, now_s) - _ln_weight(s, slot, now_s) - s.job.level[slot] * LEVEL_LN


@kernel
def _ln_weight(s: StateArrays, slot: int, now_s: float) -> float:
    """Return ln(weight) of a live job: of its user's fair share, and because of its slack."""
    return s.job.ln_weight[slot] + slack_ln_weight(s, slot, now_s)


@kernel
def _key_alone(s: StateArrays, slot: int, now_s: float) -> float:
    """Return a live job's key before the adjustment for level and weight.

    The key `remaining` changes while the job runs.
    """
    job, code = s.job, s.order.code[0]
    if code.by == SUBMIT:
        return job.submit_s[slot]
    if code.by == AREA:
        if code.gpus_power == 0.0:
            return job.predicted_s[slot]
        if code.gpus_power == 1.0:
            return job.predicted_s[slot] * job.gpus[slot]
        return job.predicted_s[slot] * max(job.gpus[slot], 1) ** code.gpus_power
    left_s = job.predicted_s[slot] - job.saved_s[slot] + job.overhead_left_s[slot]
    return left_s if job.placed_in[slot] < 0 else left_s - (now_s - job.start_s[slot])
