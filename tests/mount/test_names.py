# beside others
# sanitizers: address
# timeout: 240, takes: 30
"""A mount that shows a model's versions under the names of a framework (-o root=,names=)."""
import glob
import re
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
