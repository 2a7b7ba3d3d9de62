"""Linear layers packed for CPUs: weights laid out once for the multiplication, in 16 or in 8 bits.

A plain product lays the weights out anew at every call, which with few rows costs more than the product.
Layers that read the same input (queries, keys and values; gate and up) are packed as one, for fewer and larger
products.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from promptrl.errors import ModelError

# Halves hold weights that came from bfloat16 exactly, but for the tiniest, which are rounded by up to this much.
_HALF_LOSS = 2.0**-24
# The kernels add products of bytes in pairs, into 16 bits that saturate: 255 times two weights of one sign fits while
# these add up to 128. Rounding may bring half a step to each.
_LARGEST_PAIR = 127.0
# Inputs wider than twice this are cut into parts of their own scales, so that an outlier blurs its own part alone.
_PART_WIDTH = 608
# Rows for which bfloat16 weights are laid out; any other number works with the same layout.
_ROWS = 32
# `int8-wide` is for layers with this many outputs for each input: up in a feed-forward block, and the vocabulary. They
# hold two thirds of the weights, and their inputs come from a norm, so that 8 bits lose little there.
_WIDENING = 2
# Names of sibling layers that are always given the same input, in the architectures of transformers.
_ATTENTION = ("q_proj", "k_proj", "v_proj")
_SIBLINGS = (_ATTENTION, ("gate_proj", "up_proj"))


Form = Literal["halves", "bfloat16", "int8", "int8-wide"]


class _Packed(nn.Module):
    """A layer without the plain weights; T5 asks for them to find out their dtype, and takes None for any."""

    weight: Tensor | None = None


class HalfLinear(_Packed):
    """A linear layer in float32 whose weights are kept as halves; sums are float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) float32 to (..., out) float32."""
        result: Tensor = torch.ops.quantized.linear_dynamic_fp16(inputs, self._packed)
        return result


class Bfloat16Linear(_Packed):
    """A linear layer in bfloat16, for CPUs that multiply it in hardware; sums are float32."""

    version = "packed"
    """Part of a model's fingerprint: the order of its sums is not that of torch's plain layer."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), _ROWS)
        self._bias = None if bias is None else bias.bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) bfloat16 to (..., out) bfloat16."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self._bias, "none", [], "")
        return result


class Int8Linear(_Packed):
    """A linear layer with 8-bit weights, one scale per output, and inputs brought to 8 bits at each call.

    Each row of the input is divided by its largest value first and multiplied back after. Without this the kernel
    would take one scale for the whole batch, so that one outlier (the first token of a text has huge ones) would blur
    every other row, and an answer would depend on what else is in its batch. A wide input is cut into parts, each with
    scales of its own and a product of its own, which are added up.
    """

    version = "w8a8-pairs"
    """Changes with every change of what the layer computes: part of a model's fingerprint."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed: list[Any] = []
        width = weight.shape[1]
        self._parts = -(-width // _PART_WIDTH) if width > 2 * _PART_WIDTH else 1
        for part in weight.chunk(self._parts, dim=1):
            scales = _largest_pair(part).clamp_min(1e-12) / _LARGEST_PAIR
            zeros = torch.zeros(len(part), dtype=torch.long)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch announces another home for these kernels
                quantized = torch.quantize_per_channel(part.contiguous(), scales.double(), zeros, 0, torch.qint8)
            self._packed.append(torch.ops.quantized.linear_prepack(quantized, None))
        self._bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) float to (..., out) of the same dtype."""
        result = self._bias
        for rows, packed in zip(inputs.float().chunk(self._parts, dim=-1), self._packed, strict=True):
            largest = torch.linalg.vector_norm(rows, ord=float("inf"), dim=-1, keepdim=True).clamp_min_(1e-12)
            product: Tensor = torch.ops.quantized.linear_dynamic(rows / largest, packed, False)
            result = product.mul_(largest) if result is None else torch.addcmul(result, product, largest)
        assert result is not None
        return result.to(inputs.dtype)


class WideInt8Linear(_Packed):
    """`Int8Linear` for CPUs that add up products of bytes in 32 bits (VNNI, AMX).

    Nothing saturates there, so weights and inputs both have all of 8 bits.
    """

    version = "w8a8-wide"
    """Part of a model's fingerprint, as `Int8Linear.version`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._scales = weight.abs().amax(dim=1).float().clamp_min(1e-12) / 127
        self._zeros = torch.zeros(len(weight), dtype=torch.long)
        whole = (weight / self._scales[:, None]).round_().to(torch.int8)
        self._packed: Any = torch.ops.onednn.qlinear_prepack(whole, None)
        self._bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) float to (..., out) of the same dtype."""
        rows = inputs.float()
        scales = torch.linalg.vector_norm(rows, ord=float("inf"), dim=-1, keepdim=True).clamp_min_(1e-12).div_(127)
        whole = rows.div(scales).round_().to(torch.int8)
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, 0, self._packed, self._scales, self._zeros, None, 1.0, 0, inputs.dtype, "none", [], ""
        )
        result.mul_(scales.to(inputs.dtype))
        return result if self._bias is None else result.add_(self._bias.to(inputs.dtype))


def _largest_pair(weight: Tensor) -> Tensor:
    """Per row the largest sum of two neighbouring weights of one sign, or one alone: what bounds the kernels' sums."""
    pairs = nn.functional.pad(weight, (0, weight.shape[1] % 2)).reshape(len(weight), -1, 2)
    return torch.maximum(pairs.clamp_min(0).sum(-1), -pairs.clamp_max(0).sum(-1)).amax(dim=1)


class _Joined:
    """Several layers of one input computed as one; each of them is given its part."""

    def __init__(self, layer: nn.Module, widths: Sequence[int]) -> None:
        self.layer = layer
        self.widths = list(widths)
        self._inputs: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def part(self, inputs: Tensor, index: int) -> Tensor:
        """The outputs of one of the layers; computed for all when the first of them is asked."""
        if self._inputs is not inputs or self._parts[index] is None:
            self._parts = list(self.layer(inputs).split(self.widths, dim=-1))
            self._inputs = inputs
        result = self._parts[index]
        assert result is not None
        self._parts[index] = None
        if all(part is None for part in self._parts):
            self._inputs = None  # hold no activations until the next call
        return result


class _Part(_Packed):
    """Stands in the model for one of the joined layers."""

    def __init__(self, joined: _Joined, index: int) -> None:
        super().__init__()
        self._joined = joined
        self._index = index

    def forward(self, inputs: Tensor) -> Tensor:
        return self._joined.part(inputs, self._index)


Packer = type[HalfLinear] | type[Bfloat16Linear] | type[Int8Linear] | type[WideInt8Linear]


def can_pack(form: Form) -> bool:
    """Whether this build of torch has the kernels, and for `int8-wide` this CPU the instructions."""
    if form in ("halves", "int8"):
        return "fbgemm" in torch.backends.quantized.supported_engines
    built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not built or not _has(torch.ops.mkldnn, "_reorder_linear_weight", "_linear_pointwise"):
        return False
    if form == "bfloat16":
        return True
    if not _has(torch.ops.onednn, "qlinear_prepack", "qlinear_pointwise") or not _has(torch.cpu, "_is_vnni_supported"):
        return False
    return bool(torch.cpu._is_vnni_supported())


def _has(namespace: object, *names: str) -> bool:
    return all(hasattr(namespace, name) for name in names)


def pack_linears(model: nn.Module, form: Form) -> int:
    """Put packed layers in the place of a model's linear ones; how many were.

    As `halves`, a layer whose weights would lose by it stays as it is. As `int8`, the layers attention is made from
    are halves all the same, where those hold them: a third of what 8 bits cost in accuracy comes from them, and a
    fourteenth of the arithmetic. As `int8-wide`, whatever is not widening is bfloat16.

    Raises:
        ModelError: If 8 bits are asked for and the kernels are missing.
    """
    if not can_pack(form):
        if form.startswith("int8"):
            raise ModelError("quantization 'int8' needs the fbgemm kernels, which this build of torch lacks.")
        return 0
    if form in ("halves", "int8"):
        torch.backends.quantized.engine = "fbgemm"
    count = 0
    for parent in list(model.modules()):
        linears = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
        linears = {name: child for name, child in linears.items() if form != "halves" or _fits_halves(child.weight)}
        for names in _SIBLINGS:
            siblings = [linears[name] for name in names if name in linears]
            if len(siblings) == len(names) and len({sibling.bias is None for sibling in siblings}) == 1:
                joined = _Joined(_pack(form, siblings, names), [sibling.out_features for sibling in siblings])
                for index, name in enumerate(names):
                    setattr(parent, name, _Part(joined, index))
                    del linears[name]
                    count += 1
        for name, linear in linears.items():
            setattr(parent, name, _pack(form, [linear], (name,)))
            count += 1
    return count


def _pack(form: Form, linears: Sequence[nn.Linear], names: Sequence[str]) -> nn.Module:
    """One packed layer for all of these."""
    kind: Packer
    if form == "halves":
        kind = HalfLinear
    elif form == "bfloat16":
        kind = Bfloat16Linear
    elif form == "int8":
        halves = names == _ATTENTION and all(_fits_halves(linear.weight) for linear in linears)
        kind = HalfLinear if halves else Int8Linear
    else:
        outputs = sum(linear.out_features for linear in linears)
        kind = WideInt8Linear if outputs >= _WIDENING * linears[0].in_features else Bfloat16Linear
    weight = torch.cat([linear.weight.detach().float() for linear in linears])
    biases = [linear.bias for linear in linears]
    return kind(weight, None if biases[0] is None else torch.cat([bias.detach().float() for bias in biases]))


def _fits_halves(weight: Tensor) -> bool:
    """Whether halves hold the weights: those stored in 16 bits do unless they are huge, others seldom."""
    weight = weight.detach()
    if weight.dtype in (torch.bfloat16, torch.float16):
        return bool(weight.abs().max() < torch.finfo(torch.float16).max)
    return bool((weight.half().float() - weight).abs().max() <= _HALF_LOSS)
