# beside others
# sanitizers: address
# timeout: 120
"""LoRA adapters as versions: published from a folder, shown by a mount as PEFT wrote them, told by doctor where their base is another one's;
what is none is refused with its reason."""
import pytest

from adapters import CONFIG, GOOD, WEIGHTS, adapter, pairs
from world import *


@pytest.fixture(scope="module")
def agent():
    return Agent()


@pytest.fixture(scope="module")
def mount(agent):
    need_fuse()
    return Mount(agent.url, DELTAS)


def refused(agent, folder, *args):
    r = agent.publish("refused", 1, folder, *args, check=False)
    assert r.returncode == 1 and "Sanitizer" not in r.stderr, (r.returncode, r.stderr)
    assert "refused" not in [m["name"] for m in agent.get("/v1/models")["models"]]
    return r.stderr


def test_shown(agent, mount):
    "both files under PEFT's names, the config byte for byte, the tensors bit for bit; the next version comes as a delta; verify and inspect"
    folders = {v: adapter(v) for v in (41, 42)}
    with open(os.path.join(folders[41], "README.md"), "w") as f:
        f.write("of PEFT's; no part of a version")
    for version, folder in folders.items():
        agent.publish("actor-lora", version, folder)
        mount.wait_version("actor-lora", version)
        mount.write(f"pull {version}", "actor-lora/ctl")
        assert sorted(set(os.listdir(mount.file("actor-lora", version))) - {"tensors", ".wsync"}) == [CONFIG, WEIGHTS]
        with open(os.path.join(folder, CONFIG), "rb") as f:
            assert mount.read("actor-lora", version, CONFIG) == f.read()
        shown = mount.file("actor-lora", version, WEIGHTS)
        assert tensors_of(shown) == tensors_of(os.path.join(folder, WEIGHTS))
        with open(shown, "rb") as f:
            assert json.loads(f.read(int.from_bytes(f.read(8), "little")))["__metadata__"] == {"format": "pt"}
    assert "lora_A" in wsync("inspect", mount.file("actor-lora", 42)).stdout
    wsync("verify", mount.file("actor-lora", 42))


def test_base_name(agent, mount):
    "--base-name is what adapter_config.json says then; the rest stays, and the folder does"
    folder = adapter(1)
    agent.publish("named", 1, folder, "--base-name", "/models/base \"x\"")
    mount.wait_version("named", 1)
    assert json.loads(mount.read("named", 1, CONFIG)) == GOOD | {"base_model_name_or_path": "/models/base \"x\""}
    with open(os.path.join(folder, CONFIG)) as f:
        assert json.load(f) == GOOD
    agent.publish("unnamed", 1, adapter(1, base_model_name_or_path=None), "--base-name", "b")
    mount.wait_version("unnamed", 1)
    assert json.loads(mount.read("unnamed", 1, CONFIG))["base_model_name_or_path"] == "b"


def test_refused(agent):
    "one file without the other, other weights beside them, and contents that are no adapter"
    a, b = sorted(pairs())[:2]
    cases = (
        (dict(config=b""), f"there is {WEIGHTS} and no {CONFIG}"),
        (dict(weights="model.safetensors"), f"there is {CONFIG} and no {WEIGHTS}"),
        (dict(weights="adapter.safetensors"), f"there is {CONFIG} and no {WEIGHTS}"),
        (dict(shapes={}), "no *.safetensors file"),
        (dict(config=b"{"), "no JSON object"),
        (dict(config=b"\xff\xfe"), "no JSON object"),
        (dict(config=b" " * (2 << 20)), f"{CONFIG} has"),
        (dict(peft_type="IA3"), "IA3"),
        (dict(r=None), "r of adapter_config.json"),
        (dict(r=-1), "r of adapter_config.json"),
        (dict(lora_alpha=None), "lora_alpha"),
        (dict(use_dora=True), "DoRA"),
        (dict(modules_to_save=["lm_head"]), "modules_to_save"),
        (dict(r=8), "has rank 4, and adapter_config.json has r 8"),
        (dict(shapes={a: [4, 64]}), f'"{a}" is there without "{b}"'),
        (dict(shapes={b: [64, 4]}), f'"{b}" is there without "{a}"'),
        (dict(shapes={a: [4, 64], b: [64, 3]}), "do not fit each other"),
        (dict(shapes=pairs() | {"base_model.model.lm_head.weight": [8, 8]}), "base_model.model.lm_head.weight"),
        (dict(shapes={"model.norm.weight": [8]}), "model.norm.weight"),
    )  # fmt: skip
    for how, words in cases:
        folder = adapter(**how)
        said = refused(agent, folder)
        assert words in said and folder in said, (how, said)
    both = adapter()
    checkpoint(SMALL, folder=both, sidecars=False)
    assert "an adapter, and other weights beside it (model.safetensors)" in refused(agent, both)
    assert "an adapter has no --base" in refused(agent, adapter(), "--base", checkpoint(SMALL))
    assert "--base-name is of an adapter" in refused(agent, checkpoint(SMALL), "--base-name", "b")


def test_archived(agent):
    "an archive holds an adapter as it does any model"
    need_fuse()
    archive, folder = unique("archive"), adapter(3)
    os.makedirs(archive)
    keeper = Agent("--archive", archive)
    keeper.publish("actor-lora", 1, folder)
    wait_for(lambda: os.path.exists(archive + "/v1/models"), "the archive")
    mount = Mount(f"dir:{archive}")
    mount.wait_version("actor-lora", 1)
    assert tensors_of(mount.file("actor-lora", 1, WEIGHTS)) == tensors_of(os.path.join(folder, WEIGHTS))
    assert json.loads(mount.read("actor-lora", 1, CONFIG)) == GOOD


def test_doctor(agent, mount):
    "doctor: the base that a complete adapter names is what an engine of the mount was started with, or it says which is; else nothing"
    agent.publish("served", 1, checkpoint(SMALL))
    mount.wait_version("served", 1)
    agent.publish("diagnosed", 1, adapter(1))
    mount.wait_version("diagnosed", 1)
    at = mount.file("diagnosed", 1)

    def said():
        checks = json.loads(wsync("doctor", "--json", check=False).stdout)["checks"]
        return [(row["state"], row["text"]) for row in checks if row["name"] == "adapter" and at in row["text"]]

    base = mount.file("served", 1)
    engine = Engine(base, api="vllm")
    mount.write(f"engine add v1 vllm {engine.url}", "served/ctl")
    assert said() == []  # nobody has read it yet, and doctor does not fetch it
    mount.write("pull 1", "diagnosed/ctl")
    (state, text), = said()
    assert state == "note" and "its base is org/base" in text and base in text and "--base-name" in text, text
    agent.publish("diagnosed", 2, adapter(2), "--base-name", base)
    mount.wait_version("diagnosed", 2)
    mount.write("pull 2", "diagnosed/ctl")
    at = mount.file("diagnosed", 2)
    assert said() == [("ok", f"{at}: its base {base} is what an engine was started with")]
    engine.kill()
    (state, text), = said() or [(None, "")]
    assert state is None, text  # without an answer nothing is known
