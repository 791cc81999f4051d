"""The policy that rl_ranks.py trains, sharded by FSDP2. Masters are float32; forward and backward use FSDP's bf16 copies of them, rounded as
the published file is."""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen3ForCausalLM

import wsync


class Policy:
    """A Qwen3 of random weights, the same on all ranks. head_rate: of lm_head; body_rate: of the rest."""

    def __init__(self, config, head_rate, body_rate):
        torch.manual_seed(0)
        self.model = Qwen3ForCausalLM(config)
        with torch.no_grad():
            for p in self.model.parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.05)
        shard = dict(mesh=init_device_mesh("cpu", (dist.get_world_size(),)),
                     mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        for layer in self.model.model.layers:
            fully_shard(layer, **shard)
        fully_shard(self.model, **shard)
        head = [self.model.lm_head.weight]
        body = [p for name, p in self.model.named_parameters() if not name.startswith("lm_head")]
        self.optimizer = torch.optim.Adam([{"params": head, "lr": head_rate}, {"params": body, "lr": body_rate}], betas=(0.9, 0.95))

    def source(self):
        return wsync.fsdp(self.model)

    def logits(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits

    def step(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
