"""The generated shop: big enough, findable, fair, and the same everywhere."""

import hashlib
import subprocess
import sys
from itertools import combinations

import pytest

from ragen2.envs.webshop.catalogue import Catalogue, Product
from ragen2.envs.webshop.generation import (
    KINDS,
    OPTION_VALUES,
    ProductKind,
    generated_catalogue,
)
from ragen2.envs.webshop.goals import matches, options_match
from ragen2.errors import EnvError

DIGEST = """
import hashlib
from ragen2.envs.webshop.generation import generated_catalogue
texts = "".join(p.asin + p.search_text + p.price_text for p in generated_catalogue(200, 5).products)
print(hashlib.sha256(texts.encode()).hexdigest())
"""


def test_it_has_a_thousand_products_in_at_least_thirty_categories() -> None:
    products = generated_catalogue(1000, 0).products
    assert len(products) == 1000
    assert len({product.product_category for product in products}) >= 30
    assert all(product.options and product.attributes for product in products)
    assert len({product.asin for product in products}) == 1000
    assert len({product.title for product in products}) == 1000


def test_every_kind_has_rivals_at_different_prices() -> None:
    products = generated_catalogue(1000, 0).products
    for kind in KINDS:
        prices = [product.price for product in products if product.query == kind.query]
        assert len(prices) == 25
        assert max(prices) > 1.5 * min(prices)
        assert kind.prices[0] <= min(prices)
        assert max(prices) <= kind.prices[1]


def test_every_attribute_can_be_read_on_some_page() -> None:
    for product in generated_catalogue(300, 1).products:
        pages = " ".join((product.title, *product.bullets, product.description))
        assert all(attribute in pages for attribute in product.attributes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_attribute_or_option_passes_for_another(kind: ProductKind) -> None:
    pairs = combinations(kind.attributes, 2)
    assert not [pair for pair in pairs if matches(*pair) or pair[0] in pair[1]]
    values = [value for name in kind.options for value in OPTION_VALUES[name]]
    assert not [pair for pair in combinations(values, 2) if options_match(*pair)]


def test_another_seed_is_another_shop() -> None:
    titles = [{p.title for p in generated_catalogue(100, seed).products} for seed in (0, 1)]
    assert len(titles[0] & titles[1]) < 10


def test_the_same_seed_is_the_same_shop_in_another_process() -> None:
    ours = hashlib.sha256(
        "".join(
            product.asin + product.search_text + product.price_text
            for product in generated_catalogue(200, 5).products
        ).encode()
    ).hexdigest()
    run = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ours


def test_a_title_finds_its_product_first() -> None:
    catalogue = generated_catalogue(300, 0)
    for product in catalogue.products[:50]:
        assert product in catalogue.search(product.title, 3)


@pytest.mark.parametrize("words", ["", "   ", "\x00", "qqqq zzzz", "()*&^%", "é√😀"])
def test_a_search_for_nothing_known_finds_nothing(words: str) -> None:
    assert generated_catalogue(100, 0).search(words, 50) == ()


def test_a_price_range_charges_one_price_inside_it() -> None:
    product = Product("A", "mug", "", (), (5.0, 9.0), "kitchen", "mugs", "Kitchen")
    assert 5.0 <= product.price <= 9.0
    assert product.price == product.price
    assert product.price_text == "$5.00 to $9.00"


def test_an_empty_catalogue_is_refused() -> None:
    with pytest.raises(EnvError, match=r"catalogue x\.jsonl has no products; name a file"):
        Catalogue([], "x.jsonl")
