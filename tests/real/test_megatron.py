# timeout: 1500, takes: 60
"""Ranks of Megatron-core publish through one agent, and the mounted files equal the Hugging Face models that theirs were filled from and
whose logits they give: of the local spec, and of Transformer Engine's by a stand-in for it. A start of torch and Megatron on 4 ranks takes
longer than its cases do, so CI makes three, with a case of each kind."""
import os

import pytest

from ground import compared, need

TE = {"TRANSFORMER_ENGINE": "1"}


def need_minutes():
    need("megatron.core")
    if os.environ.get("CI"):
        pytest.skip("it starts Megatron again for more of the same kind: minutes that the hour of CI does not have")


def test_2():
    "2 ranks, local spec: with biases, virtual pipeline, gathers that come late; Megatron's own distributed optimizer, whose gathers come late"
    need("megatron.core")
    compared(2, "megatron_ranks.py", "tp2-bias", "vpp2", "trained-late")


def test_4():
    "4 ranks, Transformer Engine's spec: fewer key and value heads than ranks, pipeline and tied, experts; an optimizer's ranges; replicas that differ"
    need("megatron.core")
    compared(4, "megatron_ranks.py", "tp4", "tp2-pp2-tied", "moe-tp2-ep2", "ranges-moe-ep2", "audit-tp2-cp2", "audit-moe-ep2", env=TE)


def test_families_4():
    "4 ranks of DeepSeek-V3, Moonlight, GLM-4.5 and Mixtral: tensor or pipeline with expert parallel, experts' own tensor parallel groups, multi-token prediction; Qwen3-Next"
    need("megatron.core")
    compared(4, "megatron_family_ranks.py", "deepseek-etp2-ep2", "moonlight-pp2-ep2", "glm-tp4", "mixtral-etp2-ep2", "deepseek-mtp-pp2-ep2",
             "qwen3-next-etp2-ep2")


def test_fsdp_2():
    "2 ranks of Megatron-FSDP: its buffers' shards, not gathered, and its optimizer's weights; trained by Megatron's own optimizer"
    need("megatron.core")
    compared(2, "megatron_fsdp_ranks.py", "shards", "trained")


def test_fsdp_more():
    "more of Megatron-FSDP: weights that are not sharded, or the optimizer's alone; with tensor and expert parallelism over 4 ranks"
    need_minutes()
    compared(2, "megatron_fsdp_ranks.py", "shards-grads", "shards-none", "trained-optim", "hugging-face")
    compared(4, "megatron_fsdp_ranks.py", "shards-tp2", "shards-moe-ep2", env=TE)


def test_1():
    "one rank: dense and experts, with both specs"
    need_minutes()
    compared(1, "megatron_ranks.py", "tp1", "moe-tp1")
    compared(1, "megatron_ranks.py", "tp1", "moe-tp1", env=TE)


def test_more_2():
    "more of 2 ranks, with both specs"
    need_minutes()
    compared(2, "megatron_ranks.py", "late", "tp2", "pp2-tied", "pp2-uneven", "vpp2-layout", "moe-tp2", "moe-ep2", "ranges")
    compared(2, "megatron_ranks.py", "late", "tp2", "tp2-bias", "pp2-tied", "vpp2", "moe-tp2", "moe-ep2", env=TE)


def test_trained():
    "Megatron's own distributed optimizer with gathers in the step: its ranges and its masters"
    need_minutes()
    compared(2, "megatron_ranks.py", "trained")


def test_more_4():
    "more of 4 ranks, with both specs"
    need_minutes()
    compared(4, "megatron_ranks.py", "tp4", "tp4-bias", "tp2-pp2", "tp2-pp2-tied", "moe-tp2-ep2", "moe-pp2-ep2")
    compared(4, "megatron_ranks.py", "tp4-bias", "tp2-pp2", "moe-pp2-ep2", "ranges-tp2", env=TE)


def test_families_1():
    "the families on one rank"
    need_minutes()
    compared(1, "megatron_family_ranks.py", "deepseek", "moonlight", "deepseek2", "glm", "mixtral", "qwen3-next", "qwen3.5", "qwen3.5-moe")


def test_families_2():
    "the families over 2 ranks; Kimi-K2; norms stored less one"
    need_minutes()
    compared(2, "megatron_family_ranks.py", "deepseek-tp2", "moonlight-pp2", "deepseek2-tp2", "glm-tp2", "glm-ep2", "mixtral-ep2", "deepseek-mtp-pp2",
             "glm-mtp-tp2", "qwen3-next-tp2", "qwen3.5-tp2", "qwen3.5-pp2", "qwen3.5-moe-tp2", "qwen3.5-moe-ep2", "kimi", "glm-zero-centred",
             "deepseek-zero-centred")


def test_families_more_4():
    "more of the families over 4 ranks"
    need_minutes()
    compared(4, "megatron_family_ranks.py", "deepseek-tp4", "glm-tp2-pp2-ep2", "deepseek-mtp-etp2-ep2", "glm-mtp-tp2-pp2-ep2", "qwen3-next-pp2-ep2",
             "qwen3.5-moe-etp2-ep2", "qwen3.5-moe-pp2-ep2")
