"""What a shop sells: products, and a catalogue of them that can be searched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ragen2.envs.toolkit.text_index import TextIndex
from ragen2.errors import EnvError
from ragen2.seeding import stream

OptionGroup = tuple[str, tuple[str, ...]]
"""The name of an option and its values: ``("color", ("red", "blue"))``."""


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


@lru_cache(maxsize=65_536)
def _price_within(ends: tuple[float, ...], asin: str) -> float:
    return float(stream("WebShop", "price", asin).uniform(min(ends), max(ends)))
