"""`rlsched engine slurm --shadow`: follows a Slurm cluster without changing the cluster."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from rlsched.engine.reader import Reader
from rlsched.logs import LogFormat, set_up


def follow(
    ctx: click.Context,
    reader: Reader,
    directory: Path,
    poll_s: float,
    history: Path | None,
    *,
    preempt: bool,
    log_format: LogFormat,
) -> int:
    """Follow a Slurm cluster until a signal arrives, without changing the cluster; return the exit code.

    Raises:
        InputError: Slurm cannot be followed, or the policy or the directory is invalid.
    """
    is_seen = sys.stderr.isatty()
    if is_seen:
        click.echo(f"following partitions {', '.join(reader.partitions)} of this Slurm cluster", err=True)
    import threading

    from rlsched.broker.server.settings import BrokerSettings
    from rlsched.cli.shared.policies import given_policies
    from rlsched.decide.policies.policy import Policy
    from rlsched.engine.facts import SlurmError
    from rlsched.engine.partitions import empty, unlike
    from rlsched.engine.rights import check_sight
    from rlsched.engine.shadow.shadow_loop import ShadowBroker, forgets_after_s
    from rlsched.errors import InputError
    from rlsched.signals import on_signals

    policy, partitions = given_policies(ctx)[0].policy, reader.partitions
    config = reader.check()
    check_sight(config)
    forgets_after_s(config, poll_s)
    try:
        first = reader.facts()
    except SlurmError as error:
        raise InputError(str(error)) from error
    for line in (*unlike(first, partitions, "give"), *empty(first, partitions)):
        raise InputError(line)
    if is_seen:
        click.echo(f"loading policy {Policy.of(policy).name}", err=True)
    announce = set_up(log_format, level=logging.WARNING, timed=False)
    stop = threading.Event()
    settings = BrokerSettings(address="", directory=directory, keys=directory, policy=policy, history=history)
    shadow = ShadowBroker(settings, reader, config, poll_s, preempts=preempt)
    try:
        with on_signals(lambda *_: stop.set()):
            announce(shadow.ready_line())
            shadow.serve(stop)
    finally:
        shadow.close()
    return 0
