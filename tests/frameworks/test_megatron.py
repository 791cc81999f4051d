# timeout: 900, takes: 120
"""Published Megatron configurations of slime, verl and NeMo-RL, cut to tiny sizes: after each of two steps of Megatron's distributed optimizer
every tensor of the mounted files equals what mbridge gathers. `make test-frameworks ARGS=megatron`"""
import importlib.util
import os

import pytest

from ground import compared
from world import need_fuse

RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "megatron_published_ranks.py")
NAMES = ["slime-qwen3-4B", "slime-qwen3-30B-A3B", "slime-moonlight-16B-A3B", "slime-glm4.5-355B-A32B", "verl-qwen3moe-30b", "verl-deepseek671b",
         "nemo-rl-moonlight-16ba3b"]


@pytest.mark.parametrize("name", NAMES)
def test_published(name):
    need_fuse()
    if importlib.util.find_spec("mbridge") is None:
        pytest.skip("mbridge is not installed: PyPI could not be reached, or `.ci/deps megatron` has not run")
    compared(4, RANKS, name, name + "-overlap")
