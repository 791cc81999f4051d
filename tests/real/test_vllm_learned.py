# timeout: 900, takes: 80
"""A real vLLM is started on a version that streams in, on a mount that learns what is read (need=learn): of the next version only that comes,
and the answers are those of a server on the whole checkpoints. What vLLM does not read are tables of rotary frequencies, which old checkpoints
have and vLLM computes. The first follows the file's header and the last goes before what is read: the kernel may read ahead into these, further
than what does not count as read."""
import os
import re
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file

from checkpoints import FILE
from scenarios import MODEL
from servers import CLOSE, HERE, VLLM, distance, need_real
from world import Agent, Mount, tensors_of, unique

UNREAD = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": size for i, size in ((0, 8 << 20), (1, 32 << 20), (2, 8 << 20))}


def publish():
    """Versions 1 and 2, with tensors that nobody reads: their folders, and an agent that has them."""
    folders = unique("checkpoints")
    subprocess.run([sys.executable, os.path.join(HERE, "checkpoints.py"), folders], check=True, timeout=240, stdin=subprocess.DEVNULL)
    agent = Agent()
    for version in (1, 2):
        path = os.path.join(folders, str(version), FILE)
        unread = {name: torch.full((size // 4,), float(version)) for name, size in UNREAD.items()}
        save_file(load_file(path) | unread, path, metadata={"format": "pt"})
        agent.publish(MODEL, version, os.path.dirname(path))
    return folders, agent


def number(mount, version, what):
    return int(re.search(rf" {what}=(\d+)", mount.status(MODEL)[f"version.{version}"]).group(1))


def test_learned():
    "what the start has read comes of the next version, and nothing is asked for on demand"
    need_real("vllm")
    folders, agent = publish()
    whole = VLLM(os.path.join(folders, "1"), *VLLM.uncached)
    mount = Mount(agent.url, "need=learn")
    mount.wait_version(MODEL, 2)
    server = VLLM(mount.file(MODEL, 1), *VLLM.uncached)
    want = {1: whole.wait().answers()}
    whole.reload(os.path.join(folders, "2"))
    want[2] = whole.answers()
    assert distance(want[1], want[2]) > 10 * CLOSE
    assert server.wait().answers() == want[1]
    mount.write("learn end", f"{MODEL}/ctl")  # it would end by itself half a minute after the start
    mount.write(f"engine add e1 vllm {server.url}", f"{MODEL}/ctl")
    mount.write(2, f"{MODEL}/version")
    assert server.answers() == want[2] and server.serves() == "2"
    names = tensors_of(os.path.join(folders, "2", FILE))
    assert int(mount.status(MODEL)["learned"].split()[0]) < len(names), mount.status(MODEL)
    assert 0 < number(mount, 2, "moved") < number(mount, 2, "bytes") - (16 << 20), mount.status(MODEL)
    assert int(mount.status()["on_demand_bytes"]) == 0
