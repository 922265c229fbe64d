"""The report of an evaluation, and its JSON file (docs/reference/report.md)."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec

from rlsched.errors import InputError
from rlsched.settings import encode_time
from rlsched_agents.evaluate.findings import Findings


class EvaluationReport(Findings, frozen=True, kw_only=True):
    """The report of an evaluation, which `rlsched evaluate --json` writes. `str` formats it as tables."""

    def __str__(self) -> str:
        """Format the report as text tables."""
        from rich.console import Console

        from rlsched_agents.evaluate.tables import TABLE_WIDTH, print_report

        text = io.StringIO()
        print_report(self, Console(file=text, width=TABLE_WIDTH, highlight=False))
        return text.getvalue()


def write_json(report: EvaluationReport, path: str | Path) -> None:
    """Write the report as JSON.

    Raises:
        InputError: the file cannot be written.
    """
    body = msgspec.json.format(msgspec.json.encode(report, enc_hook=encode_time), indent=2)
    try:
        Path(path).write_bytes(body + b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot write the report here: {error.strerror}") from error
