#!/usr/bin/env python3
"""Writes src/text/unicode_tables.c: what Hugging Face tokenizers do with every code point.

The crates inside that library carry Unicode data of several versions, so neither the standard nor an installed library gives
their answers. Each property is therefore asked of the library itself, code point by code point: its regular expressions, its
normalisers, its pre-tokenizers. The output is committed; run this again only when the pinned version changes.

    python tools/make_unicode_tables.py > src/text/unicode_tables.c     (needs tokenizers==0.23.3, takes about a minute)
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

PINNED = "0.23.3"
LAST = 0x10FFFF
CODES = [c for c in range(LAST + 1) if not 0xD800 <= c <= 0xDFFF]


# General categories, numbered from 1 in this order; 0: unassigned or a surrogate.
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()


def by_regex(pattern):
    """Code points that the library's regular expressions match, asked in blocks."""
    found = set()
    replace = normalizers.Replace(Regex(pattern), "\x01")
    for start in range(0, len(CODES), 1 << 16):
        block = CODES[start:start + (1 << 16)]
        out = replace.normalize_str("".join(map(chr, block)))
        assert len(out) == len(block)
        found.update(c for c, o in zip(block, out) if o == "\x01" and c != 1)
    if normalizers.Replace(Regex(pattern), "\x02").normalize_str("\x01") == "\x02":
        found.add(1)
    return found


def mapped(normalizer):
    """{code point: result} where the normaliser changes a code point standing alone."""
    out = {}
    for c in CODES:
        s = chr(c)
        r = normalizer.normalize_str(s)
        if r != s:
            out[c] = r
    return out


def between(pre, left="a", right="a"):
    """How a pre-tokenizer treats a code point between two letters, as the tuple of its pieces with the code point as '?'."""
    kinds = {}
    for c in CODES:
        pieces = tuple(p.replace(chr(c), "?") for p, _ in pre.pre_tokenize_str(left + chr(c) + right))
        kinds.setdefault(pieces, set()).add(c)
    return kinds


def charsmap(keys):
    """A precompiled charsmap (double array) of one-byte keys: {byte: replacement}."""
    units = [0] * 2048
    units[0] = 256 << 10
    blob = b""
    for i, (byte, text) in enumerate(sorted(keys.items())):
        at = 256 ^ byte
        leaf = 512 + i
        units[at] = ((at ^ leaf) << 10) | (1 << 8) | byte
        units[leaf] = (1 << 31) | len(blob)
        blob += text.encode() + b"\0"
    trie = b"".join(u.to_bytes(4, "little") for u in units)
    return normalizers.Precompiled(len(trie).to_bytes(4, "little") + trie + blob)


def main():
    if tokenizers.__version__ != PINNED:
        sys.exit(f"tokenizers {PINNED} is needed, {tokenizers.__version__} found")
    say = lambda *a: print(*a, file=sys.stderr)

    flags = {}
    flags["LETTER"] = by_regex(r"\p{L}")
    flags["NUMBER"] = by_regex(r"\p{N}")
    flags["MARK"] = by_regex(r"\p{M}")
    flags["SPACE"] = by_regex(r"\s")
    category = {}
    for i, name in enumerate(CATEGORIES):
        for c in by_regex(r"\p{%s}" % name):
            assert category.setdefault(c, i + 1) == i + 1
    assert by_regex(r"\d") == {c for c, k in category.items() if CATEGORIES[k - 1] == "Nd"}
    word = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Pc"}
    found, made = by_regex(r"\w"), {c for c, k in category.items() if CATEGORIES[k - 1] in word}
    say(r"\w beyond letters, marks, Nd and Pc:", sorted(map(hex, found ^ made))[:20], len(found ^ made))
    flags["REGEX_WORD"] = found
    say("regular expressions done")

    clean = mapped(normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False))
    flags["WHITE"] = between(pre_tokenizers.WhitespaceSplit())[("a", "a")]
    flags["CONTROL"] = {c for c, r in clean.items() if r == ""}
    assert {c for c, r in clean.items() if r == " "} == flags["WHITE"] - flags["CONTROL"] - {0x20}
    assert set(clean.values()) <= {"", " "}
    chinese = mapped(normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False))
    assert all(r == f" {chr(c)} " for c, r in chinese.items())
    flags["CHINESE"] = set(chinese)
    accents = mapped(normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False))
    flags["NONSPACING"] = {c for c, r in accents.items() if r == ""}
    flags["COMBINING"] = {c for c, r in mapped(normalizers.StripAccents()).items() if r == ""}
    lower = mapped(normalizers.Lowercase())
    flags["LOWER"] = set(lower)
    say("BERT normaliser done")

    nfd, nfkd, nfc, nfkc = (mapped(n) for n in (normalizers.NFD(), normalizers.NFKD(), normalizers.NFC(), normalizers.NFKC()))
    # Combining classes: a mark moves before one of a higher class. Classes are only compared, so ranks would do, but the
    # standard's numbers are kept where the library agrees with them.
    d = normalizers.NFD()
    low, high = "\u0334", "\u0345"  # classes 1 and 240
    reference = {1: ord(low), 240: ord(high)}
    for c in CODES:
        k, s = unicodedata.combining(chr(c)), chr(c)
        if k and k not in reference and c not in nfd and d.normalize_str("a" + s + low) != "a" + s + low:
            reference[k] = c
    classes = sorted(reference)
    ccc = {}
    for c in CODES:
        if c in nfd:
            continue
        s = chr(c)
        if d.normalize_str("a" + high + s) != "a" + high + s or d.normalize_str("a" + s + low) != "a" + s + low:
            # the class is the largest reference class that does not move behind it
            for k in classes:
                m = chr(reference[k])
                before = d.normalize_str("a" + m + s) != "a" + m + s   # ccc(c) < k
                after = d.normalize_str("a" + s + m) != "a" + s + m    # ccc(c) > k
                if not before and not after:
                    ccc[c] = k
                    break
            else:
                raise SystemExit(f"U+{c:04X}: combining class lies between the known ones")
    say("combining classes done:", len(ccc))
    hangul = set(range(0xAC00, 0xD7A4))
    pairs = {}
    compose = normalizers.NFC()
    for c, r in nfd.items():
        if c in hangul or len(r) < 2:
            continue
        first = compose.normalize_str(r[:-1])
        if len(first) == 1 and compose.normalize_str(first + r[-1]) == chr(c):
            pairs[(ord(first), ord(r[-1]))] = c
    say("compositions:", len(pairs))
    seconds = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    flags["NFD_SLOW"] = set(nfd) | set(ccc)
    flags["NFKD_SLOW"] = set(nfkd) | set(ccc)
    flags["NFC_SLOW"] = set(nfc) | set(ccc) | seconds
    flags["NFKC_SLOW"] = set(nfkc) | set(ccc) | seconds

    bert = between(pre_tokenizers.BertPreTokenizer())
    for k, v in bert.items():
        say("BertPreTokenizer", k, len(v))
    flags["PUNCTUATION"] = bert[("a", "?", "a")]
    punctuation = between(pre_tokenizers.Punctuation())
    assert punctuation[("a", "?", "a")] == flags["PUNCTUATION"], "two kinds of punctuation"
    assert bert[("a", "a")] == flags["WHITE"], "two kinds of white space"
    flags["NUMERIC"] = between(pre_tokenizers.Digits(individual_digits=True))[("a", "?", "a")]
    words = between(pre_tokenizers.Whitespace(), "a", "!")
    for k, v in words.items():
        say("Whitespace", k, len(v))
    flags["WORD"] = words[("a?", "!")] | set(map(ord, "a"))
    assert words[("a", "!")] == flags["WHITE"], "two kinds of white space"
    # Added tokens look at \w and \s of the same engine.
    t = Tokenizer(models.WordLevel({"u": 0}, "u"))
    t.add_tokens([AddedToken("<w>", single_word=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False)])
    for c in CODES:
        if c == ord("<"):
            continue
        got = t.encode("<w>" + chr(c)).ids[0] == 1
        assert got == (c not in flags["WORD"]), f"U+{c:04X} as a word character"
        got = t.encode("<r>" + chr(c)).offsets[0][1] == 4
        assert got == (c in flags["WHITE"]), f"U+{c:04X} as white space"
    say("pre-tokenizers done")

    # Grapheme clusters show through Precompiled: a cluster of fewer than six bytes is replaced as a whole.
    leads = charsmap({b: "X" for b in range(1, 256) if not 0x80 <= b < 0xC2})
    run = leads.normalize_str
    extends = {c for c in CODES if c and run("a" + chr(c)) == "X"}
    prepends = {c for c in CODES if c and run(chr(c) + "a") == "X"}
    control = {c for c in CODES if 0 < c < 0x10000 and c not in extends and run(chr(c) + "\u0300") == "XX"} | {0}
    pictures = {c for c in CODES if c and c not in extends and run("\u00a9\u200d" + chr(c)) == "XXX"}
    flags["G_EXTENDS"], flags["G_PREPENDS"], flags["G_CONTROL"], flags["G_PICTURE"] = extends, prepends, control, pictures
    ka, virama, grave = "\u0915", "\u094d", "\u0300"
    flags["G_CONSONANT"] = {c for c in CODES if c and c not in extends and len(run(ka + virama + chr(c) + grave)) == 4 and len(run(chr(c) + grave)) == 1}
    flags["G_LINKER"] = {c for c in extends if len(run(ka + chr(c) + ka + grave)) == 4}
    flags["G_CONJUNCT_EXTEND"] = {c for c in extends if len(run(ka + virama + chr(c) + ka + grave)) == 5}
    say("indic: consonants", len(flags["G_CONSONANT"]), "linkers", len(flags["G_LINKER"]), "extend", len(flags["G_CONJUNCT_EXTEND"]))
    say("graphemes: extends", len(extends), "prepends", len(prepends), "control", len(control), "pictures", len(pictures))

    names = list(flags)
    assert len(names) <= 27
    combos, class_of, stage1, stage2, blocks = {}, [], [], [], {}
    for c in range(LAST + 1):
        class_of.append(0)
    bits = [0] * (LAST + 1)
    for i, name in enumerate(names):
        for c in flags[name]:
            bits[c] |= 1 << i
    for c, k in category.items():
        bits[c] |= k << 27
    combos[0] = 0
    for c in range(LAST + 1):
        class_of[c] = combos.setdefault(bits[c], len(combos))
    assert len(combos) <= 256, len(combos)
    SHIFT = 7
    def two_stage(values):
        one, two, seen = [], [], {}
        for start in range(0, LAST + 1, 1 << SHIFT):
            block = tuple(values[start:start + (1 << SHIFT)])
            if block not in seen:
                seen[block] = len(two) >> SHIFT
                two.extend(block)
            one.append(seen[block])
        return one, two
    stage1, stage2 = two_stage(class_of)

    # Mapping records: NFD, NFKD and lower case as strings of a pool, and the combining class.
    pool, at = [], {}
    def place(text):
        key = tuple(map(ord, text))
        if key not in at:
            for i in range(len(pool) - len(key) + 1):
                if pool[i] == key[0] and tuple(pool[i:i + len(key)]) == key:
                    at[key] = i
                    break
            else:
                at[key] = len(pool)
                pool.extend(key)
        return at[key], len(key)
    records, seen = [(0,) * 7], {(0,) * 7: 0}
    index = [0] * (LAST + 1)
    everything = (set(nfd) | set(nfkd) | set(lower) | set(ccc)) - hangul
    everything |= hangul & set(lower)
    for text in sorted({m[c] for m in (nfd, nfkd, lower) for c in m if c not in hangul}, key=len, reverse=True):
        place(text)
    for c in sorted(everything):
        s = chr(c)
        record = []
        for m in (nfd, nfkd, lower):
            record += place(m[c]) if c in m else (0, 0)
        record.append(ccc.get(c, 0))
        record = tuple(record)
        index[c] = seen.setdefault(record, len(records))
        if index[c] == len(records):
            records.append(record)
    map1, map2 = two_stage(index)
    assert len(pool) < 65536 and len(records) < 65536

    def array(kind, name, values, width=24):
        print(f"const {kind} {name}[{len(values)}] = {{")
        for i in range(0, len(values), width):
            print("    " + ", ".join(values[i:i + width]) + ",")
        print("};\n")
    print(f"/* Generated by tools/make_unicode_tables.py from Hugging Face tokenizers {tokenizers.__version__}: what that library does with every")
    print(" * code point. Do not edit. See unicode.h for the meaning of the flags and for the layout. */")
    print("// clang-format off")
    print('#include "text/unicode.h"\n')
    for i, name in enumerate(names):
        print(f"_Static_assert(LT_U_{name} == 1u << {i}, \"order of the flags\");")
    print()
    by_class = sorted(combos, key=combos.get)
    array("uint32_t", "lt_unicode_flags", [f"0x{b:x}" for b in by_class] + ["0"] * (256 - len(by_class)), 16)
    array("uint16_t", "lt_unicode_stage1", [str(v) for v in stage1])
    array("uint8_t", "lt_unicode_stage2", [str(v) for v in stage2], 32)
    array("uint16_t", "lt_unicode_map1", [str(v) for v in map1])
    array("uint16_t", "lt_unicode_map2", [str(v) for v in map2])
    array("lt_unicode_record", "lt_unicode_records", ["{%d,%d,%d,%d,%d,%d,%d}" % (r[0], r[2], r[4], r[1], r[3], r[5], r[6]) for r in records], 6)
    array("uint32_t", "lt_unicode_pool", [f"0x{v:x}" for v in pool], 12)
    items = sorted(pairs.items())
    print(f"const size_t lt_unicode_n_pairs = {len(items)};")
    array("lt_unicode_pair", "lt_unicode_pairs", ["{0x%x,0x%x,0x%x}" % (a, b, c) for (a, b), c in items], 6)
    say("classes", len(combos), "stage2", len(stage2), "map2", len(map2), "records", len(records), "pool", len(pool))


if __name__ == "__main__":
    main()
