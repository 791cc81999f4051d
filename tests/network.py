"""Hosts in network namespaces whose links can be cut, restored and slowed down."""
import contextlib
import ctypes
import json
import os
import subprocess

import pytest

from world import at_end

NEW_NET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


def enter(fd):
    if libc.setns(fd, NEW_NET):
        raise OSError(ctypes.get_errno(), "setns")


class Network:
    """One network namespace per name (10.77.0.1 and up), joined by a bridge in another one. Only the network is separate: files and
    mounts are shared."""

    made = 0

    def __init__(self, names):
        self.prefix = f"wsync{os.getpid()}x{Network.made}"
        Network.made += 1
        for name in ("hub", *names):
            done = subprocess.run(["ip", "netns", "add", self.prefix + name], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
            at_end(subprocess.run, ["ip", "netns", "del", self.prefix + name], check=True)
        for kind in ("bridge", "veth"):
            done = self.ip("hub", f"link add name {kind} type {kind}", check=False)
            if done.returncode:
                pytest.skip(f"no {kind} here: {done.stderr.strip()}")
        self.ip("hub", "link set bridge up")
        self.names = list(names)
        for name in names:
            self.ip("hub", f"link add name {name} type veth peer name eth0 netns {self.prefix}{name}")
            self.ip("hub", f"link set {name} master bridge up")
            self.ip(name, "link set lo up")
            self.ip(name, f"addr add {self.address(name)}/24 dev eth0")
            self.ip(name, "link set eth0 up")
        if len(self.names) ** 2 > 256:
            self.introduce()

    def address(self, name):
        return f"10.77.0.{self.names.index(name) + 1}"

    def introduce(self):
        """Tells each where all others are. All namespaces share one table of what was learned, of 1024 entries at most; where it is full,
        nobody can connect to somebody new. What is permanent does not count."""
        known = ""
        for name in self.names:
            mac = json.loads(self.ip(name, "-j link show eth0").stdout)[0]["address"]
            known += f"neigh replace {self.address(name)} lladdr {mac} nud permanent dev eth0\n"
        for name in self.names:
            subprocess.run(["ip", "-n", self.prefix + name, "-batch", "-"], input=known, text=True, check=True)

    def ip(self, name, command, check=True):
        done = subprocess.run(["ip", "-n", self.prefix + name, *command.split()], capture_output=True, text=True)
        assert not (check and done.returncode), f"ip {command}: {done.stderr}"
        return done

    @contextlib.contextmanager
    def inside(self, name):
        """Processes and connections started within it are in that namespace. It applies to this thread and its children."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(f"/run/netns/{self.prefix}{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(there)
            yield
        finally:
            enter(home)
            os.close(home)
            os.close(there)

    def cut(self, name):
        """Takes the link down: both ends notice."""
        self.ip("hub", f"link set {name} down")

    def mend(self, name):
        self.ip("hub", f"link set {name} up")

    def lose(self, name):
        """Drops packets further along the way: what is sent is lost without notice."""
        self.ip("hub", f"link set {name} nomaster")

    def find(self, name):
        self.ip("hub", f"link set {name} master bridge")

    def slow(self, name, mbit, sends=False, burst="64kb"):
        """Limits the rate at which the node receives, and with sends also the rate at which it sends."""
        where = [f"{self.prefix}{name}", "eth0"] if sends else [f"{self.prefix}hub", name]
        done = subprocess.run(["tc", "-n", where[0], "qdisc", "replace", "dev", where[1], "root", "tbf", "rate", f"{mbit}mbit",
                               "burst", burst, "latency", "50ms"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no slow links here: {done.stderr.strip()}")

    def moved(self):
        "{node: (bytes that it received, bytes that it sent)}, with the heads of all packets"
        with self.inside("hub"), open("/proc/thread-self/net/dev") as f:
            lines = [line.split(":") for line in f.read().splitlines()[2:]]
        counts = {name.strip(): list(map(int, counts.split())) for name, counts in lines}
        return {name: (counts[name][8], counts[name][0]) for name in self.names}

    def fast(self, name):
        subprocess.run(["tc", "-n", f"{self.prefix}hub", "qdisc", "del", "dev", name, "root"], check=True)
