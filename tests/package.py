"""The Python package as a wheel would have it, put together from the build for the tests that need no pip."""
import os
import shutil

from world import BUILD, TESTDIR

ROOT = os.environ["ROOT"]


def package():
    """A folder for PYTHONPATH."""
    folder = os.path.join(TESTDIR, "package")
    native = os.path.join(folder, "wsync", "native")
    if not os.path.isdir(folder):
        shutil.copytree(os.path.join(ROOT, "backends/python/wsync"), os.path.join(folder, "wsync"),
                        ignore=shutil.ignore_patterns("native", "__pycache__"))
        os.makedirs(native)
        for path in (os.path.join(BUILD, "libwsync.so"), os.path.join(BUILD, "wsync"), os.path.join(ROOT, "backends/trainer/wsync.h")):
            shutil.copy2(path, native)
    return folder
