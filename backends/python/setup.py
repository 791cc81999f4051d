"""The wheel carries libwsync, its header and the wsync command, built by the Makefile two folders up: it is for
the machines' own Linux and has the same version. Everything else is in pyproject.toml."""
import os
import re
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NATIVE = ["build/libwsync.so", "build/wsync", "backends/trainer/wsync.h"]


def version():
    with open(os.path.join(ROOT, "Makefile")) as f:
        return re.search(r"^VERSION := (\S+)$", f.read(), re.M).group(1)


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        made = subprocess.run(["make", "-s", "-C", ROOT, *NATIVE[:2]], check=False)
        if made.returncode:
            raise SystemExit(f"wsync: building libwsync failed; as root or with sudo, `make -C {ROOT} deps` installs what it needs")
        native = os.path.join(self.build_lib, "wsync", "native")
        os.makedirs(native, exist_ok=True)
        for path in NATIVE:
            shutil.copy2(os.path.join(ROOT, path), native)


class Binary(Distribution):
    """Not for every platform, but for any Python."""

    def has_ext_modules(self):
        return True


try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70
    from wheel.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(version=version(), distclass=Binary, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": Wheel})
