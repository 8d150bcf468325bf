"""What a server has to stand: large and slow requests, clients that leave, floods, broken HTTP. Each has its exact answer, and the
process stays up."""

import json
import resource
import socket
import struct
import threading
import time
import unittest

from support import SANITIZED, Server, embed, floats_of_base64, main, raw_request, read_answer, wait_until


class Sizes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("bert-cls", options=["--cache-entries", 0, "--max-body", 8 << 20])

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_8000_texts_come_back_in_order(self):
        texts = [f"text number {i} " + "and more " * (i % 7) for i in range(8000)]
        answer = self.server.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"})
        self.assertEqual(answer.status, 200)
        data = answer.json["data"]
        self.assertEqual(len(data), 8000)
        some = [0, 1, 63, 64, 4095, 7999]
        for i, vector in zip(some, embed("bert-cls", *[texts[i] for i in some])):
            want = list(struct.unpack(f"<{len(vector)}f", struct.pack(f"<{len(vector)}f", *vector)))
            self.assertEqual(floats_of_base64(data[i]["embedding"]), want)

    def test_more_texts_than_allowed(self):
        self.assertEqual(self.server.post("/v1/embeddings", {"input": ["a"] * 10001}).status, 422)
        self.assertEqual(self.server.post("/embed", {"inputs": ["a"] * 10001}).status, 413)

    def test_a_body_of_50_mb_is_told_so_and_read_to_its_end(self):
        before = self.server.memory_kib()
        body = b'{"input":"' + b"x" * (50 << 20) + b'"}'
        answer = self.server.post("/v1/embeddings", body)
        self.assertEqual(answer.status, 413)
        self.assertEqual(answer.json["error"]["code"], "request_too_large")
        if not SANITIZED:
            self.assertLess(self.server.memory_kib() - before, 20 << 10)

    def test_a_large_body_in_chunks_of_unknown_length(self):
        with self.server.socket() as client:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
            piece = b"x" * 65536
            for _ in range(9 * 16):
                client.sendall(b"10000\r\n" + piece + b"\r\n")
            client.sendall(b"0\r\n\r\n")
            self.assertEqual(read_answer(client.makefile("rb")).status, 413)

    def test_who_waits_for_leave_is_told_before_sending(self):
        with self.server.socket() as client:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: t\r\nContent-Length: 99000000\r\nExpect: 100-continue\r\n\r\n")
            answer = read_answer(client.makefile("rb"))
            self.assertEqual((answer.status, answer.headers["connection"]), (413, "close"))

    def test_a_text_of_many_megabytes_is_cut_or_refused(self):
        text = "word " * (1 << 20)
        answer = self.server.post("/embed", {"inputs": text})
        self.assertEqual((answer.status, answer.json["error_type"]), (413, "Validation"))
        answer = self.server.post("/embed", {"inputs": text, "truncate": True})
        self.assertEqual(answer.json, embed("bert-cls", "word " * 1000))

    def test_memory_is_given_back(self):
        body = {"input": ["some text " * 20] * 4000}
        self.server.post("/v1/embeddings", body)
        before = self.server.memory_kib()
        for _ in range(4):
            self.assertEqual(self.server.post("/v1/embeddings", body).status, 200)
        if not SANITIZED:
            self.assertLess(self.server.memory_kib() - before, 30 << 10)


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("bert-cls")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_pipelined_requests_are_answered_in_order(self):
        texts = ["first", "second", "third"]
        with self.server.socket() as client:
            client.sendall(b"".join(raw_request("/embed", {"inputs": text}) for text in texts))
            file = client.makefile("rb")
            answers = [read_answer(file) for _ in texts]
            self.assertEqual([a.json[0] for a in answers], embed("bert-cls", *texts))

    def test_a_connection_serves_many_requests(self):
        with self.server.socket() as client:
            file = client.makefile("rb")
            for _ in range(50):
                client.sendall(raw_request("/embed", {"inputs": "a"}))
                self.assertEqual(read_answer(file).status, 200)

    def test_chunked_bodies(self):
        body = json.dumps({"inputs": "a text"}).encode()
        with self.server.socket() as client:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 5):
                piece = body[i:i + 5]
                client.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            client.sendall(b"0\r\n\r\n")
            self.assertEqual(read_answer(client.makefile("rb")).json, embed("bert-cls", "a text"))

    def test_bad_chunked_encoding_is_a_bad_request(self):
        for chunk in (b"zz\r\nabc\r\n", b"-5\r\nabc\r\n", b"ffffffffffffffffff\r\n", b"3\r\nabcdef\r\n"):
            with self.server.socket() as client:
                client.sendall(b"POST /embed HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
                answer = read_answer(client.makefile("rb"))
                self.assertEqual(answer.status if answer else 400, 413 if chunk.startswith(b"fff") else 400, chunk)

    def test_floods_of_headers_are_refused(self):
        with self.server.socket() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n")
            try:
                for i in range(20000):
                    client.sendall(f"X-{i}: {'y' * 100}\r\n".encode())
                client.sendall(b"\r\n")
            except (BrokenPipeError, ConnectionResetError):
                pass
            try:
                answer = read_answer(client.makefile("rb"))
                self.assertEqual(answer.status if answer else 431, 431)
            except ConnectionResetError:
                pass
        with self.server.socket() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\nX: " + b"y" * 30000 + b"\r\nY: " + b"y" * 30000 + b"\r\n\r\n")
            self.assertEqual(read_answer(client.makefile("rb")).status, 431)
        self.assertEqual(self.server.get("/health").status, 200)

    def test_what_is_not_http(self):
        for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"GET\r\n\r\n", b"\0" * 100 + b"\r\n\r\n",
                     b"POST /embed HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n",
                     b"POST /embed HTTP/1.1\r\nHost: t\r\nContent-Length: abc\r\n\r\n"):
            with self.server.socket(timeout=5) as client:
                client.sendall(junk)
                client.shutdown(socket.SHUT_WR)
                try:
                    answer = read_answer(client.makefile("rb"))
                    self.assertIn(answer.status if answer else 400, (400, 404, 405, 505), junk)
                except (ConnectionResetError, ValueError, IndexError):
                    pass
                except TimeoutError:
                    pass  # libmicrohttpd waits for more of what may be a request: --idle-timeout ends that
        self.assertEqual(self.server.get("/health").status, 200)

    def test_a_client_that_leaves_cancels_its_work(self):
        body = {"input": ["some text " * 40] * 10000}
        with self.server.socket() as client:
            client.sendall(raw_request("/v1/embeddings", body))
            self.assertTrue(wait_until(lambda: b"lattice_queue_requests 1" in self.server.get("/metrics").body, 20))
        begin = time.monotonic()
        counted = b'route="/v1/embeddings",method="POST",status="499"}'
        self.assertTrue(wait_until(lambda: counted in self.server.get("/metrics").body, 20))
        self.assertIn(b"lattice_queue_requests 0", self.server.get("/metrics").body)
        self.assertLess(time.monotonic() - begin, 10)

    def test_a_half_closed_socket_is_a_client_that_left(self):
        with self.server.socket() as client:
            client.sendall(raw_request("/v1/embeddings", {"input": ["some text " * 40] * 3000}))
            self.assertTrue(wait_until(lambda: b"lattice_queue_requests 1" in self.server.get("/metrics").body, 20))
            client.shutdown(socket.SHUT_WR)
            answer = read_answer(client.makefile("rb"))
            self.assertEqual((answer.status, answer.json["error"]["code"]), (499, "client_closed_request"))


class Times(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("bert-cls", options=["--receive-timeout", 2, "--idle-timeout", 4, "--total-timeout", 60])

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_a_slow_sender_gets_408(self):
        with self.server.socket(timeout=20) as client:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n")
            begin, data = time.monotonic(), b""
            client.settimeout(0.5)
            while time.monotonic() - begin < 15 and not data:
                client.sendall(b"x")
                try:
                    data = client.recv(1000)
                except TimeoutError:
                    pass
            self.assertTrue(data.startswith(b"HTTP/1.1 408 "), data)
            self.assertLess(time.monotonic() - begin, 6)

    def test_slow_headers_end_the_connection(self):
        with self.server.socket(timeout=20) as client:
            begin = time.monotonic()
            try:
                for byte in b"GET /health HTTP/1.1\r\nHost: " + b"t" * 200:
                    client.sendall(bytes([byte]))
                    time.sleep(0.1)
                    if time.monotonic() - begin > 10:
                        self.fail("still there")
            except (BrokenPipeError, ConnectionResetError):
                pass

    def test_an_idle_connection_ends(self):
        with self.server.socket(timeout=20) as client:
            client.sendall(raw_request("/health", b"", "GET"))
            file = client.makefile("rb")
            read_answer(file)
            begin = time.monotonic()
            self.assertEqual(file.read(), b"")
            self.assertLess(time.monotonic() - begin, 12)

    def test_an_answer_that_takes_too_long_is_504(self):
        with Server("bert-cls", options=["--total-timeout", 0.3, "--cache-entries", 0]) as server:
            answer = server.post("/v1/embeddings", {"input": ["some text " * 100] * 10000, "truncate": True})
            self.assertEqual((answer.status, answer.json["error"]["code"]), (504, "timeout"))
            self.assertEqual(server.post("/v1/embeddings", {"input": "a"}).status, 200)


class Many(unittest.TestCase):
    def test_idle_connections_by_the_thousand(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(10000, hard - 200)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted + 200), hard))
        with Server("bert-cls") as server:
            before = server.memory_kib()
            clients = []
            try:
                for _ in range(wanted):
                    clients.append(socket.create_connection(("127.0.0.1", server.port)))
                self.assertTrue(wait_until(lambda: f"lattice_connections {wanted + 1}".encode() in server.get("/metrics").body, 30))
                self.assertEqual(server.post("/embed", {"inputs": "a"}).json, embed("bert-cls", "a"))
                if not SANITIZED:
                    self.assertLess(server.memory_kib() - before, 500 << 10)
                clients[0].sendall(raw_request("/embed", {"inputs": "a"}))
                self.assertEqual(read_answer(clients[0].makefile("rb")).status, 200)
            finally:
                for client in clients:
                    client.close()
            self.assertTrue(wait_until(lambda: b"lattice_connections 1\n" in server.get("/metrics").body, 30))

    def test_connections_over_the_limit_are_told_so(self):
        with Server("bert-cls", options=["--max-connections", 5]) as server:
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
            for client in clients:
                client.sendall(raw_request("/health", b"", "GET"))
                self.assertEqual(read_answer(client.makefile("rb")).status, 200)
            self.assertEqual(server.get("/health").status, 503)
            for client in clients:
                client.close()
            self.assertTrue(wait_until(lambda: server.get("/health").status == 200))

    def test_over_capacity_there_are_429s_and_nothing_else(self):
        with Server("bert-cls", options=["--max-queue-tokens", 2000, "--max-batch-tokens", 256, "--cache-entries", 0]) as server:
            statuses, lock = {}, threading.Lock()

            def ask():
                for _ in range(10):
                    answer = server.post("/v1/embeddings", {"input": ["some text " * 20] * 30})
                    with lock:
                        statuses[answer.status] = statuses.get(answer.status, 0) + 1
                    if answer.status == 429:
                        assert answer.json["error"]["type"] == "rate_limit_error", answer.body
                        assert int(answer.headers["retry-after"]) >= 1

            threads = [threading.Thread(target=ask) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(set(statuses), {200, 429}, statuses)
            answer = server.post("/embed", {"inputs": "a"})
            self.assertEqual(answer.status, 200)


class Cache(unittest.TestCase):
    def test_found_vectors_equal_computed_ones(self):
        texts = [f"text {i}" for i in range(40)]
        with Server("bert-cls") as server:
            first = server.post("/embed", {"inputs": texts[:20]}).json
            both = server.post("/embed", {"inputs": texts}).json
            again = server.post("/embed", {"inputs": texts[::-1]}).json
            self.assertEqual(both, embed("bert-cls", *texts))
            self.assertEqual(first, both[:20])
            self.assertEqual(again, both[::-1])
            metrics = server.get("/metrics").body.decode()
            self.assertIn("lattice_cache_hits_total 60\n", metrics)
            self.assertIn("lattice_texts_total 40\n", metrics)


if __name__ == "__main__":
    main()
