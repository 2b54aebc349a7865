"""A search over programs with a plain mutation operator, where others put a language model.

    python examples/evolve_policy/evolve.py --generations 8 --children 4 --out runs/evolved

Each generation mutates the best programs so far, scores the children with `serving_gym.policy_score` on validation
blocks, and keeps the best. A mutation changes a constant, an operator or a figure in the program's function `shed`, or
wraps a part of it in a new term.
"""

from __future__ import annotations

import argparse
import ast
import random
from dataclasses import dataclass
from pathlib import Path

import serving_gym

MUTATED = "shed"  # function of the program
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Pow)


@dataclass(frozen=True)
class Candidate:
    """A program and its score."""

    source: str
    score: float


def mutate(source: str, rng: random.Random) -> str:
    """A program that differs in one place of its function `shed`."""
    tree = ast.parse(source)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == MUTATED)
    names = [argument.arg for argument in function.args.args]
    result = next(node for node in function.body if isinstance(node, ast.Return))
    assert result.value is not None
    called = {node.func for node in ast.walk(result.value) if isinstance(node, ast.Call)}
    places = [node for node in ast.walk(result.value) if isinstance(node, ast.expr) and node not in called]
    result.value = _Change(rng.choice(places), names, rng).visit(result.value)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Change(ast.NodeTransformer):
    """Changes one expression.

    Args:
        place: Which.
        names: Figures that an expression may use.
        rng: Draws the change.
    """

    def __init__(self, place: ast.expr, names: list[str], rng: random.Random) -> None:
        self.place, self.names, self.rng = place, names, rng

    def visit(self, node: ast.AST) -> ast.AST:
        """The expression, changed where it is the place."""
        return self._changed(self.place) if node is self.place else super().generic_visit(node)

    def _changed(self, node: ast.expr) -> ast.expr:
        rng = self.rng
        if isinstance(node, ast.Constant) and rng.random() < 0.8:
            return ast.Constant(float(f"{node.value * rng.lognormvariate(0.0, 0.7):.4g}"))
        if isinstance(node, ast.Name) and rng.random() < 0.6:
            return ast.Name(rng.choice(self.names), ast.Load())
        if isinstance(node, ast.BinOp) and rng.random() < 0.5:
            return ast.BinOp(node.left, rng.choice(_OPERATORS)(), node.right)
        other = rng.choice(
            [ast.Name(rng.choice(self.names), ast.Load()), ast.Constant(round(rng.uniform(0, 2), 3))]
        )
        if rng.random() < 0.3:
            function = ast.Name(rng.choice(["min", "max"]), ast.Load())
            return ast.Call(function, [node, other], [])
        return ast.BinOp(node, rng.choice(_OPERATORS)(), other)


def evolve(
    source: str, generations: int, children: int, parents: int, seed: int, folder: Path, **options: object
) -> list[Candidate]:
    """The best candidate after each generation, that of the first program first.

    Args:
        source: The program that the search begins with.
        generations: How many.
        children: Programs of a generation.
        parents: The best that are mutated.
        seed: Of the mutations.
        folder: Where the programs are written.
        options: Of `serving_gym.policy_score`.
    """
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)

    def scored(program: str, name: str) -> Candidate:
        path = folder / f"{name}.py"
        path.write_text(program, encoding="utf-8")
        result = serving_gym.policy_score(path, **options)  # type: ignore[arg-type]
        shown = result.artifacts.get("error", f"{result.score:.2f}")
        print(f"{name:12}  {shown}", flush=True)
        return Candidate(program, result.score)

    pool = [scored(source, "first")]
    best, tried = [pool[0]], {source}
    for generation in range(generations):
        made: list[str] = []
        while len(made) < children:
            child = mutate(rng.choice(pool).source, rng)
            if child not in tried:
                tried.add(child)
                made.append(child)
        pool += [scored(program, f"{generation}_{i}") for i, program in enumerate(made)]
        pool = sorted(pool, key=lambda each: -each.score)[:parents]
        best.append(pool[0])
    (folder / "best.py").write_text(best[-1].source, encoding="utf-8")
    return best


def main() -> None:
    """Runs the search."""
    parser = argparse.ArgumentParser(description="Evolves an admission policy by plain mutation.")
    parser.add_argument("--program", type=Path, default=Path(__file__).parent / "admission.py")
    parser.add_argument("--task", default="routing_overload")
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--children", type=int, default=4)
    parser.add_argument("--parents", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1000, help="of an episode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/evolved"))
    said = parser.parse_args()
    best = evolve(
        said.program.read_text(encoding="utf-8"),
        said.generations,
        said.children,
        said.parents,
        said.seed,
        said.out,
        task=said.task,
        blocks=said.blocks,
        **{"workload.num_requests": said.requests},
    )
    print(f"return {best[0].score:.2f} -> {best[-1].score:.2f}; {said.out / 'best.py'}")


if __name__ == "__main__":
    main()
