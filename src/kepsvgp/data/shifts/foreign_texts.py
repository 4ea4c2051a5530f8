"""Texts of another kind than a model's own: from its own words, from other languages, from code.

Every set is seeded, so that it is the same wherever it is made.
"""

import keyword
import random
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

# of the alphabets of ISO 9 and of modern Greek, letter for letter
_SCRIPTS = ("абцдефгхижклмнопярстувшыуз", "αβκδεφγηιζκλμνοπθρστυβωξψζ")
_LATIN = "abcdefghijklmnopqrstuvwxyz"
# a choice of words for each place in a sentence
_LANGUAGES = (
    "Der/Die/Das/Ein/Eine/Jeder|Hund/Straße/Lehrerin/Nachbar/Bäckerei/Zug/Garten/Schlüssel/Freund|"
    "sucht/verkauft/bezahlt/vergisst/kennt/baut/öffnet/begrüßt|"
    "gestern/heute/leider/oft/ungern/wieder/trotzdem/vielleicht|"
    "den Bahnhof/ein altes Haus/die Rechnung/seine Mütze/das Frühstück/einen Brief",
    "Le/La/Un/Une/Chaque/Notre|voisin/maison/boulangère/train/jardin/clé/ami/chien/rivière|"
    "cherche/vend/oublie/connaît/construit/ouvre/salue/regarde|"
    "hier/aujourd'hui/souvent/encore/malheureusement/parfois/déjà|"
    "la gare/une vieille maison/le petit déjeuner/son chapeau/les billets/du pain",
)


def word_order(texts: Sequence[str], seed: int = 0) -> list[str]:
    """The same words of each text in a random order."""
    rng = random.Random(seed)
    return [" ".join(rng.sample(words, len(words))) for words in map(str.split, texts)]


def random_words(texts: Sequence[str], seed: int = 0) -> list[str]:
    """As many words as each text has, drawn from those of all texts, each as likely."""
    rng = random.Random(seed)
    known = sorted({word for text in texts for word in text.split()})
    return [" ".join(rng.choices(known, k=len(text.split()))) for text in texts]


def other_script(texts: Sequence[str], seed: int = 0) -> list[str]:
    """Every letter in the place of a Latin one, Cyrillic or Greek by text."""
    rng = random.Random(seed)
    both = [str.maketrans(_LATIN + _LATIN.upper(), s + s.upper()) for s in _SCRIPTS]
    return [text.translate(rng.choice(both)) for text in texts]


def other_language(count: int, seed: int = 0) -> list[str]:
    """Plain sentences in German and French, half and half."""
    rng = random.Random(seed)
    grammars = [[place.split("/") for place in each.split("|")] for each in _LANGUAGES]
    return [
        " ".join(rng.choice(words) for words in grammars[number % len(grammars)]) + "."
        for number in range(count)
    ]


def program_code(count: int, seed: int = 0) -> list[str]:
    """Lines of Python: those of the modules beside `keyword` that say something."""
    files = sorted(Path(keyword.__file__).parent.glob("*.py"))
    random.Random(seed).shuffle(files)
    lines = (
        line.strip()
        for file in files
        for line in file.read_text(encoding="utf-8", errors="ignore").splitlines()
        if 20 < len(line.strip()) < 100 and re.search(r"[(=\[].*[)\]:]|=", line)
    )
    found = [line for line in islice(lines, 20 * count) if not line.startswith(("#", '"', "'"))]
    return random.Random(seed).sample(found, min(count, len(found)))


def sentences(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """Sentences of 3 to 30 words out of longer texts, one of each text at most."""
    rng = random.Random(seed)
    found: list[str] = []
    for text in rng.sample(list(texts), len(texts)):
        parts = [p.strip() for p in re.split(r"(?<=[.!?])\s+", text) if 3 <= len(p.split()) <= 30]
        found += [rng.choice(parts)] if parts else []
        if len(found) == count:
            break
    return found
