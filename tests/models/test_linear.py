from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5DenseActDense

from promptrl.models.linear import Bfloat16Linear, Form, HalfLinear, Int8Linear, WideInt8Linear, can_pack, pack_linears


class Block(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(64, width, bias=bias) for width in (64, 16, 16))
        self.o_proj = nn.Linear(96, 64, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        parts = [self.q_proj(inputs), self.k_proj(inputs), self.v_proj(inputs)]
        result: torch.Tensor = self.o_proj(torch.cat(parts, dim=-1))
        return result


def make(bias: bool, seed: int = 0) -> Block:
    torch.manual_seed(seed)
    block = Block(bias).requires_grad_(False)
    return block.to(torch.bfloat16).float()  # as if stored in 16 bits


def error(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).norm() / second.norm())


def test_halves_change_nothing_that_matters_and_siblings_get_their_parts() -> None:
    for bias in (False, True):
        plain, packed = make(bias), make(bias)
        assert pack_linears(packed, "halves") == 4
        for seed in range(3):  # several calls, so that a part of an earlier call would show
            inputs = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(seed))
            assert error(packed(inputs), plain(inputs)) < 1e-3
        assert not any(isinstance(module, nn.Linear) for module in packed.modules())


@pytest.mark.skipif(not can_pack("bfloat16"), reason="this build of torch has no packed bfloat16")
def test_packed_bfloat16_changes_nothing_that_matters() -> None:
    for bias in (False, True):
        plain, packed = make(bias), make(bias).to(torch.bfloat16)
        assert pack_linears(packed, "bfloat16") == 4
        assert isinstance(packed.o_proj, Bfloat16Linear)
        for shape in ((1, 1), (2, 5), (40, 3)):  # more and fewer rows than the layout was made for
            inputs = torch.randn(*shape, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
            assert packed(inputs).dtype == torch.bfloat16
            assert error(packed(inputs).float(), plain(inputs.float())) < 0.01


@pytest.mark.parametrize("form", ["halves", "bfloat16", "int8", "int8-wide"])
def test_blocks_of_t5_take_packed_layers(form: Form) -> None:
    """They look at their second layer's weights to convert its input."""
    if not can_pack(form):
        pytest.skip("not on this machine")
    torch.manual_seed(0)
    block = T5DenseActDense(T5Config(d_model=32, d_ff=64)).to(torch.bfloat16).requires_grad_(False)
    dtype = torch.float32 if form in ("halves", "int8") else torch.bfloat16
    inputs = torch.randn(3, 32)
    right = block.float().eval()(inputs)
    assert pack_linears(block, form) == 2
    assert error(block.to(dtype)(inputs.to(dtype)).float(), right) < 0.05


def test_weights_that_halves_cannot_hold_stay() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    assert pack_linears(model, "halves") == 0
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.bfloat16().float())
    assert pack_linears(model, "halves") == 1
    assert isinstance(model[0], HalfLinear)


def test_int8_is_near_and_one_row_does_not_blur_another() -> None:
    plain, packed = make(True), make(True)
    assert pack_linears(packed, "int8") == 4
    inputs = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    assert error(packed(inputs), plain(inputs)) < 0.04
    loud = inputs.clone()
    loud[0] *= 1000
    assert error(packed(loud)[1:], plain(loud)[1:]) < 0.04
    layer = Int8Linear(torch.randn(4, 8), None)
    assert layer(torch.zeros(2, 8)).abs().max() == 0


def test_int8_never_saturates_and_an_outlier_blurs_its_own_part_alone() -> None:
    # Sums of two products at their largest are what saturates in 16 bits.
    loudest = Int8Linear(torch.ones(2, 256), None)
    assert torch.allclose(loudest(torch.ones(1, 256)), torch.full((1, 2), 256.0), rtol=0.01)
    assert torch.allclose(loudest(-torch.ones(1, 256)), torch.full((1, 2), -256.0), rtol=0.01)

    # Weights as large as they may be for their neighbours, the inputs at their largest: sums that just fit.
    weights = torch.rand(16, 63, generator=torch.Generator().manual_seed(4)) ** 4
    for sign in (1.0, -1.0):
        sums = Int8Linear(weights, None)(sign * torch.ones(1, 63))
        assert torch.allclose(sums, sign * weights.sum(1)[None], rtol=0.03)

    wide = torch.randn(8, 4864, generator=torch.Generator().manual_seed(2))
    inputs = torch.randn(3, 4864, generator=torch.Generator().manual_seed(3))
    assert error(Int8Linear(wide, None)(inputs), inputs @ wide.T) < 0.03
    inputs[:, 0] = 1e4
    wide[:, :608] = 0  # the outlier's own part
    assert error(Int8Linear(wide, None)(inputs), inputs @ wide.T) < 0.03


@pytest.mark.skipif(not can_pack("int8-wide"), reason="this CPU does not add up products of bytes in 32 bits")
def test_wide_int8_is_near_and_only_where_a_layer_widens() -> None:
    packed = make(True)
    assert pack_linears(packed, "int8-wide") == 4
    assert isinstance(packed.o_proj, Bfloat16Linear)
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 16) / 4, torch.randn(48)
    layer = WideInt8Linear(weight, bias)
    inputs = torch.randn(2, 3, 16)
    right = nn.functional.linear(inputs, weight, bias)
    assert error(layer(inputs), right) < 0.015
    assert layer(inputs.bfloat16()).dtype == torch.bfloat16
    loud = inputs.clone()
    loud[0, 0] *= 1000  # an outlier blurs its own row alone
    assert torch.equal(layer(loud)[1], layer(inputs)[1])
    wide = nn.Sequential(nn.Linear(16, 48))
    assert pack_linears(wide, "int8-wide") == 1
    assert isinstance(wide[0], WideInt8Linear)
    assert layer(torch.zeros(2, 16)).sub(bias).abs().max() == 0
