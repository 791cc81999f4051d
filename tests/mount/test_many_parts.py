# beside others
# timeout: 400, takes: 60
"""A trainer on more nodes than a mount has sources: here its agents' archives, made one folder with one listing, are the source of all the parts."""
import json
import os
import shutil

from ranks import Rank, expected
from world import *

NODES, ELEMENTS = 70, 64 * 70 * 4
WAIT_MS = 120000 * SLOW


def listing(folder):
    with open(f"{folder}/v1/models") as f:
        return json.load(f)


def newest(folder):
    return os.path.exists(f"{folder}/v1/models") and max([m["newest"] for m in listing(folder)["models"]], default=0)


def test_parts_of_seventy_nodes():
    "a version in 70 parts, one of each node, is read with the bytes that the ranks wrote, and so is the next one"
    need_fuse()
    folders = [unique("archive") for _ in range(NODES)]
    agents = []
    for folder in folders:
        agents.append(Agent(*(("--primary", agents[0].url) if agents else ("--nodes",)), "--archive", folder))
    ranks = [Rank(a, "actor", r, NODES, ELEMENTS, f"timeout={WAIT_MS}") for r, a in enumerate(agents)]
    for version in (1, 2):
        for command in ("offload", "wait"):
            for rank in ranks:
                rank.send(f"{command} {version}")
            for rank in ranks:
                rank.answer()
        wait_for(lambda v=version: all(newest(folder) == v for folder in folders), "the parts in the archives' listings", 60)
    everything = unique("archives")
    listed = []
    for i, folder in enumerate(folders):
        shutil.copytree(f"{folder}/v1/actor@{i}.{NODES}", f"{everything}/v1/actor@{i}.{NODES}")
        listed += listing(folder)["models"]
    for name in ("models", "events"):
        with open(f"{everything}/v1/{name}", "w") as f:
            json.dump(listing(folders[0]) | {"models": listed}, f)
    mount = Mount(f"dir:{everything}", "deadline=60")
    for version in (2, 1):
        mount.wait_version("actor", version)
        found = tensors_of(mount.file("actor", version, "model.safetensors"))
        for name, want in expected(version, ELEMENTS).items():
            assert tuple(found[name]) == want, (version, name)
        assert f"{NODES} parts" in mount.status("actor")[f"version.{version}"], mount.text("actor/status")
