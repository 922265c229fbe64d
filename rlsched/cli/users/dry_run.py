"""`rlsched submit --dry-run`: prints the predicted start and end of a job and of similar jobs."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlsched.client.client import Client
    from rlsched.wire.messages import DryRow

TONIGHT_HOUR: Final = 20


def tonight_s(now_s: float) -> float:
    """Return the next 20:00 local time, Unix seconds."""
    now = datetime.fromtimestamp(now_s)
    tonight = now.replace(hour=TONIGHT_HOUR, minute=0, second=0, microsecond=0)
    return (tonight if tonight > now else tonight + timedelta(days=1)).timestamp()


def print_dry_run(client: Client, asked: dict[str, Any], command: Sequence[str], *, as_json: bool) -> None:
    """Request predictions from the broker, and print them as a table or as JSON.

    Args:
        asked: Keyword arguments of `Client.submit`.
        command: Command of the job; empty: none was given.
        as_json: Whether to print JSON.
    """
    from rlsched.terminal.show import in_words, print_json, print_table
    from rlsched.wire.messages.job_settings import JobNeeds

    now_s = time.time()
    needs = {name: asked[name] for name in JobNeeds.__struct_fields__ if name in asked}
    answer = client.dry_run(**needs, tonight_s=tonight_s(now_s), command=command)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(answer))
        return
    print_table(
        "nothing is queued; from now on: median (10 % to 90 %)",
        ("", "GPUs", "runs", "starts", "ends", ""),
        [
            (
                row.what,
                str(row.num_gpus) if row.num_gpus else "-",
                in_words(row.predicted_s) if row.num_gpus else "-",
                *_times(row, answer.said_s),
                row.note,
            )
            for row in answer.rows
        ],
    )


def _times(row: DryRow, said_s: float) -> tuple[str, str]:
    from rlsched.forecast.forecast_text import cell

    if not row.start_s:
        return "-", "-"
    return cell(row.start_s, said_s, said_s), cell(row.end_s, said_s, said_s)
