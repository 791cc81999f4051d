"""The Python package: as a wheel contains it, copied from the build for tests that must not need pip; and as pip installs it."""
import fcntl
import os
import shutil
import subprocess
import sys

from world import BUILD, TESTDIR

ROOT = os.environ["ROOT"]


def package(root=ROOT, build=BUILD):
    """A folder for PYTHONPATH: of this tree, or of another tree and its build."""
    folder = os.path.join(TESTDIR, "package-" + os.path.basename(root))
    native = os.path.join(folder, "wsync", "native")
    if not os.path.isdir(folder):
        shutil.copytree(os.path.join(root, "backends/python/wsync"), os.path.join(folder, "wsync"),
                        ignore=shutil.ignore_patterns("native", "__pycache__"))
        os.makedirs(native)
        for path in (os.path.join(build, "libwsync.so"), os.path.join(build, "wsync"), os.path.join(root, "backends/trainer/wsync.h")):
            shutil.copy2(path, native)
    return folder


def install(target):
    """By pip into a folder for PYTHONPATH, with entry points; returns pip's end. One at a time: setuptools builds all of them in one folder."""
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    with open(os.path.join(ROOT, "build/python.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
                               "--no-index", "--target", target, os.path.join(ROOT, "backends/python")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
