#!/usr/bin/env python3
"""lattice embed --cache and lattice cache, as a user runs them."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

LATTICE = os.environ["LATTICE"]
MODEL = os.path.join(os.environ["LATTICE_SOURCE"], "tests", "fixtures", "bert-cls")


def lattice(*arguments, code=0, data=None):
    result = subprocess.run([LATTICE, *arguments], input=data, capture_output=True)
    if result.returncode != code:
        raise AssertionError(f"{arguments}: {result.returncode}: {result.stderr.decode()}")
    return result


class Cache(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lattice-cache-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "vectors")

    def embed(self, *arguments):
        return lattice("embed", "-m", MODEL, *arguments, "one text", "another text").stdout

    def stats(self):
        return json.loads(lattice("cache", "stats", self.path, "--json").stdout)

    def test_vectors_are_the_same_with_a_cache_and_from_it(self):
        plain = self.embed()
        self.assertEqual(self.embed("--cache", self.path), plain)
        self.assertEqual(self.stats()["entries"], 2)
        self.assertEqual(self.embed("--cache", self.path), plain)
        self.embed("--cache", self.path, "--pooling", "max")
        self.assertEqual(self.stats()["entries"], 4)

    def test_the_flat_file_goes_out_and_comes_back(self):
        plain = self.embed("--cache", self.path)
        flat = lattice("cache", "export", self.path).stdout
        vectors, at = [], 0
        while at < len(flat):
            _, dim = struct.unpack_from("<QI", flat, at)
            vectors.append(struct.unpack_from(f"<{dim}f", flat, at + 12))
            at += 12 + 4 * dim
        expected = [struct.unpack(f"<{dim}f", struct.pack(f"<{dim}f", *json.loads(line)["embedding"])) for line in plain.splitlines()]
        self.assertEqual(sorted(vectors), sorted(expected))

        lattice("cache", "clear", self.path)
        self.assertEqual(self.stats()["entries"], 0)
        lattice("cache", "import", self.path, data=flat)
        self.assertEqual(self.stats()["unverified_entries"], 2)
        self.assertEqual(self.embed("--cache", self.path, "--cache-unverified"), plain)
        self.assertEqual(self.stats()["entries"], 0)  # what is not verified is not made so by being used
        self.embed("--cache", self.path)
        self.assertEqual(self.stats()["entries"], 2)

    def test_a_damaged_file_is_reported_and_set_aside(self):
        plain = self.embed("--cache", self.path)
        with open(self.path, "r+b") as file:
            file.seek(2 * os.sysconf("SC_PAGESIZE"))  # behind the heads
            file.write(b"\xff" * (os.path.getsize(self.path) - file.tell()))
        self.assertIn("damaged", lattice("cache", "stats", self.path, code=1).stderr.decode())
        result = lattice("embed", "-m", MODEL, "--cache", self.path, "one text", "another text")
        self.assertEqual(result.stdout, plain)
        self.assertIn("set aside", result.stderr.decode())
        self.assertTrue(os.path.exists(self.path + ".damaged-1"))
        self.assertEqual(self.stats()["entries"], 2)

    def test_what_is_no_cache_is_an_error(self):
        with open(self.path, "w") as file:
            file.write("notes\n" * 3000)
        for command in (("cache", "stats", self.path), ("embed", "-m", MODEL, "--cache", self.path, "a text")):
            self.assertIn("not an embedding cache", lattice(*command, code=1).stderr.decode())
        self.assertIn("no such file", lattice("cache", "stats", self.path + "-absent", code=1).stderr.decode())
        self.assertIn("no such file", lattice("cache", "clear", self.path + "-absent", code=1).stderr.decode())
        self.assertFalse(os.path.exists(self.path + "-absent"))
        lattice("cache", "look", self.path, code=2)
        lattice("embed", "-m", MODEL, "--cache-unverified", "a text", code=2)


if __name__ == "__main__":
    unittest.main()
