#!/usr/bin/env python3
"""Writes the reference cases of these tests with Hugging Face's tokenizers and
with tiktoken.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    python3 make_cases.py    # in this folder

The tests read the files that this leaves here and need no Python. Texts hold
only characters that Unicode 14 knows, since the version of PCRE2's tables may be
as old as that.
"""
import base64
import json
import pathlib
import random

import tiktoken
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models,
                        pre_tokenizers, processors, trainers)

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "python-free-examples/models/kjv-tiny"
NOTE = ("Made by make_cases.py with Hugging Face's tokenizers 0.23.3; "
        "ids: special tokens recognised, none added, unless a case says "
        "otherwise.")

# Alphabets from which random texts are drawn.
POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789",
    " ", "  ", "\n", "\r\n", "\t", "\n\n", " \n", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "àéîõüßñçøåæœſKÅ", "αβγδεζΩΣς", "абвгдежЖЩЪё", "אבגדה\u05b0\u05bc",
    "ابتثج\u064b\u0651٠١٢٣", "अआइईक\u094d\u093f०१", "กขคง\u0e31\u0e34\u0e48๑",
    "漢字仮名交文龥龦一㐀𠀀々〇", "ひらがなゟ゠", "カタカナヿー", "한국어텍스트가힣", "ㄱㅏᄀ\u1161",
    "😀👩👧🏽\u200d\ufe0f🇩🇪❤☺", "\u0301\u0308\u20dd\u0903", "²³¹½Ⅷ①㊄५",
    "\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u0085\u180e\u200b\ufeff",
    "\x00\x01\x07\x0b\x0c\x1b\x7f\u0080\u009f\u00ad", "€£¥₿∑√∞≠→★♪",
    "。、「」！？…—–‘’“”«»¿¡", "\U000e0001\U0010fffd\ufffd\ue000",
    "'s", "'T", "'re", "'VE", "'m", "'Ll", "'d", "'ſ",
]

FIXED = [
    "", " ", "  ", "a", "\n", "\r\n", "\r", "\t", "Hello, world!", "HELLO World hElLo",
    "don't DON'T we'LL I'M they'Re it'S 'sss'", "  two  spaces   three ",
    "trailing   ", "   leading", "tab\t\ttab \t mix", "a\n\n\nb\r\n\r\nc\r\rd",
    " \n \n\n x", "x \n", "x  \r\n  y", "1 12 123 1234 12345 1,234.56 0x1F ½²Ⅷ",
    "١٢٣٤ ५६७ 123", "a1b22c333d4444", "漢字とかな交じり文。テスト、終わり！",
    "中文English混排123数字", "한국어 띄어쓰기 ㄱㄴ", "Привет, мир! ПРИВЕТ",
    "שָׁלוֹם עולם", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "👩‍👩‍👧 👍🏽 🇩🇪 ❤️ ☺", "e\u0301 \u0301 e\u0301\u0301x", "a\u200db\u200cc\ufeffd",
    "\x00\x01 \x7f", "a\u00a0b\u3000c\u2003 d\u180ee\u0085f\u2028g",
    "#include <vector>\nint main() { return v[0] != 1; } // x\n",
    "def f(x):\n    return {**x, 'a': \"b\"}\n\n\n", "http://ex.org/a?b=c&d=%20#e",
    "-- --- ---- ... .... !!! ?!?! ((())) [[[]]]", "!abc #Tag @user $x _y `z` ~w",
    "f'(x)'s ''' '' '", "snake_case camelCase PascalCase kebab-case",
    "<|not|a|token|>", "\ufffd\ufffd", "a" * 300, "ab" * 200, " " * 100,
    "\n" * 50, "\u3000" * 20, "!" * 70, "1" * 50, "é" * 60, "漢" * 60, "😀" * 30,
    " a" * 100, "a \n" * 40, "\r\n" * 30 + "end",
]


def texts(seed, count, extra=()):
    rng = random.Random(seed)
    out = list(FIXED)
    held = (MODEL / "heldout.txt").read_text(encoding="utf-8")
    for _ in range(8):
        at = rng.randrange(len(held) - 200)
        out.append(held[at:at + 200])
    pools = POOLS + list(extra) * 3
    for _ in range(count):
        some = rng.sample(pools, rng.randint(1, 7))
        parts = []
        for _ in range(rng.randint(1, 14)):
            pool = rng.choice(some)
            if pool in extra or pool[0] == "'" or len(pool) <= 2:
                parts.append(pool)
            else:
                parts.append("".join(rng.choice(pool)
                                     for _ in range(rng.randint(1, 6))))
        out.append("".join(parts))
    return out


def cases(tok, some, **more):
    return [{"text": t, "ids": tok.encode(t, add_special_tokens=bool(more.get("special"))).ids, **more}
            for t in some]


def write(name, value):
    value = {"note": NOTE, **value} if isinstance(value, dict) else value
    lines = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    lines = lines.replace(',{"text"', ',\n{"text"').replace(',{"pattern"', ',\n{"pattern"')
    (HERE / name).write_text(lines + "\n", encoding="utf-8")


def corpus():
    held = (MODEL / "heldout.txt").read_text(encoding="utf-8")
    return [held[i:i + 500] for i in range(0, 40000, 500)] + FIXED * 4 + texts(1, 300)


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def glm_like():
    """Llama-3's pattern, ignore_merges, every flag of added tokens, a template."""
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[], show_progress=False))
    # A piece that no merge makes: only ignore_merges finds it.
    model = json.loads(tok.to_str())
    model["model"]["vocab"]["\u0120zebrafish"] = len(model["model"]["vocab"])
    tok = Tokenizer.from_str(json.dumps(model))
    tok.add_special_tokens([
        AddedToken("[gMASK]"), AddedToken("<sop>"), AddedToken("<|user|>"),
        AddedToken("<|end|>", rstrip=True), AddedToken("<|mask|>", lstrip=True),
        AddedToken("<|both|>", lstrip=True, rstrip=True),
        AddedToken("<\uff5cend\u2581of\uff5c>"),
        AddedToken("<|user|>s", normalized=False)])
    tok.add_tokens([
        AddedToken("<think>", normalized=False), AddedToken("word", single_word=True),
        AddedToken("MiXed"), AddedToken("MiXedLonger"),
        AddedToken("<|word|>", single_word=True, normalized=False),
        AddedToken("\u00e9t\u00e9", normalized=False)])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="[gMASK] <sop> $A <|user|>",
            special_tokens=[(t, tok.token_to_id(t)) for t in ("[gMASK]", "<sop>", "<|user|>")])])
    extra = ["[gMASK]", "<sop>", "<|user|>", "<|user|>s", "<|end|>", "<|mask|>", "<|both|>",
             "<\uff5cend\u2581of\uff5c>", "<think>", "word", "MiXed", "MiXedLonger",
             "<|word|>", "\u00e9t\u00e9", "sword", "word\u0301", "MiXedLong", " zebrafish",
             "<|user|", "<<|user|>>"]
    fixed = ["[gMASK]<sop><|user|>hi<|end|>", "x  <|mask|>  y", "x  <|both|>  <|both|> y",
             "a <|end|> \n <|mask|> b", "word words sword word, _word wordé 漢word word漢",
             "word\u200dx xword\u2040 word² ⓐword", "MiXedLongerMiXedLongMiXed",
             "a <|word|>b <|word|> c<|word|>", "l'été étés", " zebrafish zebrafish",
             "<|user|>s<|user|>", "<|end|>\u00a0\u3000x<|mask|>", "\u2003<|both|>\u2028",
             "<|end|> <|end|>  <|mask|>", "<|mask|>"]
    some = fixed + texts(2, 250, extra)
    out = cases(tok, some) + cases(tok, fixed[:3] + [""], special=True)
    tok.encode_special_tokens = True
    out += cases(tok, fixed, parse=False)
    (HERE / "glm_like_tokenizer.json").write_text(
        json.dumps(json.loads(tok.to_str()), ensure_ascii=True, separators=(",", ":"))
        .replace(',"\\u0120', ',\n"\\u0120') + "\n", encoding="utf-8")
    write("glm_like_cases.json", {"cases": out})


def gpt2_like():
    """A lone ByteLevel with its own pattern and a prefix space."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"], show_progress=False))
    value = json.loads(tok.to_str())
    # Older files write merges as texts and lack newer keys.
    value["model"]["merges"] = [" ".join(m) for m in value["model"]["merges"]]
    del value["model"]["ignore_merges"]
    tok = Tokenizer.from_str(json.dumps(value))
    (HERE / "gpt2_like_tokenizer.json").write_text(
        json.dumps(value, ensure_ascii=True, separators=(",", ":"))
        .replace(',"\\u0120', ',\n"\\u0120') + "\n", encoding="utf-8")
    write("gpt2_like_cases.json",
          {"cases": cases(tok, texts(3, 100, ["<|endoftext|>"]))})


def kjv():
    tok = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    extra = [t["content"] for t in json.loads(tok.to_str())["added_tokens"]]
    some = texts(4, 400, extra)
    some += ["a" + t + "b" for t in extra] + [t + " " + t for t in extra]
    some += ["<\uff5cUser\uff5c", "<<\uff5cUser\uff5c>>", "<|User|>"]
    write("kjv_cases.json", {"cases": cases(tok, some)})


# As published beside Kimi-K2's tiktoken.model.
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + ENGLISH,
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + ENGLISH,
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

KIMI_POOLS = ["ǅǈǋǲᾈᾏῼ", "ʰʲˀˠᵃー々〻ゝ", "⼀⼁⺀〇〆〡", "getUserName", "XMLHttpRequest", "iPhone",
              "漢字", "A", "a", "'S", "'LL", "'Re", "ΑΒΓΔ", "éÉ", "가나", "12", "345", "6"]
KIMI_FIXED = [
    "getUserName XMLHttpRequest iPhone eBay HTTPServer2Go parseJSON", "ǅungla ǈubav ǋ ᾈδης aǅ ǅA",
    "ʰa aʰ Aʰ ʰA xʰy XʰY ˀ ʻokina", "人々 〇一二 ⼀⼁漢 ⺀a 〆切 〡〢",
    "漢字abc漢字ABC漢Abc 漢 a漢 A漢", "1 22 333 4444 55555 666666 7777777",
    "IT'S it's It'S we'LL we'll WE'Ll I'd I'D o'clock 'S 'LL", "'s' 't 'RE're DON'T've x'ſ ſ's",
    "a'b'c''d'''s", "e\u0301E\u0301 \u0301a \u0301A 漢\u0301a A\u0301\u0308b",
    "-abc _abc /Abc (ABC) \"Abc\" #Tag @User $x ¿Qué? “Abc”",
    "\tabc \tABC\n\tdef\r\n\tGhi \u3000abc\u00a0Abc", "привет Привет ПРИВЕТ ПриВет",
    "καλημέρα Καλημέρα ΚΑΛΗΜΕΡΑ", "한국어ABC 한국어abc", "ひらがなカタカナ漢字ABC", "ไทยABC ไทยabc",
    "नमस्तेABC", "שלוםABC", "مرحباABC", "zebrafish zebrafish", " zebrafish\nzebrafish", "x" * 300,
    "Xx" * 150, "xX" * 150, "漢a" * 60, "A" * 200, "ʰ" * 80, "\u0301" * 80,
]


def kimi_ranks():
    """Bytes in a random order, then tokens trained on the corpus and tokens that
    cut across those, in an order that no training gives."""
    rng = random.Random(7)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(KIMI), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(corpus() + KIMI_FIXED * 3, trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=alphabet, show_progress=False))
    spells = [*range(33, 127), *range(161, 173), *range(174, 256)]
    bytes_of = {chr(b): b for b in spells}
    for b in range(256):
        if b not in spells:
            bytes_of[chr(256 + len(bytes_of) - len(spells))] = b
    assert sorted(bytes_of) == sorted(alphabet)
    trained = [bytes(bytes_of[c] for c in t)
               for t, _ in sorted(tok.get_vocab().items(), key=lambda e: e[1]) if len(t) > 1]
    words = [w.encode() for t in corpus() for w in t.split(" ") if 2 < len(w) < 20]
    across = []
    for _ in range(300):
        word = b" " * rng.randrange(2) + rng.choice(words)
        begin = rng.randrange(len(word) - 1)
        across.append(word[begin:begin + rng.randint(2, 7)])
    longer = [t for t in dict.fromkeys(trained + across + [b" zebrafish"]) if len(t) > 1]
    # Neighbours change places, so that a part may come after the whole.
    longer = [t for _, t in sorted((i + rng.gauss(0, 60), t) for i, t in enumerate(longer))]
    single = [bytes([b]) for b in range(256)]
    rng.shuffle(single)
    return {t: rank for rank, t in enumerate(single + longer)}


def kimi():
    """tiktoken.model and tokenizer_config.json in the form of Kimi-K2's."""
    ranks = kimi_ranks()
    base = len(ranks)
    folder = HERE / "kimi_like"
    folder.mkdir(exist_ok=True)
    (folder / "tiktoken.model").write_text("".join(
        f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
    named = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
             9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_call_begin|>", 12: "<|tool_call_end|>",
             17: "<|im_middle|>", 22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]"}
    shown = (11, 12, 22, 23)  # not "special": kept in decoded text
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "added_tokens_decoder": {
            str(base + i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                            "single_word": False, "special": i not in shown}
            for i, t in named.items()},
        "additional_special_tokens": [named[i] for i in (2, 3, 4, 9, 10, 17)],
        "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]",
        "clean_up_tokenization_spaces": False, "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "chat_template": "{{ messages }}"}, indent=1) + "\n")
    special = {named.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(256)}
    enc = tiktoken.Encoding("kimi_like", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)

    def encode(text, parse=True):
        if parse:
            return enc.encode(text, allowed_special="all")
        return enc.encode(text, disallowed_special=())

    extra = list(named.values()) + [f"<|reserved_token_{base + i}|>" for i in (5, 100)]
    some = KIMI_FIXED + texts(8, 200, extra + KIMI_POOLS)
    some += ["a" + t + "b" for t in extra] + [" " + t + " \n" + t for t in extra]
    some += ["<|im_user|>user<|im_middle|>Hi!<|im_end|><|im_assistant|>assistant<|im_middle|><think>",
             "<|im_end|", "<<|im_end|>>", f"<|reserved_token_{base + 256}|>",
             f"<|reserved_token_{base}|>", "[BOS][BOS] [EOS]"]
    out = [{"text": t, "ids": encode(t)} for t in some]
    out += [{"text": t, "ids": encode(t, False), "parse": False} for t in some[-40:]]

    # Bytes that are no text: as if decoded with U+FFFD for what is wrong.
    rng = random.Random(9)
    raw = [b"a\xffz", b"\xc3", b"\xe6\x83 x", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80",
           b"A\x80\x80b", b"\xf4\x90\x80\x80", b"<|im_end|>\xe2<|im_end|>"]
    for t in rng.sample([t for t in some if len(t) > 4], 40):
        data = bytearray(t.encode()[:60])
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        raw.append(bytes(data))
    out += [{"hex": b.hex(), "ids": encode(b.decode("utf-8", "replace"))} for b in raw]

    # Ids that no text gives, most of them parts of characters.
    decoded = []
    for _ in range(200):
        below = rng.choice([256, 256, enc.n_vocab])
        ids = [rng.randrange(below) for _ in range(rng.randint(1, 12))]
        decoded.append({"ids": ids, "text": enc.decode(ids)})
    note = ("Made by make_cases.py with tiktoken 0.14.0; all special tokens recognised unless a "
            "case says otherwise; decoded with errors=\"replace\".")
    lines = json.dumps({"note": note, "cases": out, "decoded": decoded}, separators=(",", ":"))
    for key in ("text", "hex", "ids"):
        lines = lines.replace(',{"' + key, ',\n{"' + key)
    (HERE / "kimi_cases.json").write_text(lines + "\n")

    # Many short random texts, one a line: the text, then its ids.
    pools = POOLS + KIMI_POOLS + extra
    lines = []
    for _ in range(4000):
        text = ""
        for pool in rng.choices(pools, k=rng.randint(1, 4)):
            text += pool if pool in extra or len(pool) < 3 else "".join(
                rng.choice(pool) for _ in range(rng.randint(1, 3)))
        lines.append(json.dumps([text, *encode(text)], ensure_ascii=False, separators=(",", ":")))
    (HERE / "kimi_random.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


PATTERNS = [
    LLAMA3,
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    # DeepSeek-V2's
    "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\s+$",
    # Kimi-K2's, with intersections
    KIMI,
    # cl100k with possessive repeats; GPT-4o style
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    # Single differences between the two libraries
    r"^\s*", r"\w+", r"\W+", r"[\w']+", r"\b", r"a*", r"(?=[A-Z])", r"x{,2}", r"{a}",
    r".+", r"\h+", r"\v", r"[a-z&&[^aeiou]]+", r"[^a-c[x-z]]", r"[[a-c][x-z]&&[^b]]+",
    r"\p{Letter}+", r"\p{^L}", r"\P{Nd}+", r"\p{Greek}+", r"(?<=\d)\D", r"\S+\s?", r"\u0061+",
    r"\p{Uppercase}+|\p{Lower}+", r"(?i)k", r"\x{1F600}", r"[^\W\d]+", r"\Aa|b\z|\s\Z",
]


def patterns():
    rng = random.Random(5)
    base = texts(6, 150)
    out = []
    for p in PATTERNS:
        pre = pre_tokenizers.Split(Regex(p), behavior="isolated")
        # The pieces' bounds are in the normalised text, which is the text.
        some = FIXED[:40] + rng.sample(base, 25) if len(p) > 60 else rng.sample(base, 30)
        out.append({"pattern": p, "cases": [
            {"text": t, "pieces": [s for s, _ in pre.pre_tokenize_str(t)]} for t in some]})
    write("pattern_cases.json", {"patterns": out})


if __name__ == "__main__":
    glm_like()
    gpt2_like()
    kjv()
    kimi()
    patterns()
