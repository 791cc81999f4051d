# beside others
# sanitizers: address
# timeout: 240, takes: 40
"""Checkpoints that frameworks write into a folder, each with its own system calls and in its own order, published by wsync share when they are
whole; read through a mount bit for bit."""
import ctypes
import errno
import hashlib
import json
import stat
import subprocess
import mmap
import sys
from pathlib import Path

from sharing import Share, newest, published, save, stays
from world import *

libc = ctypes.CDLL(None, use_errno=True)
TENSORS = {"a": ("BF16", [64, 64]), "b": ("F32", [1000])}
SHARDS = {"model-00001-of-00002.safetensors": ["a"], "model-00002-of-00002.safetensors": ["b"]}


def test_marker():
    "PRIME-RL: ranks write temporary names, rename their own, an index, STABLE; late files change nothing; rmtree, twice; bit for bit, as deltas"
    need_fuse()
    agent, root = Agent(), unique("broadcasts")
    share, mount = Share(agent, root, "step_{N}", "--marker", "STABLE"), Mount(agent.url)
    for version in (1, 2, 3):
        source, folder = checkpoint(TENSORS, seed=version, files=SHARDS, sidecars=False), os.path.join(root, f"step_{version}")
        os.makedirs(folder, exist_ok=True)
        for rank, name in enumerate(SHARDS):
            shutil.copyfile(os.path.join(source, name), os.path.join(folder, f"tmp-rank{rank}.safetensors"))
        for rank, name in enumerate(SHARDS):
            os.rename(os.path.join(folder, f"tmp-rank{rank}.safetensors"), os.path.join(folder, name))
        shutil.copyfile(os.path.join(source, "model.safetensors.index.json"), os.path.join(folder, "model.safetensors.index.json"))
        stays(agent, share, version - 1 or None)
        Path(folder, "STABLE").touch()
        published(agent, version)
        os.makedirs(folder, exist_ok=True)
        Path(folder, "NCCL_READY").touch()
        mount.wait_version("actor", version)
        mount.write(f"pull {version}", "actor/ctl")
        for name in SHARDS:
            assert tensors_of(mount.file("actor", version, name)) == tensors_of(os.path.join(source, name))
        stays(agent, share, version)
        for _ in range(2):
            shutil.rmtree(os.path.join(root, f"step_{version - 2}"), ignore_errors=True)
    shutil.copytree(checkpoint(TENSORS, seed=4), temporary := os.path.join(root, ".step_4"))
    Path(temporary, "STABLE").touch()
    os.rename(temporary, os.path.join(root, "step_4"))
    published(agent, 4)
    assert len(share.refusals()) == 0, share.text()


def test_early_index():
    "slime: the index before the other ranks' renames, no marker"
    agent, root = Agent(), unique("weights")
    source, folder = checkpoint(TENSORS, files=SHARDS), os.path.join(root, "weight_v000007")
    share = Share(agent, root, "weight_v{N:06d}")
    os.makedirs(folder)
    shutil.copy2(os.path.join(source, "config.json"), folder)
    for name in SHARDS:
        save(source, folder, name)
        os.rename(os.path.join(folder, name), os.path.join(folder, name[:11] + ".safetensors"))
    first, last = SHARDS
    os.rename(os.path.join(folder, first[:11] + ".safetensors"), os.path.join(folder, first))
    shutil.copyfile(os.path.join(source, "model.safetensors.index.json"), os.path.join(folder, "model.safetensors.index.json"))
    stays(agent, share, None)
    os.rename(os.path.join(folder, last[:11] + ".safetensors"), os.path.join(folder, last))
    published(agent, 7)


def test_resumed():
    "a step that was there is written again: another lineage; a step that comes late is left out, and that is said"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)

    def write(version, seed):
        os.mkdir(folder := os.path.join(root, f"step_{version}"))
        save(checkpoint(TENSORS, seed=seed), folder, "model.safetensors")

    def run():
        return agent.get("/v1/models")["models"][0]["run"]

    for version in (1, 2, 4):
        write(version, version)
        published(agent, version)
    first = run()
    write(3, 3)
    wait_for(lambda: "version 3 does not follow version 4" in share.text(), "a late step")
    assert newest(agent) == 4 and run() == first
    r = wsync("publish", "--shared", os.path.join(root, "step_3"), check=False)
    assert r.returncode == 1 and "is left out" in r.stderr, r
    for version in (2, 3, 4):
        shutil.rmtree(os.path.join(root, f"step_{version}"))
    write(2, 12)
    published(agent, 2)
    assert run() != first
    second = run()
    write(3, 13)
    published(agent, 3)
    assert run() == second


def test_killed():
    "kill -9 of the writer leaves what it wrote and no version; kill -9 of share leaves nothing of what was not published, and that is said"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    Path(root, "log").write_text("below")
    os.mkdir(os.path.join(root, "step_5"))
    save(checkpoint(TENSORS, seed=5), os.path.join(root, "step_5"), "model.safetensors")
    published(agent, 5)
    os.mkdir(folder := os.path.join(root, "step_6"))
    subprocess.run([sys.executable, "-c", "import os,sys,signal\nf=open(sys.argv[1],'wb');f.write(b'x'*9999);f.flush();os.kill(os.getpid(),9)",
                    os.path.join(folder, ".tmpAbCdEf")])
    stays(agent, share, 5)
    assert os.stat(os.path.join(folder, ".tmpAbCdEf")).st_size == 9999
    share.kill()
    share = Share(agent, root)
    wait_for(lambda: "is gone" in share.text(), "what is said of it")
    assert os.listdir(root) == ["log"] and Path(root, "log").read_text() == "below"
    stays(agent, share, 5)
    os.mkdir(folder)
    save(checkpoint(TENSORS, seed=6), folder, "model.safetensors")
    published(agent, 6)
    port, sock = agent.port, agent.sock
    agent.end()
    os.mkdir(folder := os.path.join(root, "step_7"))
    save(checkpoint(TENSORS, seed=7), folder, "model.safetensors")
    wait_for(lambda: "wsync agent" in share.text(), "an agent that is away")
    published(Agent(port=port, sock=sock), 7)


def test_constant():
    "SkyRL: one folder, written again for each version; the config after the weights"
    agent, root = Agent(), unique("skyrl")
    share = Share(agent, root, "lora_sync")
    os.mkdir(folder := os.path.join(root, "lora_sync"))
    config = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "base", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]})
    lora = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight": ("F32", shape) for x, shape in {"A": [4, 16], "B": [16, 4]}.items()}
    seen = [None]
    for seed in range(3):
        save(checkpoint(lora, seed=seed, files={"adapter_model.safetensors": list(lora)}), folder, "adapter_model.safetensors")
        stays(agent, share, seen[-1])
        with open(os.path.join(folder, "adapter_config.json"), "w") as f:
            f.write(config)
        wait_for(lambda: newest(agent) != seen[-1], "the next version")
        seen.append(newest(agent))
        assert seen[-2] is None or seen[-1] > seen[-2]
    stays(agent, share, seen[-1])


def test_renamed_folder():
    "TRL: a folder of another name, renamed; one that nothing before told; a second rename over it is refused as by any file system"
    agent, root = Agent(), unique("out")
    share = Share(agent, root, "trl-policy-v{N}")
    for version, before in {1: ".trl-policy-v1.tmp", 2: "partial"}.items():
        shutil.copytree(checkpoint(TENSORS, seed=version), os.path.join(root, before))
        stays(agent, share, version - 1 or None)
        os.rename(os.path.join(root, before), os.path.join(root, f"trl-policy-v{version}"))
        published(agent, version)
    os.mkdir(os.path.join(root, "partial"))
    for version in 1, 2:
        with pytest.raises(OSError, match="not empty"):
            os.rename(os.path.join(root, "partial"), os.path.join(root, f"trl-policy-v{version}"))
    assert sorted(os.listdir(root)) == ["partial", "trl-policy-v1", "trl-policy-v2"]


def test_moved_while_open():
    "a file that is moved to another version's folder while it is open for writing keeps that from being whole, and the one it was in no more"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    for version in 1, 2:
        os.mkdir(os.path.join(root, f"step_{version}"))
    fd = os.open(os.path.join(root, "step_1", "a.safetensors"), os.O_WRONLY | os.O_CREAT)
    os.rename(os.path.join(root, "step_1", "a.safetensors"), os.path.join(root, "step_2", "model.safetensors"))
    save(checkpoint(TENSORS, seed=1), os.path.join(root, "step_1"), "model.safetensors")
    published(agent, 1)
    os.write(fd, Path(checkpoint(TENSORS, seed=2), "model.safetensors").read_bytes())
    Path(root, "step_2", "note").touch()
    stays(agent, share, 1)
    os.close(fd)
    published(agent, 2)


def test_written_while_published():
    "who writes into a folder that is being published waits: the version is what was whole, and the file what was written"
    agent, root = Agent(), unique("out")
    Share(agent, root)
    mount = Mount(agent.url)
    os.mkdir(folder := os.path.join(root, "step_1"))
    original = checkpoint({"a": ("F32", [8 << 20])}, seed=1)
    save(original, folder, "model.safetensors")
    path = os.path.join(folder, "model.safetensors")
    end = time.monotonic() + 20
    while newest(agent) is None and time.monotonic() < end:  # tries to come in between
        with open(path, "r+b") as f:
            f.seek(-4, os.SEEK_END)
            f.write(b"late")
        time.sleep(0.002)
    published(agent, 1)
    mount.wait_version("actor", 1)
    mount.write("pull 1", "actor/ctl")
    shown = Path(mount.file("actor", 1, "model.safetensors")).read_bytes()
    assert shown[-4:] in (b"late", Path(original, "model.safetensors").read_bytes()[-4:])


def test_writers():
    "a folder with a file that is open for writing is not whole: under its final name, with all of its length, renamed or not"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    source = checkpoint(TENSORS, seed=1)
    data = Path(source, "model.safetensors").read_bytes()
    os.mkdir(folder := os.path.join(root, "step_1"))
    fd = os.open(os.path.join(folder, "model.safetensors"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, data[:-100])
    os.ftruncate(fd, len(data))
    other = os.fork()
    if other == 0:
        os._exit(0)  # closes its copy
    os.waitpid(other, 0)
    stays(agent, share, None)
    os.write(fd, data[-100:])
    os.close(fd)
    published(agent, 1)
    mode = os.stat(os.path.join(folder, "model.safetensors")).st_mode & 0o777
    assert mode == 0o644 and Path(folder, "model.safetensors").read_bytes() == data
    os.chmod(os.path.join(folder, "model.safetensors"), 0o600)
    os.utime(folder)
    Path(folder, "tokenizer.json").write_text("{}")
    stays(agent, share, 1)


def operate(r, root, folders, step):
    "one random operation; what came of it, the errno where it failed"
    def name():
        return os.path.join(root, r.choice(folders), r.choice("abc"))

    kind, a, b, n = r.randrange(13), name(), name(), r.randrange(70000)
    data = random.Random(step).randbytes(r.randrange(1, 50000))
    try:
        if kind == 0:
            os.close(os.open(a, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        elif kind in (1, 2, 3):
            fd = os.open(a, r.choice([os.O_WRONLY | os.O_CREAT, os.O_RDWR, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_APPEND]), 0o644)
            out = os.pwrite(fd, data, n) if r.random() < 0.5 else os.write(fd, data)
            size = os.fstat(fd).st_size
            if r.random() < 0.3:
                os.fsync(fd)
            os.close(fd)
            return out, size
        elif kind == 4:
            os.truncate(a, n)
        elif kind == 5:
            os.rename(a, b)
        elif kind == 6:
            os.unlink(a)
        elif kind == 7:
            return shutil.copy2(a, b) and 0
        elif kind == 8:
            with open(a, "r+b") as f:
                os.rename(a, b)
                f.write(data)
                f.truncate(n)
        elif kind == 9:
            with open(a, "r+b") as f:
                os.unlink(a)
                f.write(data)
                f.seek(0)
                return f.read() == data + b"" or len(data)
        elif kind == 10:
            os.mkdir(os.path.join(root, r.choice(folders)))
        elif kind == 11:
            with open(a, "rb") as f, mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as m:
                return hashlib.sha256(m[:]).hexdigest()
        else:
            os.utime(a, (1000, step))
            return os.stat(a).st_mtime
    except OSError as e:
        return e.errno
    except (shutil.SameFileError, ValueError) as e:
        return type(e).__name__
    return 0


def test_operations():
    "random operations give what they give on a plain folder: in what passes through, and in folders of versions"
    agent, here, plain = Agent(), unique("mounted"), unique("plain")
    share = Share(agent, here)
    folders = ["step_1", "step_2", "other"]
    os.mkdir(plain)
    for root in here, plain:
        for folder in folders:
            os.mkdir(os.path.join(root, folder))
    for seed in range(4):
        for step in range(400):
            which = seed * 1000 + step
            mine, theirs = (operate(random.Random(which), root, folders[:2] if seed % 2 else folders[2:], which) for root in (here, plain))
            assert mine == theirs, (which, mine, theirs)
    for folder in folders:
        assert sorted(os.listdir(os.path.join(here, folder))) == sorted(os.listdir(os.path.join(plain, folder)))
        for name in os.listdir(os.path.join(plain, folder)):
            assert Path(here, folder, name).read_bytes() == Path(plain, folder, name).read_bytes(), (folder, name)
    for root in here, plain:
        for folder in folders:
            shutil.rmtree(os.path.join(root, folder))
            shutil.rmtree(os.path.join(root, folder), ignore_errors=True)
        assert os.listdir(root) == []
    assert share.alive()


def test_killed_at_any_step():
    "share is killed, or unmounted, while it looks at a folder, publishes it, or has: the version is there whole, or not at all"
    agent, root, mount = Agent(), unique("out"), None
    share, mount = Share(agent, root), Mount(agent.url)
    source = {"a": ("F32", [1 << 20]), "b": ("BF16", [1 << 20])}
    last = None
    for version, delay in enumerate((0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.2), 1):
        os.mkdir(folder := os.path.join(root, f"step_{version}"))
        original = checkpoint(source, seed=version)
        save(original, folder, "model.safetensors")
        time.sleep(delay)
        if version % 2:
            share.kill()
        else:
            share.end()
        time.sleep(0.3)
        share = Share(agent, root)
        assert os.listdir(root) == []
        assert newest(agent) in (last, version)
        if newest(agent) == version:
            last = version
            mount.wait_version("actor", version)
            mount.write(f"pull {version}", "actor/ctl")
            assert tensors_of(mount.file("actor", version, "model.safetensors")) == tensors_of(os.path.join(original, "model.safetensors"))


def test_bad_one():
    "what is whole and cannot be published keeps nothing that follows it from being published; mended, it comes too late"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    shutil.copytree(checkpoint(TENSORS, seed=1), os.path.join(root, "step_1"))
    published(agent, 1)
    os.mkdir(bad := os.path.join(root, "step_2"))
    Path(bad, "adapter_config.json").write_text("{}")
    save(checkpoint(TENSORS, files={"adapter_model.safetensors": list(TENSORS)}), bad, "adapter_model.safetensors")
    wait_for(lambda: "adapter_config.json" in share.text(), "a refusal")
    shutil.copytree(checkpoint(TENSORS, seed=3), os.path.join(root, "step_3"))
    published(agent, 3)
    os.unlink(os.path.join(bad, "adapter_config.json"))
    os.rename(os.path.join(bad, "adapter_model.safetensors"), os.path.join(bad, "model.safetensors"))
    wait_for(lambda: "version 2 does not follow version 3" in share.text(), "a late one")
    assert newest(agent) == 3


def test_others():
    "a second one is refused; other accounts read what safetensors made for its owner alone, write what modes let them, and own it"
    if os.geteuid():
        pytest.skip("not root")
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    second = wsync("share", "--agent", f"unix:{agent.sock}", "-m", "actor", "-p", "step_{N}", root, check=False)
    assert second.returncode == 1 and root in second.stderr, second.stderr
    os.mkdir(os.path.join(root, "step_1"))
    save(checkpoint(TENSORS, seed=1), os.path.join(root, "step_1"), "model.safetensors")
    os.mkdir(os.path.join(root, "open"))
    os.chmod(os.path.join(root, "open"), 0o777)
    Path(root, "secret").touch(0o600)
    here = os.getcwd()
    os.chdir(root)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            open("step_1/model.safetensors", "rb").read()
            open("open/mine", "w").write("x")
            code = 2 if os.access("secret", os.R_OK) or os.access("step_1", os.W_OK) or os.access(".", os.W_OK) else 0
        finally:
            os._exit(code)
    os.chdir(here)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.stat(os.path.join(root, "open/mine")).st_uid == 65534
    assert share.alive()


def test_odd_places():
    """a share below another's mount; one whose folder is removed in another mount namespace ends; a listing that is open at the end, which the
    address sanitizer looks at; early and empty folders of later steps, and folders in versions, change nothing"""
    agent, root = Agent(), unique("out")
    outer = Share(agent, root, "other_{N}")
    os.mkdir(inner := os.path.join(root, "inner"))
    share = Share(agent, inner)
    os.mkdir(os.path.join(inner, "step_9"))
    os.makedirs(os.path.join(inner, "step_1", "optimizer", "shard"))
    Path(inner, "step_1", "optimizer", "shard", "x.safetensors").write_bytes(b"no checkpoint")
    with open(os.path.join(inner, "step_1", "optimizer", "state"), "wb") as f:
        f.write(b"x")
        save(checkpoint(TENSORS, seed=1), os.path.join(inner, "step_1"), "model.safetensors")
        stays(agent, share, None)  # a file in it is written
    published(agent, 1)
    os.rename(os.path.join(inner, "step_1", "optimizer"), os.path.join(inner, "step_1", "rest"))
    Path(inner, "step_1", "rest", "late").write_bytes(b"x")
    os.mkdir(os.path.join(inner, "tmp_step_2"))
    save(checkpoint(TENSORS, seed=2), os.path.join(inner, "tmp_step_2"), "model.safetensors")
    stays(agent, share, 1)
    os.rename(os.path.join(inner, "tmp_step_2"), os.path.join(inner, "step_2"))
    assert newest(agent) == 2, share.text()
    save(checkpoint(TENSORS, seed=9), os.path.join(inner, "step_9"), "model.safetensors")
    assert newest(agent) == 9, share.text()
    assert not share.refusals(), share.text()
    listing = os.open(inner, os.O_RDONLY | os.O_DIRECTORY)
    os.listdir(listing)
    wsync("umount", "--lazy", inner)
    os.close(listing)
    wait_for(lambda: not share.alive(), "its end")
    share = Share(agent, inner)
    listing = os.open(inner, os.O_RDONLY | os.O_DIRECTORY)
    os.listdir(listing)
    share.process.terminate()
    wait_for(lambda: not share.alive(), "its end")
    os.close(listing)
    assert share.process.returncode == 0, share.text()
    outer.end()
    if os.geteuid() == 0:
        share = Share(agent, root)
        subprocess.run(["unshare", "-m", "--propagation", "private", "sh", "-c", 'umount -l "$0" && rm -r "$0"', root], check=True)
        wait_for(lambda: not share.alive() or not os.path.exists(root), "its folder's end")
        wait_for(lambda: not share.alive(), "its end")
        assert share.process.returncode == 0, share.text()


def test_asked_for():
    "wsync publish --shared says what came of a folder: published, before, what is missing, no version's, where there is no share"
    agent, root = Agent(), unique("out")
    Share(agent, root)

    def ask(folder, *args):
        r = wsync("publish", "--shared", *args, folder, check=False)
        return r.returncode, (r.stdout + r.stderr).strip()

    assert ask(root)[0] == 1 and "--pattern" in ask(root)[1], ask(root)
    os.mkdir(folder := os.path.join(root, "step_1"))
    code, text = ask(folder)
    assert code == 1 and "model.safetensors.index.json" in text, text
    data = Path(checkpoint(TENSORS), "model.safetensors").read_bytes()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(data)
        f.flush()
        assert ask(folder) == (1, f"wsync publish: {folder} is not published: a file in it is open for writing")
        child = subprocess.Popen(["sleep", "30"], pass_fds=[f.fileno()])  # its close tells nothing
    assert newest(agent) is None
    child.kill()
    child.wait()
    wait_for(lambda: ask(folder)[0] != 1, "version 1")
    assert newest(agent) == 1
    assert ask(folder) == (3, f"wsync publish: {folder} was published before, as version 1, and nothing of it is new")
    port, sock = agent.port, agent.sock
    agent.end()
    os.mkdir(folder := os.path.join(root, "step_2"))
    save(checkpoint(TENSORS, seed=2), folder, "model.safetensors")  # it cannot be published now
    code, text = ask(folder)
    assert code == 1 and "could not be published" in text, text
    agent = Agent(port=port, sock=sock)
    published(agent, 2)
    code, text = ask(checkpoint(TENSORS))
    assert code == 1 and "no folder that wsync share has mounted" in text, text
    assert ask(os.path.join(root, "step_3"))[0] == 1
    code, text = ask(folder, "--version", "3")
    assert code == 2 and "--version" in text, text


def as_stranger(*programs):
    "what each of the expressions gives for account 65534: the errno where it fails"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        out = []
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            for program in programs:
                try:
                    out.append(program())
                except OSError as e:
                    out.append(errno.errorcode[e.errno])
        finally:
            os.write(write, json.dumps(out, default=repr).encode())
            os._exit(0)
    os.close(write)
    with open(read, "rb") as f:
        text = f.read()
    os.waitpid(child, 0)
    return json.loads(text)


def exchange(one, other):
    if libc.renameat2(-100, one.encode(), -100, other.encode(), 2):  # AT_FDCWD, RENAME_EXCHANGE
        raise OSError(ctypes.get_errno(), one)


def test_strangers():
    """another account that may write into the folder makes no version of what it may not read, shows nobody anything, has no descriptor of
    the daemon's, publishes nothing through a link that it could not read through; its setuid files and devices are none"""
    if os.geteuid():
        pytest.skip("not root")
    agent, root = Agent(), unique("out")
    os.mkdir(root)
    os.chmod(root, 0o777)
    os.mkdir(old := os.path.join(root, "step_1"))
    Path(old, "private").write_text("x")
    os.chmod(os.path.join(old, "private"), 0o600)
    share = Share(agent, root)
    shutil.copytree(checkpoint(TENSORS), secret := os.path.join(root, "secret"))
    os.chmod(secret, 0o700)
    shutil.copytree(checkpoint(TENSORS), loose := os.path.join(root, "loose"))
    os.chmod(loose, 0o777)
    for name in os.listdir(loose):
        os.chmod(os.path.join(loose, name), 0o600)
    Path(root, "file").write_text("x")
    os.chmod(os.path.join(root, "file"), 0o600)
    outside = unique("outside")
    shutil.copyfile(os.path.join(checkpoint(TENSORS), "model.safetensors"), outside)
    os.chmod(outside, 0o600)
    here = os.getcwd()
    os.chdir(root)  # the way to it is root's alone
    try:
        found = as_stranger(
            lambda: open("step_1/private").read(),
            lambda: os.rename("secret", "step_5"),
            lambda: os.rename("secret", ".step_5.tmp"),
            lambda: os.rename(".step_5.tmp", "step_5"),
            lambda: os.mkdir("own"),
            lambda: os.rename("own", "step_8"),
            lambda: exchange("step_8", ".step_5.tmp"),
            lambda: exchange(".step_5.tmp", "step_8"),
            lambda: os.rmdir("step_8"),
            lambda: os.mkdir("step_9"),
            lambda: os.rename("loose/model.safetensors", "step_9/model.safetensors"),
            lambda: os.rename("file", "step_9/file"),
            lambda: os.link("file", "step_9/file"),
            lambda: os.symlink(outside, "step_9/model.safetensors"),
            lambda: os.chown("step_9", 0, 0),
            lambda: os.mknod("step_9/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
            lambda: os.listdir(f"/proc/{share.pid}/fd"),
            lambda: os.listdir(f"/proc/{share.pid}/root"),
            lambda: os.setxattr("step_9", "user.x", b"y"),
            lambda: os.close(os.open("step_9/suid", os.O_CREAT | os.O_WRONLY, 0o6777)),
            lambda: os.stat("step_9/suid").st_uid,
            lambda: wsync("publish", "--shared", "step_1", check=False).returncode,
            lambda: wsync("publish", "--shared", "step_9", check=False).stderr.strip()[:40],
            lambda: os.mkdir("x" * 255),
            lambda: os.mkdir("x" * 256),
            lambda: os.mkdir("step_" + "9" * 40),
        )
        stays(agent, share, None)
        assert found == ["EACCES", "EPERM", None, "EPERM", None, None, "EPERM", "EPERM", None, None, "EPERM", "EPERM", found[12], None, "EPERM", "EPERM", "EACCES", "EACCES", "ENOTSUP", None, 65534,
                         1, found[22], None, "ENAMETOOLONG", None], str(found)
        assert found[12] in ("EPERM", "EXDEV")  # as protected_hardlinks says
        assert "Operation not permitted" not in found[22], found[22]
        assert not os.stat("step_9/suid").st_mode & 0o6000
        os.mknod("step_9/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        with pytest.raises(PermissionError):
            open("step_9/null", "rb")
    finally:
        os.chdir(here)
    assert share.alive()


def test_ends():
    "it ends when it is unmounted, also lazily with a file open, and what passed through is below"
    agent, root = Agent(), unique("out")
    for lazy in (), ("--lazy",):
        share = Share(agent, root)
        Path(root, "log").write_text("x")
        os.makedirs(os.path.join(root, "step_1"), exist_ok=True)
        with open(os.path.join(root, "step_1", "model.safetensors"), "wb") if lazy else contextlib.nullcontext() as f:
            if f:
                f.write(b"x")
            wsync("umount", *lazy, root)
            assert os.listdir(root) == ["log"]
            if f:
                f.write(b"y" * 100000)
        wait_for(lambda: not share.alive(), "its end")
        assert share.process.returncode == 0, share.text()


def test_usage():
    "what it cannot do is refused"
    for pattern, marker, word in ("step_{n}", "STABLE", "pattern"), ("step_{N}", "../x", "--marker"):
        r = wsync("share", "-m", "actor", "--pattern", pattern, "--marker", marker, unique("none"), check=False)
        assert r.returncode == 2 and word in r.stderr, r.stderr
    r = wsync("share", "-m", "actor", "--pattern", "step_{N}", unique("none"), check=False)
    assert r.returncode == 1 and "No such file" in r.stderr, r.stderr


def test_announced_when_the_call_returns():
    "the last close, rename, marker or removal returns once the version is announced; a close does not where a forked child has the file, too"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    for version in (1, 2, 3):
        os.mkdir(folder := os.path.join(root, f"step_{version}"))
        save(checkpoint(TENSORS, seed=version), folder, "model.safetensors")
        assert newest(agent) == version, share.text()
    os.mkdir(folder := os.path.join(root, "step_4"))
    shutil.copyfile(os.path.join(checkpoint(TENSORS, seed=4), "model.safetensors"), os.path.join(folder, "tmp-x"))
    os.rename(os.path.join(folder, "tmp-x"), os.path.join(folder, "model.safetensors"))
    assert newest(agent) == 4
    os.mkdir(folder := os.path.join(root, "step_5"))
    Path(folder, ".tmpx").touch()
    shutil.copyfile(os.path.join(checkpoint(TENSORS, seed=5), "model.safetensors"), os.path.join(folder, "model.safetensors"))
    assert newest(agent) == 4
    os.unlink(os.path.join(folder, ".tmpx"))
    assert newest(agent) == 5
    os.mkdir(folder := os.path.join(root, "step_6"))
    data = Path(checkpoint(TENSORS, seed=6), "model.safetensors").read_bytes()
    fd = os.open(os.path.join(folder, "model.safetensors"), os.O_WRONLY | os.O_CREAT)
    os.write(fd, data[:-4])
    os.ftruncate(fd, len(data))
    child = subprocess.Popen(["sleep", "30"], pass_fds=[fd])
    other = os.dup(fd)
    os.close(fd)
    assert newest(agent) == 5  # whole by its names and lengths, and still written
    os.pwrite(other, data[-4:], len(data) - 4)
    os.close(other)
    time.sleep(0.3)
    assert newest(agent) == 5
    child.kill()
    child.wait()
    published(agent, 6)
    mount = Mount(agent.url)
    mount.wait_version("actor", 6)
    mount.write("pull 6", "actor/ctl")
    assert tensors_of(mount.file("actor", 6, "model.safetensors")) == tensors_of(os.path.join(folder, "model.safetensors"))
    assert "sharing " in share.text()
    r = wsync("ls", "--mount", root, check=False)  # no mount of models
    assert r.returncode == 1 and "is not a wsync mount" in r.stderr, r.stderr


def test_mapped():
    "a file that is written through a mapping, whose descriptor is closed, is not whole before the mapping is gone"
    agent, root = Agent(), unique("out")
    Share(agent, root)
    mount = Mount(agent.url)
    data = Path(whole := os.path.join(checkpoint(TENSORS), "model.safetensors")).read_bytes()
    os.mkdir(folder := os.path.join(root, "step_1"))
    fd = os.open(os.path.join(folder, "model.safetensors"), os.O_RDWR | os.O_CREAT)
    os.write(fd, data[:-4096])
    os.ftruncate(fd, len(data))
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(len(data)), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    assert at != ctypes.c_void_p(-1).value
    os.close(fd)
    assert newest(agent) is None
    ctypes.memmove(at, data, len(data))
    assert libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(len(data))) == 0
    published(agent, 1)
    mount.wait_version("actor", 1)
    mount.write("pull 1", "actor/ctl")
    assert tensors_of(mount.file("actor", 1, "model.safetensors")) == tensors_of(whole)


@pytest.mark.parametrize("to", [280, 1345])
def test_listed_from_anywhere(to):
    "a listing that is begun in the middle of an entry, whose name says that the next one begins there, or far behind, ends"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    os.mkdir(folder := os.path.join(root, "step_1"))  # a tmpfs lists "." and ".." first
    name = "a" * 200 + os.fsdecode(struct.pack("<H", to))  # from byte 88
    Path(folder, name).touch()
    reader = subprocess.Popen([sys.executable, "-c", """if True:
        import os, sys
        folder = os.open(sys.argv[1], os.O_RDONLY)
        print(len(os.listdir(folder)))
        os.lseek(folder, 280, os.SEEK_SET)
        print(len(os.listdir(folder)))""", folder], stdout=subprocess.PIPE, text=True)
    at_end(reader.kill)
    assert reader.communicate(timeout=30 * SLOW)[0] == "1\n0\n"
    assert share.alive()


def test_folder_is_synced():
    "fsync of a version's folder, which is slime's hook, returns once what is whole is announced"
    sys.path.insert(0, os.path.join(ROOT, "backends/python/wsync"))
    import slime
    agent, root = Agent(), unique("out")
    Share(agent, root)
    os.mkdir(folder := os.path.join(root, "step_1"))
    slime.committed(None, folder, [])
    assert newest(agent) is None
    shutil.copyfile(os.path.join(checkpoint(TENSORS), "model.safetensors"), os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
        child = subprocess.Popen(["sleep", "30"], pass_fds=[f.fileno()])
    slime.committed(None, folder, [])  # it is written still
    child.kill()
    child.wait()
    wait_for(lambda: (slime.committed(None, folder, []), newest(agent))[1] == 1, "version 1")
    with pytest.raises(FileNotFoundError):
        slime.committed(None, os.path.join(root, "step_2"), [])
