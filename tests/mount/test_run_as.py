# beside others
# timeout: 200, takes: 25
# sanitizers: address
"""Mounts whose daemon becomes a user without privileges (-o run-as=), with a broker beside it that keeps one capability."""
import pwd

from world import *

USER = "nobody"
SYS_ADMIN = 1 << 21


def status_of(pid):
    with open(f"/proc/{pid}/status") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def broker_of(mount):
    with open(f"/proc/{mount.pid}/task/{mount.pid}/children") as f:
        found = [int(p) for p in f.read().split() if status_of(p)["Name"] == "wsync-broker"]
    assert len(found) == 1, found
    return found[0]


def is_alive(pid):
    try:
        return status_of(pid)["State"][0] not in "ZX"
    except FileNotFoundError:
        return False


def published(options=f"run-as={USER},state=none", **kw):
    need_fuse()
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, options, path=open_to_all(), **kw)
    mount.wait_version("actor", 1)
    return agent, folder, mount


def same(mount, folder, version=1):
    return tensors_of(mount.file("actor", version, "model.safetensors")) == tensors_of(folder + "/model.safetensors")


def reads_by_passthrough():
    """Does root's mount here?"""
    agent = Agent()
    return Mount(agent.url).status()["reads"] == "passthrough"


def test_privileges():
    "the daemon has no capability, the broker one; reads are root's, and SIGTERM unmounts"
    agent, folder, m = published()
    user, daemon, broker = pwd.getpwnam(USER), status_of(m.pid), status_of(broker_of(m))
    for process in daemon, broker:
        assert process["Uid"].split() == [str(user.pw_uid)] * 4 and process["Gid"].split() == [str(user.pw_gid)] * 4, process
        assert process["NoNewPrivs"] == "1", process
    for thread in os.listdir(f"/proc/{m.pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            of = status_of(f"{m.pid}/task/{thread}")
            assert int(of["CapPrm"], 16) == int(of["CapEff"], 16) == 0 and of["Uid"] == daemon["Uid"], of
    assert int(broker["CapPrm"], 16) == int(broker["CapEff"], 16) == SYS_ADMIN, broker
    assert same(m, folder)
    assert (m.status()["reads"] == "passthrough") == reads_by_passthrough(), m.status()["reads"]
    pid = broker_of(m)
    m.end()
    wait_for(lambda: not is_alive(pid), "the broker's end")
    assert not m.mounted()


def test_secure_bits():
    "a launcher whose secure bits let another user keep root's capabilities gives the daemon none"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    m = type("Kept", (Mount,), {"prefix": ("setpriv", "--securebits=+no_setuid_fixup")})(agent.url, f"run-as={USER},state=none", path=open_to_all())
    m.wait_version("actor", 1)
    of = status_of(m.pid)
    assert int(of["CapPrm"], 16) == int(of["CapEff"], 16) == 0 and int(status_of(broker_of(m))["CapEff"], 16) == SYS_ADMIN, of


def test_in_background():
    "a daemon in the background does the same, and wsync umount waits for its end"
    need_fuse()
    agent, place = Agent(), open_to_all()
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    wsync("mount", "-o", f"run-as={USER},state=none", agent.url, place)
    at_end(lambda: wsync("umount", place, check=False))
    wait_for(lambda: os.path.isdir(place + "/actor/1"), "the version")
    assert tensors_of(place + "/actor/1/model.safetensors") == tensors_of(folder + "/model.safetensors")
    wsync("umount", place)
    assert not os.path.ismount(place)


def test_killed():
    "a daemon that is killed takes the broker with it, and the next one recovers the mount"
    agent, folder, m = published()
    assert same(m, folder)
    broker = broker_of(m)
    m.kill()
    wait_for(lambda: not is_alive(broker), "the broker's end")
    again = Mount(agent.url, f"run-as={USER},state=none", path=m.path)
    again.wait_version("actor", 1)
    assert same(again, folder)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_broker_is_lost(how):
    "without its broker the daemon reads itself what nobody has read yet, and ends"
    if not reads_by_passthrough():
        pytest.skip("no passthrough on this machine")
    agent, folder, m = published()
    second = checkpoint(SMALL, seed=2)
    with open(m.file("actor/1/model.safetensors"), "rb", buffering=0) as f:
        before, broker = f.read(), broker_of(m)
        os.kill(broker, how)
        agent.publish("actor", 2, second)
        m.wait_version("actor", 2)
        assert same(m, second, 2)
        assert "the broker is gone" in m.text()
        assert same(m, folder)  # its file is the kernel's already
        f.seek(0)
        assert f.read() == before
    if how == signal.SIGSTOP:
        os.kill(broker, signal.SIGCONT)
    m.process.terminate()
    assert m.process.wait(20 * SLOW) == 0, m.text()
    wait_for(lambda: not is_alive(broker), "the broker's end")


def test_settings():
    "settings are that user's: a folder of another's is named before anything is served, and one of its own is kept over a restart"
    need_fuse()
    agent, folder, state = Agent(), checkpoint(SMALL, seed=1), open_to_all()
    agent.publish("actor", 1, folder)
    m = Mount(agent.url, f"run-as={USER},state={state}", path=open_to_all(), wait=False)
    assert m.process.wait(20 * SLOW) != 0
    assert f"chown -R {USER} {state}" in m.text() and not m.mounted(), m.text()
    os.chown(state, pwd.getpwnam(USER).pw_uid, -1)
    m = Mount(agent.url, f"run-as={USER},state={state}", path=m.path)
    m.wait_version("actor", 1)
    engine = Engine(m.file("actor/1"))
    m.write(f"engine add e1 sglang {engine.url}", "actor/ctl")
    m.write("1", "actor/version")
    m.end()
    m = Mount(agent.url, f"run-as={USER},state={state}", path=m.path)
    wait_for(lambda: "e1" in m.engines(), "the engine")
    m.wait_version("actor", 1)
    assert same(m, folder)


@pytest.mark.parametrize("options, said", [
    ("run-as=no-such-user", "no such user"), ("run-as=root", "that is root"), (f"run-as={USER},reads=link", "exclude each other"),
    (f"run-as={USER},fuse-socket=/nowhere", "somebody else makes"),
])
def test_refused(options, said):
    "users that are none or root, and what does not go with one, are named"
    need_fuse()
    r = wsync("mount", "-f", "-o", f"state=none,{options}", f"dir:{TESTDIR}", unique("mnt"), check=False)
    assert r.returncode and said in r.stderr, r


def test_out_of_reach():
    "a folder that the user cannot reach is named, and nothing is mounted"
    need_fuse()
    place = open_to_all()
    os.mkdir(place + "/within")
    os.chmod(place, 0o700)
    r = wsync("mount", "-f", "-o", f"state=none,run-as={USER}", f"dir:{TESTDIR}", place + "/within", check=False)
    assert r.returncode and f"cannot reach {place}/within" in r.stderr and not os.path.ismount(place + "/within"), r


def test_only_root():
    "another user cannot become one"
    need_fuse()
    place = open_to_all()
    program = shutil.copy(WSYNC, place + "/wsync")
    r = subprocess.run(["setpriv", "--reuid=1", "--regid=1", "--clear-groups", program, "mount", "-f", "-o", f"run-as={USER},state=none", "dir:/tmp",
                        place], capture_output=True, text=True, timeout=30 * SLOW)
    assert r.returncode and "only root becomes another user" in r.stderr, r
