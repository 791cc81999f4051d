"""Object stores that speak S3, which nobody here wrote: moto, and SeaweedFS, which checks signatures and clocks; and a proxy before them
that answers in their place, cuts, or changes what they say."""
import os
import subprocess
import sys

import pytest

from proxy import Proxy
from world import at_end, free_port, unique, wait_for

KEY, SECRET = "AKIAWSYNCTEST", "a-secret+of/the=tests0123456789"
BUCKET = "weights"


class Store:
    """A server with a bucket; .s3 is boto3's client of it."""

    def __init__(self):
        self.port, self.place = free_port(), unique(self.name)
        self.url = f"http://127.0.0.1:{self.port}"
        os.makedirs(self.place)
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            pytest.skip("boto3 is not installed (make deps-test, with PyPI)")
        self.log = open(self.place + "/log", "wb")
        at_end(self.log.close)
        self.process = subprocess.Popen(self.command(), stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, cwd=self.place,
                                        env=os.environ | {"HOME": self.place})
        at_end(self.end)
        self.s3 = boto3.client("s3", endpoint_url=self.url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1",
                               config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=20))
        at_end(self.s3.close)
        wait_for(self.has_bucket, f"{self.name} to answer", 60)

    def end(self):
        self.process.kill()
        self.process.wait()

    def has_bucket(self):
        if self.process.poll() is not None:
            with open(self.place + "/log", errors="replace") as f:
                raise AssertionError(f.read()[-3000:])
        try:
            self.s3.create_bucket(Bucket=BUCKET)
            return True
        except Exception:  # botocore makes classes of its own for each refusal, and it does not answer yet
            return False

    def keys(self, prefix):
        """{key below the prefix: its size}."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix + "/")
        return {o["Key"][len(prefix) + 1:]: o["Size"] for page in pages for o in page.get("Contents", [])}

    def get(self, prefix, key):
        return self.s3.get_object(Bucket=BUCKET, Key=f"{prefix}/{key}")["Body"].read()

    def put(self, prefix, key, data):
        self.s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=data)

    def delete(self, prefix, key):
        self.s3.delete_object(Bucket=BUCKET, Key=f"{prefix}/{key}")

    def uploads(self):
        """Keys of uploads in parts that are neither complete nor aborted."""
        return [u["Key"] for u in self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


class Moto(Store):
    name = "moto"

    def command(self):
        pytest.importorskip("moto", reason="moto is not installed (make deps-test, with PyPI)")
        return [sys.executable, "-c", "import moto.server; moto.server.main()", "-H", "127.0.0.1", "-p", str(self.port)]


class SeaweedFS(Store):
    """Its four servers in one process. Beside each port it listens on one that is 10,000 above."""

    name = "seaweedfs"

    def command(self):
        weed = os.path.join(os.path.dirname(sys.executable), "weed")
        if not os.path.exists(weed):
            pytest.skip("SeaweedFS is not installed (make deps-test, with PyPI)")
        with open(self.place + "/s3.json", "w") as f:
            f.write('{"identities": [{"name": "tests", "credentials": [{"accessKey": "%s", "secretKey": "%s"}],'
                    ' "actions": ["Admin", "Read", "Write", "List"]}]}' % (KEY, SECRET))
        ports = [f"-{name}.port={free_port()}" for name in ("master", "volume", "filer")]
        ports += [f"-{name}.port.grpc={free_port()}" for name in ("master", "volume", "filer", "s3")]
        return [weed, "server", f"-dir={self.place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.port={self.port}",
                f"-s3.config={self.place}/s3.json", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-volume.max=50", "-master.volumeSizeLimitMB=64", *ports]


class Meddler(Proxy):
    """One request a connection. A rule is a function of method, path and the server's answer (head, body) that returns what is sent
    instead, None for nothing but the end of the connection; `rule` names those that it is for, and how often it holds. `seen` has the
    requests."""

    def __init__(self, store):
        self.rules, self.seen = [], []
        super().__init__(store.port)

    def rule(self, method, part, change, times=1 << 30):
        """For requests of that method whose path contains part."""
        self.rules.append([method, part, change, times])

    def count(self, method, part):
        return sum(m == method and part in p for m, p in self.seen)

    def serve(self, near, far):
        head, body = self.message(near, near)
        method, path = head.split(b" ", 2)[:2]
        method, path = method.decode(), path.decode()
        self.seen.append((method, path))
        change = self.changes(method, path)
        lines = [line for line in head.split(b"\r\n") if line and not line.lower().startswith((b"expect:", b"connection:"))]
        far.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
        answer = b""
        while data := far.recv(1 << 16):
            answer += data
        if change:
            answer = change(*answer.split(b"\r\n\r\n", 1))
        if answer:
            near.sendall(answer)

    def changes(self, method, path):
        for rule in self.rules:
            if rule[0] == method and rule[1] in path and rule[3] > 0:
                rule[3] -= 1
                return rule[2]
        return None

    @staticmethod
    def message(source, back):
        data = b""
        while b"\r\n\r\n" not in data:
            more = source.recv(1 << 16)
            if not more:
                raise ConnectionAbortedError
            data += more
        head, body = data.split(b"\r\n\r\n", 1)
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(b":") for line in head.split(b"\r\n")[1:])}
        if fields.get(b"expect"):
            back.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(body) < int(fields.get(b"content-length", 0)):
            more = source.recv(1 << 20)
            if not more:
                raise ConnectionAbortedError
            body += more
        return head + b"\r\n", body


def answer(status, body=b"", **headers):
    """A rule: this instead of what the server answers, which may have done what was asked or not."""
    fields = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    return lambda *_: f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n{fields}Connection: close\r\n\r\n".encode() + body


def error(status, code, **headers):
    return answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the test</Message></Error>".encode(),
                  Content_Type="application/xml", **headers)


def cut(n):
    """A rule: n bytes of the body, and the end of the connection."""
    return lambda head, body: head + b"\r\n\r\n" + body[:n]


PAGE = b"<!DOCTYPE html><html><body>Bad gateway, please log in</body></html>"
