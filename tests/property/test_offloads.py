# sanitizers: thread
# beside others
# timeout: 370, takes: 30
"""Two ranks offload every 50 ms for a minute, and readers of two mounts check every byte of each version that they see: versions may be
skipped, but none is torn or mixed. OFFLOADS_SECONDS."""
import sys

from world import *

try:
    from ranks import Rank, Reader, ask_all
except ImportError as e:
    print(f"1..0 # SKIP {e.name} is not installed, as PyPI could not be reached")
    sys.exit(0)

SECONDS = amount("OFFLOADS_SECONDS", 20.0, 60.0)
PERIOD = 0.05
LEAST = int(SECONDS / PERIOD / 20)  # minimum number of offloads; a slow machine runs longer than a minute
ELEMENTS = 1 << 20  # 3 MB


def test_offloads():
    need_fuse()
    agent = Agent()
    ranks = [Rank(agent, "actor", i, 2, ELEMENTS) for i in range(2)]
    mounts = [Mount(agent.url), Mount(f"unix:{agent.sock}")]
    readers = [Reader(m, "actor", ELEMENTS) for m in mounts for _ in range(2)]
    begin, version, late = time.monotonic(), 0, 0
    while (now := time.monotonic()) < begin + SECONDS or (version < LEAST and now < begin + 60 * SLOW + SECONDS):
        version += 1
        answers = ask_all(ranks, f"offload {version}")
        assert answers == [f"offloaded {version}"] * 2, answers
        for r in readers:
            assert not r.wrong, r.wrong
        wait = now + PERIOD - time.monotonic()
        late += wait < 0
        if wait > 0:
            time.sleep(wait)
    assert ask_all(ranks, f"wait {version}") == [f"published {version}"] * 2
    for r in readers:
        wait_for(lambda: version in r.versions or r.wrong, "the last version at each reader")
        r.stop()
    seen = [f"{len(r.versions)} versions in {sum(r.versions.values())} reads, {r.refused} gone" for r in readers]
    print(f"# {version} offloads in {SECONDS:.0f} s, {late} of them over {PERIOD * 1000:.0f} ms; http: {'; '.join(seen[:2])}; "
          f"unix: {'; '.join(seen[2:])}", flush=True)
    assert version >= LEAST, f"{version} offloads only"
    assert all(len(r.versions) > 3 for r in readers), seen


test_offloads.__doc__ = f"offloads every 50 ms for {SECONDS:.0f} s, four readers, every byte"
