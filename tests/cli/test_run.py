#!/usr/bin/env python3
"""tests/run itself: what ends early, says too little, skips or fails once is seen. It runs a tree of its own, of scripts made here."""
import glob
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from world import *

ROOT = os.environ["ROOT"]


def outcome(test, script, ci=False):
    """Runs one script under a copy of tests/run; returns its exit status and output."""
    tree = os.path.join(TESTDIR, unique("tree"))
    os.makedirs(os.path.join(tree, "tests/mount"))
    for name in ("tests/run", "tests/skips", ".ci/python"):
        os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), os.path.join(tree, name))
    with open(os.path.join(tree, "Makefile"), "w") as f:
        f.write("all test-programs:\n")
    path = os.path.join(tree, "tests/mount/test_it.sh")
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + script)
    os.chmod(path, 0o755)
    env = {k: v for k, v in os.environ.items() if k != "CI"}
    env.update({"CI": "1"} if ci else {}, STATE=os.path.join(tree, "ran"))
    env.pop("TESTDIR")  # the processes of that test are not this one's
    done = subprocess.run([os.path.join(tree, "tests/run"), "test_it"], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def counts(status, text, passed, failed, skipped):
    assert text.splitlines()[-1] == f"{passed} passed, {failed} failed, {skipped} skipped", text
    assert status == (1 if failed else 0), (status, text)


def test_help(stack):
    "--help says what names there are, and runs nothing"
    done = subprocess.run([os.path.join(ROOT, "tests/run"), "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "tests/run [NAME...]" in done.stdout and "-- build" not in done.stdout, done


def test_plan(stack):
    """a program that ends after its first result, and one without a plan, have failed"""
    counts(*outcome("good", "echo 1..2; echo ok - a; echo ok - b\n"), 2, 0, 0)
    counts(*outcome("short", "echo 1..2; echo ok - a\n"), 1, 1, 0)
    counts(*outcome("none", "echo ok - a\n"), 1, 1, 0)
    counts(*outcome("nothing", "true\n"), 0, 1, 0)
    counts(*outcome("empty", "echo 1..0\n"), 0, 1, 0)
    counts(*outcome("status", "echo 1..1; echo ok - a; exit 3\n"), 1, 1, 0)


def test_skips(stack):
    """in CI a skip that is not allowed is a failure"""
    lacking = "echo 1..1; echo 'ok - a # SKIP the package is not here'\n"
    counts(*outcome("here", lacking), 0, 0, 1)
    counts(*outcome("ci", lacking, ci=True), 0, 1, 0)
    counts(*outcome("all", "echo '1..0 # SKIP nothing is here'\n", ci=True), 0, 1, 0)
    counts(*outcome("gpu", "echo 1..1; echo 'ok - a # SKIP no GPU on this machine'\n", ci=True), 0, 0, 1)


def test_unsteady(stack):
    """in CI what failed is run once more and named if it passes then; elsewhere it has failed"""
    once = 'echo 1..1; if [ -e "$STATE" ]; then echo ok - a; else touch "$STATE"; echo not ok - a; exit 1; fi\n'
    counts(*outcome("plain", once), 0, 1, 0)
    status, text = outcome("ci", once, ci=True)
    counts(status, text, 1, 0, 0)
    assert "UNSTEADY mount/test_it.sh" in text.replace("tests/mount", "mount"), text
    counts(*outcome("twice", "echo 1..1; echo not ok - a; exit 1\n", ci=True), 0, 1, 0)


def test_killed(stack):
    """a C test's folders are in the test's own: nothing stays where it is killed"""
    for name, folder in (("publisher", "wsync-pub.*"), ("gpu_offload", "wsync-gpu.*")):
        own = os.path.join(TESTDIR, unique("own"))
        os.makedirs(own)
        process = subprocess.Popen([os.path.join(BUILD, "tests/unit/test_" + name)], env=os.environ | {"TESTDIR": own},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            wait_for(lambda: glob.glob(f"{own}/{folder}") or process.poll() is not None, f"a folder of test_{name}")
            assert process.poll() is None, f"test_{name} ended without a folder in {own}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with its children
            process.wait()


run(test_help, test_plan, test_skips, test_unsteady, test_killed)
