"""Faults from outside while serving: a cache that cannot be written or is damaged, kills, files that are deleted."""

import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from support import FIXTURES, SANITIZED, Server, embed, main

TEXTS = [f"text {i}" for i in range(400)]
PLAIN = {}


def plain(texts):
    """What the command line computes, without any cache."""
    missing = [text for text in texts if text not in PLAIN]
    if missing:
        PLAIN.update(zip(missing, embed("bert-cls", *missing)))
    return [PLAIN[text] for text in texts]


def has_disk_cache():
    with tempfile.TemporaryDirectory() as folder:
        try:
            Server("bert-cls", options=["--cache", os.path.join(folder, "cache")]).stop()
        except AssertionError:
            return False
    return True


def warnings(server):
    return [line for line in server.errors.splitlines() if "cache" in line]


@unittest.skipUnless(has_disk_cache(), "built without LMDB")
class Cache(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "cache")

    def tearDown(self):
        self.folder.cleanup()

    def serves_right(self, server, texts):
        answer = server.post("/embed", {"inputs": texts})
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.json, plain(texts))

    def test_a_full_disk_is_warned_of_once(self):
        """Stands in for it: a process whose files may not grow past 128 KiB. Such a write fails, and raises a signal besides."""
        with Server("bert-cls", options=["--cache", self.path],
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (128 << 10, 128 << 10))) as server:
            for _ in range(2):
                for i in range(0, len(TEXTS), 40):
                    self.serves_right(server, TEXTS[i:i + 40])
            metrics = server.get("/metrics").body.decode()
        self.assertGreater(int(re.search(r"(?m)^lattice_cache_hits_total (\d+)", metrics)[1]), 300, "the memory still serves")
        self.assertEqual(len(warnings(server)), 1, server.errors)
        self.assertIn("without writing it", server.errors)
        with Server("bert-cls", options=["--cache", self.path]) as server:  # what was written is sound
            self.serves_right(server, TEXTS)
        self.assertEqual(warnings(server), [])

    def test_a_folder_that_cannot_be_written_to_is_warned_of_once(self):
        # What permissions forbid, root may do; another user may not.
        os.chmod(self.folder.name, 0o555)
        other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            server = Server("bert-cls", options=["--cache", self.path], **other)
        except PermissionError:
            self.skipTest("the program cannot be run as another user")
        finally:
            os.chmod(self.folder.name, 0o755)
        with server:
            self.serves_right(server, TEXTS[:50])
            self.serves_right(server, TEXTS[:50])
        self.assertEqual(len(warnings(server)), 1, server.errors)
        self.assertIn("without it", server.errors)
        self.assertFalse(os.path.exists(self.path))

    def test_a_damaged_file_is_reported_and_set_aside(self):
        with Server("bert-cls", options=["--cache", self.path]) as server:
            self.serves_right(server, TEXTS)
        data = bytearray(pathlib.Path(self.path).read_bytes())
        dice = random.Random(3)
        for at in range(2 * 4096, len(data), 4096):
            data[at + dice.randrange(4096)] ^= 0x10
        pathlib.Path(self.path).write_bytes(data)
        with Server("bert-cls", options=["--cache", self.path]) as server:
            self.serves_right(server, TEXTS)
        self.assertEqual(len(warnings(server)), 1, server.errors)
        self.assertIn("damaged", server.errors)
        self.assertEqual(pathlib.Path(self.path + ".damaged-1").read_bytes(), data)
        with Server("bert-cls", options=["--cache", self.path]) as server:  # the new one is in use
            self.serves_right(server, TEXTS)
            self.assertIn("lattice_cache_disk_hits_total 400\n", server.get("/metrics").body.decode())
        self.assertEqual(warnings(server), [])

    def test_killed_again_and_again_it_serves_what_is_computed(self):
        """The writer itself is killed 20 times by test_cache_disk; this is the whole server, under load."""
        dice = random.Random(11)
        found = 0
        for round_ in range(3 if SANITIZED else 8):
            server = Server("bert-cls", options=["--cache", self.path])
            texts = dice.sample(TEXTS, 100)
            self.serves_right(server, texts)
            found += int(re.search(r"(?m)^lattice_cache_disk_hits_total (\d+)", server.get("/metrics").body.decode())[1])

            def ask():
                try:
                    while True:
                        server.post("/embed", {"inputs": [f"{dice.random()} text"] * 20})
                except OSError:
                    pass
                except Exception as error:  # http.client's, of an answer that ends in its middle
                    self.assertIn(type(error).__name__, ("RemoteDisconnected", "IncompleteRead", "BadStatusLine"))

            client = threading.Thread(target=ask)
            client.start()
            time.sleep(dice.random() * 0.2)
            server.process.send_signal(signal.SIGKILL)
            client.join()
            server.stop(expect=-signal.SIGKILL)
            self.assertEqual(warnings(server), [], f"round {round_}")
        self.assertGreater(found, 0, "nothing outlived a kill")


class Model(unittest.TestCase):
    def test_a_model_whose_files_are_deleted_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "model")
            shutil.copytree(FIXTURES / "bert-cls", copy)
            with Server(f"bert-cls={copy}", options=["--cache-entries", 1000]) as server:
                shutil.rmtree(copy)
                for i in range(0, 100, 20):
                    self.assertEqual(server.post("/embed", {"inputs": TEXTS[i:i + 20]}).json, plain(TEXTS[i:i + 20]))
                self.assertEqual(server.get("/health").status, 200)
            self.assertEqual(server.errors, "")


if __name__ == "__main__":
    main()
