# beside others
"""wsync why and doctor --fleet with agents and mounts of another release: what the other does not say is named, and is no failure."""
from releases import *


@pairs
def test_fleet(mounts, agents):
    "this release's command shows mounts of either release at agents of either"
    agent = agents.Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = mounts.Mount(agent.url, "host=n0")
    mount.wait_version("actor", 1)
    wait_for(lambda: agent.get("/v1/actor/mounts"), "the mount's word")
    r = NEW.wsync("doctor", "--fleet", "--json", "--agent", agent.url, "--insecure", check=False)
    assert r.returncode == 0 and "not said" in r.stdout and "n0:" in r.stdout, r.stdout + r.stderr


@pairs
def test_story(mounts, agents):
    "the story of a version is told from what either says"
    agent = agents.Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = mounts.Mount(agent.url)
    mount.wait_version("actor", 1)
    text = NEW.wsync("why", "actor", 1, mount.path).stdout
    assert "known" in text and ("published: not said" in text) == (agents is not NEW), text
