# beside others
"""Many ranks at one agent, a connection each, as libwsync speaks: ranks with one list share the writing, a rank whose list
changes has all others register again, and what waits for the last rank does not keep its message in memory. Between the
agents of several nodes a list that ranks repeat is told once."""
import json
import threading

from clients import Unix
from ranks import rss
from world import *

REPLICAS = 8


def message(rank, world, names, shape=(32, 64)):
    """What libwsync sends of whole tensors."""
    return {"api": 1, "release": "0.1.0", "model": "actor", "rank": rank, "world_size": world, "shard_bytes": 1 << 20, "max_slots": 2,
            "timeout_ms": 60000 * SLOW, "new_run": False, "base": [], "sidecars": [],
            "params": [{"name": n, "dtype": "BF16", "shape": list(shape), "kind": "box", "offset": [0, 0], "size": list(shape)} for n in names]}


class Rank(Unix):
    """One that registers on a thread of its own; .reply is what it is told."""

    def __init__(self, agent, rank):
        super().__init__(agent.sock)
        self.socket.settimeout(90 * SLOW)
        self.rank = rank

    def register(self, *args):
        self.reply = None
        self.thread = threading.Thread(target=self.told, args=(message(self.rank, *args),), daemon=True)
        self.thread.start()

    def told(self, body):
        self.reply = self.ask("POST", "/v1/local/register", body)

    def wait(self):
        self.thread.join(100 * SLOW)
        status, text = self.reply
        assert status == 200, text
        return json.loads(text)["body"]

    def begin(self, run, version):
        return self.ask("POST", "/v1/local/begin", {"version": version, "run": run, "timeout_ms": 20000 * SLOW})


def names(group, n):
    return [f"layers.{group}.experts.{i}.weight" for i in range(n)]


def registered(agent, n, pieces):
    """n ranks, with their replies. Ranks r and r + n / REPLICAS hold the same."""
    ranks = [Rank(agent, r) for r in range(n)]
    for r in ranks:
        r.register(n, names(r.rank % (n // REPLICAS), pieces))
    return ranks, [r.wait() for r in ranks]


def test_one_writer_a_piece():
    agent = Agent()
    ranks, replies = registered(agent, 3 * REPLICAS, 16)
    assert len({json.dumps(r["files"]) for r in replies}) == 1
    for group in range(3):
        of_group = [reply["places"] for rank, reply in zip(ranks, replies) if rank.rank % 3 == group]
        for places in zip(*of_group):
            assert len({(file, begin) for file, begin, _ in places}) == 1
            assert sum(writes for _, _, writes in places) == 1
        assert all(sum(writes for _, _, writes in places) == 2 for places in of_group), "the ranks of a group write alike"


def test_one_list_changes():
    """All places move, so every other rank has to register again, and then all of them can begin."""
    agent = Agent()
    ranks, replies = registered(agent, 2 * REPLICAS, 4)
    run = replies[0]["run"]
    ranks[0].register(len(ranks), ["a.first.weight", *names(0, 4)])
    wait_for(lambda: "ESTALE" in ranks[5].begin(run, 1)[1], "a rank to hear that the group has changed")
    for r in ranks[1:]:
        r.register(len(ranks), names(r.rank % 2, 4))
    again = [r.wait() for r in ranks]
    assert len(again[0]["places"]) == 5 and len({r["epoch"] for r in again}) == 1
    assert again[0]["epoch"] > replies[0]["epoch"]
    for r in ranks:
        status, text = r.begin(again[0]["run"], 1)
        assert status == 200, text


def test_waiting_ranks_keep_no_message():
    """A tree of a message takes more than a kilobyte a piece, and what the agent keeps of it a third of that."""
    if SANITIZER:
        return
    agent = Agent()
    world, pieces = 33, 2000
    before = rss(agent.pid)
    ranks = [Rank(agent, r) for r in range(world)]
    for r in ranks[:-1]:
        r.register(world, names(r.rank, pieces))
    wait_for(lambda: [m["ranks"] for m in agent.get("/v1/status")["models"]] == [world - 1], "the ranks to wait", 60)
    assert rss(agent.pid) - before < 64000 * 1100
    ranks[-1].register(world, names(world - 1, 1))
    assert {len(r.wait()["places"]) for r in ranks[:-1]} == {pieces}


def report(node, ranks, world, **more):
    """What the agent of a node tells the primary."""
    body = message(0, world, names(0, 3))
    registration = {k: body[k] for k in ("params", "base", "sidecars")}
    other = {**registration, "params": registration["params"] + message(0, world, ["other"])["params"]}
    return {"node": f"node{node}", "id": node, "world_size": world, "shard_bytes": 0, "new_run": False, "epoch": 0, "ranks": [[r, 1] for r in ranks],
            "registrations": {str(r): other if r == 2 else registration for r in ranks}, "gave_up": 0, "why": "", **more}


def test_repeated_lists_are_told_once():
    """An agent of before, which does not say that it understands, is told all."""
    agent = Agent("--nodes")
    agent.ask("/v1/actor/node", report(11, range(5), 8))
    told = agent.ask("/v1/actor/node", report(12, range(5, 8), 8, repeats=True))["group"]["registrations"]
    assert {r: v for r, v in told.items() if not isinstance(v, dict)} == {"1": 0, "3": 0, "4": 0}
    assert len(told["0"]["params"]) == 3 and len(told["2"]["params"]) == 4
    told = agent.ask("/v1/actor/node", report(11, range(5), 8))["group"]["registrations"]
    assert set(told) == {"5", "6", "7"} and all(len(v["params"]) == 3 for v in told.values())


def test_message_of_an_instance_before():
    "a request of an agent that was started anew since, which was held until now, is refused and takes no place"
    agent = Agent("--nodes")
    agent.ask("/v1/actor/node", report(11, range(5), 8))
    agent.ask("/v1/actor/node", {**report(12, range(5), 8), "node": "node11"})
    with pytest.raises(urllib.error.HTTPError) as e:
        agent.ask("/v1/actor/node", report(11, range(5), 8))
    assert e.value.code == 410 and "was started anew since" in e.value.read().decode()
    agent.ask("/v1/actor/node", {**report(12, range(3), 8), "node": "node11"})  # two ranks have ended
    agent.ask("/v1/actor/node", report(13, range(3, 8), 8))
    told = agent.ask("/v1/actor/node", {**report(12, range(3), 8), "node": "node11"})["group"]
    assert told["node_of"] == [told["index"]] * 3 + [1 - told["index"]] * 5, told["node_of"]


def test_ranks_of_another_lineage():
    "that ranks come back under another lineage is no jump of the one before, however far its versions are"
    agent = Agent("--nodes")
    agent.publish("actor", 1, checkpoint(SMALL))
    far = [[r, 1, 1 << 50] for r in range(2)]
    with pytest.raises(urllib.error.HTTPError) as e:
        agent.ask("/v1/actor/node", {**report(11, range(2), 4), "ranks": far})
    assert e.value.code == 400 and "no trainer is so far ahead" in e.value.read().decode()
    reply = agent.ask("/v1/actor/node", {**report(11, range(2), 4), "ranks": far, "new_run": True, "run": "times"})
    assert reply["run"] == "times" and not reply["refused"], reply
    reply = agent.ask("/v1/actor/node", {**report(12, range(2, 4), 4), "ranks": [[r, 1, 1 << 50] for r in (2, 3)], "new_run": True, "run": "times"})
    assert reply["whole"] and not reply["refused"], reply


def test_nodes_place_repeated_lists():
    first = Agent("--nodes")
    agents = (first, Agent("--primary", first.url))
    world = 2 * REPLICAS
    ranks = [Rank(agents[r // REPLICAS], r) for r in range(world)]
    for r in ranks:
        r.register(world, names(r.rank % 2, 5))
    replies = [r.wait() for r in ranks]
    assert all(r["part"] for r in replies)
    for group in range(2):
        for i in range(5):
            assert sum(reply["places"][i][2] for reply in replies[group::2]) == 1, "one rank of all nodes' writes a piece"
