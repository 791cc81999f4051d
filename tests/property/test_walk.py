# sanitizers: address
# timeout: 600, takes: 40
"""A long random walk: a trainer's steps over the shapes of a real checkpoint, one at a time or in bursts, some large, some empty, and a
mount that follows by deltas. Every version that the mount makes equals the published one, bit for bit, and neither process grows.
WALK_STEPS, WALK_SEED."""
import mmap
import os
import re
import statistics
import threading

import pytest

from world import *

try:
    import numpy as np
except ImportError:
    np = None

STEPS = amount("WALK_STEPS", 24 if SANITIZER else 200, 200)
SEED = int(os.environ.get("WALK_SEED", random.SystemRandom().randrange(1 << 32)))
KEPT = 6  # folders kept, and twice as many sources to compare with
CACHE = 12 << 20  # delta cache on either side: full within the first quarter
VERSIONS = 100 << 20  # the mount's cache: remains of bursts must be evicted
WORDS = {"BF16": 2, "F32": 4, "I64": 8}
MIB = 1 << 20
# malloc's per-thread free lists take hundreds of steps to settle: they are limited here.


def shapes():
    """Qwen3-0.6B's tensors with a quarter of its width and 8 of its 28 layers, and two tensors of other types: 21 MB."""
    t = {"model.embed_tokens.weight": ("BF16", [9496, 256]), "model.norm.weight": ("BF16", [256])}
    for i in range(8):
        layer = f"model.layers.{i}."
        t |= {layer + f"mlp.{n}_proj.weight": ("BF16", s) for n, s in (("gate", [768, 256]), ("up", [768, 256]), ("down", [256, 768]))}
        t |= {layer + f"self_attn.{n}_proj.weight": ("BF16", s)
              for n, s in (("q", [512, 256]), ("k", [256, 256]), ("v", [256, 256]), ("o", [256, 512]))}
        t |= {layer + f"{n}.weight": ("BF16", s) for n, s in (("input_layernorm", [256]), ("post_attention_layernorm", [256]),
                                                              ("self_attn.q_norm", [32]), ("self_attn.k_norm", [32]))}
    return t | {"model.rotary_emb.inv_freq": ("F32", [16]), "trainer.step": ("I64", [1])}


class Trainer:
    """The newest version's bytes, and how a step changes them."""

    def __init__(self, agent, rng):
        self.agent, self.rng, self.version, self.made = agent, rng, 0, 0
        header, end = {}, 0
        for name, (dtype, shape) in shapes().items():
            size = WORDS[dtype] * int(np.prod(shape))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        self.spans = {name: h["data_offsets"] for name, h in header.items()}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.head = struct.pack("<Q", len(text)) + text
        self.data = np.zeros(end, np.uint8)
        weights = (rng.standard_normal(end // 4) * 0.02).astype(np.float32).view(np.uint32) >> 16
        self.data.view(np.uint16)[: end // 4] = weights.astype(np.uint16)
        self.data.view(np.uint16)[end // 4 : end // 4 * 2] = weights.astype(np.uint16)[::-1]
        self.kept = {}
        self.write()
        self.publish()

    def make(self, large=False):
        """Writes the next version's folder without publishing it."""
        what = 0.07 if large or self.made in (9, 10) else self.rng.random()  # early ones, also two in a chain
        share = 0 if what < 0.05 else 0.3 if what < 0.1 else 0.001 if what < 0.4 else 0.012
        words = self.data[: self.spans["model.rotary_emb.inv_freq"][0]].view(np.uint16)
        n = int(share * len(words))
        if n:
            at = self.rng.integers(0, len(words), n)
            words[at] += self.rng.choice(np.array([1, 65535] * 20 + [2, 65533, 32768], np.uint16), n)
            begin, end = self.spans["trainer.step"]
            self.data[begin:end].view(np.int64)[0] += 1
        self.write()

    def folder(self, version):
        return os.path.join(TESTDIR, f"checkpoint-{version % KEPT}")

    def write(self):
        self.made += 1
        folder = self.folder(self.made)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(self.head)
            f.write(self.data)
        with open(os.path.join(folder, "trainer_state.json"), "w") as f:
            f.write(json.dumps({"step": self.made}))  # grows by a byte sometimes
        self.kept[self.made] = self.data.copy()
        self.kept.pop(self.made - 2 * KEPT, None)

    def publish(self):
        self.version += 1
        self.agent.publish("actor", self.version, self.folder(self.version))


def assert_same(mount, version, trainer):
    want = trainer.kept[version]
    with open(mount.file("actor", version, "model.safetensors"), "rb") as f:
        with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as raw:
            length = struct.unpack("<Q", raw[:8])[0]
            header = json.loads(raw[8 : 8 + length])
            header.pop("__metadata__", None)
            assert set(header) == set(trainer.spans)
            got = np.frombuffer(raw, np.uint8)[8 + length :]
            for name, (begin, end) in trainer.spans.items():
                b, e = header[name]["data_offsets"]
                same = np.array_equal(got[b:e], want[begin:end])
                assert same, f"version {version}: {name} differs in {np.count_nonzero(got[b:e] != want[begin:end])} bytes"
            del got
    assert json.loads(mount.read("actor", version, "trainer_state.json")) == {"step": version}


def versions_of(mount):
    """{version: (state, how)} of the versions that the mount knows."""
    found = re.findall(r'^version\.(\d+) (\S+) .*? how="([^"]*)"', mount.text("actor/status"), re.M)
    return {int(v): (state, how) for v, state, how in found}


def memory_of(pid):
    """A process's private bytes, and the bytes of the regions that it holds (each counted once)."""
    with open(f"/proc/{pid}/status") as f:
        anonymous = int(re.search(r"^RssAnon:\s+(\d+) kB", f.read(), re.M).group(1)) << 10
    regions = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            path = f"/proc/{pid}/fd/{fd}"
            if os.readlink(path).endswith(" (deleted)"):
                s = os.stat(path)
                regions[s.st_dev, s.st_ino] = s.st_blocks * 512
    return anonymous, sum(regions.values())


class Walk:
    def __init__(self):
        self.rng = np.random.default_rng(SEED)
        self.agent = Agent("--delta-cache", CACHE, "--threads", 1)
        self.trainer = Trainer(self.agent, self.rng)
        self.mount = Mount(self.agent.url, f"delta-cache={CACHE},cache={VERSIONS},{DELTAS}")
        self.failure = None
        self.ways = dict.fromkeys(("full", "delta", "chain", "in place", "copied", "not made"), 0)
        self.compared, self.lost = {}, 0

    def pull(self, version):
        """Pulls a version; False if the source dropped it before it was complete."""
        wait_for(lambda: os.path.isdir(self.mount.file("actor", version)) or version < self.trainer.version, f"version {version}", 60)
        try:
            self.mount.write(f"pull {version}", "actor/ctl")
        except OSError as e:
            if e.errno not in (errno.ESTALE, errno.ENOENT) or version == self.trainer.version:
                raise AssertionError(f"pull {version}: {e}: {self.mount.text('actor/last_error')}")
            return False
        return True

    def step(self, wait):
        self.trainer.make()
        self.trainer.publish()
        if wait:
            wait_for(lambda: self.offers() is None or self.offers()[0]["state"] != "growing", "the delta", 60)

    def offers(self):
        return self.agent.get(f"/v1/actor/{self.trainer.version}/manifest")["deltas"] or None

    def burst(self):
        """Several steps right after each other, with or without a pull of the first of them meanwhile."""
        thread, n, large = None, int(self.rng.integers(3, 6)), self.rng.random() < 0.5
        for _ in range(n):
            self.trainer.make(large)
        for i in range(n):
            self.trainer.publish()  # a delta that is not made by then is abandoned
            if i == 0 and self.rng.random() < 0.6:
                thread = threading.Thread(target=self.pull_of_burst, args=(self.trainer.version,))
                thread.start()
        if thread:
            thread.join()

    def pull_of_burst(self, version):
        try:
            self.lost += not self.pull(version)
        except AssertionError as e:
            self.failure = e

    def compare(self):
        """Compares every third ready version with the published one: versions without readers are patched in place, others in a copy. Returns how
        the
        newly ready ones arrived."""
        for version, (state, how) in versions_of(self.mount).items():
            if state != "ready" or version not in self.trainer.kept:
                continue
            if version % 3 == 0:
                assert_same(self.mount, version, self.trainer)
            if version not in self.compared:
                self.compared[version] = how
                way = "chain" if "chain of" in how else "delta" if "delta from" in how else "full"
                self.ways[way] += 1
                if way != "full":
                    self.ways["in place" if "in place" in how else "copied"] += 1


def assert_flat(samples, what):
    quarter = len(samples) // 4
    before = statistics.median(samples[quarter : 2 * quarter])  # after warm-up
    after = statistics.median(samples[-quarter:])
    print(f"# {what}: {before / MIB:.1f} MiB in the second quarter, {after / MIB:.1f} MiB in the last, {max(samples) / MIB:.1f} MiB at most")
    assert after <= 1.2 * before + 8 * MIB, f"{what} grows"


def test_walk():
    "a mount follows a random walk of steps: every version that it makes equals the source's, and memory does not grow"
    need_fuse()
    if np is None:
        pytest.skip("the Python package numpy is not here (PyPI was not reached)")
    print(f"# seed {SEED}", flush=True)
    walk = Walk()
    samples, seconds = [], []
    walk.pull(1)
    walk.compare()
    while walk.trainer.version < STEPS:
        began = time.monotonic()
        before = walk.trainer.version
        if walk.rng.random() < 0.1:
            walk.burst()
        else:
            walk.step(wait=walk.rng.random() < 0.7)  # otherwise it is fetched while it is made
        assert not walk.failure, walk.failure
        assert walk.pull(walk.trainer.version)
        walk.compare()
        assert walk.trainer.version in walk.compared, walk.mount.text("actor/status")
        seconds += [(time.monotonic() - began) / (walk.trainer.version - before)]
        a, m = memory_of(walk.agent.pid), memory_of(walk.mount.pid)
        samples.append((a[0], sum(a), m[0], sum(m), sum(a) + sum(m)))
    made = {r: int(n) for r, n in re.findall(r'wsync_agent_deltas_total\{model="actor",result="([^"]+)"\} (\d+)', fetch_metrics(walk.agent))}
    walk.ways["not made"] = walk.trainer.version - len(walk.compared)
    print(f"# {walk.trainer.version} versions of {len(walk.trainer.data) / MIB:.0f} MiB, {statistics.mean(seconds):.2f} s each: "
          + ", ".join(f"{n} {way}" for way, n in walk.ways.items()) + f"; {walk.lost} lost in bursts; the agent's deltas: {made}", flush=True)
    if not SANITIZER:  # their run-times keep freed memory
        for i, what in enumerate(("the agent's own memory", "the agent's with its slots", "the mount's own memory",
                                  "the mount's with its versions", "all of it")):
            assert_flat([s[i] for s in samples], what)
    assert min(walk.ways["in place"], walk.ways["copied"]) > len(walk.compared) / 8 and walk.ways["chain"] > 0 or STEPS < 100, walk.ways


def fetch_metrics(agent):
    with urllib.request.urlopen(agent.url + "/metrics", timeout=20) as r:
        return r.read().decode()
