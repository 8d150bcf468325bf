"""The clients that people use, against `lattice serve`: nothing but their base URL is changed. `scripts/check-all clients` runs this in an
environment of its own (requirements.txt)."""

import asyncio
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "server"))

from support import FIXTURES, SOURCE, Server, embed, golden, main  # noqa: E402

TEXTS = ["a text", "Grüße, Welt 🙂", "the same " * 20]
CASE = golden("tiny-dictionary")["cases"][0]


def setUpModule():
    global server, url
    server = Server("qwen3-embedding", "cross-encoder-1", "tiny-dictionary", options=["--api-key", "secret"])
    url = f"http://127.0.0.1:{server.port}"


def tearDownModule():
    server.stop()


class Readme(unittest.TestCase):
    def test_its_lines_work_as_they_stand(self):
        text = (SOURCE / "README.md").read_text().split("\n## Serving\n")[1].split("\n## ")[0]
        import cohere, huggingface_hub, openai  # noqa: E401
        names = {"openai": openai, "cohere": cohere, "huggingface_hub": huggingface_hub}
        with Server(f"all-minilm-l6-v2={FIXTURES / 'bert-cls'}", "cross-encoder-1") as fresh:
            lines = [line.replace("localhost:8080", f"127.0.0.1:{fresh.port}") for line in text.splitlines()]
            curls = [line for line in lines if line.startswith("curl ")]
            calls = [line for line in lines if line.startswith(tuple(f"{name}." for name in names))]
            self.assertEqual((len(curls), len(calls)), (3, 3))
            answers = [json.loads(subprocess.run(line, shell=True, check=True, capture_output=True).stdout) for line in curls]
            self.assertEqual(len(answers[0]["data"]), 2)
            self.assertEqual(len(answers[1][0]), len(answers[0]["data"][0]["embedding"]))
            self.assertEqual(len(answers[2]["results"]), 2)
            for line in calls:
                self.assertIsNotNone(eval(line, dict(names)), line)


class Near(unittest.TestCase):
    def near(self, got, want):
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertEqual(len(a), len(b))
            self.assertLess(max(abs(float(x) - float(y)) for x, y in zip(a, b)), 1e-6)


class OpenAI(Near):
    def setUp(self):
        import openai
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="secret")
        self.messages = [{"role": "user", "content": CASE["question"]}]
        self.ask = dict(model="tiny-dictionary", messages=self.messages, temperature=0, max_tokens=24)

    def test_embeddings(self):
        want = embed("qwen3-embedding", *TEXTS)
        for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = self.client.embeddings.create(model="qwen3-embedding", input=TEXTS, **encoding)
            if encoding.get("encoding_format") != "base64":
                self.near([item.embedding for item in answer.data], want)
            self.assertGreater(answer.usage.total_tokens, 3)
        one = self.client.embeddings.create(model="qwen3-embedding", input=TEXTS[0], dimensions=32)
        self.near([one.data[0].embedding], embed("qwen3-embedding", TEXTS[0], options=["--dim", "32"]))

    def test_models_and_errors(self):
        import openai
        self.assertEqual([m.id for m in self.client.models.list()], ["qwen3-embedding", "cross-encoder-1", "tiny-dictionary"])
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="nobody", input="a")
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model="qwen3-embedding", input=[])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=url + "/v1", api_key="wrong").models.list()

    def test_chat(self):
        answer = self.client.chat.completions.create(**self.ask, logprobs=True, top_logprobs=2)
        text = answer.choices[0].message.content
        self.assertTrue(CASE["text"].startswith(text), text)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(len(answer.choices[0].logprobs.content), 24)
        self.assertEqual(answer.usage.completion_tokens, 24)

    def test_streams(self):
        text, usage = "", None
        for chunk in self.client.chat.completions.create(**self.ask, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
        self.assertTrue(len(text) > 20 and CASE["text"].startswith(text), text)
        self.assertEqual(usage.completion_tokens, 24)
        pieces = self.client.completions.create(model="tiny-dictionary", prompt="In the beginning", max_tokens=8, temperature=0,
                                                stream=True)
        whole = self.client.completions.create(model="tiny-dictionary", prompt="In the beginning", max_tokens=8, temperature=0)
        self.assertEqual("".join(p.choices[0].text for p in pieces), whole.choices[0].text)

    def test_async(self):
        import openai

        async def go():
            async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="secret") as client:
                answers = await asyncio.gather(
                    *[client.embeddings.create(model="qwen3-embedding", input=text) for text in TEXTS * 5])
                self.near([a.data[0].embedding for a in answers], embed("qwen3-embedding", *TEXTS) * 5)
                text = ""
                async for chunk in await client.chat.completions.create(**self.ask, stream=True):
                    text += chunk.choices[0].delta.content or ""
                self.assertTrue(CASE["text"].startswith(text), text)
                async with await client.chat.completions.create(**self.ask, stream=True) as stream:
                    await stream.__anext__()  # and leave in the middle

        asyncio.run(go())


class Cohere(Near):
    def setUp(self):
        import cohere
        self.client = cohere.ClientV2(api_key="secret", base_url=url)

    def test_rerank(self):
        documents = ["one document", "another", "a third one"]
        answer = self.client.rerank(model="cross-encoder-1", query="one", documents=documents, top_n=2)
        self.assertEqual(len(answer.results), 2)
        self.assertGreaterEqual(answer.results[0].relevance_score, answer.results[1].relevance_score)

    def test_embed(self):
        answer = self.client.embed(model="qwen3-embedding", texts=TEXTS, input_type="search_query",
                                   embedding_types=["float", "int8", "ubinary"])
        self.near(answer.embeddings.float_, embed("qwen3-embedding", *TEXTS, options=["--prompt-name", "query"]))
        self.assertEqual(answer.embeddings.int8,
                         embed("qwen3-embedding", *TEXTS, options=["--prompt-name", "query", "--output-type", "int8"]))
        self.assertEqual(answer.embeddings.ubinary,
                         embed("qwen3-embedding", *TEXTS, options=["--prompt-name", "query", "--output-type", "ubinary"]))


class HuggingFace(Near):
    def test_feature_extraction(self):
        from huggingface_hub import InferenceClient
        client = InferenceClient(base_url=url, token="secret")
        self.near([client.feature_extraction(text).reshape(-1).tolist() for text in TEXTS], embed("qwen3-embedding", *TEXTS))
        raw = client.feature_extraction(TEXTS[0], normalize=False).reshape(-1).tolist()
        self.near([raw], embed("qwen3-embedding", TEXTS[0], options=["--no-normalize"]))


class LangChain(Near):
    def test_openai_embeddings(self):
        from langchain_openai import OpenAIEmbeddings
        embedder = OpenAIEmbeddings(model="qwen3-embedding", base_url=url + "/v1", api_key="secret",
                                    check_embedding_ctx_length=False)
        self.near(embedder.embed_documents(TEXTS), embed("qwen3-embedding", *TEXTS))
        self.near([embedder.embed_query(TEXTS[0])], embed("qwen3-embedding", TEXTS[0]))

    def test_tei_embeddings(self):
        from langchain_huggingface import HuggingFaceEndpointEmbeddings
        embedder = HuggingFaceEndpointEmbeddings(model=url, huggingfacehub_api_token="secret")
        self.near(embedder.embed_documents(TEXTS), embed("qwen3-embedding", *TEXTS))
        self.near([embedder.embed_query(TEXTS[0])], embed("qwen3-embedding", TEXTS[0]))


if __name__ == "__main__":
    main()
