# beside others
"""wsync why: the story of one version on one mount."""
from world import *


def test_story():
    "from published to switched, in order, with durations and where most of the time went"
    agent = Agent()
    folder = checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    engine = Engine(folder)
    mount.write(f"engine add e1 sglang {engine.url}", "actor/ctl")
    mount.write(1, "actor/version")
    said = json.loads(wsync("why", "--json", "actor", 1, mount.path).stdout)
    steps = [s["step"] for s in said["steps"]]
    wanted = ["begun", "published", "known", "pulling", "verifying", "ready", "paused", "loaded", "resumed", "switched"]
    assert [s for s in steps if s in wanted] == wanted, steps
    assert all(s["seconds"] >= 0 for s in said["steps"]) and said["agent_error"] is None, said
    assert said["most"] in {s.get("spent") for s in said["steps"]} and said["most_seconds"] <= said["seconds"], said
    assert abs(said["clock_offset"]) <= said["clock_error"] + 1, said
    text = wsync("why", "actor", 1, mount.path).stdout
    assert text.splitlines()[-1].startswith("most of the time: ") and "published" in text and "this machine's" in text, text


def test_agent_that_says_nothing():
    "without an agent the mount's part is told, and why the rest is missing"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    agent.kill()
    text = wsync("why", "actor", 1, mount.path).stdout
    assert "published: not said: " in text and "known" in text, text


def test_wrong_words():
    "a version that the mount never heard of, no number, and no mount are said"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    r = wsync("why", "actor", 9, mount.path, check=False)
    assert r.returncode == 1 and "no event of actor/9" in r.stderr, r.stderr
    assert wsync("why", "actor", "nine", mount.path, check=False).returncode == 2
    assert "is not a wsync mount" in wsync("why", "actor", 1, TESTDIR, check=False).stderr
