"""Tensors that vLLM's reload loses without an error.

While vLLM 0.32 reloads a model, its parameters have no memory, and what their weight loaders are given is kept until a layer is complete. Some
models (GPT-OSS) copy into parameters without a weight loader: that goes nowhere, the layer keeps the version before, and its parameters are
said to be loaded. So the model's loader is run once with tensors that have no memory either, and what reached no weight loader is lost."""
from __future__ import annotations

import logging
from typing import Any

from ..lib import _dtypes
from ..read._layout import Layout
from ._layerwise import restore_kernel_tensors, tied_parameters

log = logging.getLogger("vllm.wsync")


def lost_parameters(model: Any, layout: Layout) -> list[str]:
    """Parameters that a reload of such a version would leave as they are. Changes nothing. []: none, or it cannot be told."""
    import torch
    from vllm.model_executor.model_loader.reload import layerwise

    tied = tied_parameters(model)
    pairs = [(name, torch.empty(shape, dtype=_dtypes.torch_dtype(dtype), device="meta")) for name, (dtype, shape) in layout.items()]
    process, count = layerwise._layerwise_process, layerwise.get_numel_loaded
    layerwise._layerwise_process = lambda layer, info: None  # keeps what the loaders were given
    layerwise.get_numel_loaded = lambda loader, given: (0, True)  # gives it to none
    try:
        layerwise.initialize_layerwise_reload(model)
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        said = set(model.load_weights(pairs) or ()) & names
        heard = {f"{path}.{name}".lstrip(".") for path, layer in model.named_modules() for name, _ in layerwise.get_layerwise_info(layer).loaded_weights}
    except Exception as e:  # whatever a loader wants to know of a value
        log.info("whether vLLM's reload loses tensors of this model cannot be told: %s: %s", type(e).__name__, e)
        return []
    finally:
        layerwise._layerwise_process, layerwise.get_numel_loaded = process, count
        restore_kernel_tensors(model)
    return sorted(name for name in said - heard if not tied.get(name, frozenset()) & heard)
