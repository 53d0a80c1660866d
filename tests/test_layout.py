"""The import rules: stages know nothing of each other, programs alone cross them."""

import ast
import pathlib

import pytest

import gshard_nmt

PACKAGE = pathlib.Path(gshard_nmt.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# Folder or module -> the parts of the package that it may import.
ALLOWED = {
    "data/": ("data", "errors", "files", "ranges"),
    "model/": ("model", "spmd.sharding", "errors", "ranges"),
    "spmd/": ("spmd", "errors", "files", "ranges"),
    "decoding/beam_search.py": ("errors",),
    "evaluation/bleu.py": ("errors", "evaluation.bleu"),
    "inspection/": ("inspection", "spmd", "errors", "files", "web_page"),
    "run/checkpoint.py": ("errors",),
    "evaluation/report.py": ("errors", "evaluation.bleu", "files", "web_page"),
}

# What only these import as they are imported themselves; elsewhere inside a function.
EAGER_ONLY_IN = {
    "jax": ("spmd/", "model/"),
    "tensorflow": ("spmd/", "model/", "decoding/beam_search.py"),
    "tensorflow_text": (),
    "matplotlib": (),
    "plotly": (),
    "orbax": (),
}


def imports(module: str, eager: bool = False) -> set[str]:
    """Dotted names that a module imports, `from a import b` as both a and a.b.

    With `eager` only those of its top level, so neither in functions nor under `TYPE_CHECKING`.
    """
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body if eager else ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the full name."
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(node.module or "")
    return names


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(tuple(ALLOWED))])
def test_a_stage_imports_no_other_stage(module):
    allowed = next(parts for start, parts in ALLOWED.items() if module.startswith(start))
    allowed_names = tuple(f"gshard_nmt.{part}" for part in allowed)
    # `from gshard_nmt.spmd import sharding` also names the package, which holds nothing.
    packages = {name.rpartition(".")[0] for name in allowed_names}
    ours = {name for name in imports(module) if name.split(".")[0] == "gshard_nmt"}
    wrong = {name for name in ours - packages if not is_within(name, allowed_names)}
    assert not wrong, f"{module} may import of gshard_nmt only {allowed}"


def test_gin_has_one_importer():
    users = [module for module in MODULES if any(is_within(n, ("gin",)) for n in imports(module))]
    assert users == ["settings/gin_reader.py"]


@pytest.mark.parametrize("module", MODULES)
def test_slow_imports_wait_until_they_are_needed(module):
    for library, homes in EAGER_ONLY_IN.items():
        if not (homes and module.startswith(homes)):
            eager = {name for name in imports(module, eager=True) if is_within(name, (library,))}
            assert not eager, f"{module} imports {library} at its top level"


def test_the_command_line_loads_before_any_library():
    for module in (
        "cli/commands.py",
        "cli/runner.py",
        "settings/values.py",
        "settings/config.py",
        "errors.py",
    ):
        eager = {name.split(".")[0] for name in imports(module, eager=True)}
        assert not eager & {"numpy", "gin", "rich", "scipy", "sacrebleu", "sentencepiece"}, module


def test_there_is_no_drawer_of_odds_and_ends():
    assert not [module for module in MODULES if "util" in module or "helper" in module]


def test_the_rules_name_modules_that_exist():
    for start in ALLOWED:
        assert any(module.startswith(start) for module in MODULES), start
