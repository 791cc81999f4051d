# takes: 15
# sanitizers
"""The command: help, manual pages, wrong usage, what publish refuses."""
import os
import re
import shutil
import socket
import struct
import subprocess
import time

import pytest

from world import *


def test_help():
    "every command has --help and a manual page that groff accepts"
    names = wsync("help", "--list").stdout.split()
    assert {"agent", "publish", "mount", "umount", "ls", "status", "load", "pull", "wait", "verify", "inspect", "engine", "bench"} <= set(names)
    for name in names:
        assert f"wsync {name}" in wsync(name, "--help").stdout
        page = wsync("help", "--man", name).stdout
        assert ".TH WSYNC" in page
        said = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=page, text=True, capture_output=True, timeout=60, check=True)
        assert said.stderr == "", (name, said.stderr)
    assert "wsync 0." in wsync("version").stdout


def test_usage():
    "wrong usage gives exit status 2 and an error that says what is wrong"
    for args, word in {("nonsense",): "nonsense", ("publish", "x"): "--model", ("publish", "--nope", "x"): "--nope", ("mount", "x"): "folder",
                       ("load",): "missing", ("publish", "-m", "a", "-v", "one", "x"): "one", ("engine",): "--model-path",
                       ("agent", "--memory", "12Q"): "12Q", ("wait", "--mount", "/nowhere", "--state", "odd", "a", "1"): "odd"}.items():
        r = wsync(*args, check=False)
        assert r.returncode == 2 and word in r.stderr, (args, r.returncode, r.stderr)


def test_closed_streams():
    "where standard streams are closed nothing takes their places: a daemon in the background starts, and what is printed fails"
    need_fuse()
    place = open_to_all()
    subprocess.run(f"exec {WSYNC} mount -o state=none dir:{TESTDIR} {place} <&- >&- 2>&-", shell=True, timeout=60 * SLOW, check=True)
    at_end(wsync, "umount", place)
    assert os.path.exists(place + "/status")
    assert subprocess.run(f"exec {WSYNC} version >&-", shell=True, capture_output=True, text=True).returncode == 1


def test_numbers():
    "each number has its bounds, and the error for a number outside names them"
    for args in (("publish", "-m", "a", "-v", "1", "--wait-loaded", "4294968", "x"), ("publish", "-m", "a", "-v", "9223372036854775808", "x"),
                 ("agent", "--archive-every", "4294967297"), ("agent", "--nice", "4294967295"), ("agent", "--archive-keep", "0"),
                 ("agent", "--slots", "1"), ("agent", "--broadcast-window", "2001"), ("verify", "--threads", "99999999999999999999", "x"),
                 ("wait", "--timeout", "4294967296", "a", "1"), ("release", "--wait", "0", "a", "1"), ("bench", "--repeat", "0", "x")):
        r = wsync(*args, check=False)
        assert r.returncode == 2 and re.search(r"--[a-z-]+ is \d+ to \d+, not \d+", r.stderr), (args, r.returncode, r.stderr)
    r = wsync("wait", "--timeout", "-1", "a", "1", check=False)
    assert r.returncode == 2 and "not a whole number" in r.stderr, r.stderr


def test_no_mount():
    "every command that takes a mount refuses a folder that is none"
    folder = unique("plain")
    os.makedirs(folder + "/actor/1")
    for args in (("ls", folder), ("ls", "--mount", folder), ("status", folder + "/actor"), ("wait", "--mount", folder, "actor", "1"),
                 ("wait", "--mount", folder, "--timeout", "0", "actor", "1"), ("load", "--mount", folder, "actor", "1"),
                 ("umount", folder), ("umount", "--mount", folder)):
        r = wsync(*args, check=False)
        assert r.returncode == 1 and re.search("not (on )?a wsync mount|no wsync mount is on", r.stderr) and r.stdout == "", (args, r)
    assert wsync("umount", check=False).returncode == 2


def test_ready():
    "READY=1 is sent to $NOTIFY_SOCKET, as units of Type=notify expect; no library is needed"
    path = unique("notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(path)
        s.settimeout(60)
        os.environ["NOTIFY_SOCKET"] = path
        at_end(os.environ.pop, "NOTIFY_SOCKET")
        agent = Agent()
        assert s.recv(100) == b"READY=1"
        agent.end()
        assert s.recv(100) == b"STOPPING=1"


def test_install():
    "make install with DESTDIR writes nothing elsewhere, whatever the umask"
    prefix = unique("prefix")
    done = subprocess.run(["sh", "-c", 'umask 077; exec make -s install PREFIX="$1"', "sh", prefix], cwd=os.environ["ROOT"],
                          env={k: v for k, v in os.environ.items() if k not in ("SANITIZER", "BUILD")}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr
    assert os.readlink(prefix + "/sbin/mount.wsync") == prefix + "/bin/wsync"
    with open(prefix + "/lib/systemd/system/wsync-agent.service") as f:
        assert f"={prefix}/bin/wsync agent" in f.read()
    for name, mode in (("bin/wsync", 0o755), ("lib/systemd/system/wsync-agent.service", 0o644), ("include/wsync.h", 0o644)):
        assert os.stat(f"{prefix}/{name}").st_mode & 0o777 == mode, name


def bad_checkpoints():
    """(what is wrong, a part of the error, the folder)"""

    def made(write):
        folder = unique("bad")
        os.makedirs(folder)
        write(folder + "/model.safetensors")
        return folder

    def raw(data):
        return lambda path: open(path, "wb").write(data)

    def headed(header, data=b"\0" * 8):
        return lambda path: write_safetensors(path, header, data)

    good = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
    yield "empty file", "it has 0 bytes, fewer than the 8", made(raw(b""))
    yield "header longer than the file", "more than the limit of 268435456", made(raw(struct.pack("<Q", 1 << 40) + b"{}"))
    yield "no JSON", "its header does not begin with '{'", made(headed(b"not json"))
    yield "truncated data", "it ends at byte 9 of the data, but the file has only 8", made(headed({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}))
    yield "trailing bytes", "1 bytes follow the last tensor", made(headed({"a": {"dtype": "U8", "shape": [7], "data_offsets": [0, 7]}}))
    yield "duplicate name", 'tensor "a" is there twice', made(headed(b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}'))
    yield "overlap", 'tensors "a" and "b" overlap', made(headed({"a": good, "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}))
    yield "gap", 'a gap of 4 bytes in front of tensor "b"', made(headed({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [2], "data_offsets": [6, 8]}}))
    yield "unknown dtype", 'its dtype "F7" is unknown', made(headed({"a": dict(good, dtype="F7")}))
    yield "shape overflow", "more than the limit of 2^53", made(headed({"a": dict(good, shape=[1 << 62, 1 << 62])}))
    yield "nine dimensions", "its shape has more than 8 numbers", made(headed({"a": dict(good, shape=[1] * 8 + [8])}))
    yield "invalid UTF-8", "unable to decode byte 0xff", made(headed(b'{"\xff":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'))
    yield "NUL in a name", "\\u0000 is not allowed", made(headed(b'{"a\\u0000b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'))
    folder = checkpoint(SMALL)
    with open(folder + "/model.safetensors.index.json", "w") as f:
        json.dump({"weight_map": {"a.weight": "missing.safetensors"}}, f)
    yield "index names a missing file", "in missing.safetensors, which is missing", folder
    yield "no such folder", "cannot open the folder: No such file", unique("nowhere")


def test_publish_refuses():
    "hostile and damaged checkpoints are refused with a message; the last version stays served"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    before = agent.get("/v1/actor/1/manifest")
    for what, sentence, folder in bad_checkpoints():
        r = agent.publish("actor", 2, folder, check=False)
        assert r.returncode == 1 and sentence in r.stderr, (what, r.returncode, r.stderr)
        if os.path.exists(folder):
            r = wsync("inspect", folder, check=False)
            assert r.returncode == 1 and sentence in r.stderr, (what, r.returncode, r.stderr)
    os.mkfifo(fifo := unique("fifo"))
    for args in ("inspect", fifo), ("diff", fifo, fifo):
        r = wsync(*args, check=False)
        assert r.returncode == 1 and f"{fifo}: this is no regular file" in r.stderr, r.stderr
    assert agent.get("/v1/models")["models"][0]["newest"] == 1
    assert agent.get("/v1/actor/1/manifest") == before
    for args, word in {("--version", "1"): "--new-run", ("--version", "2", "--run", "other"): "--new-run"}.items():
        r = wsync("publish", "--agent", f"unix:{agent.sock}", "--model", "actor", *args, checkpoint(SMALL), check=False)
        assert r.returncode == 3 and word in r.stderr, r.stderr
    r = wsync("publish", "--agent", "unix:/nowhere.sock", "-m", "a", "-v", "1", checkpoint(SMALL), check=False)
    assert r.returncode == 1 and "wsync agent" in r.stderr, r.stderr


def test_agent_refuses():
    "listening beyond loopback needs a token; requests without it are refused; it may come from a pipe; a second agent on one socket is refused"
    r = wsync("agent", "--listen", "0.0.0.0:0", "--socket", "none", check=False)
    assert r.returncode == 1 and "--token-file" in r.stderr, r.stderr
    token = unique("token")
    r = wsync("agent", "--listen", "none", "--socket", unique("agent"), "--token-file", "/dev/zero", check=False)
    assert r.returncode == 1 and "/dev/zero holds a zero byte" in r.stderr, r.stderr
    os.mkfifo(token)
    late = subprocess.Popen(["sh", "-c", 'sleep 0.3; echo secret > "$0"', token])  # like <(...)
    at_end(late.wait)
    agent = Agent("--token-file", token)
    agent.publish("actor", 1, checkpoint(SMALL))
    try:
        agent.get("/v1/models")
        raise AssertionError("no token was asked for")
    except urllib.error.HTTPError as e:
        assert e.code == 401
    assert agent.get("/v1/models", Authorization="Bearer secret")["models"]
    r = wsync("agent", "--listen", "none", "--socket", agent.sock, check=False)
    assert r.returncode == 1 and "already" in r.stderr, r.stderr


def test_no_memory():
    "a version too large for this machine's memory is refused; the error says how much there is and how much of it stays free"
    agent = Agent()
    elements = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # twice the machine's memory
    header = json.dumps({"a": {"dtype": "F32", "shape": [elements], "data_offsets": [0, 4 * elements]}}).encode()
    folder = unique("vast")
    os.makedirs(folder)
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + 4 * elements)  # sparse
    r = agent.publish("actor", 1, folder, check=False)
    assert r.returncode == 1 and "does not fit: " in r.stderr and "of which 256 MiB stay free for others" in r.stderr, r.stderr


def test_frozen():
    "base= supplies tensors that the checkpoint lacks, and the manifest names it"
    agent = Agent()
    base = checkpoint(SMALL, seed=5)
    part = checkpoint({"a.weight": SMALL["a.weight"]}, seed=6)
    agent.publish("actor", 1, part, "--base", base)
    m = agent.get("/v1/actor/1/manifest")
    assert sorted(m["frozen"]) == sorted(set(SMALL) - {"a.weight"}), m["frozen"]
    path = unique("got")
    with urllib.request.urlopen(agent.url + "/v1/actor/1/files/model.safetensors") as r, open(path, "wb") as f:
        f.write(r.read())
    got, one, two = tensors_of(path), tensors_of(base + "/model.safetensors"), tensors_of(part + "/model.safetensors")
    assert got == one | two


def test_export():
    "export shows complete versions as plain files, and ends cleanly"
    if os.geteuid() != 0:
        pytest.skip("needs root for a tmpfs")
    agent = Agent()
    folder = checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    to = unique("export")
    os.makedirs(to)
    at_end(lambda: subprocess.run(["umount", "-l", to], stderr=subprocess.DEVNULL))
    Process("export", agent.url, to)
    path = to + "/actor/latest/model.safetensors"
    wait_for(lambda: os.path.exists(path), "the exported version")
    assert tensors_of(path) == tensors_of(folder + "/model.safetensors")


def test_export_options():
    "export takes what is said of models: only what is needed, and of views; what it cannot do is refused"
    if os.geteuid() != 0:
        pytest.skip("needs root for a tmpfs")
    agent = Agent()
    agent.publish("actor", 1, checkpoint(MEDIUM, seed=1))
    name, to = sorted(MEDIUM)[0], unique("export")
    os.makedirs(to)
    at_end(lambda: subprocess.run(["umount", "-l", to], stderr=subprocess.DEVNULL))
    export = Process("export", "-o", f"need={name}", agent.url, to)
    wait_for(lambda: os.path.exists(to + "/actor/latest/model.safetensors"), "the exported version")
    assert set(tensors_of(to + "/actor/latest/model.safetensors")) == {name}
    export.end()
    for option, why in (("derive-ignore=x", "derive"), ("need=learn", "takes no need=learn")):
        refused = subprocess.run([WSYNC, "export", "-o", option, agent.url, to], capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 1 and why in refused.stderr, refused.stderr


def test_export_after_a_kill():
    "the tmpfs of a killed export is removed by the next one, which removes its own at its end"
    if os.geteuid() != 0:
        pytest.skip("needs root for a tmpfs")
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    to = unique("export")
    os.makedirs(to)
    at_end(lambda: subprocess.run(["umount", "-l", to], stderr=subprocess.DEVNULL))
    path = to + "/actor/latest/model.safetensors"

    def mounts():
        with open("/proc/self/mounts") as f:
            return sum(line.split()[1] == to for line in f)

    for n in range(3):
        export = Process("export", agent.url, to)
        wait_for(lambda: "version is there" in export.text(), "the exported version", 60)
        assert mounts() == 1 and os.path.exists(path), "nothing of one that was killed is there"
        second = subprocess.run([WSYNC, "export", agent.url, to], capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1 and "another wsync export" in second.stderr, second
        export.kill() if n < 2 else export.end()
    wait_for(lambda: mounts() == 0, "the end of all of them")
    assert os.listdir(to) == [], os.listdir(to)


def test_export_leaves_other_files():
    "export into a plain folder: files of others stay, its own versions are recognized, and their bytes match their digests"
    if os.geteuid() != 0:
        pytest.skip("needs root to give up a right")
    agent, to = Agent(), unique("export")
    own = {to + "/actor/1/notes.txt": "mine", to + "/actor/old/notes.txt": "mine, too", to + "/actor/.tmp.part/x": "x"}
    for path, text in own.items():
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as f:
            f.write(text)

    def begin():
        p = Process.__new__(Process)
        p.log_path = unique("export") + ".log"
        p.log = open(p.log_path, "wb")
        p.process = subprocess.Popen(["setpriv", "--bounding-set", "-sys_admin", WSYNC, "export", agent.url, to],
                                     stdout=p.log, stderr=p.log, stdin=subprocess.DEVNULL)
        at_end(p.end)
        return p

    def shows(version, folder):
        path = f"{to}/actor/{version}/model.safetensors"
        wait_for(lambda: os.path.exists(path) and tensors_of(path) == tensors_of(folder + "/model.safetensors"), f"version {version} of {folder}", 60)

    one, two, three = (checkpoint(SMALL, seed=n) for n in (1, 2, 3))
    agent.publish("actor", 1, one)
    export = begin()
    wait_for(lambda: "did not make" in export.text(), "the complaint", 60)
    second = subprocess.run([WSYNC, "export", agent.url, to], capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1 and "another wsync export" in second.stderr, second
    os.makedirs(to + "/actor/empty")
    agent.publish("actor", 2, two)
    shows(2, two)
    os.rename(to + "/actor/2", to + "/actor/kept")
    shows(2, two)  # it is exported again
    subprocess.run(["cp", "-r", to + "/actor/2", to + "/actor/copy"], check=True)
    inode = os.stat(to + "/actor/2").st_ino
    export.kill()
    export = begin()  # present versions are recognized by their mark and not written again
    wait_for(lambda: "ready model=actor version=2" in export.text(), "the second one's pull", 60)
    time.sleep(1)  # five polls
    assert os.stat(to + "/actor/2").st_ino == inode
    export.kill()
    os.truncate(to + "/actor/2/model.safetensors", 100)
    export = begin()
    wait_for(lambda: os.path.exists(to + "/actor/2/model.safetensors") and os.path.getsize(to + "/actor/2/model.safetensors") > 100, "the whole file", 60)
    shows(2, two)
    export.kill()
    agent.end()
    agent = Agent()  # another lineage with the same numbers
    agent.publish("actor", 2, three)
    export = begin()
    shows(2, three)
    export.end()
    for path, text in own.items():
        with open(path) as f:
            assert f.read() == text
    assert os.path.exists(to + "/actor/copy/model.safetensors"), "a copy of a version's folder is somebody's own"
    assert tensors_of(to + "/actor/kept/model.safetensors") == tensors_of(two + "/model.safetensors"), "so is one that was moved"
    assert os.path.isdir(to + "/actor/empty"), "and one that is empty"


def test_unprivileged():
    "another user publishes and serves without privileges: memfd, logged once; root finds the token of that agent"
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    folder = checkpoint(SMALL)
    home = unique("home")
    os.makedirs(home)
    os.chown(home, 65534, 65534)
    for path in (TESTDIR, folder):
        os.chmod(path, 0o755)
    command = shutil.copy(WSYNC, home)  # other users may have no access to the checkout
    port, sock, log = free_port(), home + "/agent.sock", home + "/log"
    with open(log, "wb") as f:
        agent = subprocess.Popen([command, "agent", "--listen", f"127.0.0.1:{port}", "--socket", sock], user=65534, group=65534,
                                 extra_groups=[], stdout=f, stderr=f,
                                 env={k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"})
    at_end(agent.wait)
    at_end(agent.terminate)
    wait_for(lambda: os.path.exists(sock), "the agent")
    wsync("publish", "--agent", f"unix:{sock}", "-m", "actor", "-v", "1", folder, user=65534, group=65534, extra_groups=[],
          executable=command)
    token = f"/tmp/wsync-65534/{port}.token"
    at_end(lambda: os.unlink(token))
    assert (os.stat(token).st_uid, os.stat(token).st_mode & 0o777) == (65534, 0o600)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models")
    assert Mount(f"http://127.0.0.1:{port}").wait_version("actor", 1) is None
    with open(log) as f:
        text = f.read()
    assert text.count("memfd") == 1, text


def test_sync():
    "wsync sync: engines of both kinds load a folder in parallel; one that refuses is rolled back and named"
    folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2)}
    engines = [Engine(folders[1], api="sglang"), Engine(folders[1], api="vllm")]
    named = [f"--engine={e.api}={e.url}" for e in engines]
    r = wsync("sync", folders[2], *named, "--version", "2")
    assert r.stdout.count("serves 2") == 2, r.stdout
    assert all(e.serves() == "2" and e.checksum() == Engine(folders[2], api=e.api).checksum() for e in engines)
    refusing = Engine(folders[1], "--refuse", "2")
    r = wsync("sync", folders[2], *named, f"--engine=sglang={refusing.url}", "--version", "2", check=False)
    assert r.returncode == 1 and "serves what it did before" in r.stderr, r.stderr
    refusing.generate()
    for args, word in ((["sync", "/x"], "--engine"), (["sync", "/x", "--engine", "http://h:1"], "KIND=URL"),
                       (["sync", "/x", "--engine", "trt=http://127.0.0.1:1"], "sglang or vllm"),
                       (["sync", folders[2], named[0], "--pause", "keep"], "pause mode"),
                       (["sync", folders[2], named[0], "--cache", "some"], "local, external or keep")):
        r = wsync(*args, check=False)
        assert r.returncode != 0 and word in r.stderr, (args, r.stderr)
