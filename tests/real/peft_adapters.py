"""Adapters that PEFT makes of a tiny checkpoint, PEFT's own answers, and the calls of an engine's table (tests/tools/engine_calls.c)."""
import errno
import subprocess

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from servers import CLOSE
from world import BUILD, unique

RANK = 8
NEAR = 2 * CLOSE  # an engine in bfloat16 and a forward in float32: adapters this big, on CPUs of several kinds


def make_adapter(folder, seed, **options):
    """An adapter of the checkpoint whose answers differ from the base's."""
    torch.manual_seed(seed)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16),
                           LoraConfig(**{"r": RANK, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "down_proj"], **options}))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.1)
    path = unique("adapter")
    model.save_pretrained(path)
    return path


def forward(folder, adapter, prompt):
    """PEFT's log probabilities of the prompt's tokens except the first, in float32."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), adapter)
    with torch.no_grad():
        said = torch.log_softmax(model(torch.tensor([prompt])).logits[0].float(), -1)
    return [said[i, token].item() for i, token in enumerate(prompt[1:])]


def call(server, *words):
    """The lines that the call prints; an error is a pair of the errno's name and the sentence."""
    out = subprocess.run([f"{BUILD}/tests/tools/engine_calls", server.kind, server.url, *words], check=True, stdout=subprocess.PIPE, text=True,
                         timeout=200).stdout.splitlines()
    if out[-1] == "ok":
        return out[:-1]
    number, _, sentence = out[-1].partition(" ")
    return errno.errorcode[int(number)], sentence
