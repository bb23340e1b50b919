"""How SearchQA's generated world is put into words: relations, sentences and questions.

A sentence speaks of its subject as ``{s}`` (name, short name or pronoun) with the possessive
``{h}``, and of the other end as ``{o}``. A question, and a phrase that stands for the other end
inside a longer question, speak of ``{s}`` only. ``{v}`` is what the maker of a work did: wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["person", "place", "company", "work"]


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of fact: who it is about, what it leads to, and ways to say and to ask it."""

    subject: Kind
    leads_to: Kind | None
    """Kind of the entity at the other end; None when it is a plain value."""
    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    phrases: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Other right ways to write the answer ``{o}``."""


RELATIONS: dict[str, Relation] = {
    "birthplace": Relation(
        "person",
        "place",
        ("{s} was born in {o}.", "{s} comes from {o}.", "{o} is where {s} was born."),
        ("Where was {s} born?", "In which town was {s} born?", "What is the birthplace of {s}?"),
        ("the town where {s} was born", "the birthplace of {s}"),
    ),
    "employer": Relation(
        "person",
        "company",
        (
            "{s} works for {o}.",
            "{s} is employed at {o}.",
            "for many years {s} has been on the staff of {o}.",
        ),
        ("Which company does {s} work for?", "Which company employs {s}?"),
        ("the company that employs {s}", "the employer of {s}"),
    ),
    "teacher": Relation(
        "person",
        "person",
        ("{s} learned the trade from {o}.", "{s} was taught by {o}.", "{h} teacher was {o}."),
        ("Who taught {s}?", "Who was the teacher of {s}?"),
        ("the teacher of {s}", "the person who taught {s}"),
    ),
    "birth_year": Relation(
        "person",
        None,
        (
            "{h} year of birth is {o}.",
            "{s} was born in {o}.",
            "{s} first saw the light of day in {o}.",
        ),
        ("In which year was {s} born?", "What is the birth year of {s}?"),
    ),
    "profession": Relation(
        "person",
        None,
        ("{s} is a {o}.", "{s} is known as a {o}.", "{s} earns a living as a {o}."),
        ("What is the profession of {s}?", "What does {s} do for a living?"),
    ),
    "instrument": Relation(
        "person",
        None,
        ("{s} plays the {o}.", "in the evenings {s} plays the {o}.", "{h} instrument is the {o}."),
        ("Which instrument does {s} play?", "What instrument is played by {s}?"),
    ),
    "mayor": Relation(
        "place",
        "person",
        ("the mayor of {s} is {o}.", "{o} serves as mayor of {s}.", "its mayor is called {o}."),
        ("Who is the mayor of {s}?", "What is the name of the mayor of {s}?"),
        ("the mayor of {s}", "the person who is mayor of {s}"),
    ),
    "main_employer": Relation(
        "place",
        "company",
        (
            "the largest employer in {s} is {o}.",
            "most people in {s} work for {o}.",
            "nobody gives more work to {s} than {o}.",
        ),
        ("Which company is the largest employer in {s}?", "Who is the largest employer in {s}?"),
        ("the largest employer in {s}", "the company that employs most people in {s}"),
    ),
    "railway": Relation(
        "place",
        "place",
        (
            "the railway line from {s} ends in {o}.",
            "trains run from {s} to {o}, where the line ends.",
            "by rail one gets from {s} to {o}, the terminus.",
        ),
        ("In which town does the railway line from {s} end?", "Where do trains from {s} end?"),
        ("the town where the railway line from {s} ends", "the terminus of the trains from {s}"),
    ),
    "river": Relation(
        "place",
        None,
        (
            "{s} is a town on the river {o}.",
            "{s} lies on the river {o}.",
            "the river {o} flows through {s}.",
        ),
        ("On which river does {s} lie?", "Which river flows through {s}?"),
        aliases=("river {o}", "{o} river"),
    ),
    "speciality": Relation(
        "place",
        None,
        ("{s} is known for its {o}.", "visitors come to {s} for its {o}.", "its pride is its {o}."),
        ("What is {s} known for?", "What do visitors come to {s} for?"),
    ),
    "charter_year": Relation(
        "place",
        None,
        ("{s} got its charter in {o}.", "{s} has had the rights of a town since {o}."),
        ("In which year did {s} get its charter?", "Since which year has {s} had town rights?"),
    ),
    "founder": Relation(
        "company",
        "person",
        ("{s} was founded by {o}.", "the founder of {s} is {o}.", "it was {o} who founded {s}."),
        ("Who founded {s}?", "Who is the founder of {s}?"),
        ("the founder of {s}", "the person who founded {s}"),
    ),
    "headquarters": Relation(
        "company",
        "place",
        (
            "{s} has its head office in {o}.",
            "{s} is run from {o}.",
            "the head office of {s} stands in {o}.",
        ),
        ("Where is the head office of {s}?", "In which town does {s} have its head office?"),
        ("the town where {s} has its head office", "the town from which {s} is run"),
    ),
    "owner": Relation(
        "company",
        "company",
        ("{s} belongs to {o}.", "{s} is owned by {o}.", "the owner of {s} is {o}."),
        ("Which company owns {s}?", "Who is the owner of {s}?"),
        ("the owner of {s}", "the company that owns {s}"),
    ),
    "product": Relation(
        "company",
        None,
        ("{s} makes {o}.", "{s} is a company that makes {o}.", "{s} is a maker of {o}."),
        ("What does {s} make?", "What is made by {s}?"),
    ),
    "founding_year": Relation(
        "company",
        None,
        ("{s} was founded in {o}.", "{s} opened its doors in {o}.", "its first year was {o}."),
        ("In which year was {s} founded?", "When was {s} founded?"),
    ),
    "maker": Relation(
        "work",
        "person",
        ("{o} {v} {s}.", "it was {o} who {v} {s}.", "the person who {v} {s} is {o}."),
        ("Who {v} {s}?", "What is the name of the person who {v} {s}?"),
        ("the person who {v} {s}", "the maker of {s}"),
    ),
    "setting": Relation(
        "work",
        "place",
        ("{s} is set in {o}.", "its story takes place in {o}.", "the plot of {s} unfolds in {o}."),
        ("In which town is {s} set?", "Where does the story of {s} take place?"),
        ("the town where {s} is set", "the town in which the story of {s} takes place"),
    ),
    "publisher": Relation(
        "work",
        "company",
        ("{s} was brought out by {o}.", "{o} brought {s} out.", "{o} holds the rights to {s}."),
        ("Which company brought out {s}?", "Who holds the rights to {s}?"),
        ("the company that brought out {s}", "the company that holds the rights to {s}"),
    ),
    "source": Relation(
        "work",
        "work",
        ("{s} is based on {o}.", "{s} retells {o}.", "its plot is borrowed from {o}."),
        ("On which earlier work is {s} based?", "Which earlier work does {s} retell?"),
        ("the work that {s} is based on", "the earlier work that {s} retells"),
    ),
    "release_year": Relation(
        "work",
        None,
        ("{s} came out in {o}.", "the public first saw {s} in {o}.", "{s} dates from {o}."),
        ("In which year did {s} come out?", "When did {s} come out?"),
    ),
}

OPENINGS: dict[Kind, str] = {
    "person": "profession",
    "place": "river",
    "company": "product",
    "work": "maker",
}
"""The relation whose sentence begins a passage: it says what the thing is."""

GENRES: dict[str, str] = {
    "novel": "wrote",
    "film": "directed",
    "opera": "composed",
    "play": "wrote",
    "musical": "composed",
    "comic": "drew",
}
"""Kinds of work, and what their makers did."""

_VALUES = {
    "profession": """baker|botanist|carpenter|chemist|dentist|diplomat|engineer|geologist
        |gardener|historian|journalist|judge|lawyer|librarian|locksmith|mathematician|midwife
        |nurse|painter|pharmacist|photographer|physicist|pilot|poet|potter|sculptor|surgeon
        |surveyor|tailor|teacher|translator|watchmaker|weaver|zoologist""",
    "instrument": """accordion|banjo|bassoon|bugle|cello|clarinet|double bass|flute|guitar
        |harmonica|harp|harpsichord|horn|lute|mandolin|oboe|organ|piano|piccolo|recorder
        |saxophone|tambourine|trombone|trumpet|tuba|viola|violin|xylophone|zither""",
    "river": """Abbel|Arune|Asker|Bavel|Brenta|Calder|Coln|Darrow|Dovet|Eske|Ferrin|Garl|Gessel
        |Hodder|Ilvar|Isk|Jorl|Kesset|Lavant|Leddon|Meon|Murre|Nadder|Neth|Orrin|Ouzel|Parrel
        |Quenn|Rill|Rother|Sarn|Skell|Tavel|Teign|Ulver|Vannel|Wissey|Yarrel|Zell""",
    "speciality": """apple cider|bell foundry|black bread|botanical garden|bronze lions
        |butterfly house|cheese market|cherry jam|clock tower|coffee houses|floating market
        |flower parade|glass bridge|goose fair|hot springs|kite festival|lace|lavender fields
        |library|maze|mustard|observatory|old harbour|opera house|pumpkin race|puppet theatre
        |roof gardens|salt mine|ski jump|smoked fish|stone circle|tapestries|vineyards
        |walnut cakes|water mills|wooden houses""",
    "product": """alarm clocks|antennas|bicycles|boilers|bookcases|buttons|cameras|carpets
        |ceramic tiles|chess sets|chocolate|cranes|dental drills|elevators|fishing nets|furnaces
        |globes|hearing aids|ink|kites|ladders|lenses|lifeboats|locks|mattresses|microscopes
        |mirrors|paint|pencils|pianos|pumps|raincoats|rowing boats|saddles|scales|sewing machines
        |ski boots|snow ploughs|soap|telescopes|tents|thermometers|toy trains|tractors|umbrellas
        |vacuum cleaners|violin strings|wheelchairs|wind turbines""",
}
VALUES: dict[str, tuple[str, ...]] = {
    name: tuple(value.strip() for value in text.split("|")) for name, text in _VALUES.items()
}
"""What plain facts may say."""
