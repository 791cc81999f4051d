# beside others
# timeout: 240
"""The Python package of one release with the agents, mounts and library of another."""
import re

import pytest

from releases import *

try:
    import cffi  # noqa: F401
    import numpy as np
except ImportError as e:
    pytest.skip(f"{e.name} is not installed, as PyPI could not be reached", allow_module_level=True)

from package import package

TRAINER = """
import sys
import numpy as np
import wsync
source = {"w": np.arange(70000, dtype=np.float32).reshape(700, 100)}
publisher = wsync.Publisher("actor", source, agent=sys.argv[1], start_agent=False, timeout=60)
for version in (1, 2, 3):
    source["w"][version] += 1
    publisher.offload(version)
publisher.close()
"""
READER = """
import sys
import wsync
weights = wsync.open(sys.argv[1], framework="numpy")
sys.stdout.buffer.write(weights["w"].tobytes())
"""


def python(release, program, *args, library=None):
    """Runs the program with the release's package, and with another release's library if given."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WSYNC")} | {"PYTHONPATH": package(os.path.dirname(release.build), release.build)}
    if library:
        env["WSYNC_LIBRARY"] = f"{library.build}/libwsync.so"
    return subprocess.run([sys.executable, "-c", program, *args], env=env, capture_output=True, timeout=90, check=False)


def published(agents, mounts, trainer):
    """Runs a trainer that publishes to the agent; a mount then shows what it offloaded."""
    agent = agents.Agent()
    done = trainer(f"unix:{agent.sock}")
    assert done.returncode == 0, done.stderr.decode()
    mount = mounts.Mount(agent.url)
    mount.wait_version("actor", 3)
    want = np.arange(70000, dtype=np.float32).reshape(700, 100)
    want[1:4] += 1
    assert tensors_of(mount.file("actor/3/model.safetensors")) == {"w": ("F32", [700, 100], want.tobytes())}
    return mount, want


@pairs
def test_publisher(packages, agents):
    "a trainer publishes to an agent, and reads a mount"
    mount, want = published(agents, agents, lambda agent: python(packages, TRAINER, agent))
    done = python(packages, READER, mount.file("actor/3"))
    assert done.stdout == want.tobytes(), done.stderr.decode()


@pairs_of(BEFORE)
def test_library(packages, libraries):
    "a package works with another library that has all that it calls"
    published(NEW, NEW, lambda agent: python(packages, TRAINER, agent, library=libraries))


@olds_of(FIRST)
def test_newer_library(old):
    "an older package works with this release's library"
    published(NEW, NEW, lambda agent: python(old, TRAINER, agent, library=NEW))


@olds_of(FIRST)
def test_older_library(old):
    "this release's package refuses an older library, and names both"
    done = python(NEW, "import wsync", library=old)
    said = done.stderr.decode()
    assert done.returncode and f"{old.build}/libwsync.so is libwsync {old.name} and has no " in said, said
    assert re.search(r"this package's wsync\.h \(\d+\.\d+\) declares", said) and "Install both from one checkout" in said, said
