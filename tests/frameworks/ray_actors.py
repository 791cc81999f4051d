"""Actors of test_ray.py, which Ray's workers import."""
import hashlib
import os
import time

import torch
import torch.distributed as dist
import wsync
import wsync.ray
from torch.distributed.fsdp import fully_shard


def digests(pairs):
    """{name: (dtype, shape, hash)}."""
    return {name: (str(t.dtype), tuple(t.shape), hashlib.sha256(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest())
            for name, t in pairs}


class Trainer(wsync.ray.Publishes):
    """One rank of a model that FSDP shards."""

    def __init__(self, rank, world_size, folder, **options):
        torch.set_num_threads(1)
        self.publish_options = options
        dist.init_process_group("gloo", init_method=f"file://{folder}", rank=rank, world_size=world_size)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(65, 33), torch.nn.Tanh(), torch.nn.Linear(33, 7, bias=False))
        mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
        for part in (*self.model, self.model):
            fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def step(self):
        """Trains; returns what the ranks gather."""
        self.model(torch.randn(4, 65)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return digests(self.gather())

    def gather(self, stops_at=None, said=None):
        for name, parameter in self.model.named_parameters():
            if name == stops_at:
                open(said, "w").close()
                time.sleep(600)  # until it is killed
            yield name, parameter.full_tensor()

    def sync(self, **how):
        return self.publish(self.gather(**how))

    def sync_shards(self):
        return self.publish(wsync.fsdp(self.model))

    def fail(self):
        """A gather that fails on all ranks after its first tensor."""

        def gather():
            for i, pair in enumerate(self.gather()):
                if i == 1:
                    raise RuntimeError("a gather failed")
                yield pair

        return self.publish(gather())


class Rollout(wsync.ray.Receives):
    def __init__(self, **options):
        self.receive_options = options
        self.got = {}

    def pid(self):
        return os.getpid()

    def load(self, told, timeout=60):
        """Keeps what it receives; returns that in short."""
        self.got = dict(self.receive(told, timeout))
        return digests(self.got.items())

    def serves(self):
        return digests(self.got.items())

    def load_path(self, told):
        with wsync.open(self.folder(told), "torch") as weights:
            return digests((name, weights[name]) for name in weights)

    def close(self):
        self.close_receiver()
