# beside others
# sanitizers: thread
# timeout: 240, takes: 20
"""What a mount passes on of blocks that have not all come to it: as much as it has, but no whole block that it did not verify."""
import contextlib
import http.client
import socket
import threading

from proxy import Gate
from relay import *

FIRST = 1 << 20  # of a block, before the rest may come


class Flip(Gate):
    """Changes one byte of the first connection for files, FIRST / 2 into what comes on it."""

    def __init__(self, url, limit):
        self.passed = self.flipped = 0
        super().__init__(url, limit)

    def pass_on(self, data, sink, marked):
        if marked:
            with self.changed:
                at = FIRST // 2 - self.passed
                self.passed += len(data)
                if 0 <= at < len(data):
                    data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                    self.flipped += 1
        super().pass_on(data, sink, marked)


class Cut(Gate):
    """Ends its connections for files when told to; those that come later pass."""

    def __init__(self, url, limit):
        self.of_files = []
        super().__init__(url, limit)

    def pass_on(self, data, sink, marked):
        if marked and sink not in self.of_files:
            self.of_files.append(sink)
        super().pass_on(data, sink, marked)

    def cut(self):
        for s in self.of_files:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


class Reader(threading.Thread):
    """Asks a relay for the first block, and keeps what comes; .ended: whether the relay ended the answer before its end."""

    def __init__(self, relay, end=BLOCK):
        super().__init__(daemon=True)
        self.relay, self.end, self.got, self.cut = relay, end, b"", False
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.relay.port, timeout=60 * SLOW)
        connection.request("GET", "/v1/actor/1/files/model.safetensors", headers={"Range": f"bytes=0-{self.end - 1}"})
        try:
            response = connection.getresponse()
            assert response.status == 206, response.status
            while data := response.read1(1 << 16):
                self.got += data
            self.cut = len(self.got) < self.end
        except (http.client.HTTPException, OSError):
            self.cut = True

    def read_first(self):
        wait_for(lambda: len(self.got) > FIRST // 2, "the first bytes of a block", 30)


def growing(kind):
    """An agent whose bytes come to a relay through a gate, which stands in the middle of the first block; and a reader that has some."""
    agent, folder = published("--delta-cache", 0)
    gate = kind(agent.url, FIRST + 4096)
    relay = Relay(gate.url, "streams=1,keep=1")
    relay.wait_version("actor", 1)
    reader = Reader(relay)
    reader.read_first()
    assert state(relay) == "pulling" and progress(relay) < BLOCK, relay.text("actor/1/.wsync/progress")
    return agent, folder, gate, relay, reader


def test_before_it_is_whole():
    "the first bytes of a block are passed on before the last have come; the whole is the trainer's"
    _, folder, gate, relay, reader = growing(Gate)
    leaf = leaf_of(relay.url)
    gate.open()
    reader.join(60 * SLOW)
    assert not reader.cut and reader.got == relay.read("actor/1/model.safetensors")[:BLOCK]
    assert same(leaf, folder)


def test_wrong_bytes():
    "wrong bytes that came to a relay are passed on at most in part: who asked is cut off, and mounts below begin anew without a bad block"
    _, folder, gate, relay, reader = growing(Flip)
    leaf = leaf_of(relay.url)
    pull = threading.Thread(target=lambda: leaf.write("pull 1", "actor/ctl"), daemon=True)
    pull.start()
    time.sleep(0.3)  # it has some of it as well
    gate.open()
    reader.join(60 * SLOW)
    assert gate.flipped == 1 and reader.cut and len(reader.got) < BLOCK, (gate.flipped, reader.cut, len(reader.got))
    pull.join(60 * SLOW)
    assert same(relay, folder) and same(leaf, folder)
    assert int(relay.status()["bad_blocks"]) == 1 and int(leaf.status()["bad_blocks"]) == 0, (relay.status(), leaf.status())


def test_part_of_a_block():
    "who asks for less than a block gets none of it before it was verified"
    _, _, gate, relay, reader = growing(Flip)
    part = Reader(relay, end=FIRST * 3 // 4)
    time.sleep(0.5)
    assert not part.got
    gate.open()
    for r in (reader, part):
        r.join(60 * SLOW)
    assert reader.cut and not part.cut and part.got == relay.read("actor/1/model.safetensors")[: part.end]


def test_cut():
    "a block whose source was cut begins anew: who had some of it waits for it, and gets the rest"
    _, folder, gate, relay, reader = growing(Cut)
    leaf = leaf_of(relay.url)
    pull = threading.Thread(target=lambda: leaf.write("pull 1", "actor/ctl"), daemon=True)
    pull.start()
    time.sleep(0.3)
    gate.cut()
    gate.open()
    reader.join(60 * SLOW)
    assert not reader.cut and reader.got == relay.read("actor/1/model.safetensors")[:BLOCK], len(reader.got)
    pull.join(60 * SLOW)
    assert same(relay, folder) and same(leaf, folder) and int(leaf.status()["bad_blocks"]) == 0


def test_dropped():
    "a version that is dropped in the middle of a block ends what was asked of it; the next pull has the right bytes"
    _, folder, gate, relay, reader = growing(Gate)
    relay.write("drop 1", "actor/ctl")
    gate.open()
    reader.join(60 * SLOW)
    assert reader.cut and len(reader.got) < BLOCK
    wait_for(lambda: os.path.isdir(relay.file("actor", 1)), "the version again")
    assert same(relay, folder)
