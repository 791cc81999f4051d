"""Clean Debian roots in which packages are tried: mounts and processes of their own, this host's network."""
import contextlib
import os
import re
import signal
import subprocess

import pytest

from world import *

PACKAGE = os.path.join(ROOT, "mount-helpers/package")
UNREACHABLE = 75  # what the scripts there end with where a mirror or PyPI cannot be reached
os.environ["PATH"] += ":/usr/sbin"


def need(*commands):
    for command in commands:
        if not shutil.which(command):
            pytest.skip(f"{command} is not installed")
    need_fuse()


def script(name, *args, timeout=1500):
    """What a script of mount-helpers/package prints."""
    r = subprocess.run([os.path.join(PACKAGE, name), *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)
    if r.returncode == UNREACHABLE:
        pytest.skip(r.stdout.strip().splitlines()[-1])
    assert r.returncode == 0, f"{name} {' '.join(args)}: {r.returncode}\n{r.stdout[-6000:]}"
    return r.stdout


def child_of(process):
    """The pid of its first child, None while it has none."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process.pid}/task/{process.pid}/children") as f:
        return int(f.read().split()[0])
    return None


class Root:
    """A root of a suite with packages, or one that is there already; its processes end with the test."""

    def __init__(self, suite=None, *packages, path=None):
        self.path = path or unique(f"root-{suite}")
        if not path:
            script("root", suite, self.path, *packages)
        at_end(shutil.rmtree, self.path, ignore_errors=True)
        self.process = subprocess.Popen([os.path.join(PACKAGE, "within"), self.path, "sleep", "infinity"])
        at_end(self.end)
        self.init = wait_for(self.first, "the root's first process")

    def first(self):
        """The pid of what `within` runs, once it is in the root."""
        child = child_of(self.process)
        with contextlib.suppress(OSError), open(f"/proc/{child}/cmdline") as f:
            return child if f.read().startswith("sleep") else None
        assert self.process.poll() is None, "`within` has ended"
        return None

    def end(self):
        self.process.kill()  # unshare passes over SIGTERM, and its child dies with it
        self.process.wait(20)

    def command(self, *args):
        return ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "nsenter",
                f"--target={self.init}", "--mount", "--pid", f"--root=/proc/{self.init}/root", f"--wd=/proc/{self.init}/root", *map(str, args)]

    def run(self, *args, check=True, timeout=300):
        r = subprocess.run(self.command(*args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=timeout,
                           check=False)
        assert r.returncode == 0 or not check, f"{' '.join(map(str, args))}: {r.returncode}\n{r.stdout}"
        return r.stdout

    def sh(self, text, **kw):
        return self.run("sh", "-ec", text, **kw)

    def start(self, *args):
        """A process that runs on; what it says is in its log. It is a child of nsenter, which passes no signal on."""
        log = open(unique("log"), "w+")
        at_end(log.close)
        process = subprocess.Popen(self.command(*args), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        at_end(process.wait, 30)
        child = wait_for(lambda: child_of(process) or process.poll() is not None, "the process in the root")
        process.terminate = lambda: process.poll() is None and os.kill(child, signal.SIGTERM)
        at_end(process.terminate)
        process.log = log.name
        return process

    def file(self, *names):
        """The path of one of the root's own files, from outside."""
        return os.path.join(self.path, *map(str, names))

    def inside(self, *names):
        """The same as the root's processes see it, with what they have mounted."""
        return os.path.join(f"/proc/{self.init}/root", *map(str, names))

    def put(self, *paths):
        for path in paths:
            shutil.copy(path, self.file("root"))

    def files(self):
        """All its files and folders, but those of devices, processes and what a package manager keeps of itself."""
        left_out = ("/dev", "/proc", "/sys", "/run", "/tmp", "/root", "/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/var/lib/systemd",
                    "/etc/resolv.conf", "/etc/ld.so.cache")
        found = set()
        for folder, folders, files in os.walk(self.path):
            inside = folder[len(self.path):]
            if inside.startswith(left_out):
                folders.clear()
                continue
            found |= {f"{inside}/{name}" for name in [*folders, *files]}
        return {path for path in found if not path.startswith(left_out)}


def try_out(root, wsync="wsync"):
    """An agent in the root publishes, a mount there shows it, and a reader reads the published bytes: (agent, mount)."""
    folder, port = root.file("root/checkpoint"), free_port()
    shutil.copytree(checkpoint(MEDIUM, seed=1), folder)
    os.makedirs(root.inside("run/wsync"), exist_ok=True)
    agent = root.start(wsync, "agent", "--listen", f"127.0.0.1:{port}", "--socket", "/run/wsync/agent.sock")
    publishes(root, 1, wsync)
    os.makedirs(root.file("wsync"), exist_ok=True)
    mount = root.start(wsync, "mount", "-f", f"http://127.0.0.1:{port}", "/wsync")
    reads(root, 1)
    return agent, mount


def address(agent):
    """Where an agent of try_out listens."""
    return agent.args[agent.args.index("--listen") + 1]


def is_this_commit(root, wsync="wsync"):
    """Asserts that the command in the root is this commit's, with CUDA and NCCL."""
    said = root.run(wsync, "version")
    assert script("version", "commit").strip() in said, said
    assert re.search(r"^CUDA \d", said, re.M) and re.search(r"^NCCL \d", said, re.M), said


def has_charts(agent):
    """Asserts that the agent's page has its charts: the build that is in the package found their library."""
    with urllib.request.urlopen(f"http://{address(agent)}/", timeout=20) as page:
        assert b"Chart.js" in page.read()


def publishes(root, version, wsync="wsync"):
    """Publishes the root's checkpoint as a version, as soon as the agent listens."""
    wait_for(lambda: os.path.exists(root.inside("run/wsync/agent.sock")), "the agent's socket", 60)
    root.run(wsync, "publish", "--agent", "unix:/run/wsync/agent.sock", "--model", "actor", "--version", version, "/root/checkpoint")


def reads(root, version):
    """Asserts that the root's mount shows the version with the bytes of the root's checkpoint."""
    wait_for(lambda: os.path.isdir(root.inside("wsync/actor", version)), f"actor/{version} in the root", 60)
    assert tensors_of(root.inside("wsync/actor", version, "model.safetensors")) == tensors_of(root.file("root/checkpoint/model.safetensors"))
