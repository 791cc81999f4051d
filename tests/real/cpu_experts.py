"""What vLLM's CPU build lacks for models with experts: a worker's extension (--worker-extension-cls cpu_experts.Extension).

vLLM 0.32 starts with experts spread over ranks on a CPU. Its kernel then takes numbers of all experts for places among the rank's own, so
that a worker ends at the first request. Here they become places, and the experts of other ranks have the weight 0. And a reload leaves the
experts' weights as they are in the file, though the kernel wants them packed, as they are at the start: the server answers nonsense from
then on. Here they are packed. Which experts a rank has and reads, and that ranks add their results, is vLLM's."""
import torch
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

compute, set_up = CPUUnquantizedExperts.apply, UnquantizedFusedMoEMethod._setup_kernel


def compute_own(self, *, topk_weights, topk_ids, expert_map, **more):
    if expert_map is not None:
        places = expert_map[topk_ids.long()]
        topk_weights = torch.where(places >= 0, topk_weights, 0)
        topk_ids = places.clamp(min=0).to(topk_ids.dtype)
    return compute(self, topk_weights=topk_weights, topk_ids=topk_ids, expert_map=expert_map, **more)


def set_up_and_pack(self, layer, w13, w2):
    again = self.moe_kernel is not None
    set_up(self, layer=layer, w13=w13, w2=w2)
    if again:
        self.moe_kernel.fused_experts.process_weights_after_loading(layer)


CPUUnquantizedExperts.apply = compute_own
UnquantizedFusedMoEMethod._setup_kernel = set_up_and_pack


class Extension:
    pass
