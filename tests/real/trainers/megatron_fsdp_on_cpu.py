"""Megatron-FSDP on a machine without a GPU: import this before megatron. CUDA's streams are none, since the CPU runs everything in order, and
its meshes are the CPU's. It then runs as it is, over gloo."""
import contextlib

import megatron_on_cpu  # noqa: F401
import torch


class _Device(str):
    """"cpu", and a GPU's number where it is put into "cuda:%d"."""

    def __format__(self, _):
        return "0"


class _Stream:
    def __init__(self, *_, **__):
        pass

    def _nothing(self, *_, **__):
        return self

    wait_stream = wait_event = record_event = record = synchronize = wait = _nothing


torch.cuda.current_device = lambda: _Device("cpu")
torch.cuda.Stream = torch.cuda.Event = _Stream
torch.cuda.current_stream = lambda *_: _Stream()
torch.cuda.stream = lambda _: contextlib.nullcontext()

from megatron.core.distributed.fsdp import mcore_fsdp_adapter as _adapter


class _Meshes:
    _made = _adapter.DeviceMesh

    @classmethod
    def from_group(cls, groups, device_type, **how):
        return cls._made.from_group(groups, "cpu", **how)


_adapter.DeviceMesh = _Meshes
_adapter.FullyShardedDataParallel.sync_rng_states_across_tp_group = lambda self: None  # CUDA's generators
