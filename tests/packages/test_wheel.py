# timeout: 3600, takes: 600
"""The wheel in a root that has nothing but Python: installed by pip, it publishes, mounts and reads."""
import re
import sys
import zipfile

from roots import *


@pytest.fixture(scope="module")
def wheel():
    need("mmdebstrap")
    return os.path.join(ROOT, script("wheel", timeout=3000).strip().splitlines()[-1])


def test_name(wheel):
    "it says its version, that it is for any Python, and for which systems"
    assert re.fullmatch(r"wsync-" + re.escape(script("version", "pep440").strip()) + r"-py3-none-manylinux_2_\d+_\w+\.whl", os.path.basename(wheel))


def test_licences(wheel):
    "of each library inside, the licence is inside, too"
    names = zipfile.ZipFile(wheel).namelist()
    libraries = {os.path.basename(name) for name in names if name.startswith("wsync.libs/")}
    licences = [name for name in names if "/licenses/" in name]
    assert libraries and len(licences) > len(libraries) / 2, (libraries, licences)


def test_bare_root(wheel):
    root = Root("bookworm", "python3")
    assert not root.sh("ls /usr/lib/*/libmicrohttpd* /usr/lib/*/libcurl* /usr/lib/*/libzmq* 2>/dev/null || true")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download", "-d", root.file("root"), "--only-binary", ":all:"]
    if subprocess.run([*pip, "pip"], check=False).returncode or subprocess.run([*pip, "--python-version", "3.11", "cffi"], check=False).returncode:
        pytest.skip("wheel: PyPI cannot be reached")
    root.put(wheel)
    root.sh("python3 -m venv --without-pip /opt/venv; /opt/venv/bin/python $(echo /root/pip-*.whl)/pip install -q --no-index --find-links /root "
            "/root/" + os.path.basename(wheel))
    command = "/opt/venv/bin/wsync"
    is_this_commit(root, command)
    agent, mount = try_out(root, command)
    has_charts(agent)
    assert root.run("/opt/venv/bin/python", "-c", """
import wsync
with wsync.open("/wsync/actor/1") as weights:
    print(len(list(weights.keys())))
""").strip() == str(len(MEDIUM))
    root.run(command, "umount", "/wsync")
    assert mount.wait(30) == 0
    agent.terminate()
    agent.wait(30)
