"""A while of mixed load: right answers and nothing but 200s and the refusals asked for, while memory, descriptors and threads stay
as they are.

LATTICE_SOAK_SECONDS (30) and LATTICE_SOAK_MODEL (a fixture) make it the long run:

    LATTICE_SOAK_SECONDS=600 LATTICE_SOAK_MODEL=all-minilm-l6-v2 python3 tests/server/test_soak.py"""

import collections
import http.client
import json
import os
import pathlib
import random
import socket
import threading
import time
import unittest

from support import FIXTURES, SANITIZED, Server, golden, main, raw_request

SECONDS = float(os.environ.get("LATTICE_SOAK_SECONDS", 10 if SANITIZED else 30))
EMBEDDER = os.environ.get("LATTICE_SOAK_MODEL", FIXTURES / "bert-cls")
KNOWN = [f"text {i} of those that come again" for i in range(20)]
CASE = golden("tiny-dictionary")["cases"][0]
CONNECTIONS, THREADS, PAUSE = 64, 4, 0.02
IDLE = 20  # seconds, after which a client does not trust its connection: the server ends those that idle for a minute


class Load:
    """Clients of several kinds, each with a pause between requests: the point is variety and time, not speed."""

    def __init__(self, server, vectors):
        self.server, self.vectors = server, vectors
        self.end = time.monotonic() + SECONDS
        self.lock = threading.Lock()
        self.statuses, self.wrong = collections.Counter(), []

    def count(self, kind, status, fault=None):
        with self.lock:
            self.statuses[kind, status] += 1
            if fault:
                self.wrong.append((kind, fault))

    def post(self, connection, kind, path, body):
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        data = response.read()
        self.count(kind, response.status)
        return response.status, data

    def step(self, connection, dice):
        kind = dice.random()
        if kind < 0.5:  # texts that were never seen, and one that was
            i = dice.randrange(len(KNOWN))
            texts = [" ".join(str(dice.random()) for _ in range(dice.randrange(1, 12))) for _ in range(dice.randrange(6))]
            status, data = self.post(connection, "embed", "/embed", {"inputs": [*texts, KNOWN[i]], "truncate": True})
            if status == 200 and json.loads(data)[-1] != self.vectors[i]:
                self.count("embed", status, KNOWN[i])
        elif kind < 0.7:
            self.post(connection, "openai", "/v1/embeddings", {"input": KNOWN[:dice.randrange(1, 20)], "encoding_format": "base64", "model": "embedder"})
        elif kind < 0.8:
            body = {"messages": [{"role": "user", "content": CASE["question"]}], "max_tokens": 8, "temperature": 0, "stream": dice.random() < 0.5}
            self.post(connection, "chat", "/v1/chat/completions", body)
        elif kind < 0.85:
            self.post(connection, "bad", "/embed", {"inputs": []})
        elif kind < 0.9:
            connection.close()  # the next request opens it again
        elif kind < 0.95:  # asks for a long answer and leaves
            with socket.create_connection(("127.0.0.1", self.server.port)) as client:
                client.sendall(raw_request("/v1/completions", {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}))
                client.recv(100)
        else:
            connection.request("GET", dice.choice(["/metrics", "/health", "/nothing", "/"]))
            connection.getresponse().read()

    def clients(self, seed):
        dice = random.Random(seed)
        connections = [http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120) for _ in range(CONNECTIONS // THREADS)]
        used = {}
        while time.monotonic() < self.end:
            connection = dice.choice(connections)
            if time.monotonic() - used.get(connection, 0) > IDLE:
                connection.close()
            used[connection] = time.monotonic()
            try:
                self.step(connection, dice)
            except (OSError, http.client.HTTPException) as error:
                self.count("lost", 0, repr(error))
                connection.close()
            time.sleep(PAUSE)
        for connection in connections:
            connection.close()

    def bursts(self):
        """More than the queue takes, every two seconds."""
        def ask():
            answer = self.server.post("/v1/embeddings", {"model": "embedder", "input": [f"{random.random()} some text " * 3] * 40, "truncate": True})
            self.count("burst", answer.status)
        while time.monotonic() < self.end:
            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(2)


class Soak(unittest.TestCase):
    def test_memory_stays_flat_and_answers_right(self):
        # Few vectors are kept, so that the cache evicts all the time.
        options = ["--max-queue-tokens", 6000, "--cache-entries", 500, "--prefix-cache", 1 << 20]
        with Server(f"embedder={EMBEDDER}", "tiny-dictionary", options=options) as server:
            vectors = [server.post("/embed", {"inputs": text}).json[0] for text in KNOWN]
            load = Load(server, vectors)
            threads = [threading.Thread(target=load.clients, args=(i,)) for i in range(THREADS)] + [threading.Thread(target=load.bursts)]
            for thread in threads:
                thread.start()
            process = pathlib.Path(f"/proc/{server.process.pid}")
            begin, rows = time.monotonic(), []
            while any(thread.is_alive() for thread in threads):
                rows.append((time.monotonic() - begin, server.memory_kib(), len(os.listdir(process / "fd")), len(os.listdir(process / "task"))))
                time.sleep(0.25)
            thirds = [rows[len(rows) // 3:2 * len(rows) // 3], rows[2 * len(rows) // 3:]]
            memory, descriptors, tasks = ([max(row[k] for row in third) for third in thirds] for k in (1, 2, 3))
            print(f"{SECONDS:.0f} s: {dict(load.statuses)}; of the second and the last third, most KiB {memory}, descriptors {descriptors}, "
                  f"threads {tasks}")
            self.assertEqual(load.wrong, [])
            allowed = {("embed", 200), ("openai", 200), ("chat", 200), ("burst", 200), ("burst", 429), ("bad", 422),
                       ("embed", 429), ("openai", 429), ("chat", 429)}
            self.assertLessEqual(set(load.statuses), allowed)
            self.assertGreater(load.statuses["embed", 200], SECONDS / 4)
            self.assertEqual(tasks[0], tasks[1])
            self.assertLessEqual(descriptors[1], descriptors[0] + 20)
            if not SANITIZED:
                self.assertLess(memory[1] - memory[0], 4 << 10)


if __name__ == "__main__":
    main()
