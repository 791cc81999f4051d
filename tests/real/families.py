"""Tiny checkpoints of published families: families.py FOLDER FAMILY...

FOLDER/FAMILY/1 is random; 2, 3 and 4 differ from the one before in about one element of 66 of each tensor."""
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils.logging import disable_progress_bar

from checkpoints import tokenizer

VERSIONS = (1, 2, 3, 4)
SHARE = 66
COMMON = dict(vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
              max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0)
EXPERTS = dict(moe_intermediate_size=64, num_experts_per_tok=2)
MLA = dict(q_lora_rank=64, kv_lora_rank=512, qk_nope_head_dim=32, qk_rope_head_dim=64, v_head_dim=32, num_key_value_heads=4, head_dim=64)
DEEPSEEK = EXPERTS | MLA | dict(n_routed_experts=8, n_group=2, topk_group=1, topk_method="noaux_tc")
#: configuration's and model's class of transformers, and what is set beside COMMON
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "qwen3-tied": ("Qwen3Config", "Qwen3ForCausalLM", dict(tie_word_embeddings=True)),
    "qwen3-moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", EXPERTS | dict(num_experts=8, norm_topk_prob=True)),
    "deepseek-v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", DEEPSEEK | dict(n_shared_experts=1, first_k_dense_replace=1)),
    "deepseek-v3-dense": ("DeepseekV3Config", "DeepseekV3ForCausalLM", DEEPSEEK | dict(first_k_dense_replace=2)),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", {}),
    "glm4-moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", EXPERTS | dict(n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1)),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", dict(tie_word_embeddings=True, sliding_window=64)),
    "gpt-oss": ("GptOssConfig", "GptOssForCausalLM", dict(num_local_experts=8, num_experts_per_tok=2, sliding_window=64, head_dim=64)),
}


def make(folder, family, versions=VERSIONS):
    """Returns the folder of the family's versions."""
    disable_progress_bar()
    config, model, more = FAMILIES[family]
    torch.manual_seed(1)
    made = getattr(transformers, model)(getattr(transformers, config)(**COMMON | more))
    with torch.no_grad():
        for p in made.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.15)
    path = os.path.join(folder, family)
    made.to(torch.bfloat16).save_pretrained(os.path.join(path, "1"))
    tokenizer().save_pretrained(os.path.join(path, "1"))
    for old, new in zip(versions, versions[1:]):
        change(os.path.join(path, str(old)), os.path.join(path, str(new)), new)
    return path


def change(old, new, seed, share=SHARE, only=""):
    """A version in which some elements of each tensor with `only` in its name are others."""
    shutil.copytree(old, new)
    file = os.path.join(new, "model.safetensors")
    weights = load_file(file)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in weights.items():
        if only in name:
            at = torch.randint(tensor.numel(), (max(1, tensor.numel() // share),), generator=generator)
            flat = tensor.view(-1)
            flat[at] = (flat[at].float() * 1.5 + 0.02).to(tensor.dtype)
    save_file(weights, file, metadata={"format": "pt"})


if __name__ == "__main__":
    for one in sys.argv[2:]:
        make(sys.argv[1], one)
