"""A shopper who knows the reward: finds a perfect purchase through the pages, and says why."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from ragen2.envs.toolkit.wording import pick
from ragen2.envs.webshop.catalogue import Catalogue, Product
from ragen2.envs.webshop.goals import Goal
from ragen2.envs.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    Layout,
    PageView,
    on_page,
    option_label,
    results,
)
from ragen2.envs.webshop.reward import options_match, score

Choices = tuple[tuple[str, str], ...]


class Expert:
    """Plans and explains the purchase for one goal."""

    def __init__(self, goal: Goal, catalogue: Catalogue, layout: Layout, max_hits: int) -> None:
        self.goal = goal
        self._catalogue = catalogue
        self._layout = layout
        self._max_hits = max_hits

    def plan(self, view: PageView) -> tuple[str, ...]:
        """The fewest actions from ``view`` to a perfect purchase; empty when one was made."""
        if view.page == "end":
            return ()
        if view.product is not None and self._suits(view.product):
            return self._finish(view, view.product)
        routes = [self._search_route(view)]
        target = self._target(view.hits)
        if target is not None:
            routes.append(self._results_route(view, target))
        return min(reversed(routes), key=len)

    def explain(self, view: PageView, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """One to three short sentences: the wish, what this page says of it, the next actions."""
        if view.page == "search":
            seen = self._wish(rng)
        elif view.page == "results":
            seen = self._explain_results(view, rng)
        elif view.page == "end" or view.product is None:
            seen = "the purchase is made."
        else:
            seen = self._explain_item(view, view.product, rng)
        so = pick(rng, "so", "I do", "next:", "then")
        return f"{seen} {so} {' '.join(actions) or 'nothing'}"

    @cached_property
    def _found(self) -> PageView:
        """The best search: words of the wish if they lead to a purchase soon, else the title."""
        goal = self.goal
        wish = f"{goal.product.query} {' '.join(goal.attributes)}"
        wish_with_options = f"{wish} {' '.join(value for _, value in goal.options)}"
        best, best_pages = PageView(), math.inf
        for words in (wish, wish_with_options, goal.product.title):
            found = results(words, self._catalogue.search(words, self._max_hits))
            target = self._target(found.hits)
            pages = math.inf if target is None else self._page_of(target, found) - 1
            if pages < best_pages or not best.words:
                best, best_pages = found, pages
            if best_pages == 0:
                break
        return best

    def _page_of(self, product: Product, view: PageView) -> int:
        return view.hits.index(product) // self._layout.page_size + 1

    def _search_route(self, view: PageView) -> tuple[str, ...]:
        back = () if view.page == "search" else (f"click[{BACK}]",)
        found = self._found
        target = self._target(found.hits)
        rest = self._results_route(found, target) if target is not None else ()
        return (*back, f"search[{found.words}]", *rest)

    def _results_route(self, view: PageView, target: Product) -> tuple[str, ...]:
        """From a page of results, or a wrong item below it, to the purchase of ``target``."""
        up = {"results": 0, "item": 1}.get(view.page, 2)
        pages = self._page_of(target, view) - view.number
        turn = NEXT if pages > 0 else PREVIOUS
        walk = [f"click[{PREVIOUS}]"] * up + [f"click[{turn}]"] * abs(pages)
        return (*walk, f"click[{target.asin}]", *self._finish(PageView("item"), target))

    def _finish(self, view: PageView, product: Product) -> tuple[str, ...]:
        """From a page of the product: choose what is not chosen yet, then buy."""
        chosen = dict(view.chosen)
        missing = [
            f"click[{option_label(product, name, value)}]"
            for name, value in self._choices(product)
            if chosen.get(name) != value
        ]
        up = [] if view.page == "item" else [f"click[{PREVIOUS}]"]
        return (*up, *missing, f"click[{BUY}]")

    def _target(self, hits: tuple[Product, ...]) -> Product | None:
        """The first perfect purchase among ``hits``, else the wanted product if it is there."""
        perfect = next((product for product in hits if self._is_perfect(product)), None)
        if perfect is None and self.goal.product in hits:
            return self.goal.product
        return perfect

    def _suits(self, product: Product) -> bool:
        return product is self.goal.product or self._is_perfect(product)

    def _is_perfect(self, product: Product) -> bool:
        if product.price > self.goal.price_cap:
            return False
        values = [value for _, value in self._choices(product)]
        return score(self.goal, product, values).total >= 1.0

    def _choices(self, product: Product) -> Choices:
        """For each wanted option the value to choose: the very one, else the first that matches."""
        choices: dict[str, str] = {}
        for wanted_name, wanted in self.goal.options:
            fitting = [
                (value != wanted, name != wanted_name, name, value)
                for name, values in product.options
                for value in values
                if name not in choices and options_match(wanted, value)
            ]
            if fitting:
                *_, name, value = min(fitting, key=lambda fit: fit[:2])
                choices[name] = value
        return tuple(choices.items())

    def _wish(self, rng: np.random.Generator) -> str:
        goal = self.goal
        wanted = ", ".join((*goal.attributes, *(value for _, value in goal.options)))
        opening = pick(rng, "I want", "the task is", "wanted:", "I need")
        return f"{opening} {goal.product.query}, {wanted}{_under(goal.price_cap)}."

    def _explain_results(self, view: PageView, rng: np.random.Generator) -> str:
        target = self._target(on_page(view, self._layout))
        if target is None:
            where = pick(rng, "nothing here fits", "no match on this page", "none of these will do")
            return f"{where} for {', '.join(self.goal.attributes)} {self.goal.product.query}."
        fits = pick(rng, "fits", "looks right", "is what I want", "matches")
        limit = _under(self.goal.price_cap)
        return f"{target.asin} {fits}: {self.goal.product.query} at {target.price_text}{limit}."

    def _explain_item(self, view: PageView, product: Product, rng: np.random.Generator) -> str:
        if not self._suits(product):
            why = pick(rng, "is not what I want", "does not fit", "is the wrong one")
            return f"{product.asin} {why}: I need {', '.join(self.goal.attributes)}."
        chosen = dict(view.chosen)
        missing = [
            f"{name} {value}" for name, value in self._choices(product) if chosen.get(name) != value
        ]
        if missing:
            return (
                f"{product.asin} {pick(rng, 'still needs', 'wants', 'lacks')} {', '.join(missing)}."
            )
        ready = pick(rng, "all is chosen", "nothing is missing", "it is as wanted")
        return f"{product.asin} at {product.price_text}: {ready}."


def _under(cap: float) -> str:
    return f", under ${cap:.0f}" if math.isfinite(cap) else ""
