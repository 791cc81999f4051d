# beside others
# timeout: 480
"""Files on disk written by one release, read and continued by another: agents' archives, `wsync save`, exports."""
from releases import *


def entries(archive):
    with contextlib.suppress(FileNotFoundError), open(archive + "/v1/models") as f:
        return {v["version"]: v for m in json.load(f)["models"] for v in m["versions"]}
    return {}


def publish(agent, folders, *versions, archive=None):
    """Publishes steps; each is in the archive, if the agent has one, and of the existing lineage."""
    for version in versions:
        folders[version] = step(folders[version - 1], version) if version - 1 in folders else checkpoint(MEDIUM, seed=version)
        run = [v["run"] for v in entries(archive).values()][:1] if archive else []
        agent.publish("actor", version, folders[version], *(("--run", run[0]) if run else ()))
        if archive:
            wait_for(lambda: version in entries(archive), f"version {version} in the archive")


@pairs
def test_archive(writer, reader):
    "an agent's archive, with whole versions and deltas, can be read"
    archive, folders = unique("archive"), {}
    publish(writer.Agent("--archive", archive), folders, 1, 2, 3, archive=archive)
    mount = reader.Mount(f"dir:{archive}")
    for version in (3, 1, 2):
        same(mount, version, folders[version])
        mount.write(f"verify {version}", "actor/ctl")
    wait_for(lambda: "delta" in how(mount, 2)[0] or "chain" in how(mount, 3)[0], "a delta to be read")


@pairs
def test_continued_archive(first, second):
    "an agent of another release continues an archive, and both releases can read it"
    archive, folders = unique("archive"), {}
    agent = first.Agent("--archive", archive)
    publish(agent, folders, 1, 2, archive=archive)
    agent.end()
    publish(second.Agent("--archive", archive), folders, 3, 4, archive=archive)
    assert sorted(entries(archive)) == [1, 2, 3, 4]
    for release in first, second:
        mount = release.Mount(f"dir:{archive}")
        for version in (4, 2, 1, 3):
            same(mount, version, folders[version])


@pairs
def test_save(savers, mounts):
    "wsync save of another release writes versions of a mount, and both releases can read them"
    agent, archive, folders = mounts.Agent(), unique("archive"), {}
    mount = mounts.Mount(agent.url, "keep=3")
    for version in (1, 2):
        publish(agent, folders, version)
        same(mount, version, folders[version])
    said = savers.wsync("save", mount.file("actor/1"), mount.file("actor/2"), archive).stdout
    assert "actor/1: whole" in said and "actor/2: delta on 1" in said, said
    publish(agent, folders, 3)
    same(mount, 3, folders[3])
    said = mounts.wsync("save", mount.file("actor/2"), mount.file("actor/3"), archive).stdout
    assert "is in the archive already" in said and "actor/3: delta on 2" in said, said
    for release in savers, mounts:
        back = release.Mount(f"dir:{archive}")
        for version in (3, 1, 2):
            same(back, version, folders[version])


@pairs
def test_export(first, second):
    "the export of another release continues a folder of exported versions"
    need_fuse()
    agent, place, folders = first.Agent(), unique("export"), {}
    publish(agent, folders, 1)
    for release, version in ((first, 1), (second, 2), (first, 3)):
        with scope():
            export = type("Export", (Process,), {"command": release.command})("export", agent.url, place)
            if version > 1:
                publish(agent, folders, version)
            path = f"{place}/actor/{version}/model.safetensors"
            wait_for(lambda: os.path.exists(path) or not export.alive(), f"version {version}")
            assert export.alive(), export.text()
            wait_for(lambda: os.path.realpath(f"{place}/actor/latest").endswith(f"/{version}"), "the link")
            assert tensors_of(path) == tensors_of(folders[version] + "/model.safetensors"), version
