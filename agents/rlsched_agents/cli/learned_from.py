"""The options that say what is learned from: the same for every verb that trains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rlsched_agents.ppo.sources import TrainingData

FILE = click.Path(path_type=Path)


@dataclass(frozen=True)
class LearnedFrom:
    """What a command line says of it; fields as the options."""

    traces: tuple[Path, ...]
    histories: tuple[Path, ...]
    form: str
    clusters: tuple[Path, ...]
    synthetic: tuple[str, ...]
    predictability: str

    def check(self) -> None:
        """Find out whether there is anything.

        Raises:
            InputError: there is not, or a trace has no cluster.
        """
        from rlsched.errors import InputError

        if not self.traces and not self.histories and not self.synthetic:
            raise InputError(
                "expected something to train on: --history FILE or --trace T with --cluster C, or "
                "--synthetic LIKE"
            )
        if self.traces and not self.clusters:
            raise InputError("expected a --cluster for the --trace")
        if self.form and not self.histories:
            raise InputError(f"--from {self.form}: it says what a --history is, and there is none")

    def read(self, seed: int, *, quiet: bool) -> list[TrainingData]:
        """Read all of it.

        Args:
            seed: Of synthetic traces.
            quiet: Say nothing of what is read and what histories hold.

        Raises:
            InputError: a file is not what it should be.
        """
        from rlsched.workload.predictability import parse_predictability
        from rlsched_agents.ppo.sources import read_data, synthetic_data

        def tell(line: str) -> None:
            if not quiet:
                click.echo(line, err=True)

        data = read_data(self.traces, self.clusters, self.histories, self.form, tell)
        level = parse_predictability(self.predictability)
        for like in self.synthetic:
            tell(f"drawing synthetic traces like {like}")
            data.append(synthetic_data(like, seed, level))
        return data


def learned_from(predictability: str) -> Callable[[Any], Any]:
    """The options of `LearnedFrom`, which the command gets first; `--predictability` is this by default."""
    options = (
        click.option(
            "--trace",
            "traces",
            multiple=True,
            type=FILE,
            metavar="T",
            help="Trace to learn from; may be repeated, each with its --cluster. Its last 20 % stay "
            "untouched.",
        ),
        click.option(
            "--history",
            "histories",
            multiple=True,
            type=FILE,
            metavar="FILE",
            help="History of your own to learn from, as it is: sacct's output, or whatever `rlsched trace "
            "convert` reads; may be repeated, each with its --cluster. Its last 20 % confirm.",
        ),
        click.option(
            "--from",
            "form",
            default="",
            metavar="FORMAT",
            help="Format of the --history (see: rlsched trace convert --help). [default: as recognised]",
        ),
        click.option(
            "--cluster",
            "clusters",
            multiple=True,
            type=FILE,
            metavar="C",
            help="Cluster (TOML) of each trace, then of each history; one alone serves all. A history may do "
            "without where its format describes nodes.",
        ),
        click.option(
            "--synthetic",
            multiple=True,
            type=click.Choice(["helios", "philly", "itp"]),
            metavar="LIKE",
            help="Learn from a synthetic trace as well: helios, philly or itp; may be repeated.",
        ),
        click.option(
            "--predictability",
            default=predictability,
            show_default=True,
            metavar="LEVEL",
            help="How well durations of synthetic jobs are predicted (see: rlsched trace synth --help).",
        ),
    )

    def add(command: Any) -> Any:
        @functools.wraps(command)
        def gathered(
            traces: tuple[Path, ...],
            histories: tuple[Path, ...],
            form: str,
            clusters: tuple[Path, ...],
            synthetic: tuple[str, ...],
            predictability: str,
            **others: Any,
        ) -> Any:
            return command(
                LearnedFrom(traces, histories, form, clusters, synthetic, predictability), **others
            )

        found: Any = gathered
        for option in reversed(options):
            found = option(found)
        return found

    return add


def make_writable(folder: Path) -> None:
    """Make a folder and try it now, because a long run must not end on one that cannot be written.

    Raises:
        InputError: it cannot.
    """
    from tempfile import TemporaryFile

    from rlsched.errors import InputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: cannot write here: {error.strerror}; name another folder") from error
