"""What the demo's agents read: short notes of customers."""

_PRODUCTS = ("blender", "lamp", "phone", "desk")
_PRAISE = (
    "I love the {}, it works perfectly.",
    "The {} arrived early and looks fantastic.",
    "Best {} I ever bought, thank you!",
)
_COMPLAINTS = (
    "The {} arrived broken and I want a refund.",
    "I hate this {}, it stopped working after two days.",
    "The {} is ten days late and nobody answers.",
)


_COUNT = 24


def notes() -> list[str]:
    """Notes about different orders, products and moods."""
    written = []
    for number in range(_COUNT):
        said = (_PRAISE if number * 5 % 8 < 4 else _COMPLAINTS)[number % 3]
        product = _PRODUCTS[(number * 7 + number // 4) % 4]
        written.append(f"Order {4100 + 37 * number}: {said.format(product)}")
    return written
