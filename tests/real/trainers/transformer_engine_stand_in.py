"""A stand-in for Transformer Engine in plain torch, so that Megatron-core builds its Transformer Engine specs on a CPU: the layers
that these specs name, with the parameters, names and partition attributes of the real ones, and a forward. No FP8, no fused MLP.
Import it before megatron."""
import contextlib
import enum
import sys
import types

import torch
import torch.distributed as dist
from torch.nn import functional


def _mark(weight, parallel_mode):
    """As the real layers do on every weight, also on those that each rank has whole."""
    weight.tensor_model_parallel, weight.partition_dim, weight.partition_stride = True, 1 if parallel_mode == "row" else 0, 1


def _normalised(x, weight, bias, eps, kind, zero_centered):
    scale = weight + 1 if zero_centered else weight
    if kind == "LayerNorm":
        return functional.layer_norm(x, x.shape[-1:], scale, bias, eps)
    y = x.float()
    return (scale.float() * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps))).to(x.dtype)


class RMSNorm(torch.nn.Module):
    kind = "RMSNorm"

    def __init__(self, hidden_size, eps=1e-5, zero_centered_gamma=False, **_):
        super().__init__()
        self.eps, self.zero_centered = eps, zero_centered_gamma
        self.weight = torch.nn.Parameter(torch.full((hidden_size,), 0.0 if zero_centered_gamma else 1.0))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size)) if self.kind == "LayerNorm" else None

    def forward(self, x):
        return _normalised(x, self.weight, self.bias, self.eps, self.kind, self.zero_centered)


class LayerNorm(RMSNorm):
    kind = "LayerNorm"


class Linear(torch.nn.Module):
    def __init__(self, in_features, out_features, *, tp_group=None, tp_size=1, parallel_mode=None, bias=True, return_bias=False, init_method=None, **_):
        super().__init__()
        out_features //= tp_size if parallel_mode == "column" else 1
        in_features //= tp_size if parallel_mode == "row" else 1
        self.parallel_mode, self.tp_group, self.tp_size, self.return_bias = parallel_mode, tp_group, tp_size, return_bias
        self.in_features, self.out_features, self.use_bias, self.init_method = in_features, out_features, bias, init_method
        self.weight = torch.nn.Parameter(torch.zeros(out_features, in_features))
        self.bias = torch.nn.Parameter(torch.zeros(out_features)) if bias else None
        _mark(self.weight, parallel_mode)

    def forward(self, x, is_first_microbatch=None, **_):
        y = functional.linear(x, self.weight)
        if self.parallel_mode == "row" and self.tp_size > 1:
            dist.all_reduce(y, group=self.tp_group)
        if self.return_bias:
            return y, self.bias
        return y if self.bias is None else y + self.bias

    def set_tensor_parallel_group(self, group):
        self.tp_group = group


class LayerNormLinear(Linear):
    def __init__(self, in_features, out_features, *, eps=1e-5, normalization="LayerNorm", zero_centered_gamma=False, **more):
        super().__init__(in_features, out_features, **more)
        self.eps, self.normalization, self.zero_centered = eps, normalization, zero_centered_gamma
        self.layer_norm_weight = torch.nn.Parameter(torch.full((in_features,), 0.0 if zero_centered_gamma else 1.0))
        self.layer_norm_bias = torch.nn.Parameter(torch.zeros(in_features)) if normalization == "LayerNorm" else None

    def forward(self, x, is_first_microbatch=None, **_):
        return super().forward(_normalised(x, self.layer_norm_weight, self.layer_norm_bias, self.eps, self.normalization, self.zero_centered))


class GroupedLinear(torch.nn.Module):
    """Megatron gives the sizes of this rank, and no parallel mode, where it does the communication itself."""

    def __init__(self, num_gemms, in_features, out_features, *, tp_size=1, parallel_mode=None, bias=True, return_bias=False, **_):
        super().__init__()
        out_features //= tp_size if parallel_mode == "column" else 1
        in_features //= tp_size if parallel_mode == "row" else 1
        self.num_gemms, self.parallel_mode, self.return_bias, self.use_bias = num_gemms, parallel_mode, return_bias, bias
        for i in range(num_gemms):
            weight = torch.nn.Parameter(torch.zeros(out_features, in_features))
            _mark(weight, parallel_mode)
            self.register_parameter(f"weight{i}", weight)
            self.register_parameter(f"bias{i}", torch.nn.Parameter(torch.zeros(out_features)) if bias else None)

    def forward(self, x, m_splits, is_first_microbatch=None):
        parts = torch.split(x, [int(n) for n in m_splits])
        y = torch.cat([functional.linear(part, getattr(self, f"weight{i}"), getattr(self, f"bias{i}")) for i, part in enumerate(parts)])
        return (y, None) if self.return_bias else y


class DotProductAttention(torch.nn.Module):
    """Causal, of [sequence, batch, heads, head] tensors."""

    def __init__(self, num_attention_heads, kv_channels, softmax_scale=None, **_):
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(self, query, key, value, *_, **__):
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * (self.softmax_scale or q.shape[-1] ** -0.5)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return (scores.masked_fill(future, float("-inf")).softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)


class _Manager:
    @staticmethod
    def is_fp8_enabled():
        return False


def _nothing(*_, **__):
    return contextlib.nullcontext()


def _unknown(*_, **__):
    raise NotImplementedError("the stand-in for Transformer Engine has no such function")


def _types(names):
    return {name: type(name, (), {}) for name in names.split()}


def _install(name, **members):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, last = name.rpartition(".")
    vars(module).update(members)
    if parent:
        setattr(sys.modules[parent], last, module)


_TE = "transformer_engine"
_install(_TE, __version__="2.6.0")
_install(f"{_TE}.common")
_install(f"{_TE}.common.recipe", Format=enum.Enum("Format", "E4M3 HYBRID E5M2"),
         **_types("Recipe DelayedScaling Float8CurrentScaling Float8BlockScaling MXFP8BlockScaling NVFP4BlockScaling"))
_install(f"{_TE}.pytorch", Linear=Linear, LayerNormLinear=LayerNormLinear, GroupedLinear=GroupedLinear, RMSNorm=RMSNorm, LayerNorm=LayerNorm,
         DotProductAttention=DotProductAttention, Fp8Padding=torch.nn.Identity, Fp8Unpadding=torch.nn.Identity)
_install(f"{_TE}.pytorch.fp8", FP8GlobalStateManager=_Manager, fp8_autocast=_nothing, fp8_model_init=_nothing)
_install(f"{_TE}.pytorch.distributed", CudaRNGStatesTracker=type("CudaRNGStatesTracker", (), {}), checkpoint=_unknown, activation_recompute_forward=_nothing,
         get_all_rng_states=dict)
_install(f"{_TE}.pytorch.float8_tensor", **_types("Float8Tensor"))
_install(f"{_TE}.pytorch.tensor", **_types("QuantizedTensor"))
_install(f"{_TE}.pytorch.tensor.float8_tensor", **_types("Float8Tensor"))
_install(f"{_TE}.pytorch.tensor.mxfp8_tensor", **_types("MXFP8Tensor"))
_install(f"{_TE}.pytorch.tensor.utils", cast_master_weights_to_fp8=_unknown, replace_raw_data=_unknown)
_install(f"{_TE}.pytorch.optimizers", FusedAdam=torch.optim.AdamW, FusedSGD=torch.optim.SGD, multi_tensor_applier=_unknown, multi_tensor_scale=_unknown,
         multi_tensor_scale_tensor=_unknown, multi_tensor_l2norm=_unknown)
_install(f"{_TE}.pytorch.ops", **{name: type(name, (torch.nn.Module,), {}) for name in (
    "AllReduce BasicLinear Bias FusibleOperation GEGLU GELU LayerNorm RMSNorm ReGLU ReLU ReduceScatter Sequential SiLU SwiGLU").split()})
