"""update=patch on a real vLLM of Qwen3-0.6B's shapes, on CPUs: the pause of a switch that writes what changed against vLLM's own
reload_weights of the same files, with one worker and with two; what happens before the pause against the pull. Skipped where vLLM is
not installed. Linear layers that oneDNN packs keep no parameter that a file's tensor is copied to: rows are without it, and one is with it."""
import os
import re
import statistics
import subprocess
import sys
import time

os.environ.setdefault("SANITIZER", "")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
REAL = os.path.join(os.path.dirname(HERE), "real")
sys.path[:0] = [HERE, os.path.dirname(HERE), REAL]
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
LAYERS = int(os.environ.get("BENCH_LAYERS", "28"))
NEEDS = "vllm", "transformers", "pytest"


def with_vllm():
    """Goes on with the Python that has vLLM."""
    python = subprocess.check_output([os.path.join(ROOT, ".ci/python"), "real"], text=True).strip()
    if os.environ.get("BENCH_PYTHON") == python:
        return
    if subprocess.run([python, "-c", f"import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, {NEEDS})))"]).returncode:
        print("  pause-patch: skipped: vLLM is not installed (.ci/deps real)")
        sys.exit(0)
    os.environ["BENCH_PYTHON"] = python
    os.execv(python, [python, os.path.abspath(__file__)])


def make(folder):
    """Version 1, and 2 and 3, which differ from it in 1.5 % and in 0.1 % of the elements by one unit in the last place."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    import checkpoints

    config = Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=LAYERS, num_attention_heads=16,
                         num_key_value_heads=8, head_dim=128, max_position_embeddings=512, tie_word_embeddings=True)
    checkpoints.make(folder, (1,), Qwen3ForCausalLM, config)
    for version, share in ((2, 0.015), (3, 0.001)):
        tensors = load_file(os.path.join(folder, "1", checkpoints.FILE))
        for value in tensors.values():
            bits = value.view(torch.int16).view(-1)
            bits[torch.randint(bits.numel(), (max(1, int(bits.numel() * share)),)).unique()] ^= 1
        subprocess.run(["cp", "-r", os.path.join(folder, "1"), os.path.join(folder, str(version))], check=True)
        save_file(tensors, os.path.join(folder, str(version), checkpoints.FILE), metadata={"format": "pt"})


def timed(fn):
    start = time.monotonic()
    fn()
    return time.monotonic() - start


def own_load(server, path):
    """vLLM's own load of files that are here, while it is paused; the load alone."""
    server.call("/pause?mode=keep", post=True)
    took = timed(lambda: server.call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}, seconds=300))
    server.call("/resume", post=True)
    return took


def switches(mount, versions):
    """Pauses of switches between two versions in turns, the first ones left out. Each must have been a patch."""
    pauses = []
    for i in range(ROUNDS + 1):
        for v in versions:
            mount.write(str(v), "actor/version")
            said = mount.text("actor/engines")
            assert not i or " how=patch" in said, said
            pauses.append(float(re.search(r" pause=([0-9.]+)", said)[1]))
    return pauses[2:]


def one_engine(name, folder, onednn, *options):
    from rows import row
    from servers import WithWsync
    from world import Agent, Mount, scope, unique, wsync

    with scope():
        agent = Agent()
        mount, pulls = Mount(agent.url), []
        for v in (1, 2, 3):
            agent.publish("actor", v, os.path.join(folder, str(v)), timeout=300)
            mount.wait_version("actor", v)
            pulls.append(timed(lambda v=v: wsync("pull", "--mount", mount.path, "actor", str(v), timeout=300)))
            if v == 1:
                mount.write("1", "actor/version")  # keeps it, when the agent has it no more
        WithWsync.more = {"PYTHONPATH": os.pathsep.join((WithWsync.target, REAL)), "OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo",
                          "VLLM_HOST_IP": "127.0.0.1"}
        worker = [] if onednn else ["--worker-cls", "patch_probe.Worker"]
        server = WithWsync(mount.file("actor/1"), "--worker-extension-cls", "wsync.vllm.Extension", *worker, *options).wait()
        print(f"  {name}: {[said['patchable'] for said in server.rpc('wsync_patch', stage='state')]} of the elements can be patched")
        mount.write(f"engine add v vllm {server.url} update=patch timeout=300", "actor/ctl")
        own = [own_load(server, mount.file("actor/1")) for _ in range(ROUNDS)]
        try:
            pauses = switches(mount, (2, 1))
        except AssertionError as e:
            print(f"  {name}: it loads whole versions: {e}")
            return
        row(name, statistics.median(pauses), "s", statistics.median(own), 0.15, at_most=True)
        events = mount.text("actor/events")
        prepared = [float(x) for x in re.findall(r"patch-prepared .*? seconds=([0-9.]+).* result=ok", events)]
        put = [float(x) for x in re.findall(r" put=([0-9.]+)", events)]
        row(name.replace("pause-patch", "patch-prepare"), statistics.median(prepared[2:]), "s", statistics.median(pulls), 1, at_most=True)
        row(name.replace("pause-patch", "patch-put"), statistics.median(put[2:]), "s", statistics.median(own), 0.15, at_most=True)
        row(f"{name}-0.1%", statistics.median(switches(mount, (3, 1))), "s", statistics.median(own), 0.03, at_most=True)
        server.stop()
        mount.end()


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with_vllm()
    from servers import WithWsync, installed
    from world import scope, unique

    with scope():
        folder = unique("versions")
        make(folder)
        WithWsync.target = installed()
        for name, onednn, *options in (("pause-patch", False), ("pause-patch-tp2", False, "--tensor-parallel-size", "2"), ("pause-patch-onednn", True)):
            if os.environ.get("BENCH_ONLY", name) == name:
                one_engine(name, folder, onednn, *options)


main()
