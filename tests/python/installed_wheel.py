"""Builds a wheel of backends/python and installs it into a folder of the tests. conftest.py imports this module before the tests that
import the package."""
import importlib.machinery
import os
import subprocess
import sys

import package
import world

NEEDED = ("pip", "setuptools", "cffi", "numpy", "ml_dtypes", "safetensors")
# By the path alone: whoever asks setuptools' own finder for pip turns off what `import setuptools` needs later, as vLLM does.
LACKING = [m for m in NEEDED if importlib.machinery.PathFinder.find_spec(m) is None]


def source_tree():
    """git's status of the package's folder."""
    if not os.path.isdir(os.path.join(world.ROOT, ".git")):
        return ""
    return subprocess.run(["git", "-C", world.ROOT, "status", "--short", "--ignored", "backends"], stdout=subprocess.PIPE, text=True, check=True).stdout


def install(target):
    done = package.install(target)
    sys.path.insert(0, target)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (target, os.environ.get("PYTHONPATH"))))
    return done


if not LACKING:
    BEFORE = source_tree()
    PIP = install(os.path.join(world.TESTDIR, "installed"))
    AFTER = source_tree()
