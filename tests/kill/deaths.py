#!/usr/bin/env python3
"""Deaths: the daemon of a supervised mount is killed a thousand times under those who use the mount.

An agent, whose rank publishes a version every PUBLISH kills, and a mount with --supervised. Beside them: readers that follow the link latest, look up a
name that was never there, open the version's file, map and read all of it, and list its folder: one without pause, and two that compare every
byte, of which one is in a mount namespace of its own, by a bind mount; and one that has a file open and mapped from before the first kill. Each kill is a
row of build/deaths.jsonl: gap_ms, the longest round of the first from the kill until the next daemon answers, and moved, the bytes that the
daemon before it had fetched; a takeover by this binary is one, too, every TAKEOVER kills.

    make deaths KILLS=1000          PUBLISH=25 TAKEOVER=50 ELEMENTS=1048576 PAUSE=0.3 (seconds between two kills, at most)

It can be stopped and begun again: it goes on until there are KILLS rows of these settings. It ends with 1 where anybody failed or a byte was
wrong; gaps it prints, for a person."""
import collections
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from ranks import Rank, expected  # noqa: E402
from supervised import *  # noqa: E402

KILLS, PUBLISH, TAKEOVER, ELEMENTS = (int(os.environ.get(n, d)) for n, d in (("KILLS", 1000), ("PUBLISH", 25), ("TAKEOVER", 50), ("ELEMENTS", 1 << 20)))
PAUSE = float(os.environ.get("PAUSE", 0.3))
ROWS = os.path.join(BUILD, "deaths.jsonl")
SETTINGS = [PUBLISH, TAKEOVER, ELEMENTS, PAUSE]


def use(path, compares):
    """A reader's process: prints when each round began and ended, and "failed" with what failed."""
    n = 0
    while True:
        began = time.monotonic()
        try:
            version = os.readlink(path + "/actor/latest")
            folder = f"{path}/actor/{version}"
            assert not os.path.exists(f"{path}/actor/{version}.{n}.never"), "what is not there"
            assert "model.safetensors" in os.listdir(folder), "the folder"
            with open(folder + "/model.safetensors", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                assert f.read() == m[:], "read and mapped"
            ended = time.monotonic()
            if not compares:
                print(began, ended, flush=True)
                continue
            got = {k: bytes(t[2]) for k, t in tensors_of(folder + "/model.safetensors").items()}
            assert got == {k: t[2] for k, t in expected(int(version), ELEMENTS).items()}, "other bytes"
        except Exception as e:
            print("failed", repr(e), flush=True)
            ended = time.monotonic()
        print(began, ended, flush=True)
        n += 1


class Reader(threading.Thread):
    """Of such a process: its rounds, and what failed."""

    def __init__(self, path, *prefix, compares=True):
        super().__init__(daemon=True)
        self.rounds, self.failed, self.n = collections.deque(maxlen=1000), [], 0
        self.process = subprocess.Popen([*prefix, sys.executable, os.path.abspath(__file__), "use", path, "compares" if compares else ""], stdout=subprocess.PIPE, text=True)
        at_end(self.process.kill)
        self.start()

    def run(self):
        for line in self.process.stdout:
            if line.startswith("failed"):
                self.failed.append(line.strip())
            else:
                self.rounds.append(tuple(map(float, line.split())))
                self.n += 1

    def gap(self, begin, end):
        "the longest round that was under way then"
        wait_for(lambda: self.rounds and self.rounds[-1][0] > end, "a reader's next round", 60)
        return max(e - b for b, e in list(self.rounds) if e > begin and b < end)


class Deaths:
    def __init__(self, rows):
        self.agent = Agent()
        self.rank = Rank(self.agent, "actor", 0, 1, ELEMENTS, "run=deaths", "timeout=60000")
        self.mount = Supervised(self.agent.url, "keep=3")
        self.version, self.rows, self.is_new = 0, rows, False
        self.publish()
        self.held = open(self.mount.file("actor/1/model.safetensors"), "rb", buffering=0)
        self.mapped = mmap.mmap(self.held.fileno(), 0, prot=mmap.PROT_READ)
        self.before = self.mapped[:]
        elsewhere = open_to_all()
        subprocess.run(["mount", "--bind", self.mount.path, elsewhere], check=True)
        at_end(subprocess.run, ["umount", "-l", elsewhere])
        self.readers = [Reader(self.mount.path, compares=False), Reader(self.mount.path), Reader(elsewhere, "unshare", "-m", "--propagation", "private")]
        for r in self.readers:
            wait_for(lambda: r.n > 0, "a reader's first round", 60)

    def publish(self):
        self.version += 1
        self.is_new = True
        self.rank.ask(f"offload {self.version}")
        self.rank.ask(f"wait {self.version}")
        self.mount.wait_version("actor", self.version)
        with open(self.mount.file("actor", self.version, "model.safetensors"), "rb") as f:
            f.read()

    def moved(self):
        return int(re.search(r"^wsync_moved_bytes_total (\d+)", self.mount.text("metrics"), re.M)[1])

    def held_is_same(self):
        self.held.seek(0)
        return self.held.read() == self.before == self.mapped[:]

    def one(self, n):
        if PUBLISH and n % PUBLISH == 0:
            self.publish()
        time.sleep(random.random() * PAUSE)
        row = {"settings": SETTINGS, "new": self.is_new, "moved": self.moved(), "how": "kill"}
        self.is_new = False
        if TAKEOVER and n % TAKEOVER == 0:
            row["how"], at = "takeover", time.monotonic()
            wsync("mount", "--takeover", self.mount.path)
        else:
            daemon, at = self.mount.daemon, time.monotonic()
            os.kill(daemon, signal.SIGKILL)
            wait_for(lambda: set(self.mount.children()) - {str(daemon)}, "the next daemon")
            self.mount.text("status")
        row["gap_ms"] = round(1000 * self.readers[0].gap(at, time.monotonic()), 1)
        with open(ROWS, "a") as f:
            f.write(json.dumps(row) + "\n")
        self.rows.append(row)

    def failed(self):
        return [f for r in self.readers for f in r.failed] + ([] if self.held_is_same() else ["what was open and mapped has other bytes"])

    def run(self):
        while len(self.rows) < KILLS and not self.failed():
            self.one(len(self.rows) + 1)
            if len(self.rows) % 50 == 0:
                print(f"# {len(self.rows)} deaths, {sum(r.n for r in self.readers)} rounds of readers", flush=True)


def table(rows):
    for how in ("kill", "takeover"):
        gaps = sorted(r["gap_ms"] for r in rows if r["how"] == how)
        if gaps:
            print(f"{how:10}{len(gaps):6}   gap median {gaps[len(gaps) // 2]} ms, 99 of 100 {gaps[len(gaps) * 99 // 100]} ms, max {gaps[-1]} ms")
    again = [r["moved"] for r in rows if not r["new"]]
    print(f"bytes that came again, where no version was new: {sum(again)}, by {sum(m > 0 for m in again)} of {len(again)} daemons")


def main():
    if sys.argv[1:2] == ["use"]:
        return use(sys.argv[2], bool(sys.argv[3]))
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        sys.exit("deaths: it mounts, which wants root and /dev/fuse")
    rows, failed = [], []
    if os.path.exists(ROWS):
        with open(ROWS) as f:
            rows = [r for r in map(json.loads, f) if r["settings"] == SETTINGS]
    Supervised.deaths = 1 << 30
    with Scope() as scope:
        Scope.of_tests.append(scope)
        deaths = Deaths(rows)
        try:
            deaths.run()
            failed = deaths.failed()
        except KeyboardInterrupt:
            print("# stopped", flush=True)
    table(rows)
    for problem in failed:
        print(f"FAILED: {problem}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
