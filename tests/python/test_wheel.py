"""The wheel that all tests of this folder run on."""
from pathlib import Path

import pytest

import installed_wheel
import package
import world

if installed_wheel.LACKING:
    pytest.skip(f"not installed, as PyPI could not be reached: {', '.join(installed_wheel.LACKING)}", allow_module_level=True)


def test_installed():
    "it is built and installed"
    assert installed_wheel.PIP.returncode == 0, installed_wheel.PIP.stdout


def test_source_tree():
    "nothing is left in the source tree"
    assert installed_wheel.AFTER == installed_wheel.BEFORE


def test_after_one_that_was_killed(tmp_path):
    "what a build that was killed has left keeps none from being built"
    info = next(Path(world.TESTDIR, "installed").glob("*.dist-info")).name
    for scratch in Path(world.ROOT, "build/python").glob("bdist.*"):
        (scratch / "wheel" / info).mkdir(parents=True, exist_ok=True)
    done = package.install(str(tmp_path / "again"))
    assert done.returncode == 0, done.stdout
