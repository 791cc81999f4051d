""".ci/arrows, in temporary trees: an include that points up, or a file without a room, is refused; this tree has none."""
import os
import subprocess
import sys

from world import *

ROOT = os.environ["ROOT"]


def said(tree, *arguments):
    done = subprocess.run([sys.executable, os.path.join(tree, ".ci/arrows"), *arguments], cwd=tree, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def tree_of(**files):
    """A tree with these sources (a__b: a/b.c) and our .ci/arrows."""
    tree = os.path.join(TESTDIR, unique("tree"))
    with open(os.path.join(ROOT, ".ci/arrows")) as f:
        contents = {".ci/arrows": f.read(), **{name.replace("__", "/") + ".c": text for name, text in files.items()}}
    for name, text in contents.items():
        os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
        with open(os.path.join(tree, name), "w") as f:
            f.write(text)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "."], cwd=tree, check=True)
    return tree


def test_this_tree():
    """no include between the rooms of this tree points up"""
    code, text = said(ROOT)
    assert code == 0 and text.endswith(" 0 point up\n"), text


def test_down():
    """a room may include rooms above it in the list, and a floor's own files may include all of its rooms"""
    code, text = said(tree_of(fs__pull__one='#include "fs/store/two.c"\n', fs__session='#include "fs/pull/one.c"\n', fs__store__two=""))
    assert (code, text) == (0, "2 includes, 2 between rooms, 0 point up\n"), text


def test_up():
    """an include that points up is printed, and is an error"""
    code, text = said(tree_of(fs__store__one='#include "fs/pull/two.c"\n', fs__pull__two=""))
    assert code == 1 and text == "fs/store/one.c (fs/store) includes fs/pull/two.c (fs/pull)\n1 includes, 1 between rooms, 1 point up\n", text


def test_no_room():
    """a folder that is not in the list is an error; a folder below a listed room belongs to that room"""
    code, text = said(tree_of(fs__attic__one=""))
    assert code == 1 and "fs/attic/one.c has no room" in text, text
    code, text = said(tree_of(fs__store__below__one='#include "fs/store/two.c"\n', fs__store__two=""))
    assert (code, text) == (0, "1 includes, 0 between rooms, 0 point up\n"), text
