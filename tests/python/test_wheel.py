"""The wheel that all tests of this folder run on."""
import pytest

import installed_wheel

if installed_wheel.LACKING:
    pytest.skip(f"not installed, as PyPI could not be reached: {', '.join(installed_wheel.LACKING)}", allow_module_level=True)


def test_installed():
    "it is built and installed"
    assert installed_wheel.PIP.returncode == 0, installed_wheel.PIP.stdout


def test_source_tree():
    "nothing is left in the source tree"
    assert installed_wheel.AFTER == installed_wheel.BEFORE
