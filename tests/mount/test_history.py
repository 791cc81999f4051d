# beside others
"""The file history of a model: how its last versions came to a mount, and when its engines had them."""
from proxy import Gate
from world import *


def history(mount):
    return json.loads(wsync("status", "--json", "--mount", mount.path).stdout)["models"][0]["history"]


def test_came_and_loaded():
    "a version has its row once it came, with bytes, way and time; the time to loaded once it is current, which a switch back does not change"
    agent, folder = Agent(), checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    assert mount.text("actor/history") == "" and history(mount) == []
    mount.read("actor/1/model.safetensors")
    (one,) = history(mount)
    assert one["name"] == "1" and one["state"] == "came" and one["how"] == "tcp full" and one["strategy"] == "tcp" and one["pulls"] == 1, one
    assert one["bytes"] == one["moved"] > 0 and one["loaded"] is None and one["first"] >= 0 and one["error"] is None and "driver" in one["why_not"], one
    mount.write(f"engine add e sglang {Engine(folder).url}", "actor/ctl")
    mount.write(1, "actor/version")
    loaded = history(mount)[0]["loaded"]
    assert loaded > 0, history(mount)
    agent.publish("actor", 2, folder)
    mount.wait_version("actor", 2)
    mount.write(2, "actor/version")
    mount.write(1, "actor/version")
    assert [(h["name"], h["state"]) for h in history(mount)] == [("1", "came"), ("2", "came")] and history(mount)[0]["loaded"] == loaded, history(mount)


def test_failures_are_one_row():
    "a pull that fails again and again is one row with its error; once the version came, it is that row, with how often it was tried"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    gate = Gate(agent.url, 0)
    mount = Mount(gate.url, "deadline=1")
    mount.wait_version("actor", 1)
    for _ in range(2):
        assert mount.refused("pull 1", "actor/ctl")
    (one,) = history(mount)
    assert one["state"] == "failed" and one["pulls"] == 2 and one["error"] and one["how"] is None and one["first"] is None, one
    gate.open()
    mount.write("pull 1", "actor/ctl")
    (one,) = history(mount)
    assert one["state"] == "came" and one["pulls"] == 3 and one["error"] is None and one["how"] == "tcp full", one


def test_bounded():
    "there are the last 64, oldest first"
    agent, folder = Agent(), checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, "prefetch")
    for version in range(1, 71):
        if version > 1:
            agent.publish("actor", version, folder)
        mount.wait_version("actor", version)
        mount.read(f"actor/{version}/model.safetensors")
    assert [int(h["name"]) for h in history(mount)] == list(range(7, 71))
    told = agent.get("/v1/status")["models"][0]["history"]
    assert [h["version"] for h in told] == list(range(7, 71)) and all(h["published_us"] for h in told), told
