"""The wheel carries libwsync, its header and the wsync command, built by the Makefile two folders up: it is for
the machines' own Linux and has the same version. Everything else is in pyproject.toml."""
import os
import shutil
import subprocess

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NATIVE = ["build/libwsync.so", "build/wsync", "backends/trainer/wsync.h"]
SCRATCH = os.path.join(ROOT, "build", "python")  # what setuptools writes while it works; not beside the sources


def version():
    return subprocess.check_output([os.path.join(ROOT, "mount-helpers/package/version"), "pep440"], text=True).strip()


def make():
    """Builds what the wheel carries, without the options of a make or a sanitizer that called pip."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS")}
    try:
        made = subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "-C", ROOT, "SAN=", *NATIVE[:2]], env=env, check=False).returncode
    except FileNotFoundError:
        made = "there is no make"
    if made:
        raise SystemExit(f"wsync: building libwsync failed (see above; {made}). What it needs are Debian packages: as root or with "
                         f"sudo, {ROOT}/.ci/deps build installs them")


class BuildWithLibrary(build_py):
    def run(self):
        package = os.path.join(self.build_lib, "wsync")
        shutil.rmtree(package, ignore_errors=True)  # modules that are no more
        make()
        super().run()
        os.makedirs(os.path.join(package, "native"), exist_ok=True)
        for path in NATIVE:
            shutil.copy2(os.path.join(ROOT, path), os.path.join(package, "native"))


class Binary(Distribution):
    """Not for every platform, but for any Python."""

    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]

    def run(self):
        shutil.rmtree(self.bdist_dir, ignore_errors=True)  # of a build that was killed
        super().run()


os.makedirs(SCRATCH, exist_ok=True)
setup(version=version(), distclass=Binary, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": Wheel},
      options={"build": {"build_base": SCRATCH}, "egg_info": {"egg_base": SCRATCH}})
