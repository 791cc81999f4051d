"""tests/mutate: its table fits the present code, and in a temporary tree it distinguishes changes that a test detects from others."""
import os
import subprocess
import sys

from world import *

ROOT = os.environ["ROOT"]
MAKEFILE = """\
all test-programs:
build/tests/unit/test_it: it.sh
	mkdir -p build/tests/unit
	sh -n it.sh
	cp it.sh build/tests/unit/test_it
	chmod +x build/tests/unit/test_it
"""
TABLE = """TABLE = (
    ("it.sh", "exit 0", "exit 1", "unit/test_it"),
    ("it.sh", "exit 0", "if", "unit/test_it"),
    ("it.sh", "nothing", "anything", "unit/test_it", 1),
    ("it.sh", "# nothing of", "# all of", "unit/test_it"),
)
"""


def said(tree, *arguments):
    done = subprocess.run([sys.executable, os.path.join(tree, "tests/mutate"), *arguments], capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


def temporary_tree():
    """A tree with the table above: its one test is it.sh itself."""
    tree = os.path.join(TESTDIR, unique("tree"))
    os.makedirs(os.path.join(tree, "tests/unit"))
    with open(os.path.join(ROOT, "tests/mutate")) as f:
        head, rest = f.read().split("TABLE = (\n")
    files = {"tests/mutate": head + TABLE + rest.split("\n)\n", 1)[1], "Makefile": MAKEFILE, "tests/unit/test_it.c": "",
             "it.sh": "#!/bin/sh\n# nothing of this matters: nothing\nexit 0\n",
             "tests/mutate.equivalent": "it.sh [1]: nothing -> anything\n    It is in a comment.\n"}
    for name, text in files.items():
        with open(os.path.join(tree, name), "w") as f:
            f.write(text)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    return tree


def edit(tree, name, old, new):
    path = os.path.join(tree, name)
    with open(path) as f:
        text = f.read()
    assert old in text
    with open(path, "w") as f:
        f.write(text.replace(old, new))


def test_table():
    """every text of the table is in the code, and every test that it names exists; --help prints help, and unknown options are refused"""
    code, text = said(ROOT, "--check")
    assert code == 0, text
    code, text = said(ROOT, "--help")
    assert code == 0 and "--check" in text and "killed" not in text.splitlines()[-1], text
    assert said(ROOT, "--chek")[0] == 1


def test_check():
    """a text that is no longer in the code, a missing test and an unknown equivalent are named"""
    tree = temporary_tree()
    assert said(tree, "--check") == (0, "4 entries, 0 wrong\n"), said(tree, "--check")
    edit(tree, "it.sh", "# nothing of", "# none of")
    code, text = said(tree, "--check")
    assert code == 1 and "it.sh has '# nothing of' 0 times" in text and "it.sh has 'nothing' 1 times" in text, text
    edit(tree, "it.sh", "# none of", "# nothing of nothing of")
    edit(tree, "tests/mutate.equivalent", "anything", "something")
    os.unlink(os.path.join(tree, "tests/unit/test_it.c"))
    code, text = said(tree, "--check")
    assert code == 1 and "something: the table has no such entry" in text and "there is no test unit/test_it" in text, text


def test_outcomes():
    """killed, survived, equivalent and unbuildable changes are distinguished; the tree is not modified"""
    tree = temporary_tree()
    code, text = said(tree)
    assert code == 1 and text.splitlines()[-1] == "1 killed, 1 survived, 1 do not build, 1 equivalent", text
    assert "killed: it.sh: exit 0 -> exit 1" in text and "SURVIVED: it.sh: # nothing of -> # all of" in text, text
    with open(os.path.join(tree, "it.sh")) as f:
        assert f.read().endswith("exit 0\n")
    assert not os.path.exists(os.path.join(tree, "build"))
    assert said(tree, "exit 1")[0] == 0
    edit(tree, "it.sh", "exit 0", ": exit 0; exit 2")
    code, text = said(tree, "exit 1")
    assert code == 1 and "without any change these fail: unit/test_it" in text, text
