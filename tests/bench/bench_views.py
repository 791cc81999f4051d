"""A quantised view (fp8-block128) that an agent makes, against the bf16 model: a whole pull over 10 Gbit/s, a step by a delta from the offload's
begin to a ready file on a mount, and the bytes of both. The model has Qwen3-0.6B's layers and a tenth of its vocabulary, so that the embedding,
which is not quantised, is as small a part as in larger models. Agent, trainer and mount share the cores."""
import os
import statistics
import sys
import time

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench_delta_step import SHARE, Trainer
from rows import row
from world import *

VIEW, MODEL = "actor@fp8-block128", os.environ.get("BENCH_MODEL", "0.1")
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))


class Run:
    def __init__(self, *args):
        self.agent = Agent("--slots", "2", *args)
        self.trainer = Trainer(self.agent, MODEL)

    def metric(self, name):
        with urllib.request.urlopen(self.agent.url + "/metrics", timeout=20) as r:
            return float(re.search(rf"^{re.escape(name)} (\S+)$", r.read().decode(), re.M).group(1))


def wait_listed(mount, model, version):
    wait_for(lambda: os.path.isdir(mount.file(model, version)), f"{model}/{version}", 60)


def delta_bytes(run, model, version):
    def whole():
        listed = run.agent.get(f"/v1/{model}/{version}/manifest")["deltas"]
        return listed and listed[0]["state"] == "whole" and listed[0]["bytes"]
    return wait_for(whole, f"the delta to {model}/{version}", 60)


def size_of(run, model):
    listing = run.agent.get("/v1/models")
    return next(m["versions"][-1]["bytes"] for m in listing["models"] + listing.get("views", []) if m["name"] == model)


def pulls(mount, models, version):
    """Medians of whole pulls of one version, of each model in turns."""
    times = {model: [] for model in models}
    for model in models:
        wait_listed(mount, model, version)
    for _ in range(ROUNDS + 1):
        for model in models:
            start = time.monotonic()
            mount.write(f"pull {version}", f"{model}/ctl")
            times[model].append(time.monotonic() - start)
            mount.write(f"drop {version}", f"{model}/ctl")
    return [statistics.median(times[model][1:]) for model in models]  # the first one touches the memory


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def steps(run, model, kind):
    """Medians of steps: seconds, bytes of the delta, and seconds of CPU of agent and mount. Each comes by a delta (d) unless the mount finds that
    a whole pull (F) is quicker."""
    with scope():
        mount = Mount(run.agent.url, f"cache={int(run.trainer.bytes * 2.6)}")
        times, sizes, work, ways = [], [], [], ""
        for i in range(ROUNDS + 3):  # the first three fill the cache and are not counted
            run.trainer.step(kind, SHARE)
            before = cpu_seconds(run.agent) + cpu_seconds(mount)
            began = run.trainer.offload()
            version = run.trainer.version
            wait_listed(mount, model, version)
            mount.write(f"pull {version}", f"{model}/ctl")
            took = time.monotonic() - began
            if i >= 3:
                ways += "d" if " instead of " in mount.status(model)[f"version.{version}"] else "F"
                times.append(took)
                sizes.append(delta_bytes(run, model, version))
                work.append(cpu_seconds(run.agent) + cpu_seconds(mount) - before)
        middle = [statistics.median(x) for x in (times, sizes, work)]
        print(f"    {model}, {kind}: {middle[0]:.3f} s ({min(times):.3f} to {max(times):.3f}), {middle[2]:.2f} s of CPU, delta {middle[1] / 1e6:.2f} MB: {ways}", flush=True)
        return middle


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with scope():
        folder = unique("sidecars")
        os.makedirs(folder)
        with open(folder + "/config.json", "w") as f:
            json.dump({"model_type": "qwen3"}, f)
        os.environ["SIDECARS"] = folder
        with scope():
            plain = Run()
            bf16 = {kind: steps(plain, "actor", kind) for kind in ("step", "mix")}
        with scope():
            run = Run("--derive", VIEW)
            for kind, suffix in (("step", ""), ("mix", "-mix")):
                took, size, work = steps(run, VIEW, kind)
                row(f"derive-step{suffix}", took, "s", bf16[kind][0], 1.6, at_most=True)
                row(f"derive-step-cpu{suffix}", work, "s", bf16[kind][2], 1.6, at_most=True)
                row(f"derive-delta-bytes{suffix}", size / 1e6, "MB", bf16[kind][1] / 1e6, 1, at_most=True)
            made = run.metric(f'wsync_agent_views_total{{model="{VIEW}",result="made"}}')
            quantised = run.metric(f'wsync_agent_view_bytes_total{{model="{VIEW}",how="quantised"}}')
            took = run.metric(f'wsync_agent_view_seconds_total{{model="{VIEW}"}}')
            print(f"    a version made in {took / made:.3f} s, {quantised / took / 1e9:.2f} GB/s of bf16, hashes and slot included")
            row("derive-pull-bytes", size_of(run, VIEW) / 1e6, "MB", size_of(run, "actor") / 1e6, 0.53, at_most=True)
            mount = Mount(f"unix:{unique('nobody')}.sock", f"cache={int(run.trainer.bytes * 2.6)},delta-cache=0")
            for model in ("actor", VIEW):
                mount.write(f"add {model} fault:rate=1250:{run.agent.url}", "ctl")
            view, source = pulls(mount, (VIEW, "actor"), run.trainer.version)
            row("derive-pull", view, "s", source, 0.6, at_most=True)


if __name__ == "__main__":
    main()
