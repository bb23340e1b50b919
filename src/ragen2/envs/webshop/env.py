"""WebShop: find a product through search, result and item pages, choose its options, buy it.

The expert knows the reward: it finds a perfect purchase through the pages, and says why.
"""

from __future__ import annotations

import math
import re
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from ragen2.envs.base import Env, Episode, Step
from ragen2.envs.toolkit.wording import pick
from ragen2.envs.webshop.catalogue import Catalogue, Product, read_catalogue
from ragen2.envs.webshop.generation import generated_catalogue
from ragen2.envs.webshop.goals import (
    DrawnGoals,
    Goal,
    GoalSource,
    ListedGoals,
    options_match,
    read_human_goals,
    score,
    synthetic_goals,
)
from ragen2.envs.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    Layout,
    PageView,
    click,
    clickable,
    on_page,
    option_label,
    render,
    results,
)

NUM_GENERATED = 1000
GoalKind = Literal["drawn", "synthetic", "human"]
_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)


class WebShop(Env):
    """Buy what the task asks for: right kind, attributes, options and price."""

    kind: Literal["WebShop"] = "WebShop"
    max_turns: int = Field(10, ge=1, description="replies the agent may write in one episode")
    max_actions: int = Field(10, ge=1, description="actions the environment takes in one episode")
    reward: Literal["raw", "thresholded"] = Field(
        "raw",
        description="raw pays the score of the purchase, thresholded 1 for a perfect one only",
    )
    products: str | None = Field(
        None, description="product file, as WebShop publishes it; none: a generated catalogue"
    )
    attributes: str | None = Field(
        None, description="WebShop's attribute file (items_ins), where products do not hold them"
    )
    human_goals: str | None = Field(None, description="file of goals that people wrote")
    goals: GoalKind | None = Field(
        None,
        description="drawn at random, the catalogue's synthetic ones, or human ones; by default "
        "human where human_goals is given, synthetic for a product file, else drawn",
    )
    num_products: int | None = Field(
        None, ge=10, description="products to generate (1000), or the most to read of a file (all)"
    )
    catalogue_seed: int = Field(0, ge=0, description="which generated catalogue")
    page_size: int = Field(10, ge=1, description="products on a page of results")
    max_hits: int = Field(50, ge=1, description="products a search finds at most")
    title_chars: int = Field(80, ge=20, description="characters of a title on a page of results")
    text_chars: int = Field(600, ge=20, description="characters of a description or feature page")
    repeat_task: bool = Field(
        True, description="show the task on every page, not only on the search page"
    )

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reward_kind: ClassVar[Literal["binary", "dense"]] = "dense"

    @model_validator(mode="after")
    def _settings_agree(self) -> WebShop:
        if self.goals == "human" and self.human_goals is None:
            raise ValueError("goals = 'human' needs human_goals, the path of their file")
        if self.human_goals is not None and self.goals not in (None, "human"):
            raise ValueError(f"human_goals is given but goals is {self.goals!r}; drop one")
        if self.products is None and (self.attributes or self.human_goals):
            raise ValueError("attributes and human_goals go with a product file; set products")
        return self

    @property
    def instruction(self) -> str:
        """Rules and a worked reply."""
        return (
            f"{self.rules} "
            "Example: <think>wanted: a red mug</think><answer>search[red mug]</answer>"
        )

    @property
    def rules(self) -> str:
        """What to buy, how to get there, and what is paid."""
        pay = (
            "You are paid for each part of the task it meets."
            if self.reward == "raw"
            else "You are paid only if it meets the whole task."
        )
        return (
            "You shop for what the task asks. On the search page, search[words] lists products. "
            "click[text] clicks anything in [brackets]: a product id, an option, a button. Open a "
            "product, choose the options the task names, mind the price, then click[buy now]: that "
            f"ends the task. {pay} You have {self.max_actions} actions."
        )

    @property
    def action_forms(self) -> tuple[str, ...]:
        """Searching and clicking."""
        return ("search[words]", "click[text]")

    def start(self, seed: int, luck: int) -> ShopEpisode:
        """The goal of ``seed``; nothing in a shop depends on ``luck``."""
        del luck
        return ShopEpisode(self, self.catalogue, self.goal_source.at(seed))

    @property
    def catalogue(self) -> Catalogue:
        """What this shop sells; made or read once, then kept."""
        if self.products is None:
            return generated_catalogue(self.num_products or NUM_GENERATED, self.catalogue_seed)
        return _catalogue_of(self.products, self.attributes, self.num_products)

    @property
    def goal_source(self) -> GoalSource:
        """Where the goals come from."""
        by_default: GoalKind = "synthetic" if self.products else "drawn"
        return _goal_source(self.catalogue, self.goals or by_default, self.human_goals)

    @property
    def layout(self) -> Layout:
        """How much a page shows."""
        return Layout(self.page_size, self.title_chars, self.text_chars)


@lru_cache(maxsize=4)
def _catalogue_of(source: str, attributes: str | None, num_products: int | None) -> Catalogue:
    return read_catalogue(source, attributes, num_products)


@lru_cache(maxsize=8)
def _goal_source(catalogue: Catalogue, kind: GoalKind, human_goals: str | None) -> GoalSource:
    if human_goals is not None:
        return ListedGoals(read_human_goals(human_goals, catalogue), human_goals)
    if kind == "synthetic":
        return ListedGoals(synthetic_goals(catalogue.products), catalogue.source)
    return DrawnGoals(catalogue.products, catalogue.source)


class ShopEpisode(Episode):
    """One visit to the shop."""

    def __init__(self, env: WebShop, catalogue: Catalogue, goal: Goal) -> None:
        self.env = env
        self.catalogue = catalogue
        self.goal = goal
        self.view = PageView()
        self._layout = env.layout
        self._expert = Expert(goal, catalogue, self._layout, env.max_hits)

    @property
    def done(self) -> bool:
        """Something was bought."""
        return self.view.page == "end"

    @property
    def raw_score(self) -> float:
        """The published reward of the purchase; 0 before there is one."""
        if not self.done or self.view.product is None:
            return 0.0
        return score(self.goal, self.view.product, (value for _, value in self.view.chosen)).total

    @property
    def observation(self) -> str:
        """The task and the page; it ends with what can be clicked."""
        page = render(self.view, self._layout)
        shows_task = self.env.repeat_task or self.view.page == "search"
        return f"Task: {self.goal.text}\n{page}" if shows_task else page

    def step(self, action: str) -> Step:
        """Search or click; only buying pays, and it ends the visit."""
        after = self._after(action)
        if after is None or self.done:
            return Step(0.0, self.done, self._solved, valid=after is not None, effective=False)
        before, self.view = self.view, after
        raw = self.raw_score
        reward = raw if self.env.reward == "raw" else float(raw >= 1.0)
        return Step(reward, self.done, self._solved, effective=after != before)

    def expert(self) -> tuple[str, ...]:
        """The fewest actions to a perfect purchase."""
        return self._expert.plan(self.view)

    def random_action(self, rng: np.random.Generator) -> str:
        """Search for a few words of the task, or click anything there is."""
        labels = clickable(self.view, self._layout)
        if labels:
            return f"click[{labels[int(rng.integers(len(labels)))]}]"
        words = re.findall(r"\w+", self.goal.text) or ["things"]
        count = min(len(words), int(rng.integers(1, 5)))
        return f"search[{' '.join(words[int(i)] for i in rng.permutation(len(words))[:count])}]"

    def explain(self, actions: tuple[str, ...], rng: np.random.Generator) -> str:
        """The wish, what the page says of it, and the actions that follow."""
        return self._expert.explain(self.view, actions, rng)

    @property
    def _solved(self) -> bool:
        return self.raw_score >= 1.0

    def _after(self, action: str) -> PageView | None:
        """Where ``action`` leads; None when this page has no such action."""
        parsed = _ACTION.fullmatch(action)
        if parsed is None:
            return None
        verb, target = parsed[1].lower(), parsed[2]
        if verb == "click":
            return click(self.view, target, self._layout)
        words = " ".join(target.split())
        if self.view.page != "search" or not words:
            return None
        return results(words, self.catalogue.search(words, self.env.max_hits))


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
