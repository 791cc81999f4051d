"""What a node of sixteen that run a model expert-parallel pulls and holds with need=ep:RANK/16, against the whole: one layer with experts of the
real width, since it is their size that says how much comes with the edges of blocks. Of Qwen3-235B-A22B 32 experts (37.7 MB each), of Qwen3-30B-A3B all
128 (9.4 MB). What is no expert's is 0.13 of the bytes, so at least 0.13 + 0.87 / 16 = 0.18 is needed."""
import os
import re
import struct
import sys

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rows import row
from world import *

RANKS, RANK, OTHERS = 16, 1, 0.13
MODELS = (("235b", 32, 4096, 1536), ("30b", 128, 2048, 768))  # experts, hidden size, intermediate size


def sparse_checkpoint(experts, hidden, intermediate):
    """Zeros, which take no space on the disk."""
    shapes = {}
    for e in range(experts):
        for part, shape in (("down", [hidden, intermediate]), ("gate", [intermediate, hidden]), ("up", [intermediate, hidden])):
            shapes[f"model.layers.0.mlp.experts.{e}.{part}_proj.weight"] = shape
    rows = int(experts * 3 * intermediate * OTHERS / (1 - OTHERS) / 5)
    shapes |= {f"model.layers.0.self_attn.{p}_proj.weight": [rows, hidden] for p in "qkvo"} | {"model.embed_tokens.weight": [rows, hidden]}
    header, end = {}, 0
    for name in sorted(shapes):
        n = 2 * shapes[name][0] * shapes[name][1]
        header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [end, end + n]}
        end += n
    folder = unique("sparse")
    os.makedirs(folder)
    text = json.dumps(header).encode()
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + end)
    with open(folder + "/config.json", "w") as f:
        json.dump({"model_type": "qwen3_moe"}, f)
    return folder, 8 + len(text) + end


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    for name, *size in MODELS:
        with scope():
            folder, whole = sparse_checkpoint(*size)
            agent = Agent()
            agent.publish("actor", 1, folder, timeout=300)
            mount = Mount(agent.url, f"need=ep:{RANK}/{RANKS}")
            mount.wait_version("actor", 1)
            mount.write("pull 1", "actor/ctl")
            moved = int(re.search(r" moved=(\d+)", mount.status("actor")["version.1"]).group(1))
            held = int(mount.status()["used_bytes"])
            row(f"need-bytes-{name}", moved / 1e6, "MB", whole / 1e6, 0.2, at_most=True)
            row(f"need-memory-{name}", held / 1e6, "MB", whole / 1e6, 0.2, at_most=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
