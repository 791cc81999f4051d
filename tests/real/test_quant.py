# timeout: 1500
"""Recipes against the quantisers whose arithmetic they are: `wsync derive` on checkpoints of ordinary and of hostile weights, every
code and scale compared bit by bit."""
import importlib.util
import json
import os

import pytest

from world import unique, wsync

for module in ("torch", "compressed_tensors", "transformers", "vllm", "sglang"):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: PyPI could not be reached, or `.ci/deps real` has not run", allow_module_level=True)

import torch
from safetensors.torch import load_file, save_file

import quantisers

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
N_CASES = 64


def bits_of(t):
    return t.contiguous().view(torch.uint8)


def normal(generator, *shape, by=0.02):
    return torch.randn(*shape, generator=generator) * by


def any_bits(generator, dtype, *shape):
    "every pattern that is a number"
    width = torch.int32 if dtype == torch.float32 else torch.int16
    info = torch.iinfo(width)
    t = torch.randint(info.min, info.max + 1, shape, generator=generator, dtype=torch.int64).to(width).view(dtype)
    return torch.where(t.isfinite(), t, torch.zeros_like(t))


def hostile(generator, dtype):
    "weights that quantisers get wrong, by name"
    tiny = torch.finfo(dtype).tiny
    zeros = normal(generator, 256, 384)
    zeros[:128, 128:256] = 0
    zeros[200] = 0
    edge = normal(generator, 300, 200)
    edge[299] = -0.0
    powers = torch.exp2(torch.randint(-24, 16, (256, 256), generator=generator).float()) * (1 + torch.randint(0, 8, (256, 256), generator=generator) / 8)
    yield "zero blocks and rows", zeros
    yield "all zero", torch.zeros(128, 256)
    yield "minus zero", torch.full((128, 128), -0.0)
    yield "ragged edges", edge
    yield "one element", normal(generator, 1, 1)
    yield "fewer rows than a block", normal(generator, 3, 640)
    yield "subnormal", torch.randint(-100, 100, (256, 256), generator=generator) * tiny / 128
    yield "subnormal beside ordinary", torch.where(torch.rand(256, 256, generator=generator) < 0.5, normal(generator, 256, 256), torch.tensor(tiny / 4))
    yield "tiny", normal(generator, 256, 256, by=1e-7)
    yield "around 1e-12", normal(generator, 256, 256, by=1e-12)
    yield "around 1e-4", normal(generator, 1280, 256, by=3e-5)
    yield "one large", torch.cat([normal(generator, 255, 256), torch.full((1, 256), torch.finfo(dtype).max)])
    yield "ties", powers
    yield "every pattern", any_bits(generator, dtype, 256, 512)


def cases(dtype):
    generator = torch.Generator().manual_seed(18)
    for name, w in hostile(generator, dtype):
        yield name, w.to(dtype)
    for _ in range(N_CASES):
        rows, columns = torch.randint(1, 500, (2,), generator=generator).tolist()
        yield "random", normal(generator, rows, columns).to(dtype)


def derive(recipe, weights):
    """Folders with them and with what wsync makes of them."""
    source, target = unique("source"), unique("derived")
    os.makedirs(source)
    with open(os.path.join(source, "config.json"), "w") as f:
        json.dump({"model_type": "qwen3"}, f)
    save_file(weights, os.path.join(source, "model.safetensors"))
    wsync("derive", "--quiet", "--recipe", recipe, source, target)
    return source, target


TARGETS = {"fp8-block128": ("weight", "weight_scale_inv"), "fp8-block128-ue8m0": ("weight", "weight_scale_inv"),
           "int4-g32": ("weight_packed", "weight_scale", "weight_shape"), "int4-g128": ("weight_packed", "weight_scale", "weight_shape"),
           "int4-g32-slime": ("weight_packed", "weight_scale", "weight_shape")}
COLUMNS = {"int4-g32": 32, "int4-g32-slime": 32, "int4-g128": 128, "mxfp8": 32}  # these take multiples of them
FUSED = {"self_attn.q_proj": 384, "self_attn.k_proj": 128, "self_attn.v_proj": 72, "mlp.gate_proj": 640, "mlp.up_proj": 200}
EQUAL = [
    ("fp8-block128", quantisers.slime_block),
    ("fp8-block128-ue8m0", quantisers.vllm_block_ue8m0),
    ("fp8-block128-ue8m0", quantisers.sglang_block_ue8m0),
    ("fp8-channel", quantisers.slime_channel),
    ("fp8-channel-ct", quantisers.ct_fp8_channel),
    ("int8-channel", quantisers.ct_int8_channel),
    ("int4-g32", quantisers.ct_int4_g32),
    ("int4-g128", quantisers.ct_int4_group),
    ("int4-g32-slime", quantisers.slime_int4_g32),
    ("mxfp8", quantisers.vllm_mxfp8),
]


def differing(recipe, reference, dtype):
    """Differing bytes of codes and of scales, elements and weights compared, and the cases in which they are."""
    weights = dict(cases_by_name(dtype, COLUMNS.get(recipe, 1)))
    _, target = derive(recipe, {name: w for name, (_, w) in weights.items()})
    got = load_file(os.path.join(target, "model.safetensors"))
    total, n, n_weights, where = [0, 0], 0, 0, {}
    for name, (case, w) in weights.items():
        want = reference(w) if usable(reference, dtype, w) else None
        if want is None:
            continue
        made = [got[name.replace("weight", target)] for target in TARGETS.get(recipe, ("weight", "weight_scale"))]
        assert [(t.dtype, t.shape) for t in made] == [(t.dtype, t.shape) for t in want], case
        differ = [int((bits_of(a) != bits_of(b)).sum()) for a, b in zip(made, want)]
        total, n, n_weights = [total[0] + differ[0], total[1] + sum(differ[1:])], n + w.numel(), n_weights + 1
        if any(differ):
            where[case] = differ
    return *total, n, n_weights, where


def cases_by_name(dtype, columns):
    for i, (case, w) in enumerate(cases(dtype)):
        w = torch.nn.functional.pad(w, (0, -w.shape[1] % columns), value=0.01)
        yield f"model.layers.{i}.self_attn.o_proj.weight", (case, w)
    generator = torch.Generator().manual_seed(19)
    for layer, rows in FUSED.items():  # engines make one layer of them; each is quantised as if it were alone
        w = normal(generator, rows, 256, by=10.0 ** -(rows % 5))
        yield f"model.layers.1000.{layer}.weight", ("fused", w.to(dtype))


def usable(reference, dtype, w):
    """slime's least amax, 1e-12, is 0 in f16: a block or row of zeros is NaN there, and wsync's codes are 0."""
    return not (dtype == torch.float16 and reference in (quantisers.slime_block, quantisers.slime_channel) and
                reference(w)[0].float().isnan().any())


@pytest.mark.parametrize("recipe, reference", EQUAL, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_equal(recipe, reference):
    "no bit differs from the quantiser that the recipe is named after"
    for dtype in DTYPES:
        codes, scales, n, n_cases, where = differing(recipe, reference, dtype)
        print(f"# {recipe:20} {reference.__doc__.splitlines()[0]:48} {str(dtype)[6:]:9} {n_cases:3} weights {n:8} elements: "
              f"{codes} codes, {scales} bytes of scales differ", flush=True)
        assert (codes, scales) == (0, 0), where


# recipe, another quantiser, why it is not equal: the recipe has the bits of the one that EQUAL has for it
DIFFERENT = [
    ("fp8-block128", quantisers.prime_rl_block, "of zeros and of less than 4.5e-10 it stores the scale 1e-12"),
    ("fp8-block128", quantisers.vllm_block, "multiplies by 1 / scale, and its least amax is 1e-4"),
    ("fp8-block128", quantisers.transformers_block, "stores 1 / (448 / amax) and multiplies by 448 / amax; ragged weights stay bf16"),
]


@pytest.mark.parametrize("recipe, reference, why", DIFFERENT, ids=[reference.__name__ for _, reference, _ in DIFFERENT])
def test_different(recipe, reference, why):
    "how many bits differ of quantisers of the same format with other arithmetic"
    codes, scales, n, n_weights, where = differing(recipe, reference, torch.bfloat16)
    print(f"# {recipe:20} {reference.__doc__.splitlines()[0]:48} bfloat16  {n_weights:3} weights {n:8} elements: "
          f"{codes} codes, {scales} bytes of scales differ: {why}", flush=True)
    assert codes + scales > 0
    assert reference is not quantisers.prime_rl_block or "random" not in where, where


# model types of select.c with transformers' models; what is smaller than a model has to be for any of them
SMALL = dict(hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
             vocab_size=64, moe_intermediate_size=128, shared_expert_intermediate_size=128, num_experts=4, num_local_experts=4,
             n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=64,
             v_head_dim=64, n_group=1, topk_group=1, first_k_dense_replace=1, pad_token_id=0, decoder_sparse_step=1,
             linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=64, linear_value_head_dim=64,
             layer_types=None)
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "qwen2_moe", "qwen3_moe", "glm4_moe", "mixtral", "deepseek_v2",
            "deepseek_v3", "qwen3_next", "qwen3_5_text")
# linear layers that transformers' FP8 would take, and that others and wsync leave as they are
NOT_OURS = {"gate", "shared_expert_gate", "in_proj_ba", "in_proj_a", "in_proj_b"}


def theirs(model):
    "the modules that transformers' FP8 replaces, experts as a whole"
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import FP8Linear, replace_with_fp8_linear
    replaced = replace_with_fp8_linear(model, ["lm_head"], FineGrainedFP8Config())
    return {name for name, m in replaced.named_modules() if isinstance(m, FP8Linear) or name.endswith(".experts")}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers(family):
    "the layers that are quantised of a family are those that transformers would take, less routers and the like"
    from transformers import AutoConfig, AutoModelForCausalLM
    known = AutoConfig.for_model(family)
    config = AutoConfig.for_model(family, **{k: v for k, v in SMALL.items() if hasattr(known, k)})
    source, target = unique("source"), unique("derived")
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(source)
    wsync("derive", "--quiet", "--recipe", "fp8-channel", source, target)
    tensors = load_file(os.path.join(target, "model.safetensors"))
    ours = {name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")}
    with torch.device("meta"):
        layers = theirs(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
    experts = {name for name in layers if name.endswith(".experts")}
    wanted = layers - experts | {m for m in ours if experts and ".experts." in m}  # files may call them otherwise than modules
    loose = {name for name in tensors if ".experts." in name and name.removesuffix(".weight") not in ours and "scale" not in name}
    print(f"# {family:12} {len(ours):3} layers quantised, left besides: {sorted({n.split('.')[-1] for n in wanted - ours})}", flush=True)
    assert ours <= wanted and {name.split(".")[-1] for name in wanted - ours} <= NOT_OURS, (sorted(ours - wanted), sorted(wanted - ours))
    assert not loose, sorted(loose)[:4]


PRESETS = [("fp8-channel", "FP8_DYNAMIC", {}), ("fp8-channel-ct", "FP8_DYNAMIC", {}), ("int8-channel", "W8A8", {}),
           ("int4-g32", "W4A16", {"group_size": 32}), ("int4-g128", "W4A16", {}),
           ("int4-g32-slime", "W4A16", {"group_size": 32})]


@pytest.mark.parametrize("recipe, preset, changed", PRESETS, ids=[recipe for recipe, *_ in PRESETS])
def test_config(recipe, preset, changed):
    "compressed-tensors reads the config.json of a recipe as what its own preset means"
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
    _, target = derive(recipe, {"model.layers.0.self_attn.o_proj.weight": torch.zeros(128, 128, dtype=torch.bfloat16)})
    with open(os.path.join(target, "config.json")) as f:
        written = json.load(f)["quantization_config"]
    read = QuantizationConfig.model_validate(written)
    scheme, wanted = read.config_groups["group_0"], preset_name_to_scheme(preset, ["Linear"])
    wanted.weights = wanted.weights.model_copy(update=changed)
    for ours, theirs in ((scheme.weights, wanted.weights), (scheme.input_activations, wanted.input_activations)):
        assert (ours is None) == (theirs is None)
        differ = {k for k in (type(ours).model_fields if ours else ()) if getattr(ours, k) != getattr(theirs, k)}
        assert differ <= {"observer"}, differ  # that is how scales were found, not what is there
    assert scheme.targets == ["Linear"] and read.ignore == ["lm_head"] and read.quantization_status == "compressed"
