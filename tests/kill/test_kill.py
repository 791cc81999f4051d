# beside others
# timeout: 430, takes: 30
"""kill -9 at random moments of publish, pull and switch: KILL_ROUNDS rounds, no wrong byte, no stuck process. The log says what each kill
interrupted: some kills interrupt an offload, a pull or a load. KILL_SEED."""
import os
import random
import re
import subprocess

from world import *

ROUNDS = amount("KILL_ROUNDS", 40, 100)
SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(1 << 32)))
# Some 12 MB: a round's publish and pull take tens of milliseconds, so kills fall into the middle.
TENSORS = {f"w{i}": ("BF16", [1024, 512]) for i in range(11)} | {"tail": ("U8", [4321])}


class World:
    def __init__(self):
        self.random = random.Random(SEED)
        self.folders = [checkpoint(TENSORS, seed=i) for i in range(4)]
        self.bytes = [tensors_of(f + "/model.safetensors") for f in self.folders]
        self.agent = self.mount = self.engine = None
        self.version = 0
        self.hits = dict.fromkeys(("offload", "pull", "load"), 0)
        self.content = {}

    def start_agent(self):
        self.agent = Agent()
        self.content = {}
        self.publish()

    def publish(self, kill_after=None):
        self.version += 1
        which = self.random.randrange(len(self.folders))
        args = [WSYNC, "publish", "--quiet", "--agent", f"unix:{self.agent.sock}", "-m", "actor", "-v", str(self.version), self.folders[which]]
        p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if kill_after is not None:
            time.sleep(kill_after)
            p.kill()
        out = p.communicate(timeout=60 * SLOW)[0]
        self.content[self.version] = which
        assert kill_after is not None or p.returncode == 0, out
        return p.returncode == 0

    def start_mount(self):
        self.mount = Mount(self.agent.url, "deadline=20")
        self.mount.wait_version("actor", self.newest())

    def newest(self):
        return self.agent.get("/v1/models")["models"][0]["newest"]

    def check(self, version):
        got = tensors_of(self.mount.file("actor", version, "model.safetensors"))
        assert got == self.bytes[self.content[version]], f"version {version} has wrong bytes (seed {SEED})"


def hit_pull(log, version):
    """Whether the mount had begun the pull and not finished it."""
    return f" pulling model=actor version={version} " in log and f" ready model=actor version={version} " not in log


def kill_publisher(w):
    w.publish(kill_after=w.random.random() * 0.08)
    killed = w.version
    v = w.newest()
    w.mount.wait_version("actor", v)
    w.check(v)
    w.publish()  # the next one works
    w.hits["offload"] += f"version abandoned model=actor version={killed} " in w.agent.text()


def kill_mount(w):
    w.publish()
    v = w.newest()
    w.mount.wait_version("actor", v)
    reader = subprocess.Popen(["cat", w.mount.file("actor", v, "model.safetensors")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(w.random.random() * 0.05)
    w.mount.kill()
    w.hits["pull"] += hit_pull(w.mount.text(), v)
    reader.wait(30 * SLOW)
    w.mount.detach()
    subprocess.run(["umount", "-l", w.mount.path], stderr=subprocess.DEVNULL)
    w.start_mount()
    w.check(v)


def kill_agent(w):
    w.publish()
    v = w.newest()
    w.mount.wait_version("actor", v)
    reader = subprocess.Popen(["cat", w.mount.file("actor", v, "model.safetensors")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(w.random.random() * 0.03)
    w.agent.kill()
    reader.send_signal(signal.SIGKILL) if w.random.random() < 0.5 else None
    reader.wait(60 * SLOW)
    w.hits["pull"] += hit_pull(w.mount.text(), v)
    w.mount.end()
    w.mount.detach()
    w.start_agent()
    w.start_mount()
    w.check(w.newest())


def kill_engine(w):
    w.publish()
    v = w.newest()
    w.mount.wait_version("actor", v)
    w.check(v)
    engine = Engine(w.folders[0])
    w.mount.write(f"engine add k sglang {engine.url}", "actor/ctl")
    writer = subprocess.Popen(["sh", "-c", f"echo {v} > {w.mount.file('actor/version')}"], stderr=subprocess.DEVNULL)
    time.sleep(w.random.random() * 0.06)
    engine.kill()
    writer.wait(60 * SLOW)
    current = w.mount.text("actor/version").strip()
    assert (current == str(v)) == (writer.returncode == 0), (current, v, writer.returncode)
    paused = re.search(f" paused model=actor version={v} engine=k .*result=ok", w.mount.text())
    w.hits["load"] += bool(writer.returncode and paused)
    w.mount.write("engine remove k", "actor/ctl")


def test_rounds():
    need_fuse()
    print(f"# seed {SEED}", flush=True)
    w = World()
    w.start_agent()
    w.start_mount()
    kinds = [kill_publisher] * 6 + [kill_mount] * 2 + [kill_agent] + [kill_engine] * 2
    again = {"offload": kill_publisher, "pull": kill_mount, "load": kill_engine}
    for i in range(2 * ROUNDS + 1):
        missed = [kind for what, kind in again.items() if not w.hits[what]]
        if i >= ROUNDS and not missed:
            break
        kind = w.random.choice(kinds if i < ROUNDS else missed)
        try:
            kind(w)
        except Exception:
            print(f"# round {i} {kind.__name__} seed {SEED}", flush=True)
            raise
    print(f"# {i} rounds; in the middle of: {w.hits}", flush=True)
    assert all(w.hits.values()), w.hits


test_rounds.__doc__ = f"{ROUNDS} rounds of kill -9"
