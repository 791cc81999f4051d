# beside others
# timeout: 420
"""Mounts of one release with agents, mounts and engines of another: whole versions, deltas, switches and releases."""
from releases import *
from sharing import Share, published


class Run:
    """An agent of a release, and the steps that it published."""

    def __init__(self, release, *args):
        self.agent = release.Agent(*args)
        self.folders, self.newest = {}, 0
        self.step()

    def step(self):
        """Changes a few elements; from the second step on waits until the delta is offered too."""
        before, self.newest = self.newest, self.newest + 1
        self.folders[self.newest] = step(self.folders[before], self.newest) if before else checkpoint(MEDIUM, seed=1)
        self.agent.publish("actor", self.newest, self.folders[self.newest])
        if before:
            wait_for(self.delta, "the delta")
        return self.newest

    def delta(self):
        offered = self.agent.get(f"/v1/actor/{self.newest}/manifest")["deltas"]
        return offered and offered[0]["base"] == self.newest - 1 and offered[0]["state"] == "whole"


# Below 8 MiB nothing is measured: with the default speeds and two threads the delta is always cheaper.
GUESSED = "threads=2"


@pairs
def test_tcp(mounts, agents):
    "a mount of an agent by tcp: the first version whole, each step as a delta"
    run = Run(agents)
    mount = mounts.Mount(run.agent.url, GUESSED)
    same(mount, 1, run.folders[1])
    assert how(mount, 1)[0] == "tcp full", how(mount, 1)
    for _ in range(3):
        version = run.step()
        same(mount, version, run.folders[version])
        way, moved = how(mount, version)
        assert way.startswith(("tcp delta from", "tcp chain of")) and moved < 200000, (way, moved)
        mount.write(f"verify {version}", "actor/ctl")


@pairs
def test_unix(mounts, agents):
    "a mount of an agent by unix: receives descriptors, and does not stop the trainer"
    run = Run(agents)
    mount = mounts.Mount(f"unix:{run.agent.sock}")
    for _ in range(5):
        same(mount, run.newest, run.folders[run.newest])
        assert how(mount, run.newest)[0].startswith("ipc"), how(mount, run.newest)
        run.step()
    same(mount, run.newest, run.folders[run.newest])


@pairs
def test_relay(below, above):
    "a mount below a mount that serves and requires a token: the first version whole, the next as a delta"
    run = Run(above)
    port, token = free_port(), unique("token")
    with open(token, "w") as f:
        f.write("secret\n")
    relay = above.Mount(run.agent.url, f"{GUESSED},serve=127.0.0.1:{port},serve-token-file={token}")
    mount = below.Mount(f"http://127.0.0.1:{port}", f"{GUESSED},token-file={token}")
    same(mount, 1, run.folders[1])
    run.step()
    same(relay, 2, run.folders[2])
    same(mount, 2, run.folders[2])
    assert how(mount, 2)[0].startswith("tcp delta from 1"), how(mount, 2)
    assert how(relay, 2)[0].startswith("tcp delta from 1"), how(relay, 2)


@pairs
def test_switch(mounts, engines):
    "a mount switches engines and back; their weights are the published ones"
    run = Run(mounts)
    run.step()
    sums = {v: engines.Engine(run.folders[v]).checksum() for v in (1, 2)}
    mount = mounts.Mount(run.agent.url)
    mount.wait_version("actor", 2)
    held = [engines.Engine(mount.file("actor/1"), api=api) for api in ("sglang", "vllm")]
    for e in held:
        mount.write(f"engine add {e.api} {e.api} {e.url}", "actor/ctl")
    for version in (1, 2, "previous"):
        mount.write(version, "actor/version")
        number = 1 if version == "previous" else version
        assert [e.serves() for e in held] == [str(number)] * 2, (version, mount.text("actor/events"))
        assert [e.checksum() for e in held] == [sums[number]] * 2, version


@pairs
def test_release(commands, agents):
    "a release over mounts of both releases switches all of them, and back"
    run = Run(agents)
    fleet, engines = {}, {}
    for release, host in ((commands, "n0"), (agents, "n1")):
        mount = fleet[host] = release.Mount(run.agent.url, f"host={host}")
        mount.wait_version("actor", 1)
        engines[host] = release.Engine(run.folders[1])
        mount.write(f"engine add e sglang {engines[host].url}", "actor/ctl")
        mount.write("follow", "actor/policy")
    wait_for(lambda: sum(m["engines"] == 1 and m["follows"] for m in run.agent.get("/v1/actor/mounts")) == 2, "the mounts' word")
    run.step()
    sums = {v: commands.Engine(run.folders[v]).checksum() for v in (1, 2)}
    for version, release in ((1, commands), (2, agents), (1, commands), (2, commands)):
        out = release.wsync("release", "--agent", run.agent.url, "--wait", 60, "actor", version, timeout=90).stdout
        assert "released: 2 mounts" in out, out
        assert [e.serves() for e in engines.values()] == [str(version)] * 2
        assert [e.checksum() for e in engines.values()] == [sums[version]] * 2
        release.wsync("wait", "--agent", run.agent.url, "--loaded", "all", "--timeout", 60, "actor", version)


@olds_of(FIRST)
def test_signed(old):
    """a mount of an earlier release reads what is signed like anything else; what one that serves, or an agent of before, cannot show the
    signature of, a mount with a key refuses"""
    key = unique("key")
    wsync("key", "new", "--out", key)
    run = Run(NEW, "--sign-key", key)
    mount = old.Mount(run.agent.url, GUESSED)
    same(mount, run.newest, run.folders[run.newest])
    run.step()
    same(mount, run.newest, run.folders[run.newest])
    assert how(mount, run.newest)[0].startswith("tcp delta from"), how(mount, run.newest)
    same(old.Mount(f"unix:{run.agent.sock}"), run.newest, run.folders[run.newest])
    port = free_port()
    same(old.Mount(run.agent.url, f"serve=127.0.0.1:{port}"), run.newest, run.folders[run.newest])
    before = Run(old)
    for url, version in (f"http://127.0.0.1:{port}", run.newest), (before.agent.url, 1), (f"unix:{before.agent.sock}", 1):
        strict = NEW.Mount(url, f"verify-key={key}.pub")
        strict.wait_version("actor", version)
        assert strict.refused(f"pull {version}", "actor", "ctl") == "EBADMSG"
        assert "is not signed" in strict.text("actor/last_error"), strict.text("actor/last_error")


@pairs_of(BEFORE)
def test_signed_by_another(mounts, agents):
    "a mount with a key reads what an agent of another release has signed, whole and as a delta, also by a mount that serves"
    key, port = unique("key"), free_port()
    agents.wsync("key", "new", "--out", key)
    run, strict = Run(agents, "--sign-key", key), f"{GUESSED},verify-key={key}.pub"
    agents.Mount(run.agent.url, f"serve=127.0.0.1:{port},serve-insecure")
    readers = [mounts.Mount(url, strict) for url in (run.agent.url, f"http://127.0.0.1:{port}")]
    for _ in range(2):
        for mount in readers:
            same(mount, run.newest, run.folders[run.newest])
        run.step()


@pytest.mark.parametrize("api", ["sglang", "vllm"])
@pairs_of(BEFORE)
def test_patched(mounts, engines, api):
    "a mount of before patches this release's engines; engines of before, whose workers do not say what they hold, load whole versions"
    run = Run(mounts)
    mount = mounts.Mount(run.agent.url, "keep=3")
    for version in (1, 2, 3):
        same(mount, version, run.folders[version])
        if version < 3:
            run.step()
    sums = {version: engines.Engine(folder).checksum() for version, folder in run.folders.items()}
    engine = engines.Engine(mount.file("actor/1"), "--patch", "2", api=api)
    mount.write(f"engine add e {api} {engine.url} update=patch", "actor/ctl")
    for version in (1, 2, 3, 2, 1, 3):
        mount.write(version, "actor/version")
        assert engine.serves() == str(version) and engine.checksum() == sums[version], (version, mount.text("actor/events"))
    events = mount.text("actor/events")
    assert (" how=patch " in events) == (engines is NEW), events
    assert ("its workers do not say which version they hold" in events) == (mounts is NEW), events


@olds
def test_deleted(old):
    """what a framework deletes is hidden by mounts of this release; one of an earlier release does not know the word, and goes on as ever; an
    agent of an earlier release has no such request, which is said once, and keeps nothing from being published"""
    for of_agent, of_mount in (NEW, old), (old, NEW):
        agent, root = of_agent.Agent(), unique("out")
        share = Share(agent, root)
        mount, new = of_mount.Mount(agent.url), NEW.Mount(agent.url)
        for version in 1, 2, 3:
            os.mkdir(folder := os.path.join(root, f"step_{version}"))
            source = checkpoint(SMALL, seed=version)
            shutil.copyfile(os.path.join(source, "model.safetensors"), os.path.join(folder, "model.safetensors"))
            published(agent, version)
            for m in mount, new:
                m.wait_version("actor", version)
                m.write(f"pull {version}", "actor/ctl")
                assert tensors_of(m.file("actor", version, "model.safetensors")) == tensors_of(os.path.join(source, "model.safetensors"))
            if version == 2:
                shutil.rmtree(os.path.join(root, "step_1"))
                shutil.rmtree(os.path.join(root, "step_2"))
        if of_agent is NEW:
            wait_for(lambda: not os.path.exists(new.file("actor/2")), "the name to go")
            assert os.path.exists(mount.file("actor/2"))
        else:
            wait_for(lambda: "actor/2 was deleted, and mounts elsewhere go on showing it" in share.text(), "what share says")
            assert os.path.exists(new.file("actor/2"))
        assert share.alive(), share.text()
