# sanitizers: address
"""A second decoder of deltas, written from the head comments of transports/delta/stream.h and delta/block.h (for the digests,
format/manifest.h) and from wsync-delta(5) and wsync-manifest(5): it decodes the vectors of tests/fixtures/delta_vectors and
the deltas that an agent serves."""
import os
import shutil

import pytest

from world import *

try:
    import numpy as np
except ImportError:
    np = None
try:
    import xxhash
except ImportError:
    xxhash = None

VECTORS = os.path.join(os.environ["ROOT"], "tests/fixtures/delta_vectors")
BLOCK = 4 << 20
END = 2**32 - 1


class Damaged(Exception):
    pass


def need(condition, what):
    if not condition:
        raise Damaged(what)


# --- delta/block.h ---


def packed_numbers(data, n, bits):
    """n numbers of `bits` bits each, as uint64."""
    need(len(data) == (n * bits + 7) // 8, "packed numbers are cut")
    if bits == 0:
        return np.zeros(n, np.uint64)
    each = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: n * bits].reshape(n, bits)
    return each.astype(np.uint64) @ (np.uint64(1) << np.arange(bits, dtype=np.uint64))


def patched(numbers, patches, bits):
    at = next_number = 0

    def variable():
        nonlocal at
        value = shift = 0
        while True:
            need(at < len(patches), "a patch is cut")
            byte = patches[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                need(value < 2**32, "a patch is too large")
                return value

    while at < len(patches):
        skip, high = variable(), variable()
        number = next_number + skip
        need(number < len(numbers) and high >= 1, "a patch is none")
        value = int(numbers[number]) + (high << bits)
        need(value < 2**32, "a number is too large")
        numbers[number] = value
        next_number = number + 1
    return numbers


def apply_edit(block, data):
    """The block (bytes) with a block's delta applied, and the number of elements changed."""
    block = bytearray(block)
    at = n_changed = free_from = 0
    while at < len(data):
        need(len(data) - at >= 20, "a segment's head is cut")
        begin, n, width, gap_bits, change_bits, zero, gap_patches, change_patches = struct.unpack_from("<IIBBBBII", data, at)
        need(n >= 1 and width in (1, 2, 4) and gap_bits <= 32 and change_bits <= 32 and zero == 0, "a segment's head is none")
        need(begin >= free_from, "segments overlap")
        at += 20
        pieces = []
        for size in ((n * gap_bits + 7) // 8, (n * change_bits + 7) // 8, gap_patches, change_patches):
            need(at + size <= len(data), "a segment is cut")
            pieces.append(data[at : at + size])
            at += size
        gaps = patched(packed_numbers(pieces[0], n, gap_bits), pieces[2], gap_bits)
        changes = patched(packed_numbers(pieces[1], n, change_bits), pieces[3], change_bits)
        places = np.cumsum(gaps) + np.arange(n, dtype=np.uint64)
        free_from = begin + (int(places[-1]) + 1) * width
        need(free_from <= len(block), "an element is outside the block")
        z = changes.astype(np.int64) + 1
        need(int(z.max()) < 2 ** (8 * width), "a change is too large")
        d = np.where(z % 2 == 0, z // 2, -(z + 1) // 2)
        kind = {1: np.uint8, 2: np.dtype("<u2"), 4: np.dtype("<u4")}[width]
        elements = np.frombuffer(bytes(block[begin:free_from]), kind).astype(np.int64)
        elements[places.astype(np.int64)] += d
        block[begin:free_from] = (elements % 2 ** (8 * width)).astype(kind).tobytes()
        n_changed += n
    return bytes(block), n_changed


# --- delta/stream.h ---


def unpack(data, raw_bytes):
    if not shutil.which("zstd"):
        pytest.skip("the command zstd is not here")
    done = subprocess.run(["zstd", "-d", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True)
    need(len(done.stdout) == raw_bytes, "a frame has another size")
    return done.stdout


def hash64(data, seed=0):
    return xxhash.xxh3_64_intdigest(data, seed=seed) if xxhash else None


def same_hash(want, data, what, seed=0):
    need(not xxhash or hash64(data, seed) == want, f"the hash of {what} differs")


def read_head(stream):
    need(len(stream) >= 200, "the head is cut")
    names = ("magic", "format", "head_bytes", "base", "target", "blocks", "part", "parts", "base_run", "target_run", "base_digest",
             "target_digest", "hash")
    head = dict(zip(names, struct.unpack_from("<8sIIQQQII40s40s32s32sQ", stream)))
    need(head["magic"] == b"wsdelta\n" and head["format"] == 1 and head["head_bytes"] == 200, "it is no delta")
    need(head["part"] < head["parts"], "the part is none")
    same_hash(head["hash"], stream[:192], "the head")
    for name in ("base_run", "target_run"):
        need(head[name] == head[name].rstrip(b"\0").ljust(40, b"\0"), "a lineage is not filled with zeros")
    return {k: v.rstrip(b"\0").decode() if isinstance(v, bytes) else v for k, v in head.items()}


def read_stream(stream):
    """Head, {(file, block): (kind, changed, raw bytes)}, and whether the delta is complete."""
    head, records, hashes, at = read_head(stream), {}, b"", 200
    while True:
        need(len(stream) - at >= 32, "a record's head is cut")
        file, block, kind, packed, zero, changed, raw_bytes, size, hash_ = struct.unpack_from("<IIBBHIIIQ", stream, at)
        if file == END:
            break
        need(kind in (1, 2) and packed in (0, 1) and zero == 0, "a record's head is none")
        need(1 <= size <= raw_bytes <= BLOCK and (packed or size == raw_bytes), "a record's size is none")
        need((file, block) not in records, "a block has two records")
        data = stream[at + 32 : at + 32 + size]
        need(len(data) == size, "a record is cut")
        same_hash(hash_, data, "a record", hash64(stream[at : at + 24]) or 0)
        records[file, block] = kind, changed, unpack(data, raw_bytes) if packed else data
        hashes += stream[at + 24 : at + 32]
        at += 32 + size
    need(block in (0, 1) and (kind, packed, zero, changed, raw_bytes) == (0, 0, 0, 0, 0), "the end is none")
    need(size == len(records), "records are missing")
    same_hash(hash_, hashes, "the end")
    need(len(stream) == at + 32, "something follows the end")
    return head, records, block == 0


def apply_stream(records, base, sizes):
    """Applies a delta. base: {name: bytes}; sizes: [(name, bytes)] of the target, in its manifest's order. Returns the target as {name: bytes}."""
    out = {}
    left = dict(records)
    for number, (name, size) in enumerate(sizes):
        old = base.get(name)
        old = old if old is not None and len(old) == size else None
        blocks = []
        for block, begin in enumerate(range(0, size, BLOCK)):
            length = min(BLOCK, size - begin)
            kind, changed, raw = left.pop((number, block), (0, 0, b""))
            need(kind == 2 or old is not None, "the base does not have this block")
            if kind == 2:
                made = raw
            elif kind == 1:
                made, n = apply_edit(old[begin : begin + length], raw)
                need(n == changed, "another number of changes")
            else:
                made = old[begin : begin + length]
            need(len(made) == length, "a block has another size")
            blocks.append(made)
        out[name] = b"".join(blocks)
    need(not left, f"records of no block: {list(left)[:3]}")
    return out


# --- format/manifest.h ---


def digest(model, run, version, files):
    """files: [(name, header bytes, bytes)], in order."""
    number = lambda v: struct.pack("<Q", v)
    text = lambda s: number(len(s)) + s.encode()
    what = b"wsync manifest 1\n" + text(model) + text(run) + number(version) + number(len(files))
    for name, header, data in files:
        what += text(name) + number(len(data)) + number(header)
        what += b"".join(number(hash64(data[i : i + BLOCK])) for i in range(0, len(data), BLOCK))
    return xxhash.xxh3_128_hexdigest(what + number(0))


# --- tests ---


def need_numpy():
    if np is None:
        pytest.skip("the Python package numpy is not here (PyPI was not reached)")


def files_of(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}


def described(files):
    return [(n, 8 + struct.unpack("<Q", d[:8])[0] if n.endswith(".safetensors") else 0, d) for n, d in files.items()]


def test_vectors():
    "applying each vector's delta to its base gives its target"
    need_numpy()
    names = sorted(n for n in os.listdir(VECTORS) if os.path.isdir(os.path.join(VECTORS, n)))
    assert len(names) >= 7, names
    for name in names:
        base, target = (files_of(os.path.join(VECTORS, name, side)) for side in ("base", "target"))
        with open(os.path.join(VECTORS, name, "delta"), "rb") as f:
            head, records, whole = read_stream(f.read())
        assert whole and (head["base"], head["target"], head["base_run"], head["target_run"]) == (1, 2, "first", "second"), head
        assert head["blocks"] == sum((len(d) + BLOCK - 1) // BLOCK for d in target.values()), head
        if xxhash:
            assert head["base_digest"] == digest("vectors", "first", 1, described(base)), name
            assert head["target_digest"] == digest("vectors", "second", 2, described(target)), name
        got = apply_stream(records, base, [(n, len(d)) for n, d in target.items()])
        assert got == target, (name, [n for n in target if got[n] != target[n]])
        kinds = sorted(kind for kind, _, _ in records.values())
        print(f"# {name}: kinds {kinds}, {sum(changed for _, changed, _ in records.values())} changes")


def test_hashes():
    "a change of any byte of a vector's delta is detected, except in the word that says whether it is complete"
    need_numpy()
    if not xxhash:
        pytest.skip("the Python package xxhash is not here (PyPI was not reached)")
    with open(os.path.join(VECTORS, "mixed", "delta"), "rb") as f:
        good = f.read()
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= 1
        try:
            _, _, whole = read_stream(bytes(bad))
        except Damaged:
            continue
        assert not whole and i == len(good) - 28, i


def moved(folder, seed):
    """The checkpoint with some of its elements changed by one unit, in every tensor."""
    out = unique("step")
    shutil.copytree(folder, out)
    path = os.path.join(out, "model.safetensors")
    with open(path, "rb") as f:
        data = np.frombuffer(f.read(), np.uint8).copy()
    begin = 8 + struct.unpack("<Q", data[:8].tobytes())[0]
    some = np.random.default_rng(seed).choice(len(data) - begin, (len(data) - begin) // 200, replace=False) + begin
    data[some] += 1
    with open(path, "wb") as f:
        f.write(data.tobytes())
    return out


def fetch(agent, path):
    with urllib.request.urlopen(agent.url + path, timeout=60 * SLOW) as r:
        return r.read()


def test_agent():
    "applying the deltas that an agent serves, whole, in parts and compressed, gives the published bytes"
    need_numpy()
    agent = Agent()
    tensors = {f"layer.{i}.weight": ("BF16", [1024, 1100]) for i in range(6)}
    tensors |= {"norm": ("F32", [4097]), "scales": ("U8", [12345]), "steps": ("I64", [77])}
    folders = {1: checkpoint(tensors, seed=1)}
    agent.publish("actor", 1, folders[1])
    version = 2
    for level in (0, 1):
        for _ in range(3):  # the agent learns the level from the request for the previous delta
            folders[version] = moved(folders[version - 1], version)
            agent.publish("actor", version, folders[version])
            manifest = wait_for(lambda v=version: made(agent, v), "the delta", 60)
            files = [(f["name"], f["size"]) for f in manifest["files"]]
            base, target = ({n: fetch(agent, f"/v1/actor/{v}/files/{n}") for n, _ in files} for v in (version - 1, version))
            path = f"/v1/actor/{version}/delta?base={version - 1}&level={level}"
            stream = fetch(agent, path)
            head, records, whole = read_stream(stream)
            assert whole and head["target_digest"] == manifest["digest"], head
            assert apply_stream(records, base, files) == target, version
            parts = {}
            for part in range(3):
                head, some, whole = read_stream(fetch(agent, f"{path}&part={part}&parts=3"))
                assert whole and (head["part"], head["parts"]) == (part, 3), head
                assert not set(some) & set(parts)
                parts |= some
            assert parts == records
            version += 1
        print(f"# level {level}: {len(stream)} bytes, {len(records)} records, {sum(c for _, c, _ in records.values())} changes")
    assert tensors_of(os.path.join(folders[version - 1], "model.safetensors")) == tensors_in(target["model.safetensors"])


def tensors_in(data):
    path = unique("got")
    with open(path, "wb") as f:
        f.write(data)
    return tensors_of(path)


def made(agent, version):
    manifest = agent.get(f"/v1/actor/{version}/manifest")
    offers = manifest.get("deltas") or []
    return manifest if offers and offers[0]["state"] == "whole" else None
