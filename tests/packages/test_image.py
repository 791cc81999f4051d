# timeout: 3600, takes: 600
"""The OCI image, unpacked as a runtime does: agent, mount and reference engine run in it, and it has what the manifests of Kubernetes call."""
from roots import *


@pytest.fixture(scope="module")
def layout():
    need("mmdebstrap", "umoci")
    path = script("image", timeout=3000).strip().splitlines()[-1].split(":")[0]
    folder = unique("layout")
    os.makedirs(folder)
    subprocess.run(["tar", "-xf", os.path.join(ROOT, path), "-C", folder], check=True)
    return f"{folder}:{script('version').strip()}"


@pytest.fixture
def root(layout):
    bundle = unique("bundle")
    subprocess.run(["umoci", "unpack", "--image", layout, bundle], check=True)
    with open(bundle + "/config.json") as f:
        process = json.load(f)["process"]
    assert process["args"][0] == "wsync"
    return Root(path=bundle + "/rootfs")


def test_use(root):
    is_this_commit(root)
    agent, mount = try_out(root)
    has_charts(agent)
    port = free_port()
    engine = root.start("wsync", "engine", "--listen", f"127.0.0.1:{port}", "--model-path", "/wsync/actor/1")

    def healthy():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as r:
                return r.status == 200
        except OSError:
            return False

    wait_for(healthy, "the engine in the image", 60)
    engine.terminate()
    engine.wait(30)
    root.run("wsync", "umount", "/wsync")
    assert mount.wait(30) == 0
    agent.terminate()
    agent.wait(30)


def test_contents(root):
    "the shell of the manifests, certificates of authorities, licences; no package manager"
    root.run("sh", "-c", "mkdir -p /tmp/a && kill -0 1")
    with open(root.file("etc/ssl/certs/ca-certificates.crt")) as f:
        assert f.read().count("BEGIN CERTIFICATE") > 50
    assert os.path.exists(root.file("usr/share/doc/wsync/copyright"))
    assert not [name for name in ("apt-get", "dpkg", "rpm", "perl") if shutil.which(name, path=root.file("usr/bin"))]
