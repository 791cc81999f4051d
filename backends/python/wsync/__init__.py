"""wsync: publishes a trainer's weights and reads them as files; see the README.

Importing it imports neither NumPy nor PyTorch."""
from . import aio
from .engines._broadcast import BroadcastResult, BroadcastSender
from .engines._engines import (Engine, EngineResult, sync_weights_to_engines, update_sglang_weights_from_disk,
                       update_vllm_weights_from_disk)
from .lib._agents import ensure
from .lib._library import Error, Timeout, lib as _lib, text as _text
from .lib._mounts import Mount, mount
from .publish._deepspeed import deepspeed
from .publish._fsdp import fsdp
from .publish._held import Source, tensors
from .publish._megatron import megatron
from .publish._peft import peft
from .publish._publisher import Publisher
from .read._chunks import WeightChunk, WeightExtractor
from .read._gpu import GpuWeights, load_gpu, map_gpu
from .read._safetensors import FormatError
from .read._weight_source import ParamMeta, WeightSource
from .read._weights import Weights, open

__version__ = _text(_lib.wsync_version())

__all__ = ["BroadcastResult", "BroadcastSender", "Engine", "EngineResult", "Error", "FormatError", "GpuWeights", "Mount", "ParamMeta", "Publisher", "Source", "Timeout", "WeightChunk",
           "WeightExtractor", "WeightSource", "Weights", "aio", "deepspeed", "ensure", "fsdp", "load_gpu", "map_gpu", "megatron", "mount", "open", "peft",
           "sync_weights_to_engines", "tensors", "update_sglang_weights_from_disk", "update_vllm_weights_from_disk"]
