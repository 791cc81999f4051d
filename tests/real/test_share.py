# timeout: 600, takes: 60
"""What transformers, PEFT and TRL write by themselves into a shared folder is read through a mount of its names by their own loaders."""
import os
import shutil

import pytest
from ground import need
from world import *


class Share(Process):
    def __init__(self, agent, folder, pattern, *args):
        os.makedirs(folder)
        super().__init__("share", "--agent", f"unix:{agent.sock}", "--model", "actor", "--pattern", pattern, *args, folder)
        wait_for(lambda: "sharing " in self.text(), "the folder")


def tiny(seed):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
                                        num_key_value_heads=2, head_dim=16, max_position_embeddings=256))


def equal(a, b):
    import torch
    a, b = dict(a), dict(b)
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def newest(agent):
    models = agent.get("/v1/models")["models"]
    return models[0]["newest"] if models else None


@pytest.mark.parametrize("shards", ["5GB", "100KB"])
def test_transformers(shards):
    "save_pretrained, whole and in shards, over what a step before left too; from_pretrained at the reader's path of the same name"
    need("transformers")
    need_fuse()
    from transformers import AutoModelForCausalLM
    agent, root = Agent(), unique("out")
    Share(agent, root, "weight_update_v{N}")
    mount = Mount(agent.url, "root=actor,names=weight_update_v{N}")
    for version in (1, 2, 3):
        model, folder = tiny(version), os.path.join(root, f"weight_update_v{version}")
        os.makedirs(folder, exist_ok=True)
        model.save_pretrained(folder, max_shard_size=shards)
        assert newest(agent) == version
        model.config.save_pretrained(folder)  # AReaL's order: once more, and the tokenizer, after the weights
        read = AutoModelForCausalLM.from_pretrained(os.path.join(mount.path, f"weight_update_v{version}"))
        assert equal(model.state_dict(), read.state_dict())
        shutil.rmtree(os.path.join(root, f"weight_update_v{version - 1}"), ignore_errors=True)
    assert newest(agent) == 3


def test_peft():
    "PEFT's save_pretrained of an adapter: into one folder that is written again, as SkyRL's; into a folder beside that is renamed, as TRL's"
    need("peft")
    need_fuse()
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
    agents = Agent(), Agent()
    constant, renamed = unique("skyrl"), unique("trl")
    Share(agents[0], constant, "sync")
    Share(agents[1], renamed, "trl-policy-v{N}")
    model = get_peft_model(tiny(0), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    mounts = Mount(agents[0].url, "root=actor,names=sync"), Mount(agents[1].url, "root=actor,names=trl-policy-v{N}")
    for version in (1, 2):
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(0.25)
        before = newest(agents[0])
        model.save_pretrained(os.path.join(constant, "sync"))
        assert newest(agents[0]) != before
        temporary = os.path.join(renamed, f".trl-policy-v{version}.tmp")
        os.makedirs(temporary)
        model.save_pretrained(temporary)
        os.rename(temporary, os.path.join(renamed, f"trl-policy-v{version}"))
        assert newest(agents[1]) == version
        for folder in os.path.join(mounts[0].path, "sync"), os.path.join(mounts[1].path, f"trl-policy-v{version}"):
            wait_for(lambda: os.path.exists(os.path.join(folder, "adapter_config.json")), "the adapter")
            read = PeftModel.from_pretrained(tiny(0), folder)
            wanted = get_peft_model_state_dict(model)
            wait_for(lambda: equal(wanted, get_peft_model_state_dict(PeftModel.from_pretrained(tiny(0), folder))), "its weights")
            assert read is not None
