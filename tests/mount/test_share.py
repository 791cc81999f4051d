# beside others
# sanitizers: address thread
# timeout: 240, takes: 40
"""A shared folder: a framework's checkpoints, each written with its own system calls and in its own order, are versions when they are whole,
before the call that made them so returns; read through a mount bit for bit. All else behaves as a folder does."""
import contextlib
import errno
import random
import stat
import subprocess
import sys
import threading
from pathlib import Path

from world import *

TENSORS = {"a": ("BF16", [64, 64]), "b": ("F32", [1000])}
SHARDS = {"model-00001-of-00002.safetensors": ["a"], "model-00002-of-00002.safetensors": ["b"]}
INDEX = "model.safetensors.index.json"


class Share(Process):
    def __init__(self, agent, folder, pattern="step_{N}", *args):
        self.folder = folder
        with contextlib.suppress(FileExistsError):  # a dead mount cannot be looked at
            os.makedirs(folder)
        at_end(lambda: subprocess.run(["umount", "-l", self.folder], stderr=subprocess.DEVNULL))  # a dead one
        super().__init__("share", "--agent", f"unix:{agent.sock}", "--model", "actor", "--pattern", pattern, *args, folder)
        wait_for(lambda: "sharing " in self.text(), "the folder", 30)


@pytest.fixture(autouse=True)
def fuse():
    need_fuse()


def newest(agent):
    models = agent.get("/v1/models")["models"]
    return models[0]["newest"] if models else None


def run_of(agent):
    return agent.get("/v1/models")["models"][0]["run"]


def save(source, folder, name="model.safetensors"):
    "safetensors 0.8: all of its length first, then in order, renamed while it is open, for its owner alone"
    data = Path(source, name).read_bytes()
    temporary = os.path.join(folder, ".tmpX7a9Qz")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, len(data))
    for at in range(0, len(data), 4096):
        os.write(fd, data[at:at + 4096])
    os.rename(temporary, os.path.join(folder, name))
    os.close(fd)


def save_in_place(source, folder, name="model.safetensors"):
    "safetensors up to 0.7, torch.save, json.dump"
    data = Path(source, name).read_bytes()
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for at in range(0, len(data), 5000):
        os.write(fd, data[at:at + 5000])
    os.close(fd)


def same(mount, version, source, names=("model.safetensors",)):
    mount.wait_version("actor", version)
    mount.write(f"pull {version}", "actor/ctl")
    for name in names:
        assert tensors_of(mount.file("actor", version, name)) == tensors_of(os.path.join(source, name))


def test_marker():
    "PRIME-RL: ranks write temporary names, rename their own, an index, STABLE; late files change nothing; rmtree, twice"
    agent, root = Agent(), unique("broadcasts")
    share, mount = Share(agent, root, "step_{N}", "--marker", "STABLE"), Mount(agent.url)
    for version in (1, 2, 3):
        source, folder = checkpoint(TENSORS, seed=version, files=SHARDS, sidecars=False), os.path.join(root, f"step_{version}")
        os.makedirs(folder, exist_ok=True)
        os.makedirs(folder, exist_ok=True)
        for rank, name in enumerate(SHARDS):
            shutil.copyfile(os.path.join(source, name), os.path.join(folder, f"tmp-rank{rank}.safetensors"))
        for rank, name in enumerate(SHARDS):
            os.rename(os.path.join(folder, f"tmp-rank{rank}.safetensors"), os.path.join(folder, name))
        shutil.copyfile(os.path.join(source, INDEX), os.path.join(folder, INDEX))
        assert newest(agent) == (version - 1 or None)
        Path(folder, "STABLE").touch()
        assert newest(agent) == version, share.text()
        Path(folder, "NCCL_READY").touch()
        os.utime(folder)
        same(mount, version, source, SHARDS)
        assert newest(agent) == version and sorted(os.listdir(folder)) == sorted([*SHARDS, INDEX, "STABLE", "NCCL_READY"])
        for _ in range(2):
            shutil.rmtree(os.path.join(root, f"step_{version - 2}"), ignore_errors=True)
    assert sorted(os.listdir(root)) == ["step_2", "step_3"]
    share.end()
    assert os.listdir(root) == []  # they were in memory


@pytest.mark.parametrize("write", [save, save_in_place])
def test_early_index(write):
    "slime: the index before the other ranks' renames, no marker; shown to all, whatever the writer's mode"
    agent, root = Agent(), unique("weights")
    Share(agent, root, "weight_v{N:06d}")
    source, folder = checkpoint(TENSORS, files=SHARDS), os.path.join(root, "weight_v000007")
    os.makedirs(folder)
    shutil.copy2(os.path.join(source, "config.json"), folder)
    for name in SHARDS:
        write(source, folder, name)
        os.rename(os.path.join(folder, name), os.path.join(folder, name[:11] + ".safetensors"))
        assert os.stat(os.path.join(folder, name[:11] + ".safetensors")).st_mode & 0o777 == 0o644
    first, last = SHARDS
    os.replace(os.path.join(folder, first[:11] + ".safetensors"), os.path.join(folder, first))
    shutil.copyfile(os.path.join(source, INDEX), os.path.join(folder, INDEX))
    assert newest(agent) is None
    os.replace(os.path.join(folder, last[:11] + ".safetensors"), os.path.join(folder, last))
    assert newest(agent) == 7


def test_folder_is_renamed():
    "TRL: a folder beside, renamed to its name; one on disk cannot be; what has another name is no version"
    agent, root = Agent(), unique("lora")
    share, mount = Share(agent, root, "trl-policy-v{N}"), Mount(agent.url)
    for version in (1, 2):
        source, temporary = checkpoint(TENSORS, seed=version), os.path.join(root, f".trl-policy-v{version}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        os.makedirs(temporary)
        save(source, temporary)
        Path(temporary, "README.md").write_text("x")
        assert newest(agent) == (version - 1 or None)
        shutil.rmtree(os.path.join(root, f"trl-policy-v{version}"), ignore_errors=True)
        os.rename(temporary, os.path.join(root, f"trl-policy-v{version}"))
        assert newest(agent) == version, share.text()
        shutil.rmtree(temporary, ignore_errors=True)
        same(mount, version, source)
    os.mkdir(os.path.join(root, "work"))
    save(source, os.path.join(root, "work"))
    with pytest.raises(OSError) as e:
        os.rename(os.path.join(root, "work"), os.path.join(root, "trl-policy-v3"))
    assert e.value.errno == errno.EXDEV and "cannot become trl-policy-v3" in share.text()
    shutil.move(os.path.join(root, "work"), os.path.join(root, "trl-policy-v3"))
    assert newest(agent) == 3
    os.rename(os.path.join(root, "trl-policy-v3"), os.path.join(root, "old"))
    os.rename(os.path.join(root, "old"), os.path.join(root, "trl-policy-v4"))
    assert newest(agent) == 4
    share.end()
    assert os.listdir(root) == []


def test_constant_folder():
    "SkyRL's LoRA: one folder whose every rewrite is the next version"
    agent, root = Agent(), unique("lora")
    share, mount = Share(agent, root, "sync"), Mount(agent.url)
    folder = os.path.join(root, "sync")
    for version in (1, 2, 3):
        source = checkpoint(TENSORS, seed=version)
        os.makedirs(folder, exist_ok=True)
        (save if version % 2 else save_in_place)(source, folder)
        assert newest(agent) == version, share.text()
        same(mount, version, source)


def test_open_elsewhere():
    "a file that somebody has open for writing is not whole, whatever its length; who reads does not matter"
    agent, root = Agent(), unique("out")
    Share(agent, root)
    source, folder = checkpoint(TENSORS, files=SHARDS), os.path.join(root, "step_1")
    shutil.copytree(source, folder, ignore=lambda *_: [INDEX])
    first = os.path.join(folder, next(iter(SHARDS)))
    with open(first, "r+b") as writer, open(first, "rb"):
        shutil.copyfile(os.path.join(source, INDEX), os.path.join(folder, INDEX))
        writer.seek(-4, os.SEEK_END)
        assert newest(agent) is None
        writer.write(b"\1\2\3\4")
    assert newest(agent) == 1
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    mount.write("pull 1", "actor/ctl")
    assert Path(mount.file("actor", 1, next(iter(SHARDS)))).read_bytes()[-4:] == b"\1\2\3\4"


def test_resumed():
    "a step that was there is written again: another lineage; a step that comes late is left out, and that is said"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)

    def write(version, seed):
        os.mkdir(folder := os.path.join(root, f"step_{version}"))
        save(checkpoint(TENSORS, seed=seed), folder)
        return newest(agent), run_of(agent)

    first = write(1, 1)[1]
    assert write(2, 2) == (2, first) and write(4, 4) == (4, first)
    assert write(3, 3) == (4, first) and "version 3 does not follow version 4" in share.text()
    for version in (2, 3, 4):
        shutil.rmtree(os.path.join(root, f"step_{version}"))
    number, second = write(2, 12)
    assert number == 2 and second != first
    assert write(3, 13) == (3, second)
    save(checkpoint(TENSORS, seed=14), os.path.join(root, "step_3"))  # in the same folder
    assert newest(agent) == 3 and run_of(agent) not in (first, second)


def test_writer_is_killed():
    "a writer that is killed leaves what is not whole, which is no version; the next one writes it anew"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    source, folder = checkpoint(TENSORS), os.path.join(root, "step_1")
    data = Path(source, "model.safetensors").read_bytes()
    code = f"""
import os, sys
os.makedirs({folder!r}, exist_ok=True)
fd = os.open({folder!r} + "/model.safetensors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
data = open({os.path.join(source, "model.safetensors")!r}, "rb").read()
os.write(fd, data[:int(sys.argv[1])])
os.kill(os.getpid(), 9)
"""
    for n in 0, 7, 8, 100, len(data) - 1:
        assert subprocess.run([sys.executable, "-c", code, str(n)]).returncode == -9
        assert newest(agent) is None and share.alive(), share.text()
        assert os.path.getsize(os.path.join(folder, "model.safetensors")) == n
    shutil.rmtree(folder)
    os.mkdir(folder)
    save(source, folder)
    assert newest(agent) == 1


def test_daemon_is_killed():
    "a daemon that is killed leaves a dead mount and nothing else; the next one takes it away and goes on; what was published stays"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    Path(root, "notes.txt").write_text("below")
    os.mkdir(os.path.join(root, "step_1"))
    save(checkpoint(TENSORS, seed=1), os.path.join(root, "step_1"))
    os.mkdir(os.path.join(root, "step_2"))
    fd = os.open(os.path.join(root, "step_2", "model.safetensors"), os.O_WRONLY | os.O_CREAT)
    share.kill()
    with pytest.raises(OSError):
        os.listdir(root)
    with contextlib.suppress(OSError):
        os.close(fd)
    share = Share(agent, root)
    assert os.listdir(root) == ["notes.txt"] and newest(agent) == 1
    os.mkdir(os.path.join(root, "step_2"))
    save(checkpoint(TENSORS, seed=2), os.path.join(root, "step_2"))
    assert newest(agent) == 2
    r = wsync("share", "-m", "actor", "--pattern", "step_{N}", root, check=False)
    assert r.returncode == 1 and "already" in r.stderr, r.stderr
    wsync("umount", root)
    share.process.wait(20)
    assert os.listdir(root) == ["notes.txt"]


def test_agent_is_away():
    "a framework is not held up by an agent that is away; what is whole is published when it is back"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    port, sock = agent.port, agent.sock
    agent.end()
    os.mkdir(folder := os.path.join(root, "step_7"))
    save(checkpoint(TENSORS, seed=7), folder)
    wait_for(lambda: "step_7 is whole and cannot be published" in share.text(), "the warning")
    agent = Agent(port=port, sock=sock)
    wait_for(lambda: newest(agent) == 7, "version 7")


def test_bad_one():
    "what is whole and cannot be published keeps nothing that follows it from being published"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    shutil.copytree(checkpoint(TENSORS, seed=1), os.path.join(root, "step_1"))
    os.mkdir(bad := os.path.join(root, "step_2"))
    Path(bad, "adapter_config.json").write_text("{}")
    save(checkpoint(TENSORS, files={"adapter_model.safetensors": list(TENSORS)}), bad, "adapter_model.safetensors")
    assert newest(agent) == 1 and "step_2 is whole and cannot be published" in share.text()
    shutil.copytree(checkpoint(TENSORS, seed=3), os.path.join(root, "step_3"))
    assert newest(agent) == 3


def random_operations(root, seed, names):
    """The same operations on any folder: what each answered, and what is there in the end."""
    rng, log, open_files = random.Random(seed), [], {}

    def path():
        return os.path.join(root, rng.choice(names), rng.choice("abcd"))

    def tried(what, *args):
        try:
            r = what(*args)
            log.append((what.__name__, r if not isinstance(r, (bytes, os.stat_result)) else len(r) if isinstance(r, bytes) else (r.st_size, r.st_nlink) if stat.S_ISREG(r.st_mode) else "folder"))
            return r
        except OSError as e:
            log.append((what.__name__, e.errno))

    for name in names:
        os.makedirs(os.path.join(root, name))
    for i in range(400):
        kind = rng.randrange(14)
        if kind < 3:
            fd = tried(os.open, path(), rng.choice((os.O_RDWR, os.O_WRONLY, os.O_RDONLY)) | rng.choice((0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC, os.O_APPEND)), 0o644)
            if fd is not None:
                log[-1] = ("open", "ok")
                open_files[i] = fd
        elif kind < 8 and open_files:
            fd = open_files[rng.choice(sorted(open_files))]
            at, data = rng.randrange(20000), rng.randbytes(rng.randrange(9000))
            rng.choice((lambda: tried(os.pwrite, fd, data, at), lambda: tried(os.pread, fd, len(data), at), lambda: tried(os.ftruncate, fd, at), lambda: tried(os.fsync, fd),
                        lambda: tried(os.write, fd, data), lambda: tried(os.fstat, fd), lambda: tried(os.lseek, fd, at, os.SEEK_SET)))()
        elif kind == 8 and open_files:
            os.close(open_files.pop(rng.choice(sorted(open_files))))
        elif kind == 9:
            tried(os.unlink, path())
        elif kind == 10:
            tried(os.rename, path(), path())
        elif kind == 11:
            tried(os.stat, path())
        elif kind == 12:
            tried(os.truncate, path(), rng.randrange(20000))
        else:
            tried(os.mkdir, path()) if rng.random() < 0.3 else tried(os.link, path(), path()) if rng.random() < 0.3 else tried(os.rmdir, path())
    for fd in open_files.values():
        os.close(fd)
    left = {os.path.relpath(os.path.join(f, n), root): Path(f, n).read_bytes() for f, _, files in os.walk(root) for n in files}
    return log, left


@pytest.mark.parametrize("seed", range(6))
def test_as_a_folder(seed):
    "any operations on what is in a version's folder, and on what is not, answer as those of /dev/shm do, and leave the same bytes"
    agent, root, shm = Agent(), unique("out"), f"/dev/shm/{os.path.basename(unique('wsync-test'))}-{os.getpid()}"
    at_end(lambda: shutil.rmtree(shm, ignore_errors=True))
    os.mkdir(shm)
    Share(agent, root)
    for names in (["step_1"], ["other"], ["step_2", "step_3"]):
        got, want = random_operations(root, seed, names), random_operations(shm, seed, names)
        assert got[0] == want[0], next((i, g, w) for i, (g, w) in enumerate(zip(got[0], want[0])) if g != w)
        assert all(got[1].get(n) == b for n, b in want[1].items()), names
        shutil.rmtree(os.path.join(root, names[0]))
        shutil.rmtree(os.path.join(shm, names[0]))


def test_many_writers():
    "eight ranks write shards of several steps at the same time, each touching its own; every version is whole"
    agent, root = Agent("--slots", "8"), unique("out")
    names = {f"model-{i + 1:05}-of-00008.safetensors": [f"t{i}"] for i in range(8)}
    tensors = {f"t{i}": ("BF16", [256, 64]) for i in range(8)}
    Share(agent, root)
    mount, failures = Mount(agent.url), []
    for version in range(1, 6):
        source, folder = checkpoint(tensors, seed=version, files=names), os.path.join(root, f"step_{version}")
        shutil.copytree(source, os.path.join(root, "elsewhere"), dirs_exist_ok=True)

        def rank(name):
            try:
                os.makedirs(folder, exist_ok=True)
                temporary = os.path.join(folder, f"tmp-{name}")
                shutil.copyfile(os.path.join(source, name), temporary)
                os.replace(temporary, os.path.join(folder, name))
            except OSError as e:
                failures.append(e)

        ranks = [threading.Thread(target=rank, args=(n,)) for n in names]
        for r in ranks:
            r.start()
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(os.path.join(source, INDEX), os.path.join(folder, INDEX))
        for r in ranks:
            r.join()
        assert not failures, failures
        assert newest(agent) == version
        same(mount, version, source, names)


def test_usage():
    "what it cannot do is refused"
    for pattern, marker, word in ("step_{n}", "STABLE", "pattern"), ("step_{N}", "../x", "--marker"):
        r = wsync("share", "-m", "actor", "--pattern", pattern, "--marker", marker, unique("none"), check=False)
        assert r.returncode == 2 and word in r.stderr, r.stderr
    r = wsync("share", "-m", "actor", "--pattern", "step_{N}", unique("none"), check=False)
    assert r.returncode == 1 and "No such file" in r.stderr, r.stderr
