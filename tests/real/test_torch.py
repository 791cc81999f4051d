# timeout: 300, takes: 100
"""The Python package with a real PyTorch and vLLM: the tests of tests/python again, none skipped for the lack of them."""
import os
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from world import ROOT, unique

pytest.importorskip("torch", reason="PyTorch is not installed: make test-real fetches it")


def test_package():
    "all tests of the package pass; only a GPU and JAX may be missing"
    folder, results = unique("python"), unique("results") + ".xml"
    os.makedirs(folder)
    done = subprocess.run([sys.executable, "-m", "pytest", "-v", f"--junitxml={results}", os.path.join(ROOT, "tests/python")], timeout=280,
                          env=dict(os.environ, TESTDIR=folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    cases = list(xml.etree.ElementTree.parse(results).iter("testcase"))
    skipped = {case.get("name"): case.find("skipped").get("message") for case in cases if case.find("skipped") is not None}
    print(f"# {len(cases) - len(skipped)} tests passed, skipped: {skipped}", flush=True)
    assert len(cases) > 50 and all("jax" in why.lower() or "no GPU" in why for why in skipped.values()), skipped
