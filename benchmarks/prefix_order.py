"""What arranging the rows and fields of a table lets prompts share, and how long it takes.

    python -m benchmarks.prefix_order [--out JSON]

Made-up tables with a fixed seed. A share is of all characters in the cells, in the order of the table, with rows moved
only, with greedy groups throughout, and as `arrange` does it by default. Small tables are also compared with the best
arrangement that there is: `greedy_of_best` is what the greedy one shares of that.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from batch_agent.plan.prefix_order import Arrangement, arrange, shared_prefix
from benchmarks import report

Table = list[list[str]]

ROUNDS = 3
SMALL_TABLES = 200
UNBOUNDED = 10**12
WORDS = (
    "lamp",
    "desk",
    "works",
    "well",
    "broke",
    "after",
    "one",
    "week",
    "would",
    "buy",
    "again",
    "for",
    "my",
    "mother",
)


def words(chance: random.Random, number: int) -> str:
    return " ".join(chance.choices(WORDS, k=number))


def zipf(chance: random.Random, values: int) -> int:
    """A value's number, where the n-th is 1/n as frequent as the first."""
    return min(int(values ** chance.random()), values) - 1


def reviews(chance: random.Random, rows: int, products: int) -> Table:
    """A join: the review's own fields first, then its user's, then its product's, whose category has a department."""
    categories = [[f"category {n}", f"department {n % 4}"] for n in range(max(2, products // 20))]
    goods = [
        [f"P{n:06}", words(chance, 6), words(chance, 60), f"brand {chance.randrange(40)}", *chance.choice(categories)]
        for n in range(products)
    ]
    users = [[f"user {n}", chance.choice(["DE", "FR", "US", "IN"])] for n in range(max(2, rows // 4))]
    return [
        [words(chance, 30), str(chance.randint(1, 5)), *chance.choice(users), *goods[zipf(chance, products)]]
        for _ in range(rows)
    ]


def short_reviews(chance: random.Random, rows: int) -> Table:
    """The same with five fields: text, stars, product, brand, category."""
    return [[row[0][:40], row[1], row[5], row[7], row[8]] for row in reviews(chance, rows, rows // 20)]


def skewed(chance: random.Random, rows: int, fields: int) -> Table:
    """Categories that have nothing to do with each other, some values frequent and most rare."""
    values = [[words(chance, chance.randint(1, 8)) + f" {n}" for n in range(3 ** (f % 7 + 1))] for f in range(fields)]
    return [[column[zipf(chance, len(column))] for column in values] for _ in range(rows)]


def wide(chance: random.Random, rows: int, fields: int) -> Table:
    """A quarter of the fields is the same in all rows, a quarter hangs on a key, a quarter has few values."""
    keys = [[f"{words(chance, 5)} {n}" for _ in range(fields // 4)] for n in range(rows // 25)]
    table = []
    for number in range(rows):
        constant = [f"constant {n}" for n in range(fields // 4)]
        few = [str(chance.randrange(4)) for _ in range(fields // 4)]
        many = [f"{number} {words(chance, 3)}" for _ in range(fields // 4)]
        table.append([cell for four in zip(many, few, chance.choice(keys), constant, strict=True) for cell in four])
    return table


def questions(chance: random.Random, rows: int) -> Table:
    documents = [words(chance, 2000) for _ in range(rows // 20)]
    return [[words(chance, 8) + f" {n}?", chance.choice(documents)] for n in range(rows)]


def unrelated(chance: random.Random, rows: int, fields: int, values: int) -> Table:
    """Texts at random, of random lengths: nothing but chance to find."""
    texts = [[f"{n}" + "x" * chance.randint(0, 30) for n in range(values)] for _ in range(fields)]
    return [[chance.choice(column) for column in texts] for _ in range(rows)]


LARGE: dict[str, Callable[[random.Random], Table]] = {
    "reviews joined with products, 10,000 x 10": lambda chance: reviews(chance, 10_000, 500),
    "reviews, 100,000 x 5": lambda chance: short_reviews(chance, 100_000),
    "questions about documents, 10,000 x 2": lambda chance: questions(chance, 10_000),
    "skewed categories, 10,000 x 10": lambda chance: skewed(chance, 10_000, 10),
    "wide, 2,000 x 40": lambda chance: wide(chance, 2000, 40),
    "unrelated, 5 values, 10,000 x 10": lambda chance: unrelated(chance, 10_000, 10, 5),
    "unrelated, 5,000 values, 10,000 x 10": lambda chance: unrelated(chance, 10_000, 10, 5000),
    "nested halves, 10,000 x 10": lambda _: [[str(row >> field) for field in range(10)] for row in range(10_000)],
    "all distinct, 10,000 x 10": lambda _: [[f"{row} {field}" for field in range(10)] for row in range(10_000)],
    "all equal, 10,000 x 10": lambda _: [["same"] * 10] * 10_000,
}

SMALL: dict[str, Callable[[random.Random], Table]] = {
    "reviews joined with products, 4 to 10 x 10": lambda chance: reviews(chance, chance.randint(4, 10), 3),
    "skewed categories, 4 to 10 x 6": lambda chance: skewed(chance, chance.randint(4, 10), 6),
    "unrelated, 3 values, 4 to 10 x 4": lambda chance: unrelated(chance, chance.randint(4, 10), 4, 3),
    "unrelated, 4 values, 10 x 6": lambda chance: unrelated(chance, 10, 6, 4),
}


def timed(table: Table) -> tuple[Arrangement, float]:
    """With the processor's time: others may use the machine."""
    start = time.process_time()
    found = arrange(table)
    return found, time.process_time() - start


def shares(table: Table) -> dict[str, float]:
    width = len(table[0])
    as_it_is = shared_prefix(table, range(len(table)), [range(width)] * len(table))
    rows_only, greedy = arrange(table, free_fields=False), arrange(table, effort=0)
    runs = [timed(table) for _ in range(ROUNDS)]
    found = runs[0][0]
    return {
        "as_it_is": round(as_it_is / found.total, 4),
        "rows_only": round(rows_only.shared / found.total, 4),
        "greedy": round(greedy.shared / found.total, 4),
        "default": round(found.shared / found.total, 4),
        "cpu_seconds": round(statistics.median(seconds for _, seconds in runs), 3),
    }


def beside_the_best(make: Callable[[random.Random], Table], chance: random.Random) -> dict[str, float]:
    ratios: list[float] = []
    default_ratios, seconds, best_shares = [], [], []
    while len(ratios) < SMALL_TABLES:
        table = make(chance)
        best = arrange(table, effort=UNBOUNDED)
        if best.shared == 0:
            continue
        found, took = timed(table)
        ratios.append(arrange(table, effort=0).shared / best.shared)
        default_ratios.append(found.shared / best.shared)
        best_shares.append(best.shared / best.total)
        seconds.append(took)
    return {
        "tables": len(ratios),
        "best_share": round(statistics.mean(best_shares), 4),
        "greedy_of_best_mean": round(statistics.mean(ratios), 4),
        "greedy_of_best_min": round(min(ratios), 4),
        "greedy_is_best": round(sum(ratio == 1 for ratio in ratios) / len(ratios), 4),
        "default_of_best_min": round(min(default_ratios), 4),
        "cpu_seconds_median": round(statistics.median(seconds), 4),
        "cpu_seconds_max": round(max(seconds), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: benchmarks/results/ordering.json)")
    out = parser.parse_args().out
    numbers = {
        "large": {name: shares(make(random.Random(name))) for name, make in LARGE.items()},
        "small": {name: beside_the_best(make, random.Random(name)) for name, make in SMALL.items()},
    }
    print(json.dumps(numbers, indent=2))
    print(report.write("ordering", numbers, out))


if __name__ == "__main__":
    main()
