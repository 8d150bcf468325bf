"""Text Embeddings Inference's routes, as its clients call them."""

import json
import math
import unittest

from support import FIXTURES, Server, embed, golden, main, run

TEXTS = ["a text", "Grüße, Welt 🙂", "the same " * 20]


def rerank(model, query, documents, *options):
    """Rows (index, score), best first, as the command line gives them."""
    lines = run("rerank", "-m", FIXTURES / model, "-q", query, *options, "--", *documents).splitlines()
    return [(row["index"], row["score"]) for row in map(json.loads, lines)]


class Tei(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("bert-cls", "bert-mean-f16", "cross-encoder-1", "cross-encoder-3", "qwen3-reranker", "qwen3-embedding",
                            options=["--max-client-batch", 100])

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body, status=200):
        answer = self.server.post(path, body)
        self.assertEqual(answer.status, status, answer.body)
        if status != 200:
            self.assertEqual(set(answer.json), {"error", "error_type"})
        return answer.json

    def test_embed_gives_the_vectors_of_the_command_line(self):
        for path in ("/embed", "/"):
            self.assertEqual(self.post(path, {"inputs": TEXTS}), embed("bert-cls", *TEXTS))
            self.assertEqual(self.post(path, {"inputs": "a text"}), embed("bert-cls", "a text"))

    def test_normalize(self):
        raw = self.post("/embed", {"inputs": TEXTS, "model": "qwen3-embedding", "normalize": False})
        self.assertEqual(raw, embed("qwen3-embedding", *TEXTS, options=["--no-normalize"]))
        unit = self.post("/embed", {"inputs": TEXTS, "model": "bert-cls", "normalize": True})
        for vector in unit:
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)

    def test_prompts_by_name(self):
        name = next(name for name, text in json.loads(
            (FIXTURES / "bert-mean-f16/config_sentence_transformers.json").read_text())["prompts"].items() if text)
        got = self.post("/embed", {"inputs": TEXTS, "model": "bert-mean-f16", "prompt_name": name})
        self.assertEqual(got, embed("bert-mean-f16", *TEXTS, options=["--prompt-name", name]))
        self.post("/embed", {"inputs": TEXTS, "prompt_name": "nobody"}, 422)

    def test_truncation(self):
        text = " ".join(f"w{i}" for i in range(3000))
        self.assertEqual(self.post("/embed", {"inputs": text}, 413)["error_type"], "Validation")
        right = self.post("/embed", {"inputs": text, "truncate": True})
        self.assertEqual(right, embed("bert-cls", text))
        left = self.post("/embed", {"inputs": text, "truncate": True, "truncation_direction": "Left"})
        self.assertNotEqual(left, right)

    def test_embed_all_gives_a_vector_a_token(self):
        answer = self.post("/embed_all", {"inputs": ["a text", "b"]})
        ids = [json.loads(line)["ids"] for line in run("tokenize", "-m", FIXTURES / "bert-cls", "--", "a text", "b").splitlines()]
        self.assertEqual([len(text) for text in answer], [len(i) for i in ids])
        # cls pooling takes the first token's
        for vectors, vector in zip(answer, embed("bert-cls", "a text", "b", options=["--no-normalize"])):
            for a, b in zip(vectors[0], vector):
                self.assertAlmostEqual(a, b, places=5)

    def test_rerank_scores_are_those_of_the_command_line(self):
        documents = ["one document", "another", "a third one about texts", ""]
        for model in ("cross-encoder-1", "qwen3-reranker"):
            rows = self.post("/rerank", {"query": "texts", "texts": documents, "model": model})
            self.assertEqual([(row["index"], row["score"]) for row in rows], rerank(model, "texts", documents))
            raw = self.post("/rerank", {"query": "texts", "texts": documents, "model": model, "raw_scores": True, "return_text": True})
            self.assertEqual([(row["index"], row["score"]) for row in raw], rerank(model, "texts", documents, "--raw"))
            self.assertEqual([row["text"] for row in raw], [documents[row["index"]] for row in raw])

    def test_rerank_cuts_documents_where_asked(self):
        words = [f"word{i}" for i in range(3000)]
        for model in ("cross-encoder-1", "qwen3-reranker"):
            body = {"query": "texts", "texts": [" ".join(words)], "model": model, "raw_scores": True}
            right, left = (self.post("/rerank", {**body, "truncation_direction": d})[0]["score"] for d in ("Right", "Left"))
            self.assertNotEqual(left, right)
            self.assertEqual(self.post("/rerank", body)[0]["score"], right)
            # What is cut away changes nothing, what is kept does.
            for position in (10, -10):
                other = words.copy()
                other[position] = "another"
                scores = [self.post("/rerank", {**body, "texts": [" ".join(other)], "truncation_direction": d})[0]["score"]
                          for d in ("Right", "Left")]
                self.assertEqual([s == t for s, t in zip(scores, (right, left))], [position < 0, position > 0], model)
        self.post("/rerank", {"query": "a", "texts": ["a"], "truncation_direction": "Up"}, 400)

    def test_predict(self):
        case = golden("cross-encoder-3")["cases"][0]
        pair = [case["query"], case["document"]]
        single = self.post("/predict", {"inputs": pair, "model": "cross-encoder-3", "raw_scores": True})
        self.assertEqual(sorted(row["score"] for row in single), [row["score"] for row in single][::-1])
        for row, logit in zip(single, sorted(case["logits"], reverse=True)):
            self.assertAlmostEqual(row["score"], logit, places=4)
        many = self.post("/predict", {"inputs": [pair, ["a text"]], "model": "cross-encoder-3"})
        self.assertEqual([len(rows) for rows in many], [3, 3])
        self.assertAlmostEqual(sum(row["score"] for row in many[1]), 1, places=5)
        self.assertEqual(self.post("/predict", {"inputs": "a text", "model": "cross-encoder-3"}), many[1])
        for body in ({"inputs": ["a", "b", "c"]}, {"inputs": [["a", "b", "c"]]}, {"inputs": [[]]}, {"inputs": 1}):
            self.post("/predict", body, 400)
        self.post("/predict", {"inputs": []}, 422)

    def test_similarity(self):
        body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
        answer = self.post("/similarity", body)
        vectors = embed("bert-cls", *TEXTS)
        norm = [math.sqrt(sum(x * x for x in v)) for v in vectors]
        for k, value in enumerate(answer):
            self.assertAlmostEqual(value, sum(a * b for a, b in zip(vectors[0], vectors[k])) / norm[0] / norm[k], places=5)
        self.post("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400)
        self.post("/similarity", {"inputs": {"sentences": ["a"]}}, 400)

    def test_tokenize_and_decode(self):
        text = "Grüße, Welt 🙂"
        tokens = self.post("/tokenize", {"inputs": [text, ""]})
        line = json.loads(run("tokenize", "-m", FIXTURES / "bert-cls", "--", text))
        self.assertEqual([t["id"] for t in tokens[0]], line["ids"])
        for token in tokens[0]:
            self.assertEqual(set(token), {"id", "text", "special", "start", "stop"})
            if token["special"]:
                self.assertEqual((token["start"], token["stop"]), (None, None))
            else:
                self.assertEqual(text.encode()[token["start"]:token["stop"]].decode(), token["text"])
        bare = self.post("/tokenize", {"inputs": text, "add_special_tokens": False})
        self.assertEqual([t["id"] for t in bare[0]], [t["id"] for t in tokens[0] if not t["special"]])
        ids = [t["id"] for t in tokens[0]]
        whole = self.post("/decode", {"ids": ids, "skip_special_tokens": False})[0]
        self.assertEqual(self.post("/decode", {"ids": [ids, ids]}), self.post("/decode", {"ids": ids}) * 2)
        self.assertNotEqual(whole, self.post("/decode", {"ids": ids})[0])
        self.post("/decode", {"ids": [4000000]}, 422)
        self.post("/decode", {"ids": ["a"]}, 400)

    def test_what_is_refused(self):
        for path, body, status in (("/embed", {"inputs": []}, 422), ("/embed", {}, 422), ("/embed", {"inputs": 5}, 400),
                                   ("/embed", {"inputs": "a", "dimensions": 100000}, 422),
                                   ("/embed", {"inputs": [[4000000]]}, 422), ("/embed", {"inputs": ["a"] * 101}, 413),
                                   ("/rerank", {"query": "a", "texts": []}, 422), ("/rerank", {"texts": ["a"]}, 422),
                                   ("/rerank", {"query": "a", "texts": ["a"], "model": "cross-encoder-3"}, 422),
                                   ("/rerank", {"query": "a", "texts": ["a"], "model": "bert-cls"}, 422),
                                   ("/embed", {"inputs": "a", "model": "nobody"}, 404)):
            self.post(path, body, status)
        self.assertEqual(self.server.post("/embed", b"\xff").status, 400)


if __name__ == "__main__":
    main()
