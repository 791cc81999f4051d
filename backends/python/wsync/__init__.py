"""wsync: publishes a trainer's weights and reads them as files; see the README."""
from ._deepspeed import deepspeed
from ._fsdp import fsdp
from ._held import tensors
from ._library import Error, Timeout
from ._megatron import megatron
from ._publisher import Publisher

__all__ = ["Error", "Publisher", "Timeout", "deepspeed", "fsdp", "megatron", "tensors"]
