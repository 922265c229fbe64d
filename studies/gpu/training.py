"""A training step for every supervised workload, and the choice of arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]


class Trainer(Protocol):
    """A model that trains, a step at a time."""

    samples_per_step: int
    precision: str

    def step(self) -> Tensor:
        """Train one step, and return the loss: a scalar on the device, without synchronisation."""

    def parameters(self) -> Iterator[Tensor]:
        """The trained parameters."""


def autocast_type(device: torch.device) -> torch.dtype:
    """bfloat16 if the GPU has it in hardware, else float16; float32 on a CPU."""
    if device.type == "cpu":
        return torch.float32
    has_bfloat16 = torch.cuda.get_device_capability(device)[0] >= 8
    return torch.bfloat16 if has_bfloat16 else torch.float16


class Supervised:
    """A network, a loss and a source of batches; mixed precision on a GPU.

    Args:
        network: Moved to the device.
        loss_of: Maps the network and a batch on the device to a scalar.
        next_batch: Returns batches, on any device.
        samples_per_step: Samples in a batch.
        optimiser: Over the network's parameters; creates its own state on the device.
    """

    def __init__(
        self,
        network: nn.Module,
        loss_of: Callable[[nn.Module, Batch], Tensor],
        next_batch: Callable[[], Batch],
        *,
        samples_per_step: int,
        device: torch.device,
        optimiser: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.samples_per_step = samples_per_step
        self._type = autocast_type(device)
        self.precision = str(self._type).removeprefix("torch.")
        self._device = device
        self._network = network.to(device).train()
        self._loss_of = loss_of
        self._next_batch = next_batch
        self._optimiser = optimiser(self._network.parameters())
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._type == torch.float16)

    def step(self) -> Tensor:
        """One batch, forward and backward, and an update."""
        batch = tuple(part.to(self._device, non_blocking=True) for part in self._next_batch())
        self._optimiser.zero_grad(set_to_none=True)
        is_mixed = self._type != torch.float32
        with torch.autocast(self._device.type, dtype=self._type if is_mixed else None, enabled=is_mixed):
            loss = self._loss_of(self._network, batch)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimiser)
        self._scaler.update()
        return loss.detach()

    def parameters(self) -> Iterator[Tensor]:
        """The trained parameters."""
        return self._network.parameters()


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum, as vision networks are trained."""
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW, as language models are trained."""
    return torch.optim.AdamW(parameters, lr=3e-4)


def fixed(*parts: Tensor) -> Callable[[], Batch]:
    """Repeat one batch, made once on the device: no input pipeline is measured."""
    return lambda: parts
