#!/usr/bin/env python3
# timeout: 180
"""The Python package: a wheel of backends/python is built and installed into a folder of the test's, and tests/python runs on it."""
import importlib.util
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
ROOT, TESTDIR = os.environ["ROOT"], os.environ["TESTDIR"]
NEEDED = ("pip", "setuptools", "pytest", "cffi", "numpy", "ml_dtypes", "safetensors")
missing = [m for m in NEEDED if importlib.util.find_spec(m) is None]
if missing:
    print(f"1..0 # SKIP not installed, as PyPI could not be reached: {', '.join(missing)}")
    sys.exit(0)

target = os.path.join(TESTDIR, "installed")


def git_status():
    if not os.path.isdir(os.path.join(ROOT, ".git")):
        return ""
    return subprocess.run(["git", "-C", ROOT, "status", "--short", "--ignored", "backends"], stdout=subprocess.PIPE, text=True, check=True).stdout


before = git_status()
pip = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
                      "--no-index", "--target", target, os.path.join(ROOT, "backends/python")], timeout=120, check=False)
print(f"{'not ok' if pip.returncode else 'ok'} - the wheel is built and installed")
left = git_status()
print(f"{'ok' if left == before else 'not ok'} - nothing is left in the source tree {left if left != before else ''}")
if pip.returncode:
    print("1..2")
    sys.exit(1)

import pytest  # noqa: E402


class Tap:
    """A line for each test, by its docstring; those of failures come with their text."""

    def __init__(self):
        self.names, self.lines = {}, []

    def pytest_itemcollected(self, item):
        own = item.name[item.name.find("["):] if "[" in item.name else ""
        self.names[item.nodeid] = ((item.function.__doc__ or item.name).strip() + " " + own).strip()

    def pytest_runtest_logreport(self, report):
        name = self.names[report.nodeid]
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.lines.append(f"ok - {name} # SKIP {why.removeprefix('Skipped: ')}")
        elif report.failed:
            self.lines.append(f"not ok - {name} ({report.when})")
        elif report.when == "call":
            self.lines.append(f"ok - {name}")


sys.path.insert(0, target)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (target, os.environ.get("PYTHONPATH"))))
tap = Tap()
rc = pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", "--durations=3", f"--basetemp={TESTDIR}/pytest",
                  os.path.join(ROOT, "tests/python")], plugins=[tap])
print("\n".join(tap.lines))
print(f"1..{2 + len(tap.lines)}")
sys.exit(int(rc))
