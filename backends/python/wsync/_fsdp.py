"""FSDP2 (fully_shard and every DTensor layout) and FSDP1: what the ranks hold, read off their parameters."""
from __future__ import annotations

from ._conversions import Conversions
from ._held import Held, Source


def fsdp(model, *, conversions=True) -> Source:
    """The parameters and persistent buffers of a torch module, however they are sharded: FSDP2's ``fully_shard`` (any
    Shard dimension, hybrid, over tensor parallelism), FSDP1 with ``use_orig_params=True``, plain DTensors, or not at
    all. Names are the Hugging Face file's; experts that transformers stacks are split as it does when it saves
    (``conversions=False``: names as the module has them). A root that a forward left unsharded is resharded.

    The model is looked at anew at each offload. No collective is called and nothing is copied here."""
    return Fsdp(model, conversions)


class Fsdp(Source):
    kind = "fsdp"

    def __init__(self, model, conversions) -> None:
        self.model = model
        self._conversions = Conversions(model) if conversions else None

    def held(self) -> Held:
        held, flat = Held(), {}
        for name, module in self.model.named_modules():
            if hasattr(module, "reshard") and hasattr(module, "_get_fsdp_state"):
                module.reshard()  # a forward without a backward leaves the root's parameters whole
            elif type(module).__name__ == "FullyShardedDataParallel":
                self._flat_parameter(name, module, held, flat)
        for name, p in self.model.named_parameters():
            if name.replace("_fsdp_wrapped_module.", "") not in flat:
                held.add(name, p)
        add_buffers(self.model, held)
        return held

    def _flat_parameter(self, name: str, module, held: Held, flat: dict) -> None:
        handle = module._handle
        if handle is None:
            return
        p = handle.flat_param
        if not hasattr(p, "_shard_param_infos"):
            raise NotImplementedError("this FSDP1 model keeps no list of its parameters' shards: wrap it with use_orig_params=True, or use fully_shard")
        local = getattr(p, "_local_shard", p).detach()
        prefix = name.replace("_fsdp_wrapped_module", "").replace("..", ".").strip(".")
        for info, fqn, shape in zip(p._shard_param_infos, p._fqns, p._shapes):
            full = f"{prefix}.{fqn}" if prefix else fqn
            flat[full] = True
            if info.in_shard:
                held.add_flat(full, shape, local.narrow(0, info.offset_in_shard, info.numel_in_shard), start=info.intra_param_start_idx, count=info.numel_in_shard)

    def options(self) -> dict:
        return self._conversions.options() if self._conversions else {}

    def expected(self, meta):
        return self._conversions.expected(meta) if self._conversions else None


def add_buffers(model, held: Held) -> None:
    """Persistent buffers are in the file, too: router biases, running means."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                held.add(f"{prefix}.{name}" if prefix else name, buffer)
