"""What .ci/abi, which compares libwsync with the last release's, takes for compatible and what not: small libraries with wsync.h's ways."""
from roots import *

HEADER = """typedef struct wsync_config {{ unsigned long struct_size; {fields} }} wsync_config;
int wsync_open(const wsync_config *config, {argument});
{more}"""
SOURCE = """#include "backends/trainer/wsync.h"
int wsync_open(const wsync_config *config, {argument}) {{ return config->struct_size > 8 && (long)x; }}
{definition}"""
BEFORE = {"fields": "int a; int b;", "argument": "void *x", "more": "int wsync_more(void);", "definition": "int wsync_more(void) { return 1; }"}


def tree(**changed):
    """A folder with a library and its header, as .ci/abi finds them."""
    folder, parts = unique("abi"), {**BEFORE, **changed}
    os.makedirs(folder + "/backends/trainer")
    os.makedirs(folder + "/build")
    for path, text in (("backends/trainer/wsync.h", HEADER), ("lib.c", SOURCE)):
        with open(os.path.join(folder, path), "w") as f:
            f.write(text.format(**parts))
    subprocess.run(["cc", "-g", "-shared", "-fPIC", "-Wl,-soname,libwsync.so.0", f"-I{folder}", "-o", folder + "/build/libwsync.so", folder + "/lib.c"],
                   check=True)
    return folder


def compared(old, new):
    """The status of the comparison, and what it said."""
    r = subprocess.run([ROOT + "/.ci/abi", old, new], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    if r.returncode == UNREACHABLE:
        pytest.skip(r.stdout.strip())
    return r.returncode, r.stdout


@pytest.mark.parametrize("changed", [{}, {"fields": "int a; int b; int c; void *d;"},
                                     {"more": "int wsync_more(void); int wsync_new(void);",
                                      "definition": "int wsync_more(void) { return 1; } int wsync_new(void) { return 2; }"}],
                         ids=["the same", "a struct that grew at its end", "a new function"])
def test_compatible(changed):
    status, said = compared(tree(), tree(**changed))
    assert status == 0 and "run with this libwsync" in said, said


@pytest.mark.parametrize("changed", [{"fields": "int c; int a; int b;"}, {"fields": "long a; int b;"}, {"argument": "short x"},
                                     {"more": "", "definition": ""}],
                         ids=["a field before others", "a field of another size", "another argument", "a function that is gone"])
def test_incompatible(changed):
    status, said = compared(tree(), tree(**changed))
    assert status == 1 and "is not compatible" in said, said


@pytest.mark.parametrize("older", ["v0.1.0", "v0.2.0-dev.586"])
def test_older(older):
    "this libwsync runs what was built with the last release, and with the last state that others may run"
    status, said = compared("build/compat/" + older, ".")
    assert status == 0, said
