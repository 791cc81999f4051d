# timeout: 300, takes: 60
# sanitizers: address
"""Memory outlives a supervised mount's daemon: the next one has it again without a byte from a source, after it has compared it."""
from supervised import *

LARGE = {f"w{i}": ("BF16", [1024, 1024]) for i in range(6)}  # 12 MiB: three blocks


@pytest.fixture(autouse=True)
def passes_through():
    need_passthrough()


def pulled(mount, version, folder):
    "reads the version, and returns how it came"
    assert same(mount.file("actor", version), folder)
    return mount.status("actor")[f"version.{version}"]


def moved(mount):
    return int(re.search(r"^wsync_moved_bytes_total (\d+)", mount.text("metrics"), re.M)[1])


def kept(mount):
    "descriptors of memory that the supervisor has"
    found = []
    for fd in os.listdir(f"/proc/{mount.pid}/fd"):
        to = os.readlink(f"/proc/{mount.pid}/fd/{fd}")
        if (to.startswith("/#") or "memfd:" in to) and "wsync-life" not in to:
            found.append(f"/proc/{mount.pid}/fd/{fd}")
    return found


def large(kind=Supervised, options="", **kw):
    agent = Agent()
    folders = {}
    for n in (1, 2):
        folders[n] = checkpoint(LARGE, seed=n)
    agent.publish("actor", 1, folders[1])
    mount = kind(agent.url, options, **kw)
    mount.wait_version("actor", 1)
    return agent, folders, mount


@pytest.mark.parametrize("options", ["", "run-as=nobody,state=none"])
def test_next_daemon(options):
    "after each death, and after a takeover, versions are there again: nothing comes from the source, and who has them mapped goes on"
    agent, folders, m = large(options=options, path=open_to_all())
    assert "tcp full" in pulled(m, 1, folders[1])
    agent.publish("actor", 2, folders[2])
    m.wait_version("actor", 2)
    pulled(m, 2, folders[2])
    with open(m.file("actor/1/model.safetensors"), "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before = mapped[:]
        for i in range(3):
            if i < 2:
                m.kill_daemon()
            else:
                wsync("mount", "--takeover", m.path)
            for n in (1, 2):
                m.wait_version("actor", n)
                assert "was kept" in pulled(m, n, folders[n]), m.text()
            assert moved(m) == 0 and mapped[:] == before
    m.process.terminate()
    assert m.process.wait(30 * SLOW) == 0, m.text()


def test_what_goes_is_forgotten():
    "the supervisor has no memory of versions that were dropped, or that are newer ones' now, nor of what the next daemon has no room for"
    agent, folders, m = large(options="keep=1,cache=40M")
    pulled(m, 1, folders[1])
    assert kept(m)
    m.write("drop 1", "actor/ctl")
    wait_for(lambda: not kept(m), f"version 1's memory to go: {kept(m)}")
    for n in range(2, 6):
        folders[n] = checkpoint(LARGE, seed=n)
        agent.publish("actor", n, folders[n])
        m.wait_version("actor", n)
        pulled(m, n, folders[n])
    wait_for(lambda: len(kept(m)) <= 2 * 3, "old versions' memory to go")
    m.kill_daemon()
    assert int(m.status()["used_bytes"]) >= 12 << 20
    for n in range(6, 9):
        folders[n] = checkpoint(LARGE, seed=n)
        agent.publish("actor", n, folders[n])
        m.wait_version("actor", n)
        pulled(m, n, folders[n])
    wait_for(lambda: len(kept(m)) <= 2 * 3, "what was left to go")
    assert int(m.status()["used_bytes"]) <= 40 << 20


def test_cache_by_itself():
    "where cache= is not given, what was kept counts as memory that the next daemon may have"
    agent, folders, m = large()
    pulled(m, 1, folders[1])
    for path in kept(m):  # so large that it shows
        with open(path, "r+b") as f:
            size = os.fstat(f.fileno()).st_size
            f.truncate(1 << 50)
        break
    m.kill_daemon()
    assert int(m.status()["cache_bytes"]) > 1 << 49, (size, m.status())
    m.wait_version("actor", 1)
    assert "tcp full" in pulled(m, 1, folders[1])


def test_other_bytes():
    "memory that has other bytes than the manifest says is not used: they come again"
    agent, folders, m = large()
    pulled(m, 1, folders[1])
    for path in kept(m):
        with open(path, "r+b") as f:
            f.seek(-2, 2)
            f.write(b"\0\0")
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert "tcp full" in pulled(m, 1, folders[1]) and moved(m) > 0
    assert "what the daemon before had is not used" in m.text() and "differs from the manifest" in m.text()
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert "was kept" in pulled(m, 1, folders[1])


def test_last_death_but_one():
    "memory may be what kills daemons: with the second death of three it is given up"
    agent, folders, m = large(Strict)
    pulled(m, 1, folders[1])
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert "was kept" in pulled(m, 1, folders[1])
    m.kill_daemon()
    m.wait_version("actor", 1)
    assert "tcp full" in pulled(m, 1, folders[1])


def test_deltas_after_a_death():
    "what was kept is the base of the delta to the next version"
    agent, folders, m = large()
    pulled(m, 1, folders[1])
    m.kill_daemon()
    m.wait_version("actor", 1)
    pulled(m, 1, folders[1])
    folder = checkpoint({**LARGE}, seed=1)
    with open(folder + "/model.safetensors", "r+b") as f:
        f.seek(-4096, 2)
        f.write(bytes(4096))
    agent.publish("actor", 2, folder)
    m.wait_version("actor", 2)
    wait_for(lambda: "delta" in m.status("actor")["version.2"] or pulled(m, 2, folder), "the version")
    assert same(m.file("actor/1"), folders[1]) and same(m.file("actor/2"), folder)
    assert moved(m) < 8 << 20, m.status("actor")
