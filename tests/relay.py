"""Mounts that serve others, and what they are asked in tests."""
from world import *

BLOCK = 4 << 20


class Relay(Mount):
    """A mount that serves others; .url is their source."""

    def __init__(self, source, options="", port=None, **kw):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        open_to_all = "" if "token" in options or "serve-client-ca" in options else ",serve-insecure"
        super().__init__(source, f"serve=127.0.0.1:{self.port}{open_to_all}" + (f",{options}" if options else ""), **kw)

    def get(self, path, **headers):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30 * SLOW) as r:
            return json.load(r)


def published(*args):
    need_fuse()
    agent = Agent(*args)
    folder = checkpoint(LARGE, seed=1)
    agent.publish("actor", 1, folder)
    return agent, folder


def leaf_of(*sources, options=""):
    mount = Mount(",".join(sources), options)
    mount.wait_version("actor", 1)
    return mount


def size_of(mount, version=1):
    return sum(f["size"] for f in json.loads(mount.read("actor", version, ".wsync/manifest.json"))["files"])


def progress(mount, version=1):
    return int(dict(l.split(" ", 1) for l in mount.text("actor", version, ".wsync/progress").splitlines())["have_bytes"])


def state(mount, version=1):
    return mount.text("actor", version, ".wsync/state").split()[0]


def same(mount, folder, version=1):
    return tensors_of(mount.file("actor", version, "model.safetensors")) == tensors_of(folder + "/model.safetensors")
