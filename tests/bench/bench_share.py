"""A framework's save into a folder that is shared (wsync share), compared with the same save into /dev/shm; and from its last close until four
mounts on this host know the version, compared with the publishing of it (one copy, hashed) and 20 ms."""
import os
import re
import statistics
import sys

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rows import row
from world import *

SIZE, PIECE, ROUNDS, MOUNTS = 512 << 20, 64 << 20, 7, 4


def save(folder, content):
    """As safetensors 0.8 does, 64 MiB a tensor; seconds until the last close, which waits for what is published, and when that began."""
    os.mkdir(folder)
    began = time.monotonic()
    fd = os.open(path := os.path.join(folder, ".tmpAbCdEf"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, sum(map(len, content)))
    for piece in content:
        os.write(fd, piece)
    os.rename(path, os.path.join(folder, "model.safetensors"))
    ended = time.monotonic()
    os.close(fd)
    return ended - began, ended


def content_of(seed):
    tensors = range(SIZE // PIECE)
    header = json.dumps({f"t{i}": {"dtype": "F32", "shape": [PIECE // 4], "data_offsets": [i * PIECE, (i + 1) * PIECE]} for i in tensors})
    header = header.encode().ljust(-len(header) % 8 + len(header))
    return [struct.pack("<Q", len(header)) + header, *(random.Random(seed + i).randbytes(1 << 20) * (PIECE >> 20) for i in tensors)]


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with scope(), tempfile.TemporaryDirectory(dir="/dev/shm") as plain:
        agent, root = Agent(), unique("shared")
        os.mkdir(root)
        share = Process("share", "--agent", f"unix:{agent.sock}", "--model", "actor", "--pattern", "step_{N}", root)
        wait_for(lambda: os.path.ismount(root), "the mount")
        mounts = [Mount(agent.url) for _ in range(MOUNTS)]
        seen = {"here": [], "shm": [], "known": [], "published": []}
        for version in range(1, ROUNDS + 1):
            content = content_of(version)
            seen["shm"].append(save(os.path.join(plain, "save"), content)[0])
            shutil.rmtree(os.path.join(plain, "save"))
            took, closed = save(os.path.join(root, f"step_{version}"), content)
            seen["here"].append(took)
            for mount in mounts:
                mount.wait_version("actor", version)
            seen["known"].append(time.monotonic() - closed)
            wait_for(lambda: f"published actor/{version}:" in share.text(), "what publish says")
            line = next(line for line in share.text().splitlines() if line.startswith(f"published actor/{version}:"))
            number, unit = re.search(r" in ([\d.]+) (m?s),", line).groups()
            seen["published"].append(float(number) / (1000 if unit == "ms" else 1))
            shutil.rmtree(os.path.join(root, f"step_{version}"))
        later = {what: statistics.median(list_[2:]) for what, list_ in seen.items()}  # the agent's slots are fresh before
        row("share-save", SIZE / later["here"] / 1e9, "GB/s", SIZE / later["shm"] / 1e9, 0.9)
        row("share-visible", later["known"], "s", later["published"] + 0.02, 1, at_most=True)


if __name__ == "__main__":
    main()
