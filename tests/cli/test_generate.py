#!/usr/bin/env python3
"""generate, chat and perplexity as a user runs them, on a small trained model and the tiny fixtures."""

import json
import math
import os
import signal
import subprocess
import tempfile
import unittest

LATTICE = os.environ["LATTICE"]
FIXTURES = os.path.join(os.environ.get("LATTICE_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..")), "tests", "fixtures")
DICTIONARY = os.path.join(FIXTURES, "tiny-dictionary")
TEXT = os.path.join(FIXTURES, "qwen3.5-text")
BERT = os.path.join(FIXTURES, "bert-cls")
ASK = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

# Sanitizers make the program tens of times slower: a part of the texts goes the same ways.
LIGHT = os.environ.get("LATTICE_TEST_LIGHT") == "1"


def golden(folder):
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        return json.load(f)


def run(*args, stdin=""):
    r = subprocess.run([LATTICE, *args], input=stdin.encode(), capture_output=True, timeout=300)
    r.stdout, r.stderr = r.stdout.decode(), r.stderr.decode()
    return r


class Case(unittest.TestCase):
    def done(self, *args, stdin=""):
        r = run(*args, stdin=stdin)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r

    def fails(self, code, message, *args, stdin=""):
        r = run(*args, stdin=stdin)
        self.assertEqual(r.returncode, code, r.stderr)
        self.assertIn(message, r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)


class Generate(Case):
    def test_greedy_answers_of_the_trained_model_equal_the_reference(self):
        cases = golden(DICTIONARY)["cases"][: 3 if LIGHT else None]
        stdin = "".join(json.dumps({"ids": c["ids"]}) + "\n" for c in cases)
        out = self.done("generate", "-m", DICTIONARY, "--compute", "f32", "--jsonl", "-n", "64", "--temperature", "0", stdin=stdin).stdout
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(len(lines), len(cases))
        for got, c in zip(lines, cases):
            if c.get("greedy_min_margin", 1) < 1e-3:
                continue
            self.assertEqual(got["ids"], c["greedy"], c["question"])
            self.assertEqual(got["text"], c["text"].removesuffix("<|im_end|>"), c["question"])
            self.assertEqual(got["prompt_tokens"], len(c["ids"]))
            ended = c["greedy"][-1] == golden(DICTIONARY)["eos_token_id"]
            self.assertEqual(got["finish_reason"], "end" if ended else "length")
            self.assertGreaterEqual(got["prefill_s"], 0)
            self.assertGreaterEqual(got["decode_s"], 0)

    def test_streamed_text_is_that_of_json_and_prompts_are_tokenised(self):
        case = golden(DICTIONARY)["cases"][0]
        args = ["generate", "-m", DICTIONARY, "--compute", "f32", "-n", "64", "--temperature", "0"]
        prompt = ASK.format(case["question"])
        streamed = self.done(*args, "-p", prompt).stdout
        self.assertEqual(streamed, case["text"] + ("" if case["text"].endswith("\n") else "\n"))
        self.assertEqual(json.loads(self.done(*args, "--json", "-p", prompt).stdout)["ids"], case["greedy"])
        ids = ",".join(map(str, case["ids"]))
        self.assertEqual(self.done(*args, "--ids", ids).stdout, streamed)
        lines = self.done(*args, "--jsonl", stdin=json.dumps({"prompt": prompt}) + "\n").stdout
        self.assertEqual(json.loads(lines)["ids"], case["greedy"])

    def test_the_same_seed_gives_the_same_text(self):
        args = ["generate", "-m", DICTIONARY, "-p", ASK.format("Define gravity."), "-n", "24", "--temperature", "1", "--seed"]
        texts = [self.done(*args, seed).stdout for seed in ("1", "1", "2", "3")]
        self.assertEqual(texts[0], texts[1])
        self.assertGreater(len(set(texts)), 1)

    def test_stop_strings_end_the_text_before_them(self):
        case = golden(DICTIONARY)["cases"][0]
        args = ["generate", "-m", DICTIONARY, "--compute", "f32", "-n", "64", "--temperature", "0", "-p", ASK.format(case["question"])]
        stop = case["text"][15:22]
        got = json.loads(self.done(*args, "--json", "--stop", "nowhere", "--stop", stop).stdout)
        self.assertEqual(got["text"], case["text"].split(stop)[0])
        self.assertEqual(got["finish_reason"], "stop")

    def test_full_contexts_say_so(self):
        r = self.done("generate", "-m", TEXT, "--ids", ",".join(["5"] * 1020), "--ignore-eos", "--temperature", "0", "--json")
        got = json.loads(r.stdout)
        self.assertEqual((got["finish_reason"], len(got["ids"])), ("context", 4))
        self.assertIn("1024", r.stderr)

    def test_bad_usage(self):
        self.fails(2, "no model given", "generate", "-p", "x")
        self.fails(2, "give one of", "generate", "-m", TEXT)
        self.fails(2, "give one of", "generate", "-m", TEXT, "-p", "x", "--ids", "1")
        self.fails(2, "--ids must be", "generate", "-m", TEXT, "--ids", "1,,2")
        self.fails(2, "--ids must be", "generate", "-m", TEXT, "--ids", "4294967296")
        self.fails(2, "--temperature must be", "generate", "-m", TEXT, "-p", "x", "--temperature", "hot")
        self.fails(2, "--top-p must be", "generate", "-m", TEXT, "-p", "x", "--top-p", "1.5")
        self.fails(2, "--seed must be", "generate", "-m", TEXT, "-p", "x", "--seed", "-1")
        self.fails(2, "--stop must not", "generate", "-m", TEXT, "-p", "x", "--stop", "")
        self.fails(2, "--input needs", "generate", "-m", TEXT, "-p", "x", "-i", "f")
        self.fails(1, "no tokens", "generate", "-m", TEXT, "-p", "")
        self.fails(1, "outside the model's vocabulary of 1807", "generate", "-m", TEXT, "--ids", "1807")
        self.fails(1, "language model's head", "generate", "-m", BERT, "-p", "x")
        self.fails(1, "standard input:2", "generate", "-m", TEXT, "--jsonl", "-n", "1", stdin='{"prompt":"a"}\n{"ids":[]}\n')


class Perplexity(Case):
    def test_held_out_texts_of_the_trained_model(self):
        held_out = golden(DICTIONARY)["eval"]
        texts = held_out["texts"][:20] if LIGHT else held_out["texts"]
        stdin = "".join(json.dumps({"text": t}) + "\n" for t in texts)
        out = self.done("perplexity", "-m", DICTIONARY, "--compute", "f32", "--jsonl", stdin=stdin).stdout
        *lines, last = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(len(lines), len(texts))
        for got, wanted in zip(lines, held_out["per_text_nll"]):
            self.assertAlmostEqual(got["nll"], wanted, delta=5e-5)
        if LIGHT:
            return
        self.assertEqual(last["tokens"], held_out["tokens"])
        self.assertAlmostEqual(last["mean_nll"], held_out["mean_nll"], delta=5e-5)
        self.assertAlmostEqual(last["perplexity"], math.exp(held_out["mean_nll"]), delta=2e-4)

    def test_ids_lengths_and_single_tokens(self):
        case = golden(TEXT)["cases"][0]
        stdin = json.dumps({"ids": case["ids"]}) + "\n" + '{"ids":[5]}\n'
        out = [json.loads(x) for x in self.done("perplexity", "-m", TEXT, "--jsonl", stdin=stdin).stdout.splitlines()]
        self.assertAlmostEqual(out[0]["nll"], case["mean_nll"], delta=5e-5)
        self.assertEqual(out[1], {"tokens": 0, "nll": None})
        self.assertEqual(out[2]["tokens"], len(case["ids"]) - 1)
        cut = self.done("perplexity", "-m", TEXT, "--max-length", "3", case["prompt"]).stdout.splitlines()
        self.assertEqual(json.loads(cut[0])["tokens"], 2)
        self.fails(1, "no tokens", "perplexity", "-m", TEXT, "")
        self.fails(1, "language model's head", "perplexity", "-m", BERT, "x")

    def test_a_saved_session_goes_on(self):
        args = ["-m", DICTIONARY, "--compute", "f32", "--temperature", "0", "--json"]
        prompt = ASK.format("Define gravity.")
        whole = json.loads(self.done("generate", *args, "-p", prompt, "-n", "12").stdout)
        with tempfile.TemporaryDirectory() as folder:
            path, later = os.path.join(folder, "a"), os.path.join(folder, "b")
            begin = json.loads(self.done("generate", *args, "-p", prompt, "-n", "5", "--save-session", path).stdout)
            rest = json.loads(self.done("generate", *args, "--session", path, "-n", "7", "--save-session", later).stdout)
            self.assertEqual(begin["ids"] + rest["ids"], whole["ids"])
            self.assertEqual(rest["prompt_tokens"], 0)
            lines = "".join(json.dumps({"ids": [i]}) + "\n" for i in begin["ids"][:2] * 2)
            out = self.done("generate", *args, "--session", path, "--jsonl", "-n", "4", stdin=lines).stdout.splitlines()
            texts = [json.loads(line)["text"] for line in out]
            self.assertEqual(texts[:2], texts[2:])  # each goes on from the saved session, not from the last
            self.fails(2, "single prompt", "generate", *args, "--jsonl", "--save-session", path)
            self.fails(1, "another model", "generate", "-m", TEXT, "--compute", "f32", "--session", path)
            self.fails(1, "not a saved session", "generate", *args, "--session", os.path.join(DICTIONARY, "config.json"))
            self.assertEqual(self.done("generate", *args, "-p", prompt, "--prompt-only", "--save-session", path).stdout, "")
            out = self.done("generate", *args, "--session", path, "-n", "12").stdout
            self.assertEqual(json.loads(out)["ids"], whole["ids"])
        self.fails(2, "--save-session", "generate", *args, "-p", prompt, "--prompt-only")
        self.fails(2, "give one of", "generate", *args)
        self.fails(1, "no tokens", "generate", *args, "-p", "")


class Chat(Case):
    def test_an_answer_streams_and_is_the_reference(self):
        case = golden(DICTIONARY)["cases"][0]
        out = self.done("chat", "-m", DICTIONARY, "--compute", "f32", "--temperature", "0", "-n", "64", stdin=case["question"] + "\n").stdout
        self.assertEqual(out, case["text"] + ("" if case["text"].endswith("\n") else "\n"))

    def test_commands(self):
        case = golden(DICTIONARY)["cases"][0]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "chat.json")
            stdin = f"Define rain.\n/reset\n{case['question']}\n/save {path}\n/nonsense\n/exit\nnever read\n"
            r = self.done("chat", "-m", DICTIONARY, "--compute", "f32", "--temperature", "0", "-n", "64", stdin=stdin)
            self.assertTrue(r.stdout.endswith(case["text"] + ("" if case["text"].endswith("\n") else "\n")))
            self.assertIn("unknown command '/nonsense'", r.stderr)
            with open(path, encoding="utf-8") as f:
                saved = json.load(f)
            self.assertEqual(saved, [{"role": "user", "content": case["question"]}, {"role": "assistant", "content": case["text"]}])

    def test_history_is_kept_in_mind(self):
        """The second answer is what the model says to the whole conversation."""
        args = ["-m", DICTIONARY, "--compute", "f32", "--temperature", "0", "-n", "16"]
        out = self.done("chat", *args, stdin="Define gravity.\nDefine rain.\n").stdout
        first = self.done("chat", *args, stdin="Define gravity.\n").stdout
        self.assertTrue(out.startswith(first))
        prompt = ASK.format("Define gravity.") + first[:-1] + "<|im_end|>\n" + ASK.format("Define rain.")
        self.assertEqual(out[len(first) :], self.done("generate", *args, "-p", prompt).stdout)

    def test_a_saved_conversation_is_taken_up_again(self):
        args = ["-m", DICTIONARY, "--compute", "f32", "--temperature", "0", "-n", "16"]
        first = self.done("chat", *args, stdin="Define gravity.\n").stdout
        both = self.done("chat", *args, stdin="Define gravity.\nDefine rain.\n").stdout
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "conversation")
            self.done("chat", *args, stdin=f"Define gravity.\n/save {path}\n")
            for again in range(2):  # the file stays; /reset goes back to what it holds
                out = self.done("chat", *args, "--session", path, stdin="Define rain.\n/reset\nDefine rain.\n").stdout
                self.assertEqual(out, 2 * both[len(first) :])
            self.fails(2, "--system", "chat", *args, "--session", path, "--system", "x")
            self.fails(1, "saved with another model", "chat", "-m", TEXT, "--compute", "f32", "--session", path)
            self.fails(1, "compute f32", "chat", "-m", DICTIONARY, "--compute", "bf16", "--isa", "scalar", "--session", path)
            with open(path, "r+b") as f:
                f.truncate(1000)
            self.fails(1, "has 1000 bytes", "chat", *args, "--session", path)
        self.fails(1, "/nonexistent", "chat", *args, "--session", "/nonexistent")

    def test_thoughts_are_dropped_and_nothing_else_changes(self):
        """A model that knows thinking: the second turn is what it says to the history without the thought."""
        args = ["-m", TEXT, "--compute", "f32", "--temperature", "0", "-n", "12"]
        for think, prompt in [((), "<think>\n\n</think>\n\n"), (("--think",), "<think>\n")]:
            first = self.done("chat", *args, *think, stdin="Hello there\n").stdout
            out = self.done("chat", *args, *think, stdin="Hello there\nAnd again\n").stdout
            self.assertTrue(out.startswith(first))
            answer = first[:-1].rpartition("</think>")[2]
            history = ASK.format("Hello there") + answer + "<|im_end|>\n" + ASK.format("And again") + prompt
            self.assertEqual(out[len(first) :], self.done("generate", *args, "-p", history).stdout)

    def test_an_interruption_stops_the_answer_not_the_program(self):
        p = subprocess.Popen(
            [LATTICE, "chat", "-m", TEXT, "--temperature", "1", "--threads", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(p.kill)
        p.stdin.write(b"Hello\n")
        p.stdin.flush()
        self.assertTrue(p.stdout.read(1))
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(b"/exit\n", timeout=60)
        self.assertEqual(p.returncode, 0, err)


if __name__ == "__main__":
    unittest.main()
