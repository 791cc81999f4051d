# sanitizers: address
"""wsync derive: folders in, folders out; what is refused leaves nothing behind."""
import json
import os
import signal
import subprocess

import ml_dtypes
import numpy as np

from adapters import adapter
from world import SLOW, WSYNC, tensors_of, unique, wait_for, write_safetensors, wsync

P = "model.layers.0."
SHAPES = {"model.embed_tokens.weight": (64, 256), P + "self_attn.q_proj.weight": (256, 256), P + "self_attn.k_proj.weight": (128, 256),
          P + "self_attn.v_proj.weight": (128, 256), P + "self_attn.o_proj.weight": (256, 192), "model.norm.weight": (256,)}
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def weights(seed=1):
    random = np.random.default_rng(seed)
    return {name: (random.standard_normal(shape) * 0.02).astype(ml_dtypes.bfloat16) for name, shape in SHAPES.items()}


def source(all_weights, **config):
    folder = unique("source")
    os.makedirs(folder)
    places = {name: FILES[i % 2] for i, name in enumerate(all_weights)}
    for file in FILES:
        header, data, at = {}, b"", 0
        for name, w in all_weights.items():
            if places[name] == file:
                header[name] = {"dtype": "BF16", "shape": list(w.shape), "data_offsets": [at, at + w.nbytes]}
                data, at = data + w.tobytes(), at + w.nbytes
        write_safetensors(os.path.join(folder, file), header, data)
    for name, value in {"model.safetensors.index.json": {"weight_map": places}, "config.json": {"model_type": "qwen3", **config},
                        "tokenizer.json": {"a": 1}}.items():
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f)
    return folder


def everything(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}


def derive(folder, *args, target=None, recipe="fp8-channel", **kw):
    target = unique("target") if target is None else target
    return target, wsync("derive", "--recipe", recipe, *args, folder, target, **kw)


def test_a_folder():
    "codes and scales are those of numpy, other tensors and sidecars the source's, texts name what is new"
    w = weights()
    folder = source(w)
    target, done = derive(folder)
    assert "4 of 6 tensors quantised to fp8-channel" in done.stdout, done.stdout
    assert set(os.listdir(target)) == set(os.listdir(folder))
    got = {}
    for file in FILES:
        got.update(tensors_of(os.path.join(target, file)))
    for name, value in w.items():
        if "proj" not in name:
            assert got[name][2] == value.tobytes(), name
            continue
        x = value.astype(np.float32)
        scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(448)
        assert got[name][:2] == ("F8_E4M3", list(value.shape)), got[name][:2]
        assert got[name][2] == (x / scale).astype(ml_dtypes.float8_e4m3fn).tobytes(), name
        assert got[name + "_scale"][2] == scale.tobytes(), name
    made = everything(target)
    assert made["tokenizer.json"] == everything(folder)["tokenizer.json"]
    config = json.loads(made["config.json"])
    assert config["model_type"] == "qwen3" and config["quantization_config"]["ignore"] == ["lm_head", "model.embed_tokens"]
    index = json.loads(made["model.safetensors.index.json"])
    assert set(index["weight_map"]) == set(got)
    assert wsync("inspect", "--json", target).stdout


def test_the_same_bytes():
    "threads, code for vectors and time change nothing; another source has another name in the files"
    folder = source(weights())
    first = everything(derive(folder, "--threads", "1")[0])
    env = dict(os.environ, WSYNC_QUANT="portable")
    assert first == everything(derive(folder, "--threads", "3", env=env)[0])
    other = everything(derive(source(weights(2)))[0])
    for file in FILES:
        a, b = (json.loads(x[file][8:8 + int.from_bytes(x[file][:8], "little")])["__metadata__"] for x in (first, other))
        assert a["wsync.recipe"] == "fp8-channel" and a["wsync.derive"] == "1" and len(a["wsync.source"]) == 16
        assert a["wsync.source"] != b["wsync.source"]


def test_names_of_a_folder():
    "an empty target is taken, one that is not is left as it is; a name may end with slashes"
    folder = source(weights())
    target = unique("target")
    os.makedirs(target)
    derive(folder, target=target + "//")
    assert FILES[0] in os.listdir(target)
    before = everything(target)
    done = derive(folder, target=target, check=False)[1]
    assert done.returncode == 1 and "not empty" in done.stderr, done.stderr
    assert everything(target) == before


def refused(folder, *args, says, code=1, **kw):
    target, done = derive(folder, *args, check=False, **kw)
    assert done.returncode == code and says in done.stderr, (done.returncode, done.stderr)
    beside = os.path.dirname(target)
    assert not os.path.exists(target) and not [n for n in os.listdir(beside) if os.path.basename(target) in n], os.listdir(beside)


def test_refused():
    "with a sentence, and nothing is left of the target"
    w = weights()
    folder = source(w)
    refused(folder, recipe="fp3", says='no recipe "fp3"; there are: fp8-block128', code=2)
    refused(folder, "--ignore", "re:nothing", says="ignore=re:nothing matches none")
    refused(folder, "--ignore", P + "self_attn.k_proj", says="engines make one layer of both")
    refused(source(w, model_type="strange"), says='model type "strange"')
    refused(source(w, quantization_config={}), says="quantised already")
    w[P + "self_attn.v_proj.weight"][100, 7] = np.nan
    refused(source(w), says=f'"{P}self_attn.v_proj.weight": element [100, 7] is NaN')
    os.unlink(os.path.join(folder, "config.json"))
    refused(folder, says="no config.json")
    refused(adapter(), says="is an adapter")


def test_targets_that_cannot_be_replaced():
    "are refused before the work, of which nothing is left"
    folder, home = source(weights()), unique("home")
    os.makedirs(home + "/empty")
    for link, to in (("link", "empty"), ("dangling", "nowhere")):
        os.symlink(to, f"{home}/{link}")
    before = sorted(os.listdir(home))
    for name, says in (("link", "is a link"), ("link/", "is a link"), ("dangling", "is a link"), ("empty/.", "name the folder itself"), ("", "is empty")):
        _, done = derive(folder, target=name and f"{home}/{name}", check=False, cwd=home)
        assert done.returncode == 1 and says in done.stderr, done
        assert sorted(os.listdir(home)) == before and os.listdir(home + "/empty") == []
    _, done = derive(folder, target="/proc", check=False)
    assert done.returncode == 1 and "is a mount point" in done.stderr, done
    derive(folder, target=home + "/empty/")
    assert everything(home + "/empty")


def test_ended_by_a_signal():
    "nothing is left, neither of the target nor beside it"
    shape = (2048, 16384)
    w = {P + "self_attn.o_proj.weight": np.full(shape, 0.02, ml_dtypes.bfloat16), P + "mlp.down_proj.weight": np.full(shape, 0.03, ml_dtypes.bfloat16)}
    folder = source(w)
    for sig in (signal.SIGINT, signal.SIGTERM):
        home = unique("home")
        os.makedirs(home)
        p = subprocess.Popen([WSYNC, "derive", "-t", "1", "-r", "int4-g128", folder, home + "/target"], stderr=subprocess.PIPE, text=True)
        wait_for(lambda h=home: os.listdir(h), "the temporary folder")
        p.send_signal(sig)
        said = p.communicate(timeout=60 * SLOW)[1]
        assert p.returncode == 1 and "ended by a signal" in said, (p.returncode, said)
        assert os.listdir(home) == []


def test_list():
    "the recipes, each with whose arithmetic it is"
    lines = wsync("derive", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines][:2] == ["fp8-block128", "fp8-block128-ue8m0"] and all(len(line.split()) > 1 for line in lines)
