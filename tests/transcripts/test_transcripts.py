"""The broker's state machine against its transcripts.

`RLSCHED_REWRITE_TRANSCRIPTS=1 pytest tests/transcripts` rewrites them: read the
difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.transcripts.script import Script

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
RULE = "----"


def played(text: str, directory: Path) -> str:
    """The transcript with the current output of its commands."""
    lines = text.split("\n")
    policy = next((line.split()[1] for line in lines if line.startswith("policy ")), "fifo-backfill")
    script, out, skipping = Script(directory, policy), [], False
    try:
        for line in lines:
            if skipping:
                skipping = bool(line)
                if skipping:
                    continue
            out.append(line)
            if line == RULE:
                out += script.play(out[-2])
                skipping = True
    finally:
        script.close()
    return "\n".join(out)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_machine_follows_its_transcript(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    now = played(text, tmp_path)
    if os.environ.get("RLSCHED_REWRITE_TRANSCRIPTS"):
        path.write_text(now)
    assert now == text or os.environ.get("RLSCHED_REWRITE_TRANSCRIPTS")


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 12
