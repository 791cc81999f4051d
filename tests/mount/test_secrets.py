# beside others
# timeout: 200, takes: 20
"""Tokens and keys are in no core dump, no list of processes, no log and no error sentence: of agents, mounts and engines that use them."""
import mmap
import secrets
import shutil
import signal

import pytest

from between import Between
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
        """None of the tokens is where others could see it, nor in a core that root's debugger takes, nor in one of an abort."""
        for file in ("cmdline", "environ"):
            with open(f"/proc/{self.pid}/{file}", "rb") as f:
                text = f.read()
            assert not [t for t in tokens if t.text.encode() in text], file
        subprocess.run(["gcore", "-o", self.place + "/live", str(self.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       timeout=60, check=True)
        assert self.abort() == [f"live.{self.pid}"]
        core = f"{self.place}/live.{self.pid}"
        assert found(core, "layer.1.weight") >= 0, "the core has nothing of the process's memory"
        for token in tokens:
            assert token.text not in Process.text(self), "the log"
            assert found(core, token.text) < 0, f"a core of {type(self).__name__} has {token.text[:12]}..."

    def abort(self):
        """What it has left then."""
        self.process.send_signal(signal.SIGABRT)
        self.process.wait(60)
        return os.listdir(self.place)


class DumpedAgent(Dumped, Agent):
    pass


class DumpedTlsAgent(Dumped, Process):
    def __init__(self, cert, key):
        super().__init__("agent", "--listen", "127.0.0.1:0", "--socket", "none", "--tls-cert", cert, "--tls-key", key, "--insecure")
        wait_for(lambda: "serving" in self.text() or not self.alive(), "the agent")


class DumpedMount(Dumped, Mount):
    pass


def test_cores():
    "a core that root's debugger takes of an agent or mount has none of the tokens that it uses, and an abort leaves none"
    need_fuse()
    if not shutil.which("gcore"):
        pytest.skip("there is no gcore")
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
    for one in (leaf, mount, agent):
        one.look(run, serve, api, admin)


def test_source_that_repeats_it():
    "what a source says of the token that it did not like is shown without the token"
    need_fuse()
    run = Token("run")
    agent = Agent("--token-file", run.path)
    agent.publish("actor", 1, checkpoint(TENSORS, seed=1))
    between = Between(agent, "/v1/")
    between.wrong = 403, json.dumps({"error": f"the key '{run.text}' is none of ours", "errno": "EACCES"}).encode()
    mount = Mount(between.url, f"token-file={run.path}")
    said = wait_for(lambda: "is none of ours" in mount.text("status") and mount.text("status") + Process.text(mount), "the refusal")
    assert run.text not in said and "the key '***" in said, said
    between.wrong = None
    mount.wait_version("actor", 1)
    between.wrong = 403, json.dumps({"error": f"the key '{run.text}' is none of ours", "errno": "EACCES"}).encode()
    with pytest.raises(OSError):
        mount.read("actor", 1, "model.safetensors")
    said = mount.text("actor", "last_error") + mount.text("actor", "status") + mount.text("actor", "events") + Process.text(mount)
    assert "is none of ours" in said and run.text not in said, said


def test_no_core():
    "an agent without secrets leaves a core; one with a token, or a key of TLS, and a mount whose source is behind TLS leave none"
    need_fuse()
    if not DumpedAgent().abort():
        pytest.skip("core dumps are kept elsewhere on this machine")
    run = Token("run")
    agent = Agent()
    agent.publish("actor", 1, checkpoint(TENSORS, seed=1))
    tls = Tls(agent.port)
    mount = DumpedMount(f"https://127.0.0.1:{tls.port}", f"ca-file={tls.ca}")
    mount.wait_version("actor", 1)
    mount.read("actor", 1, "model.safetensors")
    for one in (mount, DumpedAgent("--token-file", run.path), DumpedTlsAgent(*Authority().certificate())):
        assert one.abort() == []
