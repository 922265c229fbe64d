"""The options `--workers` and `--ray` of the verbs that run on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def ray_options(what: str, note: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options `--workers` and `--ray` to a verb.

    Args:
        what: Plural noun for the units that run in parallel, for the help texts.
        note: Sentence that ends the help text of `--ray`.
    """

    def add(verb: Callable[..., Any]) -> Callable[..., Any]:
        on_ray = f"Run the {what} on a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT."
        verb = click.option("--ray", metavar="ADDRESS", help=f"{on_ray} {note}".strip())(verb)
        return click.option(
            "--workers",
            type=click.IntRange(min=1),
            metavar="N",
            help=f"Number of {what} that run in parallel. [default: one per core; with --ray, as many as the "
            "cluster allows]",
        )(verb)

    return add
