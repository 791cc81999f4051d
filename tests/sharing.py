"""wsync share over a folder, and what frameworks write into it."""
from pathlib import Path

from world import *


class Share(Process):
    "mounted over the folder"

    def __init__(self, agent, folder, pattern="step_{N}", *args):
        need_fuse()
        if os.path.basename(folder) not in os.listdir(os.path.dirname(folder)):
            os.mkdir(folder)
        super().__init__("share", "--agent", f"unix:{agent.sock}", "--model", "actor", "--pattern", pattern, *args, folder)
        wait_for(lambda: not self.alive() or (os.access(folder, os.R_OK) and os.path.ismount(folder)), "the mount")
        assert self.alive(), self.text()

    def refusals(self):
        return [line for line in self.text().splitlines() if line.startswith("wsync ")]


def newest(agent):
    models = agent.get("/v1/models")["models"]
    return models[0]["newest"] if models else None


def published(agent, version):
    wait_for(lambda: newest(agent) == version, f"version {version}")


def stays(agent, share, version):
    "some looks of share later"
    time.sleep(0.3)
    assert share.alive() and newest(agent) == version, share.text()


def save(source, folder, name):
    "safetensors 0.8: all of its length first, then in order, renamed while it is open"
    with open(os.path.join(source, name), "rb") as f:
        data = f.read()
    temporary = os.path.join(folder, ".tmpX7a9Qz")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, len(data))
    for at in range(0, len(data), 4096):
        os.write(fd, data[at:at + 4096])
    os.rename(temporary, os.path.join(folder, name))
    os.close(fd)


SHARDS = {f"model-0000{i}-of-00003.safetensors": [name] for i, name in enumerate("abc", 1)}
OF_NODE = ["model-00001-of-00003.safetensors"], ["model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"]
OF_NODES = {"a": ("BF16", [64, 64]), "b": ("F32", [1000]), "c": ("F32", [77, 3])}
INDEX = "model.safetensors.index.json"


class Nodes:
    "two, each with an agent and a wsync share over a folder of its own, and a mount; what a call would wait for in vain takes longer than the test may"

    def __init__(self, *args):
        self.args = ("--world", "2", "--timeout", "600", *args)
        self.agents = [Agent("--insecure", "--nodes")]
        self.agents.append(Agent("--insecure", "--primary", self.agents[0].url))
        self.roots = [unique("node0"), unique("node1")]
        self.shares = [self.start(rank) for rank in range(2)]
        self.mount = Mount(",".join(a.url for a in self.agents))

    def start(self, rank):
        return Share(self.agents[rank], self.roots[rank], "step_{N}", "--rank", str(rank), *self.args)

    def folder(self, rank, version):
        os.makedirs(path := os.path.join(self.roots[rank], f"step_{version}"), exist_ok=True)
        return path

    def write(self, rank, version, source, names=None):
        for name in OF_NODE[rank] if names is None else names:
            save(source, self.folder(rank, version), name)

    def end(self, version, source, marker="STABLE"):
        "the first node's last files"
        shutil.copyfile(os.path.join(source, INDEX), os.path.join(self.folder(0, version), INDEX))
        if marker:
            Path(self.folder(0, version), marker).touch()

    def expect(self, version, source):
        "shown whole, bit for bit, with each file where its node had it"
        self.mount.wait_version("actor", version)
        self.mount.write(f"pull {version}", "actor/ctl")
        for name in SHARDS:
            assert tensors_of(self.mount.file("actor", version, name)) == tensors_of(os.path.join(source, name)), name
