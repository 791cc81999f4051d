# beside others
# sanitizers: address
# timeout: 600, takes: 60
"""Quantised views that an agent makes: MODEL@RECIPE beside MODEL, for mounts, deltas, releases, engines and archives like any model."""
import re
import signal
import subprocess

import pytest

from adapters import lora
from clients import Http
from span import Span
from stores import BUCKET, KEY, SECRET, Meddler, Moto
from world import *

VIEW = "actor@fp8-block128"
HIDDEN, DEEP = 256, 1024


def finite(n, generator):
    """n weights of bf16, none of them an infinity or NaN, also after step()."""
    data = bytearray(generator.randbytes(2 * n))
    data[1::2] = bytes(b & 0x80 | 0x3A + (b & 3) for b in data[1::2])
    return bytes(data)


def shapes(layers, hidden=HIDDEN):
    """Tensors as Qwen3 calls them."""
    out = {"model.embed_tokens.weight": [512, hidden], "model.norm.weight": [hidden], "lm_head.weight": [512, hidden]}
    for i in range(layers):
        at = f"model.layers.{i}."
        out |= {at + f"self_attn.{n}_proj.weight": [hidden, hidden] for n in "qkvo"}
        out |= {at + f"mlp.{n}_proj.weight": [hidden, hidden] for n in ("gate", "up", "down")}
        out |= {at + f"{n}.weight": [hidden] for n in ("input_layernorm", "post_attention_layernorm")}
    return out


def write(folder, tensors, config=None, shards=1):
    """tensors: {name: (dtype, shape, bytes)}."""
    os.makedirs(folder, exist_ok=True)
    names = sorted(tensors)
    files = {f"model-{i + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors": names[i::shards] for i in range(shards)}
    for file, inside in files.items():
        header, end = {"__metadata__": {"format": "pt"}}, 0
        for name in inside:
            dtype, shape, data = tensors[name]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
            end += len(data)
        write_safetensors(f"{folder}/{file}", header, b"".join(tensors[n][2] for n in inside))
    if shards > 1:
        with open(folder + "/model.safetensors.index.json", "w") as f:
            json.dump({"metadata": {}, "weight_map": {n: f for f, inside in files.items() for n in inside}}, f)
    with open(folder + "/config.json", "w") as f:
        json.dump({"model_type": "qwen3", "hidden_size": HIDDEN} if config is None else config, f)
    with open(folder + "/tokenizer.json", "w") as f:
        f.write('{"of": "the model"}')
    return folder


def weights(seed, layers=2, hidden=HIDDEN):
    generator = random.Random(seed)
    tensors = {}
    for name, shape in shapes(layers, hidden).items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = ("BF16", shape, finite(n, generator))
    return tensors


def qwen(seed, shards=1, config=None, **kw):
    return write(unique("qwen"), weights(seed, **kw), config, shards)


def changed(folder, name, data, shards=1):
    """The checkpoint with other bytes of one tensor."""
    tensors = tensors_of(folder + "/model.safetensors")
    dtype, shape, _ = tensors[name]
    return write(unique("qwen"), tensors | {name: (dtype, shape, data)})


def derived(folder, recipe="fp8-block128", *args):
    """What `wsync derive` makes of the folder."""
    out = unique("derived")
    wsync("derive", "--recipe", recipe, *args, folder, out)
    return out


def bytes_of(path):
    with open(path, "rb") as f:
        return f.read()


def metadata_of(raw):
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])["__metadata__"]


def same(mount, version, want, view=VIEW):
    """Asserts that the mounted view has the derived folder's files: tensors at the same order and bytes, all else byte by byte."""
    mount.wait_version(view, version)
    assert sorted(n for n in os.listdir(mount.file(view, version)) if n not in ("tensors", ".wsync")) == sorted(os.listdir(want))
    for name in os.listdir(want):
        if not name.endswith(".safetensors"):
            assert mount.read(view, version, name) == bytes_of(f"{want}/{name}"), name
            continue
        raw = mount.read(view, version, name)
        assert tensors_of(mount.file(view, version, name)) == tensors_of(f"{want}/{name}"), name
        ours, theirs = metadata_of(raw), metadata_of(bytes_of(f"{want}/{name}"))
        assert {k: v for k, v in ours.items() if k != "wsync.source"} == {k: v for k, v in theirs.items() if k != "wsync.source"}, ours


class Trainer:
    def __init__(self, *args, derive=(VIEW,), **kw):
        need_fuse()
        self.args = [a for view in derive for a in ("--derive", view)] + list(args)
        self.agent = Agent(*self.args, **kw)
        self.folders, self.derived = {}, {}

    def publish(self, version, folder, *args, wait=True, view=VIEW):
        self.folders[version] = folder
        self.agent.publish("actor", version, folder, *args)
        if wait:
            self.made(version, view)
        return folder

    def listed(self, view=VIEW):
        found = [m for m in self.agent.get("/v1/models").get("views", []) if m["name"] == view]
        return found[0] if found else {"versions": []}

    def made(self, version, view=VIEW):
        wait_for(lambda: version in [v["version"] for v in self.listed(view)["versions"]] or not self.agent.alive(), f"{view}/{version}\n{self.agent.text()}")

    def status(self, view=VIEW):
        found = [m for m in self.agent.get("/v1/status")["models"] if m["name"] == view]
        return found[0]["view"] if found else None

    def failed(self, n=1, view=VIEW):
        """Waits for so many failures; why the last one failed."""
        wait_for(lambda: (self.status(view) or {"failed": 0})["failed"] >= n, f"a failure\n{self.agent.text()}")
        return self.status(view)["why"]

    def metrics(self):
        with urllib.request.urlopen(self.agent.url + "/metrics", timeout=20) as r:
            return r.read().decode()

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.metrics(), re.M).group(1))

    def is_idle(self):
        """Has nobody a lease of a slot? One that is taken from its readers is made anew."""
        return not re.search(r"^wsync_agent_leases\{.*\} [^0]", self.metrics(), re.M)

    def restart(self, *args, kill=True):
        self.agent.kill() if kill else self.agent.end()
        self.agent = Agent(*self.args, *args, port=self.agent.port, sock=self.agent.sock)


def test_view():
    "a view has its source's numbers and what wsync derive makes of each version; a step travels as a delta, and verify agrees"
    trainer = Trainer()
    first = trainer.publish(1, qwen(1))
    mount = Mount(trainer.agent.url, DELTAS)
    same(mount, 1, derived(first))
    mount.wait_version("actor", 1)
    assert tensors_of(mount.file("actor", 1, "model.safetensors")) == tensors_of(first + "/model.safetensors")
    source = trainer.agent.get("/v1/models")["models"]
    assert [m["name"] for m in source] == ["actor"] and trainer.listed()["run"] == source[0]["run"]
    assert metadata_of(mount.read(VIEW, 1, "model.safetensors"))["wsync.source"] == source[0]["digest"]
    second = trainer.publish(2, step(first, 2, share=0.002))
    wait_for(lambda: deltas(trainer, 2), "the delta")
    mount.write("pull 2", f"{VIEW}/ctl")
    same(mount, 2, derived(second))
    line = mount.status(VIEW)["version.2"]
    assert ' how="tcp delta from 1' in line, line
    for version in (1, 2):
        mount.write(f"verify {version}", f"{VIEW}/ctl")
        wsync("verify", "--mount", mount.path, VIEW, version)
    assert trainer.status() | {"seconds": 0} == {"source": "actor", "recipe": "fp8-block128", "made": 2, "failed": 0, "given_up": 0, "seconds": 0,
                                                "why": ""}, trainer.status()
    assert trainer.metric(f'wsync_agent_views_total{{model="{VIEW}",result="made"}}') == 2
    # bytes: codes are half of a bf16 weight, scales a 32768th; what is not quantised stays
    sizes = [m["versions"][-1]["bytes"] for m in (trainer.listed(), *trainer.agent.get("/v1/models")["models"])]
    assert sizes[0] < 0.7 * sizes[1], sizes


def deltas(trainer, version, view=VIEW):
    return [d for d in trainer.agent.get(f"/v1/{view}/{version}/manifest")["deltas"] if d["state"] == "whole"]


@pytest.mark.parametrize("recipe", [line.split()[0] for line in wsync("derive", "--list").stdout.splitlines()])
def test_recipes(recipe):
    "several files and an index, by each recipe; a new run, too"
    view = f"actor@{recipe}"
    trainer = Trainer(derive=(view,))
    folder = trainer.publish(1, qwen(3, shards=3), view=view)
    mount = Mount(trainer.agent.url)
    same(mount, 1, derived(folder, recipe), view)
    again = trainer.publish(1, qwen(4, shards=3), "--new-run", wait=False)
    wait_for(lambda: trainer.listed(view)["run"] == trainer.agent.get("/v1/models")["models"][0]["run"], "the new run")
    wait_for(lambda: len(os.listdir(mount.file(view))) and any("@" in n for n in os.listdir(mount.file(view))), "the old run's name")
    same(mount, 1, derived(again, recipe), view)


def test_ignored_and_two_views():
    "modules of --derive-ignore stay as they are, in that view alone"
    other = "actor@fp8-channel"
    trainer = Trainer("--derive-ignore", f"{VIEW}=re:.*down_proj", "--derive-ignore", f"{VIEW}=model.layers.0.self_attn.o_proj", derive=(VIEW, other))
    folder = trainer.publish(1, qwen(5))
    trainer.made(1, other)
    mount = Mount(trainer.agent.url)
    same(mount, 1, derived(folder, "fp8-block128", "--ignore", "re:.*down_proj", "--ignore", "model.layers.0.self_attn.o_proj"))
    same(mount, 1, derived(folder, "fp8-channel"), other)
    kinds = {n: t[0] for n, t in tensors_of(mount.file(VIEW, 1, "model.safetensors")).items()}
    assert kinds["model.layers.1.mlp.down_proj.weight"] == "BF16" and kinds["model.layers.1.mlp.up_proj.weight"] == "F8_E4M3", kinds


def test_kept():
    "what did not change since the version that the slot held is not quantised again, and the bytes are as if it were"
    trainer = Trainer("--slots", "2")
    folder = qwen(6, hidden=DEEP)
    for version in (1, 2):
        trainer.publish(version, folder)
    assert trainer.metric(f'wsync_agent_view_bytes_total{{model="{VIEW}",how="kept"}}') == 0
    name = "model.layers.1.self_attn.v_proj.weight"  # near the file's end
    for version in (3, 4, 5):
        wait_for(trainer.is_idle, "readers and deltas to end")
        before = trainer.metric(f'wsync_agent_view_bytes_total{{model="{VIEW}",how="quantised"}}')
        folder = trainer.publish(version, changed(folder, name, finite(DEEP * DEEP, random.Random(version))))
        done = wait_for(lambda: trainer.metric(f'wsync_agent_view_bytes_total{{model="{VIEW}",how="quantised"}}') - before, "the bytes to be counted")
        assert 2 * DEEP * DEEP <= done <= 16 << 20, done  # of 30 MiB: two blocks at most, and the pieces that reach into them
        mount = Mount(trainer.agent.url)
        same(mount, version, derived(folder))
        mount.end()


BLOCK = 4 << 20


def blocks_that_differ(one, other):
    """Of two folders with the same files."""
    n = 0
    for name in sorted(os.listdir(one)):
        a, b = (bytes_of(f"{folder}/{name}") for folder in (one, other))
        n += sum(a[i:i + BLOCK] != b[i:i + BLOCK] for i in range(0, len(b), BLOCK))
    return n


@pytest.mark.parametrize("recipe", ["fp8-block128", "int4-g32"])
def test_compared_while_made(recipe):
    "a version's blocks are compared with the version before as soon as they are made, and a delta of these comes, also after a version without one"
    view = f"actor@{recipe}"
    trainer = Trainer("--slots", "2", derive=(view,))
    folders = {1: trainer.publish(1, qwen(7, shards=2, hidden=DEEP), view=view)}
    mount = Mount(trainer.agent.url, DELTAS)
    same(mount, 1, derived(folders[1], recipe), view)
    for version in (2, 3, 4):
        folders[version] = trainer.publish(version, step(folders[version - 1], version, share=0.0005), view=view)
        wait_for(lambda: deltas(trainer, version, view), "the delta")
        said = rf"delta whole model={view} base={version - 1} version={version} .*from_view=\d+"
        line = wait_for(lambda: re.findall(said, trainer.agent.text()), "the delta to be whole")[0]
        # the files name their source's digest, which is another one for a folder: their first blocks differ in any case
        differ = blocks_that_differ(*(derived(folders[v], recipe) for v in (version - 1, version)))
        assert differ >= 4 and line.endswith(f"from_ranks=0 from_view={differ}"), (differ, line)
        mount.write(f"pull {version}", f"{view}/ctl")
        same(mount, version, derived(folders[version], recipe), view)
        assert f' how="tcp delta from {version - 1}' in mount.status(view)[f"version.{version}"], mount.status(view)


def test_no_deltas():
    "without room for deltas a view has none, and comes whole"
    trainer = Trainer("--delta-cache", "0")
    folder = trainer.publish(1, qwen(8))
    folder = trainer.publish(2, step(folder, 2, share=0.01))
    mount = Mount(trainer.agent.url)
    same(mount, 2, derived(folder))
    assert not deltas(trainer, 2) and "delta whole" not in trainer.agent.text()


@pytest.mark.parametrize("tensors, config, said", [
    ({"model.l.weight": ("I8", [64, 64]), "model.l.weight_scale": ("F32", [64, 1])},
     {"quantization_config": {"quant_method": "compressed-tensors"}}, "frees scales"),
    ({"model.l.mlp.experts.0.up_proj.weight": ("BF16", [64, 64])}, {}, "leaves them unpacked")], ids=["int8", "experts"])
def test_reloads_on_a_cpu(tensors, config, said):
    "a vLLM on a CPU that cannot reload a model (INT8, or experts) is told of no version, whatever force-layout says, and serves on"
    agent = Agent()
    for version in (1, 2):
        folder = checkpoint(tensors, seed=version)
        with open(folder + "/config.json", "w") as f:
            json.dump(config, f)
        agent.publish("actor", version, folder)
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    engine = Engine(mount.file("actor", 1), api="vllm")
    before = engine.checksum()
    mount.write(f"engine add e vllm {engine.url}", "actor/ctl")
    for command, file in (("2", "version"), ("load 2 force-layout", "ctl")):
        assert mount.refused(command, f"actor/{file}") == "EPROTO"
        assert said in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert engine.serves() == "default" and engine.checksum() == before
    mount.write("engine remove e", "actor/ctl")
    kept = Engine(mount.file("actor", 1), "--weight-transfer", api="vllm")
    mount.write(f"engine add k vllm {kept.url}", "actor/ctl")
    mount.write("2", "actor/version")
    assert kept.serves() == "2"
    port = kept.port
    kept.kill()  # and comes back without it: it is asked anew before it is paused
    again = Engine(mount.file("actor", 1), api="vllm", port=port)
    assert mount.refused("1", "actor/version") == "EPROTO"
    assert said in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert again.serves() == "default" and again.checksum() == before


def test_engines():
    "an engine serves a view, is switched along it, and follows its releases"
    trainer = Trainer()
    folders = {1: trainer.publish(1, qwen(7))}
    mount = Mount(trainer.agent.url, "host=h1")
    mount.wait_version(VIEW, 1)
    engine = Engine(mount.file(VIEW, 1), api="vllm")
    mount.write(f"engine add e vllm {engine.url}", f"{VIEW}/ctl")
    folders[2] = trainer.publish(2, step(folders[1], 2))
    mount.wait_version(VIEW, 2)
    mount.write("2", f"{VIEW}/version")
    assert engine.serves() == "2" and engine.checksum() == Engine(mount.file(VIEW, 2), api="vllm").checksum()
    mount.write("1", f"{VIEW}/version")
    assert engine.serves() == "1"
    mount.write("follow", f"{VIEW}/policy")
    wait_for(lambda: any(m["engines"] and m["follows"] for m in trainer.agent.get(f"/v1/{VIEW}/mounts")), "the mount's word")
    out = wsync("release", "--agent", trainer.agent.url, "--wait", 60, VIEW, 2, timeout=90).stdout
    assert "released: 1 mount" in out and engine.serves() == "2", out
    mount.write("follow", "actor/policy")
    wait_for(lambda: any(m["follows"] for m in trainer.agent.get("/v1/actor/mounts")), "the mount's word")
    wsync("release", "--agent", trainer.agent.url, "--wait", 60, "actor=2", f"{VIEW}=2", timeout=90)
    assert mount.text("actor/version") == "2\n"
    said = json.loads(wsync("status", "--mount", mount.path, "--json").stdout)
    assert [str(m["current"]) for m in said["models"] if m["model"] == VIEW] == ["2"], said


def test_signed():
    "a view is signed as its source is, and a key that is trusted for the source holds for it"
    keys = [unique("key") + ".key" for _ in range(2)]
    for key in keys:
        wsync("key", "new", "--out", key, "--name", "run")
    trainer = Trainer("--sign-key", keys[0])
    folder = trainer.publish(1, qwen(9))
    same(Mount(trainer.agent.url, f"verify-key=actor={keys[0]}.pub"), 1, derived(folder))
    other = Mount(trainer.agent.url, f"verify-key={VIEW}={keys[1]}.pub:actor={keys[0]}.pub")
    other.wait_version(VIEW, 1)
    other.wait_version("actor", 1)
    assert other.read("actor", 1, "config.json")
    with pytest.raises(OSError):
        other.read(VIEW, 1, "config.json")


def test_many_steps():
    "readers of the view and of its source do not stop the trainer; each version that is announced is whole"
    trainer = Trainer("--slots", "3")
    folder = qwen(8)
    mounts = [Mount(trainer.agent.url), Mount(f"unix:{trainer.agent.sock}")]
    for version in range(1, 9):
        trainer.publish(version, folder := step(folder, version, share=0.001), wait=version % 4 == 0)
        if version % 4 == 0:
            for mount in mounts:
                same(mount, version, derived(folder))
    assert trainer.status()["failed"] == 0, trainer.agent.text()


# --- what is refused ---


BAD = {
    "family": (lambda: qwen(10, config={"model_type": "mamba9"}), "mamba9"),
    "no config": (lambda: without_config(qwen(10)), "has no config.json"),
    "adapter": (lora, "is an adapter"),
    "dtype": (lambda: of_type(qwen(10), "model.layers.0.mlp.up_proj.weight", "U8"), "model.layers.0.mlp.up_proj.weight"),
    "shape": (lambda: write(unique("qwen"), weights(10) | {f"model.layers.0.self_attn.{n}_proj.weight": ("BF16", [100, 128], bytes(25600)) for n in "qkv"}),
              "model.layers.0.self_attn."),
    "infinite": (lambda: infinite(qwen(10)), "model.layers.1.mlp.gate_proj.weight"),
    "nothing": (lambda: write(unique("qwen"), {"model.norm.weight": ("BF16", [HIDDEN], bytes(2 * HIDDEN))}), ""),
}


def without_config(folder):
    os.unlink(folder + "/config.json")
    return folder


def of_type(folder, name, dtype):
    tensors = tensors_of(folder + "/model.safetensors")
    return write(folder, tensors | {name: (dtype, [HIDDEN, 2 * HIDDEN], tensors[name][2])})


def infinite(folder):
    name = "model.layers.1.mlp.gate_proj.weight"
    data = bytearray(tensors_of(folder + "/model.safetensors")[name][2])
    data[2 * (3 * HIDDEN + 5)] = 0x80
    data[2 * (3 * HIDDEN + 5) + 1] = 0x7F
    return changed(folder, name, bytes(data))


@pytest.mark.parametrize("kind", BAD)
def test_refused(kind):
    "a version that the recipe does not take has no view, the log and the status say why once, its source is served, and the next version has a view"
    trainer = Trainer()
    make, said = BAD[kind]
    bad, good = make(), qwen(11)
    trainer.publish(1, bad, wait=False)
    why = trainer.failed()
    assert why and said in why, why
    trainer.publish(2, bad, wait=False)
    assert trainer.failed(2) == why
    assert trainer.agent.text().count("no view model=") == 1, trainer.agent.text()
    assert trainer.listed()["versions"] == []
    mount = Mount(trainer.agent.url)
    mount.wait_version("actor", 2)
    name, = [f for f in os.listdir(bad) if f.endswith(".safetensors")]
    assert tensors_of(mount.file("actor", 2, name)) == tensors_of(os.path.join(bad, name))
    trainer.publish(3, good)
    same(mount, 3, derived(good))
    assert trainer.status()["why"] == "" and [v["version"] for v in trainer.listed()["versions"]] == [3]
    if kind == "infinite":
        assert "[3, 5]" in why or "3, 5" in why or "row 3" in why or "773" in why, why


def test_columns():
    "columns that a recipe's groups do not divide are refused, with the tensor"
    view, name = "actor@mxfp8", "model.layers.0.mlp.down_proj.weight"
    trainer = Trainer(derive=(view,))
    trainer.publish(1, write(unique("qwen"), weights(18) | {name: ("BF16", [128, 100], bytes(25600))}), wait=False)
    why = trainer.failed(view=view)
    assert name in why and "100 columns" in why, why


def test_ignore_matches_nothing():
    "a pattern that matches no module is refused, with the pattern"
    trainer = Trainer("--derive-ignore", f"{VIEW}=model.layers.77.mlp.up_proj")
    trainer.publish(1, qwen(12), wait=False)
    assert "model.layers.77.mlp.up_proj" in trainer.failed()


def test_memory():
    "views count in --memory: a version that does not fit has none, and the source's are as ever"
    folder = qwen(13)
    size = os.path.getsize(folder + "/model.safetensors")
    trainer = Trainer("--memory", str(2 * size + size // 4))
    trainer.publish(1, folder, wait=False)
    assert "two versions of each model" in trainer.failed() and "--memory leaves" in trainer.failed(), trainer.failed()
    mount = Mount(trainer.agent.url)
    for version in (2, 3, 4):
        trainer.publish(version, folder := step(folder, version), wait=False)
        mount.wait_version("actor", version)
        assert tensors_of(mount.file("actor", version, "model.safetensors")) == tensors_of(folder + "/model.safetensors")


@pytest.mark.parametrize("what", ["a larger version", "another model"])
def test_memory_is_the_trainers_first(what):
    "what ranks publish later takes its memory from views, which have none then; nothing fails that would not without them"
    small, large = qwen(19), qwen(20, hidden=2 * HIDDEN)
    sizes = [os.path.getsize(f + "/model.safetensors") for f in (small, large)]
    trainer = Trainer("--memory", str(4 * sizes[0] + sizes[0] // 2 if what == "another model" else 2 * sizes[1] + sizes[0] // 4))
    for version in (1, 2, 3):
        trainer.publish(version, small)
    model, folder = ("critic", small) if what == "another model" else ("actor", large)
    for version in (4, 5, 6):
        trainer.agent.publish(model, version, folder, *(["--new-run"] if version == 4 else []))
    mount = Mount(trainer.agent.url)
    mount.wait_version(model, 6)
    assert tensors_of(mount.file(model, 6, "model.safetensors")) == tensors_of(folder + "/model.safetensors")
    assert re.search(rf"view's slot taken model={VIEW} version=\d for={model}\n", trainer.agent.text()), trainer.agent.text()
    assert trainer.listed()["versions"] == [] or what == "another model", trainer.listed()
    trainer.agent.publish("actor", 7, folder)
    wait_for(lambda: trainer.status()["why"], "what the view says of it")
    assert "two versions of each model" in trainer.status()["why"], trainer.status()


def test_bad_options():
    "unknown recipes, names that are no views, and ignored modules of no view are refused at the start"
    for args, said in ((("--derive", "actor@int3"), "fp8-block128"), (("--derive", "actor"), "MODEL@RECIPE"), (("--derive", "actor@0.2"), "MODEL@RECIPE"),
                       (("--derive", VIEW, "--derive", VIEW), "twice"), (("--derive", VIEW, "--derive-ignore", "lm_head"), "MODEL@RECIPE=MODULE"),
                       (("--derive", VIEW, "--derive-ignore", f"{VIEW}=re:("), "no regular expression"), (("--derive", VIEW, "--derive-ignore", VIEW + "="), "names no layer"),
                       (("--derive", VIEW, "--primary", "http://127.0.0.1:1"), "wsync mount -o derive=" + VIEW)):
        r = subprocess.run([WSYNC, "agent", "--socket", unique("s") + ".sock", *args], capture_output=True, text=True, timeout=60 * SLOW)
        assert r.returncode != 0 and said in r.stderr + r.stdout, r


def test_ranks_cannot_publish_views():
    "a rank that registers a view's name is refused"
    trainer = Trainer()
    for name in (VIEW, "other@fp8-channel"):
        r = trainer.agent.publish(name, 1, qwen(14), check=False)
        assert r.returncode == 1 and f"'{name}' is the name of a quantised view" in r.stderr, r
    assert trainer.listed()["versions"] == []


def test_nodes_cannot_publish_views():
    "another node's agent cannot announce a version of a view, and the agent makes the next one"
    tokens = unique("tokens")
    node, reader = [wsync("token", "add", role, "--role", role, "--model", "actor", "--file", tokens).stdout.strip() for role in ("node", "read")]
    agent = Agent("--tokens", tokens, "--derive", VIEW)

    def listed():
        views = json.loads(Http(agent.url, reader).ask("GET", "/v1/models")[1]).get("views", [])
        return [(m["run"], v["version"], m["newest"]) for m in views for v in m["versions"]]

    agent.publish("actor", 1, folder := qwen(19))
    wait_for(listed, "the view")
    norm = {"name": "model.norm.weight", "dtype": "BF16", "shape": [64], "kind": "box", "offset": [0], "size": [64]}
    claim = {"node": "x", "id": 7, "ranks": [[0, 1]], "world_size": 1, "registrations": {"0": {"params": [norm], "base": [], "sidecars": []}},
             "epoch": 1, "version": 2, "version_run": listed()[0][0], "committed": True, "sealed": True}
    for model in (VIEW, "other@fp8-channel"):
        for turn in range(3):
            status, text = Http(agent.url, node).ask("POST", f"/v1/{model}/node", claim | {"round": turn + 1})
            assert status == (403 if model != VIEW else 400), (status, text)
            assert model != VIEW or f"'{VIEW}' is the name of a quantised view" in text, text
    agent.publish("actor", 2, step(folder, 2))
    wait_for(lambda: [v[1:] for v in listed()] == [(1, 2), (2, 2)], "the next version")


def test_spanning():
    "where the trainer spans nodes no agent has whole tensors: the status and the log name the mount that has, and the parts go on"
    span = Span(own=(("--derive", VIEW), ()))
    for version in (1, 2):
        span.publish("step 0.01")
        wait_for(lambda: [m["view"]["failed"] for m in span.agents[0].get("/v1/status")["models"] if m["name"] == VIEW] == [version], "the reason")
    why = [m["view"]["why"] for m in span.agents[0].get("/v1/status")["models"] if m["name"] == VIEW][0]
    assert f"wsync mount -o derive={VIEW}" in why and span.agents[0].text().count(why) == 1, why
    mount = Mount(span.urls)
    mount.wait_version("actor", 2)
    assert mount.read("actor", 2, "model.safetensors") == span.bytes[2]
    span.end()


# --- restarts ---


def test_state():
    "an agent that is started again knows the view's newest number, and makes the next ones"
    state = unique("state") + "/agent.state"
    trainer = Trainer("--state", state)
    first = trainer.publish(1, qwen(15))
    digest = trainer.listed()["digest"]
    assert f'"digest":"{digest}"' in bytes_of(state).decode()
    wait_for(lambda: bytes_of(state).count(b'"newest":1') == 2, "the numbers")
    for kill in (True, False):
        trainer.restart(kill=kill)
        assert trainer.listed()["newest"] == 1 and trainer.listed()["versions"] == []
    second = trainer.publish(2, step(first, 2))
    same(Mount(trainer.agent.url), 2, derived(second))


def test_archive():
    "a view is archived and comes back; one that was not archived is made again with the same bytes, or not at all"
    archive, state = unique("archive"), unique("state") + "/agent.state"
    trainer = Trainer("--archive", archive, "--state", state)
    first = trainer.publish(1, qwen(16))

    def archived(name):
        with contextlib.suppress(FileNotFoundError):
            listing = json.loads(bytes_of(archive + "/v1/models"))
            return {m["name"]: [v["version"] for v in m["versions"]] for m in listing["models"] + listing.get("views", [])}.get(name)

    wait_for(lambda: archived(VIEW) == [1] and archived("actor") == [1], "the archive")
    assert [m["name"] for m in json.loads(bytes_of(archive + "/v1/models"))["models"]] == ["actor"]
    digest = trainer.listed()["digest"]
    same(Mount(f"dir:{archive}"), 1, derived(first))
    trainer.restart()
    trainer.made(1)
    assert trainer.listed()["digest"] == digest and trainer.status()["made"] == 0
    same(Mount(trainer.agent.url), 1, derived(first))
    # without the archive's copy of it
    trainer.agent.kill()
    listing = json.loads(bytes_of(archive + "/v1/models"))
    del listing["views"]
    for name in ("models", "events"):
        with open(f"{archive}/v1/{name}", "w") as f:
            json.dump(listing, f)
    shutil.rmtree(f"{archive}/v1/{VIEW}")
    trainer.agent = Agent(*trainer.args, port=trainer.agent.port, sock=trainer.agent.sock)
    trainer.made(1)
    assert trainer.listed()["digest"] == digest and trainer.status()["made"] == 1
    # with other terms
    trainer.agent.kill()
    shutil.rmtree(f"{archive}/v1/{VIEW}")
    for name in ("models", "events"):
        with open(f"{archive}/v1/{name}", "w") as f:
            json.dump(listing, f)
    trainer.args += ["--derive-ignore", f"{VIEW}=re:.*down_proj"]
    trainer.agent = Agent(*trainer.args, port=trainer.agent.port, sock=trainer.agent.sock)
    assert f"with the digest {digest} before" in trainer.failed()
    assert trainer.listed()["versions"] == []
    second = trainer.publish(2, step(first, 2))
    same(Mount(trainer.agent.url), 2, derived(second, "fp8-block128", "--ignore", "re:.*down_proj"))


def test_killed():
    "an agent that is killed while it makes views announces whole ones only, and goes on"
    state = unique("state") + "/agent.state"
    trainer = Trainer("--state", state)
    folder = qwen(17, layers=3)
    generator = random.Random(17)
    for version in range(1, 7):
        trainer.publish(version, folder := step(folder, version, share=0.001), wait=False)
        time.sleep(generator.random() * 0.05)
        trainer.restart()
    trainer.publish(7, folder)
    same(Mount(trainer.agent.url), 7, derived(folder))


def test_memory_of_a_view_that_is_read_back(monkeypatch):
    "a trainer that publishes while the agent reads a view out of the archive gets that memory, too"
    for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("REGION", "us-east-1")):
        monkeypatch.setenv("AWS_" + name, value)
    store = Moto()
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    trainer = Trainer("--archive", f"s3://{BUCKET}/run")
    folder = trainer.publish(1, qwen(21))
    wait_for(lambda: "v1/models" in store.keys("run") and VIEW.encode() in store.get("run", "v1/models"), "the archive")
    trainer.agent.kill()
    between, asked, may = Meddler(store), threading.Event(), threading.Event()

    def held(head, body):
        asked.set()
        may.wait(60 * SLOW)
        return head + b"\r\n\r\n" + body

    between.rule("GET", VIEW.replace("@", "%40") + "/1/files/model.safetensors", held, 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
    size = os.path.getsize(folder + "/model.safetensors")
    trainer.agent = Agent(*trainer.args, "--memory", str(2 * size + size // 4), port=trainer.agent.port, sock=trainer.agent.sock)
    assert asked.wait(30 * SLOW), [p for _, p in between.seen]
    done = threading.Thread(target=trainer.agent.publish, args=("actor", 2, folder))
    done.start()
    done.join(1)
    may.set()
    done.join()
    mount = Mount(trainer.agent.url)
    mount.wait_version("actor", 2)
    assert tensors_of(mount.file("actor", 2, "model.safetensors")) == tensors_of(folder + "/model.safetensors")
    assert f"view's slot taken model={VIEW} version=1 for=actor" in trainer.agent.text(), trainer.agent.text()
