"""Megatron-core: local parameters, the parallel groups' ranks and layer numbers.

With a distributed optimizer each rank updates its own shard and gathers the others': in step(), or, with overlap_param_gather,
during the next forward. In the latter case this module makes the DDP wrapper gather before the parameters are read; or, given the
optimizer, each rank supplies the ranges that it has updated itself, and nothing is gathered."""
from __future__ import annotations

from ._fsdp import add_buffers, require_module
from ._held import Held, Source
from ._megatron_fsdp import Shards, is_part, wrapper_of


def megatron(chunks, optimizer=None, *, master: bool = False) -> Source:
    """A Megatron-core GPTModel, or the list of this rank's model chunks (virtual pipeline stages), wrapped or not:
    Llama, Qwen2, Qwen3, Qwen3-MoE, Qwen3-Next, Qwen3.5 (text), Gemma 2 and 3, Mixtral, Nemotron-H, DeepSeek-V2 and V3 (R1, Moonlight), Kimi-K2, MiMo
    GLM-4 without experts (glm4) and GLM-4.5 to 4.7 (glm4_moe), of the local spec and of Transformer Engine's, with tensor, pipeline, expert and expert-tensor parallelism. config.json's
    model_type says which; what is not known of it is refused by name. The publisher needs ``hf_config``. With overlap_param_gather pass
    the DistributedDataParallel object: its parameters are gathered at each offload, which is then a collective call.

    optimizer: what get_megatron_optimizer returned, with use_distributed_optimizer. Each rank then writes the range of each parameter
    that its shard of the optimizer has just updated: no collective call, overlapped or not, and the ranks share the work evenly.
    Frozen parameters and buffers are read from the model. master: the optimizer's fp32 masters instead of the model's values, rounded
    to the file's dtype in the copy; the only right source where the model keeps its weights in FP8 (``fp8_param``).

    Of a chunk in Megatron-FSDP each rank writes the ranges that its buffers hold, after step(); the optimizer is not needed, also with
    master=True. No collective call."""
    chunks = list(chunks) if isinstance(chunks, (list, tuple)) else [chunks]
    for chunk in chunks:
        require_module(chunk)
    wrappers = [wrapper_of(chunk) for chunk in chunks]
    if any(wrappers):
        if not all(wrappers):
            raise ValueError("some of the model chunks are in a MegatronFSDP and some are not: give what FullyShardedDataParallel returned for each")
        return MegatronShards(wrappers, master)
    if optimizer is None:
        if master:
            raise ValueError("master=True takes the masters of a distributed optimizer: wsync.megatron(chunks, optimizer=..., master=True)")
        return Megatron(chunks)
    return MegatronRanges(chunks, optimizer, master)


_GROUPED = "GroupedTensor"  # Transformer Engine's class of all experts' weights in one buffer
_SHARDED = ("FullyShardedDataParallel", "TorchFullyShardedDataParallel")
_GATHER_HOOK = "DistributedDataParallel._make_forward_pre_hook."


_QUANTISED = ("_scale_inv", "_rowwise_scale_inv")
_STORED = ("fp8_param", "fp4_param")


def _unwrap(model, copied: bool = True) -> tuple:
    """The model without wrappers, and the DDP wrappers that gather parameters during the next forward. copied: the parameters' own
    values are read."""
    late = []
    while hasattr(model, "module"):
        if type(model).__name__ in _SHARDED:
            raise NotImplementedError(f"the Megatron model is in a {type(model).__name__}, whose layout is not known here: use DistributedDataParallel")
        config = getattr(model, "ddp_config", None)
        if getattr(config, "use_distributed_optimizer", False) and getattr(config, "overlap_param_gather", False):
            if copied and getattr(config, "reuse_grad_buf_for_mxfp8_param_ag", False):
                raise NotImplementedError("the Megatron model has reuse_grad_buf_for_mxfp8_param_ag: between steps its parameters are gathered nowhere; "
                                          "give the optimizer's masters: wsync.megatron(chunks, optimizer=..., master=True)")
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

    def __init__(self, chunks: list, copied: bool = True) -> None:
        unwrapped = [_unwrap(chunk, copied) for chunk in chunks]
        self._chunks = [model for model, _ in unwrapped]
        self._gathering_ddps = [ddp for _, late in unwrapped for ddp in late]
        self._bare_chunks = [model for model, late in unwrapped if not late]

    def held(self) -> Held:
        self._gather()
        held = Held()
        for chunk in self._chunks:
            layers = {}
            for block in ("decoder", "mtp"):  # of a layer of mtp its own number, not that of the layer within
                for i, layer in enumerate(getattr(getattr(chunk, block, None), "layers", ())):
                    at = f"{block}.layers.{i}"
                    for name, _ in (*layer.named_parameters(prefix=at), *layer.named_buffers(prefix=at)):
                        layers[name] = layer.layer_number
            for name, p in chunk.named_parameters():
                if self.takes(name) and not self._is_copy(chunk, name):
                    self._add(held, name, p, layers.get(name, 0))
            add_buffers(chunk, held, layers, self.takes)
        return held

    def _is_copy(self, chunk, name: str) -> bool:
        """A tensor that another rank has, in ranges that are not these."""
        return False

    def _gather(self) -> None:
        self._refuse_unknown_gathers()
        for ddp in self._gathering_ddps:
            _gather(ddp)

    def _add(self, held: Held, name: str, p, layer: int) -> None:
        if is_part(p):
            raise ValueError(f"{name} is sharded by Megatron-FSDP: give wsync.megatron() what FullyShardedDataParallel returned, not the model within")
        if any(hasattr(p, a) for a in _QUANTISED):
            raise NotImplementedError(f"{name} is a {type(p).__name__}, kept in FP8 or FP4 with scales of its own: give the distributed optimizer's masters, "
                                      "wsync.megatron(chunks, optimizer=..., master=True), or train without fp8_param")
        if any(c.__name__ == _GROUPED for c in type(p).__mro__):
            raise NotImplementedError(f"{name} is a {type(p).__name__}, all experts' weights in one buffer, whose layout is not known here: "
                                      "train without moe_single_grouped_weight")
        held.add(name, p, layer)

    def _refuse_unknown_gathers(self) -> None:
        """Refuses a chunk passed without its DDP wrapper if that wrapper gathers late, which its forward hooks show."""
        for chunk in self._bare_chunks:
            for module in chunk.modules():
                if any(getattr(hook, "__qualname__", "").startswith(_GATHER_HOOK) for hook in module._forward_pre_hooks.values()):
                    raise ValueError("this model is in a DistributedDataParallel with overlap_param_gather, whose parameters are old until they are "
                                     "gathered: give wsync.megatron() what DistributedDataParallel returned, not its .module")

    def _refuse_missing_chunks(self, ps) -> None:
        stages = getattr(ps, "get_virtual_pipeline_model_parallel_world_size", lambda: None)()
        if stages and len(self._chunks) < stages:
            raise ValueError(f"this rank has {stages} virtual pipeline stages, and wsync.megatron() was given {len(self._chunks)} of its model chunks: their layers would be "
                             "missing; give all of them, as a list")

    def options(self) -> dict:
        from megatron.core import parallel_state as ps

        if not ps.model_parallel_is_initialized():
            raise RuntimeError("Megatron's parallel groups are not initialized, so what this rank holds is not known: call parallel_state.initialize_model_parallel first")
        groups = {
            "tensor": (ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size()),
            "expert": (ps.get_expert_model_parallel_rank(), ps.get_expert_model_parallel_world_size()),
            "expert_tensor": (ps.get_expert_tensor_parallel_rank(), ps.get_expert_tensor_parallel_world_size()),
        }
        self._refuse_missing_chunks(ps)
        config = self._chunks[0].config
        features = [name for name, value in vars(config).items() if value]
        if predicted := getattr(config, "mtp_num_layers", None):
            features.append(f"mtp_num_layers={predicted}")
        tied = any(getattr(c, "share_embeddings_and_output_weights", False) for c in self._chunks)
        return {"groups": groups, "features": features, "tied": tied}


class MegatronShards(Megatron):
    """Of each parameter the range that this rank's buffers of Megatron-FSDP hold. It is of the flattened local tensor."""

    def __init__(self, wrappers: list, master: bool) -> None:
        super().__init__([wrapper.module for wrapper in wrappers])
        self._shards = Shards(wrappers, master)
        self._master = master

    def _gather(self) -> None:
        """Nothing: step() has written the ranges into the buffers."""

    def _add(self, held: Held, name: str, p, layer: int) -> None:
        self._shards.add(held, name, p, layer)

    def options(self) -> dict:
        return _without_stored(super().options()) if self._master else super().options()


class MegatronRanges(Megatron):
    """Of each parameter the range that this rank's shard of the distributed optimizer updates. It is of the flattened local tensor."""

    def __init__(self, chunks: list, optimizer, master: bool) -> None:
        super().__init__(chunks, copied=not master)
        self._master = master
        self._optimizers = getattr(optimizer, "chained_optimizers", [optimizer])
        for o in self._optimizers:
            if not (getattr(o, "is_stub_optimizer", False) or hasattr(o, "model_param_gbuf_map")):
                raise TypeError(f"the optimizer is, or has, a {type(o).__name__}, which has no ranges of parameters: they are a DistributedOptimizer's "
                                "(use_distributed_optimizer=True); leave optimizer= out")

    def _gather(self) -> None:
        """Nothing: step() has written the ranges into the parameters."""

    def _is_copy(self, chunk, name: str) -> bool:
        """The embedding of a later stage, for multi-token prediction: its buffers, and so the ranges, are other than the first stage's."""
        return name == "embedding.word_embeddings.weight" and not getattr(chunk, "pre_process", True)

    def _add(self, held: Held, name: str, p, layer: int) -> None:
        if not p.requires_grad:
            super()._add(held, name, p, layer)
            return
        owned = self._range(p)
        if owned is None:
            if not self._has(p):
                raise ValueError(f"{name} is trained, and the optimizer does not have it: give that of this model, all of it (with chained_optimizers), "
                                 "made after requires_grad was set")
            return  # other ranks of its data-parallel group have the range
        start, end = owned
        if self._master and (main := self._main(name, p)) is not None:
            source = main
        elif any(hasattr(p, a) for a in _QUANTISED):
            super()._add(held, name, p, layer)  # refuses it
            return
        elif p.is_contiguous():
            if p.untyped_storage().nbytes() == 0:
                raise RuntimeError(f"{name} has no memory now: its framework has taken it away; let it bring it back before the offload")
            source = p.detach().view(-1).narrow(0, start, end - start)
        else:
            raise ValueError(f"{name} is not contiguous in memory, and the optimizer's ranges are those of a flattened tensor")
        if source.numel() != end - start:
            raise ValueError(f"{name}: the optimizer's master has {source.numel()} elements, and its range {end - start}: is it of this model?")
        held.add_flat(name, p.shape, source, start=start, count=end - start, layer=layer)

    def _has(self, p) -> bool:
        """Is it in the optimizer's buffers, whichever rank's the range is?"""
        return any(p in buffer.param_index_map for o in self._optimizers for buffer in getattr(o, "buffers", ()))

    def _range(self, p) -> tuple[int, int] | None:
        for o in self._optimizers:
            if not getattr(o, "is_stub_optimizer", False) and p in o.model_param_gbuf_map:
                found = o._get_model_param_range_map(p)["param"]
                return found.start, found.end
        return None

    def _main(self, name: str, p):
        """The fp32 master of the range; None: the parameter is one itself."""
        main = getattr(p, "main_param", None)
        if main is None and str(p.dtype) != "torch.float32":
            raise NotImplementedError(f"{name} has no main_param: the optimizer keeps its masters to itself (use_precision_aware_optimizer); leave master=True out")
        return main

    def options(self) -> dict:
        return _without_stored(super().options()) if self._master else super().options()


def _without_stored(options: dict) -> dict:
    """Without what says how the model keeps weights that are not read."""
    return {**options, "features": [f for f in options["features"] if f not in _STORED]}
