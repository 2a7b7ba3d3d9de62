"""Linear layers packed for CPUs: weights laid out once for the multiplication, as halves or in 8 bits.

A plain float32 product lays the weights out anew at every call, which with few rows costs more than the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from promptrl.errors import ModelError

# Two float32 rows of the same bfloat16 weights: halves hold them exactly but for the tiniest, which lose this much.
_HALF_LOSS = 2.0**-24


class HalfLinear(nn.Module):
    """A linear layer in float32 whose weights are kept as halves; sums are float32.

    Weights that came from bfloat16 or halves fit without loss (below 6e-5 they are rounded by at most 3e-8).
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        bias = None if linear.bias is None else linear.bias.detach().float()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """Whether halves hold these weights."""
        weight = weight.detach().float()
        return bool((weight.half().float() - weight).abs().max() <= _HALF_LOSS)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) float32 to (..., out) float32."""
        result: Tensor = torch.ops.quantized.linear_dynamic_fp16(inputs, self._packed)
        return result


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights, one scale per output, and inputs brought to 7 bits at each call.

    Each row of the input is divided by its largest value first and multiplied back after. Without this the kernel
    would take one scale for the whole batch, so that one outlier (the first token of a text has huge ones) would blur
    every other row, and an answer would depend on what else is in its batch.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp_min(1e-12) / 127.0
        zeros = torch.zeros(len(weight), dtype=torch.long)
        quantized = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        self._packed: Any = torch.ops.quantized.linear_prepack(quantized, None)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().float(), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) float to (..., out) of the same dtype."""
        rows = inputs.float()
        largest = rows.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12)
        result: Tensor = torch.ops.quantized.linear_dynamic(rows / largest, self._packed, True)
        result = result.mul_(largest)
        if self.bias is not None:
            result = result.add_(self.bias)
        return result.to(inputs.dtype)


def can_pack() -> bool:
    """Whether this build of torch has the kernels."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def pack_linears(model: nn.Module, *, int8: bool) -> int:
    """Put packed layers in the place of a model's linear ones; how many were.

    In half precision a layer whose weights would lose by it stays as it is.

    Raises:
        ModelError: If 8 bits are asked for and the kernels are missing.
    """
    if not can_pack():
        if int8:
            raise ModelError("quantization 'int8' needs the fbgemm kernels, which this build of torch lacks.")
        return 0
    torch.backends.quantized.engine = "fbgemm"
    count = 0
    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or (not int8 and not HalfLinear.fits(module.weight)):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], Int8Linear(module) if int8 else HalfLinear(module))
        count += 1
    return count
