"""wsync share over a folder, and what frameworks write into it."""
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
