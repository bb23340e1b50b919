"""The pages of the shop: what each one shows and where each click leads.

search -> results (paged) -> item -> description, features, reviews; ``buy now`` on an item ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ragen2.envs.base import normalise
from ragen2.envs.webshop.catalogue import Product

BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
SHORT_FORMS = {
    "back": BACK,
    "search": BACK,
    "prev": PREVIOUS,
    "previous": PREVIOUS,
    "<prev": PREVIOUS,
    "next": NEXT,
    "next>": NEXT,
    "buy": BUY,
}
"""Other ways to name a button."""

PageName = Literal["search", "results", "item", "description", "features", "reviews", "end"]
DETAILS: tuple[PageName, ...] = ("description", "features", "reviews")


@dataclass(frozen=True, slots=True)
class Layout:
    """How much a page shows."""

    page_size: int
    title_chars: int
    text_chars: int


@dataclass(frozen=True, slots=True)
class PageView:
    """Where the shopper is: a page and what led to it."""

    page: PageName = "search"
    words: str = ""
    hits: tuple[Product, ...] = ()
    number: int = 1
    """Page of the results, from 1."""
    product: Product | None = None
    chosen: tuple[tuple[str, str], ...] = ()
    """(option, value), in the order of the product's options."""


def results(words: str, hits: tuple[Product, ...]) -> PageView:
    """The first page of the results of a search."""
    return PageView("results", words=words, hits=hits)


def num_pages(view: PageView, layout: Layout) -> int:
    """Pages of results; at least one."""
    return max(1, -(-len(view.hits) // layout.page_size))


def on_page(view: PageView, layout: Layout) -> tuple[Product, ...]:
    """The products of the page of results that is shown."""
    first = (view.number - 1) * layout.page_size
    return view.hits[first : first + layout.page_size]


def buttons(view: PageView, layout: Layout) -> dict[str, PageView]:
    """The buttons of a page and where they lead."""
    if view.page in ("search", "end"):
        return {}
    found = {BACK: PageView()}
    if view.page == "results":
        if view.number > 1:
            found[PREVIOUS] = replace(view, number=view.number - 1)
        if view.number < num_pages(view, layout):
            found[NEXT] = replace(view, number=view.number + 1)
    elif view.page == "item":
        found[PREVIOUS] = replace(view, page="results", product=None, chosen=())
        for page in DETAILS:
            if page != "reviews" or _has_reviews(view.product):
                found[page] = replace(view, page=page)
        found[BUY] = replace(view, page="end")
    else:
        found[PREVIOUS] = replace(view, page="item")
    return found


def option_label(product: Product, name: str, value: str) -> str:
    """What to click for an option: its value, with its name where the value alone is ambiguous."""
    holders = [other for other, values in product.options if value in values]
    is_button = value in (BACK, PREVIOUS, BUY, *DETAILS, *SHORT_FORMS)
    return f"{name}: {value}" if len(holders) > 1 or is_button else value


def choose(view: PageView, product: Product, name: str, value: str) -> PageView:
    """The page of ``product`` after choosing ``value`` for option ``name``."""
    chosen = dict(view.chosen) | {name: value}
    order = [group for group, _ in product.options if group in chosen]
    return replace(view, chosen=tuple((group, chosen[group]) for group in order))


def clickable(view: PageView, layout: Layout) -> tuple[str, ...]:
    """The text of everything that can be clicked: buttons, products, options."""
    found = list(buttons(view, layout))
    if view.page == "results":
        found += [product.asin for product in on_page(view, layout)]
    if view.page == "item" and view.product is not None:
        found += [label for label, _, _ in _labelled_options(view.product)]
    return tuple(dict.fromkeys(found))


def click(view: PageView, target: str, layout: Layout) -> PageView | None:
    """Where clicking ``target`` leads, case and spaces forgiven; None if there is no such thing."""
    wanted = normalise(target)
    found = buttons(view, layout)
    button = found.get(wanted) or found.get(SHORT_FORMS.get(wanted, ""))
    if button is not None:
        return button
    if view.page == "results":
        for product in on_page(view, layout):
            if wanted == normalise(product.asin):
                return replace(view, page="item", product=product, chosen=())
    if view.page == "item" and view.product is not None:
        for label, name, value in _labelled_options(view.product):
            if wanted in (normalise(label), normalise(f"{name}: {value}")):
                return choose(view, view.product, name, value)
    return None


def render(view: PageView, layout: Layout) -> str:
    """The text of a page; it ends with the list of what can be clicked."""
    return "\n".join((*_body(view, layout), *_clickable_lines(view, layout)))


def _body(view: PageView, layout: Layout) -> Iterator[str]:
    product = view.product
    if view.page == "search":
        yield "Search page"
    elif view.page == "results":
        first = (view.number - 1) * layout.page_size
        shown = f"{first + 1} to {first + len(on_page(view, layout))} of {len(view.hits)}"
        words = _cut(view.words, layout.title_chars)
        yield f"Results {shown} for: {words}" if view.hits else f"No results for: {words}"
    elif product is not None and view.page == "item":
        rated = f", rated {product.rating:g}" if product.rating is not None else ""
        yield f"Item {product.asin}: {product.title}, {product.price_text}{rated}"
        if product.options:
            yield f"Chosen: {_chosen_text(view) or 'nothing yet'}"
    elif product is not None and view.page == "end":
        chosen = f" ({_chosen_text(view)})" if view.chosen else ""
        yield f"You bought {product.asin}{chosen} for ${product.price:.2f}."
    elif product is not None:
        text = _cut(_details(view.page, product), layout.text_chars)
        yield f"{view.page.capitalize()} of {product.asin}: {text or 'none'}"


def _clickable_lines(view: PageView, layout: Layout) -> Iterator[str]:
    labels = "".join(f" [{label}]" for label in buttons(view, layout))
    if view.page == "search":
        labels = " nothing; use search[words]"
    yield f"Clickable:{labels or ' nothing'}"
    if view.page == "results":
        for product in on_page(view, layout):
            yield f"[{product.asin}] {product.price_text} {_cut(product.title, layout.title_chars)}"
    elif view.page == "item" and view.product is not None:
        for name, values in view.product.options:
            shown = dict.fromkeys(option_label(view.product, name, value) for value in values)
            yield f"{name}:{''.join(f' [{label}]' for label in shown)}"


def _labelled_options(product: Product) -> Iterator[tuple[str, str, str]]:
    """(label, name, value) of every option value."""
    for name, values in product.options:
        for value in values:
            yield option_label(product, name, value), name, value


def _chosen_text(view: PageView) -> str:
    return ", ".join(f"{name}: {value}" for name, value in view.chosen)


def _details(page: PageName, product: Product) -> str:
    if page == "description":
        return product.description
    if page == "features":
        return "; ".join(product.bullets)
    rated = f"rated {product.rating:g} of 5" if product.rating is not None else ""
    return "; ".join(filter(None, (rated, *product.reviews)))


def _has_reviews(product: Product | None) -> bool:
    return product is not None and (bool(product.reviews) or product.rating is not None)


def _cut(text: str, most: int) -> str:
    """The text, cut at the end of a word where it is too long."""
    if len(text) <= most:
        return text
    head = text[: most + 1].rsplit(" ", 1)[0]
    return f"{head[:most]}…"
