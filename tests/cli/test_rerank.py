#!/usr/bin/env python3
"""lattice rerank and lattice logits as a user runs them: scores of the fixtures, order, labels, lines of JSON, wrong usage."""

import json
import math
import os
import subprocess
import unittest

LATTICE = os.environ["LATTICE"]
FIXTURES = os.path.join(os.environ.get("LATTICE_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..")), "tests", "fixtures")
ONE = os.path.join(FIXTURES, "cross-encoder-1")
THREE = os.path.join(FIXTURES, "cross-encoder-3")
JUDGE = os.path.join(FIXTURES, "qwen3-reranker")
XLMR = os.path.join(FIXTURES, "xlmr-cross-encoder")
QUERY = "what is the capital of france"
DOCUMENTS = ["Paris is the capital of France.", "Berlin is a city in Germany.", "", "word " * 300, "Berlin"]


def golden(folder):
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        return json.load(f)


def run(*args, stdin=""):
    return subprocess.run([LATTICE, *args], input=stdin, capture_output=True, text=True, timeout=500)


class Rerank(unittest.TestCase):
    def lines(self, *args, stdin=""):
        r = run("rerank", *args, stdin=stdin)
        self.assertEqual(r.returncode, 0, r.stderr)
        return [json.loads(line) for line in r.stdout.splitlines()]

    def refused(self, code, message, *args, stdin=""):
        r = run("rerank", *args, stdin=stdin)
        self.assertEqual(r.returncode, code, r.stderr)
        self.assertEqual(r.stdout, "")
        self.assertRegex(r.stderr, rf"\Alattice: error: .*{message}.*\n\Z")

    def test_fixtures_scores_and_logits(self):
        for folder in (ONE, THREE, XLMR):
            cases = golden(folder)["cases"]
            stdin = "".join(json.dumps({"query": c["query"], "documents": [c["document"]]}) + "\n" for c in cases)
            for case, line in zip(cases, self.lines("-m", folder, "--jsonl", stdin=stdin), strict=True):
                (result,) = line["results"]
                self.assertEqual(result["index"], 0)
                limit = 5e-5 * max(abs(x) for x in case["logits"])
                self.assertEqual(len(result["logits"]), len(case["logits"]))
                for got, want in zip(result["logits"], case["logits"]):
                    self.assertLessEqual(abs(got - want), limit)
                scores = [result["score"]] if len(case["score"]) == 1 else [result["scores"][f"LABEL_{i}"] for i in range(3)]
                for got, want in zip(scores, case["score"]):
                    self.assertLessEqual(abs(got - want), 2e-5)

    def test_a_reranker_scores_with_yes_and_no(self):
        cases = golden(JUDGE)["pairs"]
        stdin = "".join(json.dumps({"query": c["query"], "documents": [c["document"]]}) + "\n" for c in cases)
        for instruction in ([], ["--instruction", cases[0]["instruction"]]):
            lines = self.lines("-m", JUDGE, "--jsonl", "--max-length", "300", *instruction, stdin=stdin)
            for case, line in zip(cases, lines, strict=True):
                (result,) = line["results"]
                for got, want in zip(result["logits"], case["logits_no_yes"], strict=True):
                    self.assertLessEqual(abs(got - want), 5e-5 * max(map(abs, case["logits_no_yes"])))
                self.assertLessEqual(abs(result["score"] - case["score"]), 2e-5)
        lines = self.lines("-m", JUDGE, "-q", QUERY, *DOCUMENTS)
        self.assertEqual([line["score"] for line in lines], sorted((line["score"] for line in lines), reverse=True))
        other = self.lines("-m", JUDGE, "-q", QUERY, "--instruction", "Find cities.", *DOCUMENTS)
        self.assertNotEqual([line["score"] for line in other], [line["score"] for line in lines])
        raw = self.lines("-m", JUDGE, "-q", QUERY, "--raw", "--label", "yes", DOCUMENTS[0])[0]["score"]
        self.assertAlmostEqual(1 / (1 + math.exp(-raw)), next(line["score"] for line in lines if line["index"] == 0), delta=1e-6)

    def test_a_reranker_refuses_what_leaves_no_room(self):
        self.refused(1, "document 0, its query and the prompt have .* tokens, more than the limit of 200", "-m", JUDGE, "-q", "word " * 300, "--max-length", "200", "--no-truncate", "a")
        self.refused(1, "maximum length 50 leaves no room for query and document", "-m", JUDGE, "-q", QUERY, "--max-length", "50", "a")
        self.refused(2, "no label 'no'; it has: yes", "-m", JUDGE, "-q", QUERY, "--label", "no", "a")

    def test_best_comes_first_with_its_index_and_text(self):
        lines = self.lines("-m", ONE, "-q", QUERY, *DOCUMENTS)
        self.assertEqual(sorted(line["index"] for line in lines), list(range(len(DOCUMENTS))))
        self.assertEqual([line["document"] for line in lines], [DOCUMENTS[line["index"]] for line in lines])
        scores = [line["score"] for line in lines]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertGreater(len(set(scores)), 2)

    def test_equal_scores_keep_the_order_of_the_input(self):
        lines = self.lines("-m", ONE, "-q", QUERY, *["the same"] * 30)
        self.assertEqual([line["index"] for line in lines], list(range(30)))

    def test_documents_come_from_standard_input_a_line_each(self):
        documents = [d for d in DOCUMENTS if d]
        self.assertEqual(self.lines("-m", ONE, "-q", QUERY, stdin="\n".join(documents)), self.lines("-m", ONE, "-q", QUERY, *documents))

    def test_top_n_and_threshold_cut(self):
        everything = self.lines("-m", ONE, "-q", QUERY, *DOCUMENTS)
        self.assertEqual(self.lines("-m", ONE, "-q", QUERY, "--top-n", "2", *DOCUMENTS), everything[:2])
        self.assertEqual(self.lines("-m", ONE, "-q", QUERY, "--top-n", "99", *DOCUMENTS), everything)
        middle = (everything[2]["score"] + everything[3]["score"]) / 2  # what is printed is rounded
        kept = self.lines("-m", ONE, "-q", QUERY, "--threshold", repr(middle), *DOCUMENTS)
        self.assertEqual(kept, [line for line in everything if line["score"] >= middle])
        self.assertEqual(self.lines("-m", ONE, "-q", QUERY, "--threshold", "1.5", *DOCUMENTS), [])

    def test_raw_scores_are_logits(self):
        probabilities = self.lines("-m", ONE, "-q", QUERY, *DOCUMENTS)
        for raw, p in zip(self.lines("-m", ONE, "-q", QUERY, "--raw", *DOCUMENTS), probabilities, strict=True):
            self.assertEqual(raw["index"], p["index"])
            self.assertAlmostEqual(1 / (1 + math.exp(-raw["score"])), p["score"], delta=1e-6)

    def test_jsonl_keeps_the_order_of_the_input_unless_sorted(self):
        request = json.dumps({"id": 7, "query": QUERY, "documents": [{"text": d, "title": "x"} for d in DOCUMENTS]}) + "\n\n"
        best_first = self.lines("-m", ONE, "-q", QUERY, *DOCUMENTS)
        (line,) = self.lines("-m", ONE, "--jsonl", stdin=request)
        self.assertEqual([r["index"] for r in line["results"]], list(range(len(DOCUMENTS))))
        self.assertEqual({r["index"]: r["score"] for r in line["results"]}, {b["index"]: b["score"] for b in best_first})
        (line,) = self.lines("-m", ONE, "--jsonl", "--sort", stdin=request)
        self.assertEqual([r["index"] for r in line["results"]], [b["index"] for b in best_first])
        (line,) = self.lines("-m", ONE, "--jsonl", "--top-n", "3", stdin=request)
        self.assertEqual([r["index"] for r in line["results"]], sorted(b["index"] for b in best_first[:3]))

    def test_several_labels_are_named_and_one_sorts(self):
        lines = self.lines("-m", THREE, "-q", QUERY, *DOCUMENTS)
        self.assertEqual([line["index"] for line in lines], list(range(len(DOCUMENTS))))
        for line in lines:
            self.assertNotIn("score", line)
            self.assertEqual(list(line["scores"]), ["LABEL_0", "LABEL_1", "LABEL_2"])
            self.assertAlmostEqual(sum(line["scores"].values()), 1, delta=1e-6)
        lines = self.lines("-m", THREE, "-q", QUERY, "--label", "LABEL_2", *DOCUMENTS)
        self.assertEqual([line["score"] for line in lines], sorted((line["scores"]["LABEL_2"] for line in lines), reverse=True))
        self.refused(2, "several labels.*LABEL_0, LABEL_1, LABEL_2", "-m", THREE, "-q", QUERY, "--top-n", "1", "a", "b")
        self.refused(2, "no label 'x'.*LABEL_0, LABEL_1, LABEL_2", "-m", THREE, "-q", QUERY, "--label", "x", "a")

    def test_special_tokens_are_recognised_unless_literal(self):
        document = "a [SEP] b"
        seen = self.lines("-m", ONE, "-q", QUERY, document)[0]["score"]
        literal = self.lines("-m", ONE, "-q", QUERY, "--literal", document)[0]["score"]
        self.assertNotEqual(seen, literal)

    def test_long_pairs_are_cut_or_refused(self):
        r = run("rerank", "-m", ONE, "-q", QUERY, DOCUMENTS[3])
        self.assertIn("1 pairs were longer", r.stderr)
        self.refused(1, "document 0 and its query have 6\d\d tokens, more than the limit of 128", "-m", ONE, "-q", QUERY, "--no-truncate", DOCUMENTS[3])
        short = self.lines("-m", ONE, "-q", QUERY, "--max-length", "20", DOCUMENTS[3])
        self.assertNotEqual(short[0]["score"], self.lines("-m", ONE, "-q", QUERY, DOCUMENTS[3])[0]["score"])
        self.refused(1, "maximum length 129 is more than the 128", "-m", ONE, "-q", QUERY, "--max-length", "129", "a")

    def test_wrong_usage_says_what_is_wrong(self):
        self.refused(2, "no model given", "-q", QUERY, "a")
        self.refused(2, "no query given", "-m", ONE, "a")
        self.refused(2, "--query and --jsonl exclude", "-m", ONE, "-q", QUERY, "--jsonl")
        self.refused(2, "--sort belongs to --jsonl", "-m", ONE, "-q", QUERY, "--sort", "a")
        self.refused(2, "--threshold must be a number, not '1x'", "-m", ONE, "-q", QUERY, "--threshold", "1x", "a")
        self.refused(1, "no documents", "-m", ONE, "-q", QUERY)
        self.refused(1, "takes no instruction", "-m", ONE, "-q", QUERY, "--instruction", "Find.", "a")
        self.refused(1, "this model gives vectors", "-m", os.path.join(FIXTURES, "bert-cls"), "-q", QUERY, "a")

    def test_bad_lines_are_named(self):
        good = json.dumps({"query": "q", "documents": ["d"]}) + "\n"
        for line, message in (
            ('{"query":"q"}', '2:.*needs \\"documents\\"'),
            ('{"documents":["d"]}', '2:.*needs a \\"query\\"'),
            ('{"query":"q","documents":[]}', "2:.*no documents"),
            ('{"query":"q","documents":null}', "2:.*expected an array"),
            ('{"query":"q","documents":[1,2,3]}', "2:.*expected a string"),
            ('{"query":"q","documents":[{"title":"x"}]}', '2:.*needs a \\"text\\"'),
            ('{"query":7,"documents":["d"]}', "2:.*expected a string"),
            ("nonsense", "2:"),
        ):
            r = run("rerank", "-m", ONE, "--jsonl", stdin=good + line + "\n")
            self.assertEqual(r.returncode, 1, line)
            self.assertEqual(len(r.stdout.splitlines()), 1, line)
            self.assertRegex(r.stderr, rf"lattice: error: standard input:{message}")

    def test_inspect_names_the_head(self):
        info = json.loads(run("inspect", "--json", THREE).stdout)
        self.assertEqual(info["head"], "classifier (cross-encoder)")
        self.assertEqual(info["labels"], ["LABEL_0", "LABEL_1", "LABEL_2"])
        info = json.loads(run("inspect", "--json", JUDGE).stdout)
        self.assertEqual(info["head"], "language model (reranker: no, yes)")
        self.assertEqual(info["labels"], ["no", "yes"])
        self.assertEqual(json.loads(run("inspect", "--json", os.path.join(FIXTURES, "bert-cls")).stdout)["head"], "embedding")


class Logits(unittest.TestCase):
    def check(self, case, line):
        self.assertEqual(list(line), ["ids", "logits"])
        self.assertEqual(line["ids"], case["ids"])
        self.assertEqual(len(line["logits"]), len(case["last_logits"]))
        limit = 5e-5 * max(map(abs, case["last_logits"]))
        self.assertLessEqual(max(abs(a - b) for a, b in zip(line["logits"], case["last_logits"])), limit)

    def test_fixtures_logits(self):
        cases = [case for case in golden(JUDGE)["cases"] if case["ids"]]
        for form in ("prompt", "ids"):
            stdin = "\n".join(json.dumps({"prompt": case["text"]} if form == "prompt" else {"ids": case["ids"], "note": 1}) for case in cases)
            r = run("logits", "-m", JUDGE, "--jsonl", stdin=stdin)
            self.assertEqual(r.returncode, 0, r.stderr)
            for case, line in zip(cases, r.stdout.splitlines(), strict=True):
                self.check(case, json.loads(line))

    def test_prompts_are_arguments_or_lines(self):
        case = next(case for case in golden(JUDGE)["cases"] if case["text"] == "hello world")
        for args, stdin in ((["hello world"], ""), ([], "hello world\n")):
            r = run("logits", "-m", JUDGE, *args, stdin=stdin)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.check(case, json.loads(r.stdout))

    def test_special_tokens_are_recognised_unless_literal(self):
        ids = [json.loads(run("logits", "-m", JUDGE, *flag, "<|im_start|>Hello").stdout)["ids"] for flag in ([], ["--literal"])]
        self.assertEqual(ids[0][0], 2001)
        self.assertNotIn(2001, ids[1])
        self.assertEqual(ids[1][len(ids[1]) - len(ids[0]) + 1 :], ids[0][1:])

    def test_what_is_wrong_is_named(self):
        for args, stdin, code, message in (
            (["-m", ONE, "a"], "", 1, "has no language model's head"),
            (["a"], "", 2, "no model given"),
            (["-m", JUDGE, "--jsonl"], '{"ids":[1]}\n{"ids":[]}\n', 1, "standard input:2: no tokens"),
            (["-m", JUDGE, "--jsonl"], '{"ids":[1],"prompt":"a"}\n', 1, 'standard input:1:.*"prompt" or "ids", one of them'),
            (["-m", JUDGE, "--jsonl"], '{"text":"a"}\n', 1, 'standard input:1:.*"prompt" or "ids", one of them'),
            (["-m", JUDGE, "--jsonl"], '{"ids":[2007]}\n', 1, "token id 2007 is outside the model's vocabulary of 2007"),
            (["-m", JUDGE, "--jsonl"], json.dumps({"ids": [1] * 513}), 1, "513 tokens, more than the 512"),
            (["-m", JUDGE, ""], "", 1, "a prompt has no tokens"),
        ):
            r = run("logits", *args, stdin=stdin)
            self.assertEqual(r.returncode, code, r.stderr)
            self.assertRegex(r.stderr, rf"\Alattice: error: .*{message}.*\n\Z")

    def test_lines_before_a_bad_one_are_answered(self):
        r = run("logits", "-m", JUDGE, "--jsonl", stdin='{"ids":[1]}\nnonsense\n')
        self.assertEqual(r.returncode, 1)
        self.assertEqual([json.loads(line)["ids"] for line in r.stdout.splitlines()], [[1]])


if __name__ == "__main__":
    unittest.main()
