"""Cohere's and Jina's routes."""

import json
import struct
import unittest

from support import FIXTURES, Server, embed, floats_of_base64, main, run

TEXTS = ["a text", "another one", "Grüße"]


class Cohere(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("cross-encoder-1", "qwen3-embedding")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body, status=200):
        answer = self.server.post(path, body)
        self.assertEqual(answer.status, status, answer.body)
        if status != 200:
            self.assertEqual(set(answer.json), {"message"})
        return answer.json

    def test_rerank_on_every_route(self):
        documents = ["one document", {"text": "another"}, "a third one", {"text": "", "title": "x"}]
        texts = [d if isinstance(d, str) else d["text"] for d in documents]
        lines = run("rerank", "-m", FIXTURES / "cross-encoder-1", "-q", "one", "--", *texts).splitlines()
        want = [(row["index"], row["score"]) for row in map(json.loads, lines)]
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            answer = self.post(path, {"query": "one", "documents": documents, "return_documents": True})
            self.assertEqual([(r["index"], r["relevance_score"]) for r in answer["results"]], want)
            self.assertEqual([r["document"]["text"] for r in answer["results"]], [texts[i] for i, _ in want])
            self.assertGreater(answer["usage"]["total_tokens"], 0)
        self.assertEqual(len(self.post("/v2/rerank", {"query": "one", "documents": texts, "top_n": 2})["results"]), 2)
        self.assertEqual(len(self.post("/v2/rerank", {"query": "one", "documents": texts, "top_n": 99})["results"]), 4)
        self.assertNotIn("document", self.post("/v2/rerank", {"query": "one", "documents": texts})["results"][0])

    def test_rerank_cuts_long_documents(self):
        self.post("/v2/rerank", {"query": "one", "documents": ["word " * 5000]})

    def test_what_rerank_refuses(self):
        for documents in ([], None, 123, [1, 2, 3], "text", [{}], [{"title": "x"}]):
            self.post("/v2/rerank", {"query": "q", "documents": documents}, 400)
            self.assertIn(self.server.post("/rerank", {"query": "q", "documents": documents}).status, (400, 422))
        for body in ({"documents": ["a"]}, {"query": "q"}, {"query": 1, "documents": ["a"]},
                     {"query": "q", "documents": ["a"], "top_n": 0}, {"query": "q", "documents": ["a"], "top_n": -1},
                     {"query": "q", "documents": ["a"], "model": "qwen3-embedding"},
                     {"query": "q", "documents": ["a"], "texts": ["a"]}):
            self.post("/v2/rerank", body, 400)
        self.post("/v2/rerank", {"query": "q", "documents": ["a"], "model": "nobody"}, 404)

    def test_embedding_types_agree_with_the_command_line(self):
        types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
        got = self.post("/v2/embed", {"texts": TEXTS, "input_type": "search_document", "embedding_types": types})
        floats = embed("qwen3-embedding", *TEXTS, options=["--prompt-name", "document"])
        self.assertEqual(got["embeddings"]["float"], floats)
        for name in ("int8", "ubinary"):
            self.assertEqual(got["embeddings"][name],
                             embed("qwen3-embedding", *TEXTS, options=["--prompt-name", "document", "--output-type", name]))
        self.assertEqual(got["embeddings"]["uint8"], [[x + 128 for x in row] for row in got["embeddings"]["int8"]])
        self.assertEqual(got["embeddings"]["binary"], [[x - 128 for x in row] for row in got["embeddings"]["ubinary"]])
        for row, text in zip(floats, got["embeddings"]["base64"]):
            self.assertEqual(list(struct.unpack(f"<{len(row)}f", struct.pack(f"<{len(row)}f", *row))), floats_of_base64(text))
        self.assertEqual(got["texts"], TEXTS)
        self.assertEqual(got["response_type"], "embeddings_by_type")

    def test_input_type_chooses_the_prompt(self):
        query = self.post("/v2/embed", {"texts": TEXTS, "input_type": "search_query"})["embeddings"]["float"]
        self.assertEqual(query, embed("qwen3-embedding", *TEXTS, options=["--prompt-name", "query"]))

    def test_truncate(self):
        text = " ".join(f"w{i}" for i in range(9000))
        end = self.post("/v2/embed", {"texts": [text]})["embeddings"]["float"]
        self.assertEqual(end, self.post("/v2/embed", {"texts": [text], "truncate": "END"})["embeddings"]["float"])
        self.assertNotEqual(end, self.post("/v2/embed", {"texts": [text], "truncate": "START"})["embeddings"]["float"])
        self.post("/v2/embed", {"texts": [text], "truncate": "NONE"}, 400)
        for body in ({"texts": []}, {"texts": "a"}, {}, {"texts": ["a"], "truncate": "MIDDLE"},
                     {"texts": ["a"], "embedding_types": ["int4"]}, {"texts": ["a"], "output_dimension": 0}):
            self.post("/v2/embed", body, 400)


if __name__ == "__main__":
    main()
