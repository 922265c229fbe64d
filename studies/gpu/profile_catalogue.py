"""Measure workloads on this machine's GPU, unshared, in pairs and by CPU cores, as rows of the catalogue.

    .venv/bin/python -m studies.gpu.profile_catalogue                # five minutes, the most important ones
    .venv/bin/python -m studies.gpu.profile_catalogue --budget-s 7200 --resume runs/gpu/record.jsonl

Needs an otherwise unused NVIDIA GPU; all input is synthetic. Clocks, power limits and modes stay
unchanged. Measurements that do not fit the budget are named, with the reason. Writes rows.csv, pairs.csv,
rows.json and record.jsonl into --out; studies/gpu/README.md describes them.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rlsched.errors import InputError, RlschedError
from studies.gpu.children import MeasurementError
from studies.gpu.conductor import Settings, measure
from studies.gpu.mps import CONTROL, MpsError
from studies.gpu.opening import open_machine
from studies.gpu.plan import Budget, Step, all_steps
from studies.gpu.protocol import Host, Measurement, encode, read_record
from studies.gpu.results_out import Skipped, write_results
from studies.gpu.workloads import workload_of

SHOWN = 6
"""Number of skipped measurements printed for each reason; rows.json has all of them."""
CPU_ONLY_WINDOW_S = 0.2
"""Window in a rehearsal, seconds. It is shorter, because there is no energy counter."""


class Run:
    """All measurements that fit, one after another, each written at once.

    Args:
        host: This machine.
        taken: Measurements of an earlier run: not repeated.
        record: File to which measurements are appended.
    """

    def __init__(self, host: Host, settings: Settings, taken: list[Measurement], record: Path) -> None:
        self.taken = list(taken)
        self.skipped: list[Skipped] = []
        self._host = host
        self._settings = settings
        self._record = record
        self._no_mps = ""

    def reason_against(self, step: Step) -> str:
        """Reason why a measurement is impossible; empty if it is possible."""
        if step.mode == "mps":
            if self._settings.is_rehearsal:
                return "MPS needs a GPU"
            return self._no_mps or ("" if shutil.which(CONTROL) else f"{CONTROL} is not installed")
        if self._settings.is_rehearsal and step.kind in ("idle", "held"):
            return "a rehearsal has no GPU to sample"
        if step.cores > self._host.cpu_cores:
            return f"this machine has {self._host.cpu_cores} CPU cores"
        return ""

    def go(self, steps: list[Step], budget_s: float) -> None:
        """Take the measurements in their order until the budget is spent."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        known = {one.key for one in self.taken}
        steps = [step for step in steps if step.key not in known]
        start_s = time.monotonic()
        budget = Budget(budget_s, self._settings.seconds + self._settings.settle_s)
        columns = (
            TextColumn("{task.description:44}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bars:
            bar = bars.add_task("", total=len(steps))
            for step in steps:
                bars.update(bar, description=step.text)
                began_s = time.monotonic()
                why = self.reason_against(step)
                if not why and not budget.fits(step, began_s - start_s):
                    why = f"does not fit the budget of {budget_s:.0f} s"
                why = why or self._take(step)
                if why:
                    self.skipped.append(Skipped(step.text, why))
                else:
                    budget.note(step, time.monotonic() - began_s)
                bars.advance(bar)

    def _take(self, step: Step) -> str:
        """Take one measurement and write it. Return why it failed; "" if it succeeded."""
        try:
            measurement = measure(step, self._settings)
        except MeasurementError as error:
            return str(error)
        except MpsError as error:
            self._no_mps = str(error)
            return self._no_mps
        self.taken.append(measurement)
        with self._record.open("a", encoding="utf-8") as file:
            file.write(encode(measurement) + "\n")
        return ""


def main() -> int:
    """Read the command line, check the machine, measure, write."""
    arguments = parse()
    host, gpus = open_machine(arguments.gpu, is_rehearsal=arguments.rehearse, may_be_busy=arguments.busy)
    try:
        record = arguments.out / "record.jsonl"
        taken = resume(arguments.resume, host) if arguments.resume else []
        arguments.out.mkdir(parents=True, exist_ok=True)
        lines = [encode(host), *(encode(one) for one in taken)]
        record.write_text("\n".join(lines) + "\n", encoding="utf-8")
        settings = Settings(
            seconds=arguments.seconds,
            window_s=CPU_ONLY_WINDOW_S if arguments.rehearse else max(1.0, arguments.seconds / 10),
            warmup_s=CPU_ONLY_WINDOW_S if arguments.rehearse else 1.0,
            settle_s=CPU_ONLY_WINDOW_S if arguments.rehearse else 1.0,
            gpus=gpus,
            gpu=arguments.gpu,
            say=lambda line: print(line, file=sys.stderr),
        )
        run = Run(host, settings, taken, record)
        status = 0
        try:
            run.go(chosen(arguments), arguments.budget_s)
        except KeyboardInterrupt:
            status = 130
            print(f"stopped; go on with --resume {record}", file=sys.stderr)
        finally:  # however it ended: keep the measurements
            rows, pairs = write_results(arguments.out, host, run.taken, run.skipped, arguments.reference)
    finally:
        if gpus is not None:
            gpus.close()
    tell(host, run, len(rows), len(pairs), arguments.out)
    return status


def tell(host: Host, run: Run, rows: int, pairs: int, folder: Path) -> None:
    """Print the numbers of measurements and rows, and the skipped measurements by reason."""
    print(f"{host.gpu_type}: {len(run.taken)} measurements, {rows} rows, {pairs} pair rows in {folder}")
    by_reason: dict[str, list[str]] = {}
    for what, why in run.skipped:
        by_reason.setdefault(why, []).append(what)
    for why, texts in by_reason.items():
        more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        print(f"skipped {len(texts)}, {why}: {'; '.join(texts[:SHOWN])}{more}")
    if by_reason:
        print(f"all skipped measurements are in {folder / 'rows.json'}")


def resume(path: Path, host: Host) -> list[Measurement]:
    """Measurements of an earlier run on the same GPU type.

    Raises:
        InputError: The file is no record, or was taken on another GPU type.
    """
    earlier, taken = read_record(path)
    if (earlier.gpu_type, earlier.is_rehearsal) != (host.gpu_type, host.is_rehearsal):
        raise InputError(f"--resume {path}: taken on {earlier.gpu_type}, and this is {host.gpu_type}")
    return taken


def chosen(arguments: argparse.Namespace) -> list[Step]:
    """The requested measurements, in order."""
    steps = all_steps(is_small=arguments.rehearse)
    if arguments.workload:
        for name in arguments.workload:
            workload_of(name)
        steps = [step for step in steps if {job.workload for job in step.jobs} <= set(arguments.workload)]
    if arguments.kind:
        steps = [step for step in steps if step.kind in arguments.kind]
    return steps


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", type=int, default=0, help="number of the GPU [default: %(default)s]")
    parser.add_argument(
        "--seconds", type=seconds, default=4.0, help="of each measurement [default: %(default)s]"
    )
    parser.add_argument("--budget-s", type=seconds, default=300.0, help="in all [default: %(default)s]")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder [default: %(default)s]")
    parser.add_argument(
        "--resume", type=Path, metavar="RECORD", help="record.jsonl of an earlier run to continue"
    )
    parser.add_argument("--reference", type=Path, metavar="ROWS", help="rows.csv of the GPU type of speed 1")
    parser.add_argument("--workload", action="append", help="only these [default: all]")
    parser.add_argument(
        "--kind", action="append", choices=("idle", "held", "alone", "pair", "cores"), help="only these"
    )
    parser.add_argument("--busy", action="store_true", help="measure although other processes use the GPU")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="shrunken workloads on the CPU: tests the procedure, measures nothing",
    )
    return parser.parse_args()


def seconds(text: str) -> float:
    """A time of at least one second."""
    value = float(text)
    if not 1.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected at least 1 second, got {text}")
    return value


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM ends a run as Ctrl-C does: children and MPS daemon first."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        raise SystemExit(main())
    except RlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
