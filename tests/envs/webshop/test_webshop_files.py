"""WebShop's own files, in the publisher's format and as plain records."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ragen2.envs import make
from ragen2.envs.base import Env, Step
from ragen2.envs.webshop.catalogue import read_catalogue, read_product
from ragen2.envs.webshop.goals import read_human_goals
from ragen2.errors import ConfigError, EnvError


def bought(env: Env, seed: int) -> Step:
    """The last step of the expert's plan."""
    episode = env.start(seed, 0)
    return [episode.step(action) for action in episode.expert()][-1]


def published(asin: str, **changes: object) -> dict[str, object]:
    """A record with the field names of items_shuffle.json."""
    return {
        "asin": asin,
        "name": f"Norvik Alder {asin} Travel Mug",
        "full_description": "Keeps tea warm.",
        "small_description": ["Leak proof lid", "BPA free"],
        "pricing": "$12.50",
        "category": "garden",
        "query": "Travel Mugs ",
        "product_category": "Home › Kitchen › Mugs",
        "average_rating": "4.5",
        "customization_options": {
            "Color": [{"value": "Red/White", "image": None}, {"value": " Blue ", "image": "x"}],
            "Size": None,
        },
        "images": ["x"],
    } | changes


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, str]:
    """Paths of the three files of a tiny shop, as the publisher writes them."""
    asins = [f"B{number:09d}" for number in range(8)]
    products = [published(asin) for asin in asins]
    broken = [published("nan"), published("B" * 11), published(asins[0], name="again")]
    attributes = {asin: {"attributes": ["leak proof", "bpa free"]} for asin in asins}
    for asin in asins[:4]:
        attributes[asin] |= {
            "instruction": "Find me leak proof travel mugs",
            "instruction_attributes": ["leak proof"],
        }
    human = {
        asin: [
            {
                "asin": asin,
                "instruction": "i want a red mug.",
                "instruction_attributes": ["bpa free"],
                "instruction_options": ["red | white"],
            },
            {"instruction": "no attributes", "instruction_attributes": []},
        ]
        for asin in (*asins[:3], "B999999999")
    }
    paths = {}
    for name, content in (
        ("products", products + broken),
        ("attributes", attributes),
        ("human_goals", human),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        paths[name] = str(path)
    return paths


def test_the_published_format_is_read(shop: dict[str, str]) -> None:
    catalogue = read_catalogue(shop["products"], shop["attributes"], None)
    assert len(catalogue.products) == 8
    product = catalogue.products[0]
    assert product.title == "Norvik Alder B000000000 Travel Mug"
    assert product.bullets == ("Leak proof lid", "BPA free")
    assert product.options == (("color", ("red | white", "blue")),)
    assert product.query == "travel mugs"
    assert product.prices == (12.5,)
    assert product.rating == 4.5
    assert product.attributes == ("leak proof", "bpa free")
    assert product.instruction == "Find me leak proof travel mugs"
    assert catalogue.products[7].instruction is None


def test_synthetic_goals_come_from_the_attribute_file(shop: dict[str, str]) -> None:
    env = make("WebShop", products=shop["products"], attributes=shop["attributes"])
    texts = {env.start(seed, 0).observation for seed in range(100)}
    assert len(texts) == 2  # one of four products is held out, with two colors
    assert all("Find me leak proof travel mugs with color: " in text for text in texts)
    assert bought(env, 0).solved


def test_human_goals_come_from_their_file(shop: dict[str, str]) -> None:
    catalogue = read_catalogue(shop["products"], shop["attributes"], None)
    assert len(read_human_goals(shop["human_goals"], catalogue)) == 3
    env = make("WebShop", **shop)
    assert "Task: i want a red mug, and price lower" in env.start(0, 0).observation
    assert bought(env, 0).solved


def test_only_as_many_products_as_asked_are_read(shop: dict[str, str]) -> None:
    assert len(read_catalogue(shop["products"], None, 5).products) == 5


@pytest.mark.parametrize(
    ("pricing", "prices"),
    [
        ("$12.50", (12.5,)),
        ("$9.99$1,024.00", (9.99, 1024.0)),
        ("$20.00 - $10.00", (10.0, 20.0)),
        ("", (100.0,)),
        (None, (100.0,)),
        ([3, 4.5, 5], (3.0, 4.5)),
        (7, (7.0,)),
    ],
)
def test_prices_are_read_in_all_their_forms(pricing: object, prices: tuple[float, ...]) -> None:
    assert read_product(published("B1", pricing=pricing), "here").prices == prices


@pytest.mark.parametrize("options", ["", None, {}, {"size": []}])
def test_no_options_are_written_in_many_ways(options: object) -> None:
    assert read_product(published("B1", customization_options=options), "here").options == ()


def test_an_option_never_holds_the_sign_between_actions() -> None:
    options = {"size": [{"value": "a || b"}, {"value": "c // d"}]}
    product = read_product(published("B1", customization_options=options), "here")
    assert product.options == (("size", ("a | b", "c | d")),)


def write(path: Path, *records: object) -> str:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_a_record_without_title_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "p.jsonl", {"asin": "B1", "price": [1]})
    with pytest.raises(EnvError, match=r"p\.jsonl has no field 'name'"):
        read_catalogue(source, None, None)


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "p.jsonl", {"asin": "B1", "title": "x", "price": ["dear"]})
    with pytest.raises(
        EnvError, match=r"product B1 of .*p\.jsonl cannot be read .*correct or remove it"
    ):
        read_catalogue(source, None, None)


def test_goals_for_another_catalogue_are_refused(tmp_path: Path, shop: dict[str, str]) -> None:
    catalogue = read_catalogue(shop["products"], None, None)
    goal = {"asin": "B77", "instruction": "x", "instruction_attributes": ["y"]}
    with pytest.raises(EnvError, match=r"no goal of .*g\.jsonl names a product of .*products"):
        read_human_goals(write(tmp_path / "g.jsonl", goal), catalogue)


def test_an_attribute_file_of_the_wrong_shape_is_refused(
    tmp_path: Path, shop: dict[str, str]
) -> None:
    source = write(tmp_path / "a.jsonl", {"B1": "leak proof"})
    with pytest.raises(EnvError, match=r"'B1' holds 'leak proof', not a record; give records"):
        read_catalogue(shop["products"], source, None)


def test_a_missing_file_is_the_users_mistake() -> None:
    env = make("WebShop", products="/nowhere/items.json")
    with pytest.raises(ConfigError, match=r"data source '/nowhere/items\.json'"):
        env.start(0, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goals": "human"}, "needs human_goals, the path of their file"),
        ({"human_goals": "x"}, "go with a product file; set products"),
        ({"products": "p", "human_goals": "x", "goals": "drawn"}, "goals is 'drawn'; drop one"),
    ],
)
def test_settings_that_disagree_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("WebShop", **settings)


def test_every_real_product_keeps_its_options_and_attributes(
    real_data: Callable[[str], Path],
) -> None:
    path = real_data("webshop/products.jsonl.gz")
    products = read_catalogue(str(path), None, None).by_asin()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for record in map(json.loads, file):
            product = products[record["asin"]]
            assert product.title == " ".join(record["title"].split())
            assert [len(values) for _, values in product.options] == [
                len(values) for values in record["options"].values()
            ]
            assert len(product.attributes) == len(record["attributes"])


def test_real_human_goals_for_the_catalogue_are_found(real_data: Callable[[str], Path]) -> None:
    catalogue = read_catalogue(str(real_data("webshop/products.jsonl.gz")), None, None)
    goals = read_human_goals(str(real_data("webshop/human_goals.jsonl.gz")), catalogue)
    assert len(goals) == 13
