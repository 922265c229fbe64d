"""Command-line options that name training data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlsched.cli.shared.options import PATH, shown

if TYPE_CHECKING:
    from rlsched_agents.dials.training_data import TrainingData
    from rlsched_envs.training.tariffs import Tariff

DAY_H = 24.0
SYNTHETIC_DAYS = 730
"""Length of a synthetic price series, days."""


@dataclass(frozen=True)
class LearnedFrom:
    """The training data that a command line names. Each field has the value of one option."""

    traces: tuple[Path, ...]
    histories: tuple[Path, ...]
    form: str
    clusters: tuple[Path, ...]
    synthetic: tuple[str, ...]
    predictability: str
    prices: tuple[str, ...] = ()
    known_ahead_h: float = 0.0

    def check(self) -> None:
        """Check that the options name training data.

        Raises:
            InputError: no training data is named, a trace has no cluster, or an option is invalid.
        """
        from rlsched.errors import InputError

        if not self.traces and not self.histories and not self.synthetic:
            raise InputError(
                "expected training data: --history FILE, --trace T with --cluster C, or --synthetic LIKE; "
                "got none"
            )
        if self.traces and not self.clusters:
            raise InputError("--trace needs the cluster file of the trace: give --cluster too")
        if self.form and not self.histories:
            raise InputError(
                f"--from {self.form} works only with --history: expected a --history in this format, got none"
            )
        if not 0.0 <= self.known_ahead_h <= DAY_H:
            raise InputError(f"--known-ahead {self.known_ahead_h:g}: expected hours from 0 to {DAY_H:g}")

    def read(self, seed: int, *, quiet: bool) -> list[TrainingData]:
        """Read and return all training data.

        Args:
            seed: Seed of synthetic traces.
            quiet: If false, prints which files are read and what they contain.

        Raises:
            InputError: a file is invalid.
        """
        from rlsched.workload.predictability import parse_predictability
        from rlsched_agents.dials.training_data import read_data, synthetic_data

        def tell(line: str) -> None:
            if not quiet:
                click.echo(line, err=True)

        data = read_data(self.traces, self.clusters, self.histories, self.form, tell)
        level = parse_predictability(self.predictability)
        for like in self.synthetic:
            tell(f"drawing synthetic traces like {like}")
            data.append(synthetic_data(like, seed, level))
        tariffs = self._tariffs(seed, tell)
        return [one.with_tariffs(tariffs) for one in data] if tariffs else data

    def _tariffs(self, seed: int, tell: Callable[[str], None]) -> list[Tariff]:
        from datetime import UTC, datetime

        from rlsched.energy.series import HOUR_S, Series
        from rlsched.energy.synth import MEANS, synthesize
        from rlsched.errors import InputError
        from rlsched_envs.training.tariffs import Tariff

        found = []
        for name in self.prices:
            if name in MEANS:
                tell(f"drawing {SYNTHETIC_DAYS} days of prices like {name}")
                series = synthesize(name, datetime(2026, 1, 1, tzinfo=UTC), SYNTHETIC_DAYS, seed=seed)
            else:
                if not Path(name).is_file():
                    raise InputError(
                        f"--signal {name}: expected a CSV file or one of {', '.join(MEANS)}; no such file"
                    )
                series = Series.read(name)
                tell(f"{name}: prices from {series.begins:%Y-%m-%d} to {series.ends:%Y-%m-%d}")
            found.append(Tariff.of(series, self.known_ahead_h * HOUR_S))
        return found


def learned_from(predictability: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of `LearnedFrom` to a command.

    `predictability`: default of the option `--predictability`.
    """
    options = (
        click.option(
            "--trace",
            "traces",
            multiple=True,
            type=PATH,
            metavar="T",
            help="Trace to learn from; may be repeated, each with its own --cluster. The last 20 % of the "
            "trace are not used.",
        ),
        click.option(
            "--history",
            "histories",
            multiple=True,
            type=PATH,
            metavar="FILE",
            help="Job history of your site to learn from, which is the output of sacct or another format of "
            "`rlsched trace convert`; may be repeated, each with its own --cluster. The last 20 % serve to "
            "confirm the result.",
        ),
        click.option(
            "--from",
            "form",
            default="",
            metavar="FORMAT",
            help="Format of --history, as in `rlsched trace convert --from`. [default: detected]",
        ),
        click.option(
            "--cluster",
            "clusters",
            multiple=True,
            type=PATH,
            metavar="C",
            help="Cluster file (TOML); may be repeated: one for each --trace, then one for each --history. A "
            "single file applies to all. Not required without --trace if the format of each --history "
            "describes the nodes.",
        ),
        click.option(
            "--synthetic",
            multiple=True,
            type=click.Choice(["helios", "philly", "itp"]),
            metavar="LIKE",
            help="Learn from a synthetic trace that imitates the published trace helios, philly or itp; may "
            "be repeated.",
        ),
        shown(
            "--predictability",
            default=predictability,
            metavar="LEVEL",
            help="Accuracy of the predicted durations of synthetic jobs, as in `rlsched trace synth "
            "--predictability`.",
        ),
        click.option(
            "--signal",
            "prices",
            multiple=True,
            metavar="PRICES",
            help="Electricity prices or carbon intensities that the policy learns to follow: a CSV file "
            "(docs/how-to/signals.md), or solar, wind, spiky or flat for a synthetic series; may be "
            "repeated. Jobs then accept delays (slack), and the cost of electricity replaces energy in the "
            "objective.",
        ),
        shown(
            "--known-ahead",
            "known_ahead_h",
            type=float,
            default=12.0,
            metavar="HOURS",
            help="How far ahead the prices of --signal are known, hours: 12 in a day-ahead market, 0 in a "
            "real-time market.",
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
            prices: tuple[str, ...],
            known_ahead_h: float,
            **others: Any,
        ) -> Any:
            given = LearnedFrom(
                traces, histories, form, clusters, synthetic, predictability, prices, known_ahead_h
            )
            return command(given, **others)

        found: Any = gathered
        for option in reversed(options):
            found = option(found)
        return found

    return add


def recipe_option(help: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the option `--recipe`."""
    return shown("--recipe", default="default", metavar="NAME", help=help)


def make_writable(folder: Path) -> None:
    """Create a folder before a long run, and check that files can be written there.

    Raises:
        InputError: the folder cannot be created or written.
    """
    from tempfile import TemporaryFile

    from rlsched.errors import InputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: cannot write here: {error.strerror}; name another folder") from error
