# timeout: 400, takes: 110
# sanitizers: address
"""Mounts with a supervisor: the daemon dies while others look names up, open, read, map, list and command, and another one takes over."""
import ctypes

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
    assert m.process.wait(30 * SLOW) == 0, m.text()
    assert not m.mounted() and has_ended(daemon)


def test_ends_of_children_are_ignored():
    "also where who started it ignores SIGCHLD, a daemon's death is seen"
    agent, folder, m = published(type("Ignoring", (Supervised,), {"prefix": ("env", "--ignore-signal=CHLD")}))
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
