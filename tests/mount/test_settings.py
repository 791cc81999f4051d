# beside others
# sanitizers: thread
# timeout: 240, takes: 12
"""A mount's settings (models, engines, pins): all survive a restart, and none is accepted that could not be read again."""
import os
import shutil
import signal

import pytest

from world import *

PINS = 70


def pins_of(mount):
    return sum(" pinned" in line for line in mount.text("actor/status").splitlines() if line.startswith("version."))


def test_many_pins():
    "seventy pins are seventy pins after a restart"
    need_fuse()
    folder = os.path.join(unique("runs"), "actor")
    for version in range(1, PINS + 1):
        shutil.copytree(checkpoint(SMALL, seed=version), os.path.join(folder, str(version)))
    source = f"dir:{os.path.dirname(folder)}"
    mount = Mount(source)
    for version in range(1, PINS + 1):
        mount.wait_version("actor", version)
        mount.write(f"pin {version}", "actor/ctl")
    assert pins_of(mount) == PINS
    mount.end()
    mount = Mount(source, path=mount.path)
    wait_for(lambda: os.path.isdir(mount.file("actor")) and pins_of(mount) == PINS, "the pins", 60)



def write_settings(path, text):
    try:
        import xxhash
    except ImportError:
        pytest.skip("the Python package xxhash is not here (PyPI was not reached)")
    with open(path, "wb") as f:
        f.write(text + f"end {xxhash.xxh3_64_hexdigest(text)}\n".encode())


def test_full():
    "an engine for which the settings have no room is refused with the reason, and the others are there after a restart"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    mount.write("engine add first external", "actor/ctl")
    path = next(os.path.join(TESTDIR, "state", f) for f in os.listdir(f"{TESTDIR}/state") if mount.path.rsplit("/", 1)[1] in f and "lock" not in f)
    mount.end()
    with open(path, "rb") as f:
        text = f.read()
    text = text[:text.rindex(b"end ")]
    for model in range(17):
        text += f'model "m{model}"\npolicy manual\ncommit all\n'.encode()
        text += b"".join(b"engine add " + b"%04d" % i + 100 * b"x" + b" external\n" for i in range(800))
    write_settings(path, text)
    mount = Mount(agent.url, path=mount.path)
    mount.wait_version("actor", 1)
    assert len(mount.engines()) == 1
    assert mount.refused("engine add second external", "actor/ctl") == "E2BIG"
    assert "remove engines or pins" in mount.text("actor/last_error") and list(mount.engines()) == ["first"]
    assert mount.refused("pin 1", "actor/ctl") == "E2BIG"
    mount.write("engine remove first", "actor/ctl")
    mount.end()
    mount = Mount(agent.url, path=mount.path)
    mount.wait_version("actor", 1)
    assert not mount.engines() and not mount.text("last_error"), mount.text("last_error")


def test_unread():
    "unreadable settings are moved aside with the reason, and later settings do not overwrite them"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    mount.write("engine add first external", "actor/ctl")
    path = next(os.path.join(TESTDIR, "state", f) for f in os.listdir(f"{TESTDIR}/state") if mount.path.rsplit("/", 1)[1] in f and "lock" not in f)
    mount.end()
    with open(path, "ab") as f:
        f.write(b"#" * (4 << 20))  # as a release with higher limits may write
    with open(path, "rb") as f:
        before = f.read()
    mount = Mount(agent.url, path=mount.path)
    mount.wait_version("actor", 1)
    assert "larger than" in mount.text("last_error") and ".damaged" in mount.text("last_error"), mount.text("last_error")
    mount.write("engine add second external", "actor/ctl")
    mount.end()
    with open(path + ".damaged", "rb") as f:
        assert f.read() == before
    mount = Mount(agent.url, path=mount.path)
    mount.wait_version("actor", 1)
    assert list(mount.engines()) == ["second"]


def test_models_leave():
    "a model that no source lists any more disappears once no version of it is here and no engine belongs to it, and can return"
    need_fuse()
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    engine = Engine(folder)
    names = ("actor", "held", "driven", "gone")
    for name in names:
        agent.publish(name, 1, folder)
    mount = Mount(agent.url)
    for name in names:
        mount.wait_version(name, 1)
    mount.read("held/1/model.safetensors")
    mount.write(f"engine add e sglang {engine.url}", "driven/ctl")
    agent.kill()
    wait_for(lambda: " down " in mount.text("status"), "the end of the agent to be noticed")
    assert all(os.path.isdir(mount.file(name)) for name in names), "a source that does not answer says nothing"
    agent = Agent(port=agent.port, sock=agent.sock)
    agent.publish("actor", 1, folder)
    wait_for(lambda: not os.path.exists(mount.file("gone")), "the model to leave")
    assert all(os.path.isdir(mount.file(name)) for name in names[:3])
    mount.read("held/1/model.safetensors")
    mount.write("engine remove e", "driven/ctl")
    wait_for(lambda: not os.path.exists(mount.file("driven")), "the model without its engine to leave")
    for name in ("gone", "driven"):
        agent.publish(name, 7, folder)
        mount.wait_version(name, 7)
        mount.read(name, "7/model.safetensors")


def test_added_that_hangs():
    "an added source whose file system hangs at the restart does not delay the start"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    below = Mount(agent.url)
    below.wait_version("actor", 1)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    mount.write(f"add other dir:{below.path}", "ctl")
    mount.end()
    suspend(below.pid)
    try:
        again = Mount(agent.url, path=mount.path, wait=False)
        at_end(os.kill, below.pid, signal.SIGCONT)  # before the mount ends, which waits for the folder
        wait_for(lambda: "serving at=" in again.text(), "the start", 60)
        again.wait_version("actor", 1)
    finally:
        os.kill(below.pid, signal.SIGCONT)
    wait_for(lambda: f"dir:{below.path}" in again.text("status"), "the source that was added", 60)
    again.end()
