"""Make the data files of the catalogue of workloads (`rlsched/models/catalogue/*.csv`) from measured facts.

    RLSCHED_DATA=../shared python -m studies.models.make_catalogue            # writes them
    RLSCHED_DATA=../shared python -m studies.models.make_catalogue --check    # 1 if they would change

Every cell is *measured* (a figure of the source for this very workload and GPU type), *fitted* (a formula
with constants fitted to measurements, whose error is in sources.csv), *assumed* (the reason is in
`catalogue_assumed.toml`), or *defined*: the speed on the reference type.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rlsched.models.catalogue.table import FAMILIES, FIELDS, FOLDER, GPU_TYPES, REFERENCE_TYPE, workload_name
from rlsched.models.gpu_types import GPU_FIGURES
from studies.models.catalogue_facts import GAVEL_TYPES, Facts, gavel_batch
from studies.models.catalogue_fits import BATCH_EXPONENT, Fits

MAX_MEMORY_ERROR: Final = 0.35
"""A bracket wider than this on either side is too wide to call the memory fitted."""
UNKNOWN_ITERATION_MS: Final = 100.0
DEFINED, MEASURED, FITTED, ASSUMED = "defined", "measured", "fitted", "assumed"


class Cell(NamedTuple):
    value: float
    status: str
    source: str

    def bounded(self, low: float, high: float) -> Cell:
        return self._replace(value=min(max(self.value, low), high))


class Workload(NamedTuple):
    family: str
    batch: int  # 0: unknown

    @property
    def name(self) -> str:
        return workload_name(self.family, self.batch)


class Maker:
    """The cells of all workloads in sequence."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.fits = facts, Fits(facts)
        self.rules = facts.assumed["rules"]
        self.fixed = {(c["family"], c["field"]): c for c in facts.assumed["cell"]}
        self.cell = cache(self._cell)

    def of(self, workload: Workload) -> dict[str, Any]:
        return dict(self.facts.literature["family"][workload.family])

    def _cell(self, workload: Workload, kind: str, field: str) -> Cell | None:
        if kind == "generic":
            like = self.cell(workload, REFERENCE_TYPE, field)
            return like and Cell(like.value, ASSUMED, "assumed:generic")
        make: dict[str, Callable[[Workload, str], Cell | None]] = {
            "util_frac": self.util, "memory_mib": self.memory, "clock_bound": self.clock_bound,
            "dynamic_w": self.dynamic, "sensitivity": self.latent(0), "pressure": self.latent(1),
            "speed": self.speed, "cores_each": self.cores, "node_penalty": self.penalty,
            "checkpoint_s": self.checkpoint,
        }  # fmt: skip
        return make[field](workload, kind)

    def reference(self, workload: Workload, field: str) -> Cell:
        cell = self.cell(workload, REFERENCE_TYPE, field)
        assert cell is not None
        return cell

    def assumed(self, workload: Workload, field: str) -> Cell | None:
        entry = self.fixed.get((workload.family, field))
        return entry and Cell(float(entry["value"]), ASSUMED, f"assumed:{entry['reason']}")

    # --- the fields

    def util(self, workload: Workload, kind: str) -> Cell:
        row, batch, fits = self.of(workload), workload.batch, self.fits
        if kind in GAVEL_TYPES and row["class"] != "light" and row.get("gavel") != "CycleGAN":
            own = fits.zeus_util(kind, row.get("zeus", ""), batch) or fits.gavel_util(
                kind, row.get("gavel", ""), batch
            )
            if own is not None:
                return Cell(own, FITTED, "util-by-batch").bounded(0.02, 1.0)
        if kind == "A100" and "miso" in row and batch in self.facts.slices[row["miso"]]:
            return Cell(fits.slice_util(row["miso"], batch), FITTED, "util-by-slice")
        if kind != REFERENCE_TYPE:
            like = self.reference(workload, "util_frac")
            if kind == "P100" and like.status != ASSUMED:
                return Cell(like.value, FITTED, "util-as-v100")
            return Cell(like.value, ASSUMED, "assumed:util")
        if "muri" in row:
            iteration_ms, gpu_ms = self.facts.stages[row["muri"], 1]
            return Cell(gpu_ms / iteration_ms, MEASURED, "muri")
        if row.get("throughput") in self.facts.literature["monitor"]:
            return Cell(self.facts.literature["monitor"][row["throughput"]][0], FITTED, "lambda-monitor")
        if "throughput" in row:
            return Cell(fits.monitored(0)[0], FITTED, "util-saturated")
        if "lucid" in row:
            return Cell(fits.lucid_util(row["lucid"], batch), FITTED, "util-as-3090")
        if "dvfs" in row:
            util = float(np.polyval(fits.util_of_power[0], self.facts.dvfs[row["dvfs"]][1]))
            return Cell(util, FITTED, "util-by-power").bounded(0.05, 1.0)
        if "miso" in row and batch in self.facts.slices[row["miso"]]:
            return Cell(fits.slice_util(row["miso"], batch), ASSUMED, "assumed:gnn")
        cell = self.assumed(workload, "util_frac")
        assert cell is not None, workload
        return cell

    def memory(self, workload: Workload, kind: str) -> Cell:  # noqa: ARG002
        row, batch = self.of(workload), workload.batch
        parameters_m = FAMILIES[workload.family].parameters_m
        if (cell := self.assumed(workload, "memory_mib")) is not None:
            return cell
        if "lucid" in row:
            return Cell(self.fits.lucid_memory(row["lucid"], batch), FITTED, "memory-as-3090")
        brackets, source = self._brackets(workload)
        if brackets:
            middle, error = self.fits.bracketed(brackets, parameters_m, batch)
            sure = error <= MAX_MEMORY_ERROR
            return Cell(middle, FITTED if sure else ASSUMED, source if sure else "assumed:memory_range")
        if "throughput" in row:
            full = float(GPU_FIGURES[REFERENCE_TYPE]["memory_mib"].value)
            return Cell(self.fits.monitored(1)[0] * full, FITTED, "memory-filled")
        rules = self.rules
        weights_mib = rules["memory_bytes_each"] * parameters_m * 1e6 / 2**20
        guess = rules["memory_fixed_mib"] + weights_mib + rules["memory_activations_mib"]
        return Cell(guess, ASSUMED, "assumed:memory")

    def _brackets(self, workload: Workload) -> tuple[dict[int, tuple[float, float]], str]:
        row = self.of(workload)
        if "zeus" in row:
            return self.fits.zeus_brackets(row["zeus"]), "memory-by-fit"
        if "miso" in row:
            return self.fits.slice_brackets(row["miso"]), "memory-by-slice"
        if "gavel" in row:
            return self.fits.gavel_brackets(row["gavel"], self._known_memory), "memory-by-pair"
        return {}, ""

    def _known_memory(self, model: str, batch: int) -> float | None:
        name = {"ResNet-50": "ResNet50", "ResNet-18": "ResNet18", "LM": "LSTM"}.get(model)
        return name and self.fits.lucid_memory(name, batch)

    def clock_bound(self, workload: Workload, kind: str) -> Cell:
        row = self.of(workload)
        if kind in GAVEL_TYPES and "zeus" in row:
            own = self.fits.zeus_clock_bound(kind, row["zeus"], workload.batch)
            if own is not None:
                return Cell(own, FITTED, "clock-by-cap")
        if kind == REFERENCE_TYPE:
            if "dvfs" in row:
                return Cell(self.facts.dvfs[row["dvfs"]][0], FITTED, "clock-curve")
            power = self.reference(workload, "dynamic_w")
            rho = float(np.polyval(self.fits.clock_bound_of_power[0], power.value))
            sure = power.status != ASSUMED
            source = "clock-by-power" if sure else power.source
            return Cell(rho, FITTED if sure else ASSUMED, source).bounded(0.05, 0.95)
        like = self.reference(workload, "clock_bound")
        if like.status == ASSUMED:
            return like
        if kind == "P100":
            return Cell(like.value, FITTED, "clock-as-v100")
        return Cell(like.value, ASSUMED, "assumed:clock")

    def dynamic(self, workload: Workload, kind: str) -> Cell:
        row = self.of(workload)
        epoch = self.facts.epochs.get(kind, {}).get(row.get("zeus", ""), {}).get(workload.batch)
        if epoch is not None:
            return Cell(epoch.power_w[epoch.free] - self.fits.static_w(kind), MEASURED, "zeus")
        if kind == REFERENCE_TYPE:
            if "dvfs" in row:
                return Cell(self.facts.dvfs[row["dvfs"]][1], FITTED, "clock-curve")
            util = self.reference(workload, "util_frac")
            power_w = float(np.polyval(self.fits.power_of_util[0], util.value))
            status = FITTED if util.status != ASSUMED else ASSUMED
            return Cell(power_w, status, "power-by-util" if status == FITTED else util.source)
        like = self.reference(workload, "dynamic_w")
        if kind == "P100":
            status = FITTED if like.status != ASSUMED else ASSUMED
            scaled = like.value * self.fits.dynamic_scale(kind)[0]
            return Cell(scaled, status, "power-as-v100" if status == FITTED else like.source)
        room = self._room_w(kind) / self._room_w(REFERENCE_TYPE)
        return Cell(like.value * room, ASSUMED, "assumed:power")

    def _room_w(self, kind: str) -> float:
        return float(GPU_FIGURES[kind]["tdp_w"].value) - self.fits.static_w(kind)

    def latent(self, which: int) -> Callable[[Workload, str], Cell | None]:
        def make(workload: Workload, kind: str) -> Cell | None:
            job = self.job(workload)
            factors = self.facts.latent.get((GAVEL_TYPES.get(kind, ""), job))
            return factors and Cell(factors[which], FITTED, f"latent-{kind.lower()}")

        return make

    def job(self, workload: Workload) -> str:
        """Gavel's name of a workload; "" if it has none."""
        model = self.of(workload).get("gavel")
        return next(
            (job for job in sorted(self.facts.solo["v100"]) if gavel_batch(job) == (model, workload.batch)),
            "",
        )

    def speed(self, workload: Workload, kind: str) -> Cell:
        row, fits = self.of(workload), self.fits
        if kind == REFERENCE_TYPE:
            return Cell(1.0, DEFINED, "reference")
        if kind == "P100":
            here = self.facts.epochs[kind].get(row.get("zeus", ""), {}).get(workload.batch)
            there = self.facts.epochs[REFERENCE_TYPE].get(row.get("zeus", ""), {}).get(workload.batch)
            if here is not None and there is not None:
                return Cell(there.time_s[there.free] / here.time_s[here.free], MEASURED, "zeus")
            job = self.job(workload)
            if job:
                solo = self.facts.solo
                return Cell(solo[GAVEL_TYPES[kind]][job] / solo["v100"][job], MEASURED, "gavel")
            util = self.reference(workload, "util_frac")
            if util.value > 0.9 and util.status != ASSUMED:
                return Cell(fits.p100_speed(True)[0], FITTED, "speed-p100")
            return Cell(fits.p100_speed(False)[0], ASSUMED, "assumed:p100")
        column = {"A100": 1, "H100": 2}.get(kind)
        if column and row.get("throughput_batch") == workload.batch:
            rates = self.facts.literature["throughput"][row["throughput"]]
            return Cell(rates[column] / rates[0], FITTED, "lambda")
        util = self.reference(workload, "util_frac")
        group = row["class"] if row["class"] != "light" else "conv"
        fastest = fits.class_speed[group, kind][0] if column else self.rules["t4_speed"]
        if column and row["class"] != "light" and util.status != ASSUMED and util.value > 0.9:
            return Cell(fastest, FITTED, f"speed-{group}")
        reason = "assumed:t4" if kind == "T4" else "assumed:speed"
        return Cell(1 / (util.value / fastest + 1 - util.value), ASSUMED, reason)

    def cores(self, workload: Workload, kind: str) -> Cell:
        row = self.of(workload)
        if kind != REFERENCE_TYPE:
            like = self.reference(workload, "cores_each")
            if like.value <= 1:
                return like._replace(status=FITTED if like.status == MEASURED else like.status)
            speed = self.cell(workload, kind, "speed")
            assert speed is not None
            sure = ASSUMED not in (like.status, speed.status)
            scaled = max(1.0, like.value * speed.value ** (1 / 0.83))
            return Cell(scaled, FITTED if sure else ASSUMED, "cores-by-speed" if sure else "assumed:cores")
        if "synergy" in row:
            return Cell(self.fits.cores(row["synergy"]), FITTED, "synergy")
        family = FAMILIES[workload.family]
        if row.get("language"):
            return Cell(1.0, FITTED, "cores-language")
        if family.domain == "reinforcement learning":
            return Cell(2.0, ASSUMED, "assumed:simulator")
        between = math.sqrt(self.fits.cores("res18") * self.fits.cores("res50"))
        images = family.domain == "vision" and not any(
            word in workload.family for word in ("cifar", "shapenet")
        )
        return Cell(between if images else 1.0, ASSUMED, "assumed:cores")

    def penalty(self, workload: Workload, kind: str) -> Cell:
        row, fits = self.of(workload), self.fits
        worst = max(fits.node_penalty(model) for model in ("vgg16", "vgg19"))
        model = row.get("muri") or row.get("muri_scaling")
        if model and kind == REFERENCE_TYPE:
            return Cell(fits.node_penalty(model), MEASURED if "muri" in row else FITTED, "muri-nodes")
        speed = self.cell(workload, kind, "speed")
        assert speed is not None
        iteration_ms = self.iteration_ms(workload)
        known = iteration_ms is not None and speed.status in (MEASURED, DEFINED)
        if kind != REFERENCE_TYPE and not known:
            like = self.reference(workload, "node_penalty")
            return Cell(min(like.value * speed.value, worst), ASSUMED, "assumed:penalty_type")
        traffic = (
            FAMILIES[workload.family].parameters_m * speed.value / (iteration_ms or UNKNOWN_ITERATION_MS)
        )
        penalty = float(np.polyval(fits.penalty_of_traffic[0], traffic))
        cell = (
            Cell(penalty, FITTED, "penalty-by-traffic")
            if known
            else Cell(penalty, ASSUMED, "assumed:penalty")
        )
        return cell.bounded(0.0, worst)

    def iteration_ms(self, workload: Workload) -> float | None:
        """Time of an iteration on one V100, if known."""
        row, batch = self.of(workload), workload.batch
        samples = self.facts.literature["epoch_samples"].get(row.get("zeus"))
        epoch = self.facts.epochs[REFERENCE_TYPE].get(row.get("zeus", ""), {}).get(batch)
        if samples and epoch is not None:
            return float(1000 * epoch.time_s[epoch.free] * batch / samples)
        job = self.job(workload)
        if job:
            return 1000 / self.facts.solo["v100"][job]
        if row.get("throughput") in ("resnet50", "ssd", "bert_large_squad", "ncf"):
            return float(1000 * batch / self.facts.literature["throughput"][row["throughput"]][0])
        return None

    def checkpoint(self, workload: Workload, kind: str) -> Cell:  # noqa: ARG002
        rules = self.rules
        stored_mib = rules["checkpoint_bytes_each"] * FAMILIES[workload.family].parameters_m * 1e6 / 2**20
        seconds = rules["checkpoint_fixed_s"] + 2 * stored_mib / rules["checkpoint_mib_s"]
        return Cell(seconds, ASSUMED, "assumed:checkpoint")

    # --- the files

    def workloads(self) -> Iterator[Workload]:
        for name, family in FAMILIES.items():
            yield from (Workload(name, batch) for batch in family.batches or (0,))

    def cells(self) -> Iterator[tuple[str, ...]]:
        for workload in self.workloads():
            for kind in GPU_TYPES:
                for field in FIELDS:
                    cell = self.cell(workload, kind, field)
                    if cell is not None:
                        yield workload.name, kind, field, f"{cell.value:.4g}", cell.status, cell.source

    def pairs(self) -> Iterator[tuple[str, ...]]:
        names = {self.job(workload): workload.name for workload in self.workloads() if self.job(workload)}
        for kind, gavel in GAVEL_TYPES.items():
            for pair in self.facts.pairs[gavel]:
                if pair.fits:
                    speeds = f"{pair.speed_first:.4g}", f"{pair.speed_second:.4g}"
                    yield kind, names[pair.first], names[pair.second], *speeds

    def sources(self) -> Iterator[tuple[str, str, str]]:
        f = self.fits
        text = dict(self.facts.literature["source"])
        errors = {
            "lambda-monitor": f"{f.monitored(0)[1]:.3f}, between models; the batch was that of 32 GB",
            "util-saturated": f"{f.monitored(0)[1]:.3f} (one model left out in turn)",
            "util-by-slice": f"{f.slice_error:.3f} of the speed on slices",
            "memory-as-3090": "1.5 % on the RTX 3090; "
            f"ResNet-50 is {100 * f.memory_3090_error:.0f} % from memory-by-fit",
            "memory-filled": f"{100 * f.monitored(1)[1]:.0f} % of the board (one model left out in turn)",
            "util-by-batch": "0.067 (13 points of six models, one model left out in turn)",
            "util-as-3090": f"{f.util_3090_error:.3f} (four workloads known on both)",
            "util-as-v100": f"{f.util_p100_error:.3f} (P100 against V100, power-limit traces)",
            "util-by-power": f"{f.util_of_power[1]:.3f} (families left out in turn)",
            "power-by-util": f"{f.power_of_util[1]:.0f} W (families left out in turn)",
            "power-as-v100": f"{100 * f.dynamic_scale('P100')[1]:.0f} %",
            "clock-by-power": f"{f.clock_bound_of_power[1]:.3f} (one left out in turn; mean of the others: "
            f"{f.clock_bound_checks[0]:.3f}); {f.clock_bound_checks[1]:.3f} against rho by power caps",
            "clock-as-v100": f"{f.clock_bound_transfer_error:.3f} (A40 and RTX6000 against V100)",
            "clock-by-cap": f"{f.clock_bound_cap_error:.3f} of the run time under caps",
            "speed-p100": f"{100 * f.p100_speed(True)[1]:.0f} % (one family left out in turn)",
            "speed-conv": " and ".join(
                f"{100 * f.class_speed['conv', k][1]:.0f} % ({k})" for k in ("A100", "H100")
            ),
            "speed-matmul": " and ".join(
                f"{100 * f.class_speed['matmul', k][1]:.0f} % ({k})" for k in ("A100", "H100")
            ),
            "penalty-by-traffic": f"{f.penalty_of_traffic[1]:.3f} (one model left out in turn)",
            "memory-by-fit": self._memory_error("memory-by-fit"),
            "memory-by-slice": self._memory_error("memory-by-slice"),
            "memory-by-pair": self._memory_error("memory-by-pair"),
        }
        text["util-by-batch"] = text["util-by-batch"].format(exponent=BATCH_EXPONENT)
        for key, what in text.items():
            yield key, what, errors.get(key, self.facts.literature["error"].get(key, ""))
        for key, reason in self.facts.assumed["reason"].items():
            yield f"assumed:{key}", reason, ""

    def _memory_error(self, source: str) -> str:
        off = [
            self.fits.bracketed(self._brackets(w)[0], FAMILIES[w.family].parameters_m, w.batch)[1]
            for w in self.workloads()
            if self.reference(w, "memory_mib").source == source
        ]
        return f"{100 * np.mean(off):.0f} %, {100 * max(off):.0f} % at most: half the range that agrees"


def as_csv(header: str, rows: Iterator[tuple[str, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header.split(","))
    writer.writerows(rows)
    return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file would change")
    check = parser.parse_args().check
    maker = Maker(Facts(Path(os.environ.get("RLSCHED_DATA", "../shared")) / "facts"))
    files = {
        "cells.csv": as_csv("workload,gpu_type,field,value,status,source", maker.cells()),
        "pairs.csv": as_csv("gpu_type,a,b,speed_a,speed_b", maker.pairs()),
        "sources.csv": as_csv("key,what,error", maker.sources()),
    }
    changed = [name for name, text in files.items() if not _same(FOLDER / name, text)]
    for name in changed:
        print(f"{name}: {'differs' if check else 'written'}")
        if not check:
            (FOLDER / name).write_text(files[name], encoding="utf-8")
    return int(check and bool(changed))


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())
