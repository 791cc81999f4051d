# timeout: 300
"""What a rank of an expert-parallel vLLM reads, by vLLM's own filter, against what a mount with need=ep:RANK/SIZE shows."""
import pytest

from ground import need
from world import Agent, Mount, checkpoint, tensors_of

need("vllm")

from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map
from vllm.model_executor.model_loader.ep_weight_filter import compute_local_expert_ids, should_skip_weight

FAMILIES = {
    "qwen3_moe": ("model.layers.{}.mlp.experts.{}.{}_proj.weight", ("gate", "up", "down"), ("model.layers.{}.mlp.gate.weight",)),
    "mixtral": ("model.layers.{}.block_sparse_moe.experts.{}.w{}.weight", (1, 2, 3), ("model.layers.{}.block_sparse_moe.gate.weight",)),
    "deepseek_v3": ("model.layers.{}.mlp.experts.{}.{}_proj.weight", ("gate", "up", "down"),
                    ("model.layers.{}.mlp.shared_experts.up_proj.weight", "model.layers.{}.mlp.gate.e_score_correction_bias")),
}


def names_of(family, experts):
    expert, parts, others = FAMILIES[family]
    found = ["model.embed_tokens.weight", "lm_head.weight"]
    for layer in range(2):
        found += [expert.format(layer, e, p) for e in range(experts) for p in parts]
        found += [o.format(layer) for o in others]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks(family):
    for experts, size in ((8, 2), (7, 3), (5, 4), (128, 16)):
        names = names_of(family, experts)
        agent = Agent()
        agent.publish("actor", 1, checkpoint({n: ("BF16", [2, 3]) for n in names}))
        for rank in sorted({0, 1, size - 1}):
            local = compute_local_expert_ids(experts, size, rank)
            placed = determine_expert_map(size, rank, experts)[1]
            assert local == {e for e in range(experts) if placed[e] >= 0}  # vLLM's loader and its layers agree
            mount = Mount(agent.url, f"need=ep:{rank}/{size}")
            mount.wait_version("actor", 1)
            shown = tensors_of(mount.file("actor/1/model.safetensors"))
            assert sorted(shown) == sorted(n for n in names if not should_skip_weight(n, local)), (family, experts, size, rank)
            mount.end()
        agent.end()
