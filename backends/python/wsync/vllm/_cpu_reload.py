"""What reloads need on a CPU, where vLLM 0.32 starts right and answers wrong, or cannot reload, from the first reload on.

- INT8 (W8A8): the oneDNN kernel keeps a pointer to the scales that it was made from. A reload makes a new kernel from new scales, copies
  these into the tensors that the layer had before, and frees the new ones. So each kernel keeps the scales that it was made from, as long
  as it lives.
- Experts that are not quantised: their kernel wants the weights packed, as they are at a start. A reload leaves them as they are in the
  file. So they are packed.
- A head that is tied to the embeddings: its kernel has a packed copy of the weights, which a reload makes anew for modules that it loads. The
  head is none of them. So it is packed again.
- Latent attention (MLA) with AMX: once it is packed, the weight that it was packed from is replaced by an empty one, which a reload cannot fill:
  it fails in its middle. So that weight is kept.

Where a release has its kernels elsewhere, what could not be mended is not reloaded: the load fails before it begins."""
from __future__ import annotations

import functools
import logging
from typing import Any, Callable

log = logging.getLogger("vllm.wsync")
#: set on a class once it is mended
_MENDED = "_wsync_mended"


#: what could not be mended: whether a model has it, and why not
_unmended: dict[str, tuple[Callable[[Any, Any], bool], str]] = {}


def mend_reloads(vllm_config: Any) -> None:
    """Mends all layers of this process, those of a model's start too. Does nothing on other devices, or twice. Must be called before the first
    reload; must not raise, or the worker would not start."""
    device = getattr(vllm_config, "device_config", None)
    if getattr(device, "device_type", None) != "cpu":
        return
    for what, has, mend in (("quantised weights", _is_quantised, _keep_scales), ("experts", _has_experts, _pack_experts),
                            ("latent attention", _has_packed_latents, _keep_latents)):
        try:
            mend()
        except (ImportError, AttributeError) as e:
            _unmended[what] = has, str(e)
            log.warning("a model with %s is not reloaded on this CPU: vLLM's kernel is not where it was in 0.32: %s", what, e)
    try:
        _guard_reloads()
    except (ImportError, AttributeError) as e:
        log.warning("vLLM's reload_weights is not where it was in 0.32: %s", e)


def check_reload(model: Any, model_config: Any) -> None:
    """Raises RuntimeError where a reload would leave the model wrong, without an error of vLLM's. Nothing has changed then."""
    for what, (has, why) in _unmended.items():
        if has(model, model_config):
            raise RuntimeError(f"a model with {what} answers wrong after a reload on a CPU, and wsync cannot mend that in this release of vLLM "
                               f"({why}): start the server anew on the version")
    if any(_is_empty(attention.kv_b_proj) for attention in _packed_latents(model)):
        raise RuntimeError("vLLM has replaced a weight of this model's latent attention by an empty one, as it does with AMX: start the server anew, with "
                           "--worker-extension-cls wsync.vllm.Extension, which keeps it")


def pack_tied(model: Any) -> None:
    """After a load: packs modules again whose parameter was loaded as another module's. Does nothing where no kernel of a CPU has packed it."""
    seen: set[int] = set()
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is None or not weight.numel():
            continue
        if id(weight) in seen and "cpu_linear" in module.__dict__:
            module.quant_method.process_weights_after_loading(module)
        seen.add(id(weight))


def _guard_reloads() -> None:
    """vLLM's own reload asks check_reload first, as wsync's loader does, and ends with pack_tied."""
    from vllm.v1.worker.gpu_worker import Worker  # the CPU's worker derives from it

    if getattr(Worker, _MENDED, False):
        return
    reload = Worker.reload_weights

    @functools.wraps(reload)
    def reload_weights(worker: Any, *args: Any, **kwargs: Any) -> Any:
        model = worker.model_runner.get_model()
        check_reload(model, worker.vllm_config.model_config)
        said = reload(worker, *args, **kwargs)
        pack_tied(model)
        return said

    Worker.reload_weights = reload_weights
    setattr(Worker, _MENDED, True)


def _is_quantised(_model: Any, model_config: Any) -> bool:
    """In which way, other releases may name otherwise."""
    return getattr(model_config, "quantization", None) is not None


def _has_experts(model: Any, _model_config: Any) -> bool:
    return any("MoE" in type(module).__name__ or "Experts" in type(module).__name__ for module in model.modules())


def _packed_latents(model: Any) -> list[Any]:
    return [module for module in model.modules() if getattr(module, "is_amx_bmm_enabled", False)]


def _is_empty(layer: Any) -> bool:
    weight = getattr(layer, "weight", None)  # quantised, it may have another name, and is not replaced
    return weight is not None and not weight.numel()


def _has_packed_latents(model: Any, _model_config: Any) -> bool:
    return bool(_packed_latents(model))


def _keep_latents() -> None:
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention as Attention

    if not getattr(Attention, _MENDED, False):
        Attention.process_weights_after_loading = _keeping_weight(Attention.process_weights_after_loading)
        setattr(Attention, _MENDED, True)


def _keeping_weight(pack: Any) -> Any:
    """The method that packs a layer's weight, which the layer then still has."""

    @functools.wraps(pack)
    def process_weights_after_loading(attention: Any, *args: Any, **kwargs: Any) -> None:
        layer = attention.kv_b_proj
        weight, had = getattr(layer, "weight", None), not _is_empty(layer)
        pack(attention, *args, **kwargs)
        if had and _is_empty(layer):
            layer.weight = weight

    return process_weights_after_loading


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
