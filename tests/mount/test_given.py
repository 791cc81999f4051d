# beside others
# timeout: 200, takes: 45
# sanitizers: address
"""Mounts that somebody else makes: the daemon is given the descriptor of /dev/fuse, has no privileges, and knows nothing of the place."""
import shutil

from driver import NOBODY, driver, mounted, unmount
from world import *


class Given(Process):
    """A daemon of nobody's for a mount of `mounted`. Its descriptor is closed here."""

    def __init__(self, source, place, options="", fd=None, words=()):
        self.path = place
        options += f"{',' if options else ''}state=none"
        self.log_path = unique("given") + ".log"
        self.log = open(self.log_path, "wb")
        program = shutil.copy(WSYNC, os.path.join(open_to_all(), "wsync"))  # where nobody reaches it
        name = place if fd is None or "fuse-fd" in options else f"/dev/fd/{fd}"
        self.process = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all",
                                         "--inh-caps=-all", "--no-new-privs", program, "mount", "-f", *words, "-o", options, source, name],
                                        stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, pass_fds=[] if fd is None else [fd], cwd="/")
        at_end(self.end)
        if fd is not None:
            os.close(fd)

    file, read, text, write, write_once, status, engines = (
        getattr(Mount, name) for name in ("file", "read", "text", "write", "write_once", "status", "engines"))

    def wait(self):
        wait_for(lambda: " serving at=" in Process.text(self) or not self.alive(), "the mount")
        assert self.alive(), Process.text(self)
        return self


def published():
    need_fuse()
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    return agent, folder


def same(mount, folder, *names):
    return tensors_of(mount.file(*(names or ("actor/1",)), "model.safetensors")) == tensors_of(folder + "/model.safetensors")


def ended(mount):
    return mount.process.wait(20 * SLOW)


@pytest.mark.parametrize("how", ["/dev/fd/N", "fuse-fd="])
def test_without_privileges(how):
    "a daemon of nobody's, without a capability, serves what it was given, and ends when it is unmounted"
    agent, folder = published()
    fd, place = mounted()
    m = Given(agent.url, place, f"fuse-fd={fd}" if how == "fuse-fd=" else "", fd=fd).wait()
    wait_for(lambda: os.path.isdir(m.file("actor/1")), "the version")
    assert same(m, folder)
    assert "CAP_SYS_ADMIN" in m.status()["reads"], m.status()["reads"]
    assert m.status()["mountpoint"] == (place if how == "fuse-fd=" else f"/dev/fd/{fd}")
    m.write("pull 1", "actor/ctl")
    assert os.stat(m.file("actor/ctl")).st_uid == 0  # and not the daemon's number, which here may be anybody's
    assert "control ends" not in m.text()
    assert unmount(place)
    assert ended(m) == 0, m.text()


def test_never_waits():
    "a descriptor that whoever opened it uses without waiting (O_NONBLOCK), as Go's programs do, is waited for here"
    agent, folder = published()
    fd, place = mounted()
    os.set_blocking(fd, False)
    m = Given(agent.url, place, fd=fd).wait()
    wait_for(lambda: os.path.isdir(m.file("actor/1")), "the version")
    assert same(m, folder)
    assert unmount(place)
    assert ended(m) == 0, m.text()


def test_switch():
    "an engine reads by the name that the mount was told, and is switched; a daemon that is told to end does"
    agent, folder = published()
    fd, place = mounted()
    m = Given(agent.url, place, f"fuse-fd={fd}", fd=fd).wait()
    wait_for(lambda: os.path.isdir(m.file("actor/1")), "the version")
    engine = Engine(m.file("actor/1"))
    m.write(f"engine add e1 sglang {engine.url}", "actor/ctl")
    second = checkpoint(SMALL, seed=2)
    agent.publish("actor", 2, second)
    wait_for(lambda: os.path.isdir(m.file("actor/2")), "the second version")
    m.write("2", "actor/version")
    assert os.readlink(m.file("actor/current")) == "2"
    assert m.engines()["e1"].split()[:2] == ["serving", "2"], m.engines()
    engine.end()
    m.process.terminate()
    assert ended(m) == 0, m.text()
    with pytest.raises(OSError) as e:
        os.listdir(place)
    assert e.value.errno in (errno.ENOTCONN, errno.ECONNABORTED), e.value


def test_socket():
    "the descriptor comes over a socket that is there later only, after some words; what comes beside it is closed"
    agent, folder = published()
    fd, place = mounted()
    path, (read, write) = os.path.join(open_to_all(), "s"), os.pipe()
    driver(path, (b"hello", []), (b'{"more": 1}', [fd, write]), wait=1)
    m = Given(agent.url, place, words=["--fuse-socket", path]).wait()
    wait_for(lambda: os.path.isdir(m.file("actor/1")), "the version")
    assert same(m, folder)
    assert os.read(read, 1) == b""  # nobody has the other end
    os.close(read)
    assert unmount(place)
    assert ended(m) == 0, m.text()


def as_nobody(call, groups=()):
    return as_user(NOBODY, call, groups)


def read_all(path):
    with open(path, "rb") as f:
        f.read()


def test_strangers():
    "the daemon itself refuses what modes refuse, where whoever mounted it has not asked the kernel to"
    agent, folder = published()
    fd, place = mounted("allow_other")
    m = Given(agent.url, place, "mode=0440,gid=4242,ctl-group=4243", fd=fd).wait()
    wait_for(lambda: os.path.isdir(m.file("actor/1")), "the version")
    assert same(m, folder)
    weights, ctl = m.file("actor/1/model.safetensors"), m.file("actor/ctl")
    for call in (lambda: read_all(weights), lambda: os.listdir(place), lambda: m.write_once("pull 1", "actor/ctl"),
                 lambda: os.stat(m.file("actor")), lambda: os.truncate(ctl, 0), lambda: read_all(m.file("status"))):
        assert as_nobody(call) == errno.EACCES
    assert as_nobody(lambda: read_all(weights), [4242]) == 0
    assert as_nobody(lambda: m.write_once("pull 1", "actor/ctl"), [4242]) == errno.EACCES
    assert as_nobody(lambda: m.write_once("pull 1", "actor/ctl"), [4242, 4243]) == 0
    assert same(m, folder)


def test_strangers_and_names():
    "nobody but root puts files beside a version, changes or removes them"
    agent, folder = published()
    fd, place = mounted("allow_other")
    m = Given(agent.url, place, "root=actor,names=step_{N}", fd=fd).wait()
    step = m.file("step_1")
    wait_for(lambda: os.path.isdir(step), "the version")
    beside = os.path.join(step, "beside")
    with open(beside, "w") as f:
        f.write("root's")
    for call in (lambda: open(os.path.join(step, "x"), "w"), lambda: os.mknod(os.path.join(step, "y")), lambda: open(beside, "w"),
                 lambda: os.truncate(beside, 0), lambda: os.unlink(beside), lambda: os.unlink(os.path.join(step, "model.safetensors")),
                 lambda: os.rename(beside, beside + "2")):
        assert as_nobody(call) == errno.EACCES
    for call in (lambda: os.chmod(beside, 0o666), lambda: os.utime(beside, (1, 1))):
        assert as_nobody(call) == errno.EPERM
    assert as_nobody(lambda: read_all(beside)) == 0
    with open(beside) as f:
        assert f.read() == "root's"
    assert same(m, folder, "step_1")


def refused(fd, *words, options="state=none", name=None, timeout=30):
    r = wsync("mount", "-f", *words, "-o", options, f"dir:{TESTDIR}", name or f"/dev/fd/{fd}", check=False, timeout=timeout,
              pass_fds=[] if fd is None else [fd])
    assert r.returncode, r
    return r.stderr


def test_refused():
    "what is no descriptor, no /dev/fuse or not mounted, or is said twice, is named"
    need_fuse()
    plain, fuse = os.open("/dev/null", os.O_RDWR), os.open("/dev/fuse", os.O_RDWR)
    assert "descriptor 99 is not open" in refused(None, name="/dev/fd/99")
    assert f"descriptor {plain} is not /dev/fuse" in refused(plain)
    assert "is not mounted" in refused(fuse)
    assert "descriptor 0 is a standard stream" in refused(None, name="/dev/fd/0")
    assert "descriptor already" in refused(fuse, options=f"state=none,fuse-fd={fuse}")
    assert "exclude each other" in refused(fuse, options=f"state=none,fuse-fd={fuse},fuse-socket=/x", name="/wsync")
    assert "reads=link" in refused(fuse, options="state=none,reads=link")
    assert "no absolute path" in refused(fuse, options=f"state=none,fuse-fd={fuse}", name="wsync")
    os.close(plain)
    os.close(fuse)


@pytest.mark.parametrize("what", ["nothing", "a file", "silence"])
def test_socket_refused(what):
    "a driver that sends nothing, something else, or never anything, is named"
    need_fuse()
    path = os.path.join(open_to_all(), "s")
    file = [os.open("/dev/null", os.O_RDONLY)] if what == "a file" else []
    kept = driver(path, (b"x", file), close=what != "silence")
    said = refused(None, "--fuse-socket", path, name="/wsync", timeout=60)
    assert {"nothing": "closed the connection without", "a file": "is not /dev/fuse", "silence": "in 30 s"}[what] in said, said
    for c in kept:
        c.close()


def processes_with(word):
    """Pids of those that have it in a word of their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
            found += [pid] if word.encode() in f.read() else []
    return found


@pytest.mark.parametrize("how", ["in the foreground", "in the background"])
def test_told_to_end_while_it_waits(how):
    "who waits for a driver is ended by a signal, and nothing is left that would take its descriptor"
    need_fuse()
    path = os.path.join(open_to_all(), "s")
    kept = driver(path, (b"x", []), close=False)
    p = subprocess.Popen([WSYNC, "mount", *(["-f"] if "fore" in how else []), "-o", f"state=none,fuse-socket={path}", f"dir:{TESTDIR}", "/wsync"],
                         start_new_session=True)
    at_end(p.wait)
    at_end(p.kill)
    wait_for(lambda: any(os.readlink(f"/proc/{p.pid}/fd/{n}").startswith("socket:") for n in os.listdir(f"/proc/{p.pid}/fd")), "it to connect")
    p.send_signal(signal.SIGTERM)  # a shell has SIGINT ignored for what it starts in the background
    assert p.wait(20 * SLOW) == -signal.SIGTERM
    assert not processes_with(path)
    for c in kept:
        c.close()


def test_killed():
    "readers of a daemon that was killed are told, and do not wait"
    agent, folder = published()
    fd, place = mounted()
    m = Given(agent.url, place, fd=fd).wait()
    wait_for(lambda: os.path.isdir(m.file("actor/1")), "the version")
    f = os.open(m.file("actor/1/model.safetensors"), os.O_RDONLY)
    m.kill()
    with pytest.raises(OSError) as e:
        os.listdir(place)
    assert e.value.errno in (errno.ENOTCONN, errno.ECONNABORTED), e.value
    with contextlib.suppress(OSError):  # close(2) tells it, too
        os.close(f)
