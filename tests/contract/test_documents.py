"""What the documents name is there: files, links, modules, verbs with their options, columns, constants."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import msgspec
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.rows.schema import HOLD_S, MAX_HOLD_S, WINDOW_ROWS
from rlsched.workload.columns import KNOWN
from rlsched.workload.describe import describe
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.jobs_out import JOB_COLUMNS
from rlsched_agents.evaluate.metrics import GroupMetrics, Metrics
from rlsched_agents.evaluate.modelled import PowerDownMetrics
from rlsched_agents.evaluate.occupancy import OverTime
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from rlsched_agents.evaluate.report import PolicyUsed, Report

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "studies").rglob("*.md")),
]
VERBS = {point.name: point for point in entry_points(group="rlsched.commands")}

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands(page: str) -> Iterator[list[str]]:
    """The words behind `rlsched` on every command line of a page, wrapped lines joined."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for block in (body for language, body in fenced if language in ("", "sh")):
        for line in block.replace("\\\n", " ").splitlines():
            _, found, rest = line.partition("#")[0].partition("rlsched ")
            if found and not line.lstrip().startswith("error:"):
                yield rest.split()
    for quoted in re.findall(r"`rlsched ([^`\n]+)`", page):
        yield quoted.split()


@every_document
def test_files_and_links_are_there(document: Path) -> None:
    page = document.read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:rlsched|envs|agents|node_daemon|tests|benchmarks|studies|docs)/[\w./-]+)`", page
    )
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", page)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [name for name in linked if not (document.parent / name).exists()]
    modules = re.findall(r"python -m ((?:benchmarks|studies)[\w.]*\w)", page)
    missing += [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").exists()]
    assert missing == []


@every_document
def test_verbs_have_the_options_that_are_shown(document: Path) -> None:
    for words in commands(document.read_text(encoding="utf-8")):
        verb = re.split(r"[|.,]", words[0])[0]
        if verb.startswith("-"):
            continue
        assert verb in VERBS, f"rlsched {' '.join(words)}"
        command = VERBS[verb].load()
        if isinstance(command, click.Group) and len(words) > 1:
            command = command.commands.get(words[1], command)
        own = words[: words.index("--")] if "--" in words else words
        known = {name for option in command.params for name in option.opts} | {"--help"}
        unknown = [word for word in own if word.startswith("-") and word not in known]
        assert unknown == [], f"rlsched {' '.join(words)}"


def test_contracts_name_every_column_field_and_policy() -> None:
    architecture = text("docs/architecture.md")
    columns = architecture.partition("**Trace columns**")[2].partition("**Cluster**")[0]
    assert [name for name in re.findall(r"`(\w+)`", columns) if name in KNOWN][: len(KNOWN)] == list(KNOWN)
    for policy in entry_points(group="rlsched.schedulers"):
        assert f"`{policy.name}`" in architecture
    for verb in VERBS:
        assert re.search(rf"`{verb}[`| ]", architecture), verb
    for constant in (HOLD_S, MAX_HOLD_S):
        assert f"= {constant:,.0f} s" in architecture
    assert f"a window of {WINDOW_ROWS} rows" in architecture


@pytest.mark.parametrize(
    "struct",
    [Report, PolicyUsed, Metrics, GroupMetrics, OverTime, Comparison, Ratio, PowerDownMetrics],
)
def test_the_report_names_every_field(struct: type[msgspec.Struct]) -> None:
    page = text("docs/reference/report.md")
    assert [name for name in struct.__struct_fields__ if f"`{name}`" not in page] == []


def test_characterisation_names_every_key_of_describe() -> None:
    report = describe(
        Trace.from_columns(name="t", submit_s=[0], duration_s=[1], num_gpus=[1]), ClusterSpec.uniform(1)
    )
    assert [key for key in report if f"`{key}`" not in text("docs/characterisation.md")] == []


def test_the_report_names_every_column_of_the_job_files() -> None:
    page = text("docs/reference/report.md")
    assert [name for name in JOB_COLUMNS if f"`{name}`" not in page] == []


def test_the_script_that_survives_preemption_does(tmp_path: Path) -> None:
    """Stopped twice on its way, it goes on where it was, and says 143 until it is done."""
    (script,) = re.findall(r"```\n(import.*?)```", text("docs/online.md"), re.DOTALL)
    for long, short in (("STEPS = 600", "STEPS = 40"), ("time.sleep(1.0)", "time.sleep(0.02)")):
        assert script.count(long) == 1
        script = script.replace(long, short)
    (tmp_path / "train.py").write_text(script)
    saved = tmp_path / "train.json"
    steps = []
    for attempt in (1, 2):
        with subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == f"from step {steps[-1] if steps else 0}\n".encode()
            child.terminate()
            assert child.wait(30.0) == 143, attempt
        steps.append(json.loads(saved.read_text())["step"])
    assert 0 < steps[0] < steps[1] < 40
    assert subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=False).returncode == 0
    assert json.loads(saved.read_text()) == {"step": 40}
