#!/usr/bin/env python3
# sanitizers: address thread
"""Versions that are shared device to device: ranks, their agent, and who opens them, over the stand-in driver (tests/fakes)."""
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time

from world import BUILD, SLOW, Agent, Skip, run, unique, wait_for

DRIVER = os.path.join(BUILD, "tests/fakes/libcuda.so.1")
FAKE = "devices=2,memory=256M,delay=200,seed=3"
ALL = {1: 6, 2: 8}  # pieces on GPUs, by ranks: rows and flat of each, turned, back, master, big
PLAIN = 3


def need_driver():
    if not os.path.exists(DRIVER):
        raise Skip("built without CUDA's headers: no stand-in driver")


class Refused(Exception):
    def __init__(self, line):
        _, number, self.text = line.split(" ", 2)
        self.errno = os.strerror(int(number))
        self.number = int(number)
        super().__init__(line)


class Tool:
    """A process that answers a line for a line."""

    def __init__(self, stack, name, *args, fake=FAKE, driver=DRIVER, **kw):
        env = dict(os.environ, WSYNC_LIBCUDA=driver, WSYNC_FAKE_CUDA=fake)
        self.log_path = unique(name) + ".log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([os.path.join(BUILD, "tests/tools", name), *map(str, args)], env=env, text=True, bufsize=1,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, **kw)
        stack.callback(self.end)
        self.pid = self.process.pid
        line = self.answer()
        if not line or not line.startswith("ready"):
            raise AssertionError(f"{line!r} {self.log()}")

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def send(self, command):
        self.process.stdin.write(command + "\n")

    def answer(self, seconds=60):
        timer = threading.Timer(seconds * SLOW, self.process.kill)
        timer.start()
        line = self.process.stdout.readline().strip()
        timer.cancel()
        if not line:
            raise AssertionError(f"no answer: {self.process.wait(10)} {self.log()}")
        if line.startswith("error"):
            raise Refused(line)
        return line

    def ask(self, command, seconds=60):
        self.send(command)
        return self.answer(seconds)

    def refused(self, command, word=""):
        """The number of the error, whose sentence has the word."""
        try:
            line = self.ask(command)
        except Refused as e:
            assert word in e.text, f"'{e.text}' does not say '{word}'"
            return e.number
        raise AssertionError(f"'{command}' was answered: {line}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30 * SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.process.args[0]} did not end: {self.log()}")
        self.process.stdout.close()
        assert "Sanitizer" not in self.log(), self.log()
        code = self.process.returncode
        assert code in (0, -signal.SIGKILL), f"{self.process.args} ended with {code}: {self.log()}"


ENOENT, EBUSY, EINVAL, ENODEV, EXDEV, ENOTSUP, ETIMEDOUT, ESTALE, EMFILE = 2, 16, 22, 19, 18, 95, 110, 116, 24


def agent_of(stack):
    need_driver()
    return Agent(stack)


def rank_of(stack, agent, *args, rank=0, world=1, model="actor", **kw):
    return Tool(stack, "gpu_rank", f"unix:{agent.sock}", model, rank, world, *args, **kw)


def reader_of(stack, agent, model="actor", **kw):
    return Tool(stack, "gpu_reader", f"unix:{agent.sock}", model, **kw)


def offload(ranks, version, how="offload"):
    for r in ranks:
        r.send(f"{how} {version}")
    for r in ranks:
        r.answer()
    ranks[0].ask(f"wait {version}")


def status(agent, model="actor"):
    """{version: what the agent's status says of it}."""
    found = [m for m in agent.get("/v1/status")["models"] if m["name"] == model]
    return {v["version"]: v for v in (found[0].get("gpu", []) if found else [])}


def opens(reader, version, pieces):
    assert reader.ask(f"open {version}") == f"opened {version} {pieces}"
    good = reader.ask(f"check {version}").split()
    assert good[:3] == ["good", str(version), str(pieces)], good


def test_parameters(stack):
    """cuda_ipc: strided, transposed, reversed and converted parameters are opened where they are, byte for byte"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=cuda_ipc"), reader_of(stack, agent)
    offload([rank], 1)
    opens(reader, 1, ALL[1])
    assert "master:0:F32:converts" in reader.ask("names 0").split()
    assert status(agent)[1]["holders"] == f"pid {reader.pid}"
    assert reader.ask("close 0") == "closed"
    wait_for(lambda: status(agent)[1]["leases"] == 0, "the lease's end")
    rank.ask("unshare 5000")
    assert reader.refused("open 1", "any more") == ENOENT
    assert reader.refused("open 0", "no version") == ENOENT
    assert status(agent) == {}


def test_mapped(stack):
    """cuda_ipc: mappings side by side come as one segment of descriptors, with parameters across their borders"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=cuda_ipc", "vmm"), reader_of(stack, agent)
    offload([rank], 7)
    opens(reader, 7, ALL[1])


def test_packed(stack):
    """packed_cuda_ipc: buffers in turn, offsets of 256, the parameters are the trainer's again at once"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=packed_cuda_ipc"), reader_of(stack, agent)
    for version in range(1, 5):
        offload([rank], version)
        rank.ask(f"fill {version + 1000}")
        opens(reader, version, ALL[1])
        assert reader.ask("close 0") == "closed"
    assert sorted(status(agent)) == [3, 4]
    opens(reader, 3, ALL[1])
    assert reader.refused("open 2", "") == ENOENT


if __name__ == "__main__":
    run(test_parameters, test_mapped, test_packed)
