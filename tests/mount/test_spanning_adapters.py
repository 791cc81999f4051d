# beside others
# timeout: 300, takes: 40
# sanitizers: address
"""LoRA adapters of a trainer that spans nodes: each agent has a part, and mounts, relays and engines have the adapter."""
import os

from adapters import CONFIG, WEIGHTS, adapter, listed
from span import Span
from world import *

RANK, LORA = 8, "actor-lora"  # those of tests/tools/trainer.c
LAYERS, HIDDEN, Q, V = 28, 64, 130, 1024


def base(hidden):
    "{name: (dtype, shape)} of the layers that it is added to"
    return {f"model.layers.{i}.self_attn.{p}_proj.weight": ("BF16", [rows, hidden]) for i in range(LAYERS) for p, rows in (("q", Q), ("v", V))}


class Adapters(Span):
    """.config: what the ranks publish as adapter_config.json."""

    def __init__(self, *args, **more):
        path = os.path.join(adapter(shapes={}, r=RANK, base_model_name_or_path=None), CONFIG)
        with open(path, "rb") as f:
            self.config = f.read()
        super().__init__(*args, model=LORA, kind="adapter", ADAPTER_CONFIG=path, **more)

    def same(self, mount, version):
        "the mount shows the adapter that a rank alone published"
        mount.wait_version(LORA, version)
        assert mount.read(LORA, version, WEIGHTS) == self.bytes[version]
        assert mount.read(LORA, version, CONFIG) == self.config
        assert sorted(set(os.listdir(mount.file(LORA, version))) - {"tensors", ".wsync"}) == [CONFIG, WEIGHTS]

    def base(self, hidden=HIDDEN):
        "the model that it is an adapter of, on the first of its agents"
        folder = checkpoint(base(hidden), seed=1)
        self.agents[0].publish("actor", 1, folder)
        return folder


def test_shown():
    "the parts are one file, and the config is beside it, at each version: by whole pulls, by deltas, from a relay and on three nodes"
    for own in (((), ()), ((), (), ())):
        span = Adapters(own=own)
        port = free_port()
        mounts = [Mount(span.urls), Mount(span.urls, f"{DELTAS},serve=127.0.0.1:{port}"), Mount(f"http://127.0.0.1:{port}")]
        for i in range(3):
            version = span.step() if i else span.publish()
            for mount in mounts:
                span.same(mount, version)
        wsync("verify", mounts[0].file(LORA, 3))
        span.end()


def test_engines():
    "engines of both kinds load each version beside their target, by a switch, by a release, and the previous one again"
    span = Adapters()
    folder = span.base()
    span.publish()
    mount = Mount(span.urls)
    for model in ("actor", LORA):
        mount.wait_version(model, 1)
    engines = [Engine(folder, api=api) for api in ("vllm", "sglang")]
    for i, e in enumerate(engines):
        mount.write(f"engine add e{i} {e.api} {e.url} adapters={LORA}", "actor/ctl")
    mount.write("1", LORA, "version")
    assert [listed(e) for e in engines] == [[f"{LORA}@1"]] * 2
    mount.write("follow-released", LORA, "policy")
    span.step()
    said = wsync("release", "--agent", span.agents[0].url, "--wait", "60", LORA, "2").stdout
    assert "1 mount, 2 engines serve it" in said, said
    assert [listed(e) for e in engines] == [[f"{LORA}@1", f"{LORA}@2"]] * 2
    assert " 2 parts: tcp delta from 1" in mount.text(LORA, "events").replace('"', " ")
    mount.write("manual", LORA, "policy")
    mount.write("previous", LORA, "version")
    assert mount.text(LORA, "version") == "1\n" and [mount.engines(LORA)[f"e{i}"].split()[1] for i in range(2)] == [f"{LORA}@1"] * 2


def test_other_base():
    "an adapter of another base is refused by its shapes, which are those of all parts together, and no engine is told"
    span = Adapters()
    folder = span.base(2 * HIDDEN)
    span.publish()
    mount = Mount(span.urls)
    for model in ("actor", LORA):
        mount.wait_version(model, 1)
    mount.write("1", "actor", "version")
    engine = Engine(folder, api="vllm")
    mount.write(f"engine add e1 vllm {engine.url} adapters={LORA}", "actor/ctl")
    assert mount.refused("1", LORA, "version") == "EPROTO"
    why = mount.text(LORA, "last_error")
    assert "it was trained on another base" in why and "is for 64 inputs" in why and "has 128" in why, why
    assert listed(engine) == []
