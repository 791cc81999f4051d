# beside others
# sanitizers: thread
# timeout: 440, takes: 25
"""Random releases and barriers over two mounts and two models, with engines that refuse, die or are slow, mounts whose daemon is killed,
and releases in quick succession. Each model has different bytes in each version, so the test can tell which version a mount and its
engines have. RELEASE_SEED, RELEASE_ROUNDS."""
import hashlib
import os
import random
import subprocess
import threading
import time

from world import *

SEED = int(os.environ.get("RELEASE_SEED", random.SystemRandom().randrange(1 << 32)))
ROUNDS = amount("RELEASE_ROUNDS", 6 if SANITIZER else 10, 30)
MODELS = ("actor", "critic")
HOSTS = ("a", "b")
KINDS = 4  # bytes of each model's versions, in turn


def digest_of(folder):
    """The digest of the tensors in a folder."""
    tensors = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            tensors.update(tensors_of(os.path.join(folder, name)))
    assert len(tensors) == len(SMALL), sorted(tensors)
    return hashlib.sha256(repr(sorted(tensors.items())).encode()).hexdigest()


class Fleet:
    def __init__(self, r):
        self.r, self.number, self.faulty = r, 0, set()
        self.agent = Agent()
        self.folders = {(m, i): checkpoint(SMALL, seed=KINDS * k + i) for k, m in enumerate(MODELS) for i in range(KINDS)}
        self.digests = {which: digest_of(folder) for which, folder in self.folders.items()}
        assert len(set(self.digests.values())) == len(self.digests)
        self.sums = {}
        for which, folder in self.folders.items():
            for api in ("sglang", "vllm"):
                engine = Engine(folder, api=api)
                self.sums[which, api] = engine.checksum()
                engine.end()
        self.publish(MODELS)
        self.mounts = {h: Mount(self.agent.url, f"host={h}") for h in HOSTS}
        self.engines = {}
        for h, mount in self.mounts.items():
            for m in MODELS:
                mount.wait_version(m, 1)
                for api in ("sglang", "vllm"):
                    self.start(h, m, api)
                    mount.write(f"engine add {api} {api} {self.engines[h, m, api].url}", f"{m}/ctl")
                mount.write("follow", f"{m}/policy")
        self.release(MODELS)
        self.released = dict.fromkeys(MODELS, 1)

    def publish(self, models):
        """Publishes a version shortly before its release, since a mount that lost its memory could not pull an old one."""
        self.number += 1
        for m in models:
            self.agent.publish(m, self.number, self.folders[m, self.number % KINDS])

    def start(self, h, m, api, *args, port=None):
        self.engines[h, m, api] = Engine(self.folders[m, 0], *(args or ["--realistic"]), api=api, port=port)

    def restart(self, key, *args):
        old = self.engines[key]
        if old.alive():
            old.kill()
        self.start(*key, *args, port=old.port)

    def command(self, models, version=None, wait=40):
        return [WSYNC, "release", "--quiet", "--agent", self.agent.url, "--wait", str(wait * SLOW),
                *(f"{m}={version or self.number}" for m in models)]

    def release(self, models, version=None):
        done = subprocess.run(self.command(models, version), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def fault(self):
        kind, args = self.r.randrange(6), []
        if kind == 0:
            args = ["--refuse", str(self.number), "--realistic"]
        elif kind == 1:
            args = ["--slow", "200"]
        elif kind == 2:
            args = ["--die-at", self.r.choice(("pause", "open", "load", "reply", "continue"))]
        elif kind == 3:
            self.engines[self.r.choice(list(self.engines))].kill()
        if args:
            key = self.r.choice(list(self.engines))
            self.restart(key, *args)
            self.faulty.add(key)

    def kill_daemon_soon(self, h):
        def kill():
            time.sleep(self.r.random() * 0.3)
            self.mounts[h].kill()

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    def round(self):
        models = self.r.choice((("actor",), MODELS, MODELS))
        self.publish(models)
        self.fault()
        killed = self.r.choice(HOSTS) if self.r.randrange(4) == 0 else None
        killer = self.kill_daemon_soon(killed) if killed else None
        if self.r.randrange(4) == 0:  # preceded by a release that the test does not wait for
            subprocess.run([WSYNC, "release", "--quiet", "--agent", self.agent.url, f"actor={self.released['actor']}"],
                           check=True, timeout=60)
        p = subprocess.Popen(self.command(models), stderr=subprocess.PIPE, text=True)
        if killer:
            killer.join()
            self.mounts[killed] = Mount(self.agent.url, f"host={killed}", path=self.mounts[killed].path)
        code, err = p.wait(300), p.stderr.read()
        if code == 0:
            self.released.update(dict.fromkeys(models, self.number))
            for h, mount in self.mounts.items():
                if h != killed:
                    for m in models:
                        assert mount.text(m, "version") == f"{self.number}\n", (h, m, mount.text(m, "version"), err)
        elif "aborted" in err:
            for h, mount in self.mounts.items():  # nothing changed
                assert h == killed or all(mount.text(m, "version") != f"{self.number}\n" for m in models), (h, err)
        else:
            assert "could not load it" in err or "the time is over" in err, err
        if models == MODELS:
            self.together(killed)
        self.whole()
        self.settle(models)

    def versions(self, mount):
        """The versions that its models serve while neither is switching; None if they may just change."""
        looks = []
        for _ in range(2):
            looks.append([mount.text(m, "version").strip() for m in MODELS])
            if any("switching no" not in mount.text(m, "status") for m in MODELS):
                return None
        return looks[0] if looks[0] == looks[1] else None

    def together(self, killed):
        """The mount's two models switched together, or neither did. A killed mount had no time to."""
        for h, mount in self.mounts.items():
            if h == killed:
                continue
            served = wait_for(lambda: self.versions(mount), f"the end of {h}'s switches", 60)
            moved = [v == str(self.number) for v in served]
            assert moved[0] == moved[1], f"{h} serves {served} of {MODELS}, of which {self.number} was released together"
            self.compare(h, served)

    def compare(self, h, served):
        """Compares the bytes of those versions at the mount with the published ones, for each model."""
        for m, v in zip(MODELS, served):
            got = digest_of(self.mounts[h].file(m, v))
            whose = [which for which, digest in self.digests.items() if digest == got]
            assert whose == [(m, int(v) % KINDS)], f"{h}: {m}/{v} has the bytes of {whose}"

    def whole(self):
        """Asserts that an engine that reports its mount's version serves it."""
        for h, mount in self.mounts.items():
            for m in MODELS:
                try:
                    wait_for(lambda: "switching no" in mount.text(m, "status"), "the switch's end", 60)
                except OSError:
                    continue  # unknown until queried after a restart
                current = mount.text(m, "version").strip()
                for name, line in mount.engines(m).items():
                    state, serves = line.split()[:2]
                    e = self.engines[h, m, name]
                    try:
                        if state == "serving" and e.alive() and e.serves() == current:
                            assert e.checksum() == self.sums[(m, int(current) % KINDS), name], (h, m, name)
                            e.generate()
                    except OSError:
                        pass  # it has just died

    def settle(self, models):
        """After all faults are healed, the whole fleet takes the release."""
        for key, e in self.engines.items():
            state = "unknown"
            try:
                state = self.mounts[key[0]].engines(key[1]).get(key[2], "unknown").split()[0]
            except OSError:
                pass
            if not e.alive() or state != "serving" or self.r.randrange(8) == 0:
                self.restart(key)
        for h in HOSTS:
            wait_for(lambda: all(any(s["mount"].startswith(h + ":") and s["follows"] and not s["silent"]
                                     for s in self.agent.get(f"/v1/{m}/mounts")) for m in MODELS), f"{h} registers")
        for key in self.faulty:  # it would die again
            self.restart(key)
        self.faulty = set()
        self.release(models)
        self.released.update(dict.fromkeys(models, self.number))
        for key, e in self.engines.items():
            h, m, api = key
            want = self.released[m]
            wait_for(lambda: self.mounts[h].text(m, "version") == f"{want}\n", f"{key} at {want}", 60)
            wait_for(lambda: self.serves(key, want), f"{key} to serve {want}: {self.mounts[h].engines(m)}", 60)
            assert e.checksum() == self.sums[(m, want % KINDS), api], key
            if api == "vllm":
                wait_for(lambda: not e.is_paused(), f"{key} to run")
        for h in HOSTS:
            self.compare(h, [str(self.released[m]) for m in MODELS])

    def serves(self, key, want):
        try:
            return self.engines[key].serves() == str(want)
        except OSError:
            return False


def test_releases():
    "random releases with failing engines and killed daemons: a committed release is committed on all mounts, an aborted one on none"
    need_fuse()
    print(f"# RELEASE_SEED={SEED} RELEASE_ROUNDS={ROUNDS}", flush=True)
    fleet = Fleet(random.Random(SEED))
    for i in range(ROUNDS):
        try:
            fleet.round()
        except BaseException:
            for h, mount in fleet.mounts.items():
                print(f"# in round {i}, mount {h}\n{mount.text('events')[-3000:]}", flush=True)
            print(fleet.agent.text()[-3000:], flush=True)
            raise
