"""Every workload of the GPU profile trains, and so does the job of its input pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlsched.errors import InputError  # noqa: E402
from studies.gpu.building import build  # noqa: E402
from studies.gpu.feed import Images, Texts  # noqa: E402
from studies.gpu.ppo import DISCOUNT, TRACE_DECAY, CartPoles, advantages  # noqa: E402
from studies.gpu.protocol import Job  # noqa: E402
from studies.gpu.sequence import TextSize  # noqa: E402
from studies.gpu.workloads import WORKLOADS, jobs_of, workload_of  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One torch thread: small networks do not gain from more, and other tests run in parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_trains(name: str) -> None:
    job = Job(name, WORKLOADS[name].small_batches[0])
    trainer = build(job, "cpu", is_small=True, cores=None)
    before = [part.detach().clone() for part in trainer.parameters()]
    losses = [float(trainer.step()) for _ in range(4 if name == "ppo" else 20)]
    changed = [not torch.equal(old, new) for old, new in zip(before, trainer.parameters(), strict=True)]
    assert np.isfinite(losses).all()
    assert np.mean(changed) > 0.9, "trained parameters change"
    if name != "ppo":  # the loss depends on the states that the policy visits
        assert min(losses[-5:]) < losses[0], "the loss falls on a repeated batch"
    per_sample = 32 if name == "ppo" else 1
    assert trainer.samples_per_step == job.batch * per_sample


def test_each_workload_has_two_batch_sizes() -> None:
    assert all(one.batches[0] < one.batches[1] for one in WORKLOADS.values())
    assert [job.label for job in jobs_of(1, is_small=False)][:2] == ["cnn_small-b256", "cnn_large-b128"]
    with pytest.raises(InputError, match=r"no workload 'vgg'; there are cnn_small, "):
        workload_of("vgg")


def test_large_networks_have_the_published_sizes() -> None:
    from studies.gpu.sequence import TEXT, LanguageModel
    from studies.gpu.vision import LARGE_CNN, make_cnn

    with torch.device("meta"):
        resnet50 = make_cnn(LARGE_CNN)
        encoder = LanguageModel(TEXT["encoder"])
    assert sum(part.numel() for part in resnet50.parameters()) == 25_557_032, (
        "as torchvision counts ResNet-50"
    )
    layers = sum(part.numel() for part in encoder.mix.parameters())
    assert layers == 12 * 7_087_872, "as BERT-base's twelve layers"


def test_images_are_decoded_and_cropped() -> None:
    found = list(itertools.islice(Images(16, 10, seed=3), 6))
    assert {tuple(image.shape) for image, _ in found} == {(16, 16, 3)}
    assert all(image.dtype == torch.uint8 for image, _ in found)
    assert all(0 <= int(label) < 10 for _, label in found)
    assert len({image.numpy().tobytes() for image, _ in found}) == 6, "another crop each time"
    again = list(itertools.islice(Images(16, 10, seed=3), 6))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(found, again, strict=True)), "the same seed"


def test_text_tokens_to_predict_are_masked() -> None:
    masked = TextSize(50, 4, 1, 2, 64, False)
    tokens, targets = next(iter(Texts(masked, seed=1)))
    assert ((tokens == 0) == (targets != -100)).all()
    assert 1 <= int((tokens == 0).sum()) < 32
    tokens, targets = next(iter(Texts(masked._replace(is_causal=True), seed=1)))
    assert torch.equal(tokens[1:], targets[:-1])
    assert int(targets[-1]) == -100


def test_workload_without_input_pipeline_is_reported() -> None:
    with pytest.raises(InputError, match="graph has no input pipeline"):
        build(Job("graph", 2), "cpu", is_small=True, cores=[0])


def test_cart_poles_fall_under_constant_force_and_restart() -> None:
    poles = CartPoles(3, seed=0)
    overs = np.stack([poles.step(np.ones(3, np.int64))[2] for _ in range(40)])
    first = overs.argmax(axis=0)
    assert overs.any(axis=0).all()
    assert (first > 5).all(), "not at once"
    assert (first < 15).all(), "a constant force of 10 N tips a pole over in about ten steps"
    assert (abs(poles.state[:, 2]) < 12 * np.pi / 180).all()


def test_advantages_by_hand() -> None:
    rewards = np.ones((2, 2), np.float32)
    values = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    is_over = np.array([[False, True], [False, False]])
    found = advantages(rewards, values, is_over, np.array([5.0, 6.0], np.float32))
    late = 1 + DISCOUNT * 5 - 3, 1 + DISCOUNT * 6 - 4
    assert found[1] == pytest.approx(late)
    early = 1 + DISCOUNT * 3 - 1 + DISCOUNT * TRACE_DECAY * late[0]
    assert found[0] == pytest.approx((early, 1 - 2)), "no value after the end of an episode"
