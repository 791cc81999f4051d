# beside others
# timeout: 720, takes: 150
# sanitizers: address
"""Failures: agents and daemons that die, faults on the wire, full caches, slow pulls, readers that do not close."""
import contextlib
import os
import signal
import subprocess
import threading
import time

import pytest

from certificates import Tls
from proxy import Slow
from world import *

READERS = os.path.join(BUILD, "tests/tools/readers")


def published(tensors=LARGE, *args):
    need_fuse()
    agent = Agent(*args)
    folder = checkpoint(tensors, seed=1)
    agent.publish("actor", 1, folder)
    return agent, folder


def mounted(source, options=""):
    mount = Mount(source, options)
    mount.wait_version("actor", 1)
    return mount


def error_of(function):
    import errno

    try:
        function()
    except OSError as e:
        return errno.errorcode[e.errno]
    return None


def test_faults():
    "cuts, flipped bits, lies and delays on the wire: every byte is right in the end, and the faults are counted"
    agent, folder = published()
    want = tensors_of(folder + "/model.safetensors")
    bad = 0
    for plan in ("seed=1,cut=20,flip=20,lie=5", "seed=2,delay=30,reorder", "seed=3,cut=30", "seed=4,flip=20,fail=10",
                 "seed=5,flip=20", "seed=6,lie=20"):
        with scope():
            mount = mounted_fault(plan, agent)
            # Three wrong answers in a row fail the pull, as they should; another try starts again.
            wait_for(lambda m=mount: error_of(lambda: m.read("actor/1/model.safetensors")) in (None, False), "a good pull", 40)
            assert tensors_of(mount.file("actor/1/model.safetensors")) == want, plan
            bad += int(mount.status()["bad_blocks"])
    assert bad > 0


def mounted_fault(plan, agent, options=""):
    # Commas separate sources, so the plan's commas are passed by `add`, which takes one source.
    mount = Mount(f"unix:{unique('nobody')}.sock", options)
    mount.write(f"add actor fault:{plan}:{agent.url}", "ctl")
    mount.wait_version("actor", 1)
    return mount


def test_hopeless_wire():
    "a block that is wrong three times fails the pull with EBADMSG, and the error says so"
    agent, _ = published()
    mount = mounted_fault("flip=100", agent)
    assert error_of(lambda: mount.read("actor/1/model.safetensors")) == "EBADMSG"
    assert mount.text("actor/1/.wsync/state").startswith("failed")


def test_agent_restarts():
    "an agent is killed during a pull: after its restart the mount fetches only what is missing"
    agent, folder = published()
    mount = mounted_fault("delay=150", agent)
    wsync("pull", "--mount", mount.path, "--async", "actor", "1")
    wait_for(lambda: int(read_value(mount, "have_bytes")) > 0, "the first block")
    agent.kill()
    again = Agent(port=agent.port, sock=agent.sock)
    again.publish("actor", 1, folder, "--run", run_of(mount))
    path = mount.file("actor/1/model.safetensors")
    # A mount that queried the new agent before the publish calls the version gone until it is listed again.
    wait_for(lambda: not error_of(lambda: open(path, "rb").close()), "the version is there again")
    assert tensors_of(path) == tensors_of(folder + "/model.safetensors")


def test_first_open_waits_for_the_deadline():
    "the first open of a version, of which not even the manifest is here, waits as long as deadline= says; a list of its folder does not"
    agent, _ = published()
    mounts = [mounted(agent.url, f"deadline={seconds}") for seconds in (1, 13)]
    suspend(agent.pid)
    try:
        for mount, said in zip(mounts, (" came for 1.0 s", " came for 13.0 s")):
            assert error_of(lambda m=mount: m.read("actor/1/model.safetensors")) == "ETIMEDOUT"
            assert said in mount.text("actor/last_error"), mount.text("actor/last_error")
        assert error_of(lambda: os.listdir(mounts[1].file("actor/1"))) == "ETIMEDOUT"
        assert " came for 10.0 s" in mounts[1].text("actor/last_error"), mounts[1].text("actor/last_error")
    finally:
        os.kill(agent.pid, signal.SIGCONT)


def test_pinned_and_gone():
    "a pinned version that is not here and that no source has any more: a read says so in last_error and events"
    agent, _ = published()
    mount = mounted(agent.url)
    mount.write("pin 1", "actor/ctl")
    agent.kill()
    Agent(port=agent.port, sock=agent.sock)
    wait_for(lambda: "gone-at-source" in mount.status("actor")["version.1"], "the mount to hear of it")
    for _ in range(2):
        assert error_of(lambda: mount.read("actor/1/model.safetensors")) == "ESTALE"
    assert "no source has it any more" in mount.text("actor/last_error")
    assert mount.text("actor/events").count("no source has it any more") == 1


def test_own_folder():
    "what an option or a source names below the mount's own folder is refused: the daemon would wait for itself"
    agent, _ = published()
    folder = unique("mnt")
    os.makedirs(folder)
    link = unique("link")
    os.symlink(folder, link)
    for option in (f"state={link}", f"log={os.path.relpath(folder)}/l", f"state={folder}/s", f"config={folder}/c", f"log={folder}/l", f"audit-log={link}/a", f"state={folder}/none/deeper/s"):
        r = wsync("mount", "-o", option, agent.url, folder, check=False)
        assert r.returncode == 2 and "the mount's own folder" in r.stderr, (option, r.returncode, r.stderr)
    for source in (f"dir:{folder}", f"dir:{link}", f"unix:{folder}/agent.sock", f"dir:/{folder}", f"dir:{folder[1:]}/actor", f"dir:{os.path.relpath(folder)}", f"unix:/{folder}/s"):
        r = wsync("mount", source, folder, check=False)
        assert r.returncode == 2 and "the mount's own folder" in r.stderr, (source, r.returncode, r.stderr)
    config, far = unique("config"), unique("far")
    os.symlink(os.path.join("..", os.path.basename(TESTDIR), os.path.basename(link)), far)
    for source in (f"dir:{folder}/actor", f"dir:{far}/actor", f"dir:{TESTDIR}/./none/../{os.path.basename(far)}/actor"):
        with open(config, "w") as f:
            f.write(f"add actor {source}\n")
        r = wsync("mount", "-o", f"config={config}", agent.url, folder, check=False)
        assert r.returncode and "the mount's own folder" in r.stderr, (source, r.returncode, r.stderr)
        assert not os.path.ismount(folder)


def test_own_folder_of_a_mount_that_runs():
    "the same of a source that is added, by a command or by the config that is read again: the mount goes on"
    agent, _ = published()
    config, link, token = unique("config"), unique("link"), unique("token")
    with open(config, "w"):
        pass
    mount = mounted(agent.url, f"config={config}")
    os.symlink(mount.path, link)
    for source in (f"dir:{mount.path}", f"dir:{mount.path}/actor", f"dir:{link}/actor/1", f"unix:{mount.path}/x.sock",
                   f"http://127.0.0.1:1;token-file={link}/status"):
        assert error_of(lambda s=source: mount.write(f"add other {s}", "ctl")) == "EINVAL", source
        assert "the mount's own folder" in mount.text("last_error"), mount.text("last_error")
    for option in ("token-file", "admin-token-file", "ca-file"):
        assert error_of(lambda o=option: mount.write(f"engine add e0 vllm http://127.0.0.1:1 {o}={link}/status", "actor/ctl")) == "EINVAL", option
        assert "the mount's own folder" in mount.text("actor/last_error"), mount.text("actor/last_error")
    with open(config, "w") as f:
        f.write(f"add other dir:{link}/actor\n")
    os.kill(mount.pid, signal.SIGHUP)
    wait_for(lambda: "the mount's own folder" in mount.text("status"), "the config to be read again")
    assert mount.read("actor/1/config.json") and "dir:" not in mount.text("status").split("config_error")[0]


def test_away_behind_a_proxy():
    "a source whose proxy closes handshakes while it is away is tried again"
    agent, folder = published()
    proxy = Tls(agent.port)
    mount = mounted(proxy.url, f"ca-file={proxy.ca}")
    proxy.away = True
    wsync("pull", "--mount", mount.path, "--async", "actor", "1")
    wait_for(lambda: proxy.closed, "a handshake that is closed")
    proxy.away = False
    assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(folder + "/model.safetensors")


def read_value(mount, key):
    return dict(l.split(" ", 1) for l in mount.text("actor/1/.wsync/progress").splitlines())[key]


def run_of(mount):
    return json.loads(mount.read("actor/1/.wsync/manifest.json"))["run"]


def test_stream_deadline():
    "open=stream with a dead agent: an error at the deadline, and SIGKILL ends a reader at once"
    agent, _ = published()
    mount = mounted(agent.url, "open=stream,deadline=3")
    fd = os.open(mount.file("actor/1/config.json"), os.O_RDONLY)
    agent.kill()
    reader = subprocess.Popen(["cat", mount.file("actor/1/model.safetensors")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    reader.kill()
    reader.wait(5 * SLOW)
    assert error_of(lambda: open(mount.file("actor/1/model.safetensors"), "rb").read()) in ("EHOSTUNREACH", "ETIMEDOUT", "ECONNRESET", "EIO")
    os.close(fd)


def test_failed_read_is_reported():
    "a read that fails because the agent is away is in last_error and, once for each reason, in events; a successful pull clears last_error"
    agent, _ = published()
    mount = mounted(agent.url, "deadline=2")
    agent.kill()
    for _ in range(3):
        assert error_of(lambda: os.listdir(mount.file("actor/1"))) or error_of(lambda: mount.read("actor/1/config.json"))
    said = wait_for(lambda: mount.text("actor/last_error"), "the reason", 60)
    assert "errno " in said and "agent" in said, said
    events = [line for line in mount.text("actor/events").splitlines() if " unread " in line or " failed " in line]
    unread = [line.split(" why=")[0].split(" ", 1)[1] for line in events if " unread " in line]
    assert events and len(unread) == len(set(unread)), events  # once for each errno: at first the mount does not know that it is away
    again = Agent(port=agent.port)
    again.publish("actor", 1, checkpoint(SMALL))
    wait_for(lambda: not error_of(lambda: mount.read("actor/1/model.safetensors")), "the agent that is back", 60)
    wait_for(lambda: mount.text("actor/last_error") == "", "no error any more", 60)


def test_quiet_end():
    "an unmounted mount does not report its connection, which it has cut itself"
    agent, _ = published()
    mount = mounted(f"http://127.0.0.1:{Slow(agent.port, 1e6).port}", "streams=1")
    reader = subprocess.Popen(["cat", mount.file("actor/1/model.safetensors")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: mount.text("actor/1/.wsync/state").startswith("pulling"), "the pull", 60)
    subprocess.run(["umount", "-l", mount.path], check=True)
    mount.process.terminate()
    mount.process.wait(60 * SLOW)
    reader.kill()
    reader.wait(20 * SLOW)
    said = Process.text(mount)
    assert "control ends" in said and "Broken pipe" not in said, said


def test_token_file():
    "an unreadable token file is named with the reason: a mount's options report the file reader's error"
    fifo, empty, folder = unique("fifo"), unique("empty"), unique("mnt")
    os.mkfifo(fifo)
    open(empty, "w").close()
    os.mkdir(folder)
    for name, why in (fifo, "is a FIFO"), (empty, "is empty"), (unique("absent"), "No such file or directory"):
        said = wsync("mount", "-f", "-o", f"token-file={name}", "http://127.0.0.1:1", folder, check=False)
        assert said.returncode == 1 and name in said.stderr and why in said.stderr, said
        assert why == "is empty" or "regular file" in said.stderr, said.stderr
    said = wsync("agent", "--token-file", unique("absent"), "--listen", "127.0.0.1:0", "--socket", unique("sock"), check=False)
    assert said.returncode == 1 and "No such file or directory; its first line is the token" in said.stderr, said


def test_changed_folder():
    "a folder that is written to while it is a source: the error says so, and after a drop the present files are used"
    need_fuse()
    root = unique("root")
    os.makedirs(root + "/actor")
    folder = checkpoint(SMALL, folder=root + "/actor/1", seed=1)
    path = folder + "/model.safetensors"
    mount = mounted("dir:" + os.path.abspath(root))
    for _ in range(2):
        os.listdir(mount.file("actor/1"))  # hashed, but not read
        with open(path, "r+b") as f:
            f.seek(-8, os.SEEK_END)
            f.write(os.urandom(8))
        assert error_of(lambda: open(mount.file("actor/1/model.safetensors"), "rb").close()) == "EBADMSG"
        said = mount.text("actor/last_error")
        assert "has changed since actor/1 was offered" in said and "new number" in said and "drop" in said, said
        again(mount, path)


def again(mount, path):
    "Drops the version until the present files are read: the mount polls the folder a moment after the write."
    def reads():
        mount.write("drop 1", "actor/ctl")
        mount.wait_version("actor", 1)
        if error_of(lambda: open(mount.file("actor/1/model.safetensors"), "rb").close()):
            assert "drop the version to take what is there now" in mount.text("actor/last_error"), mount.text("actor/last_error")
            return False
        return tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(path)
    wait_for(reads, "what is there now", 20)
    mount.write("drop 1", "actor/ctl")
    mount.wait_version("actor", 1)


def test_late_read_is_reported():
    "a read that ends by deadline= while its pull continues is in last_error and, once, in events, with the name of the silent source"
    agent, _ = published()
    mount = mounted(agent.url, "deadline=2")
    suspend(agent.pid)
    try:
        for _ in range(2):
            got = error_of(lambda: os.listdir(mount.file("actor/1")))
            assert got == "ETIMEDOUT", (got, mount.text("actor/events"))
            said = mount.text("actor/last_error")
            assert "command pull 1\nerrno ETIMEDOUT\n" in said and "deadline=" in said and agent.url in said, said
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    assert mount.text("actor/events").count(" unread ") == 1
    wait_for(lambda: not error_of(lambda: mount.read("actor/1/model.safetensors")), "the agent that is back", 60)
    assert " why=" not in [l for l in mount.text("actor/events").splitlines() if " ready " in l][-1]
    wait_for(lambda: mount.text("actor/last_error") == "", "no error any more", 60)


def test_silent_source():
    "a silent source is replaced by the next one before deadline= is over, whatever the request"
    folder = checkpoint(LARGE, seed=1)
    one, other = Agent(), Agent()
    one.publish("actor", 1, folder, "--run", "r1")
    other.publish("actor", 1, folder, "--run", "r1")
    want = tensors_of(folder + "/model.safetensors")
    for known in False, True:
        with scope():
            mount = Mount(f"{one.url},{other.url}", "deadline=20")
            mount.wait_version("actor", 1, sources=2)
            if known:
                os.listdir(mount.file("actor/1"))  # get the manifest, so that the next request is for bytes
            suspend(one.pid)
            try:
                assert tensors_of(mount.file("actor/1/model.safetensors")) == want
            finally:
                os.kill(one.pid, signal.SIGCONT)


def test_absent_agent():
    "a source whose socket does not exist is not up, and the reason is shown"
    agent, want = published()
    mount = mounted(agent.url)
    sock = f"{TESTDIR}/{unique('absent')}.sock"
    mount.write(f"add actor unix:{sock}", "ctl")
    said = lambda: next(s for s in json.loads(wsync("status", "--json", mount.path).stdout)["sources"] if s["url"] == f"unix:{sock}")
    wait_for(lambda: said()["error"], "what is wrong with the source")
    assert not said()["up"] and "No such file" in said()["error"], said()


def test_dropped_meanwhile():
    "an open folder of a dropped version gives its bytes while they are here, or ESTALE, never EIO"
    agent, _ = published()
    agent.publish("actor", 2, checkpoint(SMALL))
    mount = mounted(agent.url)
    with open(mount.file("actor/1/model.safetensors"), "rb") as f:
        want = f.read()
    held = os.open(mount.file("actor/1/config.json"), os.O_RDONLY)  # keeps the version alive
    below = os.open(mount.file("actor/1"), os.O_PATH)
    mount.write("drop 1", "actor/ctl")
    try:
        fd = os.open("model.safetensors", os.O_RDONLY, dir_fd=below)
        with os.fdopen(fd, "rb") as f:
            assert f.read() == want
    except OSError as e:
        assert e.errno in (errno.ESTALE, errno.ENOENT), e
    os.close(below)
    os.close(held)


def test_dropped_while_waited_for():
    "a wait for a version that is dropped reports that it is gone, not that it was cancelled"
    agent, _ = published()
    mount = mounted(f"http://127.0.0.1:{Slow(agent.port, 1e6).port}", "streams=1")
    heard = []
    reader = threading.Thread(target=lambda: heard.append(error_of(lambda: open(mount.file("actor/1/model.safetensors"), "rb").close())))
    reader.start()
    wait_for(lambda: mount.text("actor/1/.wsync/state").startswith("pulling"), "the pull", 60)
    mount.write("drop 1", "actor/ctl")
    reader.join(60 * SLOW)
    assert heard in ([None], ["ESTALE"], ["ENOENT"]), heard  # the kernel repeats the lookup, which may find the version again


def test_deadline_is_without_progress():
    "while bytes arrive an open does not time out, however long the pull takes: deadline= limits silence, not duration"
    agent = Agent()
    for version, size, rate in ((1, LARGE, 4e6), (2, MEDIUM, 2e5)):  # 1 s per block, 6 s in all; and one block that takes 8 s
        folder = checkpoint(size)
        agent.publish("actor", version, folder)
        mount = mounted(f"http://127.0.0.1:{Slow(agent.port, rate).port}", "deadline=4,streams=1")
        mount.wait_version("actor", version)
        assert tensors_of(mount.file(f"actor/{version}/model.safetensors")) == tensors_of(folder + "/model.safetensors")


def test_interrupted_open():
    "SIGKILL ends a reader that waits in open at once"
    agent, _ = published()
    mount = mounted_fault("delay=3000", agent)
    reader = subprocess.Popen(["cat", mount.file("actor/1/model.safetensors")], stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    reader.kill()
    reader.wait(2 * SLOW)


class Holder:
    """A process that maps a file and closes it."""

    def __init__(self, path):
        self.process = subprocess.Popen([READERS, "hold", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        at_end(self.end)
        self.hash = self.process.stdout.readline()
        assert len(self.hash) == 17

    def sees_the_same(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == self.hash and self.process.wait(20 * SLOW) == 0

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def test_reader_outlives_version():
    "a mapping keeps its bytes when its version is dropped and memory is short"
    for source in ("http", "unix"):
        with scope():
            agent, folder = published()
            mount = mounted(agent.url if source == "http" else f"unix:{agent.sock}", "keep=1")
            reader = Holder(mount.file("actor/1/model.safetensors"))
            mount.write("drop 1", "actor/ctl")
            for v in range(2, 6):
                r = agent.publish("actor", v, checkpoint(LARGE, seed=v), "--timeout", "2", check=False)
                if source == "http":
                    assert r.returncode == 0, r.stderr
                    mount.wait_version("actor", v)
                    wsync("pull", "--mount", mount.path, "actor", v)
                    mount.read("actor", v, "model.safetensors")
            assert reader.sees_the_same()


def test_slot_overwritten():
    "a pull slower than the trainer: the old version fails with the reason, the newest can be read"
    agent, folder = published()
    mount = mounted_fault("delay=2000", agent, "streams=1")
    mount.write("pull 1 async", "actor/ctl")
    wait_for(lambda: int(read_value(mount, "have_bytes")) > 0, "the first block")
    for v in (2, 3, 4):
        agent.publish("actor", v, checkpoint(LARGE, seed=v))
    got = error_of(lambda: mount.read("actor/1/model.safetensors"))
    assert got in ("ESTALE", "ENOENT", "EIO"), got
    mount.wait_version("actor", 4)
    assert tensors_of(mount.file("actor/4/model.safetensors")) == tensors_of(checkpoint(LARGE, seed=4) + "/model.safetensors")


def test_cache_full():
    "a full cache: ENOSPC with what to drop; after the drop the version fits"
    agent, folder = published()
    agent.publish("actor", 2, folder)
    mount = mounted(agent.url, "cache=30M")
    wsync("pull", "--mount", mount.path, "actor", "1")
    mount.write("pin 1", "actor/ctl")
    r = wsync("pull", "--mount", mount.path, "actor", "2", check=False)
    assert r.returncode == 1 and "actor/1" in r.stderr and "pinned" in r.stderr, r.stderr
    assert "errno ENOSPC" in mount.text("actor/last_error")
    mount.write("unpin 1", "actor/ctl")
    mount.write("drop 1", "actor/ctl")
    wsync("pull", "--mount", mount.path, "actor", "2")


def test_daemon_killed():
    "a killed daemon: open readers continue, a mount over the dead one recovers the path"
    agent, folder = published()
    mount = mounted(agent.url)
    path = mount.file("actor/1/model.safetensors")
    want = open(path, "rb").read()
    reader = Holder(path)
    fd = os.open(path, os.O_RDONLY)
    mount.kill()
    assert reader.sees_the_same()
    if "reads passthrough" in mount.text():
        assert os.pread(fd, 1 << 20, 4096) == want[4096 : 4096 + (1 << 20)]
    os.close(fd)
    assert error_of(lambda: os.listdir(mount.path)) == "ENOTCONN"
    again = Mount(agent.url, path=mount.path, wait=False)
    wait_for(lambda: not error_of(lambda: os.listdir(mount.path + "/actor")), "the recovered mount")
    assert again.read("actor/1/model.safetensors") == want


def test_second_mount():
    "a second mount over a live one is refused; so are an unknown option and a bad source"
    agent, _ = published()
    mount = mounted(agent.url)
    r = wsync("mount", agent.url, mount.path, check=False)
    assert r.returncode == 1 and "already" in r.stderr, r.stderr
    r = wsync("mount", "-o", "nonsense=1", agent.url, unique("m"), check=False)
    assert r.returncode == 2 and "nonsense" in r.stderr, r.stderr
    empty = unique("empty")
    os.makedirs(empty)
    for arguments, word in ((("ftp://x",), "ftp"), (("",), "is no source"), (("-o", "fsname=", agent.url), "fsname takes NAME")):
        r = wsync("mount", *arguments, empty, check=False)
        assert r.returncode == 2 and word in r.stderr, r.stderr


def test_commands_on_a_dead_mount():
    "every command on a mount whose daemon died says so, and what recovers it"
    agent, _ = published()
    mount = mounted(agent.url)
    mount.kill()
    for words in (("status",), ("ls",), ("load", "actor", "1"), ("pull", "actor", "1"), ("verify", "actor", "1")):
        r = wsync(words[0], "--mount", mount.path, *words[1:], check=False)
        assert r.returncode and "its daemon died" in r.stderr, (words, r.stderr)


def test_names_of_the_folder():
    "however its path is written, a mount has the kernel's name for it: links, dots, relative paths; also over a dead mount"
    agent, folder = published()
    path, link = unique("mnt"), unique("link")
    os.makedirs(path)
    os.symlink(path, link)
    for at, cwd in ((".", path), (link, "/"), (path + "/.", "/"), (link + "/./", "/"), (os.path.basename(path) + "/", TESTDIR)):
        mount = Mount(agent.url, path=at, cwd=cwd)
        mount.path = path
        mount.wait_version("actor", 1)
        assert mount.status()["mountpoint"] == path and mount.mounted()
        if at == ".":
            mount.end()
        else:
            mount.kill()
    wsync("umount", link)
    assert not mount.mounted()


def test_background():
    "mount in the background returns when it answers; umount ends it"
    agent, _ = published()
    path = unique("bg")
    os.makedirs(path)
    at_end(lambda: subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL))
    wsync("mount", agent.url, path)
    assert os.path.exists(path + "/status")
    wait_for(lambda: os.path.isdir(path + "/actor/1"), "the version")
    wsync("umount", path)
    assert not os.listdir(path)
    assert wsync("umount", path, check=False).returncode == 1


def test_mounted_again_at_once():
    "when umount returns the daemon has ended: the folder, its port and its settings are free for the next mount"
    agent, folder = published()
    path, state, port = unique("again"), unique("state"), free_port()
    os.makedirs(path)
    os.makedirs(state)
    at_end(lambda: subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL))
    for _ in range(20):
        log = unique("log")
        wsync("mount", "-o", f"state={state},log={log},listen=127.0.0.1:{port}", agent.url, path)
        wait_for(lambda: os.path.isdir(path + "/actor/1"), "the version")
        daemons = [pid for pid in os.listdir("/proc") if pid.isdigit() and holds(pid, log)]
        assert daemons
        wsync("umount", path)
        assert not any(holds(pid, log) for pid in daemons), log


def holds(pid, path):
    """Has the process the file open?"""
    with contextlib.suppress(OSError):
        return any(os.path.realpath(f"/proc/{pid}/fd/{fd}") == os.path.realpath(path) for fd in os.listdir(f"/proc/{pid}/fd"))
    return False


def test_umount_does_not_wait_for_ever():
    "a daemon that does not end, here for a log that takes no line, is named, and the exit status tells it from a mount that stayed"
    agent, _ = published()
    path, log = unique("bg"), unique("fifo")
    os.makedirs(path)
    os.mkfifo(log)
    at_end(lambda: subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL))
    reader, writer = os.open(log, os.O_RDONLY | os.O_NONBLOCK), os.open(log, os.O_WRONLY | os.O_NONBLOCK)
    wsync("mount", "-o", f"log={log}", agent.url, path)
    daemons = {pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid() and holds(pid, log)}
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    r = wsync("umount", path, check=False)
    said = re.search(r"its daemon \(process (\d+)\) has not ended after 10 s", r.stderr)
    assert r.returncode == 3 and said and {said[1]} == daemons, (r.returncode, r.stderr, daemons)
    assert not os.listdir(path)
    os.set_blocking(reader, True)
    os.close(writer)
    while os.read(reader, 1 << 16):  # until no process has it open for writing
        pass
    os.close(reader)


@pytest.mark.parametrize("reads", ["cached", "link"])
def test_umount_of_a_stopped_mount(reads):
    "a mount whose daemon is stopped is taken away, and the daemon is named; with links, for which it is asked, --lazy takes it away"
    agent, _ = published()
    mount = Mount(agent.url, f"reads={reads}")
    mount.wait_version("actor", 1)
    wait_for(lambda: "serving at=" in mount.text(), "the start, of which the links are a part")
    has_links = os.path.ismount(mount.file(".regions"))
    os.kill(mount.pid, signal.SIGSTOP)
    at_end(lambda: os.kill(mount.pid, signal.SIGCONT) if mount.alive() else None)
    time.sleep(2.5)  # what the kernel knows of the mount's folder is too old to go by
    r = wsync("umount", mount.path + "/", check=False)
    if has_links:
        assert r.returncode == 1 and "does not answer" in r.stderr and "--lazy" in r.stderr and mount.mounted(), r
        wsync("umount", "--lazy", mount.path)
    else:
        assert r.returncode == 3 and f"(process {mount.pid})" in r.stderr and "stopped" in r.stderr, r
    assert not mount.mounted()
    os.kill(mount.pid, signal.SIGCONT)
    wait_for(lambda: not mount.alive(), "the daemon's end")


def test_mount_on_and_umount_below_a_stopped_mount():
    "a mount on one whose daemon is stopped, and umount of a folder in it, end by themselves and say why; both leave it"
    agent, _ = published()
    mount = Mount(agent.url, "reads=cached")
    mount.wait_version("actor", 1)
    os.kill(mount.pid, signal.SIGSTOP)
    at_end(lambda: os.kill(mount.pid, signal.SIGCONT) if mount.alive() else None)
    time.sleep(2.5)  # what the kernel knows of the mount's folder is too old to go by
    for command in (("mount", agent.url, mount.path), ("umount", mount.file("actor"))):
        r = wsync(*command, check=False)
        assert r.returncode == 1 and "does not answer" in r.stderr and "--lazy" in r.stderr and mount.mounted(), r
    os.kill(mount.pid, signal.SIGCONT)
    assert mount.text("actor/status") and mount.alive()


def test_many_umounts_at_once():
    "of umounts at the same time each says that it is unmounted, or that no mount is there"
    agent, _ = published()
    for _ in range(6):
        mount = Mount(agent.url, "reads=cached,state=none")
        all = [subprocess.Popen([WSYNC, "umount", mount.path], stderr=subprocess.PIPE, text=True) for _ in range(8)]
        ends = [(p.communicate(timeout=60 * SLOW)[1], p.returncode) for p in all]
        assert 0 in [status for _, status in ends] and not mount.mounted(), ends
        for text, status in ends:
            assert "Invalid argument" not in text and (status == 0 or "no wsync mount is on" in text), ends


@pytest.mark.parametrize("reads", ["cached", "link"])
def test_umount_of_a_dead_mount(reads):
    "a mount whose daemon was killed is taken away, with what link mode had mounted below it"
    agent, _ = published()
    mount = Mount(agent.url, f"reads={reads}")
    wait_for(lambda: "serving at=" in mount.text(), "the start, of which the links are a part")
    mount.kill()
    wsync("umount", mount.path + "/")
    assert not mount.mounted() and not os.listdir(mount.path)


def test_umount_that_waits_leaves_a_successor():
    "a mount that comes while umount waits for the one before stays"
    agent, _ = published()
    mount = Mount(agent.url, "reads=link,state=none")
    mount.wait_version("actor", 1)
    wait_for(lambda: "serving at=" in mount.text(), "the start, of which the links are a part")
    if not os.path.ismount(mount.file(".regions")):
        pytest.skip("link mode is not to be had here")
    os.kill(mount.pid, signal.SIGSTOP)
    at_end(lambda: os.kill(mount.pid, signal.SIGCONT) if mount.alive() else None)
    time.sleep(2.5)  # what the kernel knows of the mount's folder is too old to go by
    waiting = subprocess.Popen([WSYNC, "umount", mount.path], stderr=subprocess.PIPE, text=True)
    at_end(lambda: (waiting.kill(), waiting.wait()))
    time.sleep(0.5)  # it asks the stopped daemon
    wsync("umount", "--lazy", mount.path)
    successor = Mount(agent.url, "reads=cached,state=none", path=mount.path)
    os.kill(mount.pid, signal.SIGCONT)
    waiting.communicate(timeout=60 * SLOW)
    assert successor.alive() and successor.mounted()
    successor.wait_version("actor", 1)


def test_lying_server():
    "a server that lies about lengths and hashes causes errors, never wrong bytes"
    need_fuse()
    agent, folder = published()
    lies = {"short": lambda body: body[: len(body) // 2], "long": lambda body: body + b"x" * (1 << 20), "garbage": lambda body: bytes(len(body))}
    for name, lie in lies.items():
        with scope():
            proxy = Proxy(agent, lie)
            mount = Mount(proxy.url, "deadline=2")
            mount.wait_version("actor", 1)
            got = error_of(lambda: mount.read("actor/1/model.safetensors"))
            assert got in ("EBADMSG", "EPROTO", "ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "EIO"), (name, got)


class Proxy:
    """An HTTP server that passes requests on but changes the bytes of files."""

    def __init__(self, agent, lie):
        import http.server

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                headers = {k: v for k, v in self.headers.items() if k.lower() == "range"}
                try:
                    with urllib.request.urlopen(urllib.request.Request(agent.url + self.path, headers=headers), timeout=20) as r:
                        status, body, got = r.status, r.read(), r.headers
                except urllib.error.HTTPError as e:
                    status, body, got = e.code, e.read(), e.headers
                length = len(body)
                if "/files/" in self.path:
                    body = lie(body)
                    length = max(length, len(body))
                self.send_response(status)
                for k in ("Content-Range", "ETag"):
                    if got.get(k):
                        self.send_header(k, got[k])
                self.send_header("Content-Length", str(length))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)
                if len(body) != length:
                    self.close_connection = True

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *args: None  # clients close the connection on wrong bytes
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        at_end(self.server.server_close)
        at_end(self.server.shutdown)


def test_skipped_files_are_logged_once():
    "files that a dir: source ignores are logged once, however often the folder is polled"
    need_fuse()
    folder = os.path.join(unique("runs"), "actor")
    os.makedirs(folder + "/1")
    os.mkfifo(folder + "/1/config.json")
    with open(folder + "/1/model.safetensors", "wb") as f, open(checkpoint(SMALL) + "/model.safetensors", "rb") as g:
        f.write(g.read())
    mount = Mount(f"dir:{os.path.dirname(folder)}")
    for version in (2, 3, 4):
        os.rename(checkpoint(SMALL, seed=version), f"{folder}/{version}")
        mount.wait_version("actor", version)
    said = [line for line in mount.text().splitlines() if line.startswith("warn ") and "left out" in line]
    assert len(said) == 1 and "config.json" in said[0], said
