# timeout: 600
"""The ranks of FSDP with another release of torch than that of build/venv-real: TORCH_PYTHON is the Python of an environment that has it, and
the rest of build/venv-real."""
import os
import subprocess

import pytest

from ground import compared
from world import need_fuse


def another_python():
    need_fuse()
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        pytest.skip("no other release of torch: TORCH_PYTHON names no Python that has one")
    print("torch", subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True).stdout.strip())
    return python


def test_fsdp_2():
    "2 ranks: Shard(0) and (1), float32 to bfloat16, CPU offload, tied, root left unsharded, experts, FSDP1, DTensors; text and images"
    compared(2, "fsdp_ranks.py", "fsdp", "dim1", "mixed", "offload", "tied", "unsharded", "moe", "mixtral", "fsdp1", "fsdp1_flat", "manual", "qwen3_vl",
             python=another_python())


def test_fsdp_4():
    "4 ranks: hybrid, over tensor parallelism, strided shards"
    compared(4, "fsdp_ranks.py", "hsdp", "tp", "tp_hsdp", "manual", python=another_python())
