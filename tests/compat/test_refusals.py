# beside others
# timeout: 240
"""Features that do not work with an older release: the error says so, names that release, and says what to do."""
from releases import *


def published(*args, prefix=()):
    agent, folders = type("Agent", (Agent,), {"prefix": prefix})(*args), {}
    for version in (1, 2):
        folders[version] = checkpoint(MEDIUM, seed=version)
        agent.publish("actor", version, folders[version])
    return agent, folders


def refusal(agent, version, folder):
    r = agent.publish("actor", version, folder, "--timeout", 5, check=False)
    return r.stderr if r.returncode else ""


@olds_of(FIRST)
def test_slots(old):
    "the trainer is told the name of a unix: mount that keeps every slot, and continues once the mount releases one"
    agent, folders = published("--slots", "2")
    mount = old.Mount(f"unix:{agent.sock}")
    for version in (1, 2):
        same(mount, version, folders[version])
        mount.write(f"pin {version}", "actor/ctl")
    said = refusal(agent, 3, folders[1])
    assert f"held by ipc pid {mount.pid} of wsync {old.name}" in said and "drop N" in said, said
    mount.write("unpin 1", "actor/ctl")
    mount.write("drop 1", "actor/ctl")
    assert not refusal(agent, 3, folders[1])
    same(mount, 3, folders[1])
    same(mount, 2, folders[2])


@olds_of(FIRST)
def test_leases(old):
    "if the kernel grants no leases an older unix: mount is told why it gets nothing; by tcp it gets everything"
    agent, folders = published(prefix=(os.path.join(BUILD, "tests/tools/without_leases"),))
    mount = old.Mount(f"unix:{agent.sock}", "deadline=5")
    mount.wait_version("actor", 2)
    assert mount.refused("pull 2", "actor/ctl") == errno.errorcode[errno.EOPNOTSUPP]
    said = mount.text("actor/last_error")
    assert f"wsync {old.name}" in said and "http://" in said and "grants the agent no leases" in said, said
    both = old.Mount(f"unix:{agent.sock},{agent.url}")
    both.wait_version("actor", 2, sources=2)
    same(both, 2, folders[2])


@olds_of(FIRST)
def test_older_mount_after_failed_release(old):
    "an older mount does not report its failed release after a release back: the release names the mount, and the next one counts it"
    agent, folders = published()
    fleet = []
    for release, host in ((old, "old"), (NEW, "new")):
        mount = release.Mount(agent.url, f"host={host}")
        mount.wait_version("actor", 2)
        fleet.append(NEW.Engine(folders[1], *(("--refuse", "2") if release is old else ())))
        mount.write(f"engine add e sglang {fleet[-1].url}", "actor/ctl")
        mount.write("follow", "actor/policy")
    wait_for(lambda: sum(m["engines"] == 1 and m["follows"] for m in agent.get("/v1/actor/mounts")) == 2, "the mounts' word")
    release = lambda version, wait=60: NEW.wsync("release", "--agent", agent.url, "--wait", wait, "actor", version, check=False, timeout=90)
    assert release(1).returncode == 0
    failed = release(2)
    assert failed.returncode and "old:" in failed.stdout + failed.stderr, failed
    back = release(1, wait=5)
    assert back.returncode and "old:" in back.stdout + back.stderr, back
    wait_for(lambda: [e.serves() for e in fleet] == ["1", "1"], "both to be back")
    agent.publish("actor", 3, folders[2])
    newer = release(3)
    assert newer.returncode == 0 and "released: 2 mounts, " in newer.stdout, newer
    assert len({tuple(e.checksum()) for e in fleet}) == 1


@olds_of(FIRST)
def test_token_of_loopback(old):
    "an older mount of an agent on loopback is told where its token is, and which socket needs none; with either, or --insecure, it works"
    agent, folder = Agent(makes_token=True), checkpoint(SMALL)
    token = f"/run/wsync/{agent.port}.token"
    at_end(lambda: os.path.exists(token) and os.unlink(token))
    agent.publish("actor", 1, folder)
    mount = old.Mount(agent.url)
    wait_for(lambda: "401" in mount.text("status"), "the refusal")
    said = mount.text("status")
    assert f"is in {token}" in said and f"unix:{agent.sock}" in said, said
    same(old.Mount(agent.url, f"token-file={token}"), 1, folder)
    same(old.Mount(f"unix:{agent.sock}"), 1, folder)
    agent.kill()
    Agent(port=agent.port, sock=agent.sock).publish("actor", 2, folder)
    same(mount, 2, folder)
