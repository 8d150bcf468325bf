"""A server process for tests, and clients of the standard library: one that speaks JSON, one that writes bytes to a socket."""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

LATTICE = os.environ.get("LATTICE", "build/lattice")
SOURCE = pathlib.Path(os.environ.get("LATTICE_SOURCE", "."))
FIXTURES = SOURCE / "tests" / "fixtures"
# Sanitizers keep memory back and take their time: sizes and seconds say nothing there.
SANITIZED = any(word in pathlib.Path(LATTICE).read_bytes() for word in (b"__asan_init", b"__tsan_init"))


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        # NaN and Infinity are no JSON, whatever Python's reader takes.
        return json.loads(self.body, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))


def memory_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


class Server:
    """`lattice serve` on a free port. Models: names of fixtures, NAME=PATH, or names of fetched models; `process` is subprocess's."""

    def __init__(self, *models, options=(), **process):
        self.command = [LATTICE, "serve", "--port", "0", "--threads", "2"]
        for model in models:
            self.command += ["-m", str(FIXTURES / model) if (FIXTURES / model).exists() else str(model)]
        self.command += [str(option) for option in options]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **process)
        self.port, self.unix = None, None
        while self.port is None:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the server has ended: {self.process.stderr.read()}")
            address = line.removeprefix("listening on ").strip()
            if address.startswith("unix:"):
                self.unix = address[5:]
            else:
                self.port = int(address.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()

    def stop(self, expect=0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=120)
        self.errors = err
        if expect is not None and self.process.returncode != expect:
            raise AssertionError(f"the server ended with {self.process.returncode}: {err}")

    def request(self, method, path, body=None, headers=None, timeout=120):
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def socket(self, timeout=60):
        return contextlib.closing(socket.create_connection(("127.0.0.1", self.port), timeout=timeout))

    def memory_kib(self):
        return memory_kib(self.process.pid)


def raw_request(path, body, method="POST", headers=""):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def read_answer(file):
    """The next answer from a socket's file; None when the connection has ended."""
    line = file.readline()
    if not line:
        return None
    status, headers = int(line.split()[1]), {}
    while (line := file.readline()) not in (b"\r\n", b""):
        key, value = line.decode("latin-1").split(":", 1)
        headers[key.strip().lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(file.readline(), 16):
            body += file.read(size)
            file.readline()
        file.readline()
    else:
        body = file.read(int(headers.get("content-length", 0)))
    return Answer(status, headers, body)


def floats_of_base64(text):
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def run(*command, text=None):
    """`lattice COMMAND`; its standard output."""
    result = subprocess.run([LATTICE, *map(str, command)], input=text, capture_output=True, text=True)
    if result.returncode:
        raise AssertionError(result.stderr)
    return result.stdout


def embed(model, *texts, options=()):
    """Vectors as the command line gives them."""
    lines = run("embed", "-m", FIXTURES / model, *options, "--", *texts).splitlines()
    return [json.loads(line)["embedding"] for line in lines]


def golden(model):
    return json.loads((FIXTURES / model / "golden.json").read_text())


def wait_until(true, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def main():
    import unittest

    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=1)
