"""What vLLM's CPU build lacks for experts that are spread over ranks: the worker of --worker-cls cpu_experts.Worker.

vLLM 0.32 starts so on a CPU. Its kernel then takes numbers of all experts for places among the rank's own, so that a worker ends at the
first request. Here they become places, and the experts of other ranks have the weight 0. Which experts a rank has and reads, and that
ranks add their results, is vLLM's; that a reload packs them is wsync.vllm.Extension's."""
import torch
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.v1.worker.cpu_worker import CPUWorker

compute = CPUUnquantizedExperts.apply


def compute_own(self, *, topk_weights, topk_ids, expert_map, **more):
    if expert_map is not None:
        places = expert_map[topk_ids.long()]
        topk_weights = torch.where(places >= 0, topk_weights, 0)
        topk_ids = places.clamp(min=0).to(topk_ids.dtype)
    return compute(self, topk_weights=topk_weights, topk_ids=topk_ids, expert_map=expert_map, **more)


CPUUnquantizedExperts.apply = compute_own


class Worker(CPUWorker):
    pass
