#!/usr/bin/env python3
"""Write src/model/text/unicode_ranges.c: the character classes that token ids depend on.

    pip install tokenizers==0.23.3 unicodedata2==15.0.0
    tools/make_unicode_ranges.py > src/model/text/unicode_ranges.c

The classes are measured on the library that made the reference's ids, one code point after the
other, not taken from a table: its regex engine, its normaliser and its word test each carry a
Unicode version of their own.  Only `printable` is Python's (str.isprintable of Python 3.12).
"""
import sys

import tokenizers
import unicodedata2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
STEP = 20000


def regex_class(pattern):
    """Code points that the pre-tokenizer's regex engine matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for k in range(0, len(ALL), STEP):
        part = ALL[k:k + STEP]
        left = set()
        for _, (begin, end) in split.pre_tokenize_str("".join(map(chr, part))):
            left.update(range(begin, end))
        found.update(c for i, c in enumerate(part) if i not in left)
    return found


def word_class():
    """Characters beside which an added token with single_word is not taken."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("XX", single_word=True, normalized=False)])
    idx = tokenizer.token_to_id("XX")
    found = set()
    for k in range(0, len(ALL), STEP):
        part = ALL[k:k + STEP]
        encoding = tokenizer.encode("".join(chr(c) + "XX " for c in part))
        free = {offsets[0] // 4 for i, offsets in zip(encoding.ids, encoding.offsets) if i == idx}
        found.update(c for i, c in enumerate(part) if i not in free)
    return found


def nfc_active():
    """Code points that NFC moves, takes apart or puts together; all others pass unchanged."""
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    found, seconds = set(), set()
    for c in ALL:
        x = chr(c)
        apart = nfd.normalize_str(x)
        if apart != x:
            found.add(c)
            if len(apart) > 1:
                seconds.update(map(ord, apart[1:]))
            continue
        for probe in ("a\u0345" + x, "a" + x + "\u0334"):
            if nfc.normalize_str(probe) != probe:
                found.add(c)
    return found | seconds


def printable():
    return {c for c in ALL if c == 0x20 or
            unicodedata2.category(chr(c)) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")}


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    tables = [
        ("letters", regex_class(r"\p{L}"), r"\p{L} of the regex engine"),
        ("marks", regex_class(r"\p{M}"), r"\p{M} of the regex engine"),
        ("numbers", regex_class(r"\p{N}"), r"\p{N} of the regex engine"),
        ("white_space", regex_class(r"\s"), r"\s of the regex engine: the property White_Space"),
        ("word", word_class(), "beside these an added token with single_word is not taken"),
        ("nfc_active", nfc_active(), "what the normaliser's NFC knows of (Unicode 9.0)"),
        ("printable", printable(), "str.isprintable of Python 3.12"),
    ]
    print("/* Made by tools/make_unicode_ranges.py; do not edit.")
    print(f" * Measured on tokenizers {tokenizers.__version__} (regex classes: Unicode 16.0);")
    print(f" * printable: Unicode {unicodedata2.unidata_version}. */")
    print('#include "model/text/unicode_ranges.h"\n')
    print("/* clang-format off */")
    for name, points, note in tables:
        rows = ranges(points)
        print(f"\n/* {note}: {len(points)} code points */")
        print(f"static const m2_unicode_range {name}_ranges[] = {{")
        for k in range(0, len(rows), 5):
            print("    " + " ".join(f"{{ 0x{a:04X}, 0x{b:04X} }}," for a, b in rows[k:k + 5]))
        print("};")
        print(f"const m2_unicode_set m2_unicode_{name} = {{ {name}_ranges, {len(rows)} }};")
    print("/* clang-format on */")


if __name__ == "__main__":
    sys.exit(main())
