# beside others
# timeout: 420, takes: 30
"""Settings of a mount of one release, used by a mount of another release at the same path: upgrades and downgrades."""
from releases import *


def settings(mount):
    """The settings that an operator made, as the mount's files show them."""
    lines = mount.text("actor/status").splitlines()
    pins = [line.split()[0] for line in lines if line.startswith("version.") and " pinned" in line]
    return {"engines": sorted((name, what.split()[2:4]) for name, what in mount.engines().items()), "pins": pins,
            "policy": mount.text("actor/policy"), "version": mount.text("actor/version"),
            "strategy": [line for line in lines if line.startswith("strategy ")]}


class Site:
    """An agent with two versions, engines that serve the first, and a mount with settings."""

    def __init__(self, release, path=None):
        self.agent = NEW.Agent()
        self.folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2)}
        for version, folder in self.folders.items():
            self.agent.publish("actor", version, folder)
        self.engine, self.second = NEW.Engine(self.folders[1]), NEW.Engine(self.folders[1], api="vllm")
        self.mount = release.Mount(self.agent.url, path=path)
        self.mount.wait_version("actor", 2)
        for line in (f"engine add e1 sglang {self.engine.url} timeout=77", f"engine add e2 vllm {self.second.url} pause=keep", "pin 1", "commit quorum=1",
                     "strategy ipc,tcp"):
            self.mount.write(line, "actor/ctl")
        self.mount.write(1, "actor/version")
        self.mount.write("pull", "actor/policy")

    def by(self, release, version=1):
        """Replaces the mount by one of the given release; returns its log of the start."""
        self.mount.end()
        self.mount = release.Mount(self.agent.url, path=self.mount.path)
        self.mount.wait_version("actor", 2)
        wait_for(lambda: self.mount.text("actor/version") == f"{version}\n", "the engine's word")
        return self.mount.text("last_error")


@pairs
def test_taken_over(first, second):
    "engines, policy, commit, strategy, pins and the current version survive an upgrade and a downgrade"
    site = Site(first)
    before = settings(site.mount)
    assert before["engines"] and before["pins"] and before["strategy"] and "pull" in before["policy"], before
    for release in (second, first, second):
        said = site.by(release)
        assert not said, said
        assert settings(site.mount) == before, (release.name, settings(site.mount), before)
    assert site.engine.serves() == "1"
    site.mount.write(2, "actor/version")
    assert site.engine.serves() == "2" and site.engine.checksum() == NEW.Engine(site.folders[2]).checksum()


@pairs
def test_killed_in_a_switch(first, second):
    "a mount is killed while an engine loads: the next release reconciles the engine to the current version"
    site = Site(first)
    site.engine.end()
    slow = NEW.Engine(site.folders[1], "--slow", "3000", port=site.engine.port)
    switch = subprocess.Popen(["sh", "-c", f"echo 2 > {site.mount.file('actor/version')}"], stderr=subprocess.DEVNULL)
    at_end(lambda: (switch.kill(), switch.wait()))
    wait_for(lambda: "paused model=actor version=2 engine=e1" in site.mount.text("actor/events"), "the load")
    site.mount.kill()
    site.mount.log.close()
    site.mount.detach()
    site.mount = second.Mount(site.agent.url, path=site.mount.path)
    site.mount.wait_version("actor", 2)
    wait_for(lambda: site.mount.text("actor/version") == "1\n" and slow.serves() == "1", "the current version", 60)
    wait_for(lambda: slow.is_ready(), "the engine to run")
    assert slow.checksum() == NEW.Engine(site.folders[1]).checksum()


@pairs
def test_link(first, second):
    "a mount whose path contains a link finds the settings of the other release"
    folder, link = unique("folder"), unique("link")
    os.makedirs(folder + "/wsync")
    os.symlink(folder, link)
    site = Site(first, link + "/wsync")
    before = settings(site.mount)
    site.by(second)
    assert settings(site.mount) == before, (settings(site.mount), before)


@olds_of(FIRST)
def test_newer(old):
    "settings that an older mount does not know, such as an added source, are skipped with a message that names a copy"
    site = Site(NEW)
    other = NEW.Agent()
    site.mount.write(f"add actor {other.url}", "ctl")
    before = settings(site.mount)
    said = site.by(old)
    assert "not known here and was left out" in said and f'source "{other.url}"' in said and "all others hold" in said, said
    assert settings(site.mount) == before
    copy = said.rsplit(" ", 1)[1].strip()
    assert other.url.encode() in bytes_of(copy)
    assert not site.by(NEW) and settings(site.mount) == before


@olds_of(FIRST)
def test_follow(old):
    "the policy follow of an older mount is written out, and means what it did; back there its line is left out with a message"
    site = Site(old)
    site.mount.write(2, "actor/version")
    site.mount.write("follow every=5", "actor/policy")
    assert not site.by(NEW, 2)
    assert site.mount.text("actor/policy") == "follow-published until=release every=5\n"
    site.mount.write("pin 2", "actor/ctl")  # the settings are written anew
    said = site.by(old, 2)
    assert "policy follow-published until=release every=5" in said and "all others hold" in said, said
    assert site.mount.text("actor/policy") == "manual\n" and len(site.mount.engines()) == 2


@olds_of(FIRST)
def test_members(old):
    "an engine with adapters or a draft is left out by an older mount, whose log has its line and why; all others hold"
    site = Site(NEW)
    before = settings(site.mount)
    third = NEW.Engine(site.folders[1], "--draft-model-path", site.folders[2], "--weight-transfer", api="vllm")
    site.mount.write(f"engine add e3 vllm {third.url} adapters=lora:3 draft=draft", "actor/ctl")
    site.by(old)
    said = site.mount.text()
    assert "an engine could not be brought back: engine add e3" in said and "is one word too many" in said, said
    assert settings(site.mount) == before
    assert not site.by(NEW) and settings(site.mount) == before


@olds
def test_sleeping(old):
    "an engine that may sleep is left out by an older mount, whose log has its line and why; all others hold"
    site = Site(NEW)
    before = settings(site.mount)
    site.mount.write(f"engine add e3 vllm {NEW.Engine(site.folders[1], api='vllm').url} sleep=1", "actor/ctl")
    site.by(old)
    said = site.mount.text()
    assert "an engine could not be brought back: engine add e3" in said and "sleep=1" in said, said
    assert settings(site.mount) == before
    assert not site.by(NEW) and settings(site.mount) == before


@pairs_of(BEFORE)
def test_state_of_agents(first, second):
    "what an agent keeps in --state, its successor of another release knows: which version was released, and that numbers go on"
    state, port, sock = unique("state") + "/agent.state", free_port(), unique("agent") + ".sock"
    folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2, 3)}
    agent = first.Agent("--state", state, port=port, sock=sock)
    mount = NEW.Mount(agent.url)
    agent.publish("actor", 1, folders[1])
    mount.wait_version("actor", 1)
    engine = NEW.Engine(folders[1])
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("follow-released", "actor/policy")
    wait_for(lambda: any(m["engines"] and m["follows"] for m in agent.get("/v1/actor/mounts")), "the mount's word")
    agent.publish("actor", 2, folders[2])
    assert "released: 1 mount" in first.wsync("release", "--agent", agent.url, "--wait", 60, "actor", 2, timeout=90).stdout
    for release in (second, first):
        agent.end()
        agent = release.Agent("--state", state, port=port, sock=sock)
        model = {m["name"]: m for m in agent.get("/v1/models")["models"]}["actor"]
        assert model["released"]["version"] == 2, model
        r = agent.publish("actor", 2, folders[3], check=False)
        assert r.returncode and "--new-run" in r.stderr, r
