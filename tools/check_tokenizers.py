#!/usr/bin/env python3
"""Compares `lattice tokenize` with Hugging Face tokenizers: ids, offsets and decoded text, on very many strings.

    python tools/check_tokenizers.py [--lattice build/lattice] [--codes N] [--random N] FOLDER…

For every folder with a tokenizer: code points alone, doubled and between letters (every N-th one; 1 is all of them), generated
strings of all sorts, and the lines of --texts. A difference is shrunk and printed; the exit status says whether there was one.
Needs tokenizers==0.23.3.
"""
import argparse
import base64
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PINNED = "0.23.3"


COMPARED = 0


def report(what, n, things, bad):
    global COMPARED
    COMPARED += n
    print(f"{what}: {n} {things}, {bad} differences", flush=True)
    return bad


def load(folder):
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path):
        t = Tokenizer.from_file(path)
    else:  # vocab.txt, as transformers' BertTokenizer builds it
        config = {}
        if os.path.exists(os.path.join(folder, "tokenizer_config.json")):
            config = json.load(open(os.path.join(folder, "tokenizer_config.json")))
        words = open(os.path.join(folder, "vocab.txt"), encoding="utf-8", newline="\n").read().rstrip("\n").split("\n")
        vocab = {w: i for i, w in enumerate(words)}
        t = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        lower = config.get("do_lower_case", True)
        t.normalizer = normalizers.BertNormalizer(True, config.get("tokenize_chinese_chars", True), config.get("strip_accents"), lower)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece("##")
        t.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])])
        t.add_special_tokens([w for w in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]") if w in vocab])
    t.no_truncation()
    t.no_padding()
    return t


def ours(program, folder, texts, *options):
    """What lattice says of each text: {"ids", "offsets", …}."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
        for text in texts:
            f.write(json.dumps(text) + "\n")
        f.flush()
        run = subprocess.run([program, "tokenize", "-m", folder, "--jsonl", "--input", f.name, *options], capture_output=True)
    if run.returncode != 0:
        raise SystemExit(f"{folder}: lattice failed: {run.stderr.decode(errors='replace')[-500:]}")
    lines = run.stdout.decode("utf-8").split("\n")
    assert lines.pop() == "" and len(lines) == len(texts), (len(lines), len(texts))
    return lines


def ids_and_offsets(line):
    """Those of a line of lattice's, without reading the rest of it: most of the time goes into reading."""
    offsets = line.rindex('"offsets":')
    return json.loads(line[len('{"ids":'):line.index("]") + 1]), json.loads(line[offsets + len('"offsets":'):line.rindex(',"type_ids"')])


def byte_offsets(text, offsets):
    if text.isascii():
        return [list(o) for o in offsets]
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [[at[a], at[b]] for a, b in offsets]


def expected(t, texts):
    return [(e.ids, byte_offsets(x, e.offsets)) for x, e in zip(texts, t.encode_batch(texts))]


def differs(program, folder, t, text, *options):
    got = ids_and_offsets(ours(program, folder, [text], *options)[0])
    want = expected(t, [text])[0]
    return None if got == want else (*got, *want)


def shrink(program, folder, t, text, *options):
    """Drops characters as long as a difference stays."""
    size = max(1, len(text) // 2)
    tries = 0
    while size and tries < 400:
        i = 0
        while i < len(text):
            shorter = text[:i] + text[i + size:]
            tries += 1
            if shorter != text and differs(program, folder, t, shorter, *options):
                text = shorter
            else:
                i += size
        size //= 2
    return text


BLOCK = 10000  # the reference's encodings of long generated texts take 300 kB each


def check(program, folder, t, name, texts, show, *options):
    bad = 0
    for start in range(0, len(texts), BLOCK):
        block = texts[start:start + BLOCK]
        for text, line, want in zip(block, ours(program, folder, block, *options), expected(t, block)):
            if ids_and_offsets(line) == want:
                continue
            bad += 1
            if bad <= show:
                small = shrink(program, folder, t, text, *options)
                d = differs(program, folder, t, small, *options)
                print(f"  {ascii(small)}")
                if d:
                    print(f"    lattice {d[0]} {d[1]}\n    wanted  {d[2]} {d[3]}")
    return report(f"{folder}: {name}", len(texts), "texts", bad)


def check_decoding(program, folder, t, rows, show):
    bad = 0
    for skip in (False, True):
        got = [json.loads(x) for x in ours(program, folder, [{"ids": r} for r in rows], "--decode", *(["--no-special"] if skip else []))]
        want = [t.decode(r, skip_special_tokens=skip) for r in rows]
        for r, g, w in zip(rows, got, want):
            g = g["text"] if isinstance(g, dict) else g
            if g != w:
                bad += 1
                if bad <= show:
                    print(f"  decode {r}\n    lattice {ascii(g)}\n    wanted  {ascii(w)}")
    return report(f"{folder}: decoding", 2 * len(rows), "lists of ids", bad)


def check_pairs(program, folder, t, texts, show):
    """Pairs and single texts cut to several lengths: ids, types and offsets."""
    bad = n = 0
    pairs = list(zip(texts[::2], texts[1::2]))
    for length in (4, 5, 8, 17, 64):
        for inputs in (pairs, texts):
            t.enable_truncation(length)
            rows = [{"text": x[0], "pair": x[1]} if isinstance(x, tuple) else x for x in inputs]
            want = t.encode_batch(inputs)
            got = [json.loads(x) for x in ours(program, folder, rows, "--max-length", str(length))]
            t.no_truncation()
            for x, g, w in zip(inputs, got, want):
                both = x if isinstance(x, tuple) else (x,)
                offsets = []
                for k, (o, s) in enumerate(zip(w.offsets, w.sequence_ids)):
                    offsets += byte_offsets(both[s], [o]) if s is not None else [[0, 0]]
                n += 1
                if (g["ids"], g["type_ids"], g["offsets"]) != (w.ids, w.type_ids, offsets):
                    bad += 1
                    if bad <= show:
                        print(f"  {length} {ascii(x)}\n    lattice {g['ids']} {g['type_ids']}\n    wanted  {w.ids} {w.type_ids}")
    return report(f"{folder}: cut to lengths, alone and in pairs", n, "inputs", bad)


RANGES = [(0x20, 0x7F), (0x20, 0x7F), (0x20, 0x7F), (0x00, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00),
          (0xE00, 0x1000), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x20D0, 0x2200), (0x2460, 0x2500), (0x3000, 0x3100),
          (0x3130, 0x3200), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xD7B0, 0xD800), (0xF900, 0xFB50), (0xFE00, 0xFE70), (0xFF00, 0x10000),
          (0x10000, 0x11000), (0x1D100, 0x1D800), (0x1F1E6, 0x1F200), (0x1F300, 0x1FA00), (0xE0000, 0xE0200), (0, 0xD800), (0xE000, 0x110000)]
WORDS = ["the", "The", "hello", "don't", "I'LL", "we've", "'s", "'S", "'\u017f", "naïve", "NAÏVE", "cafe\u0301", "Ångström", "\u0130stanbul", "\u03a3\u03a3",
         "\ufb01ne", "\u1e9b\u0323", "\uac00\u11a8", "\u1100\u1161\u11a8", "日本語", "東京", "ภาษาไทย", "हिन्दी", "क्षत्रिय", "العربية", "עברית",
         "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u00a9\u200d\u00a9", "\U0001f44d\U0001f3fd", "12345", "3.14", "٣٤", "Ⅷ",
         "a\u0315\u0300\u05ae\u0300b", "x\u0327\u0301", "\r\n", "\n\n", "\t", "  ", "   ", "\u00a0", "\u3000", "\u2028", "\x00", "\ufffd", "\ufeff", "\u200b",
         "\u00ad", "...", "?!", "--", "_", "#", "\u2581", "\u2581a", "##ing", "<0x0A>", "\u0120", "\u010a"]


def generated(n, t, seed):
    rng = random.Random(seed)
    special = [a.content for a in t.get_added_tokens_decoder().values()]
    special = special + [s.upper() for s in special] + [s[:-1] for s in special] or ["<x>"]
    out = []
    for _ in range(n):
        parts = []
        kind = rng.random()
        length = rng.choice([1, 2, 3, 5, 8, 13, 30])
        for _ in range(length):
            r = rng.random()
            if kind < 0.25 or r < 0.35:
                low, high = rng.choice(RANGES)
                c = rng.randrange(low, high)
                parts.append(chr(c) if not 0xD800 <= c < 0xE000 else " ")
            elif r < 0.8:
                parts.append(rng.choice(WORDS))
            elif r < 0.86:
                parts.append(rng.choice(special))
            elif r < 0.98:
                parts.append(rng.choice([" ", " ", "\n", "\r", "\t"]))
            else:
                parts.append(rng.choice("abexyzé東1.") * rng.choice([10, 50, 99, 100, 101, 150]))
            if kind > 0.6:
                parts.append(" ")
        out.append("".join(parts))
    return out


def charsmap(pairs):
    """A precompiled charsmap in base64 for {key bytes: replacement}: a plain trie laid out as a double array."""
    trie = {}
    for key, text in pairs.items():
        node = trie
        for b in key:
            node = node.setdefault(b, {})
        node[None] = text
    units, blob, used = [0] * (1 << 16), b"", {0}
    queue = [(trie, 0)]
    while queue:
        node, at = queue.pop(0)
        labels = [0 if b is None else b for b in node]
        base = 1  # an offset under which every child's place is free
        while any((at ^ base ^ b) in used for b in labels):
            base += 1
        for b in labels:
            used.add(at ^ base ^ b)
        units[at] |= base << 10 if base < 1 << 21 else sys.exit("trie too large")
        for b, child in node.items():
            place = at ^ base ^ (b or 0)
            if b is None:
                units[at] |= 1 << 8
                units[place] = 1 << 31 | len(blob)
                blob += child.encode() + b"\0"
            else:
                units[place] = b
                queue.append((child, place))
    body = b"".join(u.to_bytes(4, "little") for u in units[:max(used) + 1])
    return base64.b64encode(len(body).to_bytes(4, "little") + body + blob).decode()


CHARSMAP = {"a".encode(): "\u00e4", "ä".encode(): "", "é".encode(): "e\u0301", "e\u0301".encode(): "é", "\t".encode(): " ", "\r\n".encode(): "\n",
            "\u3000".encode(): " ", "ﬁ".encode(): "fi", "\u0300".encode(): "", "b".encode(): "", "\u0915".encode(): "k", "©".encode(): "(c)",
            "\u1112".encode(): "h", "\u1161".encode(): "A", "1".encode(): "one"}

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FAMILY = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s+|\p{N}%s| ?[^\s%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KNOWN = [GPT2, FAMILY % (r"\p{L}", "", r"\p{L}"), FAMILY % (r"[\p{L}\p{M}]", "", r"\p{L}\p{M}"), FAMILY % (r"\p{L}", "{1,3}", r"\p{L}")]


def component_tokenizers():
    """(name, tokenizer.json) for every component with its options, with a model that shows spans and one that shows bytes."""
    one = lambda type_, **k: dict(type=type_, **k)
    seq = lambda *parts: {"type": "Sequence", "normalizers": list(parts)}
    pres = lambda *parts: {"type": "Sequence", "pretokenizers": list(parts)}
    bert = lambda clean, chinese, strip, lower: one("BertNormalizer", clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower)
    cuts = one("WhitespaceSplit")
    norms = {"none": None, "NFC": one("NFC"), "NFD": one("NFD"), "NFKC": one("NFKC"), "NFKD": one("NFKD"), "Lowercase": one("Lowercase"),
             "StripAccents": one("StripAccents"), "NFD+StripAccents": seq(one("NFD"), one("StripAccents")), "Nmt": one("Nmt"),
             "Strip": one("Strip", strip_left=True, strip_right=True), "Strip left": one("Strip", strip_left=True, strip_right=False),
             "Strip right": one("Strip", strip_left=False, strip_right=True), "Prepend": one("Prepend", prepend="\u2581x"), "ByteLevel": one("ByteLevel"),
             "Replace": one("Replace", pattern={"String": " "}, content="\u2581"), "Replace 2": one("Replace", pattern={"String": "aa"}, content="b"),
             "Replace gone": one("Replace", pattern={"String": "e"}, content=""), "Replace regex": one("Replace", pattern={"Regex": " {2,}|\\p{Lu}"}, content="<>"),
             "Replace regex 2": one("Replace", pattern={"Regex": "(?<=a)b|\\s+$|^x"}, content="é"), "Precompiled": one("Precompiled", precompiled_charsmap=charsmap(CHARSMAP)),
             "llama": seq(one("Prepend", prepend="\u2581"), one("Replace", pattern={"String": " "}, content="\u2581")),
             "albert": seq(one("Replace", pattern={"String": "``"}, content='"'), one("NFKD"), one("StripAccents"), one("Lowercase"),
                           one("Precompiled", precompiled_charsmap=charsmap(CHARSMAP))),
             "t5": seq(one("Precompiled", precompiled_charsmap=charsmap(CHARSMAP)), one("Strip", strip_left=False, strip_right=True),
                       one("Replace", pattern={"Regex": " {2,}"}, content="\u2581")),
             "NFC NFD NFC": seq(one("NFC"), one("NFD"), one("NFC")), "NFKC Lowercase NFC": seq(one("NFKC"), one("Lowercase"), one("NFC")),
             "bert nothing": bert(False, False, False, False), "bert clean": bert(True, False, False, False), "bert chinese": bert(False, True, False, False),
             "bert accents": bert(False, False, True, False), "bert lower": bert(False, False, False, True), "bert": bert(True, True, None, True),
             "bert cased": bert(True, True, None, False), "bert accents kept": bert(True, True, False, True), "bert cased accents": bert(True, True, True, False),
             "NFKC+bert": seq(one("NFKC"), bert(True, True, None, True))}
    split = lambda pattern, behavior, invert=False: one("Split", pattern=pattern, behavior=behavior, invert=invert)
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    pre = {"none": None, "Bert": one("BertPreTokenizer"), "Whitespace": one("Whitespace"), "WhitespaceSplit": cuts,
           "Digits": one("Digits", individual_digits=False), "Digits each": one("Digits", individual_digits=True),
           "CharDelimiterSplit": one("CharDelimiterSplit", delimiter="e")}
    for b in behaviors:
        pre["Punctuation " + b] = one("Punctuation", behavior=b)
        for invert in (False, True):
            mark = " inverted" if invert else ""
            pre["Split string " + b + mark] = split({"String": "a"}, b, invert)
            pre["Split regex " + b + mark] = split({"Regex": "\\p{L}+|[ab]?"}, b, invert)
            pre["Split known " + b + mark] = split({"Regex": KNOWN[1]}, b, invert)
    for k, pattern in enumerate(KNOWN):
        pre[f"known {k}"] = split({"Regex": pattern}, "Isolated")
        pre[f"unknown {k}"] = split({"Regex": "(?:" + pattern + ")"}, "Isolated")
    for space in (False, True):
        for regex in (False, True):
            pre[f"ByteLevel {space} {regex}"] = one("ByteLevel", add_prefix_space=space, trim_offsets=True, use_regex=regex)
            pre[f"WhitespaceSplit ByteLevel {space} {regex}"] = pres(cuts, one("ByteLevel", add_prefix_space=space, trim_offsets=True, use_regex=regex))
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            pre[f"Metaspace {scheme} {cut}"] = one("Metaspace", replacement="\u2581", prepend_scheme=scheme, split=cut)
            pre[f"WhitespaceSplit Metaspace {scheme} {cut}"] = pres(cuts, one("Metaspace", replacement="\u2581", prepend_scheme=scheme, split=cut))
    pre["Digits Punctuation ByteLevel"] = pres(one("Digits", individual_digits=True), one("Punctuation", behavior="Contiguous"),
                                               one("ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False))
    pre["ByteLevel Digits"] = pres(one("ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True), one("Digits", individual_digits=True))
    added = lambda i, content, **k: dict(dict(id=i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True), **k)
    tokens = {"plain": [], "added": [added(1000, "<s>"), added(1001, "<s>x"), added(1002, "<l>", lstrip=True), added(1003, "<r>", rstrip=True),
                                     added(1004, "<w>", single_word=True), added(1005, "<both>", lstrip=True, rstrip=True),
                                     added(1006, "Hello", normalized=True, special=False), added(1007, "\u00c5ng", normalized=True, special=False, single_word=True),
                                     added(1008, " the", normalized=False, special=False), added(1009, "東", normalized=True, special=True, rstrip=True),
                                     added(1010, "<r> <", normalized=False), added(1011, "\n\n", special=False), added(1012, "dup", special=False),
                                     added(1013, "dup"), added(1014, "é", normalized=True, special=False)]}
    spans = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0}}
    alphabet = {"[UNK]": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}}
    shown = {"type": "BPE", "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": True, "ignore_merges": False, "vocab": alphabet, "merges": []}
    bytes_ = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    level = {chr(b): b for b in bytes_} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in bytes_)}
    raw = dict(shown, byte_fallback=False, unk_token=None, vocab={c: i for i, c in enumerate(level)})

    def make(normalizer, pretokenizer, model, extra):
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": extra, "normalizer": normalizer, "pre_tokenizer": pretokenizer,
                "post_processor": None, "decoder": None, "model": model}
    for name, n in norms.items():
        for which, extra in tokens.items():
            yield f"normalizer {name}, {which}", make(n, cuts if which == "added" else None, shown, extra)
            yield f"normalizer {name}, spans, {which}", make(n, one("Whitespace"), spans, extra)
    for name, q in pre.items():
        yield f"pre-tokenizer {name}", make(None, q, spans, [])
        yield f"pre-tokenizer {name}, text", make(one("NFC"), q, shown, tokens["added"])
        if "ByteLevel" in name:
            yield f"pre-tokenizer {name}, bytes", make(one("NFKC"), q, raw, tokens["added"])


GOLDEN = ["", " ", "Hello world! Hello  <s>x<w>y <w> the <l>  <r>  dup\n\n", " a\u0000b\t\u00e9e\u0301 \u00c5ng A\u030ang\r\n\u3000caf\u00e9 \u6771\u4eac ab\u0300\u0315\u05ae ",
          "aaa b, don't I'LL we'\u017f 123 4\u0663\u2167 \u1e9b\u0323 \ufb01x \uac00\u11a8\u1112\u1161\u11ab \u0130\u03a3 ",
          "\u0915\u094d\u0937 \u00a9\u200d\u00a9 \U0001f468\u200d\U0001f469 \u00ad\ufffd\u180e\u2028x\u2581y_ <r> <both> z\u0301\u0327"]


def write_golden(path):
    """What the library makes of a few texts with every component: the golden values of a unit test."""
    models_, cases = [], []
    for name, content in component_tokenizers():
        if "unknown" in name:
            continue
        t = Tokenizer.from_str(json.dumps(content))
        model = content["model"]
        if model not in models_:
            models_.append(model)
        rows = []
        for text in GOLDEN:
            e = t.encode(text)
            rows.append([e.ids, [x for o in byte_offsets(text, e.offsets) for x in o]])
        cases.append({"name": name, "model": models_.index(model), "normalizer": content["normalizer"], "pre_tokenizer": content["pre_tokenizer"],
                      "added_tokens": content["added_tokens"], "results": rows})
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"made_with": "tokenizers %s",\n"texts": %s,\n"models": [\n' % (PINNED, json.dumps(GOLDEN)))
        f.write(",\n".join(json.dumps(m, separators=(",", ":")) for m in models_) + '],\n"cases": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "]}\n")


OFFSETS = GOLDEN + ["e\u0301t\u00e9 na\u00efve \u1e9b\u0323 \ufb01ne \u00bd \u2460", "\u1100\u1161\u11a8 \uac00\u11a8 \u65e5\u672c\u8a9e\u306e\u6587 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
                   "\U0001f468\u200d\U0001f469\u200d\U0001f467 ok \U0001f1e9\U0001f1ea\u00a0x", "  two  spaces\tand\u3000wide \r\n ends  ", "\U0001d518\U0001d52b\u0131\u0307 \u0130I\u0307"]


def write_offsets(path, folders):
    """Ids, types and offsets in code points, as the library gives them, of single texts and pairs: the golden values of a unit test."""
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"made_with": "tokenizers %s", "fixtures": [\n' % PINNED)
        for k, folder in enumerate(folders):
            t, cases = load(folder), []
            for inputs in [(x,) for x in OFFSETS] + list(zip(OFFSETS[1:], OFFSETS)):
                e = t.encode(*inputs)
                offsets = [x for o, s in zip(e.offsets, e.sequence_ids) for x in (o if s is not None else (0, 0))]
                cases.append({"texts": inputs, "ids": e.ids, "type_ids": e.type_ids, "offsets": offsets})
            f.write(('{"name": "%s", "cases": [\n' % os.path.basename(folder.rstrip("/"))) + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
            f.write("]}%s\n" % ("," if k + 1 < len(folders) else "]}"))


def check_components(program, n, seed, show, only):
    bad = 0
    for name, content in component_tokenizers():
        if only and only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
                json.dump(content, f)
            t = load(folder)
            texts = generated(n, t, seed) + [chr(c) + "a" + chr(c) for c in range(0, 0x110000, 1009) if not 0xD800 <= c < 0xE000]
            found = check(program, folder, t, name, texts, show)
            if found:
                print(f"  ^ {name}")
            bad += found
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folders", nargs="*")
    p.add_argument("--lattice", default="build/lattice")
    p.add_argument("--codes", type=int, default=1, help="every N-th code point (0: none)")
    p.add_argument("--random", type=int, default=200000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--components", type=int, default=0, metavar="N", help="also N generated strings for every component with its options")
    p.add_argument("--only", help="of the components, those with this in their name")
    p.add_argument("--write-golden", metavar="FILE", help="write tests/fixtures/tokenizer-components.json")
    p.add_argument("--write-offsets", metavar="FILE", help="write tests/fixtures/tokenizer-offsets.json, for the FOLDERs, and stop")
    p.add_argument("--texts", help="JSON lines, maybe gzipped")
    p.add_argument("--show", type=int, default=5)
    a = p.parse_args()
    if tokenizers.__version__ != PINNED:
        sys.exit(f"tokenizers {PINNED} is needed, {tokenizers.__version__} found")
    if a.write_offsets:
        return write_offsets(a.write_offsets, a.folders)
    if a.write_golden:
        write_golden(a.write_golden)
    bad = check_components(a.lattice, a.components, a.seed, a.show, a.only) if a.components else 0
    seen = {}
    for folder in a.folders:
        t = load(folder)
        same = seen.setdefault(t.to_str(), folder)
        if same != folder:
            print(f"{folder}: the tokenizer of {same}")
            continue
        if a.codes:
            codes = [chr(c) for c in range(0, 0x110000, a.codes) if not 0xD800 <= c < 0xE000]
            bad += check(a.lattice, folder, t, "code points alone", codes, a.show)
            bad += check(a.lattice, folder, t, "code points doubled", [c + c for c in codes], a.show)
            bad += check(a.lattice, folder, t, "code points between letters", ["a" + c + "b" for c in codes], a.show)
        if a.random:
            texts = generated(a.random, t, a.seed)
            bad += check(a.lattice, folder, t, "generated", texts, a.show)
            t.encode_special_tokens = True
            bad += check(a.lattice, folder, t, "generated, literal", texts[:a.random // 4], a.show, "--literal")
            t.encode_special_tokens = False
            bad += check_pairs(a.lattice, folder, t, texts[:a.random // 20], a.show)
            size = t.get_vocab_size()
            rng = random.Random(a.seed)
            rows = [[rng.randrange(size + 2) for _ in range(rng.choice([1, 2, 5, 20]))] for _ in range(a.random // 20)]
            rows += [t.encode(x).ids for x in texts[:a.random // 20]]
            bad += check_decoding(a.lattice, folder, t, rows, a.show)
        if a.texts:
            opener = gzip.open if a.texts.endswith(".gz") else open
            with opener(a.texts, "rt", encoding="utf-8") as f:
                lines = [json.loads(x) for x in f]
            bad += check(a.lattice, folder, t, "texts", [x if isinstance(x, str) else x["text"] for x in lines], a.show)
    print(f"{COMPARED} inputs compared, {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
