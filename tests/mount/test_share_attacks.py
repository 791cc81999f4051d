# beside others
# sanitizers: address
# timeout: 240, takes: 60
"""A folder of wsync share where things go wrong: memory that is full, writers that go on writing, that die or lie, nodes that never come; and
frameworks that write in an order of their own."""
import mmap
import stat
import subprocess
import sys
import threading
from pathlib import Path

from sharing import OF_NODE, OF_NODES, SHARDS, Nodes, Share, newest, published, save, stays
from world import *

TENSORS = {"a": ("BF16", [64, 64]), "b": ("F32", [1000])}


def write(root, version, source):
    os.mkdir(folder := os.path.join(root, f"step_{version}"))
    save(source, folder, "model.safetensors")
    return folder


def content(source):
    return Path(source, "model.safetensors").read_bytes()


MAPPED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(fd).st_size
at = libc.mmap(None, size, 3, 1, fd, 0)  # Python's own mmap keeps the descriptor
assert at not in (None, 2**64 - 1), os.strerror(ctypes.get_errno())
os.close(fd)
print("mapped", flush=True)
for line in sys.stdin:
    word = line.strip().encode()
    ctypes.memmove(at + size - len(word), word, len(word))
    print("written", flush=True)
"""


@pytest.mark.parametrize("closes_last", (True, False))
def test_mapped(closes_last):
    "who maps a file, closes it and goes on writing keeps the folder from being whole, until that is unmapped: the version has all that was written"
    agent, root = Agent(), unique("out")
    share, mount = Share(agent, root), Mount(agent.url)
    data = content(checkpoint(TENSORS, seed=1))
    os.mkdir(folder := os.path.join(root, "step_1"))
    path = os.path.join(folder, ".tmp-model" if closes_last else "tmp-model")
    Path(path).write_bytes(data)
    writer = subprocess.Popen([sys.executable, "-c", MAPPED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    at_end(writer.kill)
    assert writer.stdout.readline() == "mapped\n"
    os.rename(path, os.path.join(folder, "model.safetensors"))
    wait_for(lambda: "a process has model.safetensors mapped" in share.text(), "what share says")
    r = wsync("publish", "--shared", folder, check=False)
    assert r.returncode == 1 and "mapped" in r.stderr, r.stderr
    for word in "late", "last":
        writer.stdin.write(f"{word}\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
    stays(agent, share, None)
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:  # whom it does not wait for
        writer.stdin.close()
        writer.wait()
        if closes_last:
            f.close()
        published(agent, 1)
    mount.wait_version("actor", 1)
    assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(os.path.join(folder, "model.safetensors"))
    assert Path(folder, "model.safetensors").read_bytes() == data[:-4] + b"last"
    assert len([line for line in share.text().splitlines() if "mapped" in line]) == 1, share.text()


OWN = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
data = open(sys.argv[1], "rb").read()
fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
os.write(fd, data[:-1000] + bytes(1000))
at = libc.mmap(None, len(data), 3, 1, fd, 0)
os.close(fd)
print("closed", flush=True)
sys.stdin.readline()
ctypes.memmove(at, data, len(data))
"""


def test_maps_its_own():
    "the process that closes the last file has it mapped itself: the call returns, and the version comes when it is unmapped"
    agent, root = Agent(), unique("out")
    share, mount = Share(agent, root), Mount(agent.url)
    source = os.path.join(checkpoint(TENSORS, seed=1), "model.safetensors")
    os.mkdir(folder := os.path.join(root, "step_1"))
    path = os.path.join(folder, "model.safetensors")
    writer = subprocess.Popen([sys.executable, "-c", OWN, source, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    at_end(writer.kill)
    assert writer.stdout.readline() == "closed\n"
    stays(agent, share, None)
    writer.stdin.close()
    assert writer.wait() == 0
    published(agent, 1)
    mount.wait_version("actor", 1)
    assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(source)


def hugepages():
    with open("/sys/kernel/mm/transparent_hugepage/shmem_enabled") as f:
        return "[deny]" not in f.read()


def test_huge_pages():
    "files that have their length first lie in huge pages"
    if not os.path.exists("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or not hugepages():
        pytest.skip("no huge pages in shared memory")
    agent, root = Agent(), unique("out")
    Share(agent, root)
    if os.geteuid():
        pytest.skip("not root")
    os.mkdir(folder := os.path.join(root, "step_1"))

    def pages():
        with open("/proc/meminfo") as f:
            return int(re.search(r"ShmemHugePages: *([0-9]+)", f.read())[1])

    before = pages()
    with open(os.path.join(folder, "tmp-x"), "wb") as f:
        f.truncate(64 << 20)
        f.write(b"x" * (64 << 20))
    wait_for(lambda: pages() > before, "huge pages")  # others take and give back some meanwhile


def test_memory_is_full():
    "who writes gets ENOSPC, nothing is published of what was cut, and it goes on once there is room again"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    os.mkdir(folder := os.path.join(root, "step_1"))
    if os.geteuid():
        pytest.skip("not root")
    space = os.statvfs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        with pytest.raises(OSError) as e:
            os.posix_fallocate(f.fileno(), 0, (space.f_blocks + 1) * space.f_frsize)
        assert e.value.errno == errno.ENOSPC
    assert os.statvfs(folder).f_bfree == space.f_bfree or os.statvfs(folder).f_bfree > space.f_bfree - 1000  # all given back
    stays(agent, share, None)
    shutil.rmtree(folder)
    write(root, 1, checkpoint(TENSORS))
    published(agent, 1)


def test_folder_below_is_full():
    "the folder below is full: so say the calls, what is in memory is published all the same"
    if os.geteuid():
        pytest.skip("not root")
    agent, root = Agent(), unique("out")
    os.mkdir(root)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", root], check=True)
    at_end(lambda: subprocess.run(["umount", "-l", root], check=False))
    share = Share(agent, root)
    wait_for(lambda: "sharing " in share.text(), "share's mount over that")
    with pytest.raises(OSError) as e, open(os.path.join(root, "log"), "wb", buffering=0) as f:
        while True:
            f.write(b"x" * 4096)
    assert e.value.errno == errno.ENOSPC
    write(root, 1, checkpoint(TENSORS))
    published(agent, 1)
    os.mkdir(other := os.path.join(root, "other"))
    with pytest.raises(OSError) as e:
        save(checkpoint(TENSORS), other, "model.safetensors")
    assert e.value.errno == errno.ENOSPC
    assert share.alive(), share.text()


def test_times():
    "times of files that lie, as those of copies do, change nothing; a constant folder's numbers go on from what the clock, set back, does not reach"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    source = checkpoint(TENSORS, seed=1)
    for version, when in (1, 0), (2, 4102444800):
        folder = write(root, version, checkpoint(TENSORS, seed=version))
        for at in os.path.join(folder, "model.safetensors"), folder:
            os.utime(at, (when, when))
        published(agent, version)
    stays(agent, share, 2)
    agent, root = Agent(), unique("constant")
    share = Share(agent, root, "lora_sync")
    future = int(time.time() * 1000) + 10**9
    agent.publish("actor", future, source)
    numbers = [future]
    for seed in 1, 2:
        os.makedirs(folder := os.path.join(root, "lora_sync"), exist_ok=True)
        save(checkpoint(TENSORS, seed=seed), folder, "model.safetensors")
        wait_for(lambda: newest(agent) != numbers[-1], "the next version")
        numbers.append(newest(agent))
    assert numbers[1] < future < 2 * numbers[1] and numbers[2] > numbers[1], (numbers, share.text())  # another lineage, and on in that


def test_nodes_writer_killed():
    "a rank of one node is killed while it writes, and written again by another: the version is what that wrote; the other node's call waits"
    w = Nodes("--marker", "STABLE")
    source = checkpoint(OF_NODES, seed=1, files=SHARDS, sidecars=False)
    w.write(0, 1, source)
    name = OF_NODE[1][0]
    subprocess.run([sys.executable, "-c", "import os,sys\nf=open(sys.argv[1],'wb');f.write(b'x'*99);f.flush();os.kill(os.getpid(),9)",
                    os.path.join(w.folder(1, 1), ".tmpAbCdEf")])
    ender = threading.Thread(target=w.end, args=(1, source))
    ender.start()
    stays(w.agents[0], w.shares[1], None)
    os.unlink(os.path.join(w.folder(1, 1), ".tmpAbCdEf"))
    w.write(1, 1, source)
    ender.join()
    wait_for(lambda: newest(w.agents[0]) == 1, "the version, which is tried again where it was looked at between two files")
    w.expect(1, source)
    assert os.path.exists(os.path.join(w.folder(1, 1), name))


def test_nodes_one_never_comes():
    "a node that writes nothing: the other one's call ends, that node and what is waited for are named, and the next step that both write is published"
    w = Nodes("--marker", "STABLE", "--timeout", "1")
    for version in 1, 2:
        source = checkpoint(OF_NODES, seed=version, files=SHARDS, sidecars=False)
        w.write(0, version, source)
        if version == 2:
            w.write(1, version, source)
        w.end(version, source)
        if version == 1:
            wait_for(lambda: w.shares[0].refusals(), "what is waited for")
            assert newest(w.agents[0]) is None
            assert "rank 1" in w.shares[0].text(), w.shares[0].text()
    wait_for(lambda: newest(w.agents[0]) == 2, "version 2")
    w.expect(2, source)


def test_areal():
    "AReaL writes config and tokenizer once more after the weights: with its last file as the marker the version has them as they were written last"
    agent, root = Agent(), unique("trial")
    share = Share(agent, root, "weight_update_v{N}", "--marker", "tokenizer.json")
    mount = Mount(agent.url, "root=actor,names=weight_update_v{N}")
    for version in 1, 2:
        os.makedirs(folder := os.path.join(root, f"weight_update_v{version}"))
        source = checkpoint(TENSORS, seed=version)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({"model_type": "x", "step": "before"}, f)
        save(source, folder, "model.safetensors")
        stays(agent, share, version - 1 or None)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({"model_type": "x", "step": version}, f)
        for name in "tokenizer_config.json", "chat_template.jinja", "tokenizer.json":
            with open(os.path.join(folder, name), "w") as f:
                f.write(f'{{"of": {version}}}')
        assert newest(agent) == version, share.text()
        wait_for(lambda: os.path.exists(mount.file(f"weight_update_v{version}")), "the name")
        assert sorted(os.listdir(mount.file(f"weight_update_v{version}"))) == sorted(os.listdir(folder))
        assert json.loads(mount.text(f"weight_update_v{version}/config.json"))["step"] == version
        assert mount.text(f"weight_update_v{version}/tokenizer.json") == f'{{"of": {version}}}'
        os.makedirs(os.path.join(root, f"epoch{version}globalstep{version}"))  # its ordinary checkpoints, beside


CONFIG = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "base", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]})
LORA = {f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_{x}.weight": ("F32", shape)
        for i in range(2) for x, shape in {"A": [4, 16], "B": [16, 4]}.items()}


def adapter(seed):
    return checkpoint(LORA, seed=seed, files={"adapter_model.safetensors": list(LORA)}, sidecars=False)


def config(folder):
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        f.write(CONFIG)


def test_adapters():
    "an adapter is whole with its config, be that its first or its last file, or come piece by piece; in several files it is none, and that is said"
    agent, root = Agent(), unique("out")
    share = Share(agent, root)
    for version, order in (1, "first"), (2, "last"), (3, "pieces"):
        os.mkdir(folder := os.path.join(root, f"step_{version}"))
        if order == "first":
            config(folder)
        stays(agent, share, version - 1 or None)
        save(adapter(version), folder, "adapter_model.safetensors")
        if order == "last":
            stays(agent, share, version - 1)
            config(folder)
        if order == "pieces":
            with open(os.path.join(folder, "adapter_config.json"), "w", buffering=1) as f:
                f.write(CONFIG[:20])
                f.flush()
                stays(agent, share, version - 1)
                f.write(CONFIG[20:])
        published(agent, version)
    os.mkdir(folder := os.path.join(root, "step_4"))
    config(folder)
    names = [f"adapter_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    source = checkpoint(LORA, seed=4, files=dict(zip(names, (list(LORA)[:2], list(LORA)[2:]))), sidecars=False)
    for name in names:
        save(source, folder, name)
    shutil.copyfile(os.path.join(source, "model.safetensors.index.json"), os.path.join(folder, "adapter_model.safetensors.index.json"))
    stays(agent, share, 3)
    r = wsync("publish", "--shared", folder, check=False)
    assert r.returncode == 1 and "adapter_model.safetensors" in r.stderr, r.stderr
    save(adapter(4), folder, "adapter_model.safetensors")
    for name in names:
        os.unlink(os.path.join(folder, name))
    os.unlink(os.path.join(folder, "adapter_model.safetensors.index.json"))
    published(agent, 4)


def test_constant_while_read():
    "a constant folder that is written again while readers have its file mapped, on this node and on another: each keeps the bytes that it opened"
    agent, root = Agent(), unique("skyrl")
    Share(agent, root, "lora_sync")
    mount = Mount(agent.url, "root=actor,names=lora_sync")
    folder = os.path.join(root, "lora_sync")
    os.mkdir(folder)
    kept, last = [], None
    for seed in range(4):
        save(source := adapter(seed), folder, "adapter_model.safetensors")
        config(folder)
        wait_for(lambda: newest(agent) != last, "the next version")
        last = newest(agent)
        data = Path(source, "adapter_model.safetensors").read_bytes()
        for path in os.path.join(folder, "adapter_model.safetensors"), mount.file("lora_sync/adapter_model.safetensors"):
            wait_for(lambda: tensors_of(path) == tensors_of(os.path.join(source, "adapter_model.safetensors")), f"seed {seed} in {path}")
            with open(path, "rb") as f:
                kept.append((mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED), f.read()))
        assert Path(folder, "adapter_model.safetensors").read_bytes() == data
    for mapped, data in kept:
        assert mapped[:] == data
        mapped.close()


RACE = """
import os, sys, threading
below, n = int(sys.argv[2]), 1500
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
os.chdir(int(sys.argv[1]))
done = threading.Event()
def race():
    i = 0
    while not done.is_set():
        for at in list(os.listdir(below)):
            if at[0] in "dsf" and at[1:].isdigit():
                for victim in ("secret", "folder"):
                    try:
                        os.rename(at, at + "-old", src_dir_fd=below, dst_dir_fd=below)
                        os.rename(victim, at, src_dir_fd=below, dst_dir_fd=below)
                        os.rename(at, victim, src_dir_fd=below, dst_dir_fd=below)
                    except OSError:
                        pass
t = threading.Thread(target=race); t.start()
for i in range(n):
    for make in (lambda: os.mkdir(f"d{i}"), lambda: os.symlink("x", f"s{i}"), lambda: os.close(os.open(f"f{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))):
        try:
            make()
        except OSError:
            pass
done.set(); t.join()
"""


def test_owner():
    "what is made is its caller's, also while he puts another's files in its place below the mount: these stay the other's"
    if os.geteuid():
        pytest.skip("not root")
    agent, root = Agent(), unique("out")
    os.mkdir(root)
    os.chmod(root, 0o777)
    Path(root, "secret").write_text("x")
    os.mkdir(os.path.join(root, "folder"), 0o700)
    victims = {os.stat(os.path.join(root, name)).st_ino for name in ("secret", "folder")}
    below = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    share = Share(agent, root)
    above = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    subprocess.run([sys.executable, "-c", RACE, str(above), str(below)], pass_fds=[above, below], check=True, timeout=100)
    seen = {}
    for name in os.listdir(below):
        st = os.stat(name, dir_fd=below, follow_symlinks=False)
        seen[st.st_ino] = st
    assert {ino for ino in victims if seen[ino].st_uid == 0} == victims
    others = [st for ino, st in seen.items() if ino not in victims]
    assert len(others) > 1000 and {(st.st_uid, st.st_gid) for st in others} == {(65534, 65534)}
    os.chmod(root, 0o2777)
    for make, name in (os.mkdir, "step_1"), (lambda p: Path(p).touch(), "file"):
        make(os.path.join(root, name))
        assert os.stat(os.path.join(root, name)).st_uid == 0
    assert stat.S_ISDIR(os.stat(os.path.join(root, "step_1")).st_mode) and share.alive()
    os.close(below)
    os.close(above)
