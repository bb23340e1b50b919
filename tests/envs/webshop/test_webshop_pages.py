"""The pages: what can be clicked, where it leads, and how forgiving the shop is."""

import re

import pytest

from ragen2.envs.webshop.catalogue import Product
from ragen2.envs.webshop.env import ShopEpisode, WebShop
from ragen2.envs.webshop.generation import generated_catalogue
from ragen2.envs.webshop.pages import Layout, PageView, click, clickable, render, results
from ragen2.seeding import stream

LAYOUT = Layout(page_size=10, title_chars=80, text_chars=600)
LABEL = re.compile(r"\[([^\]]+)\]")


def item(**changes: object) -> Product:
    fields: dict[str, object] = {
        "asin": "B1",
        "title": "mug",
        "description": "words " * 200,
        "bullets": ("leak proof", "bpa free"),
        "prices": (5.0,),
        "category": "kitchen",
        "query": "mugs",
        "product_category": "Kitchen",
        "options": (("color", ("red", "blue")), ("trim", ("red", "features", "S"))),
    }
    return Product(**(fields | changes))  # type: ignore[arg-type]


def opened(product: Product) -> PageView:
    return PageView("item", words="mug", hits=(product,), product=product)


def test_fifty_hits_fill_five_pages_of_ten() -> None:
    hits = generated_catalogue(100, 0).products[:50]
    view: PageView | None = results("mug", hits)
    seen: list[str] = []
    for number in range(1, 6):
        assert view is not None
        assert f"Results {10 * number - 9} to {10 * number} of 50" in render(view, LAYOUT)
        assert ("next >" in clickable(view, LAYOUT)) == (number < 5)
        assert ("< prev" in clickable(view, LAYOUT)) == (number > 1)
        seen += [label for label in clickable(view, LAYOUT) if label.startswith("P")]
        last, view = view, click(view, "next >", LAYOUT)
    assert view is None
    assert seen == [product.asin for product in hits]
    assert click(last, "< prev", LAYOUT) == click(last, "PREV", LAYOUT)


def test_a_short_last_page_says_how_many_there_are() -> None:
    hits = generated_catalogue(100, 0).products[:3]
    assert "Results 1 to 3 of 3" in render(results("mug", hits), LAYOUT)


def test_a_search_without_hits_says_so_and_leads_back() -> None:
    view = results("qqq", ())
    assert render(view, LAYOUT) == "No results for: qqq\nClickable: [back to search]"


def test_every_page_ends_with_all_that_can_be_clicked() -> None:
    env = WebShop(num_products=200)
    for seed in range(30):
        episode, rng = env.start(seed, 0), stream("walk", seed)
        for _ in range(12):
            listed = episode.observation.split("Clickable:")[1]
            assert set(LABEL.findall(listed)) - {"words"} == set(clickable(episode.view, LAYOUT))
            if episode.step(episode.random_action(rng)).done:
                break


def test_every_listed_label_works() -> None:
    view = opened(item())
    for label in clickable(view, LAYOUT):
        after = click(view, label, LAYOUT)
        assert after is not None
        assert after != view
        assert click(view, f"  {label.upper()} ", LAYOUT) == after


def test_details_lead_back_to_the_item_with_its_choices() -> None:
    view = click(opened(item()), "blue", LAYOUT)
    assert view is not None
    for page in ("description", "features"):
        inside = click(view, page, LAYOUT)
        assert inside is not None
        assert inside.page == page
        assert click(inside, "< prev", LAYOUT) == view


def test_reviews_are_there_only_if_the_product_has_some() -> None:
    assert "reviews" not in clickable(opened(item()), LAYOUT)
    rated = opened(item(rating=4.5, reviews=("nice",)))
    page = click(rated, "reviews", LAYOUT)
    assert page is not None
    assert "Reviews of B1: rated 4.5 of 5; nice" in render(page, LAYOUT)


def test_a_new_choice_replaces_the_old_one() -> None:
    view = opened(item())
    for label in ("S", "blue", "color: red"):
        after = click(view, label, LAYOUT)
        assert after is not None
        view = after
    assert view.chosen == (("color", "red"), ("trim", "S"))
    assert "Chosen: color: red, trim: S" in render(view, LAYOUT)


def test_a_value_of_two_options_or_of_a_button_is_clicked_by_its_full_name() -> None:
    view = opened(item())
    labels = clickable(view, LAYOUT)
    assert {"color: red", "trim: red", "trim: features", "blue", "S"} <= set(labels)
    page = click(view, "features", LAYOUT)
    assert page is not None
    assert page.page == "features"
    assert click(view, "red", LAYOUT) is None


def test_going_back_forgets_the_choices() -> None:
    chosen = click(opened(item()), "blue", LAYOUT)
    assert chosen is not None
    back = click(chosen, "< prev", LAYOUT)
    assert back is not None
    assert (back.page, back.chosen) == ("results", ())
    assert click(chosen, "back to search", LAYOUT) == PageView()


def test_long_texts_are_cut_at_a_word() -> None:
    page = click(opened(item()), "description", Layout(10, 80, 50))
    assert page is not None
    assert "words words…\n" in render(page, Layout(10, 80, 50))
    assert len(render(page, Layout(10, 80, 50)).splitlines()[0]) < 80


@pytest.fixture
def episode() -> ShopEpisode:
    return WebShop(num_products=100).start(0, 0)


@pytest.mark.parametrize("action", ["search[mugs]", " SEARCH [ mugs ] ", "Search[\nmugs]"])
def test_case_and_spaces_do_not_matter(episode: ShopEpisode, action: str) -> None:
    assert episode.step(action).valid
    assert episode.view.page == "results"
    assert episode.view.words == "mugs"


@pytest.mark.parametrize(
    "action",
    ["search[]", "search[ ]", "search mugs", "click[buy now]", "click[]", "[]", "search[", "]["],
)
def test_what_the_page_does_not_offer_changes_nothing(episode: ShopEpisode, action: str) -> None:
    before = episode.observation
    step = episode.step(action)
    assert not step.valid
    assert not step.effective
    assert episode.observation == before


def test_searching_again_needs_the_search_page(episode: ShopEpisode) -> None:
    episode.step("search[mugs]")
    assert not episode.step("search[pans]").valid
    assert episode.step("click[Back to Search]").valid
    assert episode.step("search[pans]").valid


def test_a_huge_search_is_survived(episode: ShopEpisode) -> None:
    assert episode.step(f"search[{'mug ' * 50_000}]").valid
    assert len(episode.observation) < 3000
