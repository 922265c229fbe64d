"""Options of several verbs are declared once, and what a verb passes on follows from its options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rlsched.broker.base.limits import Limits
from rlsched.broker.server.settings import BrokerSettings
from rlsched.cli.operators.serve import broker
from rlsched.cli.operators.up import up
from rlsched.cli.shared.policies import given_policies
from rlsched.cli.shared.serving_options import as_words
from rlsched.transport.budgets import SenderLimits
from rlsched_node.cli import node
from rlsched_node.config import NodeConfig

ROOT = Path(__file__).parents[3]
FOLDERS = ("rlsched/cli", "agents/rlsched_agents/cli", "node_daemon/rlsched_node")


def declarations() -> Iterator[tuple[str, str, str]]:
    """The names and the whole text of every option that is declared, and where."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in ("click.option", "shown"):
                    names = [ast.unparse(one) for one in call.args]
                    settings = {str(one.arg): ast.unparse(one.value) for one in call.keywords}
                    yield " ".join(names), settings.get("help", ""), f"{path.name}:{call.lineno}"


def test_no_option_is_declared_twice() -> None:
    """An option of the same name and the same meaning belongs into `rlsched/cli/shared`."""
    seen: dict[tuple[str, str], list[str]] = {}
    for names, help_text, where in declarations():
        long = next((one for one in names.split() if one.startswith("'--")), names)
        seen.setdefault((long, help_text), []).append(where)
    assert len(seen) > 150
    assert {key: places for key, places in seen.items() if len(places) > 1} == {}


@pytest.mark.parametrize(
    "flag", ["--json", "--dir", "--broker", "--keys", "--quiet", "--recipe", "--workers"]
)
def test_common_options_come_from_their_one_declaration(flag: str) -> None:
    own = {
        "keys.py",  # --broker: of another machine
        "evaluate.py",  # --json: a file
        "ray_options.py",  # --workers: also of Ray
    }
    places = {where.partition(":")[0] for names, _, where in declarations() if f"'{flag}'" in names}
    assert len(places - own) == 1, places


def read_by(command: click.Command) -> set[str]:
    """The parameters that a verb names; it gathers the others."""
    assert command.callback is not None
    found = inspect.signature(inspect.unwrap(command.callback)).parameters.values()
    return {one.name for one in found if one.kind is not inspect.Parameter.VAR_KEYWORD}


def test_every_option_of_a_broker_is_read() -> None:
    fields = {name for kind in (BrokerSettings, Limits, SenderLimits) for name in kind.__struct_fields__} | {
        "changes"
    }  # read with the policy
    assert {str(one.name) for one in broker.params} - read_by(broker) <= fields


def test_every_option_of_a_node_is_read() -> None:
    assert {str(one.name) for one in node.params} - read_by(node) <= set(NodeConfig.__struct_fields__)


def test_what_decides_in_a_local_cluster_is_passed_on_to_its_broker(tmp_path: Path) -> None:
    words = ["--policy", "easy", "--set", "order=area", "--fallback", "fifo", "--decision-budget-ms", "7"]
    words += ["--grace-s", "3", "--max-grace-s", "9", "--speed-energy", "0.5", "--share"]
    words += ["--prediction", "hedge", "--logdir", str(tmp_path), "--energy", str(tmp_path / "c.toml")]
    with up.make_context("up", list(words)) as ctx:
        decided = {name: value for name, value in ctx.params.items() if name not in read_by(up)}
        passed = as_words(ctx, decided)
    with broker.make_context("broker", list(passed)) as other:
        assert {name: other.params[name] for name in decided} == decided
    assert None not in decided.values()
    with up.make_context("up", []) as ctx:
        decided = {name: value for name, value in ctx.params.items() if name not in read_by(up)}
        with broker.make_context("broker", as_words(ctx, decided)) as other:
            assert {name: other.params[name] for name in decided} == decided


def test_broker_with_prices_follows_them_by_default(tmp_path: Path) -> None:
    energy = ["--energy", str(tmp_path / "c.toml")]
    for words, policy in (([], "tuned"), (energy, "ppo"), ([*energy, "--policy", "easy"], "easy")):
        for verb in (broker, up):
            with verb.make_context("verb", list(words)) as ctx:
                assert [one.text for one in given_policies(ctx)] == [policy]
