# beside others
# timeout: 600, takes: 90
# sanitizers: address
"""Versions as plain files: written by an agent and by `wsync save`, read by dir: and through a web server, also when the disk is full or
damaged, or a write was interrupted."""
import errno
import glob
import grp
import os
import re
import shutil
import stat

import pytest

from nginx import Nginx
from proxy import Gate
from world import *

TENSORS = {f"layer.{i}.weight": ("BF16", [512, 1024]) for i in range(9)} | {"tail": ("U8", [12345])}  # three blocks
SIZE = 9 * (1 << 20)


def bytes_of(path):
    with open(path, "rb") as f:
        return f.read()


def same(mount, version, folder, model="actor"):
    want, got = tensors_of(folder + "/model.safetensors"), tensors_of(mount.file(model, version, "model.safetensors"))
    assert want == got, (version, [n for n in want if got.get(n) != want[n]][:3])
    assert mount.read(model, version, "config.json") == bytes_of(folder + "/config.json"), version


class Archived:
    """An agent with an archive, and the steps that it published."""

    def __init__(self, *args, archive=None, start=True):
        need_fuse()
        self.args = args
        self.archive = archive or unique("archive")
        self.folders, self.newest = {}, 0
        if start:
            self.start()

    def start(self, *args):
        self.agent = Agent("--archive", self.archive, *self.args, *args)

    def publish(self, version, folder=None, *args, wait=True):
        before = self.folders.get(self.newest)
        self.folders[version] = folder or (step(before, version, share=0.004) if before else checkpoint(TENSORS, seed=version))
        self.newest = version
        self.agent.publish("actor", version, self.folders[version], *args)
        if wait:
            wait_for(lambda: version in listing(self.archive), f"version {version} in the archive", 40)
        return version

    def steps(self, n):
        for _ in range(n):
            self.publish(self.newest + 1)

    def metric(self, result):
        with urllib.request.urlopen(self.agent.url + "/metrics", timeout=20) as r:
            text = r.read().decode()
        return int(re.search(rf'wsync_agent_archived_total{{model="actor",result="{result}"}} (\d+)', text).group(1))


def anchors(archive):
    return [n for n, v in listing(archive).items() if v["anchor"]]


def refused(mount, version, name="model.safetensors"):
    """The errno's name and the error text with which a read of the version fails."""
    try:
        mount.read("actor", version, name)
    except OSError as e:
        line = next(line for line in mount.text("actor", "status").splitlines() if line.startswith(f"version.{version} "))
        return errno.errorcode[e.errno], line
    raise AssertionError(f"version {version} was read")


def version_line(mount, version):
    return next(line for line in mount.text("actor", "status").splitlines() if line.startswith(f"version.{version} "))


def test_agent():
    "an agent archives steps, is killed, and a mount reads any listed version bit for bit, in any order"
    run = Archived("--archive-every", "4", "--archive-keep", "2")
    run.steps(12)
    wait_for(lambda: sorted(listing(run.archive)) == list(range(5, 13)), "what is not kept to go")
    assert anchors(run.archive) == [5, 9]
    wait_for(lambda: (run.metric("whole"), run.metric("delta")) == (3, 9), "the last one to be counted, which is after it is listed")
    assert run.metric("failed") == 0
    run.agent.kill()
    for version in range(5, 13):
        place = f"{run.archive}/v1/actor/{version}"
        assert os.path.isdir(place + "/files") == (version in (5, 9)) and os.path.exists(place + "/delta") != (version in (5, 9))
        with open(place + "/deltas") as f:
            chain = [(d["base"], d["version"], d["parts"]) for d in json.load(f)["deltas"]]
        assert chain == [(v - 1, v, 1) for v in range(version, 5 if version < 9 else 9, -1)], chain
    assert sorted(os.listdir(run.archive + "/v1/actor")) == sorted([*map(str, range(5, 13)), "events"])
    mount = Mount(f"dir:{run.archive}")
    mount.wait_version("actor", 12)
    for version in (12, 6, 9, 5, 11, 8, 7, 10):
        same(mount, version, run.folders[version])
        mount.write(f"verify {version}", "actor/ctl")
    assert "transport=archive" in mount.text("status")
    other = Mount(f"dir:{run.archive}")
    other.wait_version("actor", 7)
    assert "layer.0.weight" in os.listdir(other.file("actor", 7, "tensors"))  # a look at one of them only
    wait_for(lambda: " ready " in version_line(other, 7), "the pull of 7")
    assert "archive delta from 6" in version_line(other, 7) or "chain of 2 from 5" in version_line(other, 7), version_line(other, 7)


def test_long_chain():
    "a chain longer than one replay allows is replayed in several steps, through versions in between"
    run = Archived("--archive-every", "64")
    run.steps(22)
    assert anchors(run.archive) == [1]
    mount = Mount(f"dir:{run.archive}")
    mount.wait_version("actor", 22)
    same(mount, 22, run.folders[22])
    assert "chain of 5 from 17" in version_line(mount, 22), mount.text("actor", "status")
    same(mount, 13, run.folders[13])
    assert "what no version" not in mount.text()


def test_small_cache():
    "a cache for two versions is enough for a chain of any length"
    run = Archived("--archive-every", "64")
    run.steps(20)
    run.agent.end()
    mount = Mount(f"dir:{run.archive}", f"cache={int(2.5 * SIZE)},keep=1")
    mount.wait_version("actor", 20)
    same(mount, 20, run.folders[20])
    same(mount, 4, run.folders[4])


def test_restart():
    "a restarted agent continues the archive, with deltas of what it read back; a new lineage begins with a whole version and may reuse numbers"
    run = Archived("--archive-every", "8")
    run.steps(4)
    assert anchors(run.archive) == [1] and listing(run.archive)[4]["base"] == 3
    run_id = listing(run.archive)[3]["run"]
    run.agent.kill()
    os.makedirs(run.archive + "/v1/actor/.new-5/files")  # a crash in the middle of writing
    os.makedirs(run.archive + "/v1/actor/9")  # a crash before the version was listed
    run.start()
    assert sorted(os.listdir(run.archive + "/v1/actor")) == ["1", "2", "3", "4", "events"]
    wait_for(lambda: "read from the archive" in run.agent.text(), "the newest version in memory")
    with pytest.raises(AssertionError, match="version 4 of actor is not higher than the newest"):
        run.agent.publish("actor", 4, run.folders[4], "--run", run_id)
    run.publish(5, None, "--run", run_id)
    assert anchors(run.archive) == [1] and listing(run.archive)[5]["base"] == 4  # its base was read back
    run.agent.publish("actor", 3, run.folders[2], "--new-run")  # 4, and 5 on it, are based on the 3 that was there
    wait_for(lambda: sorted(listing(run.archive)) == [1, 2, 3] and listing(run.archive)[3]["anchor"], "the new lineage")
    assert listing(run.archive)[3]["run"] != run_id
    mount = Mount(f"dir:{run.archive}")
    mount.wait_version("actor", 3)
    same(mount, 3, run.folders[2])
    assert sorted(os.listdir(mount.file("actor")))[:3] == [f"1@{run_id}", f"2@{run_id}", "3"]
    name = f"2@{run_id}"  # abandoned versions stay readable
    mount.write(f"pull {name}", "actor/ctl")
    same(mount, name, run.folders[2])
    assert wsync("agent", "--listen", "none", "--socket", unique("sock"), "--archive", run.archive, check=False).returncode == 1


def test_web_server():
    "the same through a web server with the ordinary http: client: new versions are seen, and polls are rare"
    run = Archived("--archive-every", "3")
    run.steps(5)
    server = Nginx(f"root {run.archive};")
    url = server.url
    mount = Mount(url)
    mount.wait_version("actor", 5)
    for version in (5, 2, 4, 1, 3):
        same(mount, version, run.folders[version])
    assert "tcp" in version_line(mount, 5) and "delta" in version_line(mount, 5), version_line(mount, 5)
    time.sleep(3)
    polls = lambda: server.text("access.log").count("GET /v1/events")
    before = polls()
    time.sleep(4)
    assert 1 <= polls() - before <= 8, polls() - before
    run.publish(6)
    mount.wait_version("actor", 6)
    same(mount, 6, run.folders[6])
    assert "POST" not in server.text("access.log")
    damage(run.archive + "/v1/actor/6/delta")
    third = Mount(url)
    third.wait_version("actor", 6)
    code, line = refused(third, 6)
    assert code == "EBADMSG" and "the delta of actor/6 from " + url in line, (code, line)
    same(third, 5, run.folders[5])
    os.unlink(run.archive + "/v1/actor/4/files/model.safetensors")
    fourth = Mount(url)
    fourth.wait_version("actor", 6)
    code, line = refused(fourth, 5)
    assert code == "ESTALE" and f"actor/4/model.safetensors: {url} answered 404" in line, (code, line)
    same(fourth, 2, run.folders[2])


def test_readers():
    "a web server of the archive's group reads it, and other users cannot: files are 0640, folders 0750 and of the folder's group"
    if os.geteuid():
        pytest.skip("only root starts a web server as another user")
    archive = unique("archive")
    os.mkdir(archive)
    os.chown(archive, -1, grp.getgrnam("www-data").gr_gid)
    os.chmod(archive, 0o2750)
    run = Archived("--archive-every", "2", archive=archive)
    run.steps(2)
    within = [os.path.join(at, name) for at, folders, files in os.walk(archive) for name in folders + files]
    modes = {path: (stat.filemode(s.st_mode), grp.getgrgid(s.st_gid).gr_name) for path in within for s in [os.stat(path)]}
    wrong = {path: mode for path, mode in modes.items()
             if mode != ("drwxr-s---" if os.path.isdir(path) else "-rw-r-----", "www-data")}
    assert len(modes) > 10 and not wrong, wrong
    os.chmod(TESTDIR, 0o755)
    server = Nginx(f"root {archive};", user="nobody www-data")
    mount = Mount(server.url)
    mount.wait_version("actor", 2)
    same(mount, 2, run.folders[2])
    other = Nginx(f"root {archive};", user="nobody nogroup")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(other.url + "/v1/models", timeout=20)


def damage(path, at=0.5):
    with open(path, "r+b") as f:
        f.seek(int(os.path.getsize(path) * at))
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))


def test_damage():
    "damaged or lost files are refused and named; versions that do not depend on them can be read"
    run = Archived("--archive-every", "3")
    run.steps(6)
    run.agent.kill()
    place = run.archive + "/v1/actor"
    kept = unique("kept")
    shutil.copytree(run.archive, kept)

    def broken(version, file, change, code="EBADMSG", readable=()):
        shutil.rmtree(run.archive)
        shutil.copytree(kept, run.archive)
        change(f"{place}/{file}")
        with scope():
            mount = Mount(f"dir:{run.archive}")
            mount.wait_version("actor", 6)
            got = refused(mount, version)
            assert got[0] == code and f"{place}/{file}" in got[1], (file, got)
            for other in readable:
                same(mount, other, run.folders[other])
            shutil.rmtree(run.archive)
            shutil.copytree(kept, run.archive)  # an operator repairs it
            wait_for(lambda: readable_again(mount, version), "the repaired version")
            same(mount, version, run.folders[version])

    def readable_again(mount, version):
        with contextlib.suppress(OSError):
            return mount.read("actor", version, "model.safetensors")

    broken(6, "6/delta", damage, readable=(5, 4, 3))
    broken(6, "5/delta", os.unlink, readable=(4, 3, 1))
    broken(6, "6/delta", lambda p: os.truncate(p, os.path.getsize(p) - 100))
    broken(5, "4/files/model.safetensors", os.unlink, readable=(3, 2))
    broken(4, "4/files/model.safetensors", lambda p: damage(p, 0.7), readable=(3,))
    broken(4, "4/manifest", damage, readable=(1,))
    broken(5, "5/deltas", lambda p: os.truncate(p, 20), readable=(4,))


def test_full_disk():
    "on a full disk the agent reports and counts it, goes on serving, and archives again once there is room"
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    disk = unique("disk")
    os.makedirs(disk)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True)
    at_end(lambda: subprocess.run(["umount", "-l", disk], check=True))
    run = Archived("--archive-every", "2", archive=disk + "/a")
    run.steps(4)
    filler = disk + "/filler"
    with open(filler, "wb") as f:
        f.write(b"x" * (3 << 20))
    run.publish(5, wait=False)
    wait_for(lambda: run.metric("failed") >= 1, "the failure")
    assert "cannot archive model=actor version=5 errno=ENOSPC" in run.agent.text(), run.agent.text()
    wait_for(lambda: 5 in listing(run.archive), "version 5")  # there is room for the delta
    assert anchors(run.archive) == [1, 3] and sorted(listing(run.archive)) == [1, 2, 3, 4, 5]
    with open(filler, "ab") as f, contextlib.suppress(OSError):
        while f.write(b"x" * 65536):
            f.flush()
    run.publish(6, wait=False)
    wait_for(lambda: run.metric("failed") >= 3, "the next failures")
    assert sorted(listing(run.archive)) == [1, 2, 3, 4, 5]
    mount, old = Mount(run.agent.url), Mount(f"dir:{run.archive}")
    mount.wait_version("actor", 6)
    same(mount, 6, run.folders[6])
    old.wait_version("actor", 5)
    same(old, 5, run.folders[5])
    os.unlink(filler)
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    run.publish(7)
    assert listing(run.archive)[7]["anchor"] and not glob.glob(run.archive + "/v1/actor/.*")
    old.wait_version("actor", 7)
    same(old, 7, run.folders[7])


@pytest.mark.parametrize("options, folder", [
    ((), lambda seed: checkpoint(TENSORS, seed=seed)), (("--delta-cache", "0"), lambda seed: None)], ids=["all-changes", "no-deltas"])
def test_no_deltas(options, folder):
    "a version to which there is no delta is in the archive whole: where each step changes all, and where the agent makes none"
    run = Archived("--archive-keep", "9", *options)
    for version in range(1, 6):
        run.publish(version, folder(version))
    assert anchors(run.archive) == [1, 2, 3, 4, 5]
    wait_for(lambda: run.metric("whole") == 5, "the last one to be counted, which is listed before")
    assert (run.metric("given-up"), run.metric("failed")) == (0, 0)
    run.agent.kill()
    mount = Mount(f"dir:{run.archive}")
    mount.wait_version("actor", 5)
    for version in (5, 2):
        same(mount, version, run.folders[version])


def test_trainer_does_not_wait():
    "a trainer never waits for the archive's disk: a revoked version is abandoned there and leaves no files"
    run = Archived("--archive-every", "4", "--slots", "2", "--delta-cache", "0")
    folders = [checkpoint(TENSORS, seed=s) for s in range(3)]
    for version in range(1, 13):
        run.publish(version, folders[version % 3], wait=False)
    wait_for(lambda: run.metric("whole") + run.metric("given-up") >= 3, "the anchors")
    wait_for(lambda: not glob.glob(run.archive + "/v1/actor/.*"), "what is being written")
    assert run.metric("failed") == 0
    mount = Mount(f"dir:{run.archive}")
    for version in listing(run.archive):
        try:
            mount.wait_version("actor", version)
            same(mount, version, folders[version % 3])
        except OSError as e:  # three older versions are kept while the archive continues
            assert e.errno == errno.ESTALE, e
            wait_for(lambda: version not in listing(run.archive), f"version {version} to be given up")


def test_stuck_disk():
    "a disk that does not answer stops the archive and nothing else"
    need_fuse()
    tools = ["mkfs.ext4", "fsfreeze", "losetup"]
    if not all(shutil.which(t) for t in tools):
        pytest.skip(f"needs {', '.join(tools)}")
    image, disk = unique("image"), unique("disk")
    os.makedirs(disk)
    with open(image, "wb") as f:
        f.truncate(96 << 20)
    if any(subprocess.run(c, capture_output=True, check=False).returncode for c in
           (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, disk])):
        pytest.skip("no file system in a file can be mounted here")
    at_end(lambda: subprocess.run(["umount", disk], check=True))
    run = Archived("--archive-every", "1", "--slots", "2", archive=disk + "/a")
    run.publish(1)
    frozen = [True]

    def thaw():
        if frozen.pop():
            subprocess.run(["fsfreeze", "-u", disk], check=True)
        frozen.append(False)

    subprocess.run(["fsfreeze", "-f", disk], check=True)
    at_end(thaw)
    for version in range(2, 8):
        began = time.monotonic()
        run.publish(version, wait=False)
        assert time.monotonic() - began < 4 * SLOW, "revocation takes 5 s where a holder does not let go"
    assert sorted(listing(run.archive)) == [1]
    mount = Mount(run.agent.url)
    mount.wait_version("actor", 7)
    same(mount, 7, run.folders[7])
    thaw()
    wait_for(lambda: 7 in listing(run.archive), "the newest in the archive")
    old = Mount(f"dir:{run.archive}")
    for version in listing(run.archive):
        old.wait_version("actor", version)
        same(old, version, run.folders[version])
    print(f"# archived: {sorted(listing(run.archive))}, given up: {run.metric('given-up')}")


def test_kill():
    "an agent killed at any moment leaves a readable archive, and continues it"
    run = Archived("--archive-every", "2")
    generator = random.Random(5)
    for _ in range(4):
        for _ in range(3):
            run.publish(run.newest + 1, None, "--run", "one", wait=run.newest < 2)
        time.sleep(generator.random() * 0.2)
        run.agent.kill()
        listed = listing(run.archive)
        with scope():
            mount = Mount(f"dir:{run.archive}")
            for version in sorted(listed)[-3:]:
                mount.wait_version("actor", version)
                same(mount, version, run.folders[version])
        run.start()
        assert not glob.glob(run.archive + "/v1/actor/.*")
        assert {int(n) for n in os.listdir(run.archive + "/v1/actor") if n.isdigit()} == set(listed)


def test_save():
    "wsync save writes versions of a mount, the first one whole, which can be read; it adds to an existing archive"
    need_fuse()
    agent, folders = Agent(), {}
    for version in (1, 2, 3):
        folders[version] = step(folders[version - 1], version, share=0.004) if version > 1 else checkpoint(TENSORS, seed=1)
        agent.publish("actor", version, folders[version])
        if version == 1:
            mount = Mount(agent.url, "keep=8")
        mount.wait_version("actor", version)
        mount.read("actor", version, "config.json")  # the trainer has two slots: pull it while it is there
    archive, place = unique("archive"), lambda v: mount.file("actor", v)
    said = wsync("save", place(1), place(2), archive).stdout
    assert "actor/1: whole" in said and "actor/2: delta on 1" in said, said
    said = wsync("save", place(2), place(3), archive).stdout
    assert "actor/2: is in the archive already" in said and "actor/3: delta on 2" in said, said
    assert anchors(archive) == [1] and sorted(listing(archive)) == [1, 2, 3]
    whole = unique("archive")
    wsync("save", "--whole", "-q", place(1), place(2), whole)
    assert anchors(whole) == [1, 2]
    agent.publish("actor", 7, checkpoint(TENSORS, seed=7))  # shares nothing with the version before
    mount.wait_version("actor", 7)
    assert "actor/7: whole" in wsync("save", place(3), place(7), archive).stdout
    folders[7] = checkpoint(TENSORS, seed=7)
    back = Mount(f"dir:{archive}")
    back.wait_version("actor", 7)
    for version in (3, 1, 7, 2):
        same(back, version, folders[version])
        assert json.loads(back.read("actor", version, ".wsync/manifest.json")) == json.loads(mount.read("actor", version, ".wsync/manifest.json"))
    for words, what in ((("/nowhere", archive), "is this a mounted version"), ((place(1), "/nowhere/at/all"), "/nowhere/at/all")):
        r = wsync("save", *words, check=False)
        assert r.returncode == 1 and what in r.stderr, r.stderr
    Agent("--archive", archive)
    r = wsync("save", place(1), archive, check=False)
    assert r.returncode == 1 and "another process writes the archive" in r.stderr, r.stderr


def test_node_died():
    "a mount with the trainer and its archive as sources stays readable when the trainer's node dies, also versions that only the trainer listed"
    run = Archived("--archive-every", "6")
    run.steps(5)
    mount = Mount(run.agent.url)
    mount.write(f"add actor dir:{run.archive}", "ctl")
    mount.wait_version("actor", 2)  # only the archive has it
    same(mount, 2, run.folders[2])
    assert "archive " in version_line(mount, 2), version_line(mount, 2)
    run.agent.kill()
    wait_for(lambda: f"source {run.agent.url} down" in mount.text("status"), "the agent's death to be noticed")
    began = time.monotonic()
    same(mount, 5, run.folders[5])
    same(mount, 1, run.folders[1])
    assert time.monotonic() - began < 20 * SLOW
    assert "archive " in version_line(mount, 5), version_line(mount, 5)


@pytest.mark.parametrize("look", ["read", "tensors"])
def test_node_dies_meanwhile(look):
    "a pull from the trainer goes on by the archive, which has only a delta to the version, when the trainer's node dies in the middle"
    run = Archived("--archive-every", "6")
    run.steps(3)
    gate = Gate(run.agent.url, 100_000 if look == "read" else 0)
    mount = Mount(gate.url)
    mount.write(f"add actor dir:{run.archive}", "ctl")
    mount.wait_version("actor", 3, sources=2)
    came = []
    reader = threading.Thread(target=lambda: came.append(mount.read("actor", 3, "model.safetensors") if look == "read" else os.listdir(mount.file("actor/3/tensors"))))
    reader.start()
    wait_for(lambda: gate.left == 0 and gate.n_files > 0, "bytes of the version to be asked for")
    run.agent.kill()
    gate.end()
    reader.join(60 * SLOW)  # deadline= is 120 s
    assert came and came[0], mount.text("actor", "status")
    same(mount, 3, run.folders[3])
    assert "archive " in version_line(mount, 3) and "way of a pull is chosen anew" in mount.text(), mount.text()


def test_rollback():
    "engines go back to a version that only the archive has, and forward again"
    run = Archived("--archive-every", "4")
    run.steps(6)
    run.agent.kill()
    mount = Mount(f"dir:{run.archive}")
    mount.wait_version("actor", 6)
    engine = Engine(mount.file("actor", 6))
    mount.write(f"engine add e1 sglang {engine.url}", "actor/ctl")
    for version in (6, 3, 5):
        mount.write(version, "actor/version")
        assert engine.serves() == str(version) and mount.text("actor/version").split()[0] == str(version)
    mount.write("previous", "actor/version")
    assert engine.serves() == "3"
