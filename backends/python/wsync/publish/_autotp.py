"""DeepSpeed's AutoTP: which part of a parameter this rank of its tensor-parallel group holds. The layers that AutoTP puts in place of the
model's linear ones know their group, and describe each of their parameters in an attribute, by which DeepSpeed converts checkpoints."""
from __future__ import annotations

from ..lib._library import lib

_LAYER = "TensorParallel_Layer"
_DESCRIPTION = "ds_autotp_universal_checkpoint_meta"
# The layers that keep a part of the model's own tensor. Others transpose it (of transformers' Conv1D), or take rows and columns in another order.
_KNOWN = {"LinearLayer", "LinearAllreduce", "LinearAllreduceWithReplicatedInput", "LmHeadLinearAllreduce", "VocabParallelLinear",
          "VocabParallelEmbedding", "HiddenParallelEmbedding"}
_CONVOLUTION = "TensorParallelConv2d"
_REMEDY = "train with ZeRO alone, or publish whole tensors by wsync.tensors({name: tensor})"


class Cut:
    """Of a tensor of `shape`, cut along `dim` into pieces of `sizes`, the piece of `rank`. dim None: the whole."""

    def __init__(self, shape, dim, sizes, rank: int) -> None:
        self.shape, self.dim, self.sizes, self.rank = tuple(shape), dim, tuple(sizes), rank

    @property
    def start(self) -> int:
        return sum(self.sizes[: self.rank])

    def placement(self, rank: int) -> tuple | None:
        """A rank's piece as one of equally large ones, of which the last may be smaller; None: it is none."""
        total, mine, start = sum(self.sizes), self.sizes[rank], sum(self.sizes[:rank])
        chunk = -(-total // len(self.sizes))
        if start == min(rank * chunk, total) and mine == min(chunk, total - start):
            return (lib.WSYNC_SHARD, self.dim, 0, len(self.sizes), rank)
        if mine and total % mine == 0 and start % mine == 0:
            return (lib.WSYNC_SHARD, self.dim, 0, total // mine, start // mine)
        return None


def cuts_of(module) -> dict[int, Cut]:
    """The cuts of a model's parameters, by their id; empty: AutoTP has not cut the model. Which parameters are refused is the same on all
    ranks."""
    cuts = {}
    for prefix, layer in module.named_modules():
        classes = {c.__name__ for c in type(layer).__mro__}
        if _CONVOLUTION in classes and layer.world_size > 1:
            raise NotImplementedError(f"{prefix} is a {type(layer).__name__} of DeepSpeed's AutoTP, a convolution of which each rank has a part, which is not known here: {_REMEDY}")
        if _LAYER not in classes:
            continue
        size = getattr(layer, "tp_world_size", getattr(layer, "world_size", 1))
        for name, p in layer._parameters.items() if size > 1 else ():
            if p is not None:
                cuts[id(p)] = _cut(f"{prefix}.{name}", layer, p)
    for name, p in module.named_parameters():  # of an embedding it keeps a part in a layer of torch's own
        if id(p) not in cuts and len((getattr(p, _DESCRIPTION, None) or {}).get("partition_sizes") or ()) > 1:
            raise NotImplementedError(f"{name} is a part that DeepSpeed's AutoTP has cut of {list(getattr(p, _DESCRIPTION)['logical_shape'])}, in a layer "
                                      f"that does not know its group: {_REMEDY}")
    return cuts


def _cut(name: str, layer, p) -> Cut:
    what = f"{name} is in a {type(layer).__name__} of DeepSpeed's AutoTP"
    if type(layer).__name__ not in _KNOWN:
        raise NotImplementedError(f"{what}, whose way of cutting is not known here: {_REMEDY}")
    found = getattr(p, _DESCRIPTION, None)
    if found is None:
        raise NotImplementedError(f"{what}, and this release of DeepSpeed does not say how it is cut: {_REMEDY}; 0.19 says it")
    if hasattr(p, "ds_id"):
        raise NotImplementedError(f"{what}, and ZeRO-3 partitions its part further, which is not known here: use stage 0, 1 or 2 with AutoTP, or {_REMEDY}")
    how, shape = found["conversion"], found["logical_shape"]
    if how["replicated"]:
        cut = Cut(shape, None, (), 0)
        expected = cut.shape
    else:
        dim, sizes = found["partition_dim"], found["partition_sizes"]
        if how["unsupported_reason"] or found["sub_param_shard_widths"] or dim is None or not sizes or not shape:
            raise NotImplementedError(f"{what}, which cuts it in a way that is not known here ({how['unsupported_reason'] or 'several tensors in one'}): {_REMEDY}")
        cut = Cut(shape, dim, sizes, layer.tp_index)
        if dim > 0 and any(n and cut.placement(r) is None for r, n in enumerate(sizes)):
            raise NotImplementedError(f"{what}, which cuts its {sum(sizes)} columns unevenly, into {', '.join(map(str, sizes))}: choose an autotp_size that divides "
                                      f"the number of key and value heads and the sizes of the model, or {_REMEDY}")
        expected = (*cut.shape[:dim], sizes[layer.tp_index], *cut.shape[dim + 1 :])
    if tuple(p.shape) != expected:
        raise NotImplementedError(f"{what}, which says that this rank holds {list(expected)} of it, and it holds {list(p.shape)}: {_REMEDY}")
    return cut
