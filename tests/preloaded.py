"""Processes whose calls of the C library fail, or take long, just where a test wants it."""
from world import *


def preloaded(kind, code, **env):
    "that kind of process with a library of this C code loaded before the others, and these variables in its environment"
    if SANITIZER:
        pytest.skip("a library cannot be loaded before the sanitizer's: not under a sanitizer")
    source, library = (unique("preloaded") + end for end in (".c", ".so"))
    with open(source, "w") as f:
        f.write(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return type("Preloaded", (kind,), {"prefix": ("env", f"LD_PRELOAD={library}", *(f"{name}={value}" for name, value in env.items()))})
