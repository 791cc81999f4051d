# timeout: 2700, takes: 200
"""wsync.openrlhf: OpenRLHF's own command line trains a tiny model by Ray, with DeepSpeed's ZeRO on two ranks and vLLM itself, on a CPU. After
training the version that vLLM serves equals what OpenRLHF saves, bit for bit. `make test-frameworks ARGS=openrlhf`."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

import world

if importlib.util.find_spec("openrlhf") is None:
    pytest.skip("OpenRLHF is not installed: PyPI could not be reached, or `.ci/deps openrlhf` has not run", allow_module_level=True)
HERE = os.path.dirname(os.path.abspath(__file__))
REAL = os.path.join(os.path.dirname(HERE), "real")
sys.path[:0] = [HERE, REAL]

from checkpoints import make  # noqa: E402
from ray_cluster import environment  # noqa: E402

RUN_SECONDS = 1200  # vLLM and three processes with torch start beside other work
REWARD = '''import torch
def reward_func(queries, prompts, labels, **_):
    rewards = torch.tensor([float(len(set(query)) % 5) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
'''


@pytest.fixture
def folder():
    """One with a short path, as Ray has sockets in it."""
    path = tempfile.mkdtemp(prefix="o", dir="/tmp")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("options", [["--ds.zero_stage", "3"], ["--ds.zero_stage", "2", "--train.async_enable", "--vllm.enable_prefix_caching"]], ids=["zero3", "zero2-async"])
def test_training(folder, options):
    "two steps; OpenRLHF's saved model, the mounted version and the engine's digest are the same"
    world.need_fuse()
    agent = world.Agent()
    make(folder, versions=(1,))
    rows, reward, saved = (os.path.join(folder, name) for name in ("rows.jsonl", "reward.py", "saved"))
    with open(rows, "w") as f:
        f.writelines(json.dumps({"input": text}) + "\n" for text in ("one two", "three", "four five", "six", "seven", "eight", "nine", "ten"))
    with open(reward, "w") as f:
        f.write(REWARD)
    mount = world.Mount(f"unix:{agent.sock}")
    env = dict(os.environ, **environment(os.path.join(folder, "home"), os.path.join(HERE, "stand_in")), HF_HUB_OFFLINE="1", DO_NOT_TRACK="1",
               DS_ACCELERATOR="cpu", TORCH_COMPILE_DISABLE="1", TOKENIZERS_PARALLELISM="false", VLLM_CPU_KVCACHE_SPACE="1",
               VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1", WSYNC_AGENT=f"unix:{agent.sock}", WSYNC_SOURCE=f"unix:{agent.sock}",
               WSYNC_MOUNT=mount.path)
    arguments = {"actor.model_name_or_path": os.path.join(folder, "1"), "actor.num_nodes": 1, "actor.num_gpus_per_node": 2, "vllm.num_engines": 1,
                 "vllm.tensor_parallel_size": 1, "vllm.gpu_memory_utilization": 0.2, "ds.attn_implementation": "eager",
                 "data.prompt_dataset": rows, "data.input_key": "input", "reward.remote_url": reward, "algo.kl.init_coef": 0,
                 "algo.advantage.estimator": "reinforce", "rollout.batch_size": 4, "train.batch_size": 4, "rollout.max_new_tokens": 6, "data.max_len": 64,
                 "actor.adam.lr": 0.01, "ckpt.output_dir": saved, "ckpt.path": os.path.join(folder, "ckpt")}
    command = [sys.executable, os.path.join(HERE, "openrlhf_on_cpu.py"), folder, "--vllm.enforce_eager", *options,
               *(text for name, value in arguments.items() for text in (f"--{name}", str(value)))]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stdout[-9000:]
    with open(os.path.join(folder, "serving.json")) as f:
        (served,), = json.load(f)
    assert served["version"] == 2 and served["model"] == "actor" and not served["broken"], served
    expected = {}
    for name in os.listdir(saved):
        if name.endswith(".safetensors"):
            expected.update(world.tensors_of(os.path.join(saved, name)))
    got = world.tensors_of(mount.file("actor", 2, "model.safetensors"))
    before = world.tensors_of(os.path.join(folder, "1", "model.safetensors"))
    assert got == expected and got.keys() == before.keys() and got != before
