# beside others
# sanitizers: address
# timeout: 300, takes: 45
"""A mount that shows a model's versions under the names of a framework (-o root=,names=)."""
import glob
import mmap
import pathlib
import re
import shutil
import signal
import stat
import threading
import time

from between import Between
from world import *

# What no version is called, and what the mount has unlisted.
NONSENSE = ("step_", "step_07", "step_x", "step_-1", "step_7.tmp", "step_18446744073709551616", "Step_7", "other")


def named(source, names="step_{N}", options="", known=()):
    """known: what is looked up first, so that the mount has asked its source when this returns."""
    mount = Mount(source, f"root=actor,names={names}{',' if options else ''}{options}")
    for name in known:
        os.stat(mount.file(name))
    return mount


def run(*versions):
    need_fuse()
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    for n in versions:
        agent.publish("actor", n, folder)
    return agent, folder


def test_listing():
    "the versions and nothing else are listed, and each has its own files and no more"
    agent, folder = run(1, 7)
    mount = named(agent.url, known=["step_7"])
    assert sorted(os.listdir(mount.path)) == ["step_1", "step_7"]
    assert sorted(os.listdir(mount.file("step_7"))) == sorted(os.listdir(folder))
    assert tensors_of(mount.file("step_7/model.safetensors")) == tensors_of(folder + "/model.safetensors")
    assert mount.read("step_7/config.json") == open(folder + "/config.json", "rb").read()
    for name in os.listdir(folder):
        assert stat.S_IMODE(os.stat(mount.file("step_7", name)).st_mode) == 0o644
    assert stat.S_IMODE(os.stat(mount.file("step_7")).st_mode) == 0o755
    for name in NONSENSE + ("7", ".wsync", "step_7/.wsync", "step_7/tensors"):
        assert not os.path.lexists(mount.file(name)), name
    assert os.stat(mount.file("step_1")).st_mtime < os.stat(mount.file("step_7")).st_mtime
    with pytest.raises(OSError) as e:
        open(mount.file("step_7/config.json"), "w")
    assert e.value.errno == errno.EROFS


def test_unlisted():
    "what a mount has besides is there by name, the model's own folder beside the one with the names"
    agent, folder = run(1, 7)
    mount = named(agent.url, known=["step_7"])
    assert os.readlink(mount.file("latest")) == "step_7" and mount.read("latest/config.json")
    for turn in range(2):  # a folder that had two parents would be moved by the kernel from one to the other
        here = os.open(mount.file("step_7"), os.O_RDONLY)
        assert os.path.isdir(mount.file("actor/7/tensors")) and os.readlink(mount.file("actor/latest")) == "7"
        assert os.readlink(f"/proc/self/fd/{here}") == mount.file("step_7")
        os.close(here)
    assert mount.status("actor")["latest"].split()[0] == "7"
    mount.write("drop 1", "actor/ctl")
    assert "actor" in wsync("status", mount.path).stdout and "actor" in wsync("ls", mount.path).stdout


def test_links():
    "files that are links lead into the same memory from both folders"
    agent, folder = run(7)
    mount = named(agent.url, options="reads=link")
    want = tensors_of(folder + "/model.safetensors")
    wait_for(lambda: "serving at=" in mount.text(), "the tmpfs")
    for path in ("step_7", "actor/7", "step_7"):
        assert tensors_of(mount.file(path, "model.safetensors")) == want
        assert os.path.realpath(mount.file(path, "model.safetensors")).startswith(mount.file(".regions"))


def test_weight_watcher():
    "PRIME-RL's orchestrator: the highest of glob(step_*) that has STABLE, each of whose names must be a number's"
    agent, folder = run()
    mount = named(agent.url)
    mount_glob = lambda: [p for p in glob.glob(mount.file("step_*"))]
    assert mount_glob() == []
    open(os.path.join(folder, "STABLE"), "w").close()
    for n in (1, 2, 10):
        agent.publish("actor", n, folder)
        wait_for(lambda: mount.file(f"step_{n}") in mount_glob(), f"step_{n}")
        steps = sorted(int(p.split("_")[-1]) for p in mount_glob())
        newest = max(s for s in steps if os.path.exists(mount.file(f"step_{s}", "STABLE")))
        assert newest == n
        assert os.path.getsize(mount.file(f"step_{n}", "STABLE")) == 0
        assert mount.read(f"step_{n}", "STABLE") == b""


@pytest.mark.parametrize("names, want", [("weight_v{N:06d}", "weight_v000007"), ("weight_update_v{N}", "weight_update_v7"),
                                         ("{name}-v{N}", "actor-v7"), ("{N}", "7")])
def test_patterns(names, want):
    "the names of slime, AReaL and TRL"
    agent, folder = run(7)
    mount = named(agent.url, names, known=[want])
    assert os.listdir(mount.path) == [want]
    assert mount.read(want, "config.json") == open(folder + "/config.json", "rb").read()


def test_constant():
    "one folder is the newest version, to those who open it anew"
    agent, folder = run()
    mount = named(agent.url, "lora_sync")
    assert os.listdir(mount.path) == []
    for n in (1, 2, 3):
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write(f'{{"n": {n}}}')
        agent.publish("actor", n, folder)
        assert mount.text("lora_sync/config.json") == f'{{"n": {n}}}'  # asked for at each open
        assert os.listdir(mount.path) == ["lora_sync"]
    assert not os.path.lexists(mount.file("latest"))


def test_root_alone():
    "without names= versions are called by their numbers, and the mode is as ever"
    agent, folder = run(7)
    mount = Mount(agent.url, "root=actor")
    os.stat(mount.file("7"))
    assert os.listdir(mount.path) == ["7"]
    assert stat.S_IMODE(os.stat(mount.file("7/config.json")).st_mode) == 0o444


@pytest.mark.parametrize("options, said", [
    ("names=step_{N}", "add root=MODEL"), ("root=a/b", "takes a model"), ("root=actor,names=a/{N}", "no pattern of names"),
    ("root=actor,names=status", "something of that name"), ("root=actor-v3,names=actor-v{N}", "something of that name"),
    ("root=actor,names=step_{N}{N}", "no pattern of names")])
def test_refused(options, said):
    "what cannot be is refused with a sentence"
    need_fuse()
    mount = Mount("http://127.0.0.1:1", options, wait=False)
    wait_for(lambda: not mount.alive(), "the refusal")
    assert said in mount.text(), mount.text()


# --- a framework's call overtakes what the agent announces ---

def slow_polls(*versions):
    "an agent whose news wait in a proxy; what is asked at once passes"
    agent, folder = run(*versions)
    between = Between(agent)
    between.asked = 0

    def hold(path, body):
        between.asked += bool(re.search(r"since=0(&|$)", path) or "since" not in path and "models" in path)
        while between.hold and re.search(r"since=[1-9]", path):
            time.sleep(0.02)

    between.before, between.hold = hold, True
    at_end(lambda: setattr(between, "hold", False))
    return agent, folder, between


def test_overtaken():
    "a version is there by its name as soon as it is published, though this mount has not been told of it"
    agent, folder, between = slow_polls()
    mount = named(between.url)
    for n in range(1, 21):
        agent.publish("actor", n, folder)
        assert mount.read(f"step_{n}", "config.json") == open(folder + "/config.json", "rb").read()
    assert len(os.listdir(mount.path)) >= 1


def test_constant_overtaken():
    "the same of a constant folder, whose every rewrite is the next version"
    agent, folder, between = slow_polls()
    mount = named(between.url, "lora_sync")
    for n in range(1, 11):
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write(f'{{"n": {n}}}')
        agent.publish("actor", n, folder)
        assert mount.text("lora_sync/config.json") == f'{{"n": {n}}}'


def test_nonsense():
    "what is no version's name asks nobody; a flood of names that could be asks a source 50 times a second at most"
    agent, folder, between = slow_polls(7)
    mount = named(between.url)
    mount.read("step_7/config.json")
    before = between.asked
    for _ in range(125):
        assert not any(os.path.lexists(mount.file(name)) for name in NONSENSE)
    assert between.asked == before
    began = time.monotonic()

    def flood(first):
        for n in range(first, first + 250):
            assert not os.path.lexists(mount.file(f"step_{n}"))

    threads = [threading.Thread(target=flood, args=(1000 * (i + 1),)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - began
    assert between.asked > before
    assert between.asked - before <= 50 * (took + 1) + 2, (between.asked - before, took)


def test_source_dead():
    "without an answer there is no such file, after a bound; what is known stays; the log has a line, not one for each"
    agent, folder = run(7)
    mount = named(agent.url)
    mount.read("step_7/config.json")
    agent.process.send_signal(signal.SIGSTOP)
    at_end(lambda: agent.process.send_signal(signal.SIGCONT))
    waiting = [subprocess.Popen(["stat", mount.file(f"step_{n}")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for n in range(100, 110)]
    assert mount.read("step_7/config.json")  # which waits for none of them
    for p in waiting:
        assert p.wait(60) != 0
    for n in range(110, 120):
        assert not os.path.lexists(mount.file(f"step_{n}"))
    assert mount.text().count("could not be asked for it") == 1
    agent.process.send_signal(signal.SIGCONT)
    agent.publish("actor", 8, folder)
    wait_for(lambda: os.path.exists(mount.file("step_8")), "step_8")
    agent.kill()
    for n in range(100, 1100):
        assert not os.path.lexists(mount.file(f"step_{n}"))
    assert mount.text().count("could not be asked for it") == 1
    mount.kill()  # while nothing waits; the mount ends


def test_ends_meanwhile():
    "a look-up that waits ends with the mount, and with a signal to who waits"
    agent, folder = run(7)
    mount = named(agent.url)
    mount.read("step_7/config.json")
    agent.process.send_signal(signal.SIGSTOP)
    at_end(lambda: agent.process.send_signal(signal.SIGCONT))
    reader = subprocess.Popen(["stat", mount.file("step_99")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.2)
    reader.kill()
    reader.wait(10)
    reader = subprocess.Popen(["stat", mount.file("step_98")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.1)
    mount.kill()
    assert reader.wait(10) != 0


# --- what programs of this node write beside a version ---

def code(call, *args, **kw):
    "the errno's name with which it fails"
    with pytest.raises(OSError) as e:
        call(*args, **kw)
    return errno.errorcode[e.value.errno]


def test_orchestrator():
    "PRIME-RL's orchestrator makes the folder that is there and touches NCCL_READY in it, and no version is another for it"
    agent, folder = run(1, 7)
    mount = named(agent.url, known=["step_7"])
    other = named(agent.url, known=["step_7"])
    for turn in range(2):
        pathlib.Path(mount.file("step_7")).mkdir(parents=True, exist_ok=True)
        pathlib.Path(mount.file("step_7", "NCCL_READY")).touch()
    assert mount.read("step_7/NCCL_READY") == b""
    assert sorted(os.listdir(mount.file("step_7"))) == sorted(os.listdir(folder) + ["NCCL_READY"])
    assert sorted(os.listdir(other.file("step_7"))) == sorted(os.listdir(mount.file("step_1"))) == sorted(os.listdir(folder))
    assert not os.path.exists(mount.file("actor/7/NCCL_READY")) and not os.path.exists(mount.file("step_1/NCCL_READY"))
    os.unlink(mount.file("step_7/NCCL_READY"))
    assert not os.path.exists(mount.file("step_7/NCCL_READY"))
    assert mount.read("step_7/config.json") == open(folder + "/config.json", "rb").read()
    mount.write("verify 7", "actor/ctl")


def test_side_files():
    "files that are copied, written anew, renamed and removed while they are open are as on any file system"
    agent, folder = run(7)
    mount = named(agent.url, known=["step_7"])
    at, source = mount.file("step_7"), os.path.join(TESTDIR, "tokenizer")
    data = os.urandom(3_000_000)
    with open(source, "wb") as f:
        f.write(data)
    os.utime(source, (1000, 2000))
    shutil.copy2(source, at + "/tokenizer.model")
    assert mount.read("step_7/tokenizer.model") == data and os.stat(at + "/tokenizer.model").st_mtime == 2000
    with open(at + "/tokenizer.model", "r+b") as f:
        f.seek(1_000_000)
        f.write(b"abc")
        f.truncate(2_000_000)
        f.seek(0)
        assert f.read() == data[:1_000_000] + b"abc" + data[1_000_003:2_000_000]
    os.truncate(at + "/tokenizer.model", 2_000_010)
    assert mount.read("step_7/tokenizer.model")[-11:] == data[1_999_999:2_000_000] + bytes(10)
    with open(at + "/a.tmp", "w") as f:
        json.dump({"a": 1}, f)
        f.flush()
        os.rename(at + "/a.tmp", at + "/a.json")  # while it is open for writing
        f.write(" ")
    assert mount.text("step_7/a.json") == '{"a": 1} '
    with open(at + "/a.json") as held, open(at + "/b", "w") as f:
        f.write("b")
        os.rename(at + "/b", at + "/a.json")  # over one that is open
        assert held.read() == '{"a": 1} '
        os.unlink(at + "/a.json")
        f.write("c")
    assert not os.path.exists(at + "/a.json")
    with open(at + "/log", "a") as f:
        f.write("1")
    with open(at + "/log", "a") as f:
        f.write("2")
    assert mount.text("step_7/log") == "12"
    os.chmod(at + "/log", 0o600)
    assert stat.S_IMODE(os.stat(at + "/log").st_mode) == 0o644
    assert code(os.open, at + "/log", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == "EEXIST"
    f = os.open(at + "/log", os.O_RDWR)
    os.fsync(f)
    os.close(f)


def test_versions_are_not_written():
    "a version's own file is neither written to, nor another's name; what does no harm succeeds and changes nothing"
    agent, folder = run(7)
    mount = named(agent.url, known=["step_7"])
    config = mount.file("step_7/config.json")
    before, seen = mount.read("step_7/config.json"), os.stat(config)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        assert code(os.open, config, flags) == "EROFS"
    with open(mount.file("step_7/x"), "w"):
        pass
    assert code(os.rename, mount.file("step_7/x"), config) == "EROFS"
    assert code(os.rename, config, mount.file("step_7/y")) == "EROFS"
    assert code(os.truncate, config, 0) == "EROFS"
    assert code(os.mkdir, mount.file("step_7/sub")) == "EROFS"
    assert code(os.mkdir, mount.file("step_7")) == "EEXIST"
    assert code(os.mkdir, mount.file("other")) == "EROFS" == code(open, mount.file("other"), "w")
    assert code(open, mount.file("actor/7/x"), "w") == "EROFS" == code(os.unlink, mount.file("actor/7/config.json"))
    assert code(os.symlink, "a", mount.file("step_7/l")) == "EROFS"
    os.utime(config)
    os.chmod(config, 0o600)
    os.utime(mount.file("step_7"))
    assert os.stat(config).st_mtime == seen.st_mtime and stat.S_IMODE(os.stat(config).st_mode) == 0o644
    assert mount.read("step_7/config.json") == before
    plain = Mount(agent.url)
    plain.wait_version("actor", 7)
    assert code(open, plain.file("actor/7/x"), "w") == "EROFS" == code(os.rmdir, plain.file("actor/7"))
    assert code(os.chmod, plain.file("actor/7/config.json"), 0o600) == "EROFS"


def test_bounds():
    "side files have 64 MiB of memory, and give back what they had"
    agent, folder = run(7)
    mount = named(agent.url, known=["step_7"])
    for turn in range(3):
        with open(mount.file("step_7/large"), "wb", buffering=0) as f:
            assert code(lambda: [f.write(bytes(1 << 20)) for _ in range(100)]) == "ENOSPC"
            size = f.tell()
        assert 16 << 20 <= size <= 64 << 20
        assert code(os.truncate, mount.file("step_7/large"), 1 << 40) == "ENOSPC"
        os.unlink(mount.file("step_7/large"))
    names = []
    with pytest.raises(OSError) as e:
        for i in range(5000):
            open(mount.file("step_7", f"f{i}"), "w").close()
            names.append(i)
    assert errno.errorcode[e.value.errno] == "ENOSPC" and len(names) == 4096
    shutil.rmtree(mount.file("step_7"))
    assert not os.path.exists(mount.file("step_7"))
    with pytest.raises(FileNotFoundError):
        open(mount.file("step_7/x"), "w")


def test_rmtree():
    "a version that a framework is done with is gone for this node at once; mapped bytes, the mount's own and others' stay"
    agent, folder = run(1, 7)
    mount = named(agent.url, known=["step_7"])
    other = named(agent.url, known=["step_7"])
    pathlib.Path(mount.file("step_7", "NCCL_READY")).touch()
    want = tensors_of(folder + "/model.safetensors")
    with open(mount.file("step_7/model.safetensors"), "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        seen = mapped[:]
        assert code(os.rmdir, mount.file("step_7")) == "ENOTEMPTY"
        shutil.rmtree(mount.file("step_7"))
        for turn in range(2):
            assert not os.path.lexists(mount.file("step_7")) and os.listdir(mount.path) == ["step_1"]
            assert code(shutil.rmtree, mount.file("step_7")) == "ENOENT"
            shutil.rmtree(mount.file("step_7"), ignore_errors=True)
        assert mapped[:] == seen
    shutil.rmtree(mount.file("step_1"))  # of which nothing was read
    assert os.listdir(mount.path) == []
    assert tensors_of(mount.file("actor/7/model.safetensors")) == want == tensors_of(other.file("step_7/model.safetensors"))
    agent.publish("actor", 8, folder)  # its delta's base is the version that was removed
    assert tensors_of(mount.file("step_8/model.safetensors")) == want
    assert os.listdir(mount.path) == ["step_8"]


def test_killed():
    "what was beside a version is gone with the mount, and the next one shows the version as it is"
    agent, folder = run(7)
    mount = named(agent.url, known=["step_7"])
    pathlib.Path(mount.file("step_7/x")).write_text("x")
    os.unlink(mount.file("step_7/config.json"))
    assert not os.path.exists(mount.file("step_7/config.json"))
    mount.kill()
    subprocess.run(["umount", "-l", mount.path], check=False, stderr=subprocess.DEVNULL)
    again = Mount(agent.url, "root=actor,names=step_{N}", path=mount.path)
    assert sorted(os.listdir(again.file("step_7"))) == sorted(os.listdir(folder))
