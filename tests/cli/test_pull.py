#!/usr/bin/env python3
"""lattice pull against a local server that speaks a Hugging Face endpoint's two paths, and breaks in every way that matters."""

import hashlib
import http.server
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse

LATTICE = os.environ["LATTICE"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "f" * 40
REPO = "org/tiny-model"


def safetensors(n):
    header = json.dumps({"w": {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + os.urandom(4 * n)


class Repository:
    """Files of a repository; large ones are listed with a sha256, as files kept in LFS are."""

    def __init__(self, files):
        self.files = dict(files)
        self.commit = COMMIT
        self.sha256 = {}  # overrides
        self.sizes = {}  # overrides
        self.extra = []  # further siblings

    def siblings(self):
        listed = []
        for name, data in self.files.items():
            entry = {"rfilename": name, "size": self.sizes.get(name, len(data)), "blobId": "0" * 40}
            if name.endswith((".safetensors", ".bin")):
                digest = self.sha256.get(name, hashlib.sha256(data).hexdigest())
                entry["lfs"] = {"sha256": digest, "size": entry["size"], "pointerSize": 134}
            else:
                entry["lfs"] = None
            listed.append(entry)
        return listed + self.extra


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub = self.server.hub
        hub.requests.append((self.path, dict(self.headers)))
        if hub.fail_next:
            status, headers = hub.fail_next.pop(0)
            return self.answer(status, b"<html>not the body</html>", headers)
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        if path == f"/api/models/{REPO}/revision/{hub.revision}" and url.query == "blobs=true":
            listing = {"id": REPO, "sha": hub.repository.commit, "private": False, "siblings": hub.repository.siblings()}
            return self.answer(200, json.dumps(listing).encode())
        prefix = f"/{REPO}/resolve/{hub.revision}/"
        if path.startswith(prefix):
            name = path[len(prefix):]
            if name in hub.repository.files:
                headers = [("X-Repo-Commit", hub.resolve_commit or hub.repository.commit)]
                if hub.storage and name.endswith(".safetensors"):
                    return self.answer(302, b"elsewhere", headers + [("Location", f"{hub.storage}/blob/{name}?signature=s")])
                if hub.cache_redirect:
                    return self.answer(307, b"", headers + [("Location", f"/api/resolve-cache/{name}")])
                return self.send_file(name, headers)
        for prefix in ("/blob/", "/api/resolve-cache/"):
            if path.startswith(prefix):
                return self.send_file(path[len(prefix):], [])
        return self.answer(404, b'{"error":"not found"}', [("X-Error-Message", "Entry not found")])

    def send_file(self, name, headers):
        hub = self.server.hub
        data = hub.repository.files[name]
        start = 0
        wanted = self.headers.get("Range")
        if wanted and not hub.ignore_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                return self.answer(416, b"", [("Content-Range", f"bytes */{len(data)}")])
        body = data[start:]
        hub.starts.setdefault(name, []).append(start)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start + hub.range_shift}-{len(data) - 1}/{len(data)}")
        for header in headers:
            self.send_header(*header)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = hub.cuts.get(name)
        if cut:
            sent = cut.pop(0)
            self.wfile.write(body[:sent])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if hub.stall.get(name):
            self.wfile.write(body[: hub.stall[name]])
            self.wfile.flush()
            hub.stalled.set()
            hub.release.wait(30)
            self.close_connection = True
            return
        self.wfile.write(body)


class Hub:
    def __init__(self, repository):
        self.repository = repository
        self.revision = "main"
        self.requests = []
        self.starts = {}  # file → offsets at which transfers began
        self.fail_next = []  # (status, headers) of the next requests
        self.cuts = {}  # file → bytes after which each transfer breaks off
        self.stall = {}
        self.stalled = threading.Event()
        self.release = threading.Event()
        self.storage = None  # another origin that holds the large files
        self.cache_redirect = False
        self.ignore_ranges = False
        self.range_shift = 0
        self.resolve_commit = None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients break off on purpose
        self.server.hub = self
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


def single_file_repository():
    return Repository({
        "config.json": b'{"model_type":"bert"}',
        "tokenizer.json": b'{"version":"1.0"}',
        "tokenizer_config.json": b"{}",
        "modules.json": b"[]",
        "1_Pooling/config.json": b'{"pooling_mode_mean_tokens":true}',
        "2_Dense/config.json": b"{}",
        "2_Dense/model.safetensors": safetensors(8),
        "model.safetensors": safetensors(50_000),
        "README.md": b"# not needed",
        "pytorch_model.bin": b"not needed",
        "onnx/model.onnx": b"not needed",
        "openvino/config.json": b"not needed",
    })


NEEDED = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json",
    "2_Dense/model.safetensors", "model.safetensors",
}


class Pull(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp(prefix="lattice-pull-")
        self.hub = Hub(single_file_repository())
        self.target = os.path.join(self.home, "lattice", "models", *REPO.split("/"))

    def tearDown(self):
        self.hub.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def environment(self, **extra):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
        return clean | {"XDG_DATA_HOME": self.home, "HF_ENDPOINT": self.hub.url} | extra

    def pull(self, *arguments, repo=REPO, **environment):
        return subprocess.run([LATTICE, "pull", repo, *arguments], env=self.environment(**environment), capture_output=True, text=True, timeout=500)

    def files(self, folder=None):
        folder = folder or self.target
        found = set()
        for root, _, names in os.walk(folder):
            found |= {os.path.relpath(os.path.join(root, name), folder) for name in names}
        return found - {"lattice-pull.json"}

    def assert_pulled(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, self.target + "\n")
        self.assertEqual(self.files(), NEEDED)
        for name in NEEDED:
            with open(os.path.join(self.target, name), "rb") as file:
                self.assertEqual(file.read(), self.hub.repository.files[name], name)
        self.assertFalse(os.path.exists(self.target + ".partial"))

    def assert_fails(self, result, *words):
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("lattice: error: "), result.stderr)
        for word in words:
            self.assertIn(word, lines[0])
        self.assertFalse(os.path.exists(self.target))

    # ---- what is fetched

    def test_takes_what_inference_needs_and_prints_the_folder(self):
        self.assert_pulled(self.pull())

    def test_json_names_folder_and_commit(self):
        result = self.pull("--json")
        self.assertEqual(json.loads(result.stdout), {"folder": self.target, "repository": REPO, "revision": "main", "commit": COMMIT})

    def test_endpoint_option_wins_over_the_environment(self):
        self.assert_pulled(self.pull("--endpoint", self.hub.url + "/", HF_ENDPOINT="http://127.0.0.1:9"))

    def test_to_names_the_folder(self):
        self.target = os.path.join(self.home, "deep", "er", "model")
        self.assert_pulled(self.pull("--to", self.target + "/"))

    def test_revision_is_escaped(self):
        self.hub.revision = "refs/pr/1"
        self.assert_pulled(self.pull("--revision", "refs/pr/1"))
        self.assertTrue(self.hub.requests[0][0].endswith("/revision/refs%2Fpr%2F1?blobs=true"))

    def test_shards_are_those_that_the_index_names(self):
        shards = {f"model-0000{i}-of-00002.safetensors": safetensors(1000 + i) for i in (1, 2)}
        index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}}
        self.hub.repository.files |= shards | {"model.safetensors.index.json": json.dumps(index).encode(), "model-old.safetensors": b"stray"}
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(self.files(), NEEDED - {"model.safetensors"} | set(shards) | {"model.safetensors.index.json"})

    def test_an_empty_file_is_fetched(self):
        self.hub.repository.files["merges.txt"] = b""
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(os.path.getsize(os.path.join(self.target, "merges.txt")), 0)

    def test_second_pull_fetches_nothing(self):
        self.assert_pulled(self.pull())
        self.hub.requests.clear()
        self.assert_pulled(self.pull())
        self.assertEqual(len(self.hub.requests), 1)

    # ---- redirects and the token

    def test_redirects_are_followed_within_and_beyond_the_endpoint(self):
        storage = Hub(self.hub.repository)
        self.addCleanup(storage.close)
        self.hub.storage = storage.url
        self.hub.cache_redirect = True
        self.assert_pulled(self.pull())
        self.assertTrue(any(path.startswith("/blob/model.safetensors") for path, _ in storage.requests))

    def test_token_goes_to_the_endpoint_and_never_further(self):
        storage = Hub(self.hub.repository)
        self.addCleanup(storage.close)
        self.hub.storage = storage.url
        self.hub.cache_redirect = True
        self.assert_pulled(self.pull(HF_TOKEN="hf_secret"))
        for path, headers in self.hub.requests:
            self.assertEqual(headers.get("Authorization"), "Bearer hf_secret", path)
        self.assertTrue(storage.requests)
        for path, headers in storage.requests:
            self.assertNotIn("Authorization", headers, path)

    def test_token_with_a_line_break_is_refused(self):
        self.assert_fails(self.pull(HF_TOKEN="x\r\nHost: evil"), "HF_TOKEN")
        self.assertEqual(self.hub.requests, [])

    def test_redirect_to_a_file_is_refused(self):
        self.hub.storage = "file:///etc"
        self.assert_fails(self.pull(), "model.safetensors")

    def test_endless_redirects_end(self):
        self.hub.storage = f"{self.hub.url}/{REPO}/resolve/main/model.safetensors#"
        self.assert_fails(self.pull(), "model.safetensors")
        self.assertLess(len(self.hub.requests), 40)

    # ---- interruption

    def test_broken_transfer_is_taken_up_where_it_broke(self):
        self.hub.cuts["model.safetensors"] = [70_000, 50_000]
        self.assert_pulled(self.pull())
        self.assertEqual(self.hub.starts["model.safetensors"], [0, 70_000, 120_000])

    def test_broken_transfer_starts_anew_where_ranges_are_ignored(self):
        self.hub.cuts["model.safetensors"] = [70_000]
        self.hub.ignore_ranges = True
        self.assert_pulled(self.pull())

    def test_a_wrong_range_is_not_appended(self):
        self.hub.cuts["model.safetensors"] = [70_000]
        self.hub.range_shift = 5
        self.assert_pulled(self.pull())
        self.assertEqual(self.hub.starts["model.safetensors"], [0, 70_000, 0])

    def interrupt(self, number):
        self.hub.stall["model.safetensors"] = 90_000
        process = subprocess.Popen([LATTICE, "pull", REPO], env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(self.hub.stalled.wait(300))
        part = os.path.join(self.target + ".partial", "model.safetensors.part")
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and (not os.path.exists(part) or os.path.getsize(part) < 90_000):
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        self.hub.stall.clear()
        self.hub.release.set()
        return process.returncode, out, err

    def test_interrupted_pull_goes_on_when_given_again(self):
        code, out, err = self.interrupt(signal.SIGINT)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("interrupted", err)
        self.assertFalse(os.path.exists(self.target))
        self.hub.starts.clear()
        self.assert_pulled(self.pull())
        self.assertEqual(self.hub.starts, {"model.safetensors": [90_000]})

    def test_killed_pull_goes_on_when_given_again(self):
        code, _, _ = self.interrupt(signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)
        self.hub.starts.clear()
        self.assert_pulled(self.pull())
        self.assertEqual(self.hub.starts, {"model.safetensors": [90_000]})

    def test_parts_of_another_commit_are_not_mixed_in(self):
        self.interrupt(signal.SIGKILL)
        self.hub.repository.commit = OTHER_COMMIT
        self.hub.repository.files["model.safetensors"] = safetensors(50_000)
        self.hub.repository.files["config.json"] = b'{"model_type":"new!"}'
        self.assert_pulled(self.pull())

    def test_two_pulls_at_once_do_not_write_the_same_files(self):
        self.hub.stall["model.safetensors"] = 90_000
        process = subprocess.Popen([LATTICE, "pull", REPO], env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertTrue(self.hub.stalled.wait(300))
        self.assert_fails(self.pull(), "another pull")
        process.kill()
        process.wait()

    def test_temporary_errors_pass(self):
        self.hub.fail_next = [(503, ()), (429, (("Retry-After", "1"),))]
        self.assert_pulled(self.pull())

    # ---- what does not check out

    def test_wrong_sha256_is_an_error_that_names_the_file(self):
        self.hub.repository.sha256["model.safetensors"] = "0" * 64
        self.assert_fails(self.pull(), f"{REPO}/model.safetensors", "sha256", "0" * 64)
        self.assertNotIn("model.safetensors.part", self.files(self.target + ".partial"))

    def test_more_bytes_than_listed_is_an_error(self):
        self.hub.repository.sizes["model.safetensors"] = 1000
        self.assert_fails(self.pull(), "model.safetensors", "more than 1000 bytes")

    def test_fewer_bytes_than_listed_is_an_error(self):
        self.hub.repository.sizes["tokenizer_config.json"] = 3
        self.assert_fails(self.pull(), "tokenizer_config.json", "2 of 3 bytes")

    def test_change_of_the_repository_meanwhile_is_an_error(self):
        self.hub.resolve_commit = OTHER_COMMIT
        self.assert_fails(self.pull(), "changed", OTHER_COMMIT)

    def test_unknown_repository_says_where_it_was_sought(self):
        self.assert_fails(self.pull(repo="org/absent"), "org/absent", "not found", self.hub.url, "Entry not found")

    def test_access_denied_says_what_to_do(self):
        self.hub.fail_next = [(401, ())]
        self.assert_fails(self.pull(), REPO, "HF_TOKEN")
        self.hub.fail_next = [(401, ())]
        self.assert_fails(self.pull(HF_TOKEN="hf_wrong"), REPO, "HF_TOKEN gives no access")
        self.hub.fail_next = [(403, (("X-Error-Message", "Access to it is \x1b[31mrestricted"),))]
        result = self.pull()
        self.assert_fails(result, "restricted", "ask for it")
        self.assertNotIn("\x1b", result.stderr)

    def test_nobody_listening_fails_at_once(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        began = time.monotonic()
        self.assert_fails(self.pull("--endpoint", f"http://127.0.0.1:{port}"), REPO)
        self.assertLess(time.monotonic() - began, 3)

    def test_listing_that_is_not_json_is_an_error(self):
        self.hub.fail_next = [(200, ())]
        self.assert_fails(self.pull(), "/api/models/")

    def test_repository_without_safetensors_is_refused_before_any_download(self):
        del self.hub.repository.files["model.safetensors"]
        self.assert_fails(self.pull(), "model.safetensors")
        self.assertEqual(len(self.hub.requests), 1)

    def test_repository_without_config_is_refused(self):
        del self.hub.repository.files["config.json"]
        self.assert_fails(self.pull(), "config.json")

    # ---- hostile names

    def test_names_that_leave_the_folder_are_not_fetched(self):
        for name in ("../../evil.json", "/etc/evil", "1_Pooling/../../../config.json", "1_Pooling/../config.json", "..", "1_/config.json", "1_A/b/config.json", ""):
            self.hub.repository.extra.append({"rfilename": name, "size": 2})
        self.assert_pulled(self.pull())
        self.assertFalse(any("evil" in path or ".." in path for path, _ in self.hub.requests))

    def test_index_that_names_a_path_is_an_error(self):
        for name in ("../evil.safetensors", "/tmp/evil.safetensors", "a/b.safetensors", ".hidden.safetensors", "config.json", ""):
            index = {"weight_map": {"a": name}}
            self.hub.repository.files["model.safetensors.index.json"] = json.dumps(index).encode()
            self.hub.repository.extra = [{"rfilename": name, "size": 2}]
            self.assert_fails(self.pull(), "model.safetensors.index.json", f"'{name}'")
            shutil.rmtree(self.target + ".partial")

    def test_index_that_names_an_absent_shard_is_an_error(self):
        self.hub.repository.files["model.safetensors.index.json"] = b'{"weight_map":{"a":"model-00001-of-00001.safetensors"}}'
        self.assert_fails(self.pull(), "model-00001-of-00001.safetensors")

    def test_a_link_in_place_of_a_part_is_not_followed(self):
        self.interrupt(signal.SIGKILL)
        part = os.path.join(self.target + ".partial", "model.safetensors.part")
        victim = os.path.join(self.home, "victim")
        with open(victim, "wb") as file:
            file.write(b"precious")
        os.remove(part)
        os.symlink(victim, part)
        self.assert_fails(self.pull(), "model.safetensors.part")
        with open(victim, "rb") as file:
            self.assertEqual(file.read(), b"precious")

    # ---- what is there already

    def test_a_folder_of_something_else_is_not_touched(self):
        os.makedirs(self.target)
        with open(os.path.join(self.target, "mine"), "w") as file:
            file.write("mine")
        result = self.pull()
        self.assertEqual(result.returncode, 1)
        self.assertIn("something else", result.stderr)
        self.assertEqual(self.files(), {"mine"})

    def test_another_commit_in_place_is_not_overwritten(self):
        self.assert_pulled(self.pull())
        self.hub.repository.commit = OTHER_COMMIT
        result = self.pull()
        self.assertEqual(result.returncode, 1)
        self.assertIn(COMMIT, result.stderr)
        self.assertIn(OTHER_COMMIT, result.stderr)

    def test_wrong_usage(self):
        for repo in ("tiny", "a/b/c", "../x", "org/..", "org/.x", "/x", "org/", "org/a b", "-x/y", "org/x%2f"):
            result = subprocess.run([LATTICE, "pull", "--", repo], env=self.environment(), capture_output=True, text=True)
            self.assertEqual(result.returncode, 2, repo)
            self.assertIn("ORG/NAME", result.stderr)
        for endpoint in ("ftp://x", "nonsense", "file:///x"):
            self.assert_fails(self.pull("--endpoint", endpoint), "endpoint")


if __name__ == "__main__":
    unittest.main()
