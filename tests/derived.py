"""Checkpoints that views are made of, the views that mounts make of them, and what `wsync derive` says that they are to be."""
import json
import os
import random
import struct

from world import *

VIEW, CHANNEL = "actor@fp8-block128", "actor@fp8-channel"
LAYERS, HIDDEN = 2, 256


def finite(n, seed):
    """Elements of bf16, none of them NaN or infinite."""
    raw = bytearray(random.Random(seed).randbytes(2 * n))
    raw[1::2] = raw[1::2].translate(bytes(b & 0xBF for b in range(256)))
    return bytes(raw)


def shapes(layers=LAYERS, hidden=HIDDEN):
    yield "model.embed_tokens.weight", [300, hidden]
    for i in range(layers):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
            yield f"model.layers.{i}.{name}.weight", [hidden, hidden]
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            yield f"model.layers.{i}.{name}.weight", [2 * hidden, hidden]
        yield f"model.layers.{i}.mlp.down_proj.weight", [hidden, 2 * hidden]
        yield f"model.layers.{i}.input_layernorm.weight", [hidden]


def llama(seed=0, files=1, family="llama", bad=None, dtypes=(), folder=None, **size):
    """A checkpoint with so many safetensors files. bad: {tensor: bytes at its begin}; dtypes: {tensor: dtype}, of 2 bytes."""
    folder = folder or unique("llama")
    os.makedirs(folder)
    groups = [[] for _ in range(files)]
    for i, (name, shape) in enumerate(shapes(**size)):
        groups[i % files].append((name, shape))
    names = [f"model-{i + 1:05}-of-{files:05}.safetensors" if files > 1 else "model.safetensors" for i in range(files)]
    for file, group in zip(names, groups):
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, shape in group:
            raw = finite(shape[0] * (shape[1] if len(shape) > 1 else 1), f"{seed} {name}")
            if bad and name in bad:
                raw = bad[name] + raw[len(bad[name]):]
            header[name] = {"dtype": dict(dtypes).get(name, "BF16"), "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        write_safetensors(os.path.join(folder, file), header, data)
    if files > 1:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": {name: file for file, group in zip(names, groups) for name, _ in group}}, f)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": family, "seed": seed}, f)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        f.write(f"{{\"seed\": \"{seed}\"}}")
    return folder


def stepped(folder, seed, share=0.01):
    """A checkpoint like that one, with some elements changed, none of them to NaN."""
    out = unique("step")
    os.makedirs(out)
    r = random.Random(seed)
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            raw = bytearray(f.read())
        if name.endswith(".safetensors"):
            begin = 8 + struct.unpack("<Q", raw[:8])[0]
            for i in r.sample(range((len(raw) - begin) // 2), int((len(raw) - begin) // 2 * share)):
                raw[begin + 2 * i] ^= 1 + r.randrange(255)
        with open(os.path.join(out, name), "wb") as f:
            f.write(raw)
    return out


def split(raw):
    """(header, data) of a safetensors file."""
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def expected(folder, recipe="fp8-block128", *args):
    """{file: bytes} as the command makes them."""
    out = unique("derived")
    wsync("derive", "--quiet", "--recipe", recipe, *args, folder, out)
    files = {}
    for name in os.listdir(out):
        with open(os.path.join(out, name), "rb") as f:
            files[name] = f.read()
    return files


def read_all(mount, model, version):
    return {name: mount.read(model, version, name) for name in os.listdir(mount.file(model, version)) if name not in (".wsync", "tensors")}


def check(mount, version, folder, view=VIEW, *args):
    """What the mount shows is what the command makes, but for what each calls the source."""
    want, have = expected(folder, view.split("@")[1], *args), read_all(mount, view, version)
    assert sorted(want) == sorted(have)
    for name, raw in want.items():
        if not name.endswith(".safetensors"):
            assert have[name] == raw, name
            continue
        (a, data_a), (b, data_b) = split(raw), split(have[name])
        a["__metadata__"].pop("wsync.source")
        source = b["__metadata__"].pop("wsync.source")
        assert a == b and data_a == data_b, name
    return source


def digest(mount, model, version):
    return json.loads(mount.read(model, version, ".wsync/manifest.json"))["digest"]


def said_of(mount, version, model=VIEW):
    return mount.status(model)[f"version.{version}"]


def wait_view(mount, version, model=VIEW):
    wait_for(lambda: os.path.exists(mount.file(model)) and str(version) in os.listdir(mount.file(model)), f"{model}/{version}")


def pull(mount, version=1, model=VIEW):
    wait_view(mount, version, model)
    mount.write(f"pull {version}", model, "ctl")


def used(mount):
    return int(mount.status()["used_bytes"])
