# beside others
# timeout: 300
"""Quantised views, which 0.1.0 does not know: beside them everything of the model itself goes on."""
from releases import *

VIEW = "actor@fp8-channel"
TENSORS = {"model.embed_tokens.weight": [64, 64]} | {f"model.layers.0.self_attn.{n}_proj.weight": [64, 64] for n in "qkvo"}


def qwen(seed):
    """A checkpoint of finite weights, of a family that recipes know."""
    folder, generator = unique("qwen"), random.Random(seed)
    os.makedirs(folder)
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, shape in TENSORS.items():
        one = bytearray(generator.randbytes(2 * shape[0] * shape[1]))
        one[1::2] = bytes(b & 0x80 | 0x3A + (b & 3) for b in one[1::2])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(one)]}
        data += one
    write_safetensors(folder + "/model.safetensors", header, data)
    with open(folder + "/config.json", "w") as f:
        json.dump({"model_type": "qwen3"}, f)
    return folder


def listed(agent):
    return {m["name"]: [v["version"] for v in m["versions"]] for m in agent.get("/v1/models").get("views", [])}


@olds_of(FIRST)
def test_mounts_and_publishers(old):
    "mounts and publishers of an older release work for the model of an agent that derives; a new mount shows the view, too"
    agent = NEW.Agent("--derive", VIEW)
    mounts = [old.Mount(agent.url), old.Mount(f"unix:{agent.sock}")]
    new = NEW.Mount(agent.url)
    folder = None
    for version in (1, 2, 3):
        folder = step(folder, version) if folder else qwen(version)
        agent.publish("actor", version, folder, command=old.command)
        wait_for(lambda: version in listed(agent).get(VIEW, []), "the view")
        for mount in mounts:
            same(mount, version, folder)
            assert not os.path.exists(mount.file(VIEW)) and os.listdir(mount.path).count("actor") == 1
        want = unique("derived")
        NEW.wsync("derive", "--recipe", "fp8-channel", folder, want)
        new.wait_version(VIEW, version)
        assert tensors_of(new.file(VIEW, version, "model.safetensors")) == tensors_of(want + "/model.safetensors")
    r = agent.publish(VIEW, 9, folder, command=old.command, check=False)
    assert r.returncode == 1 and VIEW in r.stderr, r


@olds_of(FIRST)
def test_relays(old):
    "a mount of an older release below a new mount that serves views"
    agent = NEW.Agent("--derive", VIEW)
    agent.publish("actor", 1, folder := qwen(1))
    wait_for(lambda: listed(agent).get(VIEW), "the view")
    port = free_port()
    relay = NEW.Mount(agent.url, f"serve=127.0.0.1:{port},serve-insecure")
    relay.wait_version(VIEW, 1)
    relay.read(VIEW, 1, "model.safetensors")
    same(relay, 1, folder)
    same(old.Mount(f"http://127.0.0.1:{port}"), 1, folder)
    leaf = NEW.Mount(f"http://127.0.0.1:{port}")
    leaf.wait_version(VIEW, 1)
    assert leaf.read(VIEW, 1, "model.safetensors") == relay.read(VIEW, 1, "model.safetensors")


@olds_of(FIRST)
def test_archives(old):
    "an archive with views is read by an older release"
    archive = unique("archive")
    agent = NEW.Agent("--derive", VIEW, "--archive", archive)
    agent.publish("actor", 1, folder := qwen(1))

    def names():
        with contextlib.suppress(FileNotFoundError):
            listing = json.loads(bytes_of(archive + "/v1/models"))
            return [m["name"] for m in listing["models"] + listing.get("views", [])]

    wait_for(lambda: names() == ["actor", VIEW], "the archive")
    same(old.Mount(f"dir:{archive}"), 1, folder)
    new = NEW.Mount(f"dir:{archive}")
    new.wait_version(VIEW, 1)
    assert new.read(VIEW, 1, "model.safetensors")
