"""`rlsched policies show`: sentences, a line with an explanation for every setting, and the file."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from rlsched.cli.main import run
from rlsched.cli.shared.settings_shown import meanings, sentences, shown
from rlsched.decide.policies.policy import Policy, presets
from rlsched.decide.settings import PreemptSettings, Settings, Share


@pytest.mark.parametrize("name", list(presets()))
def test_shown_file_is_the_policy_itself(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(shown(Policy(name)))
    read = Policy.read(tmp_path / "p.toml")
    assert read.settings == Policy(name).settings
    assert read.digest == Policy(name).digest
    assert list(sentences(Policy(name)))


def test_every_setting_of_a_rule_has_a_line_and_an_explanation() -> None:
    text = shown(Policy("tuned"))
    for kind in (PreemptSettings, Share):
        for name in kind.__struct_fields__:
            assert re.search(rf"^(# )?{name} = \S+.*  # \S", text, re.M), name
    left_out = {"checkpoint", "own"}
    for name in set(Settings.__struct_fields__) - {"rule"}:
        found = re.search(rf"^(# )?(\[{name}\]|{name} = |{name}: off)", text, re.M)
        assert (found is None) == (name in left_out), name
    assert '# first_age = "1m"' in text
    assert '\ndials = "default"  # ' in shown(Policy("ppo"))
    assert re.search(r"^checkpoint = .*  # \S", shown(Policy(rule="sb3", checkpoint="m.zip")), re.M)


def test_every_setting_has_an_explanation() -> None:
    for kind in [Settings, *msgspec.structs.fields(Settings)]:
        if isinstance(kind, type):
            assert set(meanings(kind)) == set(kind.__struct_fields__)


def test_following_the_price_is_described() -> None:
    text = " ".join(sentences(Policy("priced")))
    assert (
        "While electricity costs more than its mean, jobs with slack wait. Preemptible ones pause, too."
        in text
    )
    assert "at least 0.5 x the time in which the GPUs complete all predicted work" in text
    assert "Jobs predicted to run for at most 10m start at any price." in text
    text = " ".join(sentences(Policy("price-percentile")))
    assert "wait while electricity costs more than 30% of the prices of the past 7 days" in text
    assert "cost" not in " ".join(sentences(Policy("tuned")))
    text = " ".join(sentences(Policy("price-window")))
    assert "starts in the hours in which its predicted run costs least." in text
    assert "Preemptible ones" not in text


def test_easy_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "show", "easy"]) == 0
    said = capsys.readouterr().out
    assert "# The queue is sorted by submission time, lowest first.\n" in said
    assert "# A job that does not fit gets a reservation at once: jobs behind it start only if" in said
    assert '\nreserve_after = "0s"  # ' in said
    assert '\n# order = "submit"  # ' in said
    assert run(["policies", "show", "fifo-backfill", "--set", 'preempt={by="priority"}']) == 0
    assert "jobs of lower priority give way" in capsys.readouterr().out.lower()
