"""What every kind of real server has to go through, whoever made it. The servers take half a minute to start, so
one world is made for a script (by the first test) and each test begins by switching it to where it wants it."""
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time

from servers import ASK_SECONDS, CLOSE, HERE, PROMPTS, Proxy, Stream, distance, need_real
from world import Agent, Mount, Skip, unique, wait_for

MODEL = "actor"
DAMAGED = {"missing": 4, "shape": 5, "dtype": 6}


class Ground:
    """An agent that has versions 1 and 2, and a mount."""

    agent_options = ()

    def __init__(self, stack, *kinds):
        for kind in kinds:
            need_real(kind.package)
        self.next = 100  # of the versions that a test makes
        self.folders = unique("checkpoints")
        subprocess.run([sys.executable, os.path.join(HERE, "checkpoints.py"), self.folders], check=True, timeout=120,
                       stdin=subprocess.DEVNULL)
        self.agent = Agent(stack, *self.agent_options)
        self.publish(1, 1)
        self.publish(2, 2)
        self.mount = Mount(stack, self.agent.url)
        self.mount.wait_version(MODEL, 2)
        for version in (1, 2):  # the agent goes on to others and forgets these
            self.mount.write(f"pull {version}", f"{MODEL}/ctl")
            self.mount.write(f"pin {version}", f"{MODEL}/ctl")

    def folder(self, name):
        return os.path.join(self.folders, str(name))

    def path(self, version):
        return self.mount.file(MODEL, version)

    def publish(self, version, name, **kw):
        return self.agent.publish(MODEL, version, self.folder(name), **kw)

    def another(self, name):
        """Publishes it as a version of its own; returns its number."""
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
        """The errno that a write fails with, as a name."""
        try:
            self.mount.write(text, *(names or (f"{MODEL}/version",)))
        except OSError as e:
            return errno.errorcode[e.errno]
        raise AssertionError(f"'{text}' was taken")

    def last_error(self):
        return self.mount.text(f"{MODEL}/last_error")

    def engine(self, stack, name, server, options=""):
        """Registers a server, or a proxy, for the length of a test."""
        self.mount.write(f"engine add {name} {server.kind} {server.url} {options}", f"{MODEL}/ctl")
        stack.callback(lambda: self.mount.write(f"engine remove {name}", f"{MODEL}/ctl"))

    def engines(self):
        return dict(line.split(" ", 1) for line in self.mount.text(f"{MODEL}/engines").splitlines())


class World(Ground):
    """With a server on the mount's version 1, and what fresh servers answer."""

    def __init__(self, stack, kind):
        super().__init__(stack, kind)
        self.kind = kind
        # The references. Those servers stay: they are the ones on ordinary folders.
        self.ordinary = {v: kind(stack, self.folder(v), *kind.uncached).wait() for v in (1, 2)}
        self.answers = {v: s.answers() for v, s in self.ordinary.items()}
        self.score = {v: s.score(PROMPTS[2]) for v, s in self.ordinary.items()}
        assert distance(self.answers[1], self.answers[2]) > 10 * CLOSE
        self.server = kind(stack, self.path(1), *kind.uncached).wait()

    def need_kind(self):
        # There is no server at that port: a kind that is known fails later.
        if self.refused(f"engine add none {self.kind.kind} http://127.0.0.1:1", f"{MODEL}/ctl") == "EINVAL":
            raise Skip(f"this wsync knows no kind of engine named {self.kind.kind}")

    def check(self, server, version):
        assert server.answers() == self.answers[version], f"other answers than a fresh server on {version}"


def next_tokens(server):
    """Log probabilities of what comes next: the part of an answer that a cached prefix changes."""
    return [server.complete(prompt, 1)[1][0] for prompt in PROMPTS]


def judge(w, stream, switches, pause):
    """Is each answer one of a version that was served while it was asked for?"""
    assert not stream.lost, (len(stream.lost), stream.lost[:3])

    def served(start, end):
        last = [*(end for _, end, _ in switches[1:]), float("inf")]  # until the next switch was over
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
        else:  # it began as one version and went on as another
            assert len(versions) > 1, (versions, {v: distance(answer, s[i]) for v, s in scores.items()})
            assert any(abs(answer[0] - scores[v][i][0]) < CLOSE for v in versions)
            straddled += 1
    longest = max(end - begin for begin, end, _ in switches)
    print(f"# pause={pause}: {sum(seen.values())} scores, by version {seen}; {whole} texts of one version, {straddled} straddled; "
          f"a switch took {longest * 1000:.0f} ms at most", flush=True)
    assert whole, "no text was of one version"
    assert pause != "wait" or not straddled, "a request went on through a pause that waits for its end"


def once(make, *args):
    """A function that gives what the tests of a script share: the first call makes it."""
    made = []

    def get():
        if not made:
            try:
                made.append(make(*args))
            except Exception as e:
                made.append(e)  # half a minute a server: not tried again for each test
        if isinstance(made[0], Exception):
            raise made[0]
        return made[0]

    return get


def scenarios(stack, kind):
    """The tests in their order; what they share ends with the stack."""
    world = once(World, stack, kind)

    def test_fresh(_):
        "a server started on the mount answers bit for bit what one on an ordinary folder does"
        w = world()
        w.check(w.server, 1)

    def test_first_gate(stack):
        "nothing was switched yet: what the engine was started on is what a version is compared with"
        w = world()
        w.need_kind()
        w.publish(3, "missing")
        w.mount.wait_version(MODEL, 3)
        proxy = Proxy(stack, w.server)
        w.engine(stack, "e1", proxy)
        stack.callback(lambda: w.mount.write("load 1 force-layout", f"{MODEL}/ctl"))  # also after a failure
        proxy.seen.clear()
        assert w.refused(3) == "EPROTO"
        assert not set(proxy.seen) & set(kind.pauses), proxy.seen

    def test_switch(stack):
        "switched forth and back, servers from the mount and from a folder answer as fresh ones do"
        w = world()
        w.need_kind()
        w.engine(stack, "e1", w.server)
        w.engine(stack, "e2", w.ordinary[1])
        for version in ("1", "2", "1", "previous", "1", "2"):
            w.switch(version)
            now = w.mount.text(f"{MODEL}/version").strip()
            assert now == {"previous": "2"}.get(version, version), now
            assert os.readlink(w.mount.file(MODEL, "current")) == now
            for server in (w.server, w.ordinary[1]):
                w.check(server, int(now))
                assert server.serves() == now
        assert w.engines()["e1"].startswith(f"serving 2 {kind.kind}"), w.engines()

    def test_paused(stack):
        "a request that comes while weights are loaded waits, and is answered by the new version"
        w = world()
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
        w.engine(stack, "e1", Proxy(stack, w.server, hooks))
        w.switch(1)
        hooks[kind.load_path] = before_load
        w.switch(2)
        threads[0].join(ASK_SECONDS)
        assert not early, "the server was not paused when it was told to load"
        assert distance(late[0], w.score[2]) < CLOSE

    def test_stream(stack):
        "requests go on through switches: none is lost, each is of one version or straddles a switch"
        w = world()
        w.need_kind()
        for pause in kind.lossless:
            with contextlib.ExitStack() as one:
                w.engine(one, "e1", w.server, f"pause={pause}")
                w.switch(1)
                switches = [(0.0, 0.0, 1)]
                stream = Stream(one, w.server)
                for version in (2, 1, 2, 1, 2):
                    stream.settle()
                    switches.append((*w.switch(version), version))
                stream.settle()
                stream.end()
                w.check(w.server, 2)
                judge(w, stream, switches, pause)

    def test_gate(stack):
        "a version that lacks a tensor, has another shape or type is refused before the server hears of it"
        w = world()
        w.need_kind()
        proxy = Proxy(stack, w.server)
        w.engine(stack, "e1", proxy)
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

    def test_forced(stack):
        "force-layout: another dtype is cast, a missing tensor makes a mix; the way back leaves nothing of it"
        w = world()
        w.need_kind()
        w.engine(stack, "e1", w.server)
        w.switch(1)
        for name, back in (("dtype", 1), ("missing", 2)):
            version = w.another(name)
            assert w.refused(version) == "EPROTO"
            w.force(version)
            assert w.mount.text(f"{MODEL}/version") == f"{version}\n" and w.server.serves() == str(version)
            assert w.engines()["e1"].startswith(f"serving {version} "), w.engines()
            if name == "dtype":
                w.check(w.server, 2)  # it is that version, in wider numbers
            else:
                mixed = w.server.score(PROMPTS[2])
                assert all(distance(mixed, score) > CLOSE for score in w.score.values())
            assert w.refused(back) == "EPROTO"  # the gate compares with what is served now
            w.force(back)
            w.check(w.server, back)

    def test_killed(stack):
        "a server killed during its load: the switch fails, the version and the other server stay"
        w = world()
        w.need_kind()
        victim = w.ordinary[2]

        def freeze():
            """The load has been asked for and cannot end."""
            for pid in victim.workers():
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(1, victim.kill).start()

        hooks = {}
        w.engine(stack, "e1", w.server)
        w.engine(stack, "victim", Proxy(stack, victim, hooks))
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

    def test_late(stack):
        "a server started before a switch and added after it is caught up; its prefix cache holds nothing old later"
        w = world()
        w.need_kind()
        w.engine(stack, "e1", w.server)
        w.switch(1)
        late = kind(stack, w.path("current"), *kind.cached).wait()
        fresh = next_tokens(late)
        w.switch(2)
        w.engine(stack, "late", late)
        assert next_tokens(late) == fresh, "adding it changed it"
        w.mount.write("engine sync late", f"{MODEL}/ctl")
        assert late.serves() == "2"
        for version in (None, 1, 2):
            if version:
                w.switch(version)
            version = version or 2
            w.check(w.server, version)
            for _ in range(2):  # the second time from the cache
                got = next_tokens(late)
                assert distance(got, next_tokens(w.server)) < CLOSE, (version, got)
        assert w.engines()["late"].startswith("serving 2 "), w.engines()

    return world, [test_fresh, test_first_gate, test_switch, test_paused, test_stream, test_gate, test_forced, test_killed, test_late]
