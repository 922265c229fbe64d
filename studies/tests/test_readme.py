"""The README names every study that can be run, and no other."""

from __future__ import annotations

import re
from pathlib import Path

STUDIES = Path(__file__).resolve().parents[1]
INSIDE = {"studies.gpu.child"}
"""Run by another study, in a separate process."""


def test_readme_lists_exactly_the_studies() -> None:
    runnable = {
        "studies." + ".".join(path.relative_to(STUDIES).with_suffix("").parts)
        for path in STUDIES.rglob("*.py")
        if "tests" not in path.parts and '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    page = (STUDIES / "README.md").read_text(encoding="utf-8")
    asked = [line.split("|")[2] for line in page.splitlines() if re.match(r"\| .*\?", line)]
    words = {code.split()[0] for cell in asked for code in re.findall(r"`([^`]+)`", cell)}
    named = {word if word.startswith("studies.") else f"studies.policy.{word}" for word in words}
    assert named == runnable - INSIDE
