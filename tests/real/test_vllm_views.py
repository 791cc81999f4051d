# timeout: 1800, takes: 170
"""A real vLLM on quantised views that the agent makes: it is switched from version to version, and answers as one does that was started
on a checkpoint which the reference quantiser wrote."""
import json
import os
import shutil

import pytest
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from safetensors.torch import load_file, save_file

import quantisers
from scenarios import MODEL, Ground
from servers import VLLM, WithWsync, installed
from world import wait_for

SWITCHES = 10
CODES, PACKED = ("weight", "weight_scale"), ("weight_packed", "weight_scale", "weight_shape")
# recipe: the reference, what it names its tensors, what its config.json says
VIEWS = {"fp8-channel-ct": (quantisers.ct_fp8_channel, CODES, "FP8_DYNAMIC", "float-quantized", {}),
         "int4-g32": (quantisers.ct_int4_g32, PACKED, "W4A16", "pack-quantized", {"group_size": 32}),
         "int8-channel": (quantisers.ct_int8_channel, CODES, "W8A8", "int-quantized", {})}
INT8 = "int8-channel"  # its reload needs wsync's extension on a CPU


def write_reference(recipe, source, target):
    """The checkpoint as the reference quantiser writes it: all linear layers but the head."""
    quantise, names, preset, form, changed = VIEWS[recipe]
    shutil.copytree(source, target)
    weights = load_file(os.path.join(source, "model.safetensors"))
    for layer in [n.removesuffix("weight") for n in weights if n.endswith("_proj.weight")]:
        made = quantise(weights.pop(layer + "weight"))
        weights |= {layer + name: t for name, t in zip(names, made, strict=True)}
    save_file(weights, os.path.join(target, "model.safetensors"), metadata={"format": "pt"})
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.weights = scheme.weights.model_copy(update=changed)
    said = QuantizationConfig(config_groups={"group_0": scheme}, quant_method="compressed-tensors", format=form,
                              quantization_status="compressed", ignore=["lm_head"])
    path = os.path.join(target, "config.json")
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump(config | {"quantization_config": json.loads(said.model_dump_json())}, f)


class Views(Ground):
    """An agent that makes the views, a mount, the reference's checkpoints."""

    agent_options = tuple(w for recipe in VIEWS for w in ("--derive", f"{MODEL}@{recipe}"))

    def __init__(self):
        super().__init__(VLLM)
        for recipe in VIEWS:
            write_reference(recipe, self.folder(2), self.reference(recipe))

    def reference(self, recipe):
        "of version 2"
        return self.folder(f"{recipe}-2")

    def publish(self, version, name, **kw):
        """A version and its views: an agent makes views of the newest version alone."""
        super().publish(version, name, **kw)
        numbers = lambda: [[v["version"] for v in m["versions"]] for m in self.agent.get("/v1/models").get("views", [])]
        wait_for(lambda: sum(version in of for of in numbers()) == len(VIEWS), f"{len(VIEWS)} views of {version}", 120)

    def pulled(self, model, version):
        self.mount.wait_version(model, version)
        self.mount.write(f"pull {version}", f"{model}/ctl")
        return self.mount.file(model, version)

    def start(self, recipe):
        """A server on the view's first version, that can be switched."""
        path = self.pulled(f"{MODEL}@{recipe}", 1)
        if recipe != INT8:
            return VLLM(path, *VLLM.uncached)
        WithWsync.target = installed()
        return WithWsync(path, *VLLM.uncached, "--worker-extension-cls", "wsync.vllm.Extension")


@pytest.fixture(scope="module")
def views():
    return Views()


@pytest.mark.parametrize("recipe", VIEWS)
def test_switched(views, recipe):
    "ten switches of a quantised view: the answers are those of a server on the reference quantiser's checkpoint"
    model = f"{MODEL}@{recipe}"
    server = views.start(recipe)
    fresh = VLLM(views.reference(recipe), *VLLM.uncached)  # of version 1 it is this server, as it was started
    want = {1: server.wait().answers(), 2: fresh.wait().answers()}
    assert want[1] != want[2]
    if recipe == INT8:
        views.mount.write(f"engine add e0 vllm {fresh.url}", f"{model}/ctl")
        assert views.refused(2, f"{model}/version") == "EPROTO"
        why = views.mount.text(f"{model}/last_error")
        assert "frees scales" in why and "--worker-extension-cls wsync.vllm.Extension" in why, why
        views.mount.write("engine remove e0", f"{model}/ctl")
    views.mount.write(f"engine add e1 vllm {server.url}", f"{model}/ctl")
    for i in range(SWITCHES):
        version = 2 - i % 2
        views.mount.write(version, f"{model}/version")
        assert server.answers() == want[version], f"switch {i}, to {version}"
        assert server.serves() == str(version)
    wait_for(lambda: "serving" in views.mount.text(f"{model}/engines"), "the engine")
