"""What a reload of an INT8 model (W8A8) needs on a CPU.

vLLM's oneDNN kernel keeps a pointer to the scales that it was made from. A reload makes a new kernel from new scales, copies these into
the tensors that the layer had before, and frees the new ones (0.32): from then on the answers are wrong, without an error. So each
kernel keeps the scales that it was made from, as long as it lives."""
from __future__ import annotations

import functools
import logging
from typing import Any

log = logging.getLogger("vllm.wsync")
#: set on the class once it keeps them
_KEEPS = "_wsync_keeps_scales"


def keep_scales(vllm_config: Any) -> None:
    """Has all such kernels of this process keep their scales, those of a model's start too. Does nothing on other devices, or twice. Must be
    called before the first reload; must not raise, or the worker would not start."""
    try:
        if vllm_config.device_config.device_type != "cpu":
            return
        from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel as Kernel

        if not getattr(Kernel, _KEEPS, False):
            Kernel.process_weights_for_onednn = _keeping(Kernel.process_weights_for_onednn)
            setattr(Kernel, _KEEPS, True)
    except (ImportError, AttributeError) as e:
        log.warning("an INT8 model on this CPU may answer wrong after a reload: vLLM's kernel is not where it was in 0.32: %s", e)


def _keeping(make: Any) -> Any:
    """The method that makes a kernel, and then keeps on it what the layer holds by now."""

    @functools.wraps(make)
    def process_weights_for_onednn(kernel: Any, layer: Any) -> None:
        make(kernel, layer)
        kernel.wsync_kept = [getattr(layer, name, None) for name in kernel.layer_param_names]

    return process_weights_for_onednn
