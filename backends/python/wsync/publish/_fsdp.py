"""FSDP2 (fully_shard and every DTensor layout) and FSDP1: the shards that a rank holds, found from the model's parameters."""
from __future__ import annotations

from ._conversions import Conversions
from ._held import Held, Source
from ._megatron_fsdp import Shards, wrapper_of


def fsdp(model, *, conversions=True) -> Source:
    """The parameters and persistent buffers of a torch module, sharded in any way: FSDP2's ``fully_shard`` (any Shard
    dimension, hybrid, with tensor parallelism), FSDP1 with and without ``use_orig_params``, plain DTensors, or unsharded.
    Names are those of the Hugging Face file, for a model of transformers; experts that it stacks are split as it does when it saves
    (``conversions=False``: the module's names). Another model's names are published as they are: map them, and pass ``wsync.tensors``,
    if they are not the file's. A root module that a forward left unsharded is resharded.

    A model in Megatron-FSDP (megatron_fsdp.fully_shard_model) too: of it each rank has the ranges that its buffers hold, after step().

    The model is inspected again at each offload. This calls no collective and copies nothing."""
    return Fsdp(model, conversions)


class Fsdp(Source):
    kind = "fsdp"

    def __init__(self, model, conversions) -> None:
        wrapper = wrapper_of(model)
        self.model = unwrapped(model if wrapper is None else wrapper.module)
        self._shards = None if wrapper is None else Shards([wrapper], master=False)
        self._conversions = Conversions(self.model) if conversions else None

    def held(self) -> Held:
        held, flat = Held(), FlatParameters()
        for name, module in self.model.named_modules():
            if hasattr(module, "reshard") and hasattr(module, "_get_fsdp_state"):
                module.reshard()  # a forward without a backward leaves the root's parameters unsharded
            elif type(module).__name__ == "FullyShardedDataParallel":
                flat.add_module(name, module, held, self.takes)
        for name, p in self.model.named_parameters():
            if not self.takes(name) or flat.has(name, p):
                continue
            if self._shards is None:
                held.add(name, p)
            else:
                self._shards.add(held, name, p)
        add_buffers(self.model, held, takes=self.takes)
        return held

    def options(self) -> dict:
        refuse_adapters(self.model)
        _refuse_others(self.model)
        return self._conversions.options() if self._conversions else {}

    def saved(self, meta):
        return self._conversions.saved(meta) if self._conversions else None


class FlatParameters:
    """FSDP1's flat parameters, and which ranges of them are the model's parameters. named_parameters() yields the original parameters
    with use_orig_params, else the flat ones; both are covered here and skipped there."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._flat: dict[int, object] = {}

    def has(self, name: str, p) -> bool:
        return id(p) in self._flat or name.replace("_fsdp_wrapped_module.", "") in self._names

    def add_module(self, name: str, module, held: Held, takes) -> None:
        handle = module._handle
        if handle is None:
            return
        p = handle.flat_param
        missing = [a for a in ("_shard_param_infos", "_fqns", "_shapes") if not hasattr(p, a)]
        if missing:
            raise NotImplementedError(f"{name or 'the model'} is of FSDP1 and its flat parameter has no {missing[0]}: this release of torch is not known here; use fully_shard")
        self._flat[id(p)] = p
        local = getattr(p, "_local_shard", p).detach()
        prefix = name.replace("_fsdp_wrapped_module", "").replace("..", ".").strip(".")
        for info, fqn, shape in zip(p._shard_param_infos, p._fqns, p._shapes):
            full = f"{prefix}.{fqn}" if prefix else fqn
            self._names.add(full)
            if info.in_shard and takes(full):
                held.add_flat(full, shape, local.narrow(0, info.offset_in_shard, info.numel_in_shard), start=info.intra_param_start_idx, count=info.numel_in_shard)


_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}


def unwrapped(model):
    """The model without torch's wrappers, whose prefixes are not in the file's names."""
    while (inner := _WRAPPERS.get(type(model).__name__)) and hasattr(model, inner):
        model = getattr(model, inner)
    require_module(model)
    return model


def require_module(model) -> None:
    if not hasattr(model, "named_parameters"):
        hint = ": transformers' Trainer has its model wrapped, and DeepSpeed's engine, from on_train_begin on" if model is None else ""
        raise TypeError(f"a torch module is wanted, not a {type(model).__name__}{hint}")


def _refuse_others(model) -> None:
    """Refuses what other sources are for: names or values here would not be the file's."""
    if any(c.__name__ == "MegatronModule" for module in model.modules() for c in type(module).__mro__):
        raise TypeError("this is a Megatron-core model, whose names and shards are not the file's: give its chunks to wsync.megatron()")
    if any(hasattr(p, "ds_tensor") for p in model.parameters()):
        raise TypeError("ZeRO-3 has partitioned this model's parameters: give the engine that deepspeed.initialize returned to wsync.deepspeed(), or, where they are gathered, their dict to wsync.tensors()")


def refuse_adapters(model) -> None:
    """Refuses PEFT's adapter layers: their tensors are a base and an addition to it, neither of which is a tensor of the file."""
    for name, _ in model.named_modules():
        if name.rpartition(".")[2] == "base_layer":
            raise NotImplementedError(f"{name} is in an adapter's layer (PEFT): publish what merge_and_unload() of a copy returns, the adapter alone (wsync.peft), or the tensors by wsync.tensors({{name: tensor}})")


def add_buffers(model, held: Held, layers: dict | None = None, takes=lambda name: True, name_of=lambda name: name) -> None:
    """Adds the persistent buffers (router biases, running means), which files contain too. layers: Megatron's layer number by name.
    name_of: the name to add one under."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                full = f"{prefix}.{name}" if prefix else name
                if takes(full):
                    held.add(name_of(full), buffer, layers.get(full, 0) if layers else 0)
