"""Constructs the trainer of a workload, by name and batch size."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from rlsched.errors import InputError
from studies.gpu import ppo, sequence, sparse, vision
from studies.gpu.feed import Images, Texts, start_feed
from studies.gpu.protocol import Job
from studies.gpu.training import Supervised, Trainer, adamw, fixed, sgd
from studies.gpu.workloads import HELD, workload_of

REST_S = 0.05


class Held:
    """Keeps the device open and sleeps."""

    samples_per_step = 1
    precision = "none"

    def __init__(self, device: torch.device) -> None:
        self._something = torch.ones((), device=device)

    def step(self) -> Tensor:
        """Rest for `REST_S`."""
        time.sleep(REST_S)
        return self._something

    def parameters(self) -> Iterator[Tensor]:
        """No parameters to train."""
        return iter(())


def build(job: Job, device_name: str, *, is_small: bool, cores: list[int] | None, seed: int = 0) -> Trainer:
    """Make a trainer; CUDA is initialised after the workers of an input pipeline have been started.

    Args:
        device_name: `cuda` or `cpu`.
        is_small: The network of a rehearsal.
        cores: CPU cores of an input pipeline; None: one batch on the device is used for every step.

    Raises:
        InputError: the workload is unknown, or has no input pipeline.
    """
    torch.manual_seed(seed)
    if job.workload == HELD:
        return Held(torch.device(device_name))
    workload = workload_of(job.workload)
    if cores is not None and not workload.feed:
        raise InputError(f"{job.workload} has no input pipeline to measure")
    if workload.feed == "images":
        return _vision(job, device_name, is_small, cores, seed)
    if job.workload in sequence.TEXT:
        return _sequence(job, device_name, is_small, cores, seed)
    device = torch.device(device_name)
    if job.workload == "recommender":
        tables = sparse.REHEARSAL_TABLES if is_small else sparse.TABLES
        return Supervised(
            sparse.Recommender(tables),
            sparse.click_loss,
            fixed(*sparse.table_batch(tables, job.batch, device)),
            samples_per_step=job.batch,
            device=device,
            optimiser=sparse.table_sgd,
        )
    if job.workload == "graph":
        graphs = sparse.REHEARSAL_GRAPHS if is_small else sparse.GRAPHS
        return Supervised(
            sparse.GraphNetwork(graphs),
            sparse.node_loss,
            fixed(*sparse.graph_batch(graphs, job.batch, device)),
            samples_per_step=job.batch,
            device=device,
            optimiser=adamw,
        )
    return ppo.Ppo(job.batch, 16 if is_small else 256, device, seed)


def _vision(job: Job, device_name: str, is_small: bool, cores: list[int] | None, seed: int) -> Trainer:
    size = vision.cnn_size(job.workload, is_small=is_small)
    feed = None
    if cores is not None:
        images = Images(size.pixels, size.classes, seed)
        feed = start_feed(images, job.batch, cores, is_pinned=device_name == "cuda")
    device = torch.device(device_name)
    return Supervised(
        vision.make_cnn(size),
        vision.image_loss,
        feed or fixed(*vision.image_batch(size, job.batch, device)),
        samples_per_step=job.batch,
        device=device,
        optimiser=sgd,
    )


def _sequence(job: Job, device_name: str, is_small: bool, cores: list[int] | None, seed: int) -> Trainer:
    size = sequence.text_size(job.workload, is_small=is_small)
    feed = None
    if cores is not None:
        feed = start_feed(Texts(size, seed), job.batch, cores, is_pinned=device_name == "cuda")
    device = torch.device(device_name)
    return Supervised(
        sequence.LanguageModel(size),
        sequence.text_loss,
        feed or fixed(*sequence.token_batch(size, job.batch, device)),
        samples_per_step=job.batch,
        device=device,
        optimiser=adamw,
    )
