# timeout: 2400, takes: 200
"""Published Megatron configurations of slime, verl and NeMo-RL, cut to tiny sizes, each with and without gathers and reductions that overlap:
after each of two steps of Megatron's distributed optimizer every tensor of the mounted files equals what mbridge gathers.
`make test-frameworks ARGS=megatron`. CI makes one start, with one case."""
import importlib.util
import os

import pytest

import ground
from world import need_fuse

RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "megatron_published_ranks.py")
ground.RANKS_SECONDS = 600  # of several cases, on a machine that does other things too


def published(*names, in_ci=None):
    """in_ci: the one case that runs in CI; None: CI leaves them out."""
    cases = [name + suffix for name in names for suffix in ("", "-overlap")]
    if os.environ.get("CI"):
        cases = [in_ci]
    if not all(cases):
        pytest.skip("it starts Megatron again for more of the same kind: minutes that the hour of CI does not have")
    need_fuse()
    if importlib.util.find_spec("mbridge") is None:
        pytest.skip("mbridge is not installed: PyPI could not be reached, or `.ci/deps megatron` has not run")
    ground.compared(4, RANKS, *cases)


def test_slime():
    "slime's scripts for dense and routed Qwen3, with tensor parallelism, and experts' on other ranks"
    published("slime-qwen3-4B", "slime-qwen3-30B-A3B", in_ci="slime-qwen3-30B-A3B-overlap")


def test_slime_shared_experts():
    "slime's script for GLM-4.5, with context parallelism"
    published("slime-glm4.5-355B-A32B")


def test_verl():
    "verl's scripts for Qwen3-30B-A3B and DeepSeek-V3, whose pipeline stages differ"
    published("verl-qwen3moe-30b", "verl-deepseek671b")


def test_nemo_rl():
    "NeMo-RL's recipe for Moonlight, whose gathers overlap by default"
    published("nemo-rl-moonlight-16ba3b")
