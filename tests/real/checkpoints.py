"""Tiny checkpoints of a real architecture, with a tokenizer: checkpoints.py FOLDER [experts]

1, 2 and 3 differ in their weights only. The others are version 2 with a defect: `missing` lacks a tensor, `extra` has one too many, in
`shape` a tensor has another shape, in `head` the last one has, in `dtype` one has another element type, in `truncated` the file is cut. experts: 1 and 2 of a model with EXPERTS of them a layer, and no others."""
import os
import shutil
import string
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils.logging import disable_progress_bar

VOCABULARY = 1000
VERSIONS = (1, 2, 3)
DAMAGED = "model.layers.1.mlp.down_proj.weight"
HEAD = "lm_head.weight"
FILE = "model.safetensors"
CONFIG = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=1, head_dim=32, max_position_embeddings=512, tie_word_embeddings=False,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)
EXPERTS = 8
# Two key-value heads, since two ranks share them.
OF_EXPERTS = CONFIG | dict(num_key_value_heads=2, num_experts=EXPERTS, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)


def tokenizer():
    """Single bytes, and as many pairs of letters and digits as fit the vocabulary."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    words = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for set_ in (string.ascii_lowercase, string.digits) for a in set_ for b in set_]
    pairs = pairs[: VOCABULARY - len(words)]
    words += [a + b for a, b in pairs]
    made = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, pairs, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                   unk_token="<unk>", model_max_length=512)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    assert len(fast) == VOCABULARY
    return fast


def make(folder, versions=VERSIONS, kind=Qwen3ForCausalLM, config=Qwen3Config(**CONFIG)):
    disable_progress_bar()
    words = tokenizer()
    for version in versions:
        torch.manual_seed(version)
        model = kind(config)
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.25)  # with the usual 0.02 versions would answer nearly the same
        path = os.path.join(folder, str(version))
        model.to(torch.bfloat16).save_pretrained(path)
        words.save_pretrained(path)


def damage(folder, good):
    weights = load_file(os.path.join(good, FILE))

    def copy(name):
        path = os.path.join(folder, name)
        shutil.copytree(good, path)
        return os.path.join(path, FILE)

    def save(name, change):
        save_file({k: v for k, v in (weights | change).items() if v is not None}, copy(name), metadata={"format": "pt"})

    save("missing", {DAMAGED: None})
    save("shape", {DAMAGED: weights[DAMAGED][:-8].contiguous()})
    save("extra", {DAMAGED + ".scale": weights[DAMAGED].clone()})
    save("head", {HEAD: weights[HEAD][:-8].contiguous()})
    save("dtype", {DAMAGED: weights[DAMAGED].float()})
    path = copy("truncated")
    os.truncate(path, os.path.getsize(path) // 2)


if __name__ == "__main__":
    if "experts" in sys.argv[2:]:
        make(sys.argv[1], (1, 2), Qwen3MoeForCausalLM, Qwen3MoeConfig(**OF_EXPERTS))
    else:
        make(sys.argv[1])
        damage(sys.argv[1], os.path.join(sys.argv[1], "2"))
