"""The tools of the agents: plain functions, whose docstrings and types the model sees."""

LETTERS = {
    4137: "I love the lamp, it works perfectly.",
    4174: "The phone arrived broken and I want a refund.",
    4211: "The desk arrived early and looks fantastic.",
    4248: "I hate this blender, it stopped working after two days.",
    4285: "I love this phone, best I ever bought.",
    4322: "The lamp is ten days late and no one answers.",
}


def read_letter(order: int) -> str:
    """Read what the customer wrote about an order."""
    if order not in LETTERS:
        raise KeyError(f"There is no letter about order {order}.")  # the model sees this and can try again
    return f"Order {order}: {LETTERS[order]}"
