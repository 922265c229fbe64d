"""Two image classifiers: a small residual CNN for 32 x 32 pixels and ResNet-50."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.gpu.training import Batch


class CnnSize(NamedTuple):
    """Size of a CNN: widths and blocks of its stages, pixels of a side, classes."""

    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    pixels: int
    classes: int
    is_bottleneck: bool


SMALL_CNN = CnnSize((64, 128, 256), (1, 1, 1), 32, 10, False)
LARGE_CNN = CnnSize((64, 128, 256, 512), (3, 4, 6, 3), 224, 1000, True)
"""ResNet-50: He et al., arXiv:1512.03385, table 1."""
REHEARSAL_CNN = {"cnn_small": CnnSize((8, 16), (1, 1), 16, 10, False)}
REHEARSAL_CNN["cnn_large"] = CnnSize((8, 16), (1, 1), 32, 10, True)


def normalised(inner: int, outer: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution and its batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outer)
    )


class Residual(nn.Module):
    """A residual block: two 3 x 3 convolutions, or a bottleneck of 1 x 1, 3 x 3, 1 x 1 four times as wide."""

    def __init__(self, inner: int, width: int, stride: int, is_bottleneck: bool) -> None:
        super().__init__()
        outer = 4 * width if is_bottleneck else width
        shape = (
            ((1, 1, width), (3, stride, width), (1, 1, outer))
            if is_bottleneck
            else (
                (3, stride, width),
                (3, 1, outer),
            )
        )
        layers: list[nn.Module] = []
        channels = inner
        for kernel, step, out in shape:
            layers += [normalised(channels, out, kernel, step), nn.ReLU(inplace=True)]
            channels = out
        self.path = nn.Sequential(*layers[:-1])
        is_same = inner == outer and stride == 1
        self.skip = nn.Identity() if is_same else normalised(inner, outer, 1, stride)
        self.outer = outer

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) in and out."""
        return functional.relu(self.path(x) + self.skip(x))


def make_cnn(size: CnnSize) -> nn.Module:
    """Stem, stages, pooled classifier."""
    is_large = size.pixels >= 128
    channels = size.widths[0]
    stem: list[nn.Module] = [normalised(3, channels, 7 if is_large else 3, 2 if is_large else 1), nn.ReLU()]
    if is_large:
        stem.append(nn.MaxPool2d(3, 2, 1))
    blocks: list[nn.Module] = []
    for stage, (width, count) in enumerate(zip(size.widths, size.blocks, strict=True)):
        for position in range(count):
            stride = 2 if stage and not position else 1
            block = Residual(channels, width, stride, size.is_bottleneck)
            blocks.append(block)
            channels = block.outer
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size.classes)]
    return nn.Sequential(*stem, *blocks, *head).to(memory_format=torch.channels_last)


def cnn_size(name: str, *, is_small: bool) -> CnnSize:
    """Size of `cnn_small` or `cnn_large`."""
    if is_small:
        return REHEARSAL_CNN[name]
    return SMALL_CNN if name == "cnn_small" else LARGE_CNN


def image_batch(size: CnnSize, batch: int, device: torch.device) -> Batch:
    """Noise with random labels: ((N, 3, P, P) float32, (N,) int64)."""
    images = torch.randn(batch, 3, size.pixels, size.pixels, device=device)
    return (
        images.to(memory_format=torch.channels_last),
        torch.randint(size.classes, (batch,), device=device),
    )


def image_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy; images given as bytes (N, P, P, 3) are normalised on the device."""
    images, labels = batch
    if images.dtype == torch.uint8:
        images = images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
    return functional.cross_entropy(network(images), labels)
