"""Writes what the second tutorial needs: customers' messages with and without labels.

Usage:
    python docs/tutorials/messages.py FOLDER      # messages.tsv: label, TAB, text; corpus.txt: one text per line
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

LABELLED, UNLABELLED, SEED = 600, 4000, 11
THINGS = "kettle lamp keyboard rucksack printer headphones monitor chair toaster router blender drill".split()
OPENERS = [
    "Hello, I ordered a {thing} last week.",
    "This is about my {thing}, order {order}.",
    "Good morning.",
    "I am writing about order {order}.",
    "The {thing} was a present for my sister.",
    "",
]
CLOSERS = [
    "What can you do?",
    "Please write back before {day}.",
    "Thanks in advance.",
    "I have been a customer for {years} years.",
    "",
]
BODIES = {
    "delivery": [
        "The parcel has not arrived yet.",
        "The courier left it with a neighbour who moved out.",
        "Tracking has said 'in transit' since {day}.",
        "Can it be shipped to another address?",
        "Only one of the two boxes was in the van.",
        "Where is the {thing} now?",
        "Nobody rang the bell, yet there is a card that says I was out.",
        "How long does shipping to the islands take?",
        "The package still sits at the depot.",
        "I waited at home all {day} and no driver came.",
        "Could you send it to the pick-up point near the station?",
        "The parcel shop says that it never got my package.",
        "It was promised for {day} and is not here.",
        "The driver put the box into the rain in front of the wrong house.",
    ],
    "refund": [
        "I sent the {thing} back and still wait for the money.",
        "You charged my card twice.",
        "The amount on the invoice is wrong.",
        "Please pay back the shipping as well.",
        "I returned one of two boxes; when do I get half the price back?",
        "The voucher was not taken off the bill.",
        "The price fell on {day}; do I get the difference?",
        "When will the money be on my account?",
        "I paid {years} euros too much.",
        "My bank says that the refund was never made.",
        "I need a bill with the tax on it.",
        "Can I pay the {thing} in parts?",
        "The deposit of {years} euros was not returned.",
        "I cancelled on {day}, and the money is still gone.",
    ],
    "product": [
        "The {thing} makes a loud noise.",
        "It stopped working after {years} days.",
        "One of the screws was missing from the box.",
        "Does the {thing} also run on 110 volts?",
        "The {thing} arrived broken.",
        "How do I clean the {thing}?",
        "The colour is not that of the picture.",
        "It smells of burnt plastic.",
        "The manual is in a language that I cannot read.",
        "Which battery does the {thing} need?",
        "The handle came off on {day}.",
        "It is smaller than I thought; is there a larger {thing}?",
        "The lid does not close.",
        "Is the {thing} safe for children of {years} years?",
    ],
    "account": [
        "I cannot sign in any more.",
        "The link to reset my password has expired.",
        "Please change my address in the profile.",
        "How do I delete my account?",
        "My old orders are not listed under my name.",
        "I keep getting mails although I signed out of them.",
        "The code for signing in never comes.",
        "Somebody else ordered under my name.",
        "I have two accounts and want one.",
        "The site says that my user name is taken.",
        "Can my husband use the same login?",
        "My new mail address is not accepted.",
        "Since {day} the app asks for my password each time.",
        "Please correct my name in the settings.",
    ],
}


def message(rng: random.Random) -> tuple[str, str]:
    """Draw a label and a text."""
    label = rng.choice(sorted(BODIES))
    parts = [rng.choice(OPENERS), rng.choice(BODIES[label]), rng.choice(CLOSERS)]
    words = {
        "thing": rng.choice(THINGS),
        "order": rng.randint(10_000, 99_999),
        "day": rng.choice(["Monday", "Friday"]),
        "years": rng.randint(2, 9),
    }
    return label, " ".join(part for part in parts if part).format(**words)


def messages(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Draw messages of which no two are the same."""
    drawn: dict[tuple[str, str], None] = {}
    while len(drawn) < count:
        drawn[message(rng)] = None
    return list(drawn)


def main(folder: Path) -> None:
    """Write both files; no text is in both."""
    drawn = messages(random.Random(SEED), LABELLED + UNLABELLED)
    labelled = [f"{label}\t{text}\n" for label, text in drawn[:LABELLED]]
    (folder / "messages.tsv").write_text("".join(labelled), encoding="utf-8")
    texts = [f"{text}\n" for _, text in drawn[LABELLED:]]
    (folder / "corpus.txt").write_text("".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
