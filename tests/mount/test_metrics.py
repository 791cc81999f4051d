"""Metrics, the Grafana dashboard and the alert rules: promtool takes them, and they name metrics that there are."""
import os
import re
import shutil
import ssl
import subprocess
import time

import pytest

from certificates import Authority
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


DAY = 86400


def metric(text, name):
    """Its value without labels; None: there is none."""
    found = re.search(rf"^{name} (\S+)$", text, re.M)
    return found and float(found[1])


class Tls:
    """An agent behind TLS whose certificate ends in so many days."""

    def __init__(self, authority, days):
        self.files, self.sock = authority.certificate(days=days), unique("tls") + ".sock"
        port = free_port()
        self.agent = Process("agent", "--listen", f"127.0.0.1:{port}", "--socket", self.sock, "--tls-cert", self.files[0], "--tls-key", self.files[1], "--insecure")
        wait_for(lambda: "serving" in self.agent.text() or not self.agent.alive(), "the agent")
        self.url, self.context = f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=authority.file)

    def metrics(self):
        return urllib.request.urlopen(self.url + "/metrics", timeout=20, context=self.context).read().decode()


def test_certificates():
    "agent, relay and mount say when their certificates end; a renewed one is seen without a restart; without TLS nothing is said"
    need_fuse()
    authority = Authority()
    tls, port, relay = Tls(authority, 5), free_port(), free_port()
    wsync("publish", "--agent", f"unix:{tls.sock}", "-m", "actor", "-v", "1", checkpoint(SMALL))
    near = lambda text, name, days: abs(metric(text, name) - time.time() - days * DAY) < 600 * SLOW
    assert near(tls.metrics(), "wsync_agent_certificate_end_timestamp_seconds", 5)
    client, server = authority.certificate(days=20), authority.certificate(days=30)
    mount = Mount(tls.url, f"ca-file={authority.file},cert-file={client[0]},key-file={client[1]},listen=127.0.0.1:{port},serve=127.0.0.1:{relay},"
                  f"serve-cert={server[0]},serve-key={server[1]},serve-insecure")
    mount.wait_version("actor", 1)
    assert near(mount.text("metrics"), "wsync_certificate_end_timestamp_seconds", 20)
    text = urllib.request.urlopen(f"https://127.0.0.1:{relay}/metrics", timeout=20, context=tls.context).read().decode()
    assert near(text, "wsync_relay_certificate_end_timestamp_seconds", 30)
    authority.certificate(days=50, to=tls.files)
    wait_for(lambda: near(tls.metrics(), "wsync_agent_certificate_end_timestamp_seconds", 50), "the renewed certificate")
    with open(client[0], "w") as f:
        f.write("no certificate\n")
    assert metric(mount.text("metrics"), "wsync_certificate_end_timestamp_seconds") is None
    assert metric(answers()[0], "wsync_agent_certificate_end_timestamp_seconds") is None


def test_alerts():
    "promtool test rules: a certificate that ends in ten days warns, one that has ended is critical, one of twenty days says nothing"
    test = unique("rules") + ".yml"
    ends = {"soon": 10, "ended": -1, "later": 20}
    series = "".join(f"""
      - series: 'wsync_agent_certificate_end_timestamp_seconds{{instance="{name}"}}'
        values: '{days * DAY}x5'""" for name, days in ends.items())
    expected = {"WsyncCertificateExpires": ("soon", "warning"), "WsyncCertificateExpired": ("ended", "critical")}
    queries = "".join(f"""
      - expr: ALERTS{{alertname="{name}", alertstate="firing"}}
        eval_time: 5m
        exp_samples:
          - labels: 'ALERTS{{alertname="{name}", alertstate="firing", instance="{instance}", severity="{severity}"}}'
            value: 1""" for name, (instance, severity) in expected.items())
    with open(test, "w") as f:
        f.write(f"rule_files: [{RULES}]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:{series}\n    promql_expr_test:{queries}\n")
    promtool("test", "rules", test)
