"""DeepSpeed's expert parallelism: each rank of a group holds other experts of a layer, and numbers them from 0. In the file they have the
numbers that DeepSpeed's own checkpoints give them, which count over the whole group."""
from __future__ import annotations

_REMEDY = "publish whole tensors by wsync.tensors({name: tensor}), in the names of the file"
_LIST = ".experts.deepspeed_experts."  # in a name, between its layer's and the expert's number
_ALL = "ep_size_1"  # the group of layers whose experts every rank holds


class Experts:
    """Which of a model's names are those of a rank's experts, and the experts' numbers in the file."""

    def __init__(self, module) -> None:
        self._first: dict[str, int] = {}  # the number of a layer's first expert here, by the layer's name
        for prefix, layer in module.named_modules():
            classes = {c.__name__ for c in type(layer).__mro__}
            if "AutoEPMoELayer" in classes:
                raise NotImplementedError(f"{prefix} is an AutoEPMoELayer, DeepSpeed's AutoEP, which keeps experts and router under other names and in other "
                                          f"shapes than the model's file: train with expert_parallel off, or {_REMEDY}")
            if "MOELayer" in classes and hasattr(getattr(layer, "experts", None), "deepspeed_experts"):
                self._first[prefix] = _rank(prefix, layer) * layer.num_local_experts

    def name(self, name: str) -> str:
        """The file's name of a tensor that the module has under `name`."""
        prefix, experts, rest = name.partition(_LIST)
        first = self._first.get(prefix) if experts else None
        if not first:
            return name
        number, _, below = rest.partition(".")
        return f"{prefix}{experts}{first + int(number)}.{below}"

    def check(self, name: str, p) -> None:
        """Refuses a parameter that DeepSpeed does not average over all ranks, in a layer that is not known here."""
        if getattr(p, "allreduce", True) or getattr(p, "group_name", None) == _ALL or name.partition(_LIST)[0] in self._first:
            return
        raise NotImplementedError(f"{name} is expert parallel (allreduce=False, group {getattr(p, 'group_name', None)}), in a layer that is no deepspeed.moe.layer.MoE: "
                                  f"which experts rank {_world_rank()} holds is not known here; {_REMEDY}")


def _world_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


def _rank(prefix: str, layer) -> int:
    """This rank's number among those that share a layer's experts."""
    if layer.ep_size == 1:
        return 0
    if layer.ep_group is None:
        raise RuntimeError(f"{prefix} has experts on {layer.ep_size} ranks and no group yet: give wsync.deepspeed() what deepspeed.initialize() returned")
    import torch.distributed as dist

    return dist.get_rank(layer.ep_group)
