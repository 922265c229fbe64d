"""Names in the documents exist: files, links, modules, verbs with their options, columns, constants."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import get_args, get_type_hints

import click
import msgspec
import pytest

from rlsched.cli.users.batch_script import NO_MEANING, BatchCommand
from rlsched.client.client import Client
from rlsched.client.submitting import as_submit
from rlsched.cluster.spec import ClusterSpec, Placement
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.policies.policy import Policy, presets
from rlsched.decide.settings import Settings
from rlsched.models.learning import Observed
from rlsched.models.power import NodePower
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import Seconds
from rlsched.workload.describe import describe
from rlsched.workload.trace import Trace
from rlsched.workload.validate import BASE, KNOWN
from rlsched_agents.evaluate.findings import PolicyUsed
from rlsched_agents.evaluate.jobs_out import JOB_COLUMNS
from rlsched_agents.evaluate.metrics import GroupMetrics, Metrics
from rlsched_agents.evaluate.modelled import PowerDownMetrics
from rlsched_agents.evaluate.occupancy import OverTime
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from rlsched_agents.evaluate.report import EvaluationReport
from rlsched_agents.evaluate.simulate import simulate
from rlsched_envs.sim.modelling import Models
from rlsched_envs.training.sources import GPU_TYPES, Drawn

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "studies").rglob("*.md")),
]
VERBS = {point.name: point for point in entry_points(group="rlsched.commands")}
ENVIRONMENT = "rlsched/Cluster-v0"
"""Gymnasium's name of the environment; it looks like a path."""
_FENCE = re.compile(r"^ *```(\w*) *\n(.*?)^ *``` *$", re.DOTALL | re.MULTILINE)
_SHELL = ("", "sh", "bash", "console", "shell")

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every block of a page."""
    return _FENCE.findall(page)


def prose(page: str) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", page)


def words_of(line: str) -> list[str]:
    """A command line split as a shell splits it; prose as it stands."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def commands(page: str) -> Iterator[list[str]]:
    """The words after `rlsched` on every command line of a page, with continued lines joined."""
    for language, block in blocks(page):
        if language not in _SHELL:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            _, found, rest = line.partition("#")[0].partition("rlsched ")
            if found and rest.split() and not line.lstrip().startswith(("error:", "import ", "from ")):
                yield words_of(rest)
    for quoted in re.findall(r"`rlsched ([^`\n]+)`", prose(page)):
        yield words_of(quoted)


def anchors(page: str) -> set[str]:
    """Targets of links after `#`: headings, as GitHub spells them."""
    headings = re.findall(r"^#+ +(.*?) *$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def unnamed(page: str, names: Iterator[str] | list[str]) -> list[str]:
    """The names that a page does not have in backticks."""
    quoted = set(re.findall(r"`([^`\n]+)`", page))
    return [name for name in names if name not in quoted]


@every_document
def test_files_and_links_exist(document: Path) -> None:
    page = document.read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:rlsched|envs|agents|node_daemon|tests|benchmarks|studies|docs|examples)/[\w./-]+)`", page
    )
    missing = [name for name in named if name != ENVIRONMENT and not (ROOT / name).exists()]
    for name, _, anchor in (
        link.partition("#") for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page))
    ):
        target = document.parent / name if name else document
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            missing.append(f"{name}#{anchor}" if anchor else name)
    modules = re.findall(r"python -m ((?:benchmarks|studies)[\w.]*\w)", page)
    missing += [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").exists()]
    assert missing == []


@every_document
def test_shown_options_of_verbs_exist(document: Path) -> None:
    for words in commands(document.read_text(encoding="utf-8")):
        verb = re.split(r"[|.,]", words[0])[0]
        if verb.startswith("-") or verb == "VERB":
            continue
        assert verb in VERBS, f"rlsched {' '.join(words)}"
        command = VERBS[verb].load()
        for word in words[1:]:
            if isinstance(command, click.Group):
                command = command.commands.get(word, command)
        own = words[: words.index("--")] if "--" in words else words
        known = {name for option in command.params for name in option.opts} | {"--help"}
        known |= NO_MEANING if isinstance(command, BatchCommand) else set()
        unknown = [word for word in own if word.startswith("-") and word.partition("=")[0] not in known]
        assert unknown == [], f"rlsched {' '.join(words)}"


@every_document
def test_policies_and_settings_of_commands_exist(document: Path) -> None:
    for words in commands(document.read_text(encoding="utf-8")):
        policy = Policy("ppo")
        for option, value in pairwise(words):
            if option == "--set" and "=" in value and not value.isupper():
                policy = policy.changed([value])
            elif option in ("--policy", "--fallback") and value.endswith((".toml", ".py", "/")):
                policy = Policy("fifo-backfill")
            elif option in ("--policy", "--fallback") and not value.isupper() and "|" not in value:
                policy = Policy.of(value)


@every_document
def test_toml_blocks_are_valid(document: Path) -> None:
    for language, block in blocks(document.read_text(encoding="utf-8")):
        if language == "toml":
            tomllib.loads(block)


# ---- architecture ---------------------------------------------------------------------------------


def test_architecture_names_every_verb_and_is_short() -> None:
    page = text("docs/architecture.md")
    assert unnamed(page, list(VERBS)) == []
    assert len(page.splitlines()) <= 200


def test_results_are_short() -> None:
    assert len(text("docs/results.md").splitlines()) <= 150


@pytest.mark.parametrize(
    ("folder", "package"), [("rlsched/decide", "rlsched.decide"), ("envs/rlsched_envs", "rlsched_envs")]
)
def test_imports_follow_the_map(folder: str, package: str) -> None:
    """A module imports modules to its right on its line of the map, else modules of lower lines; all modules
    are listed.
    """
    after = text("docs/architecture.md").partition(f"`{folder}/`:\n")[2]
    rows = [re.split(r"  +", line) for line in blocks(after)[0][1].splitlines()]
    order = [name for _, names in rows for name in names.split()]
    found = (path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py"))
    modules = {str(path.with_suffix("")): ROOT / folder / path for path in found if path.stem != "__init__"}
    assert sorted(order) == sorted(modules)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for imported in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                other = imported.removeprefix(f"{package}.").replace(".", "/")
                if imported.startswith(f"{package}.") and other in modules:
                    assert order.index(other) > order.index(name), f"{name} imports {other}"


# ---- reference pages ------------------------------------------------------------------------------


def test_traces_name_every_column() -> None:
    page = text("docs/reference/traces.md").partition("## Columns")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)[: len(KNOWN)] == list(KNOWN)
    required = re.findall(r"^\| `(\w+)` \|[^|]*\| required \|", page, re.MULTILINE)
    assert required == [column.name for column in BASE if column.required]


def names_of(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Names of settings, including tables."""
    for field in msgspec.structs.fields(kind):
        yield field.name
        for part in get_args(field.type) or (field.type,):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from names_of(part)


def test_policies_name_every_preset_and_setting() -> None:
    page = text("docs/reference/policies.md")
    listed = re.findall(
        r"^\| `([\w-]+)` \| (?:.*?) \| (.*) \|$", page.partition("## Settings")[0], re.MULTILINE
    )
    assert [name for name, _ in listed] == list(presets())
    for name, settings in listed:
        written = "\n".join(re.findall(r"`([^`]+)`", settings))
        assert Policy.parse(written) == Policy(name), name
    assert unnamed(page, names_of(Settings)) == []
    for point in entry_points(group="rlsched.schedulers"):
        assert unnamed(page, [point.name]) == []


def as_shown(value: object) -> str:
    """A default value as a table shows it."""
    if value is msgspec.NODEFAULT:
        return "required"
    if isinstance(value, Seconds):
        return value.text
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_policies_have_the_shown_defaults() -> None:
    sections = re.split(r"^### `(\w+)`$", text("docs/reference/policies.md"), flags=re.MULTILINE)
    parts = {field.name: get_args(field.type) for field in msgspec.structs.fields(Settings)}
    for name, section in zip(sections[1::2], sections[2::2], strict=True):
        table = section.partition("\n## ")[0]
        shown = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| `?([^|`]*)`? \|", table, re.MULTILINE))
        (part,) = (one for one in parts[name] if isinstance(one, type) and issubclass(one, msgspec.Struct))
        assert shown == {one.name: as_shown(one.default) for one in msgspec.structs.fields(part)}, name


def test_clusters_name_every_key(tmp_path: Path) -> None:
    page = text("docs/reference/clusters.md")
    (example,) = [block for language, block in blocks(page) if language == "toml"]
    nodes = ["count", "gpus", "gpu_type", "cpus", "memory_mib", "vc", "mig"]
    assert unnamed(page, [*ClusterSpec.__struct_fields__, *nodes, *get_args(Placement)]) == []
    assert {key for group in tomllib.loads(example)["nodes"] for key in group} == set(nodes)
    (tmp_path / "c.toml").write_text(example)
    assert ClusterSpec.read(tmp_path / "c.toml").num_slices == 8


def test_models_name_every_key(tmp_path: Path) -> None:
    page = text("docs/reference/models.md")
    assert unnamed(page, names_of(Models)) == []
    for kind in (NodePower, PowerDownPlan, Observed):
        assert unnamed(page, list(kind.__struct_fields__)) == []
    (example,) = [block for language, block in blocks(page) if language == "toml"]
    (tmp_path / "m.toml").write_text(example)
    assert Models.read(tmp_path / "m.toml") != Models()


def rows_of(page: str, heading: str) -> list[tuple[list[str], str]]:
    """(names in backticks in the first cell, text of the second cell) of the rows of a section's table."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (`.+?) \| (.*?) \|", section, re.MULTILINE)
    return [(re.findall(r"`([^`]+)`", names), cell) for names, cell in found]


def test_environment_page_has_every_field_of_drawn_with_its_default() -> None:
    page = text("docs/reference/environment.md")
    rows = rows_of(page, "Episode")
    assert [name for names, _ in rows for name in names] == list(Drawn.__struct_fields__)
    for names, shown in rows:
        values = [getattr(Drawn(), name) for name in names]
        numbers = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
        assert [float(one.replace("false", "0")) for one in shown.split(", ")] == numbers, names
    assert f"GPU types, as positions in `GPU_TYPES`: {', '.join(GPU_TYPES)}" in page


def test_environment_page_names_every_column() -> None:
    """Each column is named once, in full or by a beginning that ends in dots."""
    page = text("docs/reference/environment.md")
    listed = [name for names, _ in rows_of(page, "Observation") for name in names]
    begins = [name.removesuffix("...") for name in listed if name.endswith("...")]
    for column in NAMES:
        assert listed.count(column) + sum(column.startswith(one) for one in begins) == 1, column
    unused = [one for one in begins if not any(column.startswith(one) for column in NAMES)]
    assert unused + [one for one in listed if not one.endswith("...") and one not in NAMES] == []
    assert f"`Box(-3, 3, ({NUM_COLUMNS},), float32)`" in page
    assert f"`Box(-1, 1, ({NUM_DIALS},), float32)`" in page


@pytest.mark.parametrize(
    "struct",
    [EvaluationReport, Metrics, GroupMetrics, OverTime, Comparison, Ratio, PolicyUsed, PowerDownMetrics],
)
def test_report_page_names_every_field(struct: type[msgspec.Struct]) -> None:
    assert unnamed(text("docs/reference/report.md"), list(struct.__struct_fields__)) == []


def test_report_page_names_every_column_of_the_job_files() -> None:
    assert unnamed(text("docs/reference/report.md"), list(JOB_COLUMNS)) == []


def test_characterise_names_every_key_of_describe() -> None:
    report = describe(
        Trace.from_columns(name="t", submit_s=[0], duration_s=[1], num_gpus=[1]), ClusterSpec.uniform(1)
    )
    assert unnamed(text("docs/how-to/characterise.md"), list(report)) == []


def arguments(call: Callable[..., object]) -> list[str]:
    """Names of the arguments of a function or method, including an unpacked `TypedDict`."""
    found = []
    for name, one in inspect.signature(call).parameters.items():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            (kind,) = get_args(get_type_hints(call, include_extras=True)[name])
            found += list(get_type_hints(kind))
        elif name != "self":
            found.append(name)
    return found


def test_python_names_every_argument() -> None:
    page = text("docs/reference/python.md")
    table = page.partition("### Arguments of `submit`")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert "num_gpus" in listed
    assert listed == arguments(Client.submit)
    (shown,) = re.findall(r"`rs\.simulate\((\w[^)]+)\)`", page)
    assert [name for name in shown.split(", ") if name != "*"] == arguments(simulate)


def test_python_has_the_shown_defaults() -> None:
    page = text("docs/reference/python.md").partition("### Arguments of `submit`")[2]
    made, defaults = as_submit(["true"]), {"true": True, "false": False}
    for name, shown in re.findall(r"^\| `(\w+)` \| (`[^`]*`|\d+|true|false) \|", page, re.MULTILINE):
        if name not in ("gpu_types", "preferred_types", "depends_on", "array"):
            value = getattr(made, name)
            expected = defaults.get(shown, shown.strip("`").replace('""', ""))
            assert value == expected or str(value) == expected, name


def test_script_of_the_guide_survives_preemption(tmp_path: Path) -> None:
    """Stopped twice, it resumes each time, and exits with 143 until it has finished."""
    (script,) = [block for _, block in blocks(text("docs/how-to/operate.md")) if "STEPS = 600" in block]

    def write(steps: int) -> None:
        words = script
        for long, short in (("STEPS = 600", f"STEPS = {steps}"), ("time.sleep(1.0)", "time.sleep(0.02)")):
            assert words.count(long) == 1
            words = words.replace(long, short)
        (tmp_path / "train.py").write_text(words)

    write(100_000)
    saved = tmp_path / "train.json"
    steps: list[int] = []
    for attempt in (1, 2):
        with subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == f"from step {steps[-1] if steps else 0}\n".encode()
            child.terminate()
            assert child.wait(60.0) == 143, attempt
        steps.append(json.loads(saved.read_text())["step"])
    assert 0 < steps[0] < steps[1] < 100_000
    write(steps[1] + 10)
    assert subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=False).returncode == 0
    assert json.loads(saved.read_text()) == {"step": steps[1] + 10}
