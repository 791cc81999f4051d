# sanitizers: address
"""The example in C as a trainer: several ranks of it publish, and the mount shows their tensors. The header also compiles as C++."""
import os
import struct
import subprocess

from world import BUILD, SLOW, Agent, Mount, need_fuse, tensors_of

ROOT = os.environ["ROOT"]


def bfloat16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


def test_ranks():
    "1, 2, 3 and 7 ranks of the example in C publish shards of rows and columns as bfloat16"
    need_fuse()
    agent = Agent()
    mount = Mount(agent.url)
    for world in (1, 2, 3, 7):
        model = f"example{world}"
        command = [os.path.join(BUILD, "backends/trainer/examples/offload"), f"unix:{agent.sock}", model]
        ranks = [subprocess.Popen([*command, str(r), str(world)], stdin=subprocess.DEVNULL) for r in range(world)]
        assert [r.wait(60 * SLOW) for r in ranks] == [0] * world
        mount.wait_version(model, 3)
        want = struct.pack("<30H", *(bfloat16(3 + i / 8) for i in range(30)))
        got = tensors_of(mount.file(model, 3, "model.safetensors"))
        assert got == {f"model.{name}.weight": ("BF16", [5, 6], want) for name in ("by_rows", "by_columns", "everywhere")}, got


def test_cxx():
    "the header compiles as C++11 without warnings"
    subprocess.run(["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "-"], input=b"#include <wsync.h>\n",
                   cwd=os.path.join(ROOT, "backends/trainer"), env=dict(os.environ, CPATH="."), check=True, timeout=60)
