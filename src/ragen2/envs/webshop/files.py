"""Read WebShop's own files: products, attributes with synthetic goals, and goals that people wrote.

The publisher keys the last two by product id in one JSON object; plain records with a field
``asin`` are read as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from ragen2.envs.toolkit.records import Record, read_records, require_fields
from ragen2.envs.webshop.catalogue import Catalogue, OptionGroup, Product
from ragen2.envs.webshop.goals import Goal, human_goal
from ragen2.errors import EnvError

NO_PRICE = (100.0,)
"""WebShop's price of a product that has none."""
MAX_ASIN = 10
"""Longer ids in the publisher's file belong to broken records; WebShop leaves them out too."""


def read_catalogue(source: str, attributes: str | None, num_products: int | None) -> Catalogue:
    """The first ``num_products`` products of ``source`` (None: all), each id once."""
    notes = (
        {str(note["asin"]): note for note in _records_with_asin(attributes)} if attributes else {}
    )
    products: dict[str, Product] = {}
    for record in islice(read_records(source), num_products):
        require_fields(record, ("asin",), source)
        asin = str(record["asin"])
        if asin == "nan" or asin in products or ("name" in record and len(asin) > MAX_ASIN):
            continue
        products[asin] = _read_checked(record | notes.get(asin, {}), source)
    return Catalogue(products.values(), source)


def _read_checked(record: Record, source: str) -> Product:
    try:
        return read_product(record, source)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EnvError(
            f"product {record['asin']} of {source} cannot be read "
            f"({type(error).__name__}: {error}); correct its record"
        ) from error


def read_product(record: Record, source: str) -> Product:
    """A product from a record of either format."""
    title_field = "title" if "title" in record else "name"
    require_fields(record, ("asin", title_field), source)
    return Product(
        asin=str(record["asin"]),
        title=_text(record[title_field]),
        description=_text(record.get("description", record.get("full_description"))),
        bullets=_texts(record.get("bullet_points", record.get("small_description"))),
        prices=_prices(record.get("price") or record.get("pricing")),
        category=_text(record.get("category")),
        query=_text(record.get("query")).lower(),
        product_category=_text(record.get("product_category")),
        options=_options(record.get("options") or record.get("customization_options")),
        attributes=_texts(record.get("attributes")),
        rating=_rating(record.get("rating", record.get("average_rating"))),
        reviews=_texts(record.get("reviews")),
        instruction=record.get("instruction") or None,
        instruction_attributes=_texts(record.get("instruction_attributes")),
    )


def read_human_goals(source: str, catalogue: Catalogue) -> list[Goal]:
    """The goals that name a product of ``catalogue`` and at least one attribute."""
    products = catalogue.by_asin()
    seen: Counter[str] = Counter()
    goals = []
    for record in _records_with_asin(source):
        require_fields(record, ("instruction", "instruction_attributes"), source)
        product = products.get(str(record["asin"]))
        attributes = _texts(record["instruction_attributes"])
        if product is None or not attributes:
            continue
        number = seen[product.asin]
        seen[product.asin] += 1
        options = _texts(record.get("instruction_options"))
        goals.append(human_goal(product, _text(record["instruction"]), attributes, options, number))
    if not goals:
        raise EnvError(
            f"no goal of {source} names a product of {catalogue.source}; give the catalogue they "
            "were written for"
        )
    return goals


def _records_with_asin(source: str) -> Iterator[Record]:
    """Records as they are, or those of an object ``{asin: record or list of records}``."""
    for record in read_records(source):
        if "asin" in record:
            yield record
            continue
        for asin, held in record.items():
            for item in held if isinstance(held, list) else [held]:
                if not isinstance(item, dict):
                    raise EnvError(
                        f"{source}: {asin!r} holds {item!r:.60}, not a record; give records with a "
                        "field asin, or one object keyed by product id"
                    )
                yield {"asin": asin, **item}


def _text(value: object) -> str:
    return " ".join(str(value).split()) if value is not None else ""


def _texts(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    items: Iterable[object] = value if isinstance(value, list | tuple) else (value,)
    return tuple(text for text in map(_text, items) if text)


def _prices(value: object) -> tuple[float, ...]:
    """``[1.5]``, ``2``, ``"$1.50"``, ``"$1.50$1,002.00"`` as one number, or two in rising order."""
    items = (
        value
        if isinstance(value, list | tuple)
        else re.findall(r"\d[\d,]*(?:\.\d+)?", _text(value))
    )
    prices = sorted(float(str(item).replace(",", "")) for item in items[:2])
    return tuple(prices) or NO_PRICE


def _options(value: object) -> tuple[OptionGroup, ...]:
    """``{name: [value or {"value": value}]}`` in lower case; empty groups are left out."""
    if not isinstance(value, dict):
        return ()
    groups = (
        (str(name).lower(), tuple(map(_option_value, items or ()))) for name, items in value.items()
    )
    return tuple((name, values) for name, values in groups if values)


def _option_value(item: object) -> str:
    """WebShop writes ``/`` as `` | `` and everything in lower case; ``||`` would end an action."""
    text = str(item["value"] if isinstance(item, dict) else item)
    return re.sub(r"\|[|\s]*\|", "|", _text(text.replace("/", " | ")).lower())


def _rating(value: object) -> float | None:
    try:
        return float(str(value)) if value is not None else None
    except ValueError:
        return None
