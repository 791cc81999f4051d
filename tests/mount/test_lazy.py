# beside others
# sanitizers: thread
# timeout: 480, takes: 70
"""Mounts that fetch blocks as they are read, and no version for that (-o open=lazy)."""
import os
import re
import signal
import threading
import time

from between import Between
from proxy import Slow
from world import *

SIZE = 12 * (1 << 21)


def lazy(source, options=""):
    mount = Mount(source, f"open=lazy{',' if options else ''}{options}")
    mount.wait_version("actor", 1)
    return mount


def moved(mount, version=1):
    return int(re.search(r" moved=(\d+)", mount.status("actor")[f"version.{version}"]).group(1))


def state(mount, version=1):
    return mount.status("actor")[f"version.{version}"].split()[0]


def run(*args):
    need_fuse()
    agent = Agent(*args)
    folder = checkpoint(LARGE, seed=1)
    agent.publish("actor", 1, folder)
    return agent, folder


def test_blocks():
    "a tensor costs its blocks; opening, listing and looking at headers cost none, and the version is as before"
    agent, folder = run()
    mount = lazy(agent.url)
    want = tensors_of(folder + "/model.safetensors")
    assert sorted(os.listdir(mount.file("actor/1/tensors"))) == sorted(LARGE)
    with open(mount.file("actor/1/model.safetensors"), "rb"), open(mount.file("actor/1/tensors/layer.3.weight"), "rb"):
        pass
    assert moved(mount) == 0
    for name, most in (("layer.3.weight", 2), ("layer.3.weight", 2), ("layer.9.weight", 4)):
        assert mount.read("actor/1/tensors", name) == want[name][2]
        assert 0 < moved(mount) <= most << 22, moved(mount)
    assert mount.read("actor/1/config.json") == open(folder + "/config.json", "rb").read()
    assert state(mount) == "known" and mount.status()["used_bytes"] == "0"
    assert tensors_of(mount.file("actor/1/model.safetensors")) == want  # all of it, over blocks that went from memory
    assert state(mount) == "known" and mount.status()["used_bytes"] == "0"


def test_larger_than_memory():
    "a version that the cache could not hold is read from its begin to its end"
    agent, folder = run()
    mount = lazy(agent.url, f"cache={SIZE // 4}")
    assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(folder + "/model.safetensors")
    assert mount.refused("pull 1", "actor/ctl") == "ENOSPC"
    assert mount.read("actor/1/tensors/tail") == tensors_of(folder + "/model.safetensors")["tail"][2]


def test_pull():
    "a command pulls the version, and reads are answered out of it"
    agent, folder = run()
    mount = lazy(agent.url)
    with open(mount.file("actor/1/model.safetensors"), "rb") as before:
        began = before.read(10)
        mount.write("pull 1", "actor/ctl")
        assert state(mount) == "ready"
        bytes_moved = moved(mount)
        assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(folder + "/model.safetensors")
        assert began + before.read() == mount.read("actor/1/model.safetensors")
        assert moved(mount) == bytes_moved


def test_many_readers():
    "readers of the same and of other blocks at once"
    agent, folder = run()
    mount = lazy(agent.url)
    want, wrong = tensors_of(folder + "/model.safetensors"), []

    def read(names):
        for name in names:
            if mount.read("actor/1/tensors", name) != want[name][2]:
                wrong.append(name)

    threads = [threading.Thread(target=read, args=(list(LARGE)[i % 3:],)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_wrong_bytes():
    "wrong bytes are not shown: EBADMSG, and last_error says which block"
    agent, folder = run()
    between = Between(agent, "/v1/actor/1/")
    mount = lazy(between.url)
    os.listdir(mount.file("actor/1/tensors"))
    between.zeros = True
    with pytest.raises(OSError) as e:
        mount.read("actor/1/tensors/layer.3.weight")
    assert errno.errorcode[e.value.errno] in ("EBADMSG", "EIO"), e.value
    assert "bytes that are not the manifest's" in mount.text("actor/last_error"), mount.text("actor/last_error")
    between.zeros = False
    assert mount.read("actor/1/tensors/layer.3.weight") == tensors_of(folder + "/model.safetensors")["layer.3.weight"][2]


def test_source_ends():
    "the source ends: the reader has an error with a reason, or is ended by a signal meanwhile"
    agent, folder = run()
    mount = lazy(agent.url, "deadline=2")
    os.listdir(mount.file("actor/1/tensors"))
    agent.kill()
    reader = subprocess.Popen(["cat", mount.file("actor/1/tensors/layer.3.weight")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    reader.kill()
    reader.wait(5 * SLOW)
    with pytest.raises(OSError):
        mount.read("actor/1/tensors/layer.7.weight")
    assert mount.text("actor/last_error")


@pytest.mark.parametrize("opened", ["lazy", "stream"])
def test_silent_source(opened):
    "a source that says nothing keeps back reads of its own versions alone, and those have an error when their time is over, not one after another"
    agent, own = run()
    other, folder = Agent(), checkpoint(LARGE, seed=2)
    other.publish("critic", 1, folder)
    mount = Mount(f"{agent.url},{other.url}", f"open={opened},deadline={10 * SLOW}")
    for model in ("actor", "critic"):
        mount.wait_version(model, 1)
    for model in ("actor", "critic"):
        os.listdir(mount.file(model, 1, "tensors"))
    tail = tensors_of(own + "/model.safetensors")["tail"][2]
    if opened == "lazy":
        assert mount.read("actor/1/tensors/tail") == tail
    suspend(agent.pid)
    at_end(os.kill, agent.pid, signal.SIGCONT)
    errors = []

    def read(name):
        with pytest.raises(OSError) as e:
            mount.read("actor/1/tensors", name)
        errors.append(errno.errorcode[e.value.errno])

    readers = [threading.Thread(target=read, args=(f"layer.{i}.weight",)) for i in range(11) for _ in range(2)]
    for t in readers:
        t.start()
    time.sleep(1)
    assert mount.read("critic/1/tensors/layer.3.weight") == tensors_of(folder + "/model.safetensors")["layer.3.weight"][2]
    assert not errors, f"the other model's reader waited as long as those of the silent source: {errors}"
    end = time.monotonic() + 40 * SLOW
    for t in readers:
        t.join(max(0, end - time.monotonic()))
    assert errors and set(errors) <= {"ETIMEDOUT", "EHOSTUNREACH", "EIO"} and len(errors) == len(readers), errors
    if opened == "lazy":  # what is here is read as before
        with open(mount.file("actor/1/model.safetensors"), "rb") as f:
            f.seek(-100, os.SEEK_END)
            assert f.read() == tail[-100:]


def test_source_that_came_back():
    "once the source has answered, a read asks it at once, and is not told again how the one before failed"
    agent, _ = run()
    mount = lazy(agent.url, "deadline=2")

    def heard():
        return float(re.search(r"^source .* contact=(\S+)", mount.text("status"), re.M).group(1))
    with open(mount.file("actor/1/model.safetensors"), "rb") as f:
        for at in (1, 2):
            assert os.pread(f.fileno(), 100, 0)
            suspend(agent.pid)
            try:
                with pytest.raises(OSError):
                    os.pread(f.fileno(), 100, at * 5 << 20)
            finally:
                os.kill(agent.pid, signal.SIGCONT)
            wait_for(lambda: heard() < 1, "the mount to hear of it")
            assert os.pread(f.fileno(), 100, at * 5 << 20)


def test_other_run():
    "a file that is open keeps its bytes when another run publishes the number: the rest is refused, and the error says so"
    agent, _ = run()
    mount = lazy(agent.url)
    other = checkpoint(LARGE, seed=2)
    with open(mount.file("actor/1/model.safetensors"), "rb", buffering=0) as f:
        f.read(1 << 20)
        agent.end()
        agent = Agent(port=agent.port)
        agent.publish("actor", 1, other)
        wait_for(lambda: any("@" in name for name in os.listdir(mount.file("actor"))), "the other run's to be seen")
        f.seek(20 << 20)
        with pytest.raises(OSError) as e:
            f.read(1 << 20)
        assert e.value.errno == errno.ESTALE
        assert "actor/1 is gone at the source; the newest is 1, which another run made" in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(other + "/model.safetensors")


def test_subset():
    "of a subset, which no source has as it is shown, a read has it pulled"
    agent, folder = run()
    mount = lazy(agent.url, "need=layer.3.*")
    assert mount.read("actor/1/tensors/layer.3.weight") == tensors_of(folder + "/model.safetensors")["layer.3.weight"][2]
    assert moved(mount) < 4 << 22
