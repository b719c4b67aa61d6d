"""Analyzes the sources' syntax trees: lists short definitions used once and imports inside functions.

    python tests/definitions.py         prints both lists

A definition is a top-level function or class, or a method, except `main`, dunder methods and methods that several
classes define (an interface). Its lines run from `def` or `class` to its end, with the docstring, without decorators.
A use is a name or attribute outside the definition itself, also in annotations; imports and tests do not count.
Names are resolved through the module's imports and `self.x` within its class. Any other attribute counts as a use of
every method of that name, so the listed definitions are used at most once.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
JUDGED = ("foundation", "electra_sampler", "data_prep", "pretrain", "finetune")
USERS = (*JUDGED, "quickstart", "bench")
SHORT = 5
"""Most lines of a short definition."""
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

Definition = tuple[str, str]
"""Module and qualified name."""


def modules(*packages: str) -> dict[str, ast.Module]:
    """Syntax tree of every module by dotted name, with quoted annotations parsed."""
    paths = [path for package in packages for path in sorted((REPOSITORY / package).rglob("*.py"))]
    return {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): Unquoted().visit(ast.parse(path.read_text()))
        for path in paths
    }


class Unquoted(ast.NodeTransformer):
    """Replaces quoted annotations by their parsed expressions."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = self.unquoted(node.annotation)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = self.unquoted(node.annotation) or node.annotation
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = self.unquoted(node.returns)
        return self.generic_visit(node)

    @staticmethod
    def unquoted(annotation: ast.expr | None) -> ast.expr | None:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return ast.parse(annotation.value, mode="eval").body
        return annotation


def definitions(trees: dict[str, ast.Module]) -> dict[Definition, ast.stmt]:
    found: dict[Definition, ast.stmt] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, (*FUNCTION, ast.ClassDef)):
                found[module, node.name] = node
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, FUNCTION) and part.name[:2] != "__"]
                found |= {(module, f"{node.name}.{part.name}"): part for part in methods}
    return found


class Uses(ast.NodeVisitor):
    """Collects the definitions that a module uses."""

    def __init__(self, module: str, tree: ast.Module, known: dict[Definition, ast.stmt]) -> None:
        self.module, self.known, self.found = module, known, list[Definition]()
        self.inside: list[str] = []
        self.names = {name: (home, name) for home, name in known if home == module and "." not in name}
        self.aliases: dict[str, str] = {}
        self.modules: set[str] = set()
        """Modules imported as a whole, whose attributes are not methods."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.modules |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.names[alias.asname or alias.name] = (str(node.module), alias.name)
                    self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.methods = defaultdict(list)
        for definition in known:
            if "." in definition[1]:
                self.methods[definition[1].split(".")[1]].append(definition)
        self.visit(tree)

    def visit_definition(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        node.decorator_list = []
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = visit_definition

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.use(self.names.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        home, name = self.names.get(owner, ("", ""))
        candidates = [(self.aliases.get(owner, ""), node.attr), (home, f"{name}.{node.attr}")]
        if owner in ("self", "cls") and self.inside:
            candidates.append((self.module, f"{self.inside[0]}.{node.attr}"))
        exact = [candidate for candidate in candidates if candidate in self.known]
        for definition in exact or (() if owner in self.modules else self.methods[node.attr]):
            self.use(definition)

    def use(self, definition: Definition | None) -> None:
        within = {(self.module, ".".join(self.inside[:depth])) for depth in (1, 2)}
        if definition in self.known and definition not in within:
            self.found.append(definition)


def short_and_used_once() -> Iterator[str]:
    """Short definitions used once: module, name and lines."""
    trees = modules(*USERS)
    known = definitions(trees)
    uses = Counter(definition for module, tree in trees.items() for definition in Uses(module, tree, known).found)
    shared = Counter(name.split(".")[1] for _, name in known if "." in name)
    for (module, name), node in known.items():
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        interface = "." in name and shared[name.split(".")[1]] > 1
        judged = module.split(".")[0] in JUDGED and name != "main" and not interface
        if judged and lines <= SHORT and uses[module, name] == 1:
            yield f"{module}.{name}: {lines} lines"


def imports_inside_functions() -> Iterator[str]:
    """Import statements of project modules inside functions: module, line and imported name."""
    for module, tree in modules(*JUDGED).items():
        functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTION)]
        inside = {node.lineno: node for function in functions for node in ast.walk(function) if _imports(node)}
        yield from (f"{module}:{line}: {ast.unparse(node)}" for line, node in sorted(inside.items()))


def _imports(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in USERS for alias in node.names)
    return isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in USERS


if __name__ == "__main__":
    for found in ([*short_and_used_once()], [*imports_inside_functions()]):
        print(*found, len(found), "", sep="\n")
