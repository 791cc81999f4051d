"""The Python package as a wheel contains it, copied from the build for tests that must not need pip."""
import os
import shutil

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
