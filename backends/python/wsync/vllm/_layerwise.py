"""A model's layers as vLLM's layer-wise reload sees them."""
from __future__ import annotations

from typing import Any


def tied_parameters(model: Any) -> dict[str, frozenset[str]]:
    """For each parameter that has several names, all of them. To be asked before a load, which gives each name a parameter of its own."""
    names: dict[int, set[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), set()).add(name)
    return {name: frozenset(group) for group in names.values() if len(group) > 1 for name in group}


def restore_kernel_tensors(model: Any) -> None:
    """Gives its tensors back to every layer whose load was begun and not finished; their values may be of either version."""
    from vllm.model_executor.model_loader.reload import layerwise

    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
            info.reset()


def partly_filled_layers(model: Any) -> list[str]:
    """Layers that a load has filled only in part, for example fused layers of which one source tensor is missing. Padded layers look the
    same; of those, vocabulary embeddings are recognized and skipped."""
    from vllm.model_executor.model_loader.reload import layerwise

    found = []
    for name, layer in model.named_modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and 0 < info.load_numel < info.load_numel_total and not hasattr(layer, "num_embeddings_padded"):
            found.append(name)
    return found


def load_in_progress(model: Any) -> bool:
    """Whether a load was begun and not finished."""
    from vllm.model_executor.model_loader.reload import layerwise

    return any(layerwise.get_layerwise_info(layer).can_load() for layer in model.modules())
