"""The policy that rl_ranks.py trains, by Megatron-core: data parallel, bf16 parameters, and the float32 masters in the shards of its
distributed optimizer. Parameters are gathered late (overlap_param_gather), during the next forward; what is published before it is the
range that each rank's shard has just updated."""
import megatron_on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, ParamKey, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

import wsync

PAD = 128  # the vocabulary is padded to a multiple of it


def gpt(config):
    layers = TransformerConfig(
        num_layers=config.num_hidden_layers, hidden_size=config.hidden_size, ffn_hidden_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads, num_query_groups=config.num_key_value_heads, kv_channels=config.head_dim,
        use_cpu_initialization=True, bf16=True, params_dtype=torch.bfloat16, normalization="RMSNorm", layernorm_epsilon=config.rms_norm_eps,
        qk_layernorm=True, add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu, bias_activation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False, gradient_accumulation_fusion=False, hidden_dropout=0.0,
        attention_dropout=0.0, attention_softmax_in_fp32=True)  # fmt: skip
    return GPTModel(config=layers, transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
                    vocab_size=-(-config.vocab_size // PAD) * PAD, max_sequence_length=config.max_position_embeddings, parallel_output=False,
                    share_embeddings_and_output_weights=False, position_embedding_type="rope", rotary_base=config.rope_parameters["rope_theta"])


class Policy:
    """A Qwen3 of random weights, the same on all ranks. head_rate: of the output layer; body_rate: of the rest."""

    def __init__(self, config, head_rate, body_rate):
        parallel_state.initialize_model_parallel(1)
        torch.manual_seed(0)
        model = gpt(config).bfloat16()
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.05)
        overlaps = dict(use_distributed_optimizer=True, overlap_param_gather=True)
        self.ddp = DistributedDataParallel(model.config, DistributedDataParallelConfig(overlap_grad_reduce=True, grad_reduce_in_fp32=True, **overlaps), model)
        rates = OptimizerConfig(optimizer="adam", lr=body_rate, weight_decay=0.0, adam_beta2=0.95, clip_grad=0.0, bf16=True, params_dtype=torch.bfloat16,
                                **overlaps)
        self.optimizer = get_megatron_optimizer(rates, [self.ddp], config_overrides={ParamKey(name="*output_layer.weight"): {"max_lr": head_rate}})
        for group in self.optimizer.param_groups:  # a scheduler's work, where there is one
            group["lr"] = group["max_lr"]
        self.vocabulary = config.vocab_size

    def source(self):
        return wsync.megatron(self.ddp, self.optimizer)

    def logits(self, tokens):
        n = tokens.shape[1]
        future = torch.ones(n, n, dtype=torch.bool).triu(1)[None, None]
        return self.ddp(tokens, torch.arange(n)[None].expand_as(tokens), future)[..., : self.vocabulary]

    def step(self, loss):
        loss.backward()
        self.ddp.finish_grad_sync()
        done, *_ = self.optimizer.step()
        if not done:
            raise RuntimeError("Megatron's optimizer left a step out: a gradient is not finite")
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
