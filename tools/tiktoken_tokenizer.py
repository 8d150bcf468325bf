#!/usr/bin/env python3
"""Writes a tokenizer.json from a .tiktoken file, which lists a BPE vocabulary by rank without its merges.

usage: tiktoken_tokenizer.py FILE.tiktoken LIKE/tokenizer.json OUT

Each line of FILE is a token's bytes in base64 and its rank. A token of several bytes came from the merge that byte-pair encoding
makes last when only tokens of lower rank may be merged; those merges, in the order of their tokens, are what tokenizer.json wants.
Normalizer, pre-tokenizer, post-processor and decoder are LIKE's; its added tokens follow the vocabulary."""

import base64
import json
import os
import sys


def alphabet():
    """The characters that stand for bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def last_merge(token, ranks):
    """The two tokens that `token` is merged from."""
    parts, limit = [bytes([b]) for b in token], ranks[token]
    while len(parts) > 2:
        rank, i = min((ranks.get(a + b, limit), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
        if rank >= limit:
            return None  # no merges lead to this token: it never comes out
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, like, out = sys.argv[1:]
    with open(source, "rb") as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}
    with open(like, encoding="utf-8") as file:
        tokenizer = json.load(file)
    chars = alphabet()
    spell = lambda token: "".join(chars[b] for b in token)
    in_order = sorted(ranks, key=ranks.get)
    merges = [m for m in (last_merge(token, ranks) for token in in_order if len(token) > 1) if m]
    tokenizer["model"]["vocab"] = {spell(token): ranks[token] for token in in_order}
    tokenizer["model"]["merges"] = [[spell(a), spell(b)] for a, b in merges]
    first = max(ranks.values()) + 1
    for i, added in enumerate(tokenizer["added_tokens"]):
        added["id"] = first + i
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False)
    print(f"{out}/tokenizer.json: {len(ranks)} tokens, {len(merges)} merges")


if __name__ == "__main__":
    main()
