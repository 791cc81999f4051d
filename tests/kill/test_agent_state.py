# beside others
# timeout: 400, takes: 40
"""An agent with --state that is killed at random moments of publishes and releases: what a mount acts on is what the restarted agent calls
released, what was confirmed as released stays so, and no number is given to other bytes. KILL_ROUNDS, KILL_SEED."""
import os
import random
import threading

from world import *

ROUNDS = amount("KILL_ROUNDS", 25, 100)
SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(1 << 32)))


class World:
    def __init__(self):
        need_fuse()
        self.random = random.Random(SEED)
        self.state = unique("state") + "/agent.state"
        self.folders = [checkpoint(SMALL, seed=i) for i in range(3)]
        self.agent = Agent("--state", self.state)
        self.version = 0
        self.publish()
        self.mount = Mount(self.agent.url, "host=n0")
        self.mount.wait_version("actor", 1)
        self.mount.write("follow", "actor/policy")
        wait_for(lambda: self.agent.get("/v1/actor/mounts"), "the mount")
        self.release(1)
        self.confirmed = 1  # released, by the agent's own word
        self.seen = 1       # the highest number that was listed

    def publish(self, check=True):
        self.version += 1
        return self.agent.publish("actor", self.version, self.folders[self.version % 3], check=check)

    def model(self):
        return {m["name"]: m for m in self.agent.get("/v1/models")["models"]}["actor"]

    def serves(self):
        text = self.mount.text("actor/version").strip()
        return int(text) if text.isdigit() else 0

    def release(self, version):
        release = self.agent.ask(f"/v1/actor/{version}/release")
        wait_for(lambda: self.agent.get(f"/v1/releases/{release['id']}")["settled"], "the release")
        assert self.agent.get(f"/v1/releases/{release['id']}")["phase"] == "committed"
        assert self.serves() == version

    def try_release(self):
        """Until the agent is killed: publishes, and releases what it has published."""
        try:
            if self.publish(check=False).returncode:
                return
            release = self.agent.ask(f"/v1/actor/{self.version}/release")
            while True:
                now = self.agent.get(f"/v1/releases/{release['id']}")
                if now["phase"] == "committed":
                    self.confirmed = self.version
                    return
        except (OSError, KeyError, ValueError):
            return

    def watch(self, stop):
        while not stop.is_set():
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.seen = max(self.seen, *(v["version"] for v in self.model()["versions"]), 0)


def one_round(w):
    stop = threading.Event()
    threads = [threading.Thread(target=w.try_release), threading.Thread(target=w.watch, args=(stop,))]
    for t in threads:
        t.start()
    time.sleep(w.random.random() * 0.15)
    w.agent.kill()
    threads[0].join()
    stop.set()
    threads[1].join()
    acted = w.serves()
    w.agent = Agent("--state", w.state, port=w.agent.port, sock=w.agent.sock)
    released = w.model()["released"]["version"]
    assert released >= w.confirmed, f"{w.confirmed} was confirmed, and {released} is what the agent knows"
    assert acted <= released, f"the mount serves {acted}, and {released} is what the agent calls released"
    again = w.agent.publish("actor", w.seen, w.folders[(w.seen + 1) % 3], check=False)
    assert again.returncode and ("not higher than the newest" in again.stderr or "go on with a number above" in again.stderr), again.stderr
    w.confirmed = released
    return acted


def test_rounds():
    "kill -9 of an agent at random moments of publishes and releases"
    print(f"# seed {SEED}", flush=True)
    w = World()
    moved = 0
    for i in range(ROUNDS):
        before = w.confirmed
        moved += one_round(w) > before
    print(f"# {ROUNDS} rounds, in {moved} of them the mount moved", flush=True)
    w.version = max(w.version, w.seen)
    w.publish()
    w.mount.wait_version("actor", w.version)
    wait_for(lambda: w.agent.get("/v1/actor/mounts"), "the mount")
    w.release(w.version)
