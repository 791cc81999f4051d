# timeout: 400, takes: 110
# sanitizers: address
"""Mounts with a supervisor: the daemon dies while others look names up, open, read, map, list and command, and another one takes over."""
import ctypes

from crowded import crowded
from preloaded import preloaded
from ranks import Rank
from supervised import *

KILLS = int(os.environ.get("SUPERVISED_KILLS", "300" if os.environ.get("LONG") else "15"))


@pytest.fixture(autouse=True)
def passes_through():
    need_passthrough()


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


class Looker(User):
    """Only looks up, lists and stats, and so asks all the time."""

    def once(self):
        for names in ((), ("actor",), ("actor", "1"), ("actor", "1", "tensors"), ("actor", "1", "model.safetensors"), ("actor", "latest")):
            path = self.mount.file(*names)
            if os.path.isdir(path):
                os.listdir(path)
            os.stat(path)


def test_killed_while_it_begins():
    "daemons that die just after they took over, under many who look, list and stat what is in a folder of checkpoints: nothing fails"
    source = unique("source")
    for version in (1, 2):
        checkpoint(SMALL, folder=f"{source}/actor/{version}", seed=version)
    m = Supervised(f"dir:{source}")
    m.wait_version("actor", 1)
    users = [Looker(m, None) for _ in range(4)]
    for _ in range(150):
        time.sleep(random.random() * 0.03)
        os.kill(m.daemon, signal.SIGKILL)
        os.stat(m.file("status"))
    for u in users:
        u.stop()


def listed(m, *names):
    """A thread that lists a folder, and what came of it: names, or an errno."""
    got = []

    def look():
        try:
            got.append(os.listdir(m.file(*names)))
        except OSError as e:
            got.append(e.errno)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return thread, got


def test_source_that_is_slow():
    "what was there is not denied before the source has said what it has: names and lists wait for that, and the mount's own files do not"
    agent, folder, m = published()
    within = os.open(m.file("actor/1"), os.O_RDONLY | os.O_DIRECTORY)
    at_end(os.close, within)
    suspend(agent.pid)
    at_end(os.kill, agent.pid, signal.SIGCONT)
    before = m.daemon
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: set(m.children()) - {str(before)}, "the next daemon")
    looks = [listed(m, "actor", "1"), listed(m, "actor"), listed(m)]
    assert "source" in m.text("status")
    time.sleep(4)  # more than a mount waits for its source before it is there
    os.kill(agent.pid, signal.SIGCONT)
    for thread, got in looks:
        thread.join(60 * SLOW)
        assert got and isinstance(got[0], list), got
    assert "model.safetensors" in looks[0][1][0] and "1" in looks[1][1][0] and "actor" in looks[2][1][0], looks
    assert "model.safetensors" in os.listdir(within)


def test_source_that_says_nothing():
    "a source that does not answer is waited for no longer than deadline= says"
    agent, folder, m = published(options="deadline=2")
    suspend(agent.pid)
    at_end(os.kill, agent.pid, signal.SIGCONT)
    os.kill(m.daemon, signal.SIGKILL)
    thread, got = listed(m, "actor", "1")
    thread.join(30 * SLOW)
    assert got == [errno.ENOENT], got


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


def test_its_path_is_gone():
    "a mount that was unmounted lazily and is left at another place is served by the next daemon, too; it is called as the first"
    agent, folder, m = published()
    place = open_to_all()
    subprocess.run(["mount", "--bind", m.path, place], check=True)
    at_end(subprocess.run, ["umount", "-l", place], stderr=subprocess.DEVNULL)
    wsync("umount", "--lazy", m.path)
    before = m.daemon
    os.kill(before, signal.SIGKILL)
    assert same(place + "/actor/1", folder)
    with open(f"/proc/{m.daemon}/comm") as f:
        assert f.read() == "wsync\n"
    subprocess.run(["umount", place], check=True)
    assert m.process.wait(30 * SLOW) == 0, m.text()


def test_commands():
    "a command that the daemon dies over fails, is not run twice, and engines are where they were or where they were to go"
    agent, folder, m = published()
    engine = Engine(m.file("actor/1"), "--slow", "1000")
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


def test_current():
    "who looks at what is current while daemons die always finds it"
    agent, folder, m = published()
    engine = Engine(m.file("actor/1"))
    m.write(f"engine add e sglang {engine.url}", "actor/ctl")
    m.write("1", "actor/version")
    for _ in range(5):
        daemon = m.daemon
        os.kill(daemon, signal.SIGKILL)
        while not has_ended(daemon):  # what is open from before cannot be read
            pass
        assert m.text("actor/version") == "1\n" and os.readlink(m.file("actor/current")) == "1"
        assert same(m.file("actor/current"), folder)


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


def test_ends_at_once():
    "told to end just after a death, it does not wait until what the former daemon had passed through is closed, which takes 10 s"
    agent, folder, m = published()
    m.read("actor/1/model.safetensors")
    m.kill_daemon()
    m.wait_version("actor", 1)
    m.process.terminate()
    assert m.process.wait(9) == 0, m.text()


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
    agent, folder, m = published(preloaded(Supervised, SLOW_FIRST))
    users = [type("Lister", (User,), {"once": lambda u: os.listdir(u.mount.file("actor"))})(m, None) for _ in range(4)]
    m.kill_daemon()
    for u in users:
        u.stop()


def test_no_room_for_a_process():
    "where the machine has no room for another process just when a daemon dies, the next one is started a moment later"
    agent, folder, m = published(crowded(Supervised))
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert same(m.file("actor/1"), folder)


def test_supervisor_is_killed():
    "its daemon serves on, and ends when it is unmounted"
    agent, folder, m = published()
    daemon = m.daemon
    m.kill()
    assert same(m.file("actor/1"), folder)
    subprocess.run(["umount", m.path], check=True)
    wait_for(lambda: has_ended(daemon), "the daemon's end", 60)


def is_supervisor(pid, place):
    try:
        with open(f"/proc/{pid}/cmdline") as f, open(f"/proc/{pid}/comm") as g:
            return place in f.read() and g.read() == "wsync-keeps\n"
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False


def test_in_background_without_privileges():
    "in the background and with run-as= the same: each daemon has a broker of its own"
    agent, place, folder = Agent(), open_to_all(), checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    wsync("mount", "--supervised", "-o", "run-as=nobody,state=none", agent.url, place)
    at_end(lambda: wsync("umount", place, check=False))
    wait_for(lambda: os.path.isdir(place + "/actor/1"), "the version")
    supervisor = [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_supervisor(p, place)]
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


def test_next_daemon_fails_to_start():
    "one that cannot start, here for its config, leaves the mount: who looks waits, and finds all once a daemon can start"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    config = unique("config") + ".conf"
    with open(config, "w") as f:
        f.write("model actor\npolicy pull\n")
    m = Supervised(agent.url, f"config={config}")
    m.wait_version("actor", 1)
    with open(config, "w") as f:
        f.write("nonsense\n")
    os.kill(m.daemon, signal.SIGKILL)
    threads, found = looked_at(m, 2)
    wait_for(lambda: m.text().count("another one takes over") >= 2, "a daemon that fails")
    assert not found and "nonsense" in m.text()
    with open(config, "w") as f:
        f.write("model actor\npolicy pull\n")
    for t in threads:
        t.join(60 * SLOW)
    assert sorted(found) == [False, True]


HANG = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>
ssize_t writev(int fd, const struct iovec *v, int n)
{
    int pid = 0;
    FILE *f = fopen(getenv("HANGS"), "r");
    if (f && fscanf(f, "%d", &pid) == 1 && pid == getpid())
        for (;;)
            pause();
    if (f)
        fclose(f);
    return ((ssize_t (*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev"))(fd, v, n);
}
"""


def looked_at(mount, n):
    "n threads that look a name up, and what they find"
    found = []
    threads = [threading.Thread(target=lambda i=i: found.append(os.path.isdir(mount.file(f"actor/{i % 2 + 1}"))), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    return threads, found


@pytest.mark.parametrize("how", ["stopped", "stuck"])
def test_hangs(how, monkeypatch):
    "a daemon that is stopped, and one whose workers all wait for ever, is replaced; who waits is answered"
    if how == "stuck":
        if SANITIZER:
            pytest.skip("a library cannot be loaded before the sanitizer's: not under a sanitizer")
        library, hangs = unique("hang"), unique("hangs")
        with open(library + ".c", "w") as f:
            f.write(HANG)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library + ".so", library + ".c"], check=True)
        monkeypatch.setenv("HANGS", hangs)
        monkeypatch.setenv("LD_PRELOAD", library + ".so")
    agent, folder, m = published(options="hung=6")
    daemon = m.daemon
    if how == "stopped":
        os.kill(daemon, signal.SIGSTOP)
    else:
        with open(hangs, "w") as f:
            f.write(str(daemon))
    threads, found = looked_at(m, 20)
    wait_for(lambda: has_ended(daemon), "the daemon to be replaced", 60)
    for t in threads:
        t.join(60 * SLOW)
    assert sorted(found) == [False] * 10 + [True] * 10
    assert "has not answered for 6 s" in m.text() and same(m.file("actor/1"), folder)


@pytest.mark.parametrize("why", ["hung=0", "a debugger", "all were stopped"])
def test_hangs_and_is_left(why):
    "a daemon that is stopped stays where that was asked for, where a debugger has it, and where its supervisor was stopped, too"
    agent, folder, m = published(options="hung=0" if why == "hung=0" else "hung=6")
    daemon, libc = m.daemon, ctypes.CDLL(None, use_errno=True)
    if why == "a debugger":
        assert libc.ptrace(16, daemon, None, None) == 0  # PTRACE_ATTACH, which stops its first thread
        libc.waitpid(daemon, None, 0x40000000)  # __WALL
    if why == "all were stopped":
        os.kill(m.pid, signal.SIGSTOP)
    if why != "a debugger":
        os.kill(daemon, signal.SIGSTOP)
    time.sleep(9)
    if why == "a debugger":
        assert libc.ptrace(17, daemon, None, None) == 0  # PTRACE_DETACH
    os.kill(daemon, signal.SIGCONT)
    if why == "all were stopped":
        os.kill(m.pid, signal.SIGCONT)
    time.sleep(1)
    assert m.daemon == daemon and not has_ended(daemon) and same(m.file("actor/1"), folder)


def test_refused():
    "where reads go through the daemon it is refused, with the reason"
    r = wsync("mount", "-f", "--supervised", "-o", "state=none,reads=cached", f"dir:{TESTDIR}", open_to_all(), check=False)
    assert r.returncode and "passthrough" in r.stderr, r
