"""LoRA adapters for tests: the two files that PEFT writes; and what engines list of them."""
import json
import os
import random

from world import unique, write_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MODULE = "base_model.model.model.layers.{}.self_attn.{}_proj"
# As PEFT 0.21 writes it, shortened.
GOOD = {"alpha_pattern": {}, "base_model_name_or_path": "org/base", "bias": "none", "inference_mode": True, "init_lora_weights": True,
        "lora_alpha": 16, "lora_dropout": 0.0, "modules_to_save": None, "peft_type": "LORA", "r": 4, "rank_pattern": {},
        "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "use_dora": False, "use_rslora": False}


def pairs(rank=4, width=64, layers=2):
    """{name: shape} of an adapter of q_proj and v_proj."""
    return {f"{MODULE.format(i, p)}.lora_{half}.weight": [rank, width] if half == "A" else [width, rank]
            for i in range(layers) for p in "qv" for half in "AB"}


def adapter(seed=0, shapes=None, config=None, weights=WEIGHTS, folder=None, **changes):
    """A folder. config: the text of adapter_config.json, b"" for no such file; changes: of its keys, None: without it. shapes: of tensors
    of F32, {} for no file of weights, which may have another name."""
    folder = folder or unique("adapter")
    os.makedirs(folder, exist_ok=True)
    if config is None:
        config = json.dumps({k: v for k, v in (GOOD | changes).items() if k not in changes or v is not None}, indent=2).encode()
    if config:
        with open(os.path.join(folder, CONFIG), "wb") as f:
            f.write(config)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    shapes = pairs() if shapes is None else shapes
    for name in sorted(shapes):
        n = 4
        for d in shapes[name]:
            n *= d
        header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [end, end + n]}
        end += n
    if shapes:
        write_safetensors(os.path.join(folder, weights), header, random.Random(seed).randbytes(end))
    return folder


RANK, WIDTH = 8, 256  # MEDIUM's layers are WIDTH x WIDTH


def lora(seed=1, width=WIDTH, **changes):
    """A folder with an adapter of MEDIUM's layers, which names no base."""
    shapes, rank = {}, changes.get("r", RANK)
    for layer in range(4):
        name = f"base_model.model.layer.{layer}.lora_"
        shapes |= {f"{name}A.weight": [rank, width], f"{name}B.weight": [width, rank]}
    return adapter(seed, shapes, **{"r": rank, "target_modules": ["layer"], "base_model_name_or_path": None, **changes})


def listed(engine):
    return [m["id"] for m in engine.ask("/v1/models")["data"] if m.get("parent")]
