"""Metrics, the Grafana dashboard and the alert rules: promtool takes them, and they name metrics that there are."""
import os
import re
import shutil
import subprocess

import pytest

from world import *

HERE = os.path.join(os.environ["ROOT"], "mount-helpers/prometheus")
RULES, DASHBOARD = os.path.join(HERE, "wsync.rules.yml"), os.path.join(HERE, "wsync-dashboard.json")


def promtool(*args, **kw):
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    done = subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=60, **kw)
    assert done.returncode == 0, done.stdout + done.stderr


def answers():
    """/metrics of an agent, of a mount with an engine, and of what it serves to other mounts."""
    need_fuse()
    agent, port, relay, folder = Agent(), free_port(), free_port(), checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"listen=127.0.0.1:{port},serve=127.0.0.1:{relay},serve-insecure")
    mount.wait_version("actor", 1)
    mount.write(f"engine add e sglang {Engine(folder).url}", "actor/ctl")
    mount.write("1", "actor/version")
    urls = (agent.url, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{relay}")
    return [urllib.request.urlopen(url + "/metrics", timeout=20).read().decode() for url in urls]


def test_help_and_types():
    "each metric of agent, mount and relay has one HELP and one TYPE, and HELP comes first"
    for text in answers():
        helps, types = (re.findall(rf"^# {word} (\S+) \S", text, re.M) for word in ("HELP", "TYPE"))
        assert helps == types and len(set(types)) == len(types), set(types) ^ set(helps)
        samples = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"^(wsync_\w+)[ {]", text, re.M)}
        assert samples and samples <= set(types), samples - set(types)


def test_promtool_metrics():
    "promtool check metrics is content with the answers of agent, mount and relay"
    for text in answers():
        promtool("check", "metrics", input=text)


def test_promtool_rules():
    "promtool check rules is content with the alert rules"
    promtool("check", "rules", RULES)


def test_names():
    "the dashboard and the rules name only metrics that there are"
    there = set(re.findall(r"^# TYPE (\S+)", "".join(answers()), re.M))
    with open(DASHBOARD) as f:
        panels = json.load(f)["panels"]
    used = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    with open(RULES) as f:
        used += " ".join(re.findall(r"expr: (.*)", f.read()))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bwsync_\w+", used)}
    assert len(names) > 10 and names <= there, names - there
