# timeout: 1200, takes: 480
"""Ranks of real trainers publish through one agent, and the mounted files equal the frameworks' own results: full_tensor(),
save_pretrained(), GatheredParameters. Megatron's are in test_megatron.py."""

from ground import Ground, compared, need


def test_fsdp_2():
    "FSDP over 2 ranks: Shard(0) and (1), float32 to bfloat16, CPU offload, tied, root left unsharded, experts, FSDP1 with and without original parameters, DTensors"
    need("torch")
    compared(2, "fsdp_ranks.py", "fsdp", "dim1", "mixed", "offload", "tied", "unsharded", "moe", "mixtral", "fsdp1", "fsdp1_flat", "manual")


def test_fsdp_3():
    "FSDP over 3 ranks: uneven shards, experts, FSDP1, DTensors that leave ranks empty"
    need("torch")
    compared(3, "fsdp_ranks.py", "fsdp", "moe", "fsdp1", "fsdp1_flat", "manual")


def test_fsdp_4():
    "FSDP over 4 ranks: hybrid, over tensor parallelism, strided shards"
    need("torch")
    compared(4, "fsdp_ranks.py", "hsdp", "tp", "tp_hsdp", "manual")


def test_astraflow():
    "AstraFlow's WeightManager over 2 and 4 ranks: shards, replicas of shards, ranks of another node, an adapter, Megatron's generator"
    need("torch")
    Ground().ranks(2, "astraflow_ranks.py", "fsdp", "apart", "adapter", "megatron")
    Ground().ranks(4, "astraflow_ranks.py", "hsdp")


def test_vision():
    "Qwen2.5-VL and Qwen3-VL by FSDP2 over 2 ranks, tied or not, in the names that save_pretrained writes"
    need("torch")
    compared(2, "fsdp_ranks.py", "qwen25_vl", "qwen25_vl_tied", "qwen3_vl", "qwen3_vl_tied")


def test_deepspeed_2():
    "DeepSpeed over 2 ranks: stages 1, 2 and 3, parameters and masters, frozen, tied, offloaded, experts"
    need("deepspeed")
    compared(2, "deepspeed_ranks.py", "zero1", "zero1-master", "zero1-frozen", "zero2", "zero3", "zero3-master", "zero3-copies", "zero3-frozen",
             "zero3-master-offload", "zero3-tied", "zero3-offload", "zero3-moe")


def test_deepspeed_3():
    "DeepSpeed over 3 ranks: partitions with padding"
    need("deepspeed")
    compared(3, "deepspeed_ranks.py", "zero2", "zero2-master", "zero3", "zero3-moe")


def test_deepspeed_4():
    "DeepSpeed over 4 ranks: a second copy of the partitions in groups of 2"
    need("deepspeed")
    compared(4, "deepspeed_ranks.py", "zero3-hpz")


def test_deepspeed_quantised():
    "ZeRO++ over 4 ranks: weights that are quantised on their way between ranks, also with copies in groups of 2"
    need("deepspeed")
    compared(4, "deepspeed_ranks.py", "zero3-quantised", "zero3-quantised-hpz")


def test_autotp():
    "DeepSpeed's AutoTP over 2 ranks, without ZeRO and with stages 1 and 2, tied; with 2 replicas; over more ranks than key and value heads"
    need("deepspeed")
    compared(2, "deepspeed_ranks.py", "autotp", "autotp-zero1", "autotp-zero2-tied")
    compared(4, "deepspeed_ranks.py", "autotp-zero1", "autotp-few-heads")


def test_deepspeed_refuses():
    "AutoTP's columns in unequal pieces, with ZeRO-3, of masters, and in place of Conv1D; AutoEP, and expert parallel layers that are not DeepSpeed's own"
    need("deepspeed")
    Ground().ranks(2, "deepspeed_ranks.py", "autotp-3-heads", "autotp-zero3", "autotp-master")  # which leave their groups behind
    Ground().ranks(2, "deepspeed_ranks.py", "experts-unknown", "experts-auto", "autotp-transposed")


def test_deepspeed_experts():
    "DeepSpeed's own experts (deepspeed.moe) over 4 ranks, each on 2 of them, on 1, or on all, without ZeRO and with stages 1 and 2, masters, in its checkpoints' numbers"
    need("deepspeed")
    compared(4, "deepspeed_ranks.py", "experts", "experts-zero1", "experts-zero2", "experts-zero2-master", "experts-apart", "experts-whole")


def test_peft():
    "PEFT's adapters alone: over 2 ranks of FSDP2, FSDP1, DDP, ZeRO 2 and 3, parameters and masters; over 3 of FSDP2 and ZeRO 3, with padding"
    need("peft")
    need("deepspeed")
    compared(2, "fsdp_ranks.py", "peft", "peft_fsdp1", "peft_replicated")
    compared(2, "deepspeed_ranks.py", "zero2-peft", "zero3-peft", "zero3-peft-master")
    compared(3, "fsdp_ranks.py", "peft")
    compared(3, "deepspeed_ranks.py", "zero3-peft")
