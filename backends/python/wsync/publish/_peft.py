"""PEFT's LoRA adapters: the adapter alone, as a version of a model of its own.

Nothing is merged and nothing gathered: each rank supplies what it holds of the adapter's matrices, as fsdp() and deepspeed() do of
a whole model's. The files are those of PEFT's save_pretrained, which engines read."""
from __future__ import annotations

import enum
import json
import re

from ._deepspeed import DeepSpeed
from ._fsdp import Fsdp, unwrapped
from ._held import Source
from ._megatron import Megatron

CONFIG = "adapter_config.json"


def peft(model, adapter: str = "default", *, base_name: str | None = None, master: bool = False) -> Source:
    """The LoRA adapter of a PEFT model (``get_peft_model``, or transformers' ``add_adapter``), without the model::

        pub = wsync.Publisher("actor-lora", wsync.peft(model))

    Of a plain model, in DDP, FSDP1 or FSDP2 (``fully_shard``), of DTensors, or of a DeepSpeed engine of any ZeRO stage; or of
    Megatron's chunks with the LoRA layers of Megatron-Bridge or NeMo, as for ``wsync.megatron`` (the publisher needs ``hf_config``).
    Versions have adapter_model.safetensors, in PEFT's names and in the dtype that the adapter is kept in
    (``Publisher(dtype="bfloat16")``: another one; Megatron's: hf_config's), and adapter_config.json.

    adapter: which, where there are several; publish each under a model's name of its own. base_name: what adapter_config.json says
    as base_model_name_or_path, instead of what PEFT would write; vLLM's own resolver wants the server's ``--model``. master: as in
    ``wsync.deepspeed``. What engines do not load (DoRA, modules_to_save, biases) is refused."""
    if _is_megatron(model):
        if master or adapter != "default":
            raise ValueError("a Megatron model has one adapter, without a name, and its parameters are read: leave out adapter= and master=")
        return MegatronAdapter(list(model) if isinstance(model, (list, tuple)) else [model], base_name)
    kinds = {c.__name__ for c in type(model).__mro__}
    inner = unwrapped(getattr(model, "module", model) if "DeepSpeedEngine" in kinds else model)
    configs = getattr(inner, "peft_config", None)
    if not configs:
        raise TypeError(f"{type(inner).__name__} has no peft_config: wsync.peft() wants a model with a LoRA adapter of PEFT's")
    if adapter not in configs:
        raise ValueError(f"there is no adapter {adapter!r}: the model has {', '.join(sorted(configs))}")
    text = config_text(configs[adapter], base_name or configs[adapter].base_model_name_or_path or _name_of(inner))
    if "DeepSpeedEngine" in kinds or any(hasattr(p, "ds_id") for p in inner.parameters()):
        return DeepSpeedAdapter(adapter, text, model, master, conversions=False)
    if master:
        raise ValueError("master=True is of a DeepSpeed engine, and this model is of none")
    return FsdpAdapter(adapter, text, model, conversions=False)


def _is_megatron(model) -> bool:
    if isinstance(model, (list, tuple)):
        return True
    while not hasattr(model, "peft_config") and hasattr(model, "module"):
        model = model.module
    return hasattr(model, "decoder") and not hasattr(model, "peft_config")


def _name_of(inner) -> str | None:
    """The base model's name, where PEFT looks for it."""
    base = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    return getattr(base, "name_or_path", None) or None


def config_text(config, base_name: str | None) -> bytes:
    """adapter_config.json as save_pretrained writes it, but with sets in order: the same adapter has the same bytes."""
    said = {**config.to_dict(), "inference_mode": True, "base_model_name_or_path": base_name}
    return json.dumps(said, indent=2, sort_keys=True, default=_plain).encode()


def _plain(value):
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"the adapter's config has a {type(value).__name__}, which is nothing that JSON has")


class _Adapter:
    """What the sources of adapters have in common, beside a source of whole models."""

    def __init__(self, adapter: str, config: bytes, *model, **options) -> None:
        super().__init__(*model, **options)
        self._adapter, self._config = adapter, config
        # Also what libwsync refuses, so that it is not left out silently.
        self._takes = re.compile(rf"\.(lora_(embedding_)?[AB]|lora_magnitude_vector|modules_to_save)(\._\w+)*\.{re.escape(adapter)}(\.|$)").search

    def takes(self, name: str) -> bool:
        return self._takes(name) is not None

    def options(self) -> dict:
        return {"adapter": self._adapter}

    def files(self) -> dict[str, bytes]:
        return {CONFIG: self._config}


class FsdpAdapter(_Adapter, Fsdp):
    pass


class DeepSpeedAdapter(_Adapter, DeepSpeed):
    pass


class MegatronAdapter(_Adapter, Megatron):
    """The adapter of Megatron's chunks. There is no config of PEFT's; it is made of what the layers have."""

    def __init__(self, chunks: list, base_name: str | None) -> None:
        super().__init__("adapter", b"", chunks)
        self._config = json.dumps(_megatron_config(self._chunks, base_name), indent=2, sort_keys=True).encode()

    def takes(self, name: str) -> bool:
        return ".adapter." in name

    def options(self) -> dict:
        return Megatron.options(self) | {"adapter": "adapter"}


# What the layers that LoRA is added to are in the Hugging Face model; by the name of the adapter, where a fused layer has several.
_TARGETS = {"linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_proj": ("o_proj",), "linear_fc1": ("gate_proj", "up_proj"), "linear_fc2": ("down_proj",),
            "adapter_q": ("q_proj",), "adapter_k": ("k_proj",), "adapter_v": ("v_proj",), "adapter_gate": ("gate_proj",), "adapter_up": ("up_proj",)}


def _megatron_config(chunks: list, base_name: str | None) -> dict:
    found, targets = set(), set()
    for chunk in chunks:
        for name, module in chunk.named_modules():
            kind = type(module).__name__
            if "DoRA" in kind:
                raise NotImplementedError(f"{name} is a {kind}, and engines load no DoRA: publish the merged model")
            if not (hasattr(module, "linear_in") and hasattr(module, "linear_out") and hasattr(module, "dim")):
                continue
            if type(getattr(module, "activation", None)).__name__ not in ("NoneType", "Identity"):
                raise NotImplementedError(f"{name} has an activation between its matrices, which is no LoRA")
            found.add((module.dim, module.alpha))
            path = name.removesuffix(".adapter").rpartition(".")[2]
            if path not in _TARGETS:
                raise NotImplementedError(f"{name} is an adapter of a layer that is not known here: {', '.join(_TARGETS)}")
            targets.update(_TARGETS[path])
    if not found:
        raise TypeError("this Megatron model has no adapter: wsync.peft() wants layers of LoRA, with linear_in and linear_out")
    if len(found) > 1:
        raise NotImplementedError(f"the adapter's layers differ in rank and alpha: {sorted(found)}")
    (rank, alpha), = found
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "lora_dropout": 0.0, "target_modules": sorted(targets), "bias": "none",
            "inference_mode": True, "base_model_name_or_path": base_name}
