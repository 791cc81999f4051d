# beside others
# sanitizers: address
# timeout: 480, takes: 95
"""How mounts start and end: a daemon changes its own mount only, owns its settings, and leaves engines as they were."""
import ctypes
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from between import LOADS, Between
from world import *


def world(options=""):
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(agent.url, options)
    mount.wait_version("actor", 2)
    return agent, mount, folders


def is_mounted(path):
    with open("/proc/self/mounts") as f:
        return [line.split()[2] for line in f if line.split()[1] == path]


def detached(options=""):
    "A mount detached lazily while a process reads in it and has its ctl open, and its successor on the same path."
    agent, old, folders = world(options)
    held = open(old.file("actor/1/model.safetensors"), "rb")
    at_end(held.close)
    ctl = os.open(old.file("actor/ctl"), os.O_WRONLY)
    at_end(lambda: os.close(ctl))
    subprocess.run(["umount", "-l", old.path], check=True)
    new = Mount(agent.url, options, path=old.path)
    new.wait_version("actor", 2)
    return old, new, held, ctl, folders


class Heedless(Mount):
    "A mount whose starter ignores SIGCHLD, which the mount inherits."

    prefix = (sys.executable, "-c", "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])")


def test_heedless_starter():
    "a mount started by a process that ignores SIGCHLD works, and ends on unmount"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mount = Heedless(agent.url)
    mount.wait_version("actor", 1)
    subprocess.run([*Heedless.prefix, WSYNC, "umount", mount.path], check=True, timeout=60)
    wait_for(lambda: not mount.alive(), "the daemon's end")


def test_busy_for_a_moment():
    "unmounting a busy mount is tried again; a mount that stays busy is left as it was"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")

    def umount(when):
        return subprocess.run(["strace", "-o", "/dev/null", "-e", f"inject=umount2:error=EBUSY:when={when}", WSYNC, "umount", mount.path],
                              stderr=subprocess.PIPE, text=True, timeout=60 * SLOW, env=env)
    r = umount("1+")
    assert r.returncode == 1 and "a process has a file open or works in it" in r.stderr, r.stderr
    assert is_mounted(mount.path) == ["fuse.wsync"] and mount.alive()
    r = umount("1..3")
    assert r.returncode == 0, r.stderr
    wait_for(lambda: not mount.alive(), "the daemon's end")


def test_successor_of_a_busy_mount():
    "unmounting a busy mount that ends meanwhile leaves alone what is mounted on its path by then"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    for succeeded in (False, True):
        mount = Mount(agent.url)
        mount.wait_version("actor", 1)
        trace = unique("trace")
        busy = subprocess.Popen(["strace", "-o", trace, "-e", f"inject=umount2:error=EBUSY:delay_enter={4000000 * SLOW}:when=1", WSYNC, "umount", mount.path],
                                stderr=subprocess.PIPE, text=True, env=env)
        at_end(busy.kill)
        wait_for(lambda: os.path.exists(trace) and "umount2" in open(trace).read(), "the first try")
        wsync("umount", mount.path)
        successor = Mount(agent.url, path=mount.path) if succeeded else None
        assert busy.poll() is None, "the first try lasts until the successor is there"
        said = busy.communicate(timeout=60 * SLOW)[1]
        assert busy.returncode == 0, said
        assert is_mounted(mount.path) == ["fuse.wsync"] * succeeded
        if successor:
            assert successor.alive()
            successor.wait_version("actor", 1)


def test_unmount_that_is_ended():
    "a signal that ends wsync umount while link mode's regions are away leaves the mount with them"
    need_fuse()
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, "reads=link")
    mount.wait_version("actor", 1)
    wait_for(lambda: "serving at=" in mount.text(), "the start, of which the regions are a part")
    path = mount.file("actor/1/model.safetensors")
    assert tensors_of(path) == tensors_of(folder + "/model.safetensors")
    if not is_mounted(mount.path + "/.regions"):
        pytest.skip("link mode cannot mount regions here")
    trace = unique("trace")
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    tracer = subprocess.Popen(["strace", "-o", trace, "-e", f"inject=umount2:error=EBUSY:delay_enter={2000000 * SLOW}:when=2+", WSYNC, "umount", mount.path],
                              stderr=subprocess.PIPE, text=True, env=env)
    at_end(tracer.kill)
    wait_for(lambda: os.path.exists(trace) and open(trace).read().count("umount2(") == 2, "the second unmount, of the outer mount")
    with open(f"/proc/{tracer.pid}/task/{tracer.pid}/children") as f:
        os.kill(int(f.read().split()[0]), signal.SIGTERM)
    tracer.communicate(timeout=60 * SLOW)
    assert tracer.returncode != 0 and mount.alive()
    assert is_mounted(mount.path + "/.regions"), "the regions are back"
    assert tensors_of(path) == tensors_of(folder + "/model.safetensors")


def test_detached_mount_ends():
    "ending a lazily detached mount leaves its successor on the same path in place"
    for reads in ("auto", "link", "cached"):
        with scope():
            old, new, held, _, folders = detached(f"reads={reads}")
            old.end()
            assert is_mounted(new.path)[-1:] == ["fuse.wsync"] and new.text("actor/version") == "none\n"
            assert tensors_of(new.file("actor/2/model.safetensors")) == tensors_of(folders[2] + "/model.safetensors")


def test_stopped_agent():
    "a mount whose agent is stopped ends when asked, in each way of asking"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mounts = [Mount(source) for source in (f"unix:{agent.sock}", agent.url)]
    for mount in mounts:
        mount.wait_version("actor", 1)
    suspend(agent.pid)
    at_end(os.kill, agent.pid, signal.SIGCONT)
    for mount in mounts:
        mount.end()
        assert not is_mounted(mount.path)


def test_last_reader():
    "a lazily detached mount serves its readers and ends with the last of them; its successor stays"
    for reads in ("auto", "cached"):
        with scope():
            old, new, held, ctl, folders = detached(f"reads={reads}")
            assert held.read() == new.read("actor/1/model.safetensors")
            held.close()
            with open("/dev/null", "w") as null:
                os.dup2(null.fileno(), ctl)  # the last file that keeps it alive
            wait_for(lambda: not old.alive(), "the old daemon's end", 60)
            assert is_mounted(new.path)[-1:] == ["fuse.wsync"] and new.text("actor/version") == "none\n"


def test_ports():
    "a lazily detached mount leaves its ports to its successor, and its readers keep their files"
    listen, serve = free_port(), free_port()
    old, new, held, _, folders = detached(f"listen=127.0.0.1:{listen},serve=127.0.0.1:{serve},serve-insecure")
    for port, path in ((listen, "/healthz"), (serve, "/v1/models")):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20 * SLOW) as r:
            assert r.status == 200
    assert old.alive() and held.read() == new.read("actor/1/model.safetensors")
    assert f"port={serve}" in new.text()


def test_control_ends():
    "control ends with the mount: a detached mount drives no engine, and its successor owns its settings"
    agent, old, folders = world()
    engine = Engine(folders[1])
    old.write(f"engine add e sglang {engine.url}", "actor/ctl")
    old.write("1", "actor/version")
    held = open(old.file("actor/1/model.safetensors"), "rb")
    at_end(held.close)
    ctl = os.open(old.file("actor/ctl"), os.O_WRONLY)
    at_end(lambda: os.close(ctl))
    with open(settings_lock(old)) as f:
        assert int(f.read()) == old.pid
    subprocess.run(["umount", "-l", old.path], check=True)
    new = Mount(agent.url, path=old.path)  # waits until the settings are free
    new.wait_version("actor", 2)
    wait_for(lambda: new.engines().get("e", "").startswith("serving 1 "), "the engine's new owner", 60)
    with open(settings_lock(new)) as f:
        assert int(f.read()) == new.pid
    try:
        os.write(ctl, b"load 2\n")
        raise AssertionError("a daemon whose mount is gone took a command")
    except OSError as e:
        assert e.errno == errno.ESHUTDOWN, e
    new.write("2", "actor/version")
    assert engine.serves() == "2"


def settings_lock(mount):
    folder = TESTDIR + "/state"
    names = [n for n in os.listdir(folder) if n.endswith(os.path.basename(mount.path) + ".lock")]
    assert len(names) == 1, os.listdir(folder)
    return os.path.join(folder, names[0])


def test_mounts_without_descriptors():
    "without free descriptors, mounts made elsewhere do not end the control of a mount that is still at its path"
    agent, mount, folders = world()
    resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (8, 4096))  # uses all of them
    other = unique("elsewhere")
    os.makedirs(other)
    for _ in range(3):
        subprocess.run(["mount", "-t", "tmpfs", "none", other], check=True)
        subprocess.run(["umount", other], check=True)
    resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    mount.write("policy follow", "actor/ctl")
    wait_for(lambda: mount.text("actor/version") == "2\n", "the newest version to be current")
    assert "control ends" not in Process.text(mount), Process.text(mount)


def test_one_owner():
    "a daemon waits until another one releases the settings; unusable folders for settings and logs are refused before the mount"
    agent, mount, _ = world()
    lock = settings_lock(mount)
    mount.end()
    wait_for(lambda: not is_mounted(mount.path), "the end")
    with open(lock) as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        again = Mount(agent.url, path=mount.path, wait=False)
        wait_for(lambda: "waiting for the daemon that owns the settings" in again.text() or not again.alive(), "the waiting", 60)
        assert again.alive() and not is_mounted(mount.path), again.text()
    wait_for(lambda: os.path.exists(mount.path + "/status"), "the mount")
    again.end()
    empty = unique("empty")
    os.makedirs(empty)
    plain = unique("plain")
    open(plain, "w").close()
    for option, word in ((f"state={plain}/below", "state=DIR"), (f"state=none,log={plain}/below", "log=")):
        r = wsync("mount", "-o", option, agent.url, empty, check=False)
        assert r.returncode == 1 and plain in r.stderr and word in r.stderr, r.stderr
        assert not is_mounted(empty)


def test_start_cannot_check():
    "a mount that cannot be checked at its start, for example because fork fails, ends with the reason"
    agent, mount, _ = world()
    path = unique("mnt")
    os.makedirs(path)
    fails = ["strace", "-f", "-o", "/dev/null", "-P", f"{path}/status", "-e", "inject=newfstatat:error=EAGAIN"]
    # A traced process cannot be searched for leaks.
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    for foreground in ((), ("-f",)):
        at_end(subprocess.run, ["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
        r = subprocess.run([*fails, WSYNC, "mount", *foreground, "-o", "state=none", agent.url, path], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, timeout=60 * SLOW, env=env)
        assert r.returncode == 1 and f"the mount on {path} cannot be looked at, and ended: " in r.stderr, r.stderr
        assert not is_mounted(path)


def test_early_reader():
    "link mode: a reader that comes before the links' tmpfs is mounted gets the file, and the links appear afterwards"
    agent, _, folders = world()
    path = unique("mnt")
    os.makedirs(path)
    late = ["strace", "-f", "-o", "/dev/null", "-e", "inject=move_mount:delay_enter=4000000"]
    env = dict(os.environ, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    log = unique("log")
    with open(log, "w") as f:
        p = subprocess.Popen([*late, WSYNC, "mount", "-f", "-o", "state=none,reads=link", agent.url, path], stdout=subprocess.DEVNULL, stderr=f, env=env)
    at_end(p.wait, 60 * SLOW)
    at_end(subprocess.run, [WSYNC, "umount", path], stderr=subprocess.DEVNULL, check=False)
    for v in (1, 2):
        file = f"{path}/actor/{v}/model.safetensors"
        wait_for(lambda: os.path.exists(os.path.dirname(file)), "the version", 60 * SLOW)
        assert tensors_of(file) == tensors_of(folders[v] + "/model.safetensors")
    wait_for(lambda: "serving at=" in open(log).read(), "the end of the start, when links may be shown", 60 * SLOW)
    agent.publish("actor", 3, folders[1])
    file = f"{path}/actor/3/model.safetensors"
    wait_for(lambda: os.path.exists(os.path.dirname(file)), "the version", 60 * SLOW)
    assert tensors_of(file) == tensors_of(folders[1] + "/model.safetensors")
    if os.path.ismount(f"{path}/.regions"):
        assert os.path.islink(file)


def test_refused_umount():
    "a refused umount leaves the files of link mode in place"
    _, mount, folders = world("reads=link")
    path = mount.file("actor/1/model.safetensors")
    want = tensors_of(folders[1] + "/model.safetensors")
    wait_for(lambda: "serving at=" in mount.text(), "the end of the start, when links may be shown")
    assert tensors_of(path) == want
    if not os.path.ismount(mount.file(".regions")):
        pytest.skip("link mode is not to be had here")
    assert os.path.islink(path)
    busy = os.open(mount.path, os.O_RDONLY)
    try:
        r = wsync("umount", mount.path, check=False)
        assert r.returncode == 1 and "busy" in r.stderr, r.stderr
        assert os.path.islink(path) and tensors_of(path) == want
    finally:
        os.close(busy)
    wsync("umount", mount.path)
    assert not is_mounted(mount.path) and not is_mounted(mount.path + "/.regions")
    wait_for(lambda: not mount.alive(), "the daemon's end", 60)


def test_foreign():
    "a dead file system that is not wsync's is left in place"
    need_fuse()
    path = unique("foreign")
    os.makedirs(path)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    rc = libc.mount(b"other", path.encode(), b"fuse.other", 0, f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode())
    assert rc == 0, os.strerror(ctypes.get_errno())
    at_end(lambda: subprocess.run(["umount", "-l", path], check=False))
    os.close(fd)
    r = wsync("mount", "-o", "state=none", "http://127.0.0.1:1", path, check=False)
    assert r.returncode == 1 and "not wsync's" in r.stderr, r.stderr
    assert is_mounted(path) == ["fuse.other"]


def in_a_load(api):
    "A mount whose engine serves 1 and is in the middle of loading 2, held there by a proxy."
    agent, mount, folders = world()
    engine = Engine(folders[1], api=api)
    between = Between(engine, *LOADS)
    mount.write(f"engine add e {api} {between.url}", "actor/ctl")
    mount.write("1", "actor/version")
    before = engine.checksum()
    between.hold = True
    writer = threading.Thread(target=lambda: mount.refused("2", "actor/version"))
    writer.start()
    at_end(writer.join)
    wait_for(lambda: between.held, "the load", 60)
    return agent, mount, engine, between, before


def test_end_in_a_load():
    "a mount that is ended in the middle of a load rolls its engines back before it ends"
    for api in ("sglang", "vllm"):
        with scope():
            _, mount, engine, between, before = in_a_load(api)
            mount.process.send_signal(signal.SIGTERM)
            between.hold = False
            wait_for(lambda: not mount.alive(), "the mount's end", 60)
            assert mount.process.returncode == 0, (mount.process.returncode, mount.text())
            assert engine.serves() == "1" and engine.checksum() == before
            assert api == "sglang" or not engine.is_paused()
            engine.generate()


def test_end_in_a_sync():
    "a mount that is ended while it reconciles an engine, and has only paused it, resumes it"
    _, mount, folders = world()
    engine = Engine(folders[1])
    between = Between(engine, "/server_info")  # queried between pause and load, as it reports the version already
    mount.write(f"engine add e sglang {between.url}", "actor/ctl")
    mount.write("1", "actor/version")

    def hold_after_pause(path, text):
        between.hold = between.hold or path.startswith("/pause")
        return text

    between.change = hold_after_pause
    writer = threading.Thread(target=lambda: mount.refused("engine sync e", "actor/ctl"))
    writer.start()
    at_end(writer.join)
    wait_for(lambda: between.held, "the sync", 60)
    assert not engine.is_ready()
    mount.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not mount.alive(), "the mount's end", 60)
    assert engine.serves() == "1" and engine.is_ready() and engine.generate()


def test_left_behind():
    "an engine that a mount could not roll back at its end is rolled back by the next mount"
    agent, mount, engine, between, before = in_a_load("vllm")
    between.wrong = 400, b'{"success": false, "message": "not now"}'
    mount.process.send_signal(signal.SIGTERM)
    between.hold = False
    wait_for(lambda: not mount.alive(), "the mount's end", 60)
    assert engine.is_paused()
    between.wrong = None
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    wait_for(lambda: again.engines().get("e", "").startswith("serving 1 "), "the engine to be brought back", 60)
    assert not engine.is_paused() and engine.serves() == "1" and engine.checksum() == before


def test_end_in_a_rollback():
    "a mount that is ended while an engine does not answer its rollback waits for the timeout, and no longer"
    agent, mount, folders = world()
    engines = [Engine(folders[1]) for _ in range(2)]
    stuck, wrong = (Between(e, *LOADS) for e in engines)
    mount.write(f"engine add stuck sglang {stuck.url} timeout=3600", "actor/ctl")
    mount.write(f"engine add wrong sglang {wrong.url} timeout=3600", "actor/ctl")
    mount.write("1", "actor/version")
    wrong.hold = True
    writer = threading.Thread(target=lambda: mount.refused("2", "actor/version"))
    writer.start()
    at_end(writer.join)
    wait_for(lambda: wrong.held and engines[0].serves() == "2", "the loads", 60)
    stuck.hold = True
    wrong.wrong = 400, b'{"success": false, "message": "not now"}'
    wrong.hold = False
    wait_for(lambda: stuck.held, "the load back", 60)
    mount.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not mount.alive(), "the mount's end", 120)
    assert mount.process.returncode == 0, (mount.process.returncode, mount.text())


def test_lost_token():
    "an engine whose token is unreadable at the start is kept as unknown; no switch happens without it; it recovers once the token is readable"
    agent, mount, folders = world()
    token = unique("token")
    with open(token, "w") as f:
        f.write("s3cret\n")
    engine = Engine(folders[1], "--api-key-file", token)
    mount.write(f"engine add e sglang {engine.url} token-file={token}", "actor/ctl")
    mount.write("1", "actor/version")
    mount.end()
    os.rename(token, token + ".away")
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    wait_for(lambda: again.text("actor/version") == "1\n", "version 1", 60)
    assert again.refused("2", "actor/version") == "ENOENT"
    assert token in again.text("actor/last_error") and again.text("actor/version") == "1\n"
    assert again.engines()["e"].startswith("unknown") and token in again.engines()["e"]
    os.rename(token + ".away", token)
    again.write("2", "actor/version")
    assert again.engines()["e"].startswith("serving 2 ")


def restarted():
    "A mount that restarts while its current version, 1, is unavailable; its engine serves that version."
    agent, mount, folders = world()
    engine = Engine(folders[1])
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("1", "actor/version")
    mount.end()
    between = Between(agent, "/1/files/")
    return mount.path, between, engine


def test_restored_in_the_end():
    "the current version is restored although its first pull fails"
    path, between, _ = restarted()
    between.zeros = True
    mount = Mount(between.url, path=path)
    mount.wait_version("actor", 2)
    wait_for(lambda: "restore the current version" in mount.text("actor/events"), "a pull that fails", 60)
    assert mount.text("actor/version") == "none\n"
    between.zeros = False
    wait_for(lambda: mount.text("actor/version") == "1\n", "version 1", 60)
    wait_for(lambda: mount.engines()["e"].startswith("serving 1 "), "the engine", 60)


def test_restore_gives_way():
    "a switch made while the current version is being restored is kept"
    path, between, engine = restarted()
    between.hold = True
    mount = Mount(between.url, path=path)
    mount.wait_version("actor", 2)
    wait_for(lambda: between.held, "the pull", 60)
    mount.write("2 force-layout", "actor/version")  # the served version is not available for the comparison
    between.hold = False
    mount.write("pull 1", "actor/ctl")
    wait_for(lambda: mount.status("actor")["version.1"].startswith("ready "), "version 1", 60)
    mount.write("engine sync e", "actor/ctl")
    assert mount.text("actor/version") == "2\n" and engine.serves() == "2"
    assert "restored" not in mount.text("actor/events")


def test_drop_in_a_switch():
    "the target version of a switch in progress is not dropped"
    agent, mount, folders = world()
    engine = Engine(folders[1])
    between = Between(engine, *LOADS)
    mount.write(f"engine add e sglang {between.url}", "actor/ctl")
    between.hold = True
    writer = threading.Thread(target=lambda: mount.write("2", "actor/version"))
    writer.start()
    at_end(writer.join)
    wait_for(lambda: between.held, "the load", 60)
    assert mount.refused("drop 2", "actor/ctl") == "EBUSY"
    between.hold = False
    writer.join()
    assert mount.text("actor/version") == "2\n" and engine.serves() == "2"
    mount.write("1", "actor/version")
    mount.write("drop 2", "actor/ctl")
