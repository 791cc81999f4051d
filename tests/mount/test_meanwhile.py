# beside others
# takes: 12
"""Commands that look at a mount while it changes: a model is removed, a link is switched, a source dies, a daemon is started anew."""
from proxy import Gate
from world import *

MIB = 1 << 20


def world(*versions):
    need_fuse()
    agent, folder = Agent(), checkpoint({"w": ("U8", [12 * MIB])})
    for v in versions:
        agent.publish("actor", v, folder)
    return agent, folder


def test_a_model_is_removed():
    "status and ls of all models pass over one that is removed while they read"
    agent, _ = world(1)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    over = threading.Event()
    at_end(over.set)

    def come_and_go():
        while not over.is_set():
            mount.write(f"add guest {agent.url}", "ctl")
            mount.write("remove guest", "ctl")

    guest = threading.Thread(target=come_and_go)
    guest.start()
    for _ in range(30):
        for command in ("status", "ls"):
            assert "actor" in wsync(command, mount.path).stdout
    over.set()
    guest.join()
    assert wsync("status", mount.path, "guest", check=False).returncode == 1
    assert wsync("ls", mount.path, "guest", check=False).returncode == 1


def test_settings_forget_a_removed_model():
    "the settings keep nothing of models that were removed; what was set for one is kept"
    agent, _ = world(1)
    state = unique("state")
    mount = Mount(agent.url, f"state={state}")
    for name in ("one", "two"):
        mount.write(f"add {name} {agent.url}", "ctl")
    mount.write("follow", "two/policy")
    for name in ("one", "two"):
        mount.write(f"remove {name}", "ctl")
    kept = [line for name in os.listdir(state) if not name.endswith(".lock") for line in open(os.path.join(state, name))]
    assert 'model "one"\n' not in kept and kept[kept.index('model "two"\n') + 1] == "policy follow-published until=release\n", kept


def test_a_link_is_switched():
    "verify and save read the version that a link leads to when they begin"
    agent, _ = world(1, 2)
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    assert wsync("verify", mount.file("actor/latest")).stdout.startswith(mount.file("actor/2") + ": ")
    os.symlink(unique("nowhere"), link := unique("link"))
    said = wsync("save", link, unique("archive"), check=False)
    assert said.returncode == 1 and f"cannot read {link}/.wsync" in said.stderr, said


def test_a_source_dies():
    "diff and verify of a version that stops to arrive end with one sentence"
    agent, folder = world(1)
    gate = Gate(agent.url, 5 * MIB)
    mount = Mount(gate.url, "open=stream,deadline=1,streams=1")
    mount.wait_version("actor", 1)
    said = wsync("diff", folder, mount.file("actor/1"), check=False)
    assert (said.returncode, said.stderr) == (1, "wsync diff: a file shrank, or its mount failed, while it was read\n"), said
    said = wsync("verify", mount.file("actor/1"), check=False)
    assert said.returncode == 1 and said.stderr.count("\n") == 1 and "cannot read" in said.stderr, said


def test_a_daemon_is_started_anew():
    "events --follow goes on with all that the next daemon says, also where that is more than it has read"
    agent, _ = world(1)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    following = Process("events", "--follow", "--raw", "-n", "1", mount.path)
    wait_for(lambda: following.text().count("\n") == 1, "the newest event")
    os.kill(following.pid, signal.SIGSTOP)
    wsync("umount", mount.path)
    agent.publish("actor", 2, checkpoint({"w": ("F32", [64])}))
    mount = Mount(agent.url, path=mount.path)
    mount.wait_version("actor", 2)
    mount.write("follow", "actor/policy")
    mount.write("manual", "actor/policy")
    os.kill(following.pid, signal.SIGCONT)
    wait_for(lambda: "policy=manual" in following.text(), "the newest event")
    _, note, *lines = following.text().splitlines()
    assert "the mount was started anew" in note and lines == mount.text("events").splitlines()


def test_names():
    "a source with a blank in its name is shown whole; what can be no model's name is refused; a folder needs no slash"
    need_fuse()
    base = unique("with blanks ")
    shutil.copytree(checkpoint({"w": ("F32", [64])}), os.path.join(base, "actor", "1"))
    mount = Mount(f"dir:{base}")
    mount.wait_version("actor", 1)
    source = json.loads(wsync("status", "--json", mount.path).stdout)["sources"][0]
    assert (source["url"], source["up"], source["transport"], source["error"]) == (f"dir:{base}", True, "dir", None), source
    for command in ("status", "ls", "events"):
        for name in ("", ".", ".."):
            said = wsync(command, "--mount", mount.path, name, check=False)
            assert said.returncode == 2 and f"'{name}' is no model" in said.stderr, said
        above, name = os.path.split(mount.path)
        assert wsync(command, name, "actor", cwd=above).stdout == wsync(command, mount.path, "actor").stdout or command == "status"


def test_mounts_at_the_same_moment():
    "of several that mount on a folder at the same moment, one does, also where they share no settings"
    agent, _ = world(1)
    for _ in range(3):
        folder = unique("mnt")
        os.makedirs(folder)
        args = [WSYNC, "mount", "-o", "state=none", agent.url, folder]
        started = [subprocess.Popen(args, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        said = [p.communicate(timeout=30 * SLOW)[1] for p in started]
        ended = sorted(p.returncode for p in started)
        with open("/proc/self/mounts") as f:
            n = sum(line.split()[1] == folder for line in f)
        for _ in range(n):
            wsync("umount", folder)
        assert (n, ended) == (1, [0, 1, 1, 1]), (n, said)
        assert sum(text.count("is mounted on") for text in said) == 3, said
