"""Networks compared at equal training cost: the scorer of a candidate row, and its context of other rows.

    .venv/bin/python -m studies.policy.architectures               # 15 runs, 100 CPU seconds each: 30 min
    .venv/bin/python -m studies.policy.architectures --cpu-s 30 --seeds 1

PPO with the recipe `quick` on helios-like synthetic jobs with informative predictions; every network gets the
same CPU seconds of training, without validation. The policy of each run that is best on 20 sequences is
kept and compared on 40 held-out ones, with other seeds: mean queueing delay over that of
`qssf-backfill`. Resumable: a run in --out is not repeated. Networks that are not in the package
cannot be served.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlsched.decide.policies.permissions import Permissions
from rlsched.workload.synth import synthesize
from rlsched_agents.ppo.average import WeightAverage
from rlsched_agents.ppo.network import Actor, CandidateNetwork, PackedRows, prior
from rlsched_agents.ppo.normalize import ReturnNormalizer
from rlsched_agents.ppo.policy import CandidatePolicy
from rlsched_agents.ppo.recipes import RECIPES
from rlsched_agents.ppo.replays import ReplayWindows
from rlsched_agents.ppo.sources import synthetic_data
from rlsched_agents.ppo.training import build_model
from rlsched_agents.runtime.network import NetworkConfig
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource, draw_window
from rlsched_envs.training.vector import RowsVecEnv

ROOT = Path(__file__).resolve().parents[2]
VALIDATIONS = 4
"""Number per run, evenly spread over its CPU seconds."""
CHOOSING_SEED, DECIDING_SEED = 5_000, 6_000
JOBS = 3_000
WARMUP_JOBS = 512
NODES = (4, 8)
HEADS = 4


class RowsAlone(Actor):
    """Every row is scored by itself; only its columns describe the other rows."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        del self.context, self.mix_context

    def forward(self, packed: PackedRows) -> Tensor:
        """(B, K) logits."""
        return scored(self, packed, torch.relu(self.mix_row(encoded(self, packed))))


class Attending(Actor):
    """Rows attend to each other, once, instead of the pooled context (Vaswani et al. 2017)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        width = config.width
        del self.context, self.mix_context
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, packed: PackedRows) -> Tensor:
        """(B, K) logits."""
        rows = encoded(self, packed)
        (batch, count), width = packed.shape, self.config.width
        flat = rows.new_zeros(batch * count, 3 * width)
        dense = flat.index_copy(0, packed.place, self.query_key_value(rows))
        query, key, value = dense.view(batch, count, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        real = torch.zeros(batch * count, dtype=torch.bool).index_fill(0, packed.place, True)
        mask = real.view(batch, 1, 1, count) | ~real.view(batch, count).any(dim=1).view(batch, 1, 1, 1)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        seen = seen.transpose(1, 2).reshape(batch * count, width).index_select(0, packed.place)
        return scored(self, packed, torch.relu(self.mix_row(rows + self.out(seen))))


def encoded(actor: Actor, packed: PackedRows) -> Tensor:
    """(R, W) each row by itself."""
    rows = packed.rows[: packed.place.numel(), : actor.config.features]
    return torch.relu(actor.row2(torch.relu(actor.row1(rows))))


def scored(actor: Actor, packed: PackedRows, mixed: Tensor) -> Tensor:
    """(B, K) logits of (R, W) rows, with the prior of the shipped network."""
    scores = actor.score(mixed).squeeze(1) + prior(actor.config, packed)[: packed.place.numel()]
    batch, count = packed.shape
    logits: Tensor = scores.new_zeros(batch * count).index_copy(0, packed.place, scores)
    return logits.view(batch, count)


KINDS: dict[str, tuple[type[Actor], int, int]] = {
    "pooled": (Actor, 64, 48),
    "alone": (RowsAlone, 64, 48),
    "attention": (Attending, 64, 48),
    "narrow": (Actor, 32, 24),
    "wide": (Actor, 128, 96),
}
"""Kind -> (actor, its width, the critic's). `pooled` is the shipped network."""


class KindNetwork(CandidateNetwork):
    """The shipped network with another actor; orthogonal initial weights, as there."""

    def __init__(self, kind: type[Actor], config: NetworkConfig, seed: int) -> None:
        super().__init__(config, seed)
        if kind is Actor:
            return
        torch.manual_seed(seed)
        self.actor = kind(config)
        for name, parameter in self.actor.named_parameters():
            if parameter.dim() == 2:
                nn.init.orthogonal_(parameter, 0.01 if name == "score.weight" else math.sqrt(2))
            else:
                nn.init.zeros_(parameter)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """A copy of all parameters by name."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self.state_dict().items()}


def policy_of(kind: type[Actor]) -> type[CandidatePolicy]:
    """The SB3 policy around such a network."""

    class KindPolicy(CandidatePolicy):
        def _build_mlp_extractor(self) -> None:
            self.mlp_extractor = KindNetwork(kind, self._network, self._network_seed)

    return KindPolicy


def replays(seed: int, traces: int) -> ReplayWindows:
    """Sequences of 3,000 helios-like jobs: each trace at loads .85 and 1, on 4 and 8 nodes."""
    rng, windows = np.random.default_rng(seed), []
    for draw in range(traces):
        made = synthesize("helios", JOBS, 0.95, 64, seed=seed + draw, predictability="informative")
        source = EpisodeSource.from_trace(*made)
        for load in (0.85, 1.0):
            for count in NODES:
                config = EpisodeConfig(
                    warmup_jobs=WARMUP_JOBS,
                    agent_jobs=JOBS - WARMUP_JOBS,
                    tail_jobs=0,
                    load_low=load,
                    load_high=load,
                    nodes_low=count,
                    nodes_high=count,
                )
                windows.append(draw_window(source, config, rng))
    return ReplayWindows(windows, 8, WARMUP_JOBS, Permissions())


def ratios(replayed: ReplayWindows, network: CandidateNetwork) -> list[float]:
    """Mean queueing delay over the reference's, of each sequence."""
    served = copy.deepcopy(network).double()

    def score(observations: NDArray[np.float32]) -> NDArray[np.float64]:
        with torch.no_grad():
            return np.asarray(served.forward_actor(torch.from_numpy(observations).double()))

    return [one.ratio for one in replayed.run(score)]


def train_one(
    name: str, seed: int, cpu_s: float, choosing: ReplayWindows, deciding: ReplayWindows
) -> dict[str, Any]:
    """One run of this many CPU seconds, and its result."""
    kind, width, critic_width = KINDS[name]
    recipe = RECIPES["quick"]
    network = msgspec.structs.replace(recipe.network, width=width, critic_width=critic_width)
    recipe = msgspec.structs.replace(recipe, network=network)
    source = synthetic_data("helios", seed, "informative").train
    venv = RowsVecEnv([source], recipe.num_envs, seed=seed, config=recipe.episode, copy=False, oracle=True)
    normalizer = ReturnNormalizer(venv, gamma=recipe.gamma, clip=recipe.reward_clip)
    model = build_model(normalizer, recipe, seed, policy_of(kind))
    average, trained = WeightAverage(recipe.average_decay), model.policy.mlp_extractor
    served = KindNetwork(kind, network, seed)
    best, chosen, course = math.inf, served.weights(), []
    spent_s, due = 0.0, 1
    while due <= VALIDATIONS:
        began_s = time.process_time()
        model.learn(recipe.rollout, callback=average, reset_num_timesteps=False)
        spent_s += time.process_time() - began_s
        if spent_s >= cpu_s * due / VALIDATIONS:
            due += 1
            served.load_weights(average.weights)
            ratio = geometric_mean(ratios(choosing, served))
            course.append((model.num_timesteps, round(ratio, 4)))
            if ratio < best:
                best, chosen = ratio, dict(average.weights)
    served.load_weights(chosen)
    found = ratios(deciding, served)
    parameters = sum(one.numel() for one in trained.actor.parameters())
    return {
        "kind": name,
        "seed": seed,
        "cpu_s": round(spent_s, 1),
        "decisions": model.num_timesteps,
        "actor_parameters": parameters,
        "course": course,
        "ratio": round(geometric_mean(found), 4),
        "wins": sum(one < 1 for one in found),
        "sequences": [round(one, 4) for one in found],
    }


def geometric_mean(values: list[float]) -> float:
    """Geometric mean of ratios."""
    return float(np.exp(np.log(values).mean()))


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: one row a kind; differences to `pooled` on the same seeds and sequences."""
    lines = [
        "| network | parameters | decisions | ratio by seed | mean | over `pooled` [95 %] |",
        "|---|---:|---:|---|---:|---|",
    ]
    by_kind = {kind: {run["seed"]: run for run in runs if run["kind"] == kind} for kind in KINDS}
    for kind, own in by_kind.items():
        if not own:
            continue
        logs = {seed: np.log(run["sequences"]) for seed, run in own.items()}
        shared = sorted(own.keys() & by_kind["pooled"].keys())
        against = "" if kind == "pooled" or not shared else interval(logs, by_kind["pooled"], shared)
        decisions = np.mean([run["decisions"] for run in own.values()])
        by_seed = ", ".join(f"{own[seed]['ratio']:.3f}" for seed in sorted(own))
        mean = math.exp(float(np.mean([one.mean() for one in logs.values()])))
        size = next(iter(own.values()))["actor_parameters"]
        lines.append(
            f"| `{kind}` | {size:,} | {decisions / 1e6:.2f} M | {by_seed} | {mean:.3f} | {against} |"
        )
    return "\n".join(lines)


def interval(
    logs: dict[int, NDArray[np.float64]], pooled: dict[int, dict[str, Any]], seeds: list[int]
) -> str:
    """Geometric mean of the paired ratios to `pooled`, with a bootstrap over the sequences."""
    gaps = np.mean([logs[seed] - np.log(pooled[seed]["sequences"]) for seed in seeds], axis=0)
    rng = np.random.default_rng(0)
    means = gaps[rng.integers(0, gaps.size, (2000, gaps.size))].mean(axis=1)
    low, high = np.exp(np.quantile(means, (0.025, 0.975)))
    return f"{math.exp(gaps.mean()):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Run the missing ones, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--cpu-s", type=float, default=100.0, help="of training, a run [default: %(default)s]"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs a network [default: %(default)s]")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "architectures.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    runs = [json.loads(line) for line in lines]
    done = {(run["kind"], run["seed"]) for run in runs}
    missing = [
        (kind, seed)
        for seed in range(arguments.seeds)
        for kind in arguments.kinds
        if (kind, seed) not in done
    ]
    choosing, deciding = replays(CHOOSING_SEED, 5), replays(DECIDING_SEED, 10)
    for kind, seed in missing:
        runs.append(train_one(kind, seed, arguments.cpu_s, choosing, deciding))
        with arguments.out.open("a") as file:
            file.write(json.dumps(runs[-1]) + "\n")
        print({key: value for key, value in runs[-1].items() if key != "sequences"}, flush=True)
    print(table(runs))


if __name__ == "__main__":
    main()
