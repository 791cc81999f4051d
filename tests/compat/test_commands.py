# beside others
# timeout: 180
"""The command of one release on the agents and mounts of another."""
from releases import *


@pairs
def test_mount(command, mounts):
    "the command on a mount: ls, status, pull, wait, load, verify, inspect, diff, umount"
    agent = mounts.Agent()
    folders = {1: checkpoint(MEDIUM, seed=1)}
    folders[2] = step(folders[1], 2)
    for version, folder in folders.items():
        agent.publish("actor", version, folder)
    mount = mounts.Mount(agent.url)
    on = ("--mount", mount.path)
    command.wsync("wait", *on, "--state", "known", "--timeout", 50, "actor", 2)
    listed = lambda: {v["version"]: v["state"] for v in json.loads(command.wsync("ls", *on, "--json", "actor").stdout)}
    assert listed() == {"1": "known", "2": "known"}, listed()
    for version in (1, 2):
        command.wsync("pull", *on, "actor", version)
        command.wsync("wait", *on, "--timeout", 50, "--state", "ready", "actor", version)
        command.wsync("verify", *on, "actor", version)
        same(mount, version, folders[version])
    engine = mounts.Engine(mount.file("actor/1"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    for version in (2, 1):
        command.wsync("load", *on, "actor", version)
        assert engine.serves() == str(version)
        status = json.loads(command.wsync("status", *on, "--json").stdout)
        assert [(m["model"], str(m["current"])) for m in status["models"]] == [("actor", str(version))], status
    assert listed() == {"1": "active", "2": "ready"}, listed()
    assert engine.checksum() == mounts.Engine(folders[1]).checksum()
    r = command.wsync("load", *on, "actor", 7, check=False)
    assert r.returncode == 1 and "7" in r.stderr, r
    names = {t["name"] for t in json.loads(command.wsync("inspect", "--json", mount.file("actor/1")).stdout)["tensors"]}
    assert names == set(MEDIUM), names
    said = command.wsync("diff", mount.file("actor/1"), mount.file("actor/2"), check=False).stdout
    ours = mounts.wsync("diff", mount.file("actor/1"), mount.file("actor/2"), check=False).stdout  # column widths differ
    assert said.split() == ours.split() and "layer.0.weight" in said, said
    command.wsync("umount", mount.path)
    assert not mount.mounted() and mount.process.wait(20) == 0, mount.text()


@pairs
def test_agent(command, agents):
    "the command on an agent: publish, also a new lineage and what is refused, wait and release"
    agent, folders = agents.Agent(), {v: checkpoint(SMALL, seed=v) for v in (1, 2, 3)}
    mount = agents.Mount(agent.url)
    for version in (1, 2):
        agent.publish("actor", version, folders[version], command=command.command)
        same(mount, version, folders[version])
    r = agent.publish("actor", 1, folders[3], command=command.command, check=False)
    assert r.returncode in (1, 3) and "--new-run" in r.stderr, r  # 1: until 0.1.0
    agent.publish("actor", 1, folders[3], "--new-run", command=command.command)
    wait_for(lambda: os.path.isdir(mount.file("actor/1")) and len([n for n in os.listdir(mount.file("actor")) if "@" in n]), "the new lineage")
    same(mount, 1, folders[3])
    engine = agents.Engine(folders[2])
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("follow", "actor/policy")
    wait_for(lambda: any(m["engines"] and m["follows"] for m in agent.get("/v1/actor/mounts")), "the mount's word")
    out = command.wsync("release", "--agent", agent.url, "--wait", 60, "actor", 1, timeout=90).stdout
    assert "released: 1 mount" in out and engine.checksum() == agents.Engine(folders[3]).checksum(), out
    command.wsync("wait", "--agent", agent.url, "--loaded", 1, "--timeout", 50, "actor", 1)


@pairs
def test_engine(command, engines):
    "the command makes an engine load a folder, without a mount"
    folders = [checkpoint(SMALL, seed=v) for v in (1, 2)]
    for api in ("sglang", "vllm"):
        engine = engines.Engine(folders[0], api=api)
        command.wsync("sync", "--engine", f"{api}={engine.url}", folders[1])
        assert engine.checksum() == command.Engine(folders[1], api=api).checksum()
