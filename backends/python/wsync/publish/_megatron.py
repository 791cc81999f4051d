"""Megatron-core: local parameters, the parallel groups' ranks and layer numbers.

With a distributed optimizer each rank updates its own shard and gathers the others': in step(), or, with overlap_param_gather,
during the next forward. In the latter case this module makes the DDP wrapper gather before the parameters are read."""
from __future__ import annotations

from ._fsdp import add_buffers
from ._held import Held, Source


def megatron(chunks) -> Source:
    """A Megatron-core GPTModel, or the list of this rank's model chunks (virtual pipeline stages), wrapped or not:
    dense Llama, Qwen2, Qwen3 and Qwen3-MoE with tensor, pipeline and expert parallelism. Unsupported layers are refused by
    name. The publisher needs ``hf_config``. With overlap_param_gather pass the DistributedDataParallel object: its parameters
    are gathered at each offload, which is then a collective call."""
    return Megatron(list(chunks) if isinstance(chunks, (list, tuple)) else [chunks])


_SHARDED = ("FullyShardedDataParallel", "TorchFullyShardedDataParallel", "MegatronFSDP")
_GATHER_HOOK = "DistributedDataParallel._make_forward_pre_hook."


def _unwrap(model) -> tuple:
    """The model without wrappers, and the DDP wrappers that gather parameters during the next forward."""
    late = []
    while hasattr(model, "module"):
        if type(model).__name__ in _SHARDED:
            raise NotImplementedError(f"the Megatron model is in a {type(model).__name__}, whose layout is not known here: use DistributedDataParallel")
        config = getattr(model, "ddp_config", None)
        if getattr(config, "use_distributed_optimizer", False) and getattr(config, "overlap_param_gather", False):
            if getattr(config, "reuse_grad_buf_for_mxfp8_param_ag", False):
                raise NotImplementedError("the Megatron model has reuse_grad_buf_for_mxfp8_param_ag: between steps its parameters are gathered nowhere")
            late.append(model)
        model = model.module
    return model, late


def _gather(ddp) -> None:
    """Gathers the parameters that the ranks have updated. A gather in progress may have begun before the last step(), and
    start_param_sync(force_sync=True) would only wait for it; so that one is finished first, and then all are gathered again."""
    for group in ddp.bucket_groups + ddp.expert_parallel_bucket_groups:
        if group.param_gather_handle is not None:
            group.start_param_sync(force_sync=True)
    ddp.start_param_sync(force_sync=True)


class Megatron(Source):
    kind = "megatron"

    def __init__(self, chunks: list) -> None:
        unwrapped = [_unwrap(chunk) for chunk in chunks]
        self._chunks = [model for model, _ in unwrapped]
        self._gathering_ddps = [ddp for _, late in unwrapped for ddp in late]
        self._bare_chunks = [model for model, late in unwrapped if not late]

    def held(self) -> Held:
        self._refuse_unknown_gathers()
        for ddp in self._gathering_ddps:
            _gather(ddp)
        held = Held()
        for chunk in self._chunks:
            layers = {}
            for i, layer in enumerate(chunk.decoder.layers):
                for name, _ in (*layer.named_parameters(prefix=f"decoder.layers.{i}"), *layer.named_buffers(prefix=f"decoder.layers.{i}")):
                    layers[name] = layer.layer_number
            for name, p in chunk.named_parameters():
                held.add(name, p, layers.get(name, 0))
            add_buffers(chunk, held, layers)
        return held

    def _refuse_unknown_gathers(self) -> None:
        """Refuses a chunk passed without its DDP wrapper if that wrapper gathers late, which its forward hooks show."""
        for chunk in self._bare_chunks:
            for module in chunk.modules():
                if any(getattr(hook, "__qualname__", "").startswith(_GATHER_HOOK) for hook in module._forward_pre_hooks.values()):
                    raise ValueError("this model is in a DistributedDataParallel with overlap_param_gather, whose parameters are old until they are "
                                     "gathered: give wsync.megatron() what DistributedDataParallel returned, not its .module")

    def options(self) -> dict:
        from megatron.core import parallel_state as ps

        groups = {
            "tensor": (ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size()),
            "expert": (ps.get_expert_model_parallel_rank(), ps.get_expert_model_parallel_world_size()),
            "expert_tensor": (ps.get_expert_tensor_parallel_rank(), ps.get_expert_tensor_parallel_world_size()),
        }
        config = self._chunks[0].config
        features = [name for name, value in vars(config).items() if value]
        tied = any(getattr(c, "share_embeddings_and_output_weights", False) for c in self._chunks)
        return {"groups": groups, "features": features, "tied": tied}
