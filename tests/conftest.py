"""Fixtures of all Python tests: what a test starts ends with it, even if it fails; what a module's fixture starts ends with the
module's last test."""
import pytest

from world import Scope


@pytest.fixture(autouse=True, scope="module")
def module_scope():
    yield from opened()


@pytest.fixture(autouse=True)
def scope(module_scope):
    yield from opened()


def opened():
    with Scope() as one:
        Scope.of_tests.append(one)
        try:
            yield one
        finally:
            Scope.of_tests.remove(one)
