"""Options `--policy` and `--set` of several verbs, and `rlsched policies`, which lists and shows policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from rlsched.cli.shared.options import JSON, Command
from rlsched.terminal.show import print_json, print_sentences

if TYPE_CHECKING:
    from rlsched.decide.policies.policy import Policy

_NAMES = ("policies", "policy", "fallback")
_SAID = "rlsched.said"
POLICY_WITH_PRICES: Final = "ppo"
"""Default policy of a broker that knows prices of electricity."""


class PolicyArgument(NamedTuple):
    """A policy as given on a command line.

    Attributes:
        option: `--policy` or `--fallback`.
        text: Text that `Policy.of` parses.
        changes: Values of the `--set` options for this policy, as KEY=VALUE.
    """

    option: str
    text: str
    changes: tuple[str, ...]

    @property
    def policy(self) -> Policy:
        """The policy with its changed settings.

        Raises:
            UnknownPolicyError: there is no such policy.
            InputError: a file or a setting is invalid.
        """
        from rlsched.decide.policies.policy import Policy

        return Policy.of(self.text).changed(self.changes)


class PolicyCommand(click.Command):
    """A command with `--policy` and `--set`. Each `--set` applies to the policy that precedes it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options, and record the order of `--policy`, `--fallback` and `--set`."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_SAID] = [str(one.name) for one in order]
        return super().parse_args(ctx, args)


def given_policies(ctx: click.Context) -> list[PolicyArgument]:
    """Return the policies of a command line, in order, each with its settings.

    If a verb accepts only one policy, the last one counts, as for any other option. Without `--policy`, the
    policy is the option's default, or `POLICY_WITH_PRICES` with `--energy`.

    Raises:
        UsageError: a `--set` has no policy before it.
    """
    given: dict[str, list[str]] = {}
    for name in (*_NAMES, "changes"):
        value = ctx.params.get(name)
        given[name] = [value] if isinstance(value, str) else list(value or ())
    found: list[tuple[str, str | None, list[str]]] = []
    if ctx.get_parameter_source("policy") is click.core.ParameterSource.DEFAULT:
        name = given["policy"].pop(0)
        found.append(("--policy", POLICY_WITH_PRICES if ctx.params.get("energy") else name, []))
    order = ctx.meta[_SAID]
    for at, name in enumerate(order):
        if name in _NAMES:
            option = "--fallback" if name == "fallback" else "--policy"
            overruled = isinstance(ctx.params[name], str) and name in order[at + 1 :]
            found.append((option, None if overruled else given[name].pop(0), []))
        elif name == "changes":
            change = given[name].pop(0)
            if not found:
                raise click.UsageError(f"--set {change}: expected a --policy before it", ctx)
            found[-1][2].append(change)
    return [
        PolicyArgument(option, text, tuple(changes)) for option, text, changes in found if text is not None
    ]


def complete_policy(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return shell completions: policy names that begin with `begun`, or files if no name does."""
    from rlsched.decide.policies.presets import PRESETS

    named = [CompletionItem(name) for name in PRESETS if name.startswith(begun)]
    return named or [CompletionItem(begun, type="file")]


setting = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of the policy that precedes this option, such as share.min_speed=0.5; may be "
    "repeated.",
)


def policies_option(help: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return the option `--policy` of a verb that takes several policies; `given_policies` reads them."""
    return click.option(
        "--policy",
        "policies",
        multiple=True,
        required=required,
        metavar="NAME|FILE",
        shell_complete=complete_policy,
        help=help,
    )


@click.group(invoke_without_command=True)
@JSON
@click.pass_context
def policies(ctx: click.Context, as_json: bool) -> None:
    """List the named policies.

    `rlsched policies show NAME` prints a policy as a TOML file, which you can edit to define your own policy.

    \b
    Example:
      rlsched policies
      rlsched policies show easy > ours.toml
      rlsched evaluate --trace t.csv.gz --cluster c.toml --policy ours.toml --policy easy --set order=area
    """
    if ctx.invoked_subcommand is not None:
        return
    from rlsched.decide.policies.policy import presets

    if as_json:
        print_json({name: {"line": one.line, "settings": one.settings} for name, one in presets().items()})
        return
    width = max(map(len, presets()))
    print_sentences((f"{name:{width}}  {one.line}" for name, one in presets().items()), indent=width + 2)


@policies.command()
@click.argument("policy", metavar="NAME|FILE", shell_complete=complete_policy)
@setting
@JSON
def show(policy: str, changes: Sequence[str], as_json: bool) -> None:
    """Describe a policy: its behaviour, its digest (a hash of the settings), and all settings as TOML.

    \b
    Example:
      rlsched policies show easy --set order=area
    """
    from rlsched.cli.shared.settings_shown import sentences, shown
    from rlsched.decide.policies.policy import Policy, presets

    found = Policy.of(policy).changed(changes)
    if as_json:
        body: dict[str, Any] = {"name": found.name, "digest": found.digest, "toml": found.toml}
        print_json(body)
        return
    preset = presets().get(found.name)
    click.echo(f"# {found.name}" + (f": {preset.line}" if preset else ""))
    click.echo(f"# digest {found.digest}")
    for sentence in sentences(found):
        click.echo(f"# {sentence}")
    click.echo(shown(found), nl=False)
