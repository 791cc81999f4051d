#!/usr/bin/env python3
# timeout: 600
"""A real SGLang on a mount, switched by wsync. Its reload is what the reference engine plays in the other tests."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from scenarios import scenarios
from servers import SGLang
from world import run

with contextlib.ExitStack() as stack:
    world, tests = scenarios(stack, SGLang)
    run(*tests)
