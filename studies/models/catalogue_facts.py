"""The measured facts behind the catalogue of workloads: shared data, and figures of the literature."""

from __future__ import annotations

import csv
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
GAVEL_TYPES: Final = {"V100": "v100", "P100": "p100"}


class Epoch(NamedTuple):
    """One setting of the power-limit traces, on one GPU: seconds an epoch and power, by limit in W."""

    time_s: dict[int, float]
    power_w: dict[int, float]

    @property
    def free(self) -> int:
        """The highest limit: no cap."""
        return max(self.time_s)


class Pair(NamedTuple):
    """Two jobs on one GPU: speeds relative to each unshared, 0 if they did not fit."""

    first: str
    second: str
    speed_first: float
    speed_second: float

    @property
    def fits(self) -> bool:
        return self.speed_first > 0 and self.speed_second > 0


class Facts:
    """The files in `facts/` of the shared data. Every property reads its file once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.literature: dict[str, Any] = tomllib.loads(
            (HERE / "catalogue_literature.toml").read_text(encoding="utf-8")
        )
        self.assumed: dict[str, Any] = tomllib.loads(
            (HERE / "catalogue_assumed.toml").read_text(encoding="utf-8")
        )

    def rows(self, name: str) -> Iterator[dict[str, str]]:
        with (self.folder / name).open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)

    @cached_property
    def epochs(self) -> dict[str, dict[str, dict[int, Epoch]]]:
        """Power-limit traces: GPU type, data set, batch size. One optimizer each, the first in the file."""
        out: dict[str, dict[str, dict[int, Epoch]]] = defaultdict(lambda: defaultdict(dict))
        optimizer: dict[tuple[str, str], str] = {}
        for row in self.rows("power_limit_curves.csv"):
            key = (row["gpu"], row["dataset"])
            if optimizer.setdefault(key, row["optimizer"]) != row["optimizer"]:
                continue
            epoch = out[row["gpu"]][row["dataset"]].setdefault(int(row["batch_size"]), Epoch({}, {}))
            limit = int(row["power_limit"])
            epoch.time_s[limit] = float(row["time_per_epoch"])
            epoch.power_w[limit] = float(row["average_power"])
        return out

    @cached_property
    def solo(self) -> dict[str, dict[str, float]]:
        """Gavel's steps a second unshared on one GPU: GPU type, job."""
        out: dict[str, dict[str, float]] = defaultdict(dict)
        for row in self._single:
            out[row["gpu"]].update({row["job1"]: float(row["solo1"]), row["job2"]: float(row["solo2"])})
        return out

    @cached_property
    def pairs(self) -> dict[str, list[Pair]]:
        """Gavel's pairs on one GPU, each once."""
        out: dict[str, list[Pair]] = defaultdict(list)
        seen = set()
        for row in self._single:
            key = (row["gpu"], *sorted((row["job1"], row["job2"])))
            if key not in seen:
                seen.add(key)
                pair = Pair(row["job1"], row["job2"], float(row["rel1"]), float(row["rel2"]))
                out[row["gpu"]].append(pair)
        return out

    @cached_property
    def _single(self) -> list[dict[str, str]]:
        return [row for row in self.rows("pair_speeds_gavel.csv") if row["gpus1"] == row["gpus2"] == "1"]

    @cached_property
    def latent(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Sensitivity and pressure by Gavel's GPU type and job."""
        return {
            (row["gpu"], row["job"]): (float(row["sensitivity"]), float(row["pressure"]))
            for row in self.rows("pair_latent_gavel.csv")
        }

    @cached_property
    def dvfs(self) -> dict[str, tuple[float, float]]:
        """rho and dynamic power (W) on a V100 of the deep-learning workloads of the clock data."""
        return {
            row["workload"]: (float(row["rho"]), float(row["A_dyn_w"]))
            for row in self.rows("dvfs_v100_fitted_params.csv")
            if row["is_dl"] == "True"
        }

    @cached_property
    def stages(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Muri: iteration and GPU-stage time, ms, by model and number of GPUs."""
        return {
            (row["model_name"], int(row["num_gpu"])): (
                float(row["iteration_time"]),
                float(row["resource_time_1"]),
            )
            for row in self.rows("muri_stage_times.csv")
        }

    @cached_property
    def slices(self) -> dict[str, dict[int, dict[str, float]]]:
        """MISO: speed on each slice of an A100 that holds the job, over the whole: model, batch, slice."""
        out: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
        for row in self.rows("mig_slice_speed_a100.csv"):
            cells = {name: row[name] for name in ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")}
            out[row["model"]][int(row["batch"])] = {name: float(cell) for name, cell in cells.items() if cell}
        return out

    @cached_property
    def profiles(self) -> dict[str, list[tuple[float, float]]]:
        """Synergy: (cores a GPU, throughput relative to three), with the most memory."""
        best: dict[tuple[str, float], float] = {}
        for row in self.rows("cpu_sensitivity_synergy.csv"):
            key = (row["model"], float(row["cpu_cores"]))
            best[key] = max(best.get(key, 0.0), float(row["rel_tput_vs_3cores"]))
        out: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (model, cores), speed in sorted(best.items()):
            out[model].append((cores, speed))
        return out


def gavel_batch(job: str) -> tuple[str, int]:
    """A job of Gavel as (model, batch size); A3C has 4 and CycleGAN 1, which their names leave out."""
    found = re.fullmatch(r"(.+) \(batch size (\d+)\)", job)
    if found:
        return found[1], int(found[2])
    return job, {"A3C": 4, "CycleGAN": 1}[job]
