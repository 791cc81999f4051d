# beside others
# timeout: 200, takes: 20
"""Tokens and keys are in no core dump, no list of processes, no log and no error sentence: of agents, mounts and engines that use them."""
import mmap
import secrets
import shutil
import signal

import pytest

from certificates import Authority, Tls
from world import *

TENSORS = {f"layer.{i}.weight": ("BF16", [256, 256]) for i in range(4)}


class Token:
    def __init__(self, name):
        self.text = f"{name}-{secrets.token_hex(40)}"
        self.path = unique(name)
        with open(self.path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(self.text + "\n")


def found(path, secret):
    """Where a file has the secret, or as much of its end as is there by no chance: what is freed loses its first bytes."""
    part = secret.encode()[-40:]
    with open(path, "rb") as f:
        if not os.path.getsize(path):
            return f.read().find(part)
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            return memory.find(part)


class Dumped:
    """Of a process that leaves its core dump in a folder of its own."""

    @property
    def prefix(self):
        self.place = unique("core")
        os.makedirs(self.place)
        return ("sh", "-c", f'ulimit -c unlimited; cd {self.place}; exec "$@"', "sh")

    def look(self, *tokens):
        """None of the tokens is where others could see it while the process runs; then it dies of an abort, and leaves no more."""
        for token in tokens:
            for file in ("cmdline", "environ"):
                with open(f"/proc/{self.pid}/{file}", "rb") as f:
                    assert token.text.encode() not in f.read(), file
        if shutil.which("gcore"):
            subprocess.run(["gcore", "-o", self.place + "/live", str(self.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           timeout=60, check=True)
        return self.abort(*tokens)

    def abort(self, *tokens):
        self.process.send_signal(signal.SIGABRT)
        self.process.wait(60)
        return self.search(*tokens)

    def search(self, *tokens):
        cores = os.listdir(self.place)
        for core in cores:
            assert found(f"{self.place}/{core}", "layer.1.weight") >= 0, f"{core} has nothing of the process's memory"
        for token in tokens:
            assert token.text not in Process.text(self), "the log"
            for core in cores:
                at = found(f"{self.place}/{core}", token.text)
                assert at < 0, f"{core} of {type(self).__name__} has {token.text[:12]}... at {at}"
        return cores


class DumpedAgent(Dumped, Agent):
    pass


class DumpedTlsAgent(Dumped, Process):
    def __init__(self, cert, key):
        super().__init__("agent", "--listen", "127.0.0.1:0", "--socket", "none", "--tls-cert", cert, "--tls-key", key, "--insecure")
        wait_for(lambda: "serving" in self.text() or not self.alive(), "the agent")


class DumpedMount(Dumped, Mount):
    pass


def need_cores():
    with open("/proc/sys/kernel/core_pattern") as f:
        pattern = f.read().strip()
    if pattern.startswith(("|", "/")) and not shutil.which("gcore"):
        pytest.skip("core dumps of this machine are taken elsewhere, and there is no gcore")


def test_cores():
    "a core of an agent or mount, taken while it serves or left by an abort, has none of the tokens that it uses"
    need_fuse()
    need_cores()
    run, serve, api, admin = Token("run"), Token("serve"), Token("api"), Token("admin")
    agent = DumpedAgent("--token-file", run.path)
    port = free_port()
    mount = DumpedMount(agent.url, f"token-file={run.path},serve=127.0.0.1:{port},serve-token-file={serve.path}")
    leaf = DumpedMount(f"http://127.0.0.1:{port}", f"token-file={serve.path}")
    first = checkpoint(TENSORS, seed=1)
    for version, folder in ((1, first), (2, step(first, 2))):
        agent.publish("actor", version, folder)
        for m in (mount, leaf):
            m.wait_version("actor", version)
            m.read("actor", version, "model.safetensors")
    engine = Engine(mount.file("actor", 1), "--api-key-file", api.path)
    mount.write(f"engine add e1 sglang {engine.url} token-file={api.path} admin-token-file={api.path}", "actor", "ctl")
    mount.write("2", "actor", "version")
    mount.refused(f"engine add e2 sglang {engine.url} token-file={admin.path}", "actor", "ctl")
    said = "".join(mount.text("actor", name) for name in ("engines", "status", "last_error", "events")) + mount.text("status")
    assert not [t for t in (run, serve, api, admin) if t.text in said], said
    engine.end()
    cores = [m.look(run, serve, api, admin) for m in (leaf, mount, agent)]
    if not all(cores):
        pytest.skip("this machine leaves no core dumps, and there is no gcore")


def test_tls():
    "a mount whose source is behind TLS leaves no core: libraries leave parts of what they encrypt on stacks"
    need_fuse()
    need_cores()
    run = Token("run")
    agent = Agent("--token-file", run.path)
    agent.publish("actor", 1, checkpoint(TENSORS, seed=1))
    tls = Tls(agent.port)
    mount = DumpedMount(f"https://127.0.0.1:{tls.port}", f"token-file={run.path},ca-file={tls.ca}")
    mount.wait_version("actor", 1)
    mount.read("actor", 1, "model.safetensors")
    assert mount.abort(run) == []


def test_tls_key():
    "an agent with a key of TLS leaves no core"
    need_cores()
    agent = DumpedTlsAgent(*Authority().certificate())
    assert agent.abort() == []
