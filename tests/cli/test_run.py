# timeout: 300, takes: 20
"""tests/run itself, on a tree of generated tests: it notices tests that end early, print too little, skip, or fail once."""
import glob
import os
import shutil
import signal
import subprocess

from world import *

ROOT = os.environ["ROOT"]


def planted():
    """A tree with tests/run and no test."""
    tree = os.path.join(TESTDIR, unique("tree"))
    for folder in ("unit", "mount"):
        os.makedirs(os.path.join(tree, "tests", folder))
    for name in ("tests/run", "tests/skips", ".ci/python"):
        os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, name), os.path.join(tree, name))
    with open(os.path.join(tree, "Makefile"), "w") as f:
        f.write("all test-programs:\n")
    if os.path.isdir(os.path.join(ROOT, "build/venv")):
        os.makedirs(os.path.join(tree, "build"), exist_ok=True)
        os.symlink(os.path.join(ROOT, "build/venv"), os.path.join(tree, "build/venv"))
    return tree


def run(tree, *names, ci=False, **more):
    """The exit status and output of its tests/run."""
    env = {k: v for k, v in os.environ.items() if k not in ("CI", "SHARE", "UNTIL")}
    env.update({"CI": "1"} if ci else {}, STATE=os.path.join(tree, "ran"), **more)
    env.pop("TESTDIR")  # that test's processes are not this test's
    done = subprocess.run([os.path.join(tree, "tests/run"), *names], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def outcome(kind, script, ci=False):
    """Runs one test, a program or a pytest file, under a copy of tests/run; returns its exit status and output."""
    tree = planted()
    with open(os.path.join(tree, "tests/unit/test_it.c" if kind == "program" else "tests/mount/test_it.py"), "w") as f:
        f.write("" if kind == "program" else script)
    if kind == "program":
        built = os.path.join(tree, "build/tests/unit/test_it")
        os.makedirs(os.path.dirname(built))
        with open(built, "w") as f:
            f.write("#!/bin/sh\n" + script)
        os.chmod(built, 0o755)
    return run(tree, "test_it", ci=ci)


def counts(status, text, passed, failed, skipped):
    assert text.splitlines()[-1] == f"{passed} passed, {failed} failed, {skipped} skipped", text
    assert status == (1 if failed else 0), (status, text)


def test_until_that_is_no_number():
    "UNTIL that is no number is refused in a sentence, by tests/run and at the begin of .ci/run"
    for command, status in (("tests/run", 1), (".ci/run", 2)):
        for until in ("tomorrow", "nan", "12:00"):
            done = subprocess.run([os.path.join(ROOT, command), "nothing"], env=dict(os.environ, UNTIL=until), capture_output=True, text=True,
                                  timeout=60, check=False)
            assert done.returncode == status and done.stderr.startswith(f"{command}: UNTIL={until} is no number"), done
            assert len(done.stderr.splitlines()) == 1 and not done.stdout, done


def test_help():
    "--help lists the names, and runs nothing"
    done = subprocess.run([os.path.join(ROOT, "tests/run"), "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "tests/run [NAME...]" in done.stdout and "-- build" not in done.stdout, done


def test_plan():
    """a program that ends after its first result, or prints no plan, has failed"""
    counts(*outcome("program", "echo 1..2; echo ok - a; echo ok - b\n"), 2, 0, 0)
    counts(*outcome("program", "echo 1..2; echo ok - a\n"), 1, 1, 0)
    counts(*outcome("program", "echo ok - a\n"), 1, 1, 0)
    counts(*outcome("program", "true\n"), 0, 1, 0)
    counts(*outcome("program", "echo 1..0\n"), 0, 1, 0)
    counts(*outcome("program", "echo 1..1; echo ok - a; exit 3\n"), 1, 1, 0)
    counts(*outcome("program", "echo 1..1; echo ok - a; exit 5\n"), 1, 1, 0)  # pytest's exit status if all tests are skipped


def test_skips():
    """in CI a skip that is not allowed is a failure"""
    lacking = "echo 1..1; echo 'ok - a # SKIP the package is not here'\n"
    counts(*outcome("program", lacking), 0, 0, 1)
    counts(*outcome("program", lacking, ci=True), 0, 1, 0)
    counts(*outcome("program", "echo '1..0 # SKIP nothing is here'\n", ci=True), 0, 1, 0)
    once = 'if [ -e "$STATE" ]; then echo 1..1; echo ok - a; else touch "$STATE"; echo "1..0 # SKIP nothing is here"; fi\n'
    counts(*outcome("program", once, ci=True), 1, 0, 0)
    counts(*outcome("program", "echo 1..1; echo 'ok - a # SKIP no GPU on this machine'\n", ci=True), 0, 0, 1)


def test_unsteady():
    """in CI a failed test is run once more and listed if it passes then; elsewhere it has failed"""
    once = 'echo 1..1; if [ -e "$STATE" ]; then echo ok - a; else touch "$STATE"; echo not ok - a; exit 1; fi\n'
    counts(*outcome("program", once), 0, 1, 0)
    status, text = outcome("program", once, ci=True)
    counts(status, text, 1, 0, 0)
    assert "UNSTEADY unit/test_it" in text.replace("tests/unit", "unit"), text
    counts(*outcome("program", "echo 1..1; echo not ok - a; exit 1\n", ci=True), 0, 1, 0)


def test_pytest():
    """each result of a pytest file counts; a file that ends midway, has no test or cannot be imported has failed"""
    counts(*outcome("pytest", "def test_a(): pass\ndef test_b(): pass\n"), 2, 0, 0)
    status, text = outcome("pytest", "import pytest\ndef test_a(): assert 1 == 2\ndef test_b(): pytest.skip('no GPU')\n")
    counts(status, text, 0, 1, 1)
    assert "FAILED tests/mount/test_it.py: test_a: assert 1 == 2" in text and "skipped tests/mount/test_it.py: test_b: no GPU" in text, text
    counts(*outcome("pytest", "import pytest\n@pytest.fixture\ndef x():\n    yield\n    1 / 0\ndef test_a(x): pass\n"), 0, 1, 0)
    counts(*outcome("pytest", "import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\n"), 0, 1, 0)
    counts(*outcome("pytest", "import nothing_of_this_name\n"), 0, 1, 0)
    counts(*outcome("pytest", "x = 1\n"), 0, 1, 0)
    counts(*outcome("pytest", "import pytest\npytest.skip('no GPU', allow_module_level=True)\n", ci=True), 0, 0, 1)


def test_shares():
    """with a sanitizer each share runs other pytest files, and those of every share; without one all run"""
    tree = planted()
    for name in "abcd":
        with open(os.path.join(tree, f"tests/mount/test_{name}.py"), "w") as f:
            f.write(f"# sanitizers: address\n{'# in every share' if name == 'd' else ''}\ndef test_it(): pass\n")
    ran = []
    for k in (1, 2, 3):
        status, text = run(tree, "address", SHARE=f"{k}/3")
        counts(status, text, 2, 0, 0)
        ran += [line.split(":")[0] for line in text.splitlines() if "[address]: 1 in " in line]
        assert "left to the other shares" in text, text
    assert sorted(ran) == sorted([f"tests/mount/test_{name}.py [address]" for name in "abcddd"]), ran
    counts(*run(tree, SHARE="1/3"), 4, 0, 0)
    counts(*run(tree, "address", "test_b", SHARE="1/3"), 1, 0, 0)
    assert run(tree, SHARE="4/3")[0] == 1
    status, text = run(tree, UNTIL="1")
    assert status == 0 and text.splitlines()[-1] == "0 passed, 0 failed, 0 skipped, 4 left out" and "want of time: tests/mount/test_a.py, " in text, text


def test_killed():
    """a C test's folders are inside the test's own folder, so nothing stays if it is killed"""
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
