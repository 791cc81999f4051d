# beside others
# sanitizers: address
# timeout: 240, takes: 20
"""A framework on two nodes, each with a wsync share over a folder of its own: a version is what both have written."""
import threading
from pathlib import Path

from sharing import INDEX, OF_NODE, SHARDS, Nodes, newest, save, stays
from sharing import OF_NODES as TENSORS
from world import *


def test_two_nodes():
    "PRIME-RL: the version is announced when the marker's call returns; who writes on another node waits for nobody meanwhile; removed on both, twice"
    w = Nodes("--marker", "STABLE")
    for version in 1, 2, 3:
        source = checkpoint(TENSORS, seed=version, files=SHARDS, sidecars=False)
        w.write(1, version, source, OF_NODE[1][:1])
        stays(w.agents[0], w.shares[1], version - 1 or None)  # the second node's publishes, and waits for the first
        w.write(1, version, source, OF_NODE[1][1:])
        w.write(0, version, source)
        w.end(version, source, None)
        stays(w.agents[0], w.shares[0], version - 1 or None)
        w.end(version, source)
        assert newest(w.agents[0]) == version, w.shares[0].text()
        w.expect(version, source)
        Path(w.folder(1, version), "NCCL_READY").touch()
        for rank in 0, 1, 0, 1:
            shutil.rmtree(os.path.join(w.roots[rank], f"step_{version - 2}"), ignore_errors=True)
    assert not w.shares[0].refusals() and not w.shares[1].refusals(), [s.text() for s in w.shares]


def test_early_index():
    "slime: the first node's index comes before the second has renamed its files"
    w = Nodes()
    source = checkpoint(TENSORS, files=SHARDS)
    for name in OF_NODE[1]:
        save(source, w.folder(1, 1), name)
        os.rename(os.path.join(w.folder(1, 1), name), os.path.join(w.folder(1, 1), name[:11] + ".safetensors"))
    shutil.copy2(os.path.join(source, "config.json"), w.folder(0, 1))
    w.write(0, 1, source)
    os.rename(os.path.join(w.folder(1, 1), OF_NODE[1][0][:11] + ".safetensors"), os.path.join(w.folder(1, 1), OF_NODE[1][0]))
    stays(w.agents[0], w.shares[1], None)
    r = wsync("publish", "--shared", w.folder(1, 1), check=False)
    assert r.returncode == 1 and "is not called" in r.stderr, r.stderr
    ender = threading.Thread(target=w.end, args=(1, source, None))  # its call waits for the second node
    ender.start()
    stays(w.agents[0], w.shares[0], None)
    os.rename(os.path.join(w.folder(1, 1), OF_NODE[1][1][:11] + ".safetensors"), os.path.join(w.folder(1, 1), OF_NODE[1][1]))
    ender.join()
    for rank in 0, 1:
        r = wsync("publish", "--shared", w.folder(rank, 1), check=False)
        assert r.returncode == 3 or rank and r.returncode == 0, r.stderr  # its share may not have heard of it yet
    assert newest(w.agents[0]) == 1, w.shares[0].text()
    w.expect(1, source)
    assert w.mount.read("actor", 1, "config.json") == Path(source, "config.json").read_bytes()


def test_index_names_more():
    "what the first node's index names and no node has yet is waited for"
    w = Nodes()
    source = checkpoint(TENSORS, files=SHARDS)
    w.write(1, 1, source, OF_NODE[1][:1])
    w.write(0, 1, source)
    w.end(1, source, None)
    wait_for(lambda: OF_NODE[1][1] in w.shares[0].text(), "a refusal")
    assert newest(w.agents[0]) is None
    w.write(1, 1, source, OF_NODE[1][1:])
    wait_for(lambda: newest(w.agents[0]) == 1, "version 1")
    w.expect(1, source)


def test_both_have_it():
    "a file that both have is the same on both, or no version is made of it and the error says which ranks differ; mended, it is"
    w = Nodes("--marker", "STABLE")
    source, other = (checkpoint(TENSORS, seed=seed, files=SHARDS, sidecars=False) for seed in (1, 9))
    w.write(1, 1, source, [*OF_NODE[1], *OF_NODE[0]])
    w.write(0, 1, source)
    w.end(1, source)
    assert newest(w.agents[0]) == 1, w.shares[0].text()
    w.expect(1, source)
    w.write(1, 2, other, [*OF_NODE[1], *OF_NODE[0]])
    w.write(0, 2, source)
    w.end(2, source)
    wait_for(lambda: any("rank 0" in line and "rank 1" in line for line in w.shares[0].refusals()), "a refusal")
    assert newest(w.agents[0]) == 1
    w.write(1, 2, source, [*OF_NODE[1], *OF_NODE[0]])
    wait_for(lambda: newest(w.agents[0]) == 2, "version 2")
    w.expect(2, source)


def test_killed():
    "a node's share is killed while it waits for the others: its files are gone, written again they are a version"
    w = Nodes("--marker", "STABLE")
    for version, rank in (1, 1), (2, 0):
        source = checkpoint(TENSORS, seed=version, files=SHARDS, sidecars=False)
        w.write(1, version, source)
        w.write(0, version, source)
        w.shares[rank].kill()
        w.shares[rank] = w.start(rank)
        w.write(rank, version, source)
        w.end(version, source)
        wait_for(lambda: newest(w.agents[0]) == version, f"version {version}")
        w.expect(version, source)


def test_left_behind():
    "what one node alone has keeps no version from being published that both have; a step that is written again opens a lineage on both"
    w = Nodes("--marker", "STABLE")
    first, second, again = (checkpoint(TENSORS, seed=seed, files=SHARDS, sidecars=False) for seed in (1, 2, 3))
    w.write(1, 1, first)  # the first node's rank died
    w.write(1, 2, second)
    w.write(0, 2, second)
    w.end(2, second)
    wait_for(lambda: newest(w.agents[0]) == 2, "version 2")
    w.expect(2, second)
    before = w.agents[0].get("/v1/models")["models"][0]["run"]
    for rank in 1, 0:
        shutil.rmtree(w.folder(rank, 2))
        w.write(rank, 2, again)
    w.end(2, again)
    wait_for(lambda: w.agents[0].get("/v1/models")["models"][0]["run"] != before, "another lineage")
    wait_for(lambda: newest(w.agents[0]) == 2, "version 2 of it")


def test_started_anew():
    "a job that starts anew, at a lower step, opens a lineage where it says so, and is told to where not"
    w = Nodes("--marker", "STABLE")
    sources = [checkpoint(TENSORS, seed=seed, files=SHARDS, sidecars=False) for seed in (1, 2)]

    def write(version, source):
        for rank in 1, 0:
            w.write(rank, version, source)
        w.end(version, source)

    write(5, sources[0])
    assert newest(w.agents[0]) == 5, w.shares[0].text()
    for args in (), ("--new-run",):
        w.args = ("--world", "2", "--timeout", "600", "--marker", "STABLE", *args)
        for rank in range(2):
            w.shares[rank].end()
            w.shares[rank] = w.start(rank)
        write(1, sources[1])
        assert newest(w.agents[0]) == (1 if args else 5), w.shares[0].text()
        assert args or "--new-run on all nodes" in w.shares[0].text()
    w.expect(1, sources[1])
    write(2, sources[0])
    assert newest(w.agents[0]) == 2, w.shares[0].text()


def test_usage():
    for args in ("--rank", "2", "--world", "2"), ("--rank", "1"):
        r = wsync("share", "-m", "actor", "--pattern", "step_{N}", *args, unique("none"), check=False)
        assert r.returncode == 2 and "--world" in r.stderr, r.stderr
    r = wsync("share", "-m", "actor", "--pattern", "lora", "--world", "2", unique("none"), check=False)
    assert r.returncode == 2 and "{N}" in r.stderr, r.stderr
