"""Reason codes of rows that cannot be chosen, and their meanings."""

from __future__ import annotations

from typing import Final

LEGAL: Final = 0
TOO_FEW_FREE: Final = 1
NO_HOLE: Final = 2
GUARD_HALF_FREE: Final = 3
GUARD_HOLD: Final = 4
PADDING: Final = 5
HELD: Final = 6
RESERVED: Final = 7

REASON_TEXT: Final = {
    LEGAL: "can start",
    TOO_FEW_FREE: "fewer GPUs are free than the gang needs",
    NO_HOLE: "enough GPUs are free, but not together",
    GUARD_HALF_FREE: "no waiting while half of the GPUs are free and a job can start",
    GUARD_HOLD: "another job has been held back for too long",
    PADDING: "empty row",
    HELD: "kept back by an earlier wait",
    RESERVED: "would delay the job that GPUs are reserved for",
}
