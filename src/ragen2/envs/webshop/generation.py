"""The generated shop: the same numbers always give the same catalogue.

The table of kinds says what can vary. Within a kind no two attributes and no two option values match
each other under the fuzzy rule of the reward, so a wrong choice always costs something; a test holds
the table to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ragen2.envs.toolkit.wording import pick
from ragen2.envs.webshop.catalogue import Catalogue, OptionGroup, Product
from ragen2.seeding import stream

MIN_ATTRIBUTES, MAX_ATTRIBUTES = 3, 5
MIN_VALUES, MAX_VALUES = 2, 4
TITLE_ATTRIBUTES = 2
"""Attributes named in the title; the others are found on the pages of features and description."""

_PRAISE = ("works as promised", "good value", "I would buy it again", "smaller than I thought")
_BULLETS = ("{}: tested in daily use", "Truly {}", "{} by design", "Made to be {}")
_PURPOSES = (
    "for every day",
    "for home and travel",
    "as a gift",
    "for careful owners",
    "made to last",
)


@dataclass(frozen=True, slots=True)
class ProductKind:
    """A kind of product and what can vary within it."""

    name: str
    """One of them: ``travel mug``."""
    query: str
    """Several of them, as a shopper asks: ``travel mugs``."""
    path: str
    prices: tuple[float, float]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Names in ``OPTION_VALUES``; a product has some of them."""

    @property
    def category(self) -> str:
        """The department: the first part of the path, in lower case."""
        return self.path.split(" › ")[0].lower()


@lru_cache(maxsize=8)
def generated_catalogue(num_products: int, seed: int) -> Catalogue:
    """``num_products`` products, spread evenly over all kinds, in mixed order."""
    rng = stream("WebShop", "catalogue", seed)
    products = _draw_products(rng, num_products)
    return Catalogue(products, f"generated from seed {seed}")


def _draw_products(rng: np.random.Generator, num_products: int) -> Iterator[Product]:
    titles: set[str] = set()
    digits = len(str(num_products))
    # Ids and kinds are mixed apart from each other: an id must not tell what it stands for.
    for number, turn in enumerate(rng.permutation(num_products)):
        kind = KINDS[int(turn) % len(KINDS)]
        attributes = _some(rng, kind.attributes, MIN_ATTRIBUTES, MAX_ATTRIBUTES)
        title = _draw_title(rng, kind, attributes)
        while title in titles:
            title = f"{title} mark {int(rng.integers(2, 1000))}"
        titles.add(title)
        yield _describe(rng, f"P{number:0{digits}d}", title, kind, attributes)


def _describe(
    rng: np.random.Generator, asin: str, title: str, kind: ProductKind, attributes: tuple[str, ...]
) -> Product:
    hidden = attributes[TITLE_ATTRIBUTES:]
    shown = attributes[:-1] if len(attributes) > MIN_ATTRIBUTES else attributes
    wish = _some(rng, attributes, 1, 3)
    return Product(
        asin=asin,
        title=title,
        description=_draw_description(rng, kind, hidden),
        bullets=tuple(pick(rng, *_BULLETS).format(attribute) for attribute in shown),
        prices=(_draw_price(rng, kind),),
        category=kind.category,
        query=kind.query,
        product_category=f"{kind.path} › {kind.query.title()}",
        options=_draw_options(rng, kind),
        attributes=attributes,
        rating=round(float(rng.uniform(2.5, 5.0)), 1),
        reviews=_some(rng, _PRAISE, 0, 2),
        instruction=f"Find me {', '.join(wish)} {kind.query}",
        instruction_attributes=wish,
    )


def _draw_title(rng: np.random.Generator, kind: ProductKind, attributes: tuple[str, ...]) -> str:
    named = ", ".join(attributes[:TITLE_ATTRIBUTES])
    return f"{pick(rng, *BRANDS)} {pick(rng, *SERIES)} {kind.name}, {named}"


def _draw_description(rng: np.random.Generator, kind: ProductKind, hidden: tuple[str, ...]) -> str:
    qualities = " and ".join(hidden)
    return f"A {kind.name} {pick(rng, *_PURPOSES)}, {qualities}."


def _draw_price(rng: np.random.Generator, kind: ProductKind) -> float:
    """Spread evenly in the logarithm: most of a kind are cheap, a few are dear."""
    low, high = np.log(kind.prices)
    return round(float(np.exp(rng.uniform(low, high))), 2)


def _draw_options(rng: np.random.Generator, kind: ProductKind) -> tuple[OptionGroup, ...]:
    """Some options of the kind with some of their values, all in the order of the table."""
    groups = []
    for name in sorted(_some(rng, kind.options, 1, len(kind.options)), key=kind.options.index):
        known = OPTION_VALUES[name]
        values = _some(rng, known, MIN_VALUES, MAX_VALUES)
        groups.append((name, tuple(sorted(values, key=known.index))))
    return tuple(groups)


def _some(
    rng: np.random.Generator, items: tuple[str, ...], least: int, most: int
) -> tuple[str, ...]:
    """Between ``least`` and ``most`` different items, in random order."""
    count = int(rng.integers(least, min(most, len(items)) + 1))
    return tuple(items[int(index)] for index in rng.permutation(len(items))[:count])


def _kind(
    names: str, path: str, prices: tuple[float, float], attributes: str, options: str
) -> ProductKind:
    """A row of the table; ``names`` is ``one/several``, lists are separated by commas."""
    name, query = names.split("/")
    return ProductKind(
        name, query, path, prices, tuple(attributes.split(", ")), tuple(options.split(", "))
    )


OPTION_VALUES: dict[str, tuple[str, ...]] = {
    "color": ("black", "white", "red", "blue", "green", "yellow", "purple", "orange", "pink"),
    "wood": ("oak", "maple", "bamboo", "teak", "birch"),
    "metal": ("brass", "chrome", "titanium", "iron"),
    "clothing size": ("xs", "s", "m", "l", "xl"),
    "shoe size": ("6", "7", "8", "9", "11"),
    "bed size": ("twin", "full", "queen", "king"),
    "capacity": ("350 ml", "half liter", "1 quart", "2 gallon"),
    "length": ("3 feet", "1 meter", "10 inches", "five yards"),
    "scent": ("lavender", "vanilla", "eucalyptus", "jasmine", "unscented"),
    "flavor": ("chocolate", "strawberry", "peanut", "ginger", "lemon", "sea salt"),
    "pack": ("single", "twin pack", "family box", "bulk case"),
    "storage": ("64 gb", "1 terabyte", "half a tb"),
    "plug": ("us plug", "europe", "british style"),
    "style": ("classic", "modern", "vintage", "sporty"),
    "age": ("toddler", "teen", "adult"),
}
"""Values of each option; a product offers some of them."""

_BRANDS_TEXT = """
Norvik Castella Brightway Umbra Talwind Kestrel Orlanda Pinemark Zephyr Lumina Hartwell Solvane
Meridor Quillon Fernby Aldous Ravenna Tessaro Wickham Yarrow Boreal Cindra Delmont Everby"""
BRANDS = tuple(_BRANDS_TEXT.split())
_SERIES_TEXT = """
Alder Breeze Cobalt Dune Ember Falcon Glacier Harbor Iris Juniper Koa Lark Meadow Nova Onyx
Prairie Quartz River Summit Tundra Umber Vista Willow Xenon Yonder Zenith Anchor Beacon Crest
Drift"""
SERIES = tuple(_SERIES_TEXT.split())

KINDS: tuple[ProductKind, ...] = (
    _kind("travel mug/travel mugs", "Kitchen › Drinkware › Mugs", (9, 48),
          "leak proof, bpa free, double wall, dishwasher safe, "
          "easy grip, vacuum insulated, wide mouth",
          "color, capacity"),
    _kind("frying pan/frying pans", "Kitchen › Cookware › Pans", (14, 120),
          "non stick, oven safe, induction ready, scratch resistant, "
          "stay cool handle, even heating",
          "metal, length"),
    _kind("chef knife/kitchen knives", "Kitchen › Cutlery › Knives", (12, 160),
          "stainless steel, full tang, razor sharp, rust proof, hand forged, well balanced",
          "wood, length, pack"),
    _kind("storage jar/storage jars", "Kitchen › Storage › Jars", (6, 45),
          "air tight, crystal clear, stackable shape, lead free, "
          "freezer friendly, moisture barrier",
          "capacity, pack"),
    _kind("bookcase/bookcases", "Furniture › Living Room › Shelves", (45, 380),
          "solid wood, easy assembly, wall mounted, open back, scuff guard, adjustable shelves",
          "wood, style"),
    _kind("desk lamp/desk lamps", "Furniture › Lighting › Lamps", (15, 95),
          "touch control, eye caring, dimmable light, usb charging, flexible neck, energy saving",
          "color, plug, style"),
    _kind("bed sheet/bed sheets", "Furniture › Bedding › Sheets", (18, 110),
          "machine washable, wrinkle free, deep pocket, long staple cotton, "
          "cooling weave, hypoallergenic",
          "bed size, color"),
    _kind("area rug/area rugs", "Furniture › Floors › Rugs", (25, 290),
          "stain repellent, low pile, hand woven, pet friendly, fade proof, anti slip",
          "color, style"),
    _kind("garden hose/garden hoses", "Garden › Watering › Hoses", (14, 90),
          "kink free, burst proof, drinking water safe, light weight, frost hardy, quick connect",
          "length, color"),
    _kind("plant pot/plant pots", "Garden › Planters › Pots", (8, 70),
          "self watering, frost resistant, drainage hole, hand painted, uv stable, indoor outdoor",
          "color, capacity, style"),
    _kind("pruning shear/pruning shears", "Garden › Hand Tools › Shears", (10, 60),
          "carbon steel, sap groove, one hand lock, shock absorbing, left handed, teflon coated",
          "color, pack"),
    _kind("headphone/headphones", "Electronics › Audio › Headphones", (19, 320),
          "noise cancelling, fast charging, sweat proof, foldable design, deep bass, low latency",
          "color, style"),
    _kind("power bank/power banks", "Electronics › Power › Batteries", (15, 110),
          "high speed, airline approved, wireless charging, pocket sized, "
          "led display, surge protected",
          "color, plug"),
    _kind("memory card/memory cards", "Electronics › Storage › Cards", (8, 150),
          "shock proof, x ray safe, 4k ready, temperature tolerant, lifetime warranty, write lock",
          "storage, pack"),
    _kind("charging cable/charging cables", "Electronics › Power › Cables", (6, 40),
          "braided nylon, gold plated, tangle free, data transfer, reinforced tip, magnetic end",
          "length, color, pack"),
    _kind("shampoo/shampoos", "Beauty › Hair › Cleansing", (6, 48),
          "sulfate free, paraben free, color safe, anti dandruff, volume boosting, vegan formula",
          "scent, pack"),
    _kind("face cream/face creams", "Beauty › Skin › Moisturizers", (9, 90),
          "fragrance free, fast absorbing, dermatologist tested, oil control, "
          "spf protection, anti aging",
          "pack, age"),
    _kind("scented candle/scented candles", "Beauty › Home Fragrance › Candles", (7, 55),
          "soy wax, long burning, smoke free, lead free wick, hand poured, reusable glass",
          "scent, color"),
    _kind("electric toothbrush/electric toothbrushes", "Beauty › Oral Care › Brushes", (18, 170),
          "pressure sensor, two minute timer, travel case, soft bristles, quiet motor, gum care",
          "color, plug"),
    _kind("hoodie/hoodies", "Fashion › Tops › Hoodies", (16, 85),
          "fleece lined, kangaroo pocket, slim fit, pre shrunk, organic cotton, full zip",
          "clothing size, color"),
    _kind("running shoe/running shoes", "Fashion › Shoes › Running", (35, 190),
          "arch support, breathable mesh, reflective trim, slip on, memory foam, water repellent",
          "shoe size, color"),
    _kind("rain jacket/rain jackets", "Fashion › Outerwear › Jackets", (28, 210),
          "seam sealed, packable size, hooded collar, wind proof, pit zips, recycled fabric",
          "clothing size, color, style"),
    _kind("leather belt/leather belts", "Fashion › Accessories › Belts", (11, 75),
          "full grain, reversible strap, nickel free, hand stitched, "
          "ratchet buckle, scratch hiding",
          "color, length"),
    _kind("granola bar/granola bars", "Grocery › Snacks › Bars", (5, 42),
          "gluten free, high protein, nut free, low sugar, plant based, non gmo",
          "flavor, pack"),
    _kind("ground coffee/ground coffees", "Grocery › Drinks › Coffee", (7, 50),
          "fair trade, dark roast, single origin, low acid, water process decaf, bird friendly",
          "flavor, pack"),
    _kind("pasta sauce/pasta sauces", "Grocery › Pantry › Sauces", (4, 30),
          "no added salt, dairy free, slow cooked, vine ripened, keto friendly, kosher certified",
          "pack, style"),
    _kind("yoga mat/yoga mats", "Sports › Fitness › Mats", (14, 110),
          "extra thick, sticky surface, closed cell, latex free, alignment marks, carry strap",
          "color, length"),
    _kind("camping tent/camping tents", "Sports › Outdoors › Tents", (55, 420),
          "four season, easy setup, mosquito net, ultra light, storm tested, blackout lining",
          "color, style"),
    _kind("bike helmet/bike helmets", "Sports › Cycling › Helmets", (22, 180),
          "impact tested, air vents, removable visor, rear light, dial adjust, magnetic clasp",
          "color, age"),
    _kind("fountain pen/fountain pens", "Office › Writing › Pens", (8, 140),
          "iridium nib, smear proof, refillable ink, brass body, gift boxed, fine point",
          "color, metal"),
    _kind("office chair/office chairs", "Office › Seating › Chairs", (70, 450),
          "lumbar support, mesh back, tilt lock, height adjustable, silent casters, padded arms",
          "color, style"),
    _kind("notebook/notebooks", "Office › Paper › Notebooks", (4, 36),
          "lay flat, acid free, dotted pages, bleed proof, elastic closure, numbered sheets",
          "color, pack, style"),
    _kind("building block set/building block sets", "Toys › Construction › Blocks", (12, 140),
          "rounded edges, water based paint, storage bin, idea booklet, "
          "award winning, sensory play",
          "wood, age"),
    _kind("puzzle/puzzles", "Toys › Games › Puzzles", (9, 55),
          "linen finish, precise cut, glow effect, panorama picture, extra piece cover, eco board",
          "style, age"),
    _kind("dog bed/dog beds", "Pets › Dogs › Beds", (20, 150),
          "orthopedic foam, chew resistant, removable cover, calming rim, "
          "odor blocking, waterproof base",
          "color, clothing size"),
    _kind("cat litter box/cat litter boxes", "Pets › Cats › Litter", (16, 190),
          "odor sealing, top entry, carbon filter, wipe clean, foldable lid, scatter guard",
          "color, capacity"),
    _kind("cordless drill/cordless drills", "Tools › Power Tools › Drills", (38, 260),
          "brushless motor, variable speed, keyless chuck, work light, belt hook, battery gauge",
          "plug, color, pack"),
    _kind("tape measure/tape measures", "Tools › Measuring › Tapes", (5, 38),
          "magnetic hook, auto lock, double printed, rubber case, nylon blade, drop tested",
          "length, color"),
    _kind("door handle/door handles", "Tools › Hardware › Handles", (10, 85),
          "finger print safe, fire rated, tool free fitting, corrosion proof, "
          "soft spring, privacy bolt",
          "metal, style"),
    _kind("car seat cover/car seat covers", "Automotive › Interior › Covers", (24, 160),
          "airbag compatible, heat resistant, universal fit, side pockets, "
          "spill proof, breathable back",
          "color, style"),
)  # fmt: skip
"""Forty kinds: enough that words tell them apart, few enough that each has rivals."""
