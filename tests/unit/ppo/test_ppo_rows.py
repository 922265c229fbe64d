"""The layers for packed rows, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rlsched.decide.rows.columns import IS_JOB
from rlsched_agents.ppo.network import pack
from rlsched_agents.ppo.rows import RowLinear, pool


@pytest.mark.parametrize("count", [30, 2_048, 2_049])
def test_layer_for_packed_rows_equals_the_linear_one(count: int) -> None:
    torch.manual_seed(count)
    mine, theirs = RowLinear(49, 64), nn.Linear(49, 64)
    mine.load_state_dict(theirs.state_dict())
    rows, given = torch.randn(count, 49, requires_grad=True), torch.randn(count, 64)
    found = []
    for layer in (mine, theirs):
        out = layer(rows)
        found.append((out, *torch.autograd.grad(out, [rows, layer.weight, layer.bias], given)))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-5)


def pooled_by_torch(rows: Tensor, state: Tensor, batch: int) -> Tensor:
    """Mean and maximum by torch's own functions."""
    none = rows.new_zeros(batch, rows.shape[1])
    count = torch.bincount(state, minlength=batch).clamp(min=1).unsqueeze(1)
    most = none.scatter_reduce(0, state.unsqueeze(1).expand_as(rows), rows, "amax")
    return torch.cat((none.index_add(0, state, rows) / count, most), dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooling_and_its_gradient_equal_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    sizes = torch.tensor([3, 1, 0, 24, 7])
    state, first = torch.repeat_interleave(torch.arange(5), sizes), torch.zeros(6, dtype=torch.long)
    first[1:] = sizes.cumsum(0)
    rows = torch.relu(torch.randn(35 + 4, 6, dtype=dtype)).round(decimals=1).requires_grad_()  # has ties
    rows_before, given = rows.detach().clone(), torch.randn(5, 12, dtype=dtype)
    mine, theirs = pool(rows, first), pooled_by_torch(rows[:35], state, 5)
    torch.testing.assert_close(mine, theirs)
    (back,), (expected,) = (torch.autograd.grad(one, rows, given) for one in (mine, theirs))
    positive = rows.detach() > 0  # at 0 torch counts its own first value among the ties; relu lets none by
    torch.testing.assert_close(back[positive], expected[positive])
    assert not back[35:].any()
    assert torch.equal(rows, rows_before)


def test_packed_rows_have_few_sizes_and_zeros_after_the_real_ones() -> None:
    sizes = set()
    for real in range(1, 600):
        observations = torch.zeros(25, 24, 58)
        observations.view(600, 58)[:real, IS_JOB] = 1.0
        packed = pack(observations)
        found = packed.rows.shape[0]
        sizes.add(found)
        assert real <= found <= max(real * 9 / 8 + 1, 64 * (real // 64 + 1))
        assert packed.rows.sum() == real == packed.place.numel() == packed.first[-1]
        assert not packed.state[real:].any()
        assert packed.first.tolist() == [min(24 * b, real) for b in range(26)]
    assert len(sizes) <= 10
