# timeout: 240
"""The names that tests import from each other exist; also checks tests whose packages are not installed."""
import ast
import glob
import os

from world import *

TESTS = os.path.join(os.environ["ROOT"], "tests")


def file_of(module, importer):
    """The file of the test module of that name: in the importer's folder, above it, or in another test folder; None if there is none."""
    folders = (os.path.dirname(importer), TESTS, *glob.glob(TESTS + "/*/"))
    paths = [os.path.join(folder, module.replace(".", "/") + ".py") for folder in folders]
    return next(filter(os.path.exists, paths), None)


def tree_of(path):
    with open(path) as f:
        return ast.parse(f.read(), path)


def names_of(path):
    """The names that a module defines or imports at its top level."""
    found = set()
    todo = list(tree_of(path).body)
    for node in todo:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                theirs = file_of(node.module, path) if alias.name == "*" else None
                found |= names_of(theirs) if theirs else {alias.asname or alias.name.split(".")[0]}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            todo += ast.iter_child_nodes(node)
    return found


def missing(path):
    """(line, module, name) of imports from test modules that lack the name."""
    for node in ast.walk(tree_of(path)):
        module = isinstance(node, ast.ImportFrom) and node.level == 0 and file_of(node.module, path)
        if module:
            yield from ((node.lineno, node.module, a.name) for a in node.names if a.name != "*" and a.name not in names_of(module))


def test_imports():
    "every name that a test imports from another test module exists"
    paths = glob.glob(TESTS + "/**/*.py", recursive=True)
    found = [f"{os.path.relpath(path, TESTS)}:{line}: {module} has no {name}" for path in paths for line, module, name in missing(path)]
    assert paths and not found, "\n".join(found)
