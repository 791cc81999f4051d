#!/usr/bin/env python3
# timeout: 900
"""The recipes of backends/python/README.md that can be run here: the framework's own trainer publishes by the call that
its recipe adds, and the mounted files are what it saves itself."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ground import HERE, Ground, compared, need
from servers import VLLM
from world import run, unique


def test_trl_1(stack):
    "TRL's GRPOTrainer with a callback: two steps, tied embeddings in bfloat16, LoRA merged"
    need("trl")
    compared(stack, 1, "trl_ranks.py", "grpo", "grpo-tied", "grpo-lora")


def test_trl_2(stack):
    "TRL's GRPOTrainer on 2 ranks"
    need("trl")
    compared(stack, 2, "trl_ranks.py", "grpo")


def test_trl_vllm(stack):
    "TRL's vllm_mode=server: a mount that follows switches the server before TRL samples from it"
    need("trl")
    need("vllm")
    g, folders = Ground(stack), unique("checkpoints")
    subprocess.run([sys.executable, os.path.join(HERE, "checkpoints.py"), folders], check=True, timeout=120, stdin=subprocess.DEVNULL)
    start = os.path.join(folders, "1")
    g.agent.publish("vllm", 1, start)
    g.mount.wait_version("vllm", 1)
    # In float32: with bfloat16 vLLM takes AMX, and on some virtual machines a worker of vLLM 0.32 that has reloaded its weights and was
    # idle for some seconds dies of an illegal instruction there, wsync or not.
    server = VLLM(stack, g.mount.file("vllm", 1), "--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1").wait()
    g.mount.write(f"engine add v1 vllm {server.url}", "vllm/ctl")
    g.mount.write("follow", "vllm/policy")
    said = g.ranks(1, "trl_ranks.py", "vllm", env={"START": start, "VLLM_URL": server.url})
    print("\n".join(line for line in said.splitlines() if line.startswith("# ")), flush=True)
    assert server.serves() == "3", server.serves()
    assert g.compare("vllm") > 0


if __name__ == "__main__":
    run(test_trl_1, test_trl_2, test_trl_vllm)
