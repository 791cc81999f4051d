# beside others
# sanitizers: address
# timeout: 240, takes: 40
"""What a framework deletes on the trainer's node is gone in mounts elsewhere: its name at once, its memory when nobody needs it."""
import mmap
from pathlib import Path

from clients import Http, Unix
from derived import VIEW, llama
from sharing import OF_NODES, SHARDS, Nodes, Share, published, save
from world import *

TENSORS = {"a": ("F32", [3 << 20]), "b": ("BF16", [64, 64])}


def write(root, version, source):
    os.mkdir(folder := os.path.join(root, f"step_{version}"))
    save(source, folder, "model.safetensors")


def delete(root, version):
    "by two ranks"
    for _ in range(2):
        shutil.rmtree(os.path.join(root, f"step_{version}"), ignore_errors=True)


def shown(mount, model="actor"):
    return [int(name) for name in os.listdir(mount.file(model)) if name.isdigit()]


def here(mount):
    "versions that have memory"
    return [int(name[8:]) for name, line in mount.status("actor").items() if name.startswith("version.") and " have=0 " not in line]


def shows(mount, *versions, model="actor"):
    wait_for(lambda: sorted(shown(mount, model)) == list(versions), f"versions {versions} of {model}")


def test_two_mounts():
    """over TCP; deleted as soon as it was loaded, as slime does: names go, what is mapped stays whole, the next version comes as a delta, and
    then the memory of the one before goes"""
    agent, root = Agent(), unique("out")
    Share(agent, root)
    mounts = [Mount(agent.url, DELTAS), Mount(agent.url, f"{DELTAS},root=actor,names=step_{{N}}")]
    source, mapped = checkpoint(TENSORS, seed=1), []
    for version in range(1, 5):
        source = step(source, version) if version > 1 else source
        write(root, version, source)
        for m in mounts:
            m.wait_version("actor", version)
            m.write(f"pull {version}", "actor/ctl")
            if version > 1:
                assert f'how="tcp delta from {version - 1}' in m.status("actor")[f"version.{version}"], m.text("actor/status")
        with open(mounts[0].file("actor", version, "model.safetensors"), "rb") as f:
            mapped.append((mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED), f.read()))
        if version == 1:  # the names are those of a plain folder while it is there
            assert shown(mounts[0]) == [1] and "step_1" in os.listdir(mounts[1].path) and os.readlink(mounts[0].file("actor/latest")) == "1"
        delete(root, version)
        for m in mounts:
            shows(m)
            assert not os.path.exists(m.file("actor", version)) and not os.path.lexists(m.file("actor/latest"))
            assert " deleted" in m.status("actor")[f"version.{version}"]
            assert f"deleted model=actor version={version} " in m.text("actor/events")
        assert here(mounts[1]) == [version]
        wait_for(lambda: "step_" not in " ".join(os.listdir(mounts[1].path)), "the framework's name to go")
        assert not os.path.exists(mounts[1].file(f"step_{version}"))
    for at, data in mapped:
        assert at[:] == data
        at.close()
    size = os.path.getsize(os.path.join(source, "model.safetensors"))
    for m in mounts:
        wait_for(lambda: here(m) == [4] and int(m.status()["waiting_bytes"]) == 0, "memory that nobody reads to go")
        assert int(m.status()["used_bytes"]) < 2 * size


def test_engine():
    "what engines serve keeps its name and its bytes, until they serve another; an operator's pin keeps one, too"
    agent, root = Agent(), unique("out")
    Share(agent, root)
    mount = Mount(agent.url)
    sources = {version: checkpoint(TENSORS, seed=version) for version in (1, 2, 3)}
    write(root, 1, sources[1])
    mount.wait_version("actor", 1)
    engine = Engine(mount.file("actor/1"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("1", "actor/version")
    delete(root, 1)
    wait_for(lambda: " deleted" in mount.status("actor")["version.1"], "the mount's word")
    assert shown(mount) == [1] and os.readlink(mount.file("actor/current")) == "1"
    write(root, 2, sources[2])
    mount.wait_version("actor", 2)
    mount.write("2", "actor/version")
    shows(mount, 2)
    assert engine.serves() == "2" and not os.path.lexists(mount.file("actor/previous"))
    mount.write("pin 2", "actor/ctl")
    delete(root, 2)
    write(root, 3, sources[3])
    mount.wait_version("actor", 3)
    mount.write("3", "actor/version")
    shows(mount, 2, 3)
    assert tensors_of(mount.file("actor/2/model.safetensors")) == tensors_of(os.path.join(sources[2], "model.safetensors"))
    mount.write("unpin 2", "actor/ctl")
    shows(mount, 3)
    write(root, 4, sources[1])
    published(agent, 4)
    delete(root, 4)
    wait_for(lambda: " deleted" in mount.status("actor").get("version.4", ""), "the mount's word")
    mount.write("4", "actor/version")  # who asks for it by its number gets it, while there is one
    shows(mount, 3, 4)
    assert engine.serves() == "4"


def test_written_again():
    "a name that is written again after it was deleted is the next version, and shown; what was deleted before of that number stays hidden"
    agent, root = Agent(), unique("out")
    Share(agent, root)
    mount = Mount(agent.url)
    for version in 1, 2, 3:
        write(root, version, checkpoint(TENSORS, seed=version))
        mount.wait_version("actor", version)
        mount.write(f"pull {version}", "actor/ctl")
    for version in 2, 3:
        delete(root, version)
    again = checkpoint(TENSORS, seed=12)
    write(root, 2, again)
    delete(root, 1)
    shows(mount, 2)
    mount.write("pull 2", "actor/ctl")
    assert tensors_of(mount.file("actor/2/model.safetensors")) == tensors_of(os.path.join(again, "model.safetensors"))
    assert not [name for name in os.listdir(mount.file("actor")) if "@" in name], os.listdir(mount.file("actor"))
    delete(root, 2)
    shows(mount)


def test_constant():
    "a constant folder that is deleted has no older version in its place; written again it has the new one"
    agent, root = Agent(), unique("out")
    os.mkdir(root)
    Share(agent, root, "lora_sync")
    mount = Mount(agent.url, "root=actor,names=lora_sync")
    for seed in 1, 2, 3:
        os.makedirs(folder := os.path.join(root, "lora_sync"), exist_ok=True)
        save(source := checkpoint(TENSORS, seed=seed), folder, "model.safetensors")
        if seed != 2:  # written over without being deleted
            wait_for(lambda: os.path.exists(mount.file("lora_sync/model.safetensors")), "the folder")
            assert tensors_of(mount.file("lora_sync/model.safetensors")) == tensors_of(os.path.join(source, "model.safetensors"))
        if seed == 2:
            shutil.rmtree(folder)
            wait_for(lambda: not os.path.exists(mount.file("lora_sync")), "the folder to go")
            assert "lora_sync" not in os.listdir(mount.path)


def test_away():
    "an agent that is away when it is deleted hears of it later; one that was started anew passes it on, too"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    mount = Mount(agent.url)
    for version in 1, 2:
        write(root, version, checkpoint(TENSORS, seed=version))
        mount.wait_version("actor", version)
        mount.write(f"pull {version}", "actor/ctl")
    port, sock = agent.port, agent.sock
    agent.end()
    delete(root, 1)
    assert not os.path.exists(os.path.join(root, "step_1"))
    agent = Agent(port=port, sock=sock)
    write(root, 3, checkpoint(TENSORS, seed=3))
    published(agent, 3)
    wait_for(lambda: sorted(name[:2] for name in os.listdir(mount.file("actor")) if name[0].isdigit()) == ["2@", "3"], "version 1 to go")
    assert share.alive(), share.text()


def test_below():
    "a mount below a serving one, one by the socket, and quantised views, hide it, too; an archive shows what it has"
    archive, root, port = unique("archive"), unique("out"), free_port()
    agent = Agent("--archive", archive)
    Share(agent, root)
    relay = Mount(agent.url, f"serve=127.0.0.1:{port},derive={VIEW}")
    below, socket = Mount(f"http://127.0.0.1:{port}"), Mount(f"unix:{agent.sock}")
    for version in 1, 2:
        source = llama(seed=version)
        os.mkdir(folder := os.path.join(root, f"step_{version}"))
        shutil.copy2(os.path.join(source, "config.json"), folder)
        save(source, folder, "model.safetensors")
        for m in relay, below, socket:
            m.wait_version("actor", version)
            m.write(f"pull {version}", "actor/ctl")
    shows(relay, 1, 2, model=VIEW)
    wait_for(lambda: os.path.exists(os.path.join(archive, "v1/models")) and len(json.loads(Path(archive, "v1/models").read_bytes())["models"][0]["versions"]) == 2,
             "the archive")
    archived = Mount(f"{agent.url},dir:{archive}")
    archived.wait_version("actor", 1)
    delete(root, 1)
    for m in relay, below, socket:
        shows(m, 2)
    wait_for(lambda: " deleted" in archived.status("actor")["version.1"], "the mount's word")
    assert sorted(shown(archived)) == [1, 2]
    assert tensors_of(archived.file("actor/1/model.safetensors"))
    shows(relay, 2, model=VIEW)


def test_nodes():
    "a trainer on two nodes: deleted on one is deleted; by each rank on its node, twice"
    w = Nodes("--marker", "STABLE")
    for version in 1, 2, 3:
        source = checkpoint(OF_NODES, seed=version, files=SHARDS, sidecars=False)
        for rank in 1, 0:
            w.write(rank, version, source)
        w.end(version, source)
        w.expect(version, source)
    delete(w.roots[1], 1)
    shows(w.mount, 2, 3)
    for rank in 0, 1, 0, 1:
        shutil.rmtree(os.path.join(w.roots[rank], "step_2"), ignore_errors=True)
    delete(w.roots[0], 1)
    shows(w.mount, 3)
    assert not w.shares[0].refusals() and not w.shares[1].refusals(), [s.text() for s in w.shares]


def test_renamed():
    "a folder that is called something else is deleted, too"
    agent, root = Agent(), unique("out")
    Share(agent, root)
    mount = Mount(agent.url)
    write(root, 1, checkpoint(TENSORS))
    mount.wait_version("actor", 1)
    os.rename(os.path.join(root, "step_1"), os.path.join(root, "tmp-step_1"))
    shows(mount)


def test_asked():
    "what the agent is asked to retire is one that it published, by who may publish, and once in its listing; the last 64 are"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(TENSORS))
    run = agent.get("/v1/models")["models"][0]["run"]

    def ask(path):
        return Unix(agent.sock).ask("POST", path, {})[0]

    assert "retired" not in agent.get("/v1/models")["models"][0]
    assert ask("/v1/actor/2/retire") == 404 and ask("/v1/none/1/retire") == 404
    assert Http(agent.url).ask("POST", "/v1/actor/1/retire", {})[0] == 403
    for _ in range(2):
        assert ask("/v1/actor/1/retire") == 200
    assert agent.get("/v1/models")["models"][0]["retired"] == [{"version": 1, "run": run}]
    for version in range(100):
        assert ask(f"/v1/actor/{version}/retire?run=before") == 200
    retired = agent.get("/v1/models")["models"][0]["retired"]
    assert sorted(r["version"] for r in retired) == list(range(36, 100)), retired
    mount = Mount(agent.url)
    mount.wait_model()
    assert shown(mount) == [1]  # it came after 64 others
