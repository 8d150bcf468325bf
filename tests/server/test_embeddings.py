"""POST /v1/embeddings, and what every route has in common."""

import json
import unittest

from support import Server, embed, floats_of_base64, golden, main

TEXTS = ["a text", "", "Grüße, Welt 🙂", "the same " * 20]


class Embeddings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("bert-cls", "qwen3-embedding", options=["--max-client-batch", 100])

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def embed(self, **body):
        answer = self.server.post("/v1/embeddings", body)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def error(self, body, status=400):
        answer = self.server.post("/v1/embeddings", body)
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(set(answer.json), {"error"})
        self.assertEqual(set(answer.json["error"]), {"message", "type", "param", "code"})
        return answer.json["error"]

    def test_vectors_are_those_of_the_command_line_bit_for_bit(self):
        answer = self.embed(input=TEXTS, model="bert-cls")
        self.assertEqual([item["embedding"] for item in answer["data"]], embed("bert-cls", *TEXTS))
        self.assertEqual([item["index"] for item in answer["data"]], [0, 1, 2, 3])
        self.assertEqual(answer["object"], "list")
        self.assertEqual(answer["model"], "bert-cls")

    def test_one_text_stands_for_a_list_of_one(self):
        self.assertEqual(self.embed(input="a text")["data"][0]["embedding"], embed("bert-cls", "a text")[0])

    def test_base64_is_the_same_floats(self):
        floats = self.embed(input=TEXTS)["data"]
        coded = self.embed(input=TEXTS, encoding_format="base64")["data"]
        import struct
        for a, b in zip(floats, coded):
            packed = struct.pack(f"<{len(a['embedding'])}f", *a["embedding"])
            self.assertEqual(list(struct.unpack(f"<{len(packed) // 4}f", packed)), floats_of_base64(b["embedding"]))

    def test_ids_are_used_as_given(self):
        cases = golden("bert-cls")["cases"][:3]
        answer = self.embed(input=[case["ids"] for case in cases], model="bert-cls")
        for item, case in zip(answer["data"], cases):
            for a, b in zip(item["embedding"], case["embedding"]):
                self.assertAlmostEqual(a, b, delta=5e-6)
        one = self.embed(input=cases[0]["ids"])
        self.assertEqual(one["data"][0]["embedding"], answer["data"][0]["embedding"])
        self.assertEqual(answer["usage"]["total_tokens"], sum(len(case["ids"]) for case in cases))

    def test_dimensions_cut_and_normalise(self):
        vector = self.embed(input="a text", model="qwen3-embedding", dimensions=32)["data"][0]["embedding"]
        self.assertEqual(len(vector), 32)
        self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)

    def test_what_is_refused(self):
        self.assertIn("dimension", self.error({"input": "a", "dimensions": 0})["message"])
        self.assertIn("dimension", self.error({"input": "a", "dimensions": -1})["message"])
        self.assertIn("dimension", self.error({"input": "a", "dimensions": 100000})["message"])
        for body in ({"input": []}, {"input": None}, {}, {"input": 7}, {"input": ["a", 1]}, {"input": [["a"]]}, {"input": [[]]},
                     {"input": {"a": 1}}, {"input": "a", "encoding_format": "hex"}, [], "x", 1, None):
            self.error(body)
        self.assertIn("4000000", self.error({"input": [[4000000]]})["message"])
        self.assertEqual(self.error({"input": "a", "model": "nobody"}, 404)["code"], "model_not_found")
        self.assertIn("100", self.error({"input": ["a"] * 101}, 422)["message"])

    def test_bytes_that_are_not_json_or_not_utf8(self):
        for body in (b"", b"{", b'{"input":"a"', b'{"input":NaN}', b'{"input":"\xff"}', b'{"input":"a"} x', b"[" * 1000,
                     b'{"input":"a","input":"b"}', b'{"input":"\x01"}'):
            self.error(body)

    def test_lone_surrogates_and_nul(self):
        body = b'{"input":["a \\ud83d b","a\\u0000b","a"]}'
        answer = self.server.post("/v1/embeddings", body).json
        vectors = [item["embedding"] for item in answer["data"]]
        self.assertEqual(vectors[0], self.embed(input="a \ufffd b")["data"][0]["embedding"])
        self.assertEqual(vectors[1], self.embed(input="a\0b")["data"][0]["embedding"])
        self.assertNotEqual(vectors[1], vectors[2], "NUL has cut the text")

    def test_long_texts_are_refused_unless_asked_for(self):
        text = "word " * 5000
        error = self.error({"input": ["a", text]})
        self.assertEqual(error["code"], "context_length_exceeded")
        self.assertIn("text 1", error["message"])
        answer = self.embed(input=text, truncate=True)
        self.assertEqual(answer["data"][0]["embedding"], embed("bert-cls", text)[0])

    def test_headers(self):
        answer = self.server.post("/v1/embeddings", {"input": "a"}, headers={"X-Request-Id": "abc-1"})
        self.assertEqual(answer.headers["x-request-id"], "abc-1")
        for name in ("x-compute-time", "x-total-time", "x-queue-time", "x-inference-time"):
            self.assertRegex(answer.headers[name], r"^\d+$")
        self.assertEqual(int(answer.headers["x-tokens"]), answer.json["usage"]["total_tokens"])
        self.assertNotEqual(self.server.get("/health").headers["x-request-id"], self.server.get("/health").headers["x-request-id"])
        self.assertNotIn("access-control-allow-origin", answer.headers)

    def test_models_info_health(self):
        self.assertEqual([m["id"] for m in self.server.get("/v1/models").json["data"]], ["bert-cls", "qwen3-embedding"])
        info = self.server.get("/info").json
        self.assertEqual(info["model_id"], "bert-cls")
        self.assertEqual(len(info["models"]), 2)
        self.assertEqual(self.server.get("/health").status, 200)

    def test_routes_and_methods(self):
        self.assertEqual(self.server.get("/nothing").status, 404)
        answer = self.server.get("/v1/embeddings")
        self.assertEqual((answer.status, answer.headers["allow"]), (405, "POST"))
        self.assertEqual(self.server.request("HEAD", "/health").status, 200)
        self.assertEqual(self.server.get("/v1/nothing").json["error"]["type"], "invalid_request_error")


class Keys(unittest.TestCase):
    def test_a_key_is_asked_for_everywhere_but_health(self):
        with Server("bert-cls", options=["--api-key", "secret"]) as server:
            self.assertEqual(server.get("/health").status, 200)
            for path in ("/info", "/v1/models"):
                self.assertEqual(server.get(path).status, 401)
            for given in ("", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer SECRET", "Basic secret"):
                answer = server.post("/v1/embeddings", {"input": "a"}, headers={"Authorization": given})
                self.assertEqual(answer.status, 401, given)
                self.assertEqual(answer.json["error"]["code"], "invalid_api_key")
            answer = server.post("/v1/embeddings", {"input": "a"}, headers={"Authorization": "Bearer secret"})
            self.assertEqual(answer.status, 200)


if __name__ == "__main__":
    main()
