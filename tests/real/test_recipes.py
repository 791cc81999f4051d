# timeout: 900
"""The recipes of backends/python/README.md that can run here: the framework's own trainer publishes with the call that its recipe adds, and
the mounted files equal those that the framework saves."""
import os
import subprocess
import sys

from ground import HERE, Ground, compared, need
from servers import VLLM
from world import unique


def test_trl_1():
    "TRL's GRPOTrainer with a callback: two steps, tied embeddings in bfloat16, LoRA merged"
    need("trl")
    compared(1, "trl_ranks.py", "grpo", "grpo-tied", "grpo-lora")


def test_trl_2():
    "TRL's GRPOTrainer on 2 ranks"
    need("trl")
    compared(2, "trl_ranks.py", "grpo")


def test_trl_callback():
    "wsync.trl.callback in TRL's GRPOTrainer on 2 ranks"
    need("trl")
    compared(2, "trl_ranks.py", "callback")


def test_trl_zero3():
    "TRL's GRPOTrainer on 2 ranks of accelerate's DeepSpeed, whose engine is there when training begins"
    need("trl")
    need("deepspeed")
    compared(2, "trl_ranks.py", "grpo-zero3")


def test_trl_vllm():
    "TRL's vllm_mode=server on 2 ranks, with wsync.trl.without_sync: a mount that follows switches the server before TRL samples from it"
    need("trl")
    need("vllm")
    g, folders = Ground(), unique("checkpoints")
    subprocess.run([sys.executable, os.path.join(HERE, "checkpoints.py"), folders], check=True, timeout=120, stdin=subprocess.DEVNULL)
    start = os.path.join(folders, "1")
    g.agent.publish("vllm", 1, start)
    g.mount.wait_version("vllm", 1)
    # float32: with bfloat16 vLLM uses AMX, and on some virtual machines a worker of vLLM 0.32 that has reloaded its weights and was idle
    # for some seconds then dies of an illegal instruction, with or without wsync.
    server = VLLM(g.mount.file("vllm", 1), "--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1").wait()
    g.mount.write(f"engine add v1 vllm {server.url}", "vllm/ctl")
    g.mount.write("follow", "vllm/policy")
    said = g.ranks(2, "trl_ranks.py", "vllm", env={"START": start, "VLLM_URL": server.url})
    print("\n".join(line for line in said.splitlines() if line.startswith("# ")), flush=True)
    assert server.serves() == "4", server.serves()
    assert g.compare("vllm") > 0
