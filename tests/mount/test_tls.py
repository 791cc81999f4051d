# beside others
# sanitizers: address thread
"""TLS: what clients check of their server, and servers of their clients."""
import os
import re
import shutil
import socket
import ssl
import subprocess

import pytest

from certificates import Authority
from world import *

WRONG = {"none": "none was shown", "a stranger's": "issuer is unknown", "expired": "expired"}


class TlsAgent(Process):
    """An agent behind TLS with one version, of .folder."""

    def __init__(self, authority, *more):
        self.folder, self.sock = checkpoint(SMALL), unique("tls") + ".sock"
        cert, key = authority.certificate()
        super().__init__("agent", "--listen", "127.0.0.1:0", "--socket", self.sock, "--tls-cert", cert, "--tls-key", key, *more)
        wait_for(lambda: "serving" in self.text() or not self.alive(), "the TLS agent")
        assert self.alive(), self.text()
        self.url = f"https://127.0.0.1:{re.search(r'port=([0-9]+)', self.text())[1]}"
        wsync("publish", "--agent", f"unix:{self.sock}", "-m", "actor", "-v", "1", self.folder)


def clients(authority):
    """{what it presents: its certificate and key}: one right, and those of WRONG."""
    return {"right": authority.certificate(), "none": None, "a stranger's": Authority().certificate(), "expired": authority.certificate(expired=True)}


def curl(url, authority, shown, *more):
    """Status and text of the answer to the stock curl."""
    with_certificate = ["--cert", shown[0], "--key", shown[1]] if shown else []
    r = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", "--cacert", authority.file, *with_certificate, *more, url], capture_output=True,
                       text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    text, status = r.stdout.rsplit("\n", 1)
    return int(status), text


def checks_clients(url, authority, shows):
    """The server requires a client certificate and reports what is wrong with it before it looks at anything else."""
    for name, why in WRONG.items():
        for path, more in (("/v1/models", ()), ("/v1/actor/1/files/model.safetensors", ()), ("/v1/none", ()), ("/v1/models", ("-d", "x" * 100))):
            status, text = curl(url + path, authority, shows[name], *more)
            assert status == 401 and "client certificate is asked for" in text and why in text, (name, path, status, text)
        assert curl(url + "/healthz", authority, shows[name])[0] == 200
    assert curl(url + "/v1/models", authority, shows["right"])[0] == 200


def mounted(url, authority, shown):
    return Mount(url, f"ca-file={authority.file}" + (f",cert-file={shown[0]},key-file={shown[1]}" if shown else ""))


def test_server():
    "a mount that trusts the server's authority can read; others report why not"
    need_fuse()
    authority = Authority()
    agent = TlsAgent(authority)
    status, text = curl(agent.url + "/healthz", authority, None)
    assert status == 200 and json.loads(text)["ok"]
    mount = mounted(agent.url, authority, None)
    mount.wait_version("actor", 1)
    assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(agent.folder + "/model.safetensors")
    stranger = mounted(agent.url, Authority(), None)
    assert "down" in stranger.status()["source"], stranger.status()


def test_version():
    "nothing older than TLS 1.3 is accepted"
    agent = TlsAgent(authority := Authority())
    context = ssl.create_default_context(cafile=authority.file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(urllib.error.URLError, match="(?i)ssl"):
        urllib.request.urlopen(agent.url + "/healthz", context=context, timeout=20 * SLOW)


def test_clients_of_an_agent():
    "an agent with --tls-client-ca serves clients with a certificate of that authority, and tells others what is wrong with theirs"
    need_fuse()
    authority = Authority()
    shows = clients(authority)
    agent = TlsAgent(authority, "--tls-client-ca", authority.file)
    checks_clients(agent.url, authority, shows)
    mount = mounted(agent.url, authority, shows["right"])
    mount.wait_version("actor", 1)
    assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(agent.folder + "/model.safetensors")
    for name, why in WRONG.items():
        mount = mounted(agent.url, authority, shows[name])
        wait_for(lambda: why in mount.status()["source"], f"the source's reason where the certificate is {name}")
        assert "down" in mount.status()["source"], mount.status()


def s_client(url, authority, shown):
    """Head of the answer to a GET that the stock openssl s_client sends."""
    place = url.removeprefix("https://")
    with_certificate = ["-cert", shown[0], "-key", shown[1]] if shown else []
    r = subprocess.run(["openssl", "s_client", "-quiet", "-verify_return_error", "-CAfile", authority.file, *with_certificate, "-connect", place],
                       input=b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", capture_output=True, timeout=60)
    return r.stdout.decode()


def test_openssl_as_a_client():
    "the stock openssl s_client gets what its certificate allows, and nothing without one"
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    authority = Authority()
    shows = clients(authority)
    agent = TlsAgent(authority, "--tls-client-ca", authority.file)
    right = s_client(agent.url, authority, shows["right"])
    assert right.startswith("HTTP/1.1 200") and '"actor"' in right, right
    for name, why in WRONG.items():
        text = s_client(agent.url, authority, shows[name])
        assert text.startswith("HTTP/1.1 401") and why in text and '"actor"' not in text, (name, text)
    assert not s_client(agent.url, Authority(), shows["right"])  # it does not trust the agent


def test_command_with_a_certificate():
    "the command shows an agent beyond its socket the certificate of --cert-file"
    authority = Authority()
    shows = clients(authority)
    agent = TlsAgent(authority, "--tls-client-ca", authority.file)
    release = ["release", "--agent", agent.url, "--ca-file", authority.file, "actor", "1"]
    wsync(*release, "--cert-file", shows["right"][0], "--key-file", shows["right"][1])
    r = wsync(*release, "--cert-file", shows["expired"][0], "--key-file", shows["expired"][1], check=False)
    assert r.returncode != 0 and "expired" in r.stderr, r.stderr


def test_requests_on_one_connection():
    "a right answer of /healthz, a method or the head of a body makes no connection a known one, and each request is verified once"
    authority = Authority()
    agent = TlsAgent(authority, "--tls-client-ca", authority.file)
    shows = clients(authority)
    for name, statuses in (("right", [200, 200, 404, 200]), ("none", [200, 401, 401, 401]), ("a stranger's", [200, 401, 401, 401])):
        context = ssl.create_default_context(cafile=authority.file)
        if shows[name]:
            context.load_cert_chain(*shows[name])
        with context.wrap_socket(socket.create_connection(("127.0.0.1", int(agent.url.rsplit(":", 1)[1])), timeout=20 * SLOW),
                                 server_hostname="localhost") as sock:
            paths = "/healthz", "/v1/models", "/v1/none/1/manifest", "/v1/models"
            sock.sendall("".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths).encode())  # one after the other, at once
            got = b""
            while (got.count(b"HTTP/1.1 ") < len(statuses) or not got.endswith(b"}")) and (data := sock.recv(1 << 16)):
                got += data
            assert [int(s) for s in re.findall(rb"HTTP/1.1 (\d+)", got)] == statuses, (name, got)
            assert not sock.session.has_ticket, "a session that is resumed would skip the certificate"


def test_authorities_that_are_none():
    "a file of authorities without a certificate, or with a damaged one, is refused at the start, and named"
    authority = Authority()
    cert, key = authority.certificate()
    for content in ("none\n", open(key).read(), open(authority.file).read() + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with open(path := unique("authorities"), "w") as f:
            f.write(content)
        r = wsync("agent", "--listen", "127.0.0.1:0", "--socket", unique("none") + ".sock", "--tls-cert", cert, "--tls-key", key,
                  "--tls-client-ca", path, check=False)
        assert r.returncode == 1 and f"{path} holds no authorities" in r.stderr, r.stderr


def test_clients_with_a_token():
    "if both are required, neither replaces the other"
    authority, token = Authority(), unique("token")
    with open(token, "w") as f:
        f.write("secret\n")
    shows = clients(authority)
    agent = TlsAgent(authority, "--tls-client-ca", authority.file, "--token-file", token)
    for shown, bearer, status in (("right", "secret", 200), ("right", "other", 401), ("none", "secret", 401), ("expired", "secret", 401)):
        assert curl(agent.url + "/v1/models", authority, shows[shown], "-H", f"Authorization: Bearer {bearer}")[0] == status, (shown, bearer)
    agent = TlsAgent(authority, "--tls-client-ca", authority.file)  # without tokens of its own: a mount may have one for its other sources
    for shown, status in (("right", 200), ("none", 401)):
        assert curl(agent.url + "/v1/models", authority, shows[shown], "-H", "Authorization: Bearer of-another")[0] == status, shown


def test_clients_of_a_mount():
    "a serving mount with serve-client-ca requires certificates as an agent does"
    need_fuse()
    authority = Authority()
    shows = clients(authority)
    cert, key = authority.certificate()
    agent = Agent()
    agent.publish("actor", 1, folder := checkpoint(SMALL))
    port = free_port()
    relay = Mount(agent.url, f"serve=127.0.0.1:{port},serve-cert={cert},serve-key={key},serve-client-ca={authority.file}")
    relay.wait_version("actor", 1)
    url = f"https://127.0.0.1:{port}"
    checks_clients(url, authority, shows)
    leaf = mounted(url, authority, shows["right"])
    leaf.wait_version("actor", 1)
    assert tensors_of(leaf.file("actor/1/model.safetensors")) == tensors_of(folder + "/model.safetensors")
    stranger = mounted(url, authority, shows["a stranger's"])
    wait_for(lambda: WRONG["a stranger's"] in stranger.status()["source"], "the source's reason")


def test_beyond_loopback():
    "client certificates allow an address beyond loopback; a server that requires no proof is refused there"
    authority = Authority()
    cert, key = authority.certificate()
    open_to_all = ["agent", "--listen", "0.0.0.0:0", "--socket", unique("open") + ".sock", "--tls-cert", cert, "--tls-key", key]
    r = wsync(*open_to_all, check=False)
    assert r.returncode == 1 and "--tls-client-ca" in r.stderr, r.stderr
    agent = Process(*open_to_all, "--tls-client-ca", authority.file)
    wait_for(lambda: "serving" in agent.text() or not agent.alive(), "the agent")
    assert agent.alive(), agent.text()


def test_ca_file():
    "ca-file replaces all of the system's authorities, also those in their folder"
    authorities = [Authority() for _ in range(2)]
    certs = [a.file for a in authorities]
    system = unique("authorities")
    os.mkdir(system)
    number = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", certs[0]], capture_output=True, text=True, check=True).stdout.strip()
    shutil.copy(certs[0], f"{system}/{number}.0")
    shutil.copy(certs[1], f"{system}/ca-certificates.crt")
    own = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/ssl/certs && exec "$@"', system]
    if not os.path.isdir("/etc/ssl/certs") or subprocess.run([*own, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("authorities cannot be put in the place of the system's here")
    url = TlsAgent(authorities[0]).url

    def says(*more):
        "the errors of an unreachable agent, and of an engine that is not synced"
        for args in (["release", "actor", "1", "--agent", url], ["sync", "/x", f"--engine=sglang={url}"]):
            yield subprocess.run([*own, WSYNC, *args, *more], capture_output=True, text=True, timeout=60).stderr

    for text in says("--ca-file", certs[1]):
        assert "trusted" in text or "certificate" in text, text
    for text in says("--ca-file", certs[0]):
        assert "trusted" not in text and "certificate" not in text, text
    if not all("trusted" in text or "certificate" in text for text in says()):
        return
    pytest.skip("this libcurl has no such folder")
