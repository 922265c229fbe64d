"""`rlsched warm`: compiles in advance the kernels that other commands would compile on first use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rlsched.cli.shared.options import JSON
from rlsched.cli.shared.policies import PolicyCommand, given_policies, policies_option, setting
from rlsched.compile.compiling import COMPILING
from rlsched.terminal.show import print_json

if TYPE_CHECKING:
    from rlsched.decide.policies.policy import Policy

DEFAULT = "tuned"
BUDGET_MS = 60_000.0
"""Time limit for a decision, milliseconds. It is long because the first decision compiles kernels."""


@click.command(cls=PolicyCommand)
@policies_option(
    "Policy to compile: a name that `rlsched policies` lists, ppo:PATH, or a file; may be repeated. "
    f"[default: {DEFAULT}]"
)
@setting
@JSON
@click.pass_context
def warm(
    ctx: click.Context,
    policies: Sequence[str],
    changes: Sequence[str],  # noqa: ARG001 - `given_policies` passes it together with the policies
    as_json: bool,
) -> None:
    """Compile a policy in advance, so that a broker or `rlsched evaluate` need not compile it on first use.

    The compiled code (kernels) stays on disk until the version of rlsched changes, or until it was not used
    for 30 days. With it, `rlsched up` and `rlsched broker` are ready within seconds.

    \b
    Example:
      rlsched warm
      rlsched warm --policy ppo --policy easy --json
    """
    if not as_json:
        click.echo("looking for kernels that are already compiled", err=True)
    with COMPILING.during("loading the compiler"):
        from rlsched.compile.kernel_cache import folder
        from rlsched.decide.policies.policy import Policy

    rows: list[dict[str, Any]] = []
    for policy in [one.policy for one in given_policies(ctx)] if policies else [Policy(DEFAULT)]:
        began_s, compiled = time.monotonic(), COMPILING.compiled
        compile_for(policy)
        row = {
            "policy": policy.name,
            "compiled": COMPILING.compiled - compiled,
            "took_s": round(time.monotonic() - began_s, 3),
        }
        rows.append(row)
        if not as_json:
            what = f"{row['compiled']} kernels compiled" if row["compiled"] else "nothing left to compile"
            click.echo(f"{policy.name}: {what}, {row['took_s']:.1f} s")
    place = str(folder("entries").parent)
    if as_json:
        print_json({"policies": rows, "folder": place})
    else:
        click.echo(f"stored in {place}")


def compile_for(policy: Policy) -> None:
    """Compile the kernels that a policy needs in a replay, and in a broker without models.

    A policy that needs models or the true run times is compiled only for a replay.

    Raises:
        InputError: the policy cannot be loaded.
    """
    from rlsched.broker.server.ahead import pieces
    from rlsched.broker.server.broker_policy import load_policy
    from rlsched.compile.ahead import compile_pieces
    from rlsched.decide.registry import load_scheduler

    scheduler = load_scheduler(policy)
    if not scheduler.oracle and not scheduler.abilities.needs_models:
        ahead, behind = pieces(policy, scheduler), scheduler.reference
        if behind is not None:
            ahead += pieces(behind, load_scheduler(behind))
        compile_pieces([*ahead, partial(replay, policy)])
        load_policy(policy, None, BUDGET_MS)
    replay(policy)


def replay(policy: Policy) -> None:
    """Replay a few jobs under a policy to compile its kernels, with models if the policy needs them."""
    from rlsched.decide.registry import load_scheduler
    from rlsched.workload.synth import synthesize
    from rlsched_agents.evaluate.simulate import simulate

    trace, spec = synthesize("helios", jobs=20, load=0.9, gpus=16, seed=1)
    models = "default" if load_scheduler(policy).abilities.needs_models else None
    simulate(trace, spec, [policy], models=models, progress=False, workers=1)
