"""A trainer that spans nodes, each with an agent and a rank, here on one host: what it publishes comes in parts. Beside it a rank that has all
tensors publishes the same versions whole, to an agent of its own."""
import os
import subprocess

from adapters import WEIGHTS
from world import BUILD, Agent, Mount, at_end, need_fuse, wait_for


class Rank:
    """A rank of the C trainer. It answers each command with a line."""

    def __init__(self, sock, rank, world, model="actor", kind="tiny", **env):
        ranks = [rank, world] if world > 1 else []
        self.process = subprocess.Popen([f"{BUILD}/tests/tools/trainer", f"unix:{sock}", model, kind, *map(str, ranks)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | env)
        at_end(self.kill)
        assert self.answer().startswith("ready"), "the trainer"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def say(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()


def say(ranks, command):
    """Sends a command to all of them at once; returns the answers."""
    for rank in ranks:
        rank.say(command)
    return [rank.answer() for rank in ranks]


class Span:
    """The agents and ranks of nodes on this host, .urls for a mount; .bytes of the versions that were published, of the file .weights. own: arguments
    of each agent's; model, kind, env: the ranks' (tests/tools/trainer.c)."""

    def __init__(self, *args, own=((), ()), model="actor", kind="tiny", **env):
        need_fuse()
        self.agents, self.bytes, self.newest = [], {}, 0
        self.model, self.weights = model, WEIGHTS if kind == "adapter" else "model.safetensors"
        for i, more in enumerate(own):
            self.agents.append(Agent(*(("--primary", self.agents[0].url) if i else ("--nodes",)), *args, *more))
        self.urls = ",".join(a.url for a in self.agents)
        self.ranks = [Rank(a.sock, i, len(own), model, kind, **env) for i, a in enumerate(self.agents)]
        whole = Agent()
        self.alone = Rank(whole.sock, 0, 1, model, kind, **env)
        self.reference = Mount(whole.url, "keep=1000")

    def publish(self, *steps):
        """The next version, after such steps; returns its number."""
        self.newest += 1
        everyone = [*self.ranks, self.alone]
        for step in steps:
            assert all(a.startswith("stepped") for a in say(everyone, step))
        for command in ("offload", "wait"):
            answers = say(everyone, f"{command} {self.newest}")
            assert not any(a.startswith("failed") for a in answers), answers
        self.reference.wait_version(self.model, self.newest)
        self.bytes[self.newest] = self.reference.read(self.model, self.newest, self.weights)
        return self.newest

    def deltas(self, version, node):
        """What the agent lists of the newest delta that leads to its part of the version."""
        listed = self.agents[node].get(f"/v1/{self.model}@{node}.{len(self.agents)}/{version}/manifest").get("deltas")
        return listed[0]["state"] if listed else None

    def step(self, share=0.01):
        """The next version, with its deltas made, as far as the agents make any."""
        version = self.publish(f"step {share}")
        for node in range(len(self.agents)):
            wait_for(lambda n=node: self.deltas(version, n) != "growing", "the delta")
        return version

    def end(self):
        for a in self.agents:
            a.end()
