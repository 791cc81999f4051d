"""The source release, and the versions that packages get from tags and commits."""
import re

from roots import *


def git(folder, *args):
    return subprocess.check_output(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *args], text=True).strip()


def version(folder, *args, check=True):
    r = subprocess.run([folder + "/mount-helpers/package/version", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert r.returncode == 0 or not check, r.stderr
    return r.stdout.strip() if check else r


@pytest.fixture
def history():
    """A repository with a Makefile of 1.2.0, the scripts, and one commit."""
    folder = unique("history")
    os.makedirs(folder + "/mount-helpers")
    shutil.copytree(PACKAGE, folder + "/mount-helpers/package")
    with open(folder + "/Makefile", "w") as f:
        f.write("VERSION := 1.2.0\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "1")
    return folder


def test_between_releases(history):
    "a commit without a tag is a pre-release, numbered by the commits since the last tag, and sorts before its release"
    assert version(history) == "1.2.0-dev.1"
    git(history, "tag", "v1.1.0")
    for n in ("2", "3"):
        git(history, "commit", "-qm", n, "--allow-empty")
    assert version(history) == "1.2.0-dev.2"
    assert version(history, "deb") == "1.2.0~dev2"
    assert version(history, "pep440") == "1.2.0.dev2"
    assert git(history, "rev-parse", "HEAD").startswith(version(history, "commit"))
    if shutil.which("dpkg"):
        subprocess.run(["dpkg", "--compare-versions", "1.2.0~dev2", "lt", "1.2.0"], check=True)


def test_release(history):
    "a commit with a tag is that release; a tag that is not the Makefile's version is refused"
    git(history, "tag", "v1.2.0")
    assert [version(history, form) for form in ("semver", "deb", "pep440")] == ["1.2.0"] * 3
    git(history, "tag", "-d", "v1.2.0")
    git(history, "tag", "v1.3.0")
    refused = version(history, check=False)
    assert refused.returncode == 1 and "set VERSION in the commit that gets the tag" in refused.stderr, refused.stderr


def test_same_bytes(history):
    "a source release has what was committed, says its version, and packs the same bytes again, as does another clone"
    with open(history + "/not-committed", "w") as f:
        f.write("x")
    dist = [history + "/mount-helpers/package/dist"]
    path = os.path.join(history, subprocess.check_output(dist, text=True).strip())
    assert os.path.basename(path) == "wsync-1.2.0-dev.1.tar.gz"
    clone = unique("clone")
    subprocess.run(["git", "clone", "-q", history, clone], check=True)
    other = os.path.join(clone, subprocess.check_output([clone + "/mount-helpers/package/dist"], text=True).strip())
    unpacked = unique("unpacked")
    os.makedirs(unpacked)
    subprocess.run(["tar", "-xzf", path, "-C", unpacked, "--strip-components=1"], check=True)
    assert not os.path.exists(unpacked + "/not-committed")
    assert version(unpacked) == "1.2.0-dev.1" and version(unpacked, "commit") == version(history, "commit")
    again = os.path.join(unpacked, subprocess.check_output([unpacked + "/mount-helpers/package/dist"], text=True).strip())
    contents = []
    for archive in (path, other, again):
        with open(archive, "rb") as f:
            contents.append(f.read())
    assert contents[0] == contents[1] == contents[2]


def test_this_tree():
    "the Makefile's version is in the changelog and in wsync.h"
    with open(ROOT + "/Makefile") as f:
        release = re.search(r"^VERSION := (\S+)$", f.read(), re.M)[1]
    with open(ROOT + "/mount-helpers/CHANGELOG.md") as f:
        assert re.search(r"^## (\S+)", f.read(), re.M)[1] == release
    with open(ROOT + "/backends/trainer/wsync.h") as f:
        numbers = re.findall(r"^#define WSYNC_VERSION_(?:MAJOR|MINOR)\s+(\d+)", f.read(), re.M)
    assert release.startswith(".".join(numbers) + ".")
