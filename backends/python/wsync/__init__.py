"""wsync: publishes a trainer's weights and reads them as files; see the README.

Importing it imports neither NumPy nor PyTorch."""
from . import aio
from ._agents import ensure
from ._broadcast import BroadcastResult, BroadcastSender
from ._chunks import WeightChunk, WeightExtractor
from ._deepspeed import deepspeed
from ._engines import (Engine, EngineResult, sync_weights_to_engines, update_sglang_weights_from_disk,
                       update_vllm_weights_from_disk)
from ._fsdp import fsdp
from ._gpu import GpuWeights, load_gpu, map_gpu
from ._held import Source, tensors
from ._library import Error, Timeout, lib, text
from ._megatron import megatron
from ._publisher import Publisher
from ._safetensors import FormatError
from ._weight_source import WeightSource
from ._weights import ParamMeta, Weights, open

__version__ = text(lib.wsync_version())

__all__ = ["BroadcastResult", "BroadcastSender", "Engine", "EngineResult", "Error", "FormatError", "GpuWeights", "ParamMeta", "Publisher", "Source", "Timeout", "WeightChunk",
           "WeightExtractor", "WeightSource", "Weights", "aio", "deepspeed", "ensure", "fsdp", "load_gpu", "map_gpu", "megatron", "open",
           "sync_weights_to_engines", "tensors", "update_sglang_weights_from_disk", "update_vllm_weights_from_disk"]
