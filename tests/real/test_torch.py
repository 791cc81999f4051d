#!/usr/bin/env python3
# timeout: 300
"""The Python package with a real PyTorch and vLLM: the tests of tests/cli/test_python.py again, none of them skipped for want of those."""
import importlib.util
import os
import sys

if importlib.util.find_spec("torch") is None:
    print("1..0 # SKIP PyTorch is not installed: make test-real fetches it")
    sys.exit(0)
script = os.path.join(os.environ["ROOT"], "tests/cli/test_python.py")
os.execv(sys.executable, [sys.executable, script])
