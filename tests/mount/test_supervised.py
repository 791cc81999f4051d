# timeout: 300, takes: 50
# sanitizers: address
"""Mounts with a supervisor: the daemon dies while others look names up, open, read, map, list and command, and another one takes over."""
import mmap
import threading

from ranks import Rank, expected
from world import *

ELEMENTS = 1 << 16
KILLS = int(os.environ.get("SUPERVISED_KILLS", "300" if os.environ.get("LONG") else "15"))


@pytest.fixture(autouse=True)
def passes_through():
    need_fuse()
    agent = Agent()
    if Mount(agent.url).status()["reads"] != "passthrough":
        pytest.skip("no passthrough on this machine")


class Supervised(Mount):
    """Its process is the supervisor; .daemon is the pid of its daemon."""

    deaths = 1000

    def __init__(self, source, options="", **kw):
        os.environ["WSYNC_DEATHS"] = str(self.deaths)
        try:
            super().__init__(source, "supervised" + (f",{options}" if options else ""), **kw)
        finally:
            del os.environ["WSYNC_DEATHS"]

    @property
    def daemon(self):
        return int(wait_for(self.children, "a daemon")[0])

    def kill_daemon(self):
        """Returns when another one answers."""
        before = self.daemon
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: self.alive() and set(self.children()) - {str(before)}, "the next daemon")
        self.text("status")

    def children(self):
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            return f.read().split()


class Strict(Supervised):
    deaths = 3


def published(kind=Supervised, options="", **kw):
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    mount = kind(agent.url, options, **kw)
    mount.wait_version("actor", 1)
    return agent, folder, mount


def has_ended(pid):
    """Whether or not anybody has collected it."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def same(path, folder):
    return tensors_of(path + "/model.safetensors") == tensors_of(folder + "/model.safetensors")


class User(threading.Thread):
    """Looks up, opens, reads, maps and lists again and again. .failed: what failed."""

    def __init__(self, mount, version):
        super().__init__(daemon=True)
        self.mount, self.version, self.failed, self.n, self.ended = mount, version, [], 0, False
        at_end(self.stop)
        self.start()

    def once(self):
        version = self.version()
        path = self.mount.file("actor", version, "model.safetensors")
        got = {n: bytes(t[2]) for n, t in tensors_of(path).items()}
        assert got == {n: t[2] for n, t in expected(version, ELEMENTS).items()}, "other bytes"
        with open(path, "rb") as f:
            with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                assert len(m[:]) == os.fstat(f.fileno()).st_size
        assert "model.safetensors" in os.listdir(self.mount.file("actor", version))
        assert str(version) in os.listdir(self.mount.file("actor")) and "actor" in os.listdir(self.mount.path)

    def run(self):
        while not self.ended and len(self.failed) < 5:
            try:
                self.once()
            except Exception as e:
                self.failed.append(repr(e))
            self.n += 1

    def stop(self):
        self.ended = True
        self.join(60 * SLOW)
        assert not self.is_alive(), "a user of the mount hangs"
        assert not self.failed, self.failed


def test_killed_again_and_again():
    "daemons are killed under who looks up, opens, reads, maps and lists, while versions come: nothing fails, and every byte is right"
    agent = Agent()
    rank = Rank(agent, "actor", 0, 1, ELEMENTS, "run=one")
    newest = [0]

    def offload():
        rank.ask(f"offload {newest[0] + 1}")
        rank.ask(f"wait {newest[0] + 1}")
        m.wait_version("actor", newest[0] + 1)
        newest[0] += 1

    m = Supervised(agent.url, "keep=3")
    offload()
    first = open(m.file("actor/1/model.safetensors"), "rb")
    mapped = mmap.mmap(first.fileno(), 0, prot=mmap.PROT_READ)
    before = mapped[:]
    users = [User(m, lambda: newest[0]) for _ in range(2)]
    for i in range(KILLS):
        time.sleep(random.random() * 0.3)
        m.kill_daemon()
        if i % 3 == 0:
            offload()
    for u in users:
        u.stop()
    assert sum(u.n for u in users) > KILLS
    assert mapped[:] == before == first.read()
    mapped.close()
    first.close()


def test_folders_that_are_mounted_elsewhere():
    "bind mounts of the mount, of a model and of a version live on, and so does who is in a folder"
    agent, folder, m = published()
    places = {name: open_to_all() for name in ("", "actor", "actor/1")}
    for name, place in places.items():
        subprocess.run(["mount", "--bind", m.file(name), place], check=True)
        at_end(subprocess.run, ["umount", "-l", place])
    within = subprocess.Popen(["sh", "-c", "read x; ls; cat model.safetensors | wc -c"], cwd=m.file("actor/1"), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    at_end(within.kill)
    for _ in range(2):
        m.kill_daemon()
        for name, place in places.items():
            assert same(os.path.join(place, os.path.relpath("actor/1", name) if name else "actor/1"), folder)
    out, _ = within.communicate("\n", timeout=60 * SLOW)
    assert "config.json" in out and str(os.path.getsize(m.file("actor/1/model.safetensors"))) in out, out


def test_commands():
    "a command that the daemon dies over fails, is not run twice, and engines are where they were or where they were to go"
    agent, folder, m = published()
    engine = Engine(m.file("actor/1"), "--load-delay", "2") if "--load-delay" in wsync("engine", "--help").stdout else Engine(m.file("actor/1"))
    m.write(f"engine add e sglang {engine.url}", "actor/ctl")
    m.write("1", "actor/version")
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    m.wait_version("actor", 2)
    said = []

    def switch():
        try:
            m.write_once("2", "actor/version")
        except OSError as e:
            said.append(e.errno)

    writer = threading.Thread(target=switch, daemon=True)
    writer.start()
    time.sleep(0.2)
    m.kill_daemon()
    writer.join(60 * SLOW)
    assert not writer.is_alive() and said in ([], [errno.EIO]), said
    m.wait_version("actor", 2)
    wait_for(lambda: m.engines().get("e", "").startswith("serving"), "the engine", 60)
    assert engine.serves() in ("1", "2") and not engine.ask("/model_info").get("is_paused")
    m.write("2", "actor/version")
    assert engine.serves() == "2" and same(m.file("actor/2"), checkpoint(SMALL, seed=2))


def test_settings():
    "engines, policy and current version are the next daemon's, too"
    agent, folder, m = published()
    engine = Engine(m.file("actor/1"))
    m.write(f"engine add e sglang {engine.url}", "actor/ctl")
    m.write("1", "actor/version")
    m.write("follow-published", "actor/policy")
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert m.text("actor/version") == "1\n" and m.text("actor/policy") == "follow-published\n"
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    wait_for(lambda: engine.serves() == "2", "the engine to follow", 60)


def test_dies_too_often():
    "the third death within a minute ends it: unmounted, with the reason"
    agent, folder, m = published(Strict)
    for _ in range(2):
        m.kill_daemon()
    os.kill(m.daemon, signal.SIGKILL)
    assert m.process.wait(30 * SLOW) != 0
    assert not m.mounted() and "has died 3 times within 60 s" in m.text(), m.text()


@pytest.mark.parametrize("how", ["SIGTERM", "umount", "lazily", "daemon's SIGTERM"])
def test_ends(how):
    "told to end or unmounted, also after a death, it ends whole; a file that is open goes on being readable meanwhile"
    agent, folder, m = published()
    m.kill_daemon()
    m.wait_version("actor", 1)
    with open(m.file("actor/1/model.safetensors"), "rb", buffering=0) as f:
        size = len(f.read())
        if how == "lazily":
            wsync("umount", "--lazy", m.path)
            f.seek(0)
            assert len(f.read()) == size
    daemon = m.daemon if m.children() else 0
    if how == "umount":
        wsync("umount", m.path)
    elif how == "SIGTERM":
        m.process.terminate()
    elif how == "daemon's SIGTERM":
        os.kill(daemon, signal.SIGTERM)
    assert m.process.wait(8 * SLOW) == 0, m.text()  # and not when the former daemon's files are closed, after 10 s
    assert not m.mounted() and has_ended(daemon)


def test_ends_of_children_are_ignored():
    "also where who started it ignores SIGCHLD, a daemon's death is seen"
    agent, folder, m = published(type("Ignoring", (Supervised,), {"prefix": ("env", "--ignore-signal=CHLD")}))
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert same(m.file("actor/1"), folder)


def test_ignored_signal_is_no_end():
    "a signal that its parent had ignored, as shells do for what they start in the background, tells nobody to end: a daemon that dies is replaced"
    agent, folder, m = published(type("Ignoring", (Supervised,), {"prefix": ("env", "--ignore-signal=INT")}))
    os.kill(m.pid, signal.SIGINT)
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert same(m.file("actor/1"), folder)


SLOW_FIRST = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
static pid_t seen;
int pthread_mutex_unlock(pthread_mutex_t *m)
{
    int (*real)(pthread_mutex_t *) = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    char name[16] = "";
    int rc = real(m);
    if (seen != getpid() && pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 && strcmp(name, "fuse_worker") == 0) {
        seen = getpid();
        usleep(500000);
    }
    return rc;
}
"""


def test_others_before_the_first():
    "a daemon whose first thread sleeps before it begins with the kernel's first request fails nothing that its second one reads meanwhile"
    if SANITIZER:
        pytest.skip("a library cannot be loaded before the sanitizer's: not under a sanitizer")
    source, library = TESTDIR + "/slow_first.c", TESTDIR + "/slow_first.so"
    with open(source, "w") as f:
        f.write(SLOW_FIRST)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    agent, folder, m = published(type("SlowFirst", (Supervised,), {"prefix": ("env", f"LD_PRELOAD={library}")}))
    users = [type("Lister", (User,), {"once": lambda u: os.listdir(u.mount.file("actor"))})(m, None) for _ in range(4)]
    m.kill_daemon()
    for u in users:
        u.stop()


def test_supervisor_is_killed():
    "its daemon serves on, and ends when it is unmounted"
    agent, folder, m = published()
    daemon = m.daemon
    m.kill()
    assert same(m.file("actor/1"), folder)
    subprocess.run(["umount", m.path], check=True)
    wait_for(lambda: has_ended(daemon), "the daemon's end", 60)


def test_in_background_without_privileges():
    "in the background and with run-as= the same: each daemon has a broker of its own"
    agent, place, folder = Agent(), open_to_all(), checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    wsync("mount", "--supervised", "-o", "run-as=nobody,state=none", agent.url, place)
    at_end(lambda: wsync("umount", place, check=False))
    wait_for(lambda: os.path.isdir(place + "/actor/1"), "the version")
    supervisor = [int(p) for p in os.listdir("/proc") if p.isdigit() and place in open(f"/proc/{p}/cmdline").read()
                  and open(f"/proc/{p}/comm").read() == "wsync-keeps\n"]
    assert len(supervisor) == 1, supervisor
    with open(f"/proc/{supervisor[0]}/task/{supervisor[0]}/children") as f:
        daemon = int(f.read().split()[0])
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: os.path.isdir(place + "/actor/1"), "the version")
    assert same(place + "/actor/1", folder)
    wsync("umount", place)
    assert not os.path.ismount(place) and has_ended(supervisor[0])


def test_reload():
    "SIGHUP reaches the daemon, and the config is read again"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    config = unique("config") + ".conf"
    with open(config, "w") as f:
        f.write("model actor\npolicy pull\n")
    m = Supervised(agent.url, f"config={config}")
    m.wait_version("actor", 1)
    m.kill_daemon()
    m.wait_model()
    with open(config, "w") as f:
        f.write("model actor\npolicy follow-published\n")
    os.kill(m.pid, signal.SIGHUP)
    wait_for(lambda: m.text("actor/policy") == "follow-published\n", "the policy")


def test_refused():
    "where reads go through the daemon it is refused, with the reason"
    r = wsync("mount", "-f", "--supervised", "-o", "state=none,reads=cached", f"dir:{TESTDIR}", open_to_all(), check=False)
    assert r.returncode and "passthrough" in r.stderr, r
