"""Input pipelines: worker processes on given CPU cores that decode JPEGs or mask tokens for a workload."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rlsched.errors import InputError
from studies.gpu.sequence import MASKED_FRAC, TextSize
from studies.gpu.training import Batch

STORED_IMAGES = 32
"""JPEGs that are made once and decoded over and over."""
JPEG_QUALITY = 90
MIN_CROP_FRAC = 0.08
"""Smallest crop of a stored image by area: Szegedy et al., arXiv:1409.4842, section 6."""

Example = tuple[torch.Tensor, torch.Tensor]


class Images(IterableDataset[Example]):
    """JPEGs in memory -> decoded, cropped at random, resized, perhaps mirrored: (P, P, 3) uint8, a label.

    Stored at 500 x 375 pixels for crops of 224, at 64 x 48 for crops of 32: about the sizes of photographs
    and thumbnails. Nothing is read from a disk.

    Raises:
        InputError: Pillow is not installed.
    """

    def __init__(self, pixels: int, classes: int, seed: int) -> None:
        self._pixels = pixels
        self._classes = classes
        self._seed = seed
        width = 500 if pixels > 64 else 64
        self._stored = [_jpeg(width, width * 3 // 4, seed + index) for index in range(STORED_IMAGES)]

    def __iter__(self) -> Iterator[Example]:
        draws = _worker_draws(self._seed)
        while True:
            stored = self._stored[draws.integers(len(self._stored))]
            pixels = _decode_and_crop(stored, self._pixels, draws)
            yield torch.from_numpy(pixels), torch.tensor(int(draws.integers(self._classes)))


class Texts(IterableDataset[Example]):
    """Random tokens: for a causal model the tokens and the next ones, else masked ones and the originals."""

    def __init__(self, size: TextSize, seed: int) -> None:
        self._size = size
        self._seed = seed

    def __iter__(self) -> Iterator[Example]:
        draws = _worker_draws(self._seed)
        size = self._size
        while True:
            tokens = draws.integers(1, size.vocabulary, size.tokens)
            if size.is_causal:
                targets = np.append(tokens[1:], -100)
            else:
                is_masked = draws.random(size.tokens) < MASKED_FRAC
                is_masked[0] = True
                targets = np.where(is_masked, tokens, -100)
                tokens = np.where(is_masked, 0, tokens)
            yield torch.from_numpy(tokens), torch.from_numpy(targets)


def start_feed(
    dataset: IterableDataset[Example], batch: int, cores: list[int], *, is_pinned: bool
) -> Callable[[], Batch]:
    """Start one worker per core and return a function that gives the next batch.

    Call before CUDA is initialised: the workers are forked.

    Args:
        cores: CPU cores by their number; worker i is pinned to the i-th.
        is_pinned: Copy batches into page-locked memory, as for a GPU.
    """
    loader = DataLoader(
        dataset,
        batch_size=batch,
        num_workers=len(cores),
        worker_init_fn=partial(_pin_worker, cores),
        pin_memory=is_pinned,
        prefetch_factor=2,
        multiprocessing_context="fork",
    )
    batches = iter(loader)

    def next_batch() -> Batch:
        return tuple(next(batches))

    return next_batch


def _pin_worker(cores: list[int], worker: int) -> None:
    os.sched_setaffinity(0, {cores[worker % len(cores)]})


def _worker_draws(seed: int) -> np.random.Generator:
    worker = get_worker_info()
    return np.random.default_rng([seed, 0 if worker is None else worker.id])


def _jpeg(width: int, height: int, seed: int) -> bytes:
    """A random image with smooth patches and some noise, which compresses about as well as photographs."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise InputError(
            "input pipelines decode JPEGs with Pillow: pip install 'rlsched[profile]'"
        ) from error
    draws = np.random.default_rng(seed)
    patches = draws.integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC))
    noisy = smooth + draws.normal(0.0, 8.0, smooth.shape)
    stored = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stored, "JPEG", quality=JPEG_QUALITY)
    return stored.getvalue()


def _decode_and_crop(stored: bytes, pixels: int, draws: np.random.Generator) -> np.ndarray:
    """(pixels, pixels, 3) uint8."""
    from PIL import Image

    image = Image.open(io.BytesIO(stored)).convert("RGB")
    side = max(int((draws.uniform(MIN_CROP_FRAC, 1.0) * image.width * image.height) ** 0.5), 1)
    width, height = min(side, image.width), min(side, image.height)
    left = int(draws.integers(image.width - width + 1))
    top = int(draws.integers(image.height - height + 1))
    box = (left, top, left + width, top + height)
    crop = np.array(image.resize((pixels, pixels), Image.Resampling.BILINEAR, box=box))
    return np.ascontiguousarray(crop[:, ::-1] if draws.random() < 0.5 else crop)
