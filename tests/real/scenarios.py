"""The scenarios for every kind of real server. Servers take half a minute to start, so one world is shared by a test file (its fixture w,
with servers from its fixture kind), and each test begins by switching it to the version that it needs."""
import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from servers import ASK_SECONDS, CLOSE, HERE, PROMPTS, Proxy, Stream, distance, need_real
from world import Agent, Mount, at_end, scope, unique, wait_for

MODEL = "actor"
DAMAGED = {"missing": 4, "shape": 5, "dtype": 6}


class Ground:
    """An agent that has versions 1 and 2, and a mount."""

    agent_options = ()

    def __init__(self, *kinds):
        for kind in kinds:
            need_real(kind.package)
        self.next = 100  # numbers of versions that tests make
        self.folders = unique("checkpoints")
        subprocess.run([sys.executable, os.path.join(HERE, "checkpoints.py"), self.folders], check=True, timeout=120,
                       stdin=subprocess.DEVNULL)
        self.agent = Agent(*self.agent_options)
        self.publish(1, 1)
        self.publish(2, 2)
        self.mount = Mount(self.agent.url)
        self.mount.wait_version(MODEL, 2)
        for version in (1, 2):  # the agent forgets these when it publishes others
            self.mount.write(f"pull {version}", f"{MODEL}/ctl")
            self.mount.write(f"pin {version}", f"{MODEL}/ctl")

    def folder(self, name):
        return os.path.join(self.folders, str(name))

    def path(self, version):
        return self.mount.file(MODEL, version)

    def publish(self, version, name, **kw):
        return self.agent.publish(MODEL, version, self.folder(name), **kw)

    def another(self, name):
        """Publishes the folder as a new version; returns its number."""
        self.next += 1
        self.publish(self.next, name)
        self.mount.wait_version(MODEL, self.next)
        return self.next

    def switch(self, version):
        started = time.monotonic()
        self.mount.write(version, f"{MODEL}/version")
        return started, time.monotonic()

    def force(self, version):
        self.mount.write(f"load {version} force-layout", f"{MODEL}/ctl")

    def refused(self, text, *names):
        """The errno's name of a write that must fail."""
        try:
            self.mount.write(text, *(names or (f"{MODEL}/version",)))
        except OSError as e:
            return errno.errorcode[e.errno]
        raise AssertionError(f"'{text}' was taken")

    def last_error(self):
        return self.mount.text(f"{MODEL}/last_error")

    def engine(self, name, server, options=""):
        """Registers a server, or a proxy, for the duration of a test."""
        self.mount.write(f"engine add {name} {server.kind} {server.url} {options}", f"{MODEL}/ctl")
        at_end(lambda: self.mount.write(f"engine remove {name}", f"{MODEL}/ctl"))

    def engines(self):
        return dict(line.split(" ", 1) for line in self.mount.text(f"{MODEL}/engines").splitlines())


class World(Ground):
    """A server on the mount's version 1, and the answers of fresh servers."""

    def __init__(self, kind):
        super().__init__(kind)
        self.kind = kind
        # The reference servers are on ordinary folders and keep running. Most of a start is one thread's work: all three start at once.
        self.ordinary = {v: kind(self.folder(v), *kind.uncached) for v in (1, 2)}
        self.server = kind(self.path(1), *kind.uncached)
        for server in (*self.ordinary.values(), self.server):
            server.wait()
        self.answers = {v: s.answers() for v, s in self.ordinary.items()}
        self.score = {v: s.score(PROMPTS[2]) for v, s in self.ordinary.items()}
        assert distance(self.answers[1], self.answers[2]) > 10 * CLOSE

    def need_kind(self):
        # No server listens at that port: a known kind fails later.
        if self.refused(f"engine add none {self.kind.kind} http://127.0.0.1:1", f"{MODEL}/ctl") == "EINVAL":
            pytest.skip(f"this wsync knows no kind of engine named {self.kind.kind}")

    def check(self, server, version):
        assert server.answers() == self.answers[version], f"other answers than a fresh server on {version}"


def next_tokens(server):
    """Log probabilities of the next tokens: the part of an answer that a cached prefix changes."""
    return [server.complete(prompt, 1)[1][0] for prompt in PROMPTS]


def judge(w, stream, switches, pause):
    """Whether each answer equals that of a version served while it was requested."""
    assert not stream.lost, (len(stream.lost), stream.lost[:3])

    def served(start, end):
        last = [*(end for _, end, _ in switches[1:]), float("inf")]  # until the next switch had finished
        return {v for (begin, _, v), until in zip(switches, last) if begin <= end and start <= until}

    seen = dict.fromkeys(w.score, 0)
    for start, end, answer in stream.scores:
        of = [v for v in served(start, end) if distance(answer, w.score[v]) < CLOSE]
        assert len(of) == 1, (start, end, switches, {v: distance(answer, w.score[v]) for v in w.score})
        seen[of[0]] += 1
    assert min(seen.values()) > 5, seen
    texts = [(served(start, end), tokens, answer) for start, end, tokens, answer in stream.texts]
    scores = {}
    for v in (2, 1):
        w.switch(v)
        scores[v] = [w.server.score(PROMPTS[0] + tokens)[len(PROMPTS[0]) - 1 :] for _, tokens, _ in texts]
    whole = straddled = 0
    for i, (versions, _, answer) in enumerate(texts):
        if any(distance(answer, scores[v][i]) < CLOSE for v in versions):
            whole += 1
        else:  # it began with one version and continued with another
            assert len(versions) > 1, (versions, {v: distance(answer, s[i]) for v, s in scores.items()})
            assert any(abs(answer[0] - scores[v][i][0]) < CLOSE for v in versions)
            straddled += 1
    longest = max(end - begin for begin, end, _ in switches)
    print(f"# pause={pause}: {sum(seen.values())} scores, by version {seen}; {whole} texts of one version, {straddled} straddled; "
          f"a switch took {longest * 1000:.0f} ms at most", flush=True)
    assert whole, "no text was of one version"
    assert pause != "wait" or not straddled, "a request went on through a pause that waits for its end"


def test_fresh(w):
    "a server started on the mount answers bit for bit like one on an ordinary folder"
    w.check(w.server, 1)


def test_first_gate(w, kind):
    "before the first switch a version is compared with the one that the engine was started on"
    w.need_kind()
    w.publish(3, "missing")
    w.mount.wait_version(MODEL, 3)
    proxy = Proxy(w.server)
    w.engine("e1", proxy)
    at_end(lambda: w.mount.write("load 1 force-layout", f"{MODEL}/ctl"))  # also after a failure
    proxy.seen.clear()
    assert w.refused(3) == "EPROTO"
    assert not set(proxy.seen) & set(kind.pauses), proxy.seen


def test_switch(w, kind):
    "after switches in both directions servers on the mount and on a folder answer like fresh ones"
    w.need_kind()
    w.engine("e1", w.server)
    w.engine("e2", w.ordinary[1])
    for version in ("1", "2", "1", "previous", "1", "2"):
        w.switch(version)
        now = w.mount.text(f"{MODEL}/version").strip()
        assert now == {"previous": "2"}.get(version, version), now
        assert os.readlink(w.mount.file(MODEL, "current")) == now
        for server in (w.server, w.ordinary[1]):
            w.check(server, int(now))
            assert server.serves() == now
    assert w.engines()["e1"].startswith(f"serving 2 {kind.kind}"), w.engines()


def test_paused(w, kind):
    "a request that arrives during a load waits, and the new version answers it"
    w.need_kind()
    early, late = [], []

    def ask():
        late.append(w.server.score(PROMPTS[2]))

    def before_load():
        threads.append(threading.Thread(target=ask))
        threads[0].start()
        time.sleep(1)
        early.extend(late)

    threads, hooks = [], {}
    w.engine("e1", Proxy(w.server, hooks))
    w.switch(1)
    hooks[kind.load_path] = before_load
    w.switch(2)
    threads[0].join(ASK_SECONDS)
    assert not early, "the server was not paused when it was told to load"
    assert distance(late[0], w.score[2]) < CLOSE


def test_stream(w, kind):
    "requests continue during switches: none is lost, each is answered by one version or straddles a switch"
    w.need_kind()
    for pause in kind.lossless:
        with scope():
            w.engine("e1", w.server, f"pause={pause}")
            w.switch(1)
            switches = [(0.0, 0.0, 1)]
            stream = Stream(w.server)
            for version in (2, 1, 2, 1, 2):
                stream.settle()
                switches.append((*w.switch(version), version))
            stream.settle()
            stream.end()
            w.check(w.server, 2)
            judge(w, stream, switches, pause)


def test_gate(w, kind):
    "a version with a missing tensor or another shape or dtype is refused before the server is contacted"
    w.need_kind()
    proxy = Proxy(w.server)
    w.engine("e1", proxy)
    w.switch(2)
    for name, version in DAMAGED.items():
        w.publish(version, name)
        w.mount.wait_version(MODEL, version)
        proxy.seen.clear()
        assert w.refused(version) == "EPROTO"
        assert "layers.1.mlp.down_proj" in w.mount.text(f"{MODEL}/last_error")
        assert not set(proxy.seen) & set(kind.pauses), proxy.seen
        assert w.mount.text(f"{MODEL}/version") == "2\n"
    w.check(w.server, 2)
    r = w.publish(7, "truncated", check=False)
    assert r.returncode == 1 and "safetensors" in r.stderr, r.stderr


def test_forced(w):
    "force-layout: another dtype is cast, a missing tensor gives a mix; switching back leaves nothing of it"
    w.need_kind()
    w.engine("e1", w.server)
    w.switch(1)
    for name, back in (("dtype", 1), ("missing", 2)):
        version = w.another(name)
        assert w.refused(version) == "EPROTO"
        w.force(version)
        assert w.mount.text(f"{MODEL}/version") == f"{version}\n" and w.server.serves() == str(version)
        assert w.engines()["e1"].startswith(f"serving {version} "), w.engines()
        if name == "dtype":
            w.check(w.server, 2)  # the same version, in wider numbers
        else:
            mixed = w.server.score(PROMPTS[2])
            assert all(distance(mixed, score) > CLOSE for score in w.score.values())
        assert w.refused(back) == "EPROTO"  # the gate compares with what is served now
        w.force(back)
        w.check(w.server, back)


def test_killed(w, kind):
    "a server killed during its load: the switch fails, the version and the other server stay"
    w.need_kind()
    victim = w.ordinary[2]

    def freeze():
        """The load was requested and cannot end."""
        for pid in victim.workers():
            os.kill(pid, signal.SIGSTOP)
        threading.Timer(1, victim.kill).start()

    hooks = {}
    w.engine("e1", w.server)
    w.engine("victim", Proxy(victim, hooks))
    w.switch(1)
    w.check(victim, 1)
    hooks[kind.load_path] = freeze
    got = w.refused(2)
    assert got in ("EREMOTEIO", "ECONNRESET", "EHOSTUNREACH"), (got, w.mount.text(f"{MODEL}/last_error"))
    assert "victim" in w.mount.text(f"{MODEL}/last_error")
    wait_for(lambda: not victim.alive(), "the end of the victim")
    assert w.mount.text(f"{MODEL}/version") == "1\n" and os.readlink(w.mount.file(MODEL, "current")) == "1"
    assert w.engines()["victim"].split()[0] in ("unknown", "broken"), w.engines()
    assert w.engines()["e1"].startswith("serving 1 "), w.engines()
    w.check(w.server, 1)


def test_late(w, kind):
    "a server started before a switch and added after it is reconciled; its prefix cache keeps nothing old"
    w.need_kind()
    w.engine("e1", w.server)
    w.switch(1)
    late = kind(w.path("current"), *kind.cached).wait()
    fresh = next_tokens(late)
    w.switch(2)
    w.engine("late", late)
    assert next_tokens(late) == fresh, "adding it changed it"
    w.mount.write("engine sync late", f"{MODEL}/ctl")
    assert late.serves() == "2"
    for version in (None, 1, 2):
        if version:
            w.switch(version)
        version = version or 2
        w.check(w.server, version)
        for _ in range(2):  # from the cache the second time
            got = next_tokens(late)
            assert distance(got, next_tokens(w.server)) < CLOSE, (version, got)
    assert w.engines()["late"].startswith("serving 2 "), w.engines()
