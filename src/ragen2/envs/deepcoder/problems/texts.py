"""Problems about words and letters."""

from __future__ import annotations

import re
from collections import Counter

from ragen2.envs.deepcoder.problems.draws import integer, word, words
from ragen2.envs.deepcoder.problems.family import Family

FAMILIES = (
    Family(
        name="is_palindrome",
        level=1,
        takes=(("s", "text"),),
        gives="bool",
        wanted="True if the letters and digits of s read the same backwards, else False",
        note="Case and all other characters do not count.",
        solution="""
def is_palindrome(s):
    kept = [c.lower() for c in s if c.isalnum()]
    return kept == kept[::-1]
""",
        answer=lambda s: (
            re.sub("[^a-z0-9]", "", s.lower())
            == "".join(reversed(re.sub("[^a-z0-9]", "", s.lower())))
        ),
        draw=lambda rng, size: (
            (w := word(rng, size, "abAB ,1")) + (w[::-1].swapcase() if integer(rng, 0, 2) else "a"),
        ),
        edges=(("",), ("No lemon, no melon",), ("ab",), (".,!",), ("1a1",), ("0P",)),
        idea="keep letters and digits in lower case and compare with the reverse",
    ),
    Family(
        name="caesar",
        level=1,
        takes=(("s", "text"),),
        gives="text",
        wanted="s with every letter moved $k places on in the alphabet, z being followed by a",
        note="Case is kept and other characters stay.",
        variants=({"k": 1}, {"k": 3}, {"k": 13}),
        solution="""
def caesar(s):
    result = ""
    for c in s:
        if "a" <= c <= "z":
            c = chr((ord(c) - 97 + $k) % 26 + 97)
        elif "A" <= c <= "Z":
            c = chr((ord(c) - 65 + $k) % 26 + 65)
        result += c
    return result
""",
        answer=lambda s, k: s.translate(
            str.maketrans(
                "".join(map(chr, [*range(97, 123), *range(65, 91)])),
                "".join(chr(b + (i + k) % 26) for b in (97, 65) for i in range(26)),
            )
        ),
        draw=lambda rng, size: ("x" + word(rng, size, "abcxyzXYZ .!5") + "z",),
        edges=(("z",), ("Zz Aa",), ("Hello, World!",), ("123",), ("xyz XYZ",)),
        idea="shift within each case modulo 26",
    ),
    Family(
        name="count_letters",
        level=1,
        takes=(("s", "text"),),
        gives="int",
        wanted="how many characters of s are among the letters $letters, in either case",
        variants=({"letters": "aeiou"}, {"letters": "xyz"}, {"letters": "abcd"}),
        solution="""
def count_letters(s):
    return sum(c in "$letters" for c in s.lower())
""",
        answer=lambda s, letters: len(re.findall(f"[{letters}{letters.upper()}]", s)),
        draw=lambda rng, size: (word(rng, 2 * size, "aeiouAEXYZbcd XYz,."),),
        edges=(("",), ("AEIOU XYZ ABCD",), ("rhythm",), ("   ",), ("aAaAxX",)),
        idea="put s in lower case and count",
    ),
    Family(
        name="top_word",
        level=2,
        takes=(("words", "words"),),
        gives="text",
        wanted="the $word of the words; of several, the alphabetically first",
        note="There is at least one word.",
        variants=({"word": "most frequent"}, {"word": "least frequent"}),
        solution="""
def top_word(words):
    counts = {}
    for w in words:
        counts[w] = counts.get(w, 0) + 1
    sign = -1 if "$word" == "most frequent" else 1
    return min(counts, key=lambda w: (sign * counts[w], w))
""",
        answer=lambda words, word: sorted(
            Counter(sorted(words)).items(),
            key=lambda item: (item[1] if word == "least frequent" else -item[1], item[0]),
        )[0][0],
        draw=lambda rng, size: (words(rng, 2 * size, 2, "abc"),),
        edges=((["b"],), (["b", "a"],), (["c", "a", "c", "a"],), (["B", "a", "a"],)),
        idea="count the words, then order by count and by the alphabet",
    ),
    Family(
        name="anagram_groups",
        level=2,
        takes=(("words", "words"),),
        gives="int",
        wanted="into how many groups the words fall if anagrams (same letters) belong together",
        solution="""
def anagram_groups(words):
    return len({"".join(sorted(w)) for w in words})
""",
        answer=lambda words: len({frozenset(Counter(w).items()) for w in words}),
        draw=lambda rng, size: (words(rng, size, 3, "abc"),),
        edges=(([],), (["ab", "ba"],), (["a", "aa"],), (["abc", "cab", "xyz"],), (["a", "A"],)),
        idea="words are anagrams if their sorted letters agree",
    ),
    Family(
        name="common_prefix",
        level=1,
        takes=(("words", "words"),),
        gives="int",
        wanted="the length of the longest prefix that all words share",
        note="Without words it is 0.",
        solution="""
def common_prefix(words):
    length = 0
    for letters in zip(*words):
        if len(set(letters)) > 1:
            break
        length += 1
    return length
""",
        answer=lambda words: max(
            (n for n in range(len(words[0]) + 1) if len({w[:n] for w in words}) == 1)
            if words
            else [0]
        ),
        draw=lambda rng, size: (
            [p + w for p in [word(rng, integer(rng, 0, 5))] for w in words(rng, size, 3, "ab")],
        ),
        edges=(([],), (["abc"],), (["abc", "abd"],), (["ab", "abc"],), (["x", "y"],)),
        idea="compare the words letter by letter",
    ),
    Family(
        name="turn_words",
        level=1,
        takes=(("words", "words"),),
        gives="words",
        wanted="$what",
        variants=(
            {"what": "the words in reverse order", "order": -1, "inside": 1},
            {"what": "the words with each one spelt backwards", "order": 1, "inside": -1},
        ),
        solution="""
def turn_words(words):
    return [w[::$inside] for w in words][::$order]
""",
        answer=lambda words, what, order, inside: [
            w if inside == 1 else "".join(reversed(w))
            for w in (words if order == 1 else list(reversed(words)))
        ],
        draw=lambda rng, size: (words(rng, size, 5),),
        edges=((["one"],), (["ab", "cd"],), (["level"],), (["a", "b", "c"],)),
        idea="slice with step -1",
    ),
    Family(
        name="snake_case",
        level=1,
        takes=(("s", "text"),),
        gives="text",
        wanted="the name s, written likeThis, written like_this: an underscore before each "
        "capital, all in lower case",
        solution="""
def snake_case(s):
    return "".join("_" + c.lower() if c.isupper() else c for c in s)
""",
        answer=lambda s: re.sub("([A-Z])", lambda found: "_" + found[1].lower(), s),
        draw=lambda rng, size: ("n" + word(rng, size, "abcABC12"),),
        edges=(("a",), ("aB",), ("aBC",), ("value2Text",), ("plain",)),
        idea="replace every capital by an underscore and its small letter",
    ),
)
