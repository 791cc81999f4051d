# sanitizers: address thread
# timeout: 600, takes: 100
"""Quantised views that mounts make: a model MODEL@RECIPE beside MODEL, made of a version when it is asked for. What one is to be, `wsync derive` says."""
import json
import os
import random
import re
import signal
import struct
import subprocess
import threading
import time

import pytest

from adapters import lora
from proxy import Slow
from relay import Relay
from span import Span
from world import *

VIEW, CHANNEL = "actor@fp8-block128", "actor@fp8-channel"
LAYERS, HIDDEN = 2, 256
NAN, INFINITE = b"\xc0\x7f", b"\x80\x7f"


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


def size_of(folder):
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))


def here(mount, model, version=1):
    return sum(map(len, read_all(mount, model, version).values()))


def used(mount):
    return int(mount.status()["used_bytes"])


def times_made(mount, version=1):
    line = f"store ready model={VIEW} version={version} "  # which comes after the readers' bytes
    wait_for(lambda: line in mount.text(), "the line")
    return mount.text().count(line)


def fails(mount, version=1, model=VIEW):
    """Pulls in vain; returns last_error."""
    wait_view(mount, version, model)
    mount.refused(f"pull {version}", model, "ctl")
    return mount.text(model, "last_error")


@pytest.fixture
def agent():
    need_fuse()
    return Agent()


def test_a_mount_makes_a_view_that_equals_the_commands(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW};{CHANNEL}")
    wait_view(mount, 1)
    assert said_of(mount, 1).startswith("known "), "made before it is asked for"
    source = check(mount, 1, folder)
    assert source == digest(mount, "actor", 1)
    check(mount, 1, folder, CHANNEL)
    line = said_of(mount, 1)
    assert 'how="made of actor/1 by fp8-block128 in ' in line and line.startswith("ready "), line
    mount.write("verify 1", VIEW, "ctl")
    assert mount.read("actor", 1, "config.json") == open(f"{folder}/config.json", "rb").read()
    agent.publish("actor", 2, stepped(folder, 2))
    pull(mount, 2)
    assert "model.layers.0.mlp.up_proj.weight" in mount.text(VIEW, "2/.wsync/changed")


def test_each_recipe(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    recipes = [line.split()[0] for line in wsync("derive", "--list").stdout.splitlines()]
    mount = Mount(agent.url, f"derive={';'.join('actor@' + r for r in recipes)}")
    for r in recipes:
        wait_view(mount, 1, f"actor@{r}")
        check(mount, 1, folder, f"actor@{r}")


def test_what_is_kept_of_a_source_that_only_views_want(agent):
    """It makes room for others, and a reader of its own keeps it."""
    folder = llama()
    for v in (1, 2, 3):
        agent.publish("actor", v, folder if v == 1 else stepped(folder, v))
    one = size_of(folder)
    mount = Mount(agent.url, f"derive={VIEW},cache={int(one * 2.2)},delta-cache=0,keep=1")
    pull(mount, 2)
    pull(mount, 3)
    assert said_of(mount, 3).startswith("ready ")
    assert said_of(mount, 2, "actor").startswith("known "), "the source of a view that is made stays in the way"


def test_mounts_make_the_same_digest(agent):
    agent.publish("actor", 1, llama(files=3))
    mounts = [Mount(agent.url, f"derive={VIEW}"), Mount(f"unix:{agent.sock}", f"derive={VIEW},threads=1")]
    for m in mounts:
        pull(m)
    assert digest(mounts[0], VIEW, 1) == digest(mounts[1], VIEW, 1)


def test_an_agent_makes_the_same_digest():
    need_fuse()
    folder = llama(files=2)
    deriving, plain = Agent("--derive", VIEW), Agent()
    for a in (deriving, plain):
        a.publish("actor", 1, folder, "--run", "r")
    by_agent, by_mount = Mount(deriving.url), Mount(plain.url, f"derive={VIEW}")
    pull(by_agent)
    pull(by_mount)
    assert digest(by_agent, VIEW, 1) == digest(by_mount, VIEW, 1)
    assert read_all(by_agent, VIEW, 1) == read_all(by_mount, VIEW, 1)
    both = Mount(f"{plain.url},{deriving.url}", f"derive={VIEW}")
    wait_view(both, 1)
    wait_for(lambda: " sources=1" in said_of(both, 1), "the agent's view")
    pull(both)
    assert 'how="tcp full' in said_of(both, 1)  # it is there already
    for a in (deriving, plain):
        a.publish("actor", 2, stepped(folder, 2))
    pull(both, 2)  # whoever is first
    wait_for(lambda: " sources=1" in said_of(both, 2), "the agent's view")
    assert "error=" not in said_of(both, 2), said_of(both, 2)


def test_a_view_of_what_was_signed(agent):
    """A mount trusts what it made of a signed version itself, and nobody else does."""
    key = unique("key")
    wsync("key", "new", "--out", key, "--name", "trainer")
    folder = llama()
    signing = Agent("--sign-key", key)
    signing.publish("actor", 1, folder)
    port = free_port()
    mount = Mount(signing.url, f"derive={VIEW},verify-key={key}.pub,serve=127.0.0.1:{port},serve-insecure")
    wait_view(mount, 1)
    check(mount, 1, folder)
    leaf = Mount(f"http://127.0.0.1:{port}", f"verify-key={key}.pub")
    assert "sign" in fails(leaf)
    agent.publish("actor", 1, folder)  # unsigned
    assert "sign" in fails(Mount(agent.url, f"derive={VIEW},verify-key={key}.pub"))


def test_a_serving_mount_makes_it_for_its_leaves(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    port = free_port()
    rack = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure")
    leaves = [Mount(f"http://127.0.0.1:{port}") for _ in range(2)]
    threads = [threading.Thread(target=pull, args=(leaf,)) for leaf in leaves]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for leaf in leaves:
        check(leaf, 1, folder)
        assert digest(leaf, VIEW, 1) == digest(rack, VIEW, 1)
    assert times_made(rack) == 1
    # both make it: who has it made lists a digest, and is asked for it; who has not is waited for by nobody
    other = Mount(f"http://127.0.0.1:{port}", f"derive={VIEW}")
    wait_view(other, 1)
    wait_for(lambda: "sources=1" in said_of(other, 1), "what the serving mount lists")
    pull(other)
    assert 'how="tcp full' in said_of(other, 1), said_of(other, 1)
    agent.publish("actor", 2, stepped(folder, 2))
    wait_view(rack, 2)
    pull(other, 2)
    assert 'how="made of actor/2' in said_of(other, 2), said_of(other, 2)
    assert said_of(rack, 2).startswith("known ")


def rack_of(agent, options="", **size):
    """(a serving mount that makes the view and has version 1, the trainer's checkpoint)"""
    folder = llama(files=2, **size)
    agent.publish("actor", 1, folder, "--run", "a")
    rack = Relay(agent.url, f"derive={VIEW}{options}")
    pull(rack, 1)
    return rack, folder


def way_of(mount, version):
    return re.search(r' how="([^"]*)"', said_of(mount, version)).group(1)


def lists(rack, version):
    """The deltas to it: [(base, state)]."""
    return [(d["base"], d["state"]) for d in rack.get(f"/v1/{VIEW}/{version}/deltas")["deltas"]]


def said_of_deltas(mount):
    """Each delta that it made or gave up: (what, base, version)."""
    return [(what, int(a), int(b)) for what, a, b in re.findall(rf"store (delta made|no delta) model={VIEW} base=(\d+) version=(\d+) ", mount.text())]


def test_the_next_version_comes_by_a_delta_below_the_mount_that_makes_it(agent):
    rack, folder = rack_of(agent)
    middle = Relay(rack.url, DELTAS)
    leaf = Mount(middle.url, DELTAS)
    pull(leaf)
    for version in (2, 3):
        folder = stepped(folder, version, 0.001)
        agent.publish("actor", version, folder, "--run", "a")
        pull(middle, version)  # which passes a version on once it has a digest
        pull(leaf, version)
        for mount in (leaf, middle):
            assert way_of(mount, version).startswith("tcp delta from 1" if version == 2 else ("tcp delta from 2", "tcp chain of 2 from 1")), said_of(mount, version)
            check(mount, version, folder)
            assert digest(mount, VIEW, version) == digest(rack, VIEW, version)
    wait_for(lambda: len(said_of_deltas(rack)) == 2, "the deltas")
    assert said_of_deltas(rack) == [("delta made", 1, 2), ("delta made", 2, 3)]
    assert lists(rack, 3) == [(2, "whole"), (1, "whole")]
    # what is dropped and made once more has its delta already
    rack.write("drop 3", VIEW, "ctl")
    rack.write("pull 3", VIEW, "ctl")
    assert lists(rack, 3) == [(2, "whole"), (1, "whole")]
    late = Mount(rack.url, DELTAS)
    pull(late, 3)
    check(late, 3, folder)


def test_a_version_that_another_lineage_is_before_has_no_delta(agent):
    rack, folder = rack_of(agent)
    leaf = Mount(rack.url, DELTAS)
    pull(leaf)
    again = stepped(folder, 2, 0.001)
    agent.publish("actor", 2, again, "--run", "b", "--new-run")
    pull(leaf, 2)
    assert way_of(leaf, 2).startswith("tcp full"), said_of(leaf, 2)
    check(leaf, 2, again)
    assert lists(rack, 2) == []
    newer = stepped(again, 3, 0.001)
    agent.publish("actor", 3, newer, "--run", "b")
    pull(leaf, 3)
    assert way_of(leaf, 3).startswith("tcp delta from 2"), said_of(leaf, 3)
    check(leaf, 3, newer)
    wait_for(lambda: said_of_deltas(rack), "the delta")
    assert said_of_deltas(rack) == [("delta made", 2, 3)]


@pytest.mark.parametrize("options, serves", [("delta-cache=0", True), ("keep=2", False)])
def test_no_delta_is_made_where_none_is_kept_or_nobody_can_fetch_it(agent, options, serves):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    rack = (Relay if serves else Mount)(agent.url, f"derive={VIEW},{options}")
    pull(rack)
    newer = stepped(folder, 2, 0.001)
    agent.publish("actor", 2, newer)
    pull(rack, 2)
    if serves:
        leaf = Mount(rack.url, DELTAS)
        pull(leaf, 1)
        pull(leaf, 2)
        assert way_of(leaf, 2).startswith("tcp full"), said_of(leaf, 2)
        check(leaf, 2, newer)
        assert lists(rack, 2) == []
    rack.end()  # which waits for what was begun
    assert said_of_deltas(rack) == []


@pytest.mark.parametrize("options, share", [("", 0.9), ("delta-cache=1K", 0.001)])
def test_a_delta_that_is_too_large_is_given_up(agent, options, share):
    rack, folder = rack_of(agent, options and "," + options)
    leaf = Mount(rack.url, DELTAS)
    pull(leaf)
    newer = llama(seed=2, files=2) if share > 0.5 else stepped(folder, 2, share)
    agent.publish("actor", 2, newer, "--run", "a")
    pull(leaf, 2)
    check(leaf, 2, newer)
    wait_for(lambda: said_of_deltas(rack), "what becomes of the delta")
    assert said_of_deltas(rack) == [("no delta", 1, 2)]
    wait_for(lambda: not options or lists(rack, 2) == [], "the room that it took")


@pytest.mark.parametrize("dropped", [(1,), (2,), (2, 1)])
def test_versions_that_are_dropped_while_they_are_compared(agent, dropped):
    """The base, the target, both: where they are dropped in time, the delta is given up. Nothing is lost in either case."""
    rack, folder = rack_of(agent, ",threads=1", hidden=1024)
    leaf = Mount(rack.url, DELTAS)
    pull(leaf)
    newer = stepped(folder, 2, 0.01)
    agent.publish("actor", 2, newer, "--run", "a")
    pull(rack, 2)
    for version in dropped:
        rack.write(f"drop {version}", VIEW, "ctl")
    pull(leaf, 2)
    check(leaf, 2, newer)
    wait_for(lambda: said_of_deltas(rack), "what becomes of the delta")
    for version in (1, 2):
        for model in (VIEW, "actor"):
            if said_of(rack, version, model).startswith("ready "):
                rack.write(f"drop {version}", model, "ctl")
    wait_for(lambda: used(rack) == 0, "the memory of all versions")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_that_ends_while_it_compares(agent, how):
    rack, folder = rack_of(agent, ",threads=1", hidden=1024)
    leaf = Mount(f"{rack.url},{agent.url}", f"derive={VIEW},{DELTAS}")
    pull(leaf)
    newer = stepped(folder, 2, 0.01)
    agent.publish("actor", 2, newer, "--run", "a")
    pull(rack, 2)
    rack.process.send_signal(how)
    rack.process.wait(10 * SLOW)
    rack.end()
    pull(leaf, 2)
    check(leaf, 2, newer)


def test_a_leaf_waits_for_a_view_as_long_as_it_moves(agent):
    """Longer than its deadline, though nothing of the view comes before all of it is made."""
    folder = llama(hidden=512)
    agent.publish("actor", 1, folder)
    port, slow = free_port(), Slow(agent.port, size_of(folder) / 38)
    rack = Mount(slow.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure,streams=1")
    leaf = Mount(f"http://127.0.0.1:{port}", "deadline=24")
    wait_view(leaf, 1)
    began = time.monotonic()
    check(leaf, 1, folder)
    assert time.monotonic() - began > 30, "the source was not slow"
    assert used(rack) > size_of(folder)


def test_a_trainer_that_spans_nodes():
    sidecars = unique("sidecars")
    os.makedirs(sidecars)
    with open(f"{sidecars}/config.json", "w") as f:
        json.dump({"model_type": "llama"}, f)
    span = Span(SIDECARS=sidecars)
    mount = Mount(span.urls, f"derive={CHANNEL}")
    for _ in range(2):
        version = span.publish("step 0.01") if span.newest else span.publish()
        pull(mount, version, CHANNEL)
        folder = unique("whole")
        os.makedirs(folder)
        for name in ("model.safetensors", "config.json"):
            with open(f"{folder}/{name}", "wb") as f:
                f.write(span.reference.read("actor", version, name))
        check(mount, version, folder, CHANNEL)


def test_engines_are_switched_to_views_and_not_between_a_view_and_its_source(agent):
    folder = llama()
    for v in (1, 2):
        agent.publish("actor", v, folder if v == 1 else stepped(folder, v))
    mount = Mount(agent.url, f"derive={VIEW}")
    mount.wait_version(VIEW, 2)
    engine = Engine(mount.file(VIEW, 1))
    mount.write(f"engine add e1 sglang {engine.url}", VIEW, "ctl")
    mount.write("2", VIEW, "version")
    assert engine.serves() == "2" and engine.checksum() == Engine(mount.file(VIEW, 2)).checksum()
    mount.write("1", VIEW, "version")
    assert os.readlink(mount.file(VIEW, "current")) == "1"
    # an engine of the source among those of the view, and the other way round
    other = Mount(agent.url, f"derive={VIEW}")
    for model, path, wrong in ((VIEW, other.file("actor", 1), "actor"), ("actor", other.file(VIEW, 1), VIEW)):
        other.wait_version(model, 2)
        e = Engine(path)
        other.write(f"engine add e1 sglang {e.url}", model, "ctl")
        before = e.checksum()
        assert other.refused("2", model, "version") == "EPROTO"
        assert f"what engine e1 serves, {wrong} version 1" in other.text(model, "last_error")
        assert e.checksum() == before and e.serves() == "default"  # it was not told to load


def test_follow_makes_each_new_version(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    wait_view(mount, 1)
    engine = Engine(mount.file(VIEW, 1))
    mount.write(f"engine add e1 sglang {engine.url}", VIEW, "ctl")
    mount.write("follow-published", VIEW, "policy")
    agent.publish("actor", 2, stepped(folder, 2))
    wait_for(lambda: engine.serves() == "2", "the engine to serve 2")


Q = "model.layers.0.self_attn.q_proj.weight"
UNFIT = {  # what is wrong: (checkpoint, options, what last_error says)
    "NaN": (dict(bad={Q: NAN}), "", f'"{Q}": element [0, 0] is NaN'),
    "infinite": (dict(bad={Q: INFINITE}), "", f'"{Q}": element [0, 0] is'),
    "dtype": (dict(dtypes={Q: "U16"}), "", Q),
    "K": (dict(hidden=192), "", ".weight"),
    "family": (dict(family="test"), "", "any-family"),
    "pattern": ({}, ",derive-ignore=re:.*nothing.*", "re:.*nothing.*"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_cannot_be_made_is_refused_by_name(agent, what):
    size, options, says = UNFIT[what]
    SIZES["U16"] = 2
    agent.publish("actor", 1, llama(**size))
    mount = Mount(agent.url, f"derive={VIEW}{options}")
    told = fails(mount)
    assert says in told and f"{VIEW}/1 cannot be made of actor" in told, told
    assert said_of(mount, 1).startswith("failed ") and says.replace('"', "'") in said_of(mount, 1), said_of(mount, 1)
    assert mount.read("actor", 1, "model.safetensors") and said_of(mount, 1, "actor").startswith("ready ")
    if what == "NaN":  # the next version is none the worse for it
        agent.publish("actor", 2, llama(seed=2))
        pull(mount, 2)


def test_a_version_without_a_configuration(agent):
    folder = llama()
    os.remove(f"{folder}/config.json")
    agent.publish("actor", 1, folder)
    assert f"{VIEW}/1 cannot be made of actor: it has no config.json" in fails(Mount(agent.url, f"derive={VIEW}"))


def test_an_adapter_has_no_view(agent):
    agent.publish("actor", 1, lora())
    for options in ("", ",derive-family=any"):
        with scope():
            told = fails(Mount(agent.url, f"derive={VIEW}{options}"))
            assert "it is an adapter" in told and "config.json" not in told, told


def test_patterns_and_families(agent):
    folder = llama(family="test")
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW};{CHANNEL},derive-family=any,derive-ignore=re:.*self_attn.*,derive-ignore={CHANNEL}=model.layers.1.mlp.down_proj")
    pull(mount)
    check(mount, 1, folder, VIEW, "--any-family", "-i", "re:.*self_attn.*")
    check(mount, 1, folder, CHANNEL, "--any-family", "-i", "re:.*self_attn.*", "-i", "model.layers.1.mlp.down_proj")


@pytest.mark.parametrize("options, says", [
    ("derive=actor", "write MODEL@RECIPE"),
    ("derive=actor@int3", "fp8-block128"),
    ("derive=actor@0.2", "write MODEL@RECIPE"),
    (f"derive={VIEW};{VIEW}", "twice"),
    (f"derive={VIEW},copies=1", "derive and copies=1 exclude each other"),
    (f"copies=auto,derive={VIEW}", "derive and copies=auto exclude each other"),
    ("derive-ignore=re:x", "derive="),
    (f"derive={VIEW},derive-ignore={CHANNEL}=re:x", CHANNEL),
    (f"derive={VIEW},derive-ignore=re:(", "no regular expression"),
    (f"derive={VIEW},derive-ignore={VIEW}=", "names no layer"),
    (f"derive={VIEW},derive-family=all", "known|any"),
])
def test_options_that_make_no_sense(options, says):
    need_fuse()
    folder = unique("mnt")
    os.makedirs(folder)
    r = wsync("mount", "-f", "-o", options, "http://127.0.0.1:1", folder, check=False)
    assert r.returncode and says in r.stderr, r.stderr


def test_memory_that_does_not_fit(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    one = size_of(folder)
    mount = Mount(agent.url, f"derive={VIEW},cache={int(one * 1.2)}")
    told = fails(mount)
    assert f"{VIEW}/1 needs" in told and "actor/1" in told and "cache=" in told, told
    assert mount.read("actor", 1, "config.json")
    assert used(mount) == here(mount, "actor")  # nothing of the view is left


def test_what_a_view_takes_of_the_cache(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    view = here(mount, VIEW)
    assert used(mount) == here(mount, "actor") + view
    mount.write("drop 1", "actor", "ctl")
    wait_for(lambda: used(mount) == view, "the source's memory")
    mount.write("drop 1", VIEW, "ctl")
    wait_for(lambda: used(mount) == 0, "the view's memory")


def test_what_is_gone_at_the_source(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    source = digest(mount, VIEW, 1)
    mount.write("drop 1", "actor", "ctl")
    for v in (2, 3, 4):
        agent.publish("actor", v, stepped(folder, v))
    wait_view(mount, 4)
    wait_for(lambda: sorted(n for n in os.listdir(mount.file(VIEW)) if n.isdigit()) == ["1", "3", "4"], "versions of the view")  # 1 is here
    assert digest(mount, VIEW, 1) == source
    mount.write("verify 1", VIEW, "ctl")
    mount.write("drop 1", VIEW, "ctl")
    wait_for(lambda: not os.path.exists(mount.file(VIEW, 1)), "the view to go")
    agent.end()
    wait_for(lambda: "answers" in mount.text() and "does not answer" in mount.text(), "the agent's end")
    pull(mount, 4, "actor") if said_of(mount, 4, "actor").startswith("ready") else None
    mount.write("pin 3", VIEW, "ctl")  # of what is known, nothing is lost
    assert "3" in os.listdir(mount.file(VIEW))


def test_one_that_was_dropped_comes_again(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    before = digest(mount, VIEW, 1)
    mount.write("drop 1", VIEW, "ctl")
    assert said_of(mount, 1).startswith("known ")
    pull(mount)
    assert digest(mount, VIEW, 1) == before
    mount.write("pin 1", VIEW, "ctl")
    assert mount.refused("drop 1", VIEW, "ctl") == "EBUSY"


def test_a_resumed_run_takes_its_views_with_it(agent):
    folder = llama()
    agent.publish("actor", 1, folder, "--run", "a")
    agent.publish("actor", 2, folder, "--run", "a")
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount, 2)
    again = stepped(folder, 5)
    agent.publish("actor", 2, again, "--run", "b", "--new-run")
    wait_for(lambda: "2@a" in os.listdir(mount.file(VIEW)), "the abandoned version")
    check(mount, 2, again)
    assert digest(mount, VIEW, "2@a") != digest(mount, VIEW, 2)


def test_sources_that_make_another_view_disagree(agent):
    agent.publish("actor", 1, llama())
    port = free_port()
    one = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure,derive-ignore=re:.*layers.1.*")
    mount = Mount(f"{agent.url},http://127.0.0.1:{port}", f"derive={VIEW}")
    pull(mount)
    pull(one)
    wait_for(lambda: " lists it with " in said_of(mount, 1), "the sources to disagree")
    assert digest(mount, VIEW, 1) in said_of(mount, 1)


def test_one_that_its_source_had_made_and_has_no_more(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    port = free_port()
    rack = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure")
    mount = Mount(f"{agent.url},http://127.0.0.1:{port}", f"derive={VIEW},deadline=2")
    pull(rack)
    wait_for(lambda: " sources=1" in said_of(mount, 1), "the view of the other mount")
    suspend(rack.pid)  # so the mount does not hear of its end before it asks
    at_end(os.kill, rack.pid, signal.SIGCONT)
    pull(mount)
    assert 'how="made of actor/1' in said_of(mount, 1), said_of(mount, 1)
    check(mount, 1, folder)


def busy(agent, options="", **size):
    """A mount in which a derivation takes as long as it can."""
    agent.publish("actor", 1, llama(layers=2, hidden=1024, **size))
    os.environ["WSYNC_QUANT"] = "portable"
    at_end(os.environ.pop, "WSYNC_QUANT")
    return Mount(agent.url, f"derive={VIEW},threads=1{options}")


def ask(mount, version=1):
    """Has it made, and does not wait for that."""
    wait_view(mount, version)
    p = subprocess.Popen(["cat", mount.file(VIEW, version, "config.json")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    at_end(p.wait)
    at_end(p.kill)
    return p


def is_deriving(mount):
    return "store ready model=actor version=1" in mount.text()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_that_ends_while_it_makes_one(agent, how):
    mount = busy(agent)
    ask(mount)
    wait_for(lambda: is_deriving(mount), "the source")
    began = time.monotonic()
    mount.process.send_signal(how)
    mount.process.wait(10 * SLOW)
    assert time.monotonic() - began < 5 * SLOW
    mount.end()
    again = Mount(agent.url, f"derive={VIEW}", path=None)
    pull(again)
    again.write("verify 1", VIEW, "ctl")


def test_one_that_is_dropped_while_it_is_made(agent):
    mount = busy(agent)
    for _ in range(3):
        reader = ask(mount)
        wait_for(lambda: not said_of(mount, 1).startswith("known "), "the derivation")
        mount.write("drop 1", VIEW, "ctl")
        reader.wait(20 * SLOW)  # the kernel opens it once more, and may find the next one
        if not said_of(mount, 1).startswith("known "):
            mount.write("drop 1", VIEW, "ctl")
    pull(mount)
    mount.write("verify 1", VIEW, "ctl")
    mount.write("drop 1", "actor", "ctl")  # nothing has it retained
    assert said_of(mount, 1, "actor").startswith("known ")
    mount.write("verify 1", VIEW, "ctl")


def test_a_source_that_is_dropped_before_it_has_come(agent):
    mount = busy(agent)
    reader = ask(mount)
    wait_for(lambda: not said_of(mount, 1).startswith("known "), "the derivation")
    mount.write("drop 1", "actor", "ctl")
    reader.wait(20 * SLOW)
    pull(mount)
    mount.write("verify 1", VIEW, "ctl")


def test_many_who_ask_at_once_have_it_made_once(agent):
    mount = busy(agent)
    readers = [ask(mount) for _ in range(8)]
    for r in readers:
        out, _ = r.communicate(timeout=30 * SLOW)
        assert b"quantization_config" in out
    assert times_made(mount) == 1


def test_deltas_of_the_source_while_views_are_made():
    need_fuse()
    agent = Agent()
    folder = llama(layers=2, hidden=512)
    mount = Mount(agent.url, f"derive={VIEW},{DELTAS}")
    for v in range(1, 5):
        agent.publish("actor", v, folder)
        pull(mount, v)
        check(mount, v, folder)
        folder = stepped(folder, v, 0.001)


def test_a_model_that_is_removed_takes_its_views_with_it(agent):
    agent.publish("actor", 1, llama())
    mount = Mount(agent.url, f"derive={VIEW}")
    wait_view(mount, 1)
    mount.write("remove actor", "ctl")
    wait_for(lambda: not os.path.exists(mount.file(VIEW, 1)), "the view to go")


def test_reads_by_links(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW},reads=link")
    wait_view(mount, 1)
    check(mount, 1, folder)


def test_settings_survive(agent):
    agent.publish("actor", 1, llama())
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    mount.write("pin 1", VIEW, "ctl")
    path = mount.path
    mount.end()
    mount = Mount(agent.url, f"derive={VIEW}", path=path)
    wait_view(mount, 1)
    wait_for(lambda: " pinned" in said_of(mount, 1), "the pin")
