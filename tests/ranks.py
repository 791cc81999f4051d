"""Ranks of a trainer whose tensors hold values computed from version and position (tests/tools/rank.c), and readers that check every byte
of every version they see."""
import functools
import os
import subprocess
import threading
import time

import numpy as np

from world import BUILD, SLOW, at_end, tensors_of, unique

COLUMNS, ALL, TAIL = 64, (64, 65), 4321


@functools.lru_cache(maxsize=8)
def base(n):
    i = np.arange(n, dtype=np.uint64)
    return (i * 31 + (i >> 11)).astype(np.uint16)


def value(version, n):
    """The first n elements of any tensor in a version."""
    return base(n) + np.resize(((version + np.arange(64)) // 64).astype(np.uint16), n)


@functools.lru_cache(maxsize=8)
def expected(version, elements, more=None):
    """{name: (dtype, shape, bytes)} of a version."""
    rows, flat = elements // COLUMNS, elements // 2 + 7
    out = {"rows": ("BF16", [rows, COLUMNS], value(version, rows * COLUMNS)), "flat": ("U16", [flat], value(version, flat)),
           "all": ("U16", list(ALL), value(version, ALL[0] * ALL[1])), "tail": ("U8", [TAIL], value(version, TAIL).astype(np.uint8))}
    if more is not None:
        out[f"{more}.x"] = ("U16", [3], value(version, 3))
    return {name: (dtype, shape, data.tobytes()) for name, (dtype, shape, data) in out.items()}


class Refused(Exception):
    """The tool's error answer: .errno and .text."""

    def __init__(self, line):
        _, number, self.text = line.split(" ", 2)
        self.errno = int(number)
        super().__init__(line)


class Rank:
    """One rank's process. ask() sends a command and waits for the answer; send() and answer() are its halves."""

    build = BUILD

    def __init__(self, agent, model, rank, world, elements, *args):
        self.rank = rank
        self.log_path = unique("rank") + ".log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([os.path.join(self.build, "tests/tools/rank"), f"unix:{agent.sock}", model, *map(str, (rank, world, elements)), *args],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)
        at_end(self.end)
        self.pid = self.process.pid
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            raise AssertionError(f"rank {rank}: {line!r} {self.log()}")

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def send(self, command):
        try:
            self.process.stdin.write(command + "\n")
        except BrokenPipeError:
            pass  # it was killed: answer() reports that

    def answer(self, seconds=60):
        """The answer line, or None if the rank is dead. A rank that does not answer in time is killed."""
        timer = threading.Timer(seconds * SLOW, self.process.kill)
        timer.start()
        line = self.process.stdout.readline().strip()
        late = timer.finished.is_set()
        timer.cancel()
        if late and not line:
            raise AssertionError(f"rank {self.rank} did not answer within {seconds * SLOW} s: {self.log()}")
        if not line:
            return None
        if line.startswith("error"):
            raise Refused(line)
        return line

    def ask(self, command, seconds=60):
        self.send(command)
        line = self.answer(seconds)
        if line is None:
            raise AssertionError(f"rank {self.rank} ended at '{command}' with {self.process.wait(10)}: {self.log()}")
        return line

    def kill(self):
        self.process.kill()
        self.reap()

    def reap(self):
        """Collects a rank that is dead or about to end by itself."""
        code = self.process.wait(60 * SLOW)
        self.process.stdout.close()
        return code

    def end(self):
        if self.process.stdout.closed:
            return
        try:
            self.process.stdin.close()
            code = self.process.wait(30 * SLOW)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.kill()
            return
        self.process.stdout.close()
        if code:
            raise AssertionError(f"rank {self.rank} ended with {code}: {self.log()}")


def ask_all(ranks, command, seconds=60):
    """Asks all ranks at once; [answer or Refused]."""
    for r in ranks:
        r.send(command)
    out = []
    for r in ranks:
        try:
            out.append(r.answer(seconds))
        except Refused as e:
            out.append(e)
    return out


class Reader(threading.Thread):
    """Reads the newest version of a mount repeatedly, opening the file each time, and checks every byte. .versions: how often it saw each
    version; .wrong: the first wrong read. A version that was dropped meanwhile is no error."""

    def __init__(self, mount, model, elements, more=None):
        super().__init__(daemon=True)
        self.mount, self.model, self.elements, self.more = mount, model, elements, more
        self.versions, self.wrong, self.refused, self.ended = {}, None, 0, False
        at_end(self.stop)
        self.start()

    def right(self, version):
        return expected(version, self.elements, self.more)

    def look(self):
        folder = self.mount.file(self.model)
        try:
            found = [n for n in os.listdir(folder) if n.isdigit()]
        except FileNotFoundError:
            return False
        if not found:
            return False
        version = max(map(int, found))
        try:
            got = tensors_of(self.mount.file(self.model, version, "model.safetensors"))
        except OSError:
            self.refused += 1
            return False
        if got != self.right(version):
            self.wrong = self.wrong or describe(version, got, self.right(version))
        self.versions[version] = self.versions.get(version, 0) + 1
        return True

    def run(self):
        while not self.ended and not self.wrong:
            self.look()
            time.sleep(0.01)  # checking must not use more of the machine than the daemons do

    def stop(self):
        self.ended = True
        self.join(60 * SLOW)
        if self.is_alive():
            raise AssertionError("a reader hangs")
        if self.wrong:
            raise AssertionError(self.wrong)


def describe(version, got, want):
    """Which elements are of which version, for failure messages."""
    for name in sorted(set(got) | set(want)):
        if got.get(name, ())[:2] != want.get(name, ())[:2]:
            return f"version {version}: {name} is {got.get(name, ())[:2]} instead of {want.get(name, ())[:2]}"
        a, b = (np.frombuffer(x[name][2], np.uint8) for x in (got, want))
        differ = np.flatnonzero(a != b)
        if len(differ):
            return (f"version {version}: {name} has {len(differ)} wrong bytes of {len(a)}, from {differ[0]} to {differ[-1]}: "
                    f"{got[name][2][differ[0]:differ[0] + 8].hex()} instead of {want[name][2][differ[0]:differ[0] + 8].hex()}")
    return f"version {version} differs"


def rss(pid):
    """The process's private resident bytes: anonymous memory, without shared slots."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) * 1024
