"""Megatron-FSDP (Megatron-core's and the package megatron-fsdp): which range of each flattened parameter a rank's buffers hold.

Its shards are of a bucket of parameters, cut wherever the bucket's parts meet, and not torch's even chunks; its DTensors are of the
optimizer's float32 weights. So neither is read here, but the buffers: step() has written a rank's own range of the model's weights,
whether the others' are gathered or not."""
from __future__ import annotations

from ._held import Held

_WRAPPER = "MegatronFSDP"
_READ = ("params", "model_weight_buffer", "main_weight_buffer")


def wrapper_of(model):
    """The MegatronFSDP among a model's wrappers; None: there is none."""
    while model is not None and not any(c.__name__ == _WRAPPER for c in type(model).__mro__):
        model = getattr(model, "module", None)
    return model


def is_part(p) -> bool:
    """Is it one of the parameters that Megatron-FSDP puts in place of a module's, or has taken the memory of?"""
    return getattr(p, "__fsdp_param__", False)


class Shards:
    """The ranges of the parameters of all chunks. master: of the float32 weights that the optimizer updates."""

    def __init__(self, wrappers: list, master: bool) -> None:
        self._master = master
        self._places = {}  # by the id of the module's own parameter: its group, and its number there
        for wrapper in wrappers:
            for group in _groups_of(wrapper):
                self._places.update({id(p): (group, i) for i, p in enumerate(group.params)})

    def add(self, held: Held, name: str, p, layer: int = 0) -> None:
        """Adds this rank's range of a parameter, if it has any. p: it, or what Megatron-FSDP has put in its place."""
        p = getattr(p, "orig_param", p)
        if id(p) not in self._places:
            raise ValueError(f"{name} is not in Megatron-FSDP's buffers: it was put into the model after that, and is not trained; give the model as it was wrapped")
        group, i = self._places[id(p)]
        buffer = (group.main_weight_buffer if self._master else None) or group.model_weight_buffer
        if buffer is None:  # the strategy "no_shard" leaves the model its parameters
            held.add(name, p.detach(), layer)
            return
        start, end = buffer._get_item_slice_in_shard(i)
        if start == end:
            return
        source = buffer.get_item(i, only_shard=True).detach()
        if str(source.dtype) == "torch.uint8":
            raise NotImplementedError(f"{name} is kept in FP8, with scales of its own: give the float32 weights of Megatron-FSDP's optimizer (master=True), "
                                      "or train without fp8_param_gather")
        held.add_flat(name, p.shape, source, start=start, count=end - start, layer=layer)


def _groups_of(wrapper) -> list:
    groups = getattr(getattr(wrapper, "param_and_grad_buffer", None), "parameter_groups", None)
    if not groups or not all(hasattr(g, a) for g in groups for a in _READ):
        raise NotImplementedError(f"the model is in a {type(wrapper).__name__} whose buffers have no {', '.join(_READ)}: this release of Megatron-FSDP is not "
                                  "known here; use Megatron's DistributedDataParallel")
    return groups
