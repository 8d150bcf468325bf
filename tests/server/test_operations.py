"""Numbers, description, limits of time and size, and the end of the server."""

import json
import re
import shutil
import subprocess
import threading
import time
import unittest

from support import SANITIZED, Server, main, raw_request, read_answer


class Metrics(unittest.TestCase):
    def test_metrics_are_prometheus_text(self):
        with Server("bert-cls") as server:
            for _ in range(3):
                server.post("/v1/embeddings", {"input": ["a", "b"]})
            server.post("/v1/embeddings", {"input": []})
            server.get("/nowhere")
            answer = server.get("/metrics")
            self.assertTrue(answer.headers["content-type"].startswith("text/plain; version=0.0.4"))
            text = answer.body.decode()
            self.assertIn('lattice_requests_total{route="/v1/embeddings",method="POST",status="200"} 3', text)
            self.assertIn('lattice_requests_total{route="/v1/embeddings",method="POST",status="400"} 1', text)
            self.assertIn('lattice_requests_total{route="other",method="",status="404"} 1', text)
            self.assertRegex(text, r"(?m)^lattice_texts_total 2$")  # the others were found in the cache
            for name in ("lattice_queue_tokens", "lattice_batch_tokens_bucket", "process_resident_memory_bytes"):
                self.assertRegex(text, rf"(?m)^{name}")
            for line in text.splitlines():
                self.assertRegex(line, r'^(# (HELP|TYPE) \S+ .+|[a-z_]+(\{[^}]*\})? -?[0-9.e+]+)$')
            promtool = shutil.which("promtool")
            if promtool:
                checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True)
                self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_openapi_names_every_route(self):
        with Server("bert-cls") as server:
            paths = server.get("/openapi.json").json["paths"]
            for path in ("/v1/embeddings", "/v2/rerank", "/embed", "/metrics"):
                self.assertIn(path, paths)
            for path, operations in paths.items():
                for method, operation in operations.items():
                    self.assertTrue(operation["summary"], path)
                    answer = server.request(method.upper(), path, b"" if method == "post" else None)
                    self.assertNotIn(answer.status, (404, 405), path)


class Ending(unittest.TestCase):
    def test_sigterm_finishes_what_is_in_flight(self):
        server = Server("bert-cls", options=["--grace", 60])
        answers, n = [], 500 if SANITIZED else 5000
        body = {"input": ["some text " * 30] * n, "encoding_format": "base64"}
        client = threading.Thread(target=lambda: answers.append(server.post("/v1/embeddings", body)))
        client.start()
        while server.get("/metrics").body.find(b"lattice_queue_requests 1") < 0 and client.is_alive():
            time.sleep(0.002)
        in_flight = client.is_alive()
        server.stop()
        client.join()
        self.assertTrue(in_flight, "the request was too short for this test")
        self.assertEqual(answers[0].status, 200)
        self.assertEqual(len(answers[0].json["data"]), n)

    def test_sigterm_ends_idle_connections(self):
        server = Server("bert-cls")
        with server.socket() as idle:
            idle.sendall(raw_request("/health", b"", "GET"))
            self.assertEqual(read_answer(idle.makefile("rb")).status, 200)
            begin = time.monotonic()
            server.stop()
            self.assertLess(time.monotonic() - begin, 5)

    def test_a_port_in_use_is_an_error(self):
        with Server("bert-cls") as server:
            with self.assertRaisesRegex(AssertionError, "in use"):
                Server("bert-cls", options=["--port", server.port])


class UnixSockets(unittest.TestCase):
    def test_a_unix_socket_serves_too(self):
        import os
        import socket
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lattice.sock")
            for _ in range(2):  # the second start finds no stale socket in its way
                with Server("bert-cls", options=["--unix", path]) as server:
                    self.assertEqual(server.unix, path)
                    with socket.socket(socket.AF_UNIX) as client:
                        client.connect(path)
                        client.sendall(raw_request("/v1/embeddings", {"input": "a"}))
                        self.assertEqual(read_answer(client.makefile("rb")).status, 200)
                    self.assertEqual(server.get("/health").status, 200)
                self.assertFalse(os.path.exists(path))


class Origins(unittest.TestCase):
    def test_cors_is_answered_only_when_asked_for(self):
        headers = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
        with Server("bert-cls") as server:
            answer = server.request("OPTIONS", "/v1/embeddings", headers=headers)
            self.assertEqual(answer.status, 405)
            self.assertNotIn("access-control-allow-origin", answer.headers)
        with Server("bert-cls", options=["--cors-origin", "http://a.example", "--api-key", "k"]) as server:
            answer = server.request("OPTIONS", "/v1/embeddings", headers=headers)
            self.assertEqual(answer.status, 204)
            self.assertEqual(answer.headers["access-control-allow-origin"], "http://a.example")
            self.assertIn("POST", answer.headers["access-control-allow-methods"])
            self.assertIn("authorization", answer.headers["access-control-allow-headers"].lower())


if __name__ == "__main__":
    main()
