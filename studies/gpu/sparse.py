"""Two workloads of irregular memory access: a recommender with embedding tables and a graph network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.gpu.training import Batch


class TableSize(NamedTuple):
    """Size of the recommender."""

    tables: int
    rows: int
    width: int
    numbers: int
    hidden: tuple[int, ...]


TABLES = TableSize(26, 100_000, 64, 13, (512, 256))
"""26 categories and 13 numbers a row, as the Criteo click logs have in DLRM (arXiv:1906.00091)."""
REHEARSAL_TABLES = TableSize(3, 100, 4, 3, (16,))


class Recommender(nn.Module):
    """Embedding tables and numbers, concatenated, through an MLP to one score."""

    def __init__(self, size: TableSize) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.tables * size.rows, size.width, sparse=True)
        self.register_buffer("first", torch.arange(size.tables) * size.rows)
        widths = (size.tables * size.width + size.numbers, *size.hidden)
        layers: list[nn.Module] = []
        for inner, outer in itertools.pairwise(widths):
            layers += [nn.Linear(inner, outer), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        """((N, T) int64 row in each table, (N, D)) -> (N,) logits."""
        found = self.embed(categories + self.first).flatten(1)
        return self.mlp(torch.cat([found, numbers], 1)).squeeze(1)


def table_batch(size: TableSize, batch: int, device: torch.device) -> Batch:
    """Return random inputs and targets: rows of the tables, numbers and clicks."""
    return (
        torch.randint(size.rows, (batch, size.tables), device=device),
        torch.randn(batch, size.numbers, device=device),
        torch.randint(2, (batch,), device=device).float(),
    )


def click_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Binary cross entropy."""
    categories, numbers, clicks = batch
    return functional.binary_cross_entropy_with_logits(network(categories, numbers), clicks)


def table_sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD without momentum, so that sparse gradients change only the table rows of a batch."""
    return torch.optim.SGD(parameters, lr=0.1)


class GraphSize(NamedTuple):
    """Size of the graph network and of each graph."""

    nodes: int
    edges: int
    width: int
    layers: int
    classes: int


GRAPHS = GraphSize(1_000, 10_000, 128, 4, 16)
REHEARSAL_GRAPHS = GraphSize(20, 60, 8, 2, 4)


class GraphNetwork(nn.Module):
    """GraphSAGE with means over neighbours (Hamilton et al., arXiv:1706.02216), by plain index_add."""

    def __init__(self, size: GraphSize) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(size.width, size.width) for _ in range(size.layers))
        self.others = nn.ModuleList(nn.Linear(size.width, size.width) for _ in range(size.layers))
        self.score = nn.Linear(size.width, size.classes)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degree: Tensor) -> Tensor:
        """((V, D) features, (E,) and (E,) ends of the edges, (V, 1) edges into each) -> (V, classes)."""
        for own, others in zip(self.own, self.others, strict=True):
            gathered = torch.zeros_like(x).index_add_(0, target, x[source]) / degree
            x = functional.relu(own(x) + others(gathered)).to(x.dtype)
        return self.score(x)


def graph_batch(size: GraphSize, batch: int, device: torch.device) -> Batch:
    """`batch` random graphs as one graph of separate parts, with a label for every node."""
    first = torch.arange(batch, device=device).repeat_interleave(size.edges) * size.nodes
    source = first + torch.randint(size.nodes, first.shape, device=device)
    target = first + torch.randint(size.nodes, first.shape, device=device)
    nodes = batch * size.nodes
    degree = torch.bincount(target, minlength=nodes).clamp_(min=1).unsqueeze(1)
    return (
        torch.randn(nodes, size.width, device=device),
        source,
        target,
        degree.float(),
        torch.randint(size.classes, (nodes,), device=device),
    )


def node_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy over all nodes."""
    *graph, labels = batch
    return functional.cross_entropy(network(*graph), labels)
