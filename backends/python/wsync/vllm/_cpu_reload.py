"""What reloads need on a CPU, where vLLM 0.32 starts right and answers wrong from the first reload on, without an error.

- INT8 (W8A8): the oneDNN kernel keeps a pointer to the scales that it was made from. A reload makes a new kernel from new scales, copies
  these into the tensors that the layer had before, and frees the new ones. So each kernel keeps the scales that it was made from, as long
  as it lives.
- Experts that are not quantised: their kernel wants the weights packed, as they are at a start. A reload leaves them as they are in the
  file. So they are packed."""
from __future__ import annotations

import functools
import logging
from typing import Any

log = logging.getLogger("vllm.wsync")
#: set on a class once it is mended
_MENDED = "_wsync_mended"


def mend_reloads(vllm_config: Any) -> None:
    """Mends all layers of this process, those of a model's start too. Does nothing on other devices, or twice. Must be called before the first
    reload; must not raise, or the worker would not start."""
    for what, mend in (("an INT8 model", _keep_scales), ("a model with experts", _pack_experts)):
        try:
            if vllm_config.device_config.device_type == "cpu":
                mend()
        except (ImportError, AttributeError) as e:
            log.warning("%s on this CPU may answer wrong after a reload: vLLM's kernel is not where it was in 0.32: %s", what, e)


def _keep_scales() -> None:
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel as Kernel

    if not getattr(Kernel, _MENDED, False):
        Kernel.process_weights_for_onednn = _keeping(Kernel.process_weights_for_onednn)
        setattr(Kernel, _MENDED, True)


def _keeping(make: Any) -> Any:
    """The method that makes a kernel, and then keeps on it what the layer holds by now."""

    @functools.wraps(make)
    def process_weights_for_onednn(kernel: Any, layer: Any) -> None:
        make(kernel, layer)
        kernel.wsync_kept = [getattr(layer, name, None) for name in kernel.layer_param_names]

    return process_weights_for_onednn


def _pack_experts() -> None:
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts as Experts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod as Method

    if not getattr(Method, _MENDED, False):
        pack, set_up = Experts.process_weights_after_loading, Method._setup_kernel
        Experts.process_weights_after_loading, Method._setup_kernel = _noting(pack), _packing(set_up)
        setattr(Method, _MENDED, True)


def _noting(pack: Any) -> Any:
    """The method that packs a layer's experts, and then notes that they are."""

    @functools.wraps(pack)
    def process_weights_after_loading(experts: Any, layer: Any) -> None:
        pack(experts, layer)
        experts.wsync_packed = True

    return process_weights_after_loading


def _packing(set_up: Any) -> Any:
    """The method that a start and each reload call for a layer; afterwards its experts are packed, whether a release does that itself or not."""

    @functools.wraps(set_up)
    def _setup_kernel(method: Any, layer: Any, w13: Any, w2: Any) -> None:
        experts = getattr(method.moe_kernel, "fused_experts", None)  # None at a start, which packs them
        if experts is not None:
            experts.wsync_packed = False
        set_up(method, layer=layer, w13=w13, w2=w2)
        if experts is not None and not experts.wsync_packed:
            experts.process_weights_after_loading(layer)

    return _setup_kernel
