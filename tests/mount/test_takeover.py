# timeout: 300, takes: 40
# sanitizers: address
"""Supervised mounts go over to another binary, while others use them, and go back where it does not come up."""
import types

from preloaded import preloaded
from ranks import Rank
from supervised import *

OTHER = "9.9.9"


@pytest.fixture(autouse=True)
def passes_through():
    need_passthrough()


def version():
    return re.match(r"wsync (\d+\.\d+\.\d+)", wsync("--version").stdout)[1]


def binary(*changes):
    """A copy of the binary as another release; changes: (text, other text of that length)."""
    path = os.path.join(open_to_all(), "wsync")
    with open(WSYNC, "rb") as f:
        code = f.read()
    for a, b in [(version(), OTHER), *changes]:
        assert len(a) == len(b) and a.encode() + b"\0" in code, a
        code = code.replace(a.encode() + b"\0", b.encode() + b"\0")
    with open(path, "wb") as f:
        f.write(code)
    os.chmod(path, 0o755)
    return path


def take_over(path, mount, **kw):
    return subprocess.run([path, "mount", "--takeover", mount.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120 * SLOW, **kw)


def binaries(mount):
    return [os.readlink(f"/proc/{p}/exe") for p in (mount.pid, mount.daemon)]


def address(mount):
    device = os.stat(mount.path).st_dev
    return f"/run/wsync-mounts/{os.major(device)}:{os.minor(device)}"


def request(at, wire, release, path):
    """Asks as a program does that is not wsync, or not ours: a socket."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(60 * SLOW)
    s.connect(at)
    with open(path, "rb") as f:
        socket.send_fds(s, [struct.pack("I60s", wire, release.encode())], [f.fileno()])
    return s


def answer(s):
    "what the supervisor answers"
    with s:
        _, _, code, text = struct.unpack_from("I60si1024s", s.recv(4096))
    return code, text.split(b"\0")[0].decode()


def ask(mount, wire, release, path):
    return answer(request(address(mount), wire, release, path))


def offloaded(kind=Supervised):
    "an agent, its rank, and a mount of what that has offloaded"
    agent = Agent()
    rank = Rank(agent, "actor", 0, 1, ELEMENTS, "run=one")
    m = kind(agent.url, "keep=3")
    offload(rank, m, 1)
    return agent, rank, m


def offload(rank, m, number):
    rank.ask(f"offload {number}")
    rank.ask(f"wait {number}")
    m.wait_version("actor", number)


def test_another_release():
    "under those who look up, open, read, map and list it goes over and back, again and again: nothing fails, also when a daemon dies after"
    agent, rank, m = offloaded()
    first = open(m.file("actor/1/model.safetensors"), "rb")
    before = first.read()
    users = [User(m, lambda: 1) for _ in range(2)]
    other, supervisor = binary(), m.pid
    for path in (other, WSYNC, other):
        r = take_over(path, m)
        assert r.returncode == 0 and (OTHER if path == other else version()) in r.stdout, r.stdout + m.text()
        assert binaries(m) == [os.path.realpath(path)] * 2 and m.pid == supervisor and m.alive()
    m.kill_daemon()
    assert binaries(m) == [os.path.realpath(other)] * 2
    offload(rank, m, 2)
    for u in users:
        u.stop()
    assert all(u.n > 3 for u in users)
    first.seek(0)
    assert first.read() == before
    first.close()
    m.process.terminate()
    assert m.process.wait(60 * SLOW) == 0 and not m.mounted(), m.text()


def test_in_background():
    "a mount in the background, whose options were given as seen from another folder, goes over too, and can be unmounted"
    agent, place, folder, other = Agent(), open_to_all(), checkpoint(SMALL, seed=1), binary()
    agent.publish("actor", 1, folder)
    subprocess.run([WSYNC, "mount", "--supervised", "-o", "state=state,log=log", agent.url, os.path.basename(place)], cwd=os.path.dirname(place), check=True)
    at_end(lambda: wsync("umount", place, check=False))
    m = types.SimpleNamespace(path=place)
    wait_for(lambda: os.path.isdir(place + "/actor/1"), "the version")
    r = take_over(other, m)
    assert r.returncode == 0, r.stdout
    wait_for(lambda: os.path.isdir(place + "/actor/1"), "the version")
    assert same(place + "/actor/1", folder)
    at = address(m)
    assert os.path.exists(at)
    wsync("umount", place)
    assert not os.path.ismount(place) and not os.path.exists(at)


NO_THREADS = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    char program[4096] = "";
    return readlink("/proc/self/exe", program, sizeof(program) - 1) < 0 || strcmp(program, getenv("MAY_START")) != 0 ? EAGAIN : real(t, a, run, arg);
}
"""


def test_does_not_come_up():
    "a binary whose daemon does not come up is given back: the one before serves, who looked up waited, and the reason is told"
    agent, rank, m = offloaded(preloaded(Supervised, NO_THREADS, MAY_START=os.path.realpath(WSYNC)))
    user = User(m, lambda: 1)
    r = take_over(binary(), m)
    assert r.returncode == 1 and OTHER in r.stdout and "did not come up: cannot start a thread" in r.stdout and f"release {version()} serves on" in r.stdout, r.stdout + m.text()
    assert binaries(m) == [os.path.realpath(WSYNC)] * 2
    m.kill_daemon()
    offload(rank, m, 2)
    user.stop()
    assert user.n > 1 and take_over(WSYNC, m).returncode == 0


def test_refused():
    "what is no wsync, one that refuses the options, and one of another wire, which is told both releases: the mount does not notice"
    agent, folder, m = published()
    daemon = m.daemon
    code, text = ask(m, 1, "8.0.0", "/bin/true")
    assert code and "release 8.0.0 does not run here" in text, text
    code, text = ask(m, 7, "8.0.0", WSYNC)
    assert code == errno.EPROTO and "8.0.0" in text and version() in text, text
    r = take_over(binary(("supervised", "supervisor")), m)
    assert r.returncode == 1 and "'supervised' is no mount option" in r.stdout, r.stdout
    assert m.daemon == daemon and same(m.file("actor/1"), folder)


def test_who_may():
    "other users are not heard, nor is a mount found that has no supervisor"
    agent, folder, m = published(path=open_to_all())
    r = take_over(binary(), m, user="nobody", group="nogroup", extra_groups=[])
    assert r.returncode == 1 and "no supervisor that could be asked" in r.stdout, r.stdout
    assert os.stat("/run/wsync-mounts").st_mode & 0o777 == 0o700
    r = take_over(WSYNC, Mount(agent.url))
    assert r.returncode == 1 and "mounted without --supervised" in r.stdout, r.stdout
    r = take_over(WSYNC, types.SimpleNamespace(path=TESTDIR))
    assert r.returncode == 1 and "no wsync mount is on" in r.stdout, r.stdout


def test_waits_for_a_command():
    "a switch that is under way ends well, and then it goes over"
    agent, folder, m = published(options="hung=6")
    engine = Engine(m.file("actor/1"), "--slow", "9000")
    m.write(f"engine add e sglang {engine.url}", "actor/ctl")
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    m.wait_version("actor", 2)
    said = []
    writer = threading.Thread(target=lambda: said.append(m.write("2", "actor/version")), daemon=True)
    writer.start()
    wait_for(lambda: "switching yes" in m.text("actor/status") or said, "the switch")
    r = take_over(WSYNC, m)
    writer.join(60 * SLOW)
    assert r.returncode == 0 and said == [None] and engine.serves() == "2", (r.stdout, said)
    assert m.text("actor/version") == "2\n"


def collected(pid):
    "of the children that a process has collected: the pages that they touched"
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rsplit(")", 1)[1].split()[8])


def test_told_to_end_meanwhile():
    "a mount that is told to end while a takeover waits for its daemon ends, instead of beginning anew with the other binary"
    agent, folder, m = published()
    assert take_over(WSYNC, m).returncode == 0  # its daemon has said that it serves, before it is stopped
    daemon, at, before = m.daemon, address(m), collected(m.pid)
    os.kill(daemon, signal.SIGSTOP)
    at_end(lambda: has_ended(daemon) or os.kill(daemon, signal.SIGCONT))
    client = request(at, 1, OTHER, binary())
    wait_for(lambda: collected(m.pid) > before, "the trial to be over")
    m.process.terminate()
    code, text = answer(client)
    assert code == errno.ESHUTDOWN and "was told to end meanwhile" in text, (code, text)
    assert binaries(m)[0] == os.path.realpath(WSYNC)
    os.kill(daemon, signal.SIGCONT)
    assert m.process.wait(60 * SLOW) == 0 and not m.mounted(), m.text()
