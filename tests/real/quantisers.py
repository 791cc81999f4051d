"""The quantisers that recipes are compared with: [rows, columns] to a tensor of codes and one of scales, on the CPU.

Those of wheels are taken out of the installed sources, function by function: importing their modules needs a GPU's libraries. Those
of tools that no wheel has are written here as formulas."""
import ast
import functools
import importlib.util
import os
import types

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams

E4M3 = torch.float8_e4m3fn


@functools.cache
def nodes_of(package, path):
    root = os.path.dirname(importlib.util.find_spec(package).origin)
    with open(os.path.join(root, path)) as f:
        return ast.parse(f.read()).body


def functions_of(package, path, *names, **needed):
    """These functions of a package's source, without their decorators."""
    found = [n for n in nodes_of(package, path) if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name in names]
    assert {n.name for n in found} == set(names), (path, names)
    for n in found:
        n.decorator_list = []
    space = {"torch": torch, **needed}
    code = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *found], [])
    exec(compile(ast.fix_missing_locations(code), path, "exec"), space)
    return [space[name] for name in names]


def slime_block(w):
    "slime's tools/convert_hf_to_fp8.py, block_fp8"
    rows, columns = w.shape
    n, k = -(-rows // 128), -(-columns // 128)
    padded = torch.zeros(n * 128, k * 128, dtype=w.dtype)
    padded[:rows, :columns] = w
    blocks = padded.view(n, 128, k, 128)
    amax = blocks.abs().amax(dim=(1, 3), keepdim=True)
    scale = amax.clamp(min=1e-12).to(torch.float32) / 448.0
    codes = (blocks / scale).clamp(-448.0, 448.0).to(E4M3)
    return codes.view(n * 128, k * 128)[:rows, :columns].contiguous(), scale.view(n, k)


def prime_rl_block(w):
    "prime-rl's quantize_to_fp8_blockwise: the least scale, not amax, is 1e-12"
    rows, columns = w.shape
    n, k = -(-rows // 128), -(-columns // 128)
    padded = torch.zeros(n * 128, k * 128, dtype=torch.float32)
    padded[:rows, :columns] = w
    blocks = padded.view(n, 128, k, 128)
    scale = (blocks.abs().amax(dim=(1, 3), keepdim=True) / 448.0).clamp(min=1e-12)
    return (blocks / scale).to(E4M3).view(n * 128, k * 128)[:rows, :columns].contiguous(), scale.view(n, k)


def slime_channel(w):
    "slime's tools/convert_hf_to_fp8.py, channel_fp8"
    scale = w.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12).to(torch.float32) / 448.0
    return (w / scale).clamp(-448.0, 448.0).to(E4M3), scale


def vllm_block(w, ue8m0=False):
    "vLLM's per_block_cast_to_fp8"
    [_, _, cast] = functions_of("vllm", "utils/deep_gemm.py", "_align", "_ceil_to_ue8m0", "per_block_cast_to_fp8",
                                cdiv=lambda a, b: -(-a // b), get_fp8_min_max=lambda: (-448.0, 448.0),
                                current_platform=types.SimpleNamespace(fp8_dtype=lambda: E4M3), DEFAULT_BLOCK_SIZE=[128, 128])
    return cast(w, [128, 128], use_ue8m0=ue8m0)


def vllm_block_ue8m0(w):
    "vLLM's per_block_cast_to_fp8, use_ue8m0"
    return vllm_block(w, True)


def sglang_block_ue8m0(w):
    "SGLang's per_block_cast_to_fp8"
    [_, cast] = functions_of("sglang", "srt/layers/quantization/fp8_utils.py", "ceil_to_ue8m0", "per_block_cast_to_fp8",
                             ceil_align=lambda a, b: -(-a // b) * b)
    return cast(w)


def transformers_block(w):
    "transformers' Fp8Quantize; None: it leaves a ragged weight as it is"
    from transformers.integrations.finegrained_fp8 import Fp8Quantize
    config = types.SimpleNamespace(weight_block_size=[128, 128], scale_fmt="float")
    made = Fp8Quantize(types.SimpleNamespace(quantization_config=config))._quantize_one("w.weight", w)
    return (made["w.weight"], made["w.weight_scale_inv"]) if len(made) == 2 else None


def compressed_tensors(preset, form, w, groups, **changed):
    """What compressed-tensors stores of it; groups: w in the shape whose last dimension shares a scale."""
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.weights = scheme.weights.model_copy(update=changed)
    scale, zero = calculate_qparams(groups.amin(dim=-1), groups.amax(dim=-1), scheme.weights)
    shape = (w.shape[0], -1)
    compressor = BaseCompressor.get_value_from_registry(form)
    return compressor.compress({"weight": w, "weight_scale": scale.view(shape), "weight_zero_point": zero.view(shape)}, scheme)


def ct_fp8_channel(w):
    "compressed-tensors' FP8_DYNAMIC"
    made = compressed_tensors("FP8_DYNAMIC", "float-quantized", w, w)
    return made["weight"], made["weight_scale"]


def ct_int8_channel(w):
    "compressed-tensors' W8A8"
    made = compressed_tensors("W8A8", "int-quantized", w, w)
    return made["weight"], made["weight_scale"]


def ct_int4_group(w, size=128):
    "compressed-tensors' W4A16"
    made = compressed_tensors("W4A16", "pack-quantized", w, w.view(w.shape[0], -1, size), group_size=size)
    return made["weight_packed"], made["weight_scale"], made["weight_shape"]


def ct_int4_g32(w):
    "compressed-tensors' W4A16, group_size 32"
    return ct_int4_group(w, 32)


def slime_int4_g32(w):
    "slime's tools/convert_hf_to_int4_direct.py, by its formula"
    groups = w.float().view(w.shape[0], -1, 32)
    scale = (groups.abs().amax(dim=-1, keepdim=True) * torch.tensor(1 / 7)).clamp(min=1e-5)
    codes = (groups / scale).round().clamp(-7, 7).to(torch.int32).view(w.shape[0], -1, 8) + 8
    packed = (codes << torch.arange(0, 32, 4, dtype=torch.int32)).sum(dim=-1, dtype=torch.int32)
    return packed, scale.squeeze(-1).to(w.dtype), torch.tensor(w.shape, dtype=torch.int32)


def vllm_mxfp8(w):
    "vLLM's _mxfp8_e4m3_quantize_torch"
    [quantise] = functions_of("vllm", "model_executor/layers/quantization/utils/mxfp8_utils.py", "_mxfp8_e4m3_quantize_torch",
                              MXFP8_BLOCK_SIZE=32, MXFP8_VALUE_DTYPE=E4M3)
    return quantise(w)
