# timeout: 5400, takes: 900
"""The Debian packages in clean roots of Debian 12 and 13: built, installed, used, upgraded beside a running agent, purged."""
import re

from roots import *

SUITES = pytest.mark.parametrize("suite", ["bookworm", "trixie"])
NAMES = ("wsync", "libwsync0", "libwsync-dev", "python3-wsync")


@pytest.fixture(scope="module")
def built():
    """The packages' paths for a suite, by name; built once."""
    need("mmdebstrap", "dpkg-deb")
    made = {}

    def of(suite):
        if suite not in made:
            lines = script("deb", suite, timeout=3000).splitlines()
            paths = [os.path.join(ROOT, line) for line in lines if re.fullmatch(r"build/deb/\S+\.deb", line) and "-dbgsym_" not in line]
            made[suite] = {os.path.basename(path).split("_")[0]: path for path in paths}
        return made[suite]

    return of


def install(root, *paths):
    root.put(*paths)
    root.sh(f"apt-get -qq update; apt-get -qq install -y --no-install-recommends {' '.join('/root/' + os.path.basename(p) for p in paths)}", timeout=600)


def before(debs, folder):
    """The packages as of 0.1.0, which had none of its own: these ones with that release's files."""
    old = os.path.join(ROOT, "build/compat/v0.1.0/build")
    if not os.path.exists(old + "/wsync"):
        pytest.skip("v0.1.0 was not built: the history here does not reach back to v0.1.0, or `make old-releases` was not run")
    made = []
    os.makedirs(folder)
    for name, replaced in (("wsync", "usr/bin/wsync"), ("libwsync0", None)):
        tree = os.path.join(folder, name)
        subprocess.run(["dpkg-deb", "-R", debs[name], tree], check=True)
        if not replaced:
            library = next(os.path.join(d, f) for d, _, files in os.walk(tree) for f in files if f.startswith("libwsync.so.0."))
            replaced = os.path.relpath(library, tree)
        shutil.copy(os.path.join(old, "wsync" if name == "wsync" else "libwsync.so"), os.path.join(tree, replaced))
        with open(tree + "/DEBIAN/control") as f:
            control = re.sub(r"^Version: .*$", "Version: 0.1.0-1", f.read(), flags=re.M)
        with open(tree + "/DEBIAN/control", "w") as f:
            f.write(control)
        made.append(os.path.join(folder, f"{name}_0.1.0-1.deb"))
        subprocess.run(["dpkg-deb", "-b", "--root-owner-group", tree, made[-1]], stdout=subprocess.DEVNULL, check=True)
    return made


@SUITES
def test_packages(built, suite):
    "there are four, of one version, and lintian says nothing of them"
    debs = built(suite)
    assert sorted(debs) == sorted(NAMES)
    versions = {subprocess.check_output(["dpkg-deb", "-f", path, "Version"], text=True).strip() for path in debs.values()}
    assert versions == {script("version", "deb").strip() + "-1"}
    with open(os.path.dirname(debs["wsync"]) + "/lintian.log") as f:
        assert f.read() == ""


@SUITES
def test_use(built, suite):
    "a clean root publishes, mounts, reads; Python and C programs work; a purge leaves nothing"
    debs = built(suite)
    root = Root(suite)
    root.run("apt-get", "-qq", "update")
    needed = [d.split("(")[0].split("|")[0].strip() for name in NAMES for field in ("Depends",)
              for d in subprocess.check_output(["dpkg-deb", "-f", debs[name], field], text=True).split(",")]
    root.run("apt-get", "-qq", "install", "-y", "--no-install-recommends", "gcc", "libc6-dev", "pkg-config", "python3",
             *sorted({d for d in needed if d and d not in NAMES}), timeout=900)
    files = root.files()
    install(root, *debs.values())
    is_this_commit(root)
    for page in ("wsync.1", "wsync-mount.1", "wsync-control.7", "mount.wsync.8"):
        assert any(path.endswith(f"/{page}.gz") for path in root.files()), page
    root.run("sh", "-c", "test -x /sbin/mount.wsync && test -f /usr/lib/systemd/system/wsync-agent.service")
    assert "=/usr/bin/wsync agent" in root.sh("grep ExecStart /usr/lib/systemd/system/wsync-agent.service")

    agent, mount = try_out(root)
    has_charts(agent)
    root.put(os.path.join(ROOT, "backends/trainer/examples/offload.c"))
    root.sh("cc -o /root/offload /root/offload.c $(pkg-config --cflags --libs wsync) && ldd /root/offload | grep -q libwsync.so.0")
    assert root.run("python3", "-c", """
import wsync, importlib.metadata as m
with wsync.open("/wsync/actor/1") as weights:
    print(len(list(weights.keys())), m.version("wsync"), *sorted(e.value for e in m.distribution("wsync").entry_points))
""").split()[:2] == [str(len(MEDIUM)), script("version", "pep440").strip()]
    root.run("wsync", "umount", "/wsync")
    assert mount.wait(30) == 0
    agent.terminate()
    agent.wait(30)

    root.sh("mkdir -p /etc/wsync /var/lib/wsync; touch /etc/wsync/agent.env /var/lib/wsync/agent.state")
    root.run("apt-get", "-qq", "purge", "-y", *NAMES)
    left = sorted(path for path in root.files() - files if path != "/wsync")
    assert not left, left
    assert not os.path.exists(root.inside("run/wsync"))


@SUITES
def test_upgrade(built, suite):
    "from 0.1.0: a running agent and mount go on, are named with how to restart them, and work with this release, whose purge leaves nothing"
    debs = built(suite)
    root = Root(suite)
    install(root, *before(debs, unique("before")))
    assert "0.1.0" in root.run("wsync", "version")
    agent, mount = try_out(root)
    root.put(debs["wsync"], debs["libwsync0"])
    said = root.sh("apt-get -qq install -y --no-install-recommends /root/wsync_*.deb /root/libwsync0_*.deb 2>&1", timeout=600)
    assert re.search(r"process \d+ \(wsync agent\) goes on as the release of before; restart", said), said
    assert re.search(r"process \d+ \(wsync mount\) goes on as the release of before; restart", said), said
    is_this_commit(root)
    assert agent.poll() is None and mount.poll() is None
    publishes(root, 2)  # the new command at the old agent
    reads(root, 2)
    root.run("wsync", "umount", "/wsync")
    mount.wait(30)
    listen = address(agent)
    agent.terminate()
    agent.wait(30)
    agent = root.start("wsync", "agent", "--listen", listen, "--socket", "/run/wsync/agent.sock")
    wait_for(lambda: os.path.exists(root.inside("run/wsync", listen.split(":")[1] + ".token")), "the new agent's token", 60)
    publishes(root, 3)
    root.start("wsync", "mount", "-f", "http://" + listen, "/wsync")
    reads(root, 3)
    root.run("wsync", "umount", "/wsync")
    root.run("apt-get", "-qq", "purge", "-y", "wsync", "libwsync0")
    left = [path for path in sorted(root.files()) if "wsync" in path and path != "/wsync"]
    assert not left, left


@SUITES
def test_archives_stay(built, suite):
    "an archive in /var/lib/wsync outlives a purge, which says so"
    root = Root(suite)
    install(root, built(suite)["wsync"])
    root.sh("mkdir -p /var/lib/wsync/archive; touch /var/lib/wsync/archive/1 /var/lib/wsync/agent.state")
    said = root.sh("apt-get -qq purge -y wsync 2>&1")
    assert "/var/lib/wsync stays" in said, said
    assert root.run("find", "/var/lib/wsync", "-type", "f").split() == ["/var/lib/wsync/archive/1"]
