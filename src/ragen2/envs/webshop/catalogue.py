"""What a shop sells: products, and a catalogue of them that can be searched, read from WebShop's files.

The publisher keys attributes and human goals by product id in one JSON object; plain records with a
field ``asin`` are read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice

from ragen2.envs.toolkit.records import Record, read_records, record_errors, require_fields
from ragen2.envs.toolkit.text_index import TextIndex
from ragen2.errors import EnvError
from ragen2.seeding import stream

OptionGroup = tuple[str, tuple[str, ...]]
"""The name of an option and its values: ``("color", ("red", "blue"))``."""
NO_PRICE = (100.0,)
"""WebShop's price of a product that has none."""
MAX_ASIN = 10
"""Longer ids in the publisher's file belong to broken records; WebShop leaves them out too."""


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """One product. Two products are equal only if they are the same object."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    prices: tuple[float, ...]
    """One price, or the lower and the upper end of a price range."""
    category: str
    query: str
    """What kind of thing it is, in the words of a shopper: ``console tables``."""
    product_category: str
    """Path from the department down, parts separated by ``›``."""
    options: tuple[OptionGroup, ...] = ()
    attributes: tuple[str, ...] = ()
    rating: float | None = None
    reviews: tuple[str, ...] = ()
    instruction: str | None = None
    """The wish of the synthetic goals, without options and price; None: there are none."""
    instruction_attributes: tuple[str, ...] = ()

    @property
    def price(self) -> float:
        """What a buyer is charged: inside the range where there is one, always the same."""
        return self.prices[0] if len(self.prices) == 1 else _price_within(self.prices, self.asin)

    @property
    def price_text(self) -> str:
        """The price, or the range of prices, as the pages show it."""
        return " to ".join(f"${price:.2f}" for price in self.prices)

    @property
    def search_text(self) -> str:
        """All words under which the product can be found."""
        options = (f"{name} {' '.join(values)}" for name, values in self.options)
        return " ".join((self.title, self.query, *self.bullets, self.description, *options))


class Catalogue:
    """Products in a fixed order, searchable."""

    def __init__(self, products: Iterable[Product], source: str) -> None:
        self.products = tuple(products)
        self.source = source
        if not self.products:
            raise EnvError(f"WebShop catalogue {source} has no products; name a file that has some")

    def search(self, words: str, top: int) -> tuple[Product, ...]:
        """Up to ``top`` products that share a word with ``words``, best first."""
        return tuple(self.products[place] for place, _ in self._index.search(words, top))

    def by_asin(self) -> dict[str, Product]:
        """Every product by its id."""
        return {product.asin: product for product in self.products}

    @cached_property
    def _index(self) -> TextIndex:
        return TextIndex([product.search_text for product in self.products])


HIGHEST_PRICE = 1e9


@lru_cache(maxsize=65_536)
def _price_within(ends: tuple[float, ...], asin: str) -> float:
    return float(stream("WebShop", "price", asin).uniform(min(ends), max(ends)))


def read_catalogue(source: str, attributes: str | None, num_products: int | None) -> Catalogue:
    """The first ``num_products`` products of ``source`` (None: all), each id once."""
    notes = (
        {str(note["asin"]): note for note in records_with_asin(attributes)} if attributes else {}
    )
    products: dict[str, Product] = {}
    for record in islice(read_records(source), num_products):
        require_fields(record, ("asin",), source)
        asin = str(record["asin"])
        if asin == "nan" or asin in products or ("name" in record and len(asin) > MAX_ASIN):
            continue
        with record_errors(f"product {asin} of {source}"):
            products[asin] = read_product(record | notes.get(asin, {}), source)
    return Catalogue(products.values(), source)


def read_product(record: Record, source: str) -> Product:
    """A product from a record of either format."""
    title_field = "title" if "title" in record else "name"
    require_fields(record, ("asin", title_field), source)
    return Product(
        asin=str(record["asin"]),
        title=plain_text(record[title_field]),
        description=plain_text(record.get("description", record.get("full_description"))),
        bullets=plain_texts(record.get("bullet_points", record.get("small_description"))),
        prices=_prices(record.get("price") or record.get("pricing")),
        category=plain_text(record.get("category")),
        query=plain_text(record.get("query")).lower(),
        product_category=plain_text(record.get("product_category")),
        options=_options(record.get("options") or record.get("customization_options")),
        attributes=plain_texts(record.get("attributes")),
        rating=_rating(record.get("rating", record.get("average_rating"))),
        reviews=plain_texts(record.get("reviews")),
        instruction=plain_text(record.get("instruction")) or None,
        instruction_attributes=plain_texts(record.get("instruction_attributes")),
    )


def records_with_asin(source: str) -> Iterator[Record]:
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


def plain_text(value: object) -> str:
    """A field of a record as text on one line; empty where it is missing."""
    return " ".join(str(value).split()) if value is not None else ""


def plain_texts(value: object) -> tuple[str, ...]:
    """A field that holds one text or a list of them, empty ones left out."""
    if value is None:
        return ()
    items: Iterable[object] = value if isinstance(value, list | tuple) else (value,)
    return tuple(text for text in map(plain_text, items) if text)


def _prices(value: object) -> tuple[float, ...]:
    """``[1.5]``, ``2``, ``"$1.50"``, ``"$1.50$1,002.00"`` as one number, or two in rising order."""
    items = (
        value
        if isinstance(value, list | tuple)
        else re.findall(r"\d[\d,]*(?:\.\d+)?", plain_text(value))
    )
    prices = sorted(float(str(item).replace(",", "")) for item in items[:2])
    if not all(0.0 <= price <= HIGHEST_PRICE for price in prices):
        raise ValueError(f"a price must be between 0 and {HIGHEST_PRICE:g}, got {prices}")
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
    return re.sub(r"\|[|\s]*\|", "|", plain_text(text.replace("/", " | ")).lower())


def _rating(value: object) -> float | None:
    try:
        return float(str(value)) if value is not None else None
    except ValueError:
        return None
