"""Dialogues made by program from a seed: what the built-in model learns to do.

Each generator returns a `Dialogue` (messages, tools, thinking flag) and, for evaluation, what a right answer must hold.
`Rand.split` is "train" or "eval". Wordings of tasks are pairs of a sentence and a frame, divided by a fixed hash; so are the
sums; wordings of small talk are kept from training whole. Names, codes and numbers are drawn at random (many are made up).
So evaluation asks sentences that training never showed, about values that can only be copied or computed. `render` lays a dialogue out exactly as the chat
template does (a test compares the two) and marks which pieces the model itself must produce.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import wordlists as W
from facts import CHAT, CODE, EXPLAIN, FACTS, SPLASH, TALK, UNKNOWN

T = TypeVar("T")
IM_START, IM_END, EOT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TOOLS_HEAD = "# Tools\nUse a function when the user's request needs one.\n<tools>"
TOOLS_TAIL = "\n</tools>"


@dataclass
class Dialogue:
    category: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False
    expected: dict[str, Any] = field(default_factory=dict)


def held_out(item: object, one_in: int = 8) -> bool:
    """A fixed division of anything with a stable repr into evaluation (one part) and training (the rest)."""
    return zlib.crc32(repr(item).encode()) % one_in == 0


class Rand(random.Random):
    """A seeded source of choices that respects the split."""

    def __init__(self, seed: int, split: str) -> None:
        super().__init__(seed)
        self.split = split
        self._parts: dict[int, tuple[Sequence[Any], list[Any]]] = {}

    def plain(self, items: Sequence[T]) -> T:
        """One item of this split's part of `items`: a few are kept from training altogether (short lists are not divided)."""
        if len(items) < 6:
            return self.choice(items)
        known = self._parts.get(id(items))
        if known is None or known[0] is not items:
            part = [x for x in items if held_out(x, 12) == (self.split == "eval")]
            known = (items, part or list(items))
            self._parts[id(items)] = known
        return self.choice(known[1])

    def pick(self, templates: Sequence[str]) -> str:
        """A wording in a frame ("Hi! ...", "Please ...", "Next task: ..."); evaluation gets pairs that training never shows."""
        while True:
            text = self.choice(templates)
            frames = QUESTION_FRAMES if text.rstrip().endswith("?") else REQUEST_FRAMES
            k = self.randrange(len(frames))
            if held_out((text, k), 8) == (self.split == "eval"):
                return framed(text, frames[k])

    def some(self, items: Sequence[T], low: int, high: int) -> list[T]:
        """Distinct items; single words are not divided here, since a sentence of held-out words alone would be odd."""
        return self.sample(list(items), self.randint(low, high))

    def chance(self, p: float) -> bool:
        return self.random() < p

    def name(self) -> str:
        """A first name: known, made up, or any word with a capital (whatever is given must be copied)."""
        kind = self.random()
        if kind < 0.6 or not VOCAB:
            return self.choice(W.NAMES)
        if kind < 0.85:
            syllables = "".join(self.choice("bcdfghjklmnprstvz") + self.choice("aeiou") for _ in range(self.randint(1, 2)))
            return (syllables + self.choice(["n", "r", "s", "l", "la", "ra", "no", "x", "m", "ta"])).capitalize()
        return self.choice(VOCAB).capitalize()

    def word(self) -> str:
        """Any word: half from the short everyday list, half from the corpus' vocabulary."""
        return self.choice(VOCAB) if VOCAB and self.chance(0.5) else self.choice(W.COMMON)

    def words(self, low: int, high: int) -> list[str]:
        found: dict[str, None] = {}
        n = self.randint(low, high)
        while len(found) < n:
            found[self.word()] = None
        return list(found)

    def token(self, low: int = 4, high: int = 8) -> str:
        """A random code that can only be copied, never guessed."""
        kind = self.randrange(5)
        n = self.randint(low, high)
        if kind == 0:
            return "".join(self.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(n))
        if kind == 1:
            return "".join(self.choice("0123456789") for _ in range(n))
        if kind == 2:
            return f"{self.word()}-{self.randint(1, 999)}"
        if kind == 3:
            return self.choice("ABCDEFGHKLMNPRSTXZ") + self.choice("ABCDEFGHKLMNPRSTXZ") + "-" + str(self.randint(100, 99999))
        return "".join(self.choice("bcdfgklmnprstvz") + self.choice("aeiou") for _ in range(max(2, n // 2)))


QUESTION_FRAMES = ("{}", "{}", "{}", "Hi! {}", "Hey, {l}", "Please tell me: {l}", "Question: {}", "I'd like to know: {l}", "Quick question: {l}", "Splash, {l}", "OK. {}",
                   "Now: {l}", "{} Thanks!", "{} Please answer.", "{l}", "{n}", "{ln}", "Next question: {}", "Can you help me? {}", "So, {l}", "And {l}", "Hello! {}", "One more: {l}")
REQUEST_FRAMES = ("{}", "{}", "{}", "Please {l}", "Hi! {}", "Hey, {l}", "OK. {}", "Now {l}", "Next task: {l}", "Splash, {l}", "Hello! {}", "{l}", "{n}", "{ln}", "I have a task. {}",
                  "Task: {l}", "Can you help? {}", "Well, {l}", "Then {l}", "Good. {}")


def framed(text: str, frame: str) -> str:
    """`text` (maybe a template with fields) in a frame: {} as it is, {l} small first letter, {n} without the final mark."""
    keep = text[:1] in "{" or text[:2] in ("I ", "I'") or text[1:2].isupper()
    lower = text if keep else text[:1].lower() + text[1:]
    bare = text[:-1] if text[-1:] in ".?" else text
    lower_bare = lower[:-1] if lower[-1:] in ".?" else lower
    return frame.replace("{ln}", lower_bare).replace("{n}", bare).replace("{l}", lower) if "{}" not in frame else frame.replace("{}", text, 1)


NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def bot(text: str, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **extra}


def vary(r: Rand, text: str) -> str:
    """Small changes of the surface that people make: greeting, please, case, final mark."""
    if r.chance(0.05):
        text = r.choice(["Hi! ", "Hello, ", "Hey, ", "Hi, ", "OK, ", "Now, ", "So, ", "Well, "]) + text
    elif r.chance(0.08) and text[-1] in ".?" and len(text) < 90:
        text = text[:-1] + r.choice([", please", " please"]) + text[-1]
    if r.chance(0.15) and not text[1:2].isupper():
        text = text[0].lower() + text[1:]
    if r.chance(0.12) and text[-1] in ".?":
        text = text[:-1]
    return text


def sentence_list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


# ---------------------------------------------------------------------------------------------------- chat and facts


def chat(r: Rand) -> Dialogue:
    """One to four exchanges of small talk."""
    messages: list[dict[str, Any]] = []
    for intent in r.sample(list(CHAT), r.choice([1, 1, 2, 3, 4])):
        questions, answers = CHAT[intent]
        messages += [user(vary(r, r.plain(questions))), bot(r.choice(answers))]
    return Dialogue("chat", messages)


def talk_slots(r: Rand) -> dict[str, str]:
    """What the sentences of TALK may hold; a capital letter at the front gives the value one."""
    animal, other = r.sample(W.PLURALS, 2)
    pool = r.choice([W.FOODS, W.CITIES, W.COLOURS, W.HOBBIES, W.PLURALS])
    a, b = r.sample(pool, 2)
    values = {"food": r.choice(W.FOODS), "city": r.choice(W.CITIES), "thing": r.choice(W.OBJECTS), "animals": animal, "others": other, "hobby": r.choice(W.HOBBIES), "verb": r.choice(W.ACTIONS),
              "day": r.choice(W.DAYS), "month": r.choice(W.MONTHS), "name": r.name(), "colour": r.choice(W.COLOURS), "country": r.choice(list(W.CAPITALS)), "language": r.choice(W.LANGUAGES),
              "adjective": r.choice(W.ADJECTIVES), "word": r.word(), "topic": " ".join(r.words(1, 2)), "relative": r.choice(W.RELATIVES), "sport": r.choice(W.SPORTS), "a": a, "b": b,
              "event": r.choice(W.EVENTS), "vehicle": r.choice(["train", "bus", "plane", "taxi", "ferry", "tram"]), "title": f"The {r.choice(W.ADJECTIVES).title()} {r.choice(W.COMMON).title()}",
              "noise": "".join(r.choice("asdfghjklqwertzuiopyxcvbnm") for _ in range(r.randint(4, 10)))}
    return values | {k.capitalize(): v[:1].upper() + v[1:] for k, v in values.items() if len(k) > 1} | {"A": a[:1].upper() + a[1:]}


def talk_turn(r: Rand) -> list[dict[str, Any]]:
    """Something people say, with any word in it, and an answer that takes the word up or admits not to know."""
    questions, answers = r.choice(TALK)
    slots = talk_slots(r)
    return [user(vary(r, r.plain(questions).format(**slots))), bot(r.choice(answers).format(**slots))]


def talk(r: Rand) -> Dialogue:
    messages: list[dict[str, Any]] = []
    for _ in range(r.choice([1, 1, 2, 3])):
        if r.chance(0.75):
            messages += talk_turn(r)
        else:
            questions, answers = CHAT[r.choice(list(CHAT))]
            messages += [user(vary(r, r.plain(questions))), bot(r.choice(answers))]
    return Dialogue("chat", messages)


def said(r: Rand) -> Dialogue:
    """What was just said, word for word."""
    before = r.choice([chat, talk, fact])(r).messages
    last = before[-2]["content"]
    ask = r.pick(["What did I just say?", "What did I say?", "Repeat my last message.", "Can you repeat what I said?", "What was my last message?", "What did I just write?", "Say what I said.", "What did I ask you?"])
    return Dialogue("recall", [*before, user(ask), bot(f'You said: "{last}"')], expected={"contains": [last]})


def named_chat(r: Rand) -> Dialogue:
    """Greeting with a name: the name must come back."""
    name = r.name()
    hello = r.choice(["Hi, I'm {}.", "Hello, my name is {}.", "Hey there, {} here.", "Good morning, I am {}.", "Hi! I'm called {}.",
                    "My name is {}, nice to meet you.", "Hello! This is {}.", "Hi, {} speaking.", "You can call me {}.",
                    "Greetings, I'm {}."]).format(name)
    messages = [user(vary(r, hello)), bot(f"Hello, {name}! Nice to meet you. How can I help you today?")]
    ask = r.pick(["What is my name?", "Do you remember my name?", "What's my name again?", "Who am I?", "Tell me my name.",
                  "Can you say my name?", "How am I called?", "What did I say my name was?"])
    if r.chance(0.5):
        intent = r.choice(list(CHAT))
        messages += talk_turn(r) if r.chance(0.3) else [user(r.plain(CHAT[intent][0])), bot(r.choice(CHAT[intent][1]))]
    messages += [user(vary(r, ask)), bot(f"Your name is {name}.")]
    return Dialogue("recall", messages, expected={"contains": [name]})


def splash(r: Rand) -> Dialogue:
    messages: list[dict[str, Any]] = []
    for key in r.sample(list(SPLASH), r.choice([1, 1, 2, 3])):
        questions, answer = SPLASH[key]
        messages += [user(vary(r, r.plain(questions))), bot(answer)]
    return Dialogue("splash", messages)


CAPITAL_Q = ["What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.", "Tell me the capital of {}.",
             "{}: what is its capital?", "What's the capital city of {}?", "Do you know the capital of {}?", "Capital of {}?"]
OPPOSITE_Q = ["What is the opposite of {}?", "Give me the opposite of {}.", "Name an antonym of {}.", "What's the opposite of the word {}?",
              "Which word means the opposite of {}?", "Opposite of {}?", "Tell me the antonym of {}."]
SOUND_Q = ["What sound does a {} make?", "Which sound does the {} make?", "How does a {} sound?", "What does a {} say?",
           "Tell me the sound of a {}.", "What noise does a {} make?"]


def fact(r: Rand) -> Dialogue:
    messages: list[dict[str, Any]] = []
    for _ in range(r.choice([1, 1, 2, 3])):
        kind = r.randrange(7)
        if kind == 0:
            country = r.choice(list(W.CAPITALS))
            q, a = r.pick(CAPITAL_Q).format(country), f"The capital of {country} is {W.CAPITALS[country].replace('_', ' ')}."
        elif kind == 1:
            word = r.choice(list(W.OPPOSITES))
            q, a = r.pick(OPPOSITE_Q).format(word), f"The opposite of {word} is {W.OPPOSITES[word]}."
        elif kind == 2:
            animal = r.choice(list(W.ANIMALS))
            q, a = r.pick(SOUND_Q).format(animal), f"A {animal} says {W.ANIMALS[animal]}."
        elif kind == 3:
            ring, label = r.choice([(W.DAYS, "day"), (W.MONTHS, "month")])
            i, step = r.randrange(len(ring)), r.choice([1, -1])
            word = "after" if step == 1 else "before"
            q = r.pick(["Which {0} comes {1} {2}?", "What {0} is {1} {2}?", "Name the {0} {1} {2}.", "What is the {0} {1} {2}?",
                        "Tell me the {0} that comes {1} {2}.", "{2}: which {0} comes {1} it?"]).format(label, word, ring[i])
            a = f"{ring[(i + step) % len(ring)]} comes {word} {ring[i]}."
        else:
            questions, a = r.choice(FACTS)
            q = r.choice(questions)
        messages += [user(vary(r, q)), bot(a)]
    return Dialogue("facts", messages)


DEFINE_Q = ["What does {} mean?", "Define the word {}.", "What is the meaning of {}?", "Explain the word {}.", "What does the word \"{}\" mean?",
            "Give me a definition of {}.", "Can you define {}?", "I don't know the word {}. What does it mean?", "Meaning of {}?"]
VOCAB: list[str] = []  # frequent words of the corpus
DEFINITIONS: dict[str, str] = {}  # filled by load_words from the corpus builder's words.json


def define(r: Rand) -> Dialogue:
    if not DEFINITIONS or r.chance(0.15):
        word = "".join(r.choice("bcdfgklmnprstvz") + r.choice("aeiou") for _ in range(r.randint(2, 4)))
        return Dialogue("unknown", [user(vary(r, r.pick(DEFINE_Q).format(word))), bot(f"I don't know the word {word}.")])
    word = r.choice(list(DEFINITIONS))
    return Dialogue("define", [user(vary(r, r.pick(DEFINE_Q).format(word))), bot(f"{word[0].upper() + word[1:]}: {DEFINITIONS[word]}.")])


def explain(r: Rand) -> Dialogue:
    questions, answer = EXPLAIN[r.choice(list(EXPLAIN))] if r.chance(0.7) else CODE[r.choice(list(CODE))]
    messages = [user(vary(r, r.plain(questions))), bot(answer)]
    if r.chance(0.3):
        thanks, replies = CHAT["thanks"]
        messages += [user(r.plain(thanks)), bot(r.choice(replies))]
    return Dialogue("explain", messages)


def unknown(r: Rand) -> Dialogue:
    """Things that a local model can't know: it says so."""
    questions, answers = UNKNOWN[r.choice(list(UNKNOWN))]
    slots = {"name": f"{r.name()} {r.choice(W.SURNAMES)}", "city": r.choice(W.CITIES), "thing": r.choice(W.OBJECTS),
             "code": r.token(), "day": r.choice(W.DAYS)}
    return Dialogue("unknown", [user(vary(r, r.plain(questions).format(**slots))), bot(r.choice(answers).format(**slots))])


# --------------------------------------------------------------------------------------------------------- arithmetic

EXPRESSIONS = {
    "+": ["{a} + {b}", "{a} plus {b}", "the sum of {a} and {b}", "{a} and {b} together", "{a} with {b} added", "{a}+{b}"],
    "-": ["{a} - {b}", "{a} minus {b}", "the difference between {a} and {b}", "{a} less {b}", "{a} with {b} taken away", "{a}-{b}"],
    "*": ["{a} * {b}", "{a} x {b}", "{a} times {b}", "the product of {a} and {b}", "{a} multiplied by {b}", "{a}*{b}"],
    "/": ["{a} / {b}", "{a} divided by {b}", "{a} over {b}", "the quotient of {a} and {b}", "{a}/{b}", "{a} : {b}"],
}
EXPRESSION_FRAMES = ["What is {e}?", "How much is {e}?", "What's {e}?", "Calculate {e}.", "Compute {e}.", "Work out {e}.", "Tell me {e}.", "Give me {e}.", "Find {e}.", "{e}?", "{e} =",
                     "{e}", "Can you calculate {e}?", "Can you tell me what {e} is?", "Do you know {e}?", "I need to know {e}.", "What does {e} equal?", "What does {e} make?",
                     "What is the result of {e}?", "Evaluate {e}.", "Solve {e}.", "How many is {e}?"]
OPERATIONS = {
    "+": ["add {a} and {b}", "add {b} to {a}", "sum up {a} and {b}", "put {a} and {b} together"],
    "-": ["subtract {b} from {a}", "take {b} away from {a}", "take {b} from {a}", "deduct {b} from {a}"],
    "*": ["multiply {a} by {b}", "multiply {a} and {b}", "multiply {a} with {b}"],
    "/": ["divide {a} by {b}", "split {a} into {b} equal parts", "share {a} among {b}"],
}
OPERATION_FRAMES = ["{V}.", "Can you {v}?", "What do you get if you {v}?", "What happens if I {v}?", "What is the result if I {v}?", "I want to {v}.", "If I {v}, what do I get?",
                    "Help me {v}.", "Could you {v}?"]
SUM_Q = {op: [f.replace("{e}", e) for f in EXPRESSION_FRAMES for e in EXPRESSIONS[op]]
         + [f.replace("{v}", v).replace("{V}", v[0].upper() + v[1:]) for f in OPERATION_FRAMES for v in OPERATIONS[op]] for op in "+-*/"}


def ours(r: Rand, a: int, op: str, b: int) -> bool:
    """Whether this split may show the sum: one in sixteen is for evaluation only, sums up to 20 and products for both."""
    return op in "*/" or max(a, b) <= 20 or held_out((a, op, b), 16) == (r.split == "eval")


def sum_task(r: Rand) -> tuple[str, str, int]:
    """A question, its answer sentence and the number. Range: + and - up to 9,999 (no negative results), times up to 20 x 20, exact division by up to 12."""
    while True:
        op = r.choices("+-*/", (5, 5, 2, 1))[0]
        if op in "*/":
            top = r.choice([12, 12, 20]) if op == "*" else 12
            a, b = r.randint(0, top), r.randint(0 if op == "*" else 1, top)
            a = a if op == "*" else a * b
            break  # few enough to be facts: learnt whole, asked in new words
        top = r.choice([20, 99, 999, 999, 9999])
        a, b = r.randint(0, top), r.randint(0, r.choice([top, top, 99]))
        if op == "-" and b > a:
            a, b = b, a
        if ours(r, a, op, b):
            break
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // max(b, 1)}[op]
    question = r.pick(SUM_Q[op]).format(a=a, b=b)
    return question, f"{a} {op} {b} = {value}", value


GO_ON = {"+": ["Add {b} to that.", "And now add {b}.", "Plus {b}?", "And plus {b}?", "Now add {b} to it.", "What if I add {b} more?", "Add another {b}.", "{b} more makes?"],
         "-": ["Subtract {b} from that.", "And now take away {b}.", "Minus {b}?", "And minus {b}?", "Now subtract {b}.", "What if I take {b} away?", "Take {b} off that.", "{b} less makes?"]}


def running_sum(r: Rand) -> Dialogue:
    """A sum, then more to the result."""
    question, answer, value = sum_task(r)
    messages = [user(question), bot(answer)]
    for _ in range(1 if r.split == "eval" else r.randint(1, 3)):
        while True:
            op, b = r.choice("+-"), r.randint(1, 99)
            op = "+" if b > value else op
            if ours(r, value, op, b):
                break
        result = value + b if op == "+" else value - b
        messages += [user(vary(r, r.pick(GO_ON[op]).format(b=b))), bot(f"{value} {op} {b} = {result}")]
        value = result
    return Dialogue("arithmetic", messages, expected={"number": value})


def arithmetic(r: Rand) -> Dialogue:
    messages: list[dict[str, Any]] = []
    value = 0
    if r.chance(0.12):
        return running_sum(r)
    for _ in range(1 if r.split == "eval" else r.choice([1, 3, 6, 8])):
        question, answer, value = sum_task(r)
        messages += [user(vary(r, question) if question[-1] != "=" else question), bot(answer)]
    return Dialogue("arithmetic", messages, expected={"number": value})


HAVE = ["{n} has {a} {t}.", "{n} had {a} {t}.", "There are {a} {t} on the table.", "{n} owns {a} {t}.", "{n} bought {a} {t}.", "In a box there are {a} {t}.", "{n} picks {a} {t}."]
MORE = ["{n} buys {b} more.", "A friend gives {n} {b} more.", "Then {b} more come.", "{n} finds {b} more.", "{n} gets another {b}.", "{n} adds {b} more.", "{b} more are brought."]
LESS = ["{n} eats {b} of them.", "{n} gives {b} away.", "{n} loses {b}.", "{n} sells {b}.", "{b} of them are gone.", "{n} uses {b}.", "Somebody takes {b}.", "{n} throws {b} away."]
COUNT = ["How many {t} are there now?", "How many {t} does {n} have now?", "How many are there then?", "How many {t} is that?", "What is the number of {t} now?"]
TOTAL = ["How many {t} are there in all?", "What is the total?", "How many in total?"]
LEFT = ["How many {t} are left?", "How many remain?", "How many are left over?"]


def word_problem(r: Rand) -> Dialogue:
    name, thing = r.name(), r.choice(W.FOODS + [o + "s" for o in W.OBJECTS[:30]])
    more = r.chance(0.5)
    while True:
        a, b = r.randint(2, 99), r.randint(2, 99)
        if not more:
            a, b = max(a, b), min(a, b)
        if ours(r, a, "+" if more else "-", b):
            break
    while True:
        parts = (r.choice(HAVE), r.choice(MORE if more else LESS), r.choice(COUNT + (TOTAL if more else LEFT)))
        if held_out(parts, 6) == (r.split == "eval"):
            break
    question = " ".join(parts).format(n=name, a=a, b=b, t=thing)
    value, op = (a + b, "+") if more else (a - b, "-")
    return Dialogue("word_problem", [user(question), bot(f"{a} {op} {b} = {value}, so the answer is {value}.")], expected={"number": value})


# --------------------------------------------------------------------------------------------------- strings and lists


def quoted(r: Rand, word: str) -> str:
    return r.choice(["{}", "{}", "{}", "\"{}\"", "'{}'"]).format(word)


def string_task(r: Rand) -> tuple[str, str, str]:
    word = r.choice(W.COMMON) if r.chance(0.75) else r.word()
    kind = r.randrange(8)
    if kind == 0:
        word = word[:7]
        q = r.pick(["Reverse the word {}.", "Write {} backwards.", "Spell {} in reverse.", "What is {} spelled backwards?", "Turn the word {} around.", "Give me {} in reverse order."])
        spelled = "-".join(word)
        return q.format(quoted(r, word)), f"{spelled} reversed is {word[::-1]}", word[::-1]
    if kind == 1:
        q = r.pick(["What is the first letter of {}?", "Which letter does {} start with?", "Name the first letter of the word {}.", "Tell me the first letter of {}.", "{}: what is its first letter?", "With which letter does {} begin?"])
        return q.format(quoted(r, word)), f"The first letter of {word} is {word[0]}.", word[0]
    if kind == 2:
        q = r.pick(["What is the last letter of {}?", "Which letter does {} end with?", "Name the last letter of the word {}.", "Tell me the last letter of {}.", "{}: what is its last letter?", "With which letter does {} end?"])
        return q.format(quoted(r, word)), f"The last letter of {word} is {word[-1]}.", word[-1]
    if kind == 3:
        q = r.pick(["How many letters are in {}?", "Count the letters in {}.", "How long is the word {}?", "How many letters does {} have?", "What is the length of the word {}?", "Tell me the number of letters in {}."])
        return q.format(quoted(r, word)), f"{'-'.join(word)}: {word} has {len(word)} letters.", str(len(word))
    if kind == 4:
        q = r.pick(["Write {} in capital letters.", "Convert {} to upper case.", "Put {} in all caps.", "Make the word {} uppercase.", "Uppercase {}.", "Can you write {} in capitals?"])
        return q.format(quoted(r, word)), word.upper(), word.upper()
    if kind == 5:
        word = word.upper()
        q = r.pick(["Write {} in small letters.", "Convert {} to lower case.", "Make the word {} lowercase.", "Put {} in lower case.", "Lowercase {}.", "Change {} to small letters."])
        return q.format(quoted(r, word)), word.lower(), word.lower()
    if kind == 6:
        q = r.pick(["Spell the word {}.", "How do you spell {}?", "Spell {} letter by letter.", "Can you spell {}?", "Give me the letters of {}.", "List the letters in {}."])
        return q.format(quoted(r, word)), "-".join(word), "-".join(word)
    text, n = r.choice(W.COMMON), r.randint(2, 5)
    q = r.pick(["Repeat the word {0} {1} times.", "Say {0} {1} times.", "Write {0} {1} times.", "Print the word {0} {1} times.", "Type {0} {1} times.", "Give me {0} {1} times."])
    return q.format(text, NUMBER_WORDS[n] if r.chance(0.5) else n), " ".join([text] * n), " ".join([text] * n)


def list_task(r: Rand) -> tuple[str, str, str]:
    kind = r.randrange(8)
    words = r.words(3, 6)
    numbers = r.sample(range(1, 100), r.randint(3, 6))
    text, digits = ", ".join(words), ", ".join(map(str, numbers))
    if kind == 0:
        q = r.pick(["Sort these words alphabetically: {}", "Put these words in alphabetical order: {}", "Sort the list: {}", "Alphabetize: {}", "Order these words from A to Z: {}", "Can you sort {} by alphabet?"])
        answer = ", ".join(sorted(words))
        return q.format(text), answer, answer
    if kind == 1:
        q = r.pick(["Sort these numbers: {}", "Put these numbers in ascending order: {}", "Order from smallest to largest: {}", "Sort in increasing order: {}", "Arrange these numbers from low to high: {}", "Sort {} from small to big."])
        answer = ", ".join(map(str, sorted(numbers)))
        return q.format(digits), answer, answer
    if kind == 2:
        q = r.pick(["What is the largest of these numbers: {}", "Find the maximum: {}", "Which number is the biggest? {}", "Largest number in this list: {}", "Name the greatest of {}.", "Which is the highest: {}?"])
        return q.format(digits), f"The largest number is {max(numbers)}.", str(max(numbers))
    if kind == 3:
        q = r.pick(["What is the smallest of these numbers: {}", "Find the minimum: {}", "Which number is the smallest? {}", "Smallest number in this list: {}", "Name the least of {}.", "Which is the lowest: {}?"])
        return q.format(digits), f"The smallest number is {min(numbers)}.", str(min(numbers))
    if kind == 4:
        q = r.pick(["How many words are in this list: {}", "Count the items: {}", "How many items does this list have? {}", "Count these words: {}", "How long is this list: {}", "Tell me how many items are here: {}"])
        return q.format(text), f"There are {len(words)} items.", str(len(words))
    if kind == 5:
        i = r.randrange(len(words))
        nth = ["first", "second", "third", "fourth", "fifth", "sixth"][i]
        q = r.pick(["What is the {1} word in this list: {0}", "Name the {1} item: {0}", "Which item is {1}? {0}", "Give me the {1} word of: {0}", "Pick the {1} item from {0}.", "Tell me the {1} word: {0}"])
        return q.format(text, nth), f"The {nth} item is {words[i]}.", words[i]
    if kind == 6:
        q = r.pick(["Reverse this list: {}", "Write this list backwards: {}", "Put these in reverse order: {}", "Turn this list around: {}", "List these in the opposite order: {}", "Reverse the order of {}."])
        answer = ", ".join(words[::-1])
        return q.format(text), answer, answer
    q = r.pick(["Write this as a bulleted list: {}", "Make a bullet list: {}", "Turn this into bullet points: {}", "Show these as bullets: {}", "List these with dashes: {}", "Bullet list of {}, please."])
    answer = "\n".join(f"- {w}" for w in words)
    return q.format(text), answer, answer


def strings(r: Rand) -> Dialogue:
    messages: list[dict[str, Any]] = []
    wanted = ""
    for _ in range(1 if r.split == "eval" else r.choice([1, 2, 4])):
        question, answer, wanted = string_task(r) if r.chance(0.5) else list_task(r)
        messages += [user(vary(r, question)), bot(answer)]
    return Dialogue("strings", messages, expected={"contains": [wanted]})


def copy(r: Rand) -> Dialogue:
    """Verbatim copying of things that can't be guessed."""
    kind = r.randrange(4)
    if kind == 0:
        text = " ".join(r.token() for _ in range(r.randint(1, 5)))
    elif kind == 1:
        text = " ".join(r.words(3, 8))
    elif kind == 2:
        text = f"{r.name()} {r.choice(['met', 'called', 'saw', 'helped', 'thanked'])} {r.name()} in {r.choice(W.CITIES)} on {r.choice(W.DAYS)}."
    else:
        text = "\n".join(f"{r.word()}: {r.token()}" for _ in range(r.randint(2, 5)))
    q = r.pick(["Repeat exactly: {}", "Say this back to me: {}", "Copy this text: {}", "Repeat after me: {}", "Echo: {}", "Write exactly this: {}", "Please repeat: {}", "Type the following: {}"])
    return Dialogue("copy", [user(q.format(text)), bot(text)], expected={"contains": [text]})


def edit(r: Rand) -> Dialogue:
    """Change one thing in a sentence and keep the rest."""
    name, other, city = r.name(), r.name(), r.choice(W.CITIES)
    food, day = r.choice(W.FOODS), r.choice(W.DAYS)
    text = r.choice([f"{name} went to {city} on {day}.", f"{name} likes {food}.", f"On {day}, {name} bought {food} in {city}.", f"{name} lives in {city} and eats {food}."])
    kind = r.randrange(3)
    if kind == 0:
        q = r.pick(["Replace {a} with {b} in this sentence: {t}", "Change {a} to {b}: {t}", "Swap {a} for {b}: {t}", "Use {b} instead of {a}: {t}", "In this sentence, put {b} in place of {a}: {t}", "Rewrite with {b} instead of {a}: {t}"])
        return Dialogue("edit", [user(q.format(a=name, b=other, t=text)), bot(text.replace(name, other))], expected={"contains": [text.replace(name, other)]})
    if kind == 1:
        q = r.pick(["Fix the capital letters: {}", "Correct the capitalisation: {}", "Add the missing capitals: {}", "Capitalise properly: {}", "Fix the case of this sentence: {}", "Write this with correct capitals: {}"])
        return Dialogue("edit", [user(q.format(text.lower())), bot(text)])
    q = r.pick(["Make this a question: {} likes {}.", "Turn this into a question: {} likes {}.", "Ask this as a question: {} likes {}.", "Change to a question: {} likes {}.", "Form a question from: {} likes {}.", "Rewrite as a question: {} likes {}."])
    return Dialogue("edit", [user(q.format(name, food)), bot(f"Does {name} like {food}?")])


# ------------------------------------------------------------------------------------------- passages: extract, JSON


def person(r: Rand) -> dict[str, Any]:
    return {"name": r.name(), "age": r.randint(4, 95), "city": r.choice(W.CITIES), "job": r.choice(W.JOBS), "hobby": r.choice(W.HOBBIES),
            "colour": r.choice(W.COLOURS), "food": r.choice(W.FOODS)}


PERSON_TEXT = {
    ("age",): ["{name} is {age} years old.", "{name} is {age}.", "At {age}, {name} is doing well.", "{name} has just turned {age}."],
    ("city",): ["{name} lives in {city}.", "{name}'s home is in {city}.", "You can find {name} in {city}.", "{name} moved to {city} last year."],
    ("job",): ["{name} works as a {job}.", "{name} is a {job}.", "By trade, {name} is a {job}.", "{name} has a job as a {job}."],
    ("hobby",): ["{name} enjoys {hobby}.", "In the evening {name} likes {hobby}.", "{name}'s hobby is {hobby}.", "{name} spends weekends {hobby}."],
    ("colour",): ["{name}'s favourite colour is {colour}.", "{name} loves the colour {colour}.", "{name} always wears {colour}."],
    ("food",): ["{name}'s favourite food is {food}.", "{name} eats {food} every day.", "{name} loves {food}."],
    ("age", "city"): ["{name}, {age}, lives in {city}.", "{name} is {age} years old and lives in {city}.", "{name} from {city} is {age} years old."],
    ("job", "city"): ["{name} is a {job} in {city}.", "{name} works as a {job} in {city}.", "In {city}, {name} works as a {job}."],
    ("age", "job"): ["{name} is a {age} year old {job}.", "{name}, aged {age}, is a {job}.", "{name} is {age} and works as a {job}."],
}
KEYS = list(PERSON_TEXT)


def person_text(r: Rand, p: dict[str, Any], wanted: set[str] | None = None) -> tuple[str, list[str]]:
    """Sentences about one person that cover `wanted` keys (or a random few); returns the keys covered."""
    keys: list[str] = []
    sentences: list[str] = []
    groups = r.sample(KEYS, len(KEYS))
    target = wanted or set(r.sample(["age", "city", "job", "hobby", "colour", "food"], r.randint(2, 4)))
    for group in groups:
        if set(group) <= target - set(keys):
            text = r.choice(PERSON_TEXT[group])
            if sentences and r.chance(0.0):
                text = text.replace("{name}", "They", 1)
            sentences.append(text.format(**p))
            keys += group
    return " ".join(sentences), keys


ASK = {
    "age": ["How old is {name}?", "What is {name}'s age?", "What age is {name}?", "Tell me the age of {name}.", "State {name}'s age.", "How many years old is {name}?"],
    "city": ["Where does {name} live?", "In which city is {name}?", "What is {name}'s city?", "Where is {name} at home?", "Which city does {name} live in?", "Name {name}'s city."],
    "job": ["What is {name}'s job?", "What does {name} do for work?", "What does {name} work as?", "Which job does {name} have?", "Name {name}'s job.", "What is {name}'s profession?"],
    "hobby": ["What is {name}'s hobby?", "What does {name} enjoy?", "What does {name} like to do?", "Which hobby does {name} have?", "Name {name}'s hobby.", "What does {name} do for fun?"],
    "colour": ["What is {name}'s favourite colour?", "Which colour does {name} like?", "What colour does {name} love?", "Name {name}'s favourite colour.", "Which colour is {name}'s favourite?", "What colour does {name} prefer?"],
    "food": ["What is {name}'s favourite food?", "What does {name} like to eat?", "Which food does {name} love?", "What food does {name} prefer?", "Name {name}'s favourite food.", "What does {name} eat?"],
}
SAY = {"age": "{name} is {age} years old.", "city": "{name} lives in {city}.", "job": "{name} works as a {job}.", "hobby": "{name} enjoys {hobby}.",
       "colour": "{name}'s favourite colour is {colour}.", "food": "{name} likes {food}."}


def people(r: Rand, low: int, high: int) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    while len(found) < high:
        p = person(r)
        found[p["name"]] = p
    return list(found.values())[:r.randint(low, high)]


def extract(r: Rand) -> Dialogue:
    """Reading: a short passage about one to three people, then questions about it; some can't be answered."""
    group = people(r, 1, 3)
    texts, facts = [], []
    for p in group:
        text, keys = person_text(r, p)
        texts.append(text)
        facts += [(p, k) for k in keys]
    passage = " ".join(texts)
    p, key = r.choice(facts)
    lead = r.pick(["{t}\n\n{q}", "Text: {t}\nQuestion: {q}", "Read this: {t} {q}", "{t} {q}", "Here is a text. {t}\n{q}", "{q}\n\n{t}", "Answer from the text. {t}\n{q}"])
    ask = r.pick(ASK[key]).format(**p)
    messages = [user(lead.format(t=passage, q=ask)), bot(SAY[key].format(**p))]
    if r.split == "train" and r.chance(0.4):
        p2, k2 = r.choice(facts)
        messages += [user(r.pick(ASK[k2]).format(**p2)), bot(SAY[k2].format(**p2))]
    if r.split == "train" and r.chance(0.25):
        p3 = r.choice(group)
        missing = [k for k in ASK if (p3, k) not in facts]
        if missing:
            messages += [user(r.pick(ASK[r.choice(missing)]).format(**p3)), bot("The text doesn't say.")]
            return Dialogue("extract", messages)
    return Dialogue("extract", messages, expected={"contains": [str(p[key])]})


def summary(r: Rand) -> Dialogue:
    """One sentence that keeps who, what and where of three."""
    p, q = people(r, 2, 2)
    thing, day = r.choice(W.OBJECTS), r.choice(W.DAYS)
    scenes = [
        (f"On {day} morning {p['name']} took the early train to {p['city']}. The journey was long and it rained. In {p['city']}, {p['name']} bought a new {thing}.", f"{p['name']} went to {p['city']} on {day} and bought a {thing}."),
        (f"{p['name']} had lost a {thing}. Everyone looked for it, in the garden and in the house. In the end {q['name']} found it under the table.", f"{q['name']} found the {thing} that {p['name']} had lost."),
        (f"{p['name']} is a {p['job']} and works hard all week. On {day}, when there is time, {p['name']} goes {p['hobby']} with {q['name']}.", f"{p['name']}, a {p['job']}, goes {p['hobby']} with {q['name']} on {day}."),
        (f"The shop in {p['city']} was open late. {p['name']} wanted {p['food']}, but there was none left. So {p['name']} went home with {q['food']}.", f"{p['name']} wanted {p['food']} but went home with {q['food']}."),
        (f"{p['name']} and {q['name']} have been friends for many years. They met in {p['city']}, where both were learning {p['hobby']}.", f"{p['name']} and {q['name']} are friends who met in {p['city']}."),
        (f"The meeting was planned for {day}. {p['name']} could not come because of a cold. {q['name']} moved the meeting to the next week.", f"{q['name']} moved the {day} meeting to the next week because {p['name']} was ill."),
    ]
    text, short = r.choice(scenes)
    ask = r.pick(["Summarise this in one sentence: {}", "Summarize: {}", "Give me a one-sentence summary. {}", "Make this shorter: {}", "What happened, in one sentence? {}", "Shorten this text: {}", "Sum this up: {}", "{}\n\nSummarise the text above in one sentence."])
    return Dialogue("summary", [user(ask.format(text)), bot(short)])


FIELD_POOL: dict[str, tuple[str, Callable[[Rand], Any], list[str]]] = {
    "name": ("string", lambda r: r.name(), ["{v} is the name.", "The name is {v}.", "Name: {v}."]),
    "age": ("integer", lambda r: r.randint(1, 99), ["The age is {v}.", "Age: {v}.", "It is {v} years old."]),
    "city": ("string", lambda r: r.choice(W.CITIES), ["The city is {v}.", "City: {v}.", "It is in {v}."]),
    "colour": ("string", lambda r: r.choice(W.COLOURS), ["The colour is {v}.", "Colour: {v}.", "It is {v}."]),
    "price": ("integer", lambda r: r.randint(1, 999), ["The price is {v}.", "It costs {v}.", "Price: {v}."]),
    "quantity": ("integer", lambda r: r.randint(1, 99), ["The quantity is {v}.", "There are {v} of them.", "Quantity: {v}."]),
    "item": ("string", lambda r: r.choice(W.OBJECTS), ["The item is a {v}.", "Item: {v}.", "We talk about a {v}."]),
    "code": ("string", lambda r: r.token(), ["The code is {v}.", "Code: {v}.", "Use code {v}."]),
    "date": ("string", lambda r: f"20{r.randint(10, 39)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}", ["The date is {v}.", "Date: {v}.", "It happened on {v}."]),
    "job": ("string", lambda r: r.choice(W.JOBS), ["The job is {v}.", "Job: {v}.", "Works as a {v}."]),
    "food": ("string", lambda r: r.choice(W.FOODS), ["The food is {v}.", "Food: {v}.", "Likes {v}."]),
    "active": ("boolean", lambda r: r.chance(0.5), ["Active: {b}.", "Is it active? {b}.", "Active, {b}."]),
    "urgent": ("boolean", lambda r: r.chance(0.5), ["Urgent: {b}.", "Is it urgent? {b}.", "Urgent, {b}."]),
    "email": ("string", lambda r: f"{r.name().lower()}@{r.choice(W.COMMON)}.{r.choice(['com', 'org', 'net'])}", ["The email is {v}.", "Email: {v}.", "Write to {v}."]),
    "phone": ("string", lambda r: "".join(r.choice("0123456789") for _ in range(r.randint(6, 9))), ["The phone number is {v}.", "Phone: {v}.", "Call {v}."]),
    "day": ("string", lambda r: r.choice(W.DAYS), ["The day is {v}.", "Day: {v}.", "It is on {v}."]),
    "tags": ("array", lambda r: r.words(2, 4), ["The tags are {l}.", "Tags: {l}.", "Tagged {l}."]),
    "room": ("string", lambda r: f"{r.choice('ABCDEFGH')}{r.randint(1, 40)}", ["The room is {v}.", "Room: {v}.", "Meet in room {v}."]),
    "score": ("integer", lambda r: r.randint(0, 100), ["The score is {v}.", "Score: {v}.", "It scored {v} points."]),
    "country": ("string", lambda r: r.choice(list(W.CAPITALS)), ["The country is {v}.", "Country: {v}.", "It comes from {v}."]),
    "animal": ("string", lambda r: r.choice(list(W.ANIMALS) + W.MORE_ANIMALS), ["The animal is a {v}.", "Animal: {v}.", "It is about a {v}."]),
    "title": ("string", lambda r: f"The {r.choice(W.ADJECTIVES).title()} {r.choice(W.COMMON).title()}", ["The title is {v}.", "Title: {v}.", "It is called {v}."]),
}
SCHEMA_Q = [
    "Write the data as JSON with this schema: {s}\n{t}", "{t}\nGive me JSON that follows this schema: {s}", "Extract the fields as JSON. Schema: {s}\nText: {t}",
    "Return only JSON for this schema: {s}\n\n{t}", "Convert to JSON. {t}\nSchema: {s}", "Schema: {s}\nText: {t}\nJSON:", "Fill this JSON schema from the text.\n{s}\n{t}",
    "{t}\n\nAnswer with JSON only, by this schema: {s}", "Please turn this into JSON: {t}\nUse the schema {s}", "I need JSON. The schema is {s}. The text is: {t}",
]


def schema_of(keys: Sequence[str]) -> dict[str, Any]:
    properties = {k: ({"type": "array", "items": {"type": "string"}} if FIELD_POOL[k][0] == "array" else {"type": FIELD_POOL[k][0]}) for k in keys}
    return {"type": "object", "properties": properties, "required": list(keys)}


def json_task(r: Rand) -> Dialogue:
    """Facts in sentences (order shuffled, some of no use), a schema, and the object that holds exactly its fields."""
    keys = r.sample(list(FIELD_POOL), r.randint(2, 5))
    values = {k: FIELD_POOL[k][1](r) for k in keys}
    extra = r.sample([k for k in FIELD_POOL if k not in keys], r.choice([0, 0, 1]))
    told = {**values, **{k: FIELD_POOL[k][1](r) for k in extra}}
    sentences = []
    for k in r.sample(list(told), len(told)):
        v = told[k]
        # the plain "Key: value" form carries the key; the looser forms are safe only where no other field reads alike
        form = r.choice(FIELD_POOL[k][2][:2] if k in ("colour", "city", "age", "country") else FIELD_POOL[k][2])
        sentences.append(form.format(v=v, b="yes" if v else "no", l=sentence_list(v) if isinstance(v, list) else ""))
    text = " ".join(sentences)
    if r.chance(0.35):
        p = person(r)
        keys = r.sample(["name", "age", "city", "job", "food", "colour"], r.randint(2, 4))
        if "name" not in keys:
            keys[0] = "name"
        text, _ = person_text(r, p, set(keys) - {"name"})
        values = {k: p[k] for k in keys}
        if not text:
            return json_task(r)
    schema = schema_of(list(values))
    question = r.pick(SCHEMA_Q).format(s=json.dumps(schema), t=text)
    return Dialogue("json", [user(question), bot(json.dumps(values, ensure_ascii=False))], expected={"json": values, "schema": schema})


PAIRS_Q = ["Give me a JSON object with {}.", "Write a JSON object: {}.", "Make JSON with {}.", "JSON with {}, please.", "Turn this into JSON: {}", "Create a JSON object with {}.", "I need JSON for {}.", "Write this as JSON: {}."]
KEYS_Q = ["Extract {k} as JSON: {t}", "Give me {k} as JSON. {t}", "{t}\nJSON with {k}:", "Read {k} from the text and write JSON: {t}", "{t}\n\nWrite a JSON object with {k}.", "Return JSON with the keys {k}. {t}"]
ALL_Q = ["Extract the fields as JSON: {}", "Extract: {}", "Extract the data: {}", "As JSON: {}", "Convert to JSON: {}", "{}\nJSON:", "Extract the information as JSON. {}", "Turn this text into JSON: {}"]


def json_free(r: Rand) -> Dialogue:
    """JSON without a schema in the prompt: pairs that are given, keys that are named, or all that a text says."""
    kind = r.randrange(3)
    messages: list[dict[str, Any]] = []
    if kind == 0:
        keys = r.sample([k for k in FIELD_POOL if FIELD_POOL[k][0] != "array"], r.randint(1, 4))
        values = {k: FIELD_POOL[k][1](r) for k in keys}
        form, mark = r.choice([("{} {}", " and "), ("{} = {}", ", "), ("{}: {}", ", "), ("{} {}", ", "), ("{} is {}", " and ")])
        pairs = [form.format(k, json.dumps(v) if isinstance(v, bool) else v) for k, v in values.items()]
        question = r.pick(PAIRS_Q).format(sentence_list(pairs) if mark == " and " else mark.join(pairs))
    else:
        p = person(r)
        if kind == 1:
            keys = r.sample(["age", "city", "job", "food", "colour", "hobby"], r.randint(1, 3))
            text, _ = person_text(r, p, set(keys) | set(r.sample(["age", "city", "job", "food"], 1)))
            keys = r.sample(["name", *keys], len(keys) + 1)
            question = r.pick(KEYS_Q).format(k=sentence_list(keys) if r.chance(0.5) else ", ".join(keys), t=text)
        else:
            text, keys = person_text(r, p)
            keys = ["name", *keys]
            question = r.pick(ALL_Q).format(text)
        values = {k: p[k] for k in keys}
    if r.chance(0.15):
        messages.append({"role": "system", "content": r.choice(["Answer with JSON.", "Reply in JSON only.", "You extract data as JSON.", "Write JSON."])})
    messages += [user(question), bot(json.dumps(values, ensure_ascii=False))]
    return Dialogue("json", messages, expected={"json": values})


# ------------------------------------------------------------------------------------------------------------- recall


def joined(r: Rand, told: Sequence[str]) -> str:
    """Sentences one after the other, or two in one by "and"."""
    if len(told) < 2 or r.chance(0.5):
        return " ".join(told)
    first, second = told[0].rstrip("."), told[1]
    if second.split()[0] in ("My", "The", "People", "You", "We", "By"):
        second = second[0].lower() + second[1:]
    return " ".join([f"{first} and {second}", *told[2:]])


def recall(r: Rand) -> Dialogue:
    """Something said early, other talk between, the question at the end."""
    person_ = person(r)
    pet, relative = r.choice(["dog", "dog", "cat", "cat", "horse", "rabbit", "parrot", "hamster", "pony", "bird"]), r.choice(W.RELATIVES)
    kind, best = r.choice([("animal", r.choice(W.MORE_ANIMALS)), ("sport", r.choice(W.SPORTS)), ("book", f"The {r.choice(W.ADJECTIVES).title()} {r.choice(W.COMMON).title()}"), ("film", f"{r.choice(W.ADJECTIVES).title()} {r.choice(W.COMMON).title()}"),
                           ("subject", r.choice(W.SUBJECTS)), ("month", r.choice(W.MONTHS)), ("day", r.choice(W.DAYS)), ("fruit", r.choice(["apples", "pears", "plums", "cherries", "grapes", "oranges"])), ("word", r.word())])
    things = {
        "colour": (["My favourite colour is {v}.", "I love the colour {v}.", "The colour I like best is {v}.", "I prefer {v} to all other colours.", "{v} is my favourite colour.", "I like {v} most of all colours."],
                   ["What is my favourite colour?", "Which colour do I like?", "What colour do I love?", "Do you remember my favourite colour?", "Which colour did I mention?", "What's my preferred colour?"], "Your favourite colour is {v}.", person_["colour"]),
        "city": (["I live in {v}.", "My home is {v}.", "I am from {v}.", "I come from {v}.", "I moved to {v} last year.", "I stay in {v}."],
                 ["Where do I live?", "Which city am I from?", "What is my home city?", "Do you remember where I live?", "In which city do I live?", "Where am I at home?"], "You live in {v}.", person_["city"]),
        "number": (["My lucky number is {v}.", "Remember the number {v}.", "Please keep the number {v} in mind.", "The number is {v}.", "Note this number: {v}.", "Keep {v} for me."],
                   ["What was the number?", "Which number did I tell you?", "What number should you remember?", "Tell me the number.", "Do you remember the number?", "What is the number?"], "The number is {v}.", r.randint(10, 9999)),
        "code": (["The code is {v}.", "Remember this code: {v}", "My code word is {v}.", "Keep the code {v} in mind.", "Please note the code {v}.", "The secret code is {v}."],
                 ["What is the code?", "Tell me the code.", "Which code did I give you?", "What was the code again?", "Do you remember the code?", "Repeat the code."], "The code is {v}.", r.token()),
        "pet": ([f"My {pet} is called {{v}}.", f"I have a {pet} named {{v}}.", f"The name of my {pet} is {{v}}.", f"My {pet}'s name is {{v}}.", f"I call my {pet} {{v}}.", f"We have a {pet}, {{v}}.", f"I also have a {pet} called {{v}}."],
                [f"What is my {pet}'s name?", f"How is my {pet} called?", f"Tell me the name of my {pet}.", f"Do you remember my {pet}'s name?", f"What do I call my {pet}?", f"What is my {pet} called?"], f"Your {pet} is called {{v}}.", r.name()),
        "relative": ([f"My {relative} is called {{v}}.", f"My {relative}'s name is {{v}}.", f"I have a {relative}, {{v}}.", f"The name of my {relative} is {{v}}.", f"{{v}} is my {relative}."],
                     [f"What is my {relative}'s name?", f"How is my {relative} called?", f"Tell me the name of my {relative}.", f"Do you remember my {relative}'s name?", f"What is my {relative} called?", f"Who is my {relative}?"],
                     f"Your {relative} is called {{v}}.", r.name()),
        "favourite": ([f"My favourite {kind} is {{v}}.", f"The {kind} I like best is {{v}}.", f"{{v}} is my favourite {kind}.", f"I like {{v}} most of all {kind}s."],
                      [f"What is my favourite {kind}?", f"Which {kind} do I like best?", f"Do you remember my favourite {kind}?", f"What's my favourite {kind}?", f"Tell me my favourite {kind}."], f"Your favourite {kind} is {{v}}.", best),
        "birthday": (["My birthday is in {v}.", "I was born in {v}.", "I have my birthday in {v}.", "My birthday month is {v}."],
                     ["When is my birthday?", "In which month is my birthday?", "Which month was I born in?", "Do you remember my birthday?", "What is my birthday month?"], "Your birthday is in {v}.", r.choice(W.MONTHS)),
        "food": (["I like {v}.", "My favourite food is {v}.", "I eat {v} every day.", "I really love {v}.", "{v} is what I like to eat.", "The food I like best is {v}."],
                 ["What do I like to eat?", "What is my favourite food?", "Which food do I like?", "Do you remember what I eat?", "What food did I mention?", "What do I eat?"], "You like {v}.", person_["food"]),
        "job": (["I work as a {v}.", "I am a {v}.", "My job is {v}.", "By profession I am a {v}.", "I earn my money as a {v}.", "I have a job as a {v}."],
                ["What is my job?", "What do I do for work?", "What do I work as?", "Do you remember my job?", "Which job do I have?", "What is my profession?"], "You work as a {v}.", person_["job"]),
        "name": (["My name is {v}.", "I am {v}.", "Call me {v}.", "I'm {v}.", "People call me {v}.", "You can call me {v}."],
                 ["What is my name?", "Who am I?", "Do you remember my name?", "How am I called?", "Tell me my name.", "What did I say my name was?"], "Your name is {v}.", person_["name"]),
        "age": (["I am {v} years old.", "My age is {v}.", "I turned {v} last week.", "I'm {v}.", "I have just become {v} years old.", "I was born {v} years ago."],
                ["How old am I?", "What is my age?", "Do you remember my age?", "Tell me my age.", "What age am I?", "How many years old am I?"], "You are {v} years old.", person_["age"]),
    }
    keys = r.sample(list(things), r.randint(1, 3))
    messages: list[dict[str, Any]] = []
    acks = ["Got it.", "OK, noted.", "Thanks, I'll remember that.", "Noted."]
    told = [r.choice(things[k][0]).format(v=things[k][3]) for k in keys]
    if r.chance(0.12):  # told and asked in one message
        k = keys[-1] if r.split == "eval" else r.choice(keys)
        text = joined(r, told) + " " + r.pick(things[k][1])
        return Dialogue("recall", [user(text), bot(things[k][2].format(v=things[k][3]))], expected={"contains": [str(things[k][3])]})
    if r.chance(0.5) and len(keys) > 1:
        messages += [user(joined(r, told)), bot(acks[0])]
    else:
        for k in keys:
            messages += [user(vary(r, told[keys.index(k)])), bot(acks[len(messages) // 2 % 4])]
    for _ in range(r.choice([0, 1, 1, 2])):
        if r.chance(0.2):
            messages += talk_turn(r)
        elif r.chance(0.5):
            intent = r.choice(list(CHAT))
            messages += [user(r.plain(CHAT[intent][0])), bot(r.choice(CHAT[intent][1]))]
        else:
            q, a, _ = sum_task(r)
            messages += [user(q), bot(a)]
    if r.split == "train":
        r.shuffle(keys)
    asked = keys if r.split == "train" else keys[:1]
    for k in asked:
        messages += [user(vary(r, r.pick(things[k][1]))), bot(things[k][2].format(v=things[k][3]))]
    if r.split == "train" and r.chance(0.15):
        other = r.choice([k for k in things if k not in keys])
        messages += [user(r.pick(things[other][1])), bot("You haven't told me that yet.")]
    return Dialogue("recall", messages, expected={"contains": [str(things[asked[-1]][3])]})


# -------------------------------------------------------------------------------------------------------------- tools


@dataclass(frozen=True)
class Tool:
    """One function: parameters as (name, JSON type, value maker), sentences that call for it, a result and its telling."""

    name: str
    description: str
    parameters: tuple[tuple[str, str, Callable[[Rand], Any]], ...]
    asks: tuple[str, ...]
    result: Callable[[Rand, dict[str, Any]], dict[str, Any]]
    tell: str


def _n(low: int, high: int) -> Callable[[Rand], int]:
    return lambda r: r.randint(low, high)


def _c(items: Sequence[str]) -> Callable[[Rand], str]:
    return lambda r: r.choice(items)


def _time(r: Rand) -> str:
    return f"{r.randint(0, 23):02d}:{r.choice(['00', '05', '10', '15', '20', '30', '40', '45', '50'])}"


WEATHER = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "stormy", "clear"]
TOOLS: tuple[Tool, ...] = (
    Tool("get_weather", "Current weather in a city", (("city", "string", _c(W.CITIES)),),
         ("What's the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?", "Tell me the weather for {city}.", "Weather in {city}, please.", "Do I need an umbrella in {city}?", "What is it like outside in {city}?", "How warm is it in {city}?"),
         lambda r, a: {"temperature": r.randint(-10, 38), "condition": r.choice(WEATHER)}, "It is {condition} in {city} with {temperature} degrees."),
    Tool("get_time", "Local time in a city", (("city", "string", _c(W.CITIES)),),
         ("What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city}?", "Current time in {city}?", "What is the local time in {city}?", "Can you check the time in {city}?", "What's the clock in {city}?"),
         lambda r, a: {"time": _time(r)}, "It is {time} in {city}."),
    Tool("calculator", "Evaluate an arithmetic expression", (("expression", "string", lambda r: f"{r.randint(100, 99999)} {r.choice('+-*/')} {r.randint(10, 9999)}"),),
         ("Use the calculator: {expression}", "Calculate {expression} with the calculator.", "Work out {expression} with your tool.", "Run {expression} in the calculator.", "Let the calculator do {expression}.", "What does the calculator say for {expression}?", "Evaluate {expression}."),
         lambda r, a: {"value": r.randint(1, 99999)}, "The result is {value}."),
    Tool("send_email", "Send an email", (("to", "string", lambda r: f"{r.name().lower()}@{r.choice(W.COMMON)}.com"), ("subject", "string", lambda r: f"{r.choice(W.ADJECTIVES).title()} {r.choice(W.COMMON)}")),
         ("Send an email to {to} with the subject {subject}.", "Write to {to}, subject: {subject}.", "Email {to} about {subject}.", "Please mail {to} with subject {subject}.", "Send {to} a mail titled {subject}.", "I want to email {to}. The subject is {subject}.", "Mail to {to}: {subject}."),
         lambda r, a: {"status": "sent"}, "The email to {to} was sent."),
    Tool("set_timer", "Start a timer", (("minutes", "integer", _n(1, 120)),),
         ("Set a timer for {minutes} minutes.", "Start a {minutes} minute timer.", "Timer: {minutes} minutes.", "Wake me in {minutes} minutes.", "Please count down {minutes} minutes.", "Give me a timer of {minutes} minutes.", "Remind me when {minutes} minutes are over."),
         lambda r, a: {"status": "started"}, "The timer for {minutes} minutes is running."),
    Tool("set_alarm", "Set an alarm clock", (("time", "string", _time),),
         ("Set an alarm for {time}.", "Wake me at {time}.", "Alarm at {time}, please.", "I need to get up at {time}.", "Please set my alarm clock to {time}.", "Ring at {time}.", "Put an alarm at {time}."),
         lambda r, a: {"status": "set"}, "The alarm is set for {time}."),
    Tool("search_web", "Search the web", (("query", "string", lambda r: " ".join(r.words(1, 3))),),
         ("Search the web for {query}.", "Look up {query} online.", "Find {query} on the internet.", "Google {query}.", "Do a web search for {query}.", "Can you search for {query}?", "Search: {query}"),
         lambda r, a: {"title": f"All about {a['query']}", "hits": r.randint(1, 900)}, "I found {hits} pages. The first is \"{title}\"."),
    Tool("convert_currency", "Convert money between currencies", (("amount", "integer", _n(1, 999)), ("from_currency", "string", _c(["USD", "EUR", "GBP", "JPY", "CHF", "CAD"])), ("to_currency", "string", _c(["INR", "SEK", "NOK", "AUD", "PLN", "CZK"]))),
         ("Convert {amount} {from_currency} to {to_currency}.", "How much is {amount} {from_currency} in {to_currency}?", "What are {amount} {from_currency} worth in {to_currency}?", "Change {amount} {from_currency} into {to_currency}.", "{amount} {from_currency} in {to_currency}?", "I have {amount} {from_currency}. How many {to_currency} is that?", "Exchange {amount} {from_currency} for {to_currency}."),
         lambda r, a: {"result": r.randint(1, 9999)}, "{amount} {from_currency} are {result} {to_currency}."),
    Tool("translate", "Translate a word", (("text", "string", lambda r: r.word()), ("language", "string", _c(["French", "German", "Spanish", "Italian", "Polish", "Dutch", "Swedish"]))),
         ("Translate {text} to {language}.", "How do you say {text} in {language}?", "What is {text} in {language}?", "Give me the {language} word for {text}.", "Put {text} into {language}.", "I need {text} in {language}.", "{language} translation of {text}, please."),
         lambda r, a: {"translation": "".join(r.choice("bdfglmnprst") + r.choice("aeiou") for _ in range(3))}, "In {language}, {text} is {translation}."),
    Tool("play_music", "Play a song", (("title", "string", lambda r: f"{r.choice(W.ADJECTIVES).title()} {r.choice(W.COMMON).title()}"), ("artist", "string", lambda r: f"{r.name()} {r.choice(W.SURNAMES)}")),
         ("Play {title} by {artist}.", "I want to hear {title} from {artist}.", "Put on {title} by {artist}.", "Start the song {title} by {artist}.", "Please play the song {title} of {artist}.", "Music: {title} by {artist}.", "Let me listen to {title} by {artist}."),
         lambda r, a: {"status": "playing"}, "Now playing {title} by {artist}."),
    Tool("create_event", "Add an event to the calendar", (("title", "string", lambda r: f"{r.choice(['Lunch', 'Meeting', 'Call', 'Dinner', 'Walk', 'Lesson'])} with {r.name()}"), ("day", "string", _c(W.DAYS)), ("time", "string", _time)),
         ("Add {title} on {day} at {time}.", "Put {title} in my calendar for {day} at {time}.", "Schedule {title} on {day}, {time}.", "Create an event: {title}, {day}, {time}.", "Plan {title} for {day} at {time}.", "I have {title} on {day} at {time}. Add it to the calendar.", "New event {title} on {day} at {time}."),
         lambda r, a: {"status": "created", "id": r.randint(100, 9999)}, "{title} is in your calendar for {day} at {time}."),
    Tool("get_stock_price", "Price of a stock", (("symbol", "string", lambda r: "".join(r.choice("ABCDEFGHIKLMNOPQRSTUVWXYZ") for _ in range(r.randint(3, 4)))),),
         ("What is the stock price of {symbol}?", "How is {symbol} doing on the market?", "Price of {symbol}, please.", "Tell me the price of the stock {symbol}.", "Check the {symbol} stock.", "How much is one share of {symbol}?", "Look up the share price of {symbol}."),
         lambda r, a: {"price": r.randint(1, 999)}, "One share of {symbol} costs {price} dollars."),
    Tool("book_table", "Book a table in a restaurant", (("restaurant", "string", lambda r: f"{r.choice(W.ADJECTIVES).title()} {r.choice(W.COMMON).title()}"), ("people", "integer", _n(1, 12)), ("time", "string", _time)),
         ("Book a table at {restaurant} for {people} people at {time}.", "Reserve a table for {people} at {restaurant} at {time}.", "We are {people} and want to eat at {restaurant} at {time}. Book it.", "Table for {people} at {restaurant}, {time}, please.", "I'd like to dine at {restaurant} with {people} people at {time}.", "Get us a table at {restaurant}: {people} people, {time}.", "Make a reservation at {restaurant} at {time} for {people}."),
         lambda r, a: {"status": "confirmed", "code": r.token()}, "Your table at {restaurant} for {people} at {time} is booked. The code is {code}."),
    Tool("turn_on_light", "Switch on the light in a room", (("room", "string", _c(["kitchen", "bedroom", "bathroom", "office", "hall", "garage", "garden", "cellar", "attic"])),),
         ("Turn on the light in the {room}.", "Light on in the {room}, please.", "Switch on the {room} light.", "It is dark in the {room}. Turn on the light.", "Make it bright in the {room}.", "I need light in the {room}.", "Put the {room} light on."),
         lambda r, a: {"status": "on"}, "The light in the {room} is on."),
    Tool("set_temperature", "Set the heating of a room", (("room", "string", _c(["kitchen", "bedroom", "bathroom", "office", "hall", "garage"])), ("degrees", "integer", _n(12, 28))),
         ("Set the {room} to {degrees} degrees.", "Heat the {room} to {degrees} degrees.", "Make the {room} {degrees} degrees warm.", "I want {degrees} degrees in the {room}.", "Change the temperature in the {room} to {degrees}.", "Please set {degrees} degrees in the {room}.", "Temperature {degrees} in the {room}."),
         lambda r, a: {"status": "ok"}, "The {room} is set to {degrees} degrees."),
    Tool("read_file", "Read a text file", (("path", "string", lambda r: f"{r.choice(W.COMMON)}/{r.choice(W.COMMON)}.{r.choice(['txt', 'md', 'py', 'json', 'log', 'csv'])}"),),
         ("Read the file {path}.", "Open {path}.", "Show me what is in {path}.", "What does {path} contain?", "Print the file {path}.", "Let me see {path}.", "Get the content of {path}."),
         lambda r, a: {"content": " ".join(r.some(W.COMMON, 2, 5))}, "The file {path} contains: {content}"),
    Tool("write_file", "Write text to a file", (("path", "string", lambda r: f"{r.choice(W.COMMON)}.{r.choice(['txt', 'md', 'log'])}"), ("content", "string", lambda r: " ".join(r.words(1, 4)))),
         ("Write {content} to the file {path}.", "Save {content} in {path}.", "Create {path} with the text {content}.", "Put {content} into {path}.", "Store the text {content} in the file {path}.", "Make a file {path} that says {content}.", "File {path} should contain {content}."),
         lambda r, a: {"status": "written"}, "I wrote the text to {path}."),
    Tool("list_files", "List the files in a folder", (("folder", "string", lambda r: "/" + "/".join(r.some(W.COMMON, 1, 2))),),
         ("List the files in {folder}.", "What is in the folder {folder}?", "Show the content of {folder}.", "Which files are in {folder}?", "ls {folder}", "Look into {folder}.", "Give me a listing of {folder}."),
         lambda r, a: {"files": [f"{w}.txt" for w in r.some(W.COMMON, 2, 4)]}, "In {folder} there are: {files}."),
    Tool("get_distance", "Distance between two cities", (("start", "string", _c(W.CITIES[:50])), ("end", "string", _c(W.CITIES[50:]))),
         ("How far is it from {start} to {end}?", "What is the distance between {start} and {end}?", "Distance from {start} to {end}, please.", "How many kilometres are there from {start} to {end}?", "Tell me how far {end} is from {start}.", "Is it far from {start} to {end}?", "Measure the way from {start} to {end}."),
         lambda r, a: {"km": r.randint(50, 9999)}, "From {start} to {end} it is {km} kilometres."),
    Tool("find_contact", "Find a phone number", (("name", "string", lambda r: f"{r.name()} {r.choice(W.SURNAMES)}"),),
         ("What is the phone number of {name}?", "Find the contact {name}.", "Give me {name}'s number.", "How can I reach {name}?", "Look up {name} in my contacts.", "I want to call {name}. What is the number?", "Phone number for {name}?"),
         lambda r, a: {"phone": "".join(r.choice("0123456789") for _ in range(7))}, "The number of {name} is {phone}."),
    Tool("order_food", "Order food", (("dish", "string", _c(W.FOODS)), ("quantity", "integer", _n(1, 20))),
         ("Order {quantity} {dish}.", "I would like {quantity} {dish}.", "Please order {dish}, {quantity} of them.", "Get me {quantity} {dish}.", "Buy {quantity} {dish} for me.", "We need {quantity} {dish}. Place the order.", "{quantity} {dish}, please order them."),
         lambda r, a: {"order": r.randint(1000, 9999), "minutes": r.randint(10, 60)}, "Your order {order} of {quantity} {dish} arrives in {minutes} minutes."),
    Tool("get_news", "Latest headline about a topic", (("topic", "string", lambda r: r.word()),),
         ("What is the news about {topic}?", "Any news on {topic}?", "Show me headlines about {topic}.", "Read me the news about {topic}.", "Latest on {topic}, please.", "What's new about {topic}?", "News: {topic}"),
         lambda r, a: {"headline": f"{r.choice(W.ADJECTIVES).title()} {a['topic']} found in {r.choice(W.CITIES)}"}, "The latest headline is: {headline}."),
    Tool("roll_dice", "Roll dice", (("sides", "integer", _c([4, 6, 8, 10, 12, 20])), ("count", "integer", _n(1, 5))),
         ("Roll {count} dice with {sides} sides.", "Throw {count} dice, {sides} sides each.", "I need {count} dice rolls with {sides} sides.", "Roll {count} times a die of {sides} sides.", "Give me {count} throws of a {sides}-sided die.", "Dice: {count} with {sides} sides.", "Please roll {count} {sides}-sided dice."),
         lambda r, a: {"total": r.randint(a["count"], a["count"] * a["sides"])}, "The dice show {total} in total."),
    Tool("add_todo", "Add a task to the list", (("task", "string", lambda r: f"{r.choice(['buy', 'clean', 'fix', 'find', 'paint', 'sell', 'wash'])} the {r.choice(W.OBJECTS)}"),),
         ("Add {task} to my list.", "Remember that I have to {task}.", "New task: {task}.", "Put {task} on the to-do list.", "I must {task}. Add it.", "To-do: {task}", "Please note the task {task}."),
         lambda r, a: {"status": "added", "open": r.randint(1, 30)}, "I added \"{task}\". You have {open} open tasks."),
    Tool("query_database", "Look up one record by id", (("table", "string", _c(["users", "orders", "products", "invoices", "tickets", "books", "rooms"])), ("id", "integer", _n(1, 99999))),
         ("Get record {id} from the table {table}.", "Look up {table} number {id}.", "Show me entry {id} in {table}.", "Fetch id {id} from {table}.", "Query {table} for id {id}.", "What is in {table} under id {id}?", "Find the record with id {id} in {table}."),
         lambda r, a: {"name": r.choice(W.COMMON), "status": r.choice(["open", "closed", "paid", "new"])}, "Record {id} in {table}: {name}, status {status}."),
    Tool("track_package", "Where a parcel is", (("code", "string", lambda r: r.token(6, 10)),),
         ("Where is my package {code}?", "Track the parcel {code}.", "What is the status of shipment {code}?", "Find my delivery {code}.", "Follow the package with code {code}.", "Has {code} arrived?", "Package {code}: where is it?"),
         lambda r, a: {"place": r.choice(W.CITIES), "days": r.randint(1, 9)}, "Your package {code} is in {place} and arrives in {days} days."),
)
VERBS = "get set find create delete update start stop check open close lock load save count show hide move copy rename add remove".split()
NOUNS = "user order room door window lamp device report record ticket price invoice song photo note page task server backup folder key card seat bus train parcel".split()
PARAM_NAMES = "id name code value label title city color size count limit level day owner group path tag mode".split()


def made_tool(r: Rand) -> Tool:
    """A function that nobody has seen, asked for by its own words: what counts is reading the schema."""
    verb, noun = r.choice(VERBS), r.choice(NOUNS)
    parameters = []
    for p in r.sample(PARAM_NAMES, r.randint(1, 3)):
        if p in ("id", "count", "limit", "level", "size", "value"):
            parameters.append((p, "integer", _n(0, 9999)))
        elif p in ("name", "owner"):
            parameters.append((p, "string", lambda q: q.name()))
        elif p == "city":
            parameters.append((p, "string", _c(W.CITIES)))
        else:
            parameters.append((p, "string", lambda q: q.token() if q.chance(0.6) else q.word()))
    slots = [f"{p} {{{p}}}" for p, _, _ in parameters]
    tail = sentence_list(slots)
    asks = (f"{verb.title()} the {noun} with {tail}.", f"Please {verb} a {noun}: {', '.join(slots)}.", f"Can you {verb} the {noun} for {tail}?", f"I need you to {verb} the {noun} with {tail}.",
            f"{verb.title()} {noun}, {', '.join(slots)}.", f"Use {verb}_{noun} with {tail}.", f"Run {verb}_{noun}: {', '.join(slots)}", f"{noun.title()}: {verb} it with {tail}.")
    return Tool(f"{verb}_{noun}", f"{verb.title()} a {noun}", tuple(parameters), asks, lambda q, a: {"status": q.choice(["ok", "done"])}, f"The {noun} request is {{status}}.")


ALIASES = {
    "city": "location place town where", "expression": "formula input term", "to": "recipient address email_address", "subject": "headline about", "minutes": "duration length duration_minutes", "time": "at hour when clock_time",
    "query": "q search_term keywords", "amount": "sum money", "from_currency": "source base from", "to_currency": "target quote_currency", "text": "phrase input", "language": "target_language lang to_language", "title": "label headline",
    "artist": "singer band by", "day": "date weekday on_day", "symbol": "ticker stock share", "restaurant": "venue place where", "people": "guests party_size seats", "room": "area where zone", "degrees": "temperature celsius target",
    "path": "file filename file_path", "content": "data body", "folder": "directory dir", "start": "origin from_city", "end": "destination to_city", "name": "person contact who", "dish": "food meal", "quantity": "number how_many",
    "topic": "keyword about", "sides": "faces die_sides", "count": "times n", "task": "todo item", "table": "collection dataset", "id": "record_id key", "code": "tracking_number parcel package_id",
}
EXTRAS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}), ("limit", {"type": "integer"}), ("verbose", {"type": "boolean"}), ("format", {"type": "string", "enum": ["short", "long"]}),
    ("priority", {"type": "string", "enum": ["low", "high"]}), ("timeout", {"type": "integer", "description": "Seconds to wait"}), ("dry_run", {"type": "boolean"}), ("notes", {"type": "string", "description": "Optional notes"}),
)


@dataclass
class Shown:
    """A function as a request shows it: maybe under other names, with descriptions, with a parameter that nobody needs."""

    tool: Tool
    name: str
    names: dict[str, str]
    spec: dict[str, Any]

    def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name, "arguments": self.named(arguments)}}

    def named(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {self.names[k]: v for k, v in arguments.items()}


def show(r: Rand, tool: Tool) -> Shown:
    names = {p: p for p, _, _ in tool.parameters}
    name, known = tool.name, any(tool is t for t in TOOLS)
    if known and r.chance(0.5):
        for p in names:
            if r.chance(0.6):
                new = r.choice(ALIASES[p].split())
                names[p] = new if new not in names.values() else p
    if r.chance(0.4):
        words = name.split("_")
        name = r.choice(["".join([words[0], *(w.title() for w in words[1:])]), "-".join(words), "_".join([*words[1:], words[0]]), "_".join([*words, r.choice(["now", "api", "tool", "v2"])]), "".join(w.title() for w in words)])
    described = r.chance(0.4)
    properties: dict[str, Any] = {}
    for p, kind, _ in tool.parameters:
        properties[names[p]] = {"type": kind, **({"description": r.choice(["The {}", "{}", "{} to use", "Which {}"]).format(p.replace("_", " "))} if described else {})}
    extra, spec = r.choice(EXTRAS)
    if r.chance(0.2) and extra not in properties:
        properties[extra] = spec
    function = {"name": name, "description": tool.description, "parameters": {"type": "object", "properties": properties, "required": list(names.values())}}
    return Shown(tool, name, names, {"type": "function", "function": function})


def flat(values: dict[str, Any]) -> dict[str, Any]:
    return {k: sentence_list(v) if isinstance(v, list) else v for k, v in values.items()}


def arguments_for(r: Rand, tool: Tool) -> dict[str, Any]:
    return {p: make(r) for p, _, make in tool.parameters}


def tool_turns(r: Rand, shown: Shown, with_result: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages, and what the last answer must hold."""
    tool, arguments = shown.tool, arguments_for(r, shown.tool)
    ask = r.pick(tool.asks).format(**arguments)
    messages = [user(vary(r, ask) if r.chance(0.5) else ask), bot("", tool_calls=[shown.call(arguments)])]
    if not with_result:
        return messages, {"tool": shown.name, "arguments": shown.named(arguments)}
    result = tool.result(r, arguments)
    messages += [{"role": "tool", "content": json.dumps(result)}, bot(tool.tell.format(**{**arguments, **flat(result)}))]
    return messages, {"contains": [str(v) for k, v in flat(result).items() if "{" + k + "}" in tool.tell]}


def offered(r: Rand, tool: Tool, others: int) -> tuple[Shown, list[Shown]]:
    """The function that is needed, and all that are shown, in any order."""
    mine = show(r, tool)
    chosen = {t.name: t for t in (made_tool(r) if r.chance(0.4) else r.choice(TOOLS) for _ in range(others)) if t.name != tool.name}
    all_ = [mine, *(show(r, t) for t in chosen.values())]
    return mine, r.sample(all_, len(all_))


def tools(r: Rand) -> Dialogue:
    """The right function with arguments copied from the request; results told; talk that needs no function."""
    mine, shown = offered(r, made_tool(r) if r.chance(0.35) else r.choice(TOOLS), r.choice([0, 1, 1, 2, 3]))
    specs = [t.spec for t in shown]
    messages: list[dict[str, Any]] = []
    if r.chance(0.2):
        messages.append({"role": "system", "content": r.choice(SYSTEM)})
    if r.chance(0.25):
        intent = r.choice(list(CHAT))
        messages += [user(r.plain(CHAT[intent][0])), bot(r.choice(CHAT[intent][1]))]
    if r.split == "eval":
        turns, expected = tool_turns(r, mine, False)
        return Dialogue("tools", messages + turns, specs, expected=expected)
    turns, _ = tool_turns(r, mine, r.chance(0.7))
    messages += turns
    if len(turns) == 4 and r.chance(0.45):
        messages += tool_turns(r, r.choice(shown), r.chance(0.6))[0]
    if messages[-1].get("tool_calls") is None and r.chance(0.3):
        thanks, replies = CHAT["thanks"]
        messages += [user(r.plain(thanks)), bot(r.choice(replies))]
    return Dialogue("tools", messages, specs)


def tool_result(r: Rand) -> Dialogue:
    """A call, its result, and the answer that tells it (evaluation: what the result holds must come back)."""
    while True:
        mine, shown = offered(r, r.choice(TOOLS), r.choice([0, 1, 2]))
        turns, expected = tool_turns(r, mine, True)
        if expected["contains"]:
            return Dialogue("tools", turns, [t.spec for t in shown], expected=expected)


def two_calls(r: Rand) -> Dialogue:
    """Two calls in one turn, two results, one answer."""
    tool = r.choice([t for t in TOOLS if len(t.parameters) == 1])
    shown = show(r, tool)
    first, second = arguments_for(r, tool), arguments_for(r, tool)
    key = tool.parameters[0][0]
    ask = r.pick([f"{tool.asks[0]} And the same for {{second}}.", f"{tool.asks[1]} Do it for {{second}} too.", f"{tool.asks[3]} Also for {{second}}."]).format(**first, second=second[key])
    calls = [shown.call(first), shown.call(second)]
    messages = [user(ask), bot("", tool_calls=calls)]
    if r.split == "eval":
        return Dialogue("tools", messages, [shown.spec], expected={"calls": [c["function"] for c in calls]})
    results = [tool.result(r, first), tool.result(r, second)]
    told = " ".join(tool.tell.format(**{**a, **flat(x)}) for a, x in zip((first, second), results))
    messages += [{"role": "tool", "content": json.dumps(x)} for x in results] + [bot(told)]
    return Dialogue("tools", messages, [shown.spec])


def no_tool(r: Rand) -> Dialogue:
    """Functions are offered but the question is answered without them."""
    make = r.choice([chat, fact, arithmetic, splash, strings, recall, talk, explain, unknown])
    inner = make(r)
    plain = make in (unknown, talk)  # what some of the known functions could do: offer others
    shown = {t.name: t for t in (made_tool(r) if plain or r.chance(0.4) else r.choice([x for x in TOOLS if x.name != "calculator"]) for _ in range(r.randint(1, 3)))}
    return Dialogue("no_tool", inner.messages, [show(r, t).spec for t in shown.values()], expected={"no_tool": True})


SYSTEM = ["You are a helpful assistant.", "You are a friendly assistant.", "Be brief.", "Answer in short sentences.", "You are Splash, a local assistant.",
          "You help people with their questions.", "Answer politely.", "You are a careful assistant.", "Keep answers short and clear.", "Help the user as well as you can."]


# ----------------------------------------------------------------------------------------------------------- thinking


def thinking(r: Rand) -> Dialogue:
    """A short chain of thought inside the think block, then the answer."""
    kind = r.randrange(5)
    if kind == 0:
        a, b = r.randint(10, 999), r.randint(10, 999)
        while not ours(r, a, "+", b):
            b = r.randint(10, 999)
        q = r.pick(SUM_Q["+"]).format(a=a, b=b)
        hundreds = (a // 100 + b // 100) * 100
        tens = (a // 10 % 10 + b // 10 % 10) * 10
        ones = a % 10 + b % 10
        thought = f"I add the parts: hundreds {hundreds}, tens {tens}, ones {ones}. {hundreds} + {tens} = {hundreds + tens}, and {hundreds + tens} + {ones} = {a + b}."
        answer = f"{a} + {b} = {a + b}"
    elif kind == 1:
        d = word_problem(r)
        q, answer = d.messages[0]["content"], d.messages[1]["content"]
        thought = "The question gives two numbers. " + ("They are put together, so I add." if " + " in answer else "Some are taken away, so I subtract.") + f" {answer.split(',')[0]}."
    elif kind == 2:
        q, answer, wanted = string_task(r)
        thought = f"The task is about one word. I look at its letters and get {wanted}."
    elif kind == 3:
        d = extract(r)
        q, answer = d.messages[0]["content"], d.messages[1]["content"]
        thought = f"I look for the answer in the text. It says: {answer}"
    else:
        intent = r.choice(list(CHAT))
        q, answer = r.plain(CHAT[intent][0]), CHAT[intent][1][0]
        thought = r.choice(["The user makes small talk. A short friendly answer is enough.", "This is a simple message. I answer kindly."])
    wanted_ = {"number": a + b} if kind == 0 else d.expected if kind in (1, 3) else {"contains": [wanted]} if kind == 2 else {}
    return Dialogue("thinking", [user(q), bot(answer, reasoning_content=thought)], thinking=True, expected=wanted_)


# ---------------------------------------------------------------------------------------------------- writing, stories


def story(r: Rand) -> Dialogue:
    p, q = people(r, 2, 2)
    animal, thing, adjective = r.choice(list(W.ANIMALS) + W.MORE_ANIMALS), r.choice(W.OBJECTS), r.choice(W.ADJECTIVES)
    hero, friend = p["name"], q["name"]
    plots = [
        f"Once upon a time there was a {animal} called {hero}. {hero} had a {adjective} {thing} and carried it everywhere. One day the {thing} was gone. {hero} looked in the garden and by the river, but it was not there. Then {friend} came and said, \"I found your {thing} under the old tree.\" {hero} was very happy, and from that day on the two were friends.",
        f"{hero} lived in a small house near {p['city']}. Every morning a {adjective} {animal} came to the window. {hero} gave it some {p['food']}, and the {animal} sang a song. When winter came, the {animal} did not come. {hero} went out into the snow, found it, and brought it home. They stayed warm together until spring.",
        f"One evening {hero} found a {adjective} {thing} on the beach. When {hero} touched it, it began to shine. \"Make a wish,\" said a quiet voice. {hero} thought of {friend}, who was far away in {p['city']}. The next morning {friend} stood at the door. They laughed and kept the {thing} for ever.",
    ]
    ask = r.pick(["Tell me a story about {h}.", "Write a short story about {h}.", "Can you tell me a story with {h}?", "Make up a story about {h}.", "I want to hear a story about {h}.", "A story about {h}, please.", "Tell a short tale about {h}."])
    plain = r.pick(["Tell me a story.", "Write a short story.", "Can you tell me a story?", "I want to hear a story.", "Make up a story for me.", "Do you know a story?", "Please tell a story."])
    if r.chance(0.35):
        noun = r.choice(W.COMMON + W.OBJECTS + list(W.ANIMALS) + W.MORE_ANIMALS)
        text = f"Once there was a {noun} that nobody knew. It lived near {p['city']}, and every {r.choice(W.DAYS)} it waited for a visitor. One day {hero} came by with some {p['food']} and stayed until the evening. \"Now I have a friend,\" said the {noun}, and it was never alone again."
        return Dialogue("story", [user(vary(r, ask.format(h=r.choice(["a {}", "the {}", "my {}"]).format(noun)))), bot(text)])
    return Dialogue("story", [user(vary(r, ask.format(h=hero) if r.chance(0.6) else plain)), bot(r.choice(plots))])


POEMS = ["A quiet {t} waits,\nthe morning opens its eyes,\nand the day begins.", "The {t} in the light,\nthe {t} in the rain,\nit goes for a while\nand it comes back again.",
         "I looked for a {t}\nin winter and snow,\nand there in the garden\nI saw it glow.", "One {t}, so still,\none bird on the hill,\none song in the air,\nand nobody there."]


def poem(r: Rand) -> Dialogue:
    topic = r.choice(W.COMMON + W.OBJECTS + list(W.ANIMALS) + W.MORE_ANIMALS) if r.chance(0.85) else r.word()
    ask = r.pick(["Write a poem about {t}.", "Write a haiku about {t}.", "A poem about {t}, please.", "Can you write a poem about {t}?", "Make a short poem about {t}.", "I want a poem about {t}.", "Please write some lines about {t}.", "Give me a little poem about {t}."])
    shown = r.choice(["the {}", "a {}", "{}", "my {}"]).format(topic)
    return Dialogue("story", [user(vary(r, ask.format(t=shown))), bot(r.choice(POEMS).format(t=topic))])


def letter(r: Rand) -> Dialogue:
    p, q = people(r, 2, 2)
    day, thing = r.choice(W.DAYS), r.choice(W.OBJECTS)
    kind = r.randrange(3)
    if kind == 0:
        ask = r.pick(["Write a short email to {n} to move the meeting to {d}.", "Write {n} a mail: the meeting is on {d}.", "Draft an email to {n} about a meeting on {d}.", "Email text for {n}: meeting moved to {d}.", "Help me write to {n} that we meet on {d}.", "Compose a message to {n} about meeting on {d}."])
        text = f"Hi {q['name']},\n\nour meeting is now on {day}. I hope that works for you.\n\nBest wishes"
    elif kind == 1:
        ask = r.pick(["Write a thank-you note to {n} for the {t}.", "Thank {n} for the {t} in a short note.", "Write {n} a note to say thanks for the {t}.", "Help me thank {n} for the {t}.", "Draft a thank-you message to {n} for a {t}.", "I want to thank {n} for the {t}. Write it."])
        text = f"Dear {q['name']},\n\nthank you very much for the {thing}. It made me very happy.\n\nWarm wishes"
    else:
        ask = r.pick(["Write a birthday wish for {n}.", "Happy birthday message for {n}, please.", "Help me wish {n} a happy birthday.", "Write {n} a birthday card.", "I need a birthday text for {n}.", "Birthday greeting for {n}?"])
        text = f"Happy birthday, {q['name']}! I wish you a wonderful day and a bright year full of good surprises."
    return Dialogue("letter", [user(vary(r, ask.format(n=q["name"], d=day, t=thing))), bot(text)])


def lists(r: Rand) -> Dialogue:
    pools = {"animals": list(W.ANIMALS) + W.MORE_ANIMALS, "colours": W.COLOURS, "foods": W.FOODS, "cities": W.CITIES, "jobs": W.JOBS, "hobbies": W.HOBBIES,
             "names": W.NAMES, "countries": list(W.CAPITALS), "days of the week": W.DAYS, "months": W.MONTHS, "school subjects": W.SUBJECTS}
    kind = r.choice(list(pools))
    n = r.randint(2, 7)
    items = pools[kind][:n] if kind in ("days of the week", "months") else r.sample(pools[kind], n)
    q = r.pick(["Name {n} {k}.", "List {n} {k}.", "Give me {n} {k}.", "Tell me {n} {k}.", "I need {n} {k}.", "Can you name {n} {k}?", "Please list {n} {k}.", "Write down {n} {k}."])
    word = NUMBER_WORDS[n] if r.chance(0.5) else str(n)
    return Dialogue("lists", [user(vary(r, q.format(n=word, k=kind))), bot("\n".join(f"{i + 1}. {x}" for i, x in enumerate(items)))])


def with_system(r: Rand, inner: Dialogue) -> Dialogue:
    if inner.messages and inner.messages[0]["role"] != "system":
        if r.chance(0.25):
            name = r.name()
            ask = r.pick(["What is your name?", "Who are you?", "What are you called?", "How should I call you?", "Tell me your name.", "What's your name?"])
            return Dialogue("system", [{"role": "system", "content": f"Your name is {name}."}, user(ask), bot(f"My name is {name}.")] + inner.messages)
        inner.messages.insert(0, {"role": "system", "content": r.choice(SYSTEM)})
    return inner


MIX: tuple[tuple[Callable[[Rand], Dialogue], float], ...] = (
    (chat, 8), (talk, 12), (named_chat, 2.5), (said, 1.5), (splash, 6), (fact, 6), (define, 4), (explain, 5), (unknown, 5), (arithmetic, 14), (word_problem, 4), (strings, 8),
    (copy, 6), (edit, 3), (extract, 6), (summary, 3), (json_task, 12), (json_free, 4), (recall, 12), (tools, 17), (tool_result, 2), (two_calls, 2), (no_tool, 5), (thinking, 5),
    (story, 2.5), (poem, 1.5), (letter, 2), (lists, 3),
)
_FUNCTIONS, _WEIGHTS = zip(*MIX)


def sample(r: Rand) -> Dialogue:
    dialogue = r.choices(_FUNCTIONS, _WEIGHTS)[0](r)
    return with_system(r, dialogue) if r.chance(0.08) and not dialogue.tools else dialogue


# ---------------------------------------------------------------------------------------------------------- rendering


def render_call(call: dict[str, Any]) -> str:
    function = call["function"]
    text = f"<tool_call>\n<function={function['name']}>\n"
    for key, value in function["arguments"].items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text += f"<parameter={key}>\n{shown}\n</parameter>\n"
    return text + "</function>\n</tool_call>"


def render(dialogue: Dialogue) -> list[tuple[str, bool]]:
    """Pieces (text, made by the model?) whose concatenation is the chat template's output for the whole conversation."""
    out: list[tuple[str, bool]] = []
    messages = dialogue.messages
    system = messages[0]["content"].strip() if messages and messages[0]["role"] == "system" else ""
    if dialogue.tools:
        block = TOOLS_HEAD + "".join("\n" + json.dumps(t, ensure_ascii=False) for t in dialogue.tools) + TOOLS_TAIL
        out.append((f"{IM_START}system\n{block}{chr(10) * 2 + system if system else ''}{IM_END}\n", False))
    elif system:
        out.append((f"{IM_START}system\n{system}{IM_END}\n", False))
    for i, m in enumerate(messages):
        content = str(m.get("content") or "").strip()
        if m["role"] == "user":
            out.append((f"{IM_START}user\n{content}{IM_END}\n", False))
        elif m["role"] == "tool":
            head = f"{IM_START}user" if i == 0 or messages[i - 1]["role"] != "tool" else ""
            tail = f"{IM_END}\n" if i + 1 == len(messages) or messages[i + 1]["role"] != "tool" else ""
            out.append((f"{head}\n<tool_response>\n{content}\n</tool_response>{tail}", False))
        elif m["role"] == "assistant":
            reasoning = str(m.get("reasoning_content") or "").strip()
            if reasoning:
                out.append((f"{IM_START}assistant\n<think>\n", False))
                body = f"{reasoning}\n</think>\n\n{content}"
            else:
                out.append((f"{IM_START}assistant\n<think>\n\n</think>\n\n", False))
                body = content
            for j, call in enumerate(m.get("tool_calls") or []):
                body += ("\n\n" if content else "") if j == 0 else "\n"
                body += render_call(call)
            out.append((body + IM_END, True))
            out.append(("\n", False))
    return out


def load_words(path: str) -> None:
    """Definitions of frequent words, made by train/corpus.py."""
    with open(path) as f:
        words = json.load(f)
    DEFINITIONS.update(words["definitions"])
    VOCAB[:] = words.get("vocabulary", [])
