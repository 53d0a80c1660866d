"""The import rules: who may import whom, without a circle; and slow libraries are imported late.

Every import counts: at the top of a module, inside a function, under `TYPE_CHECKING`, and a module
that is named by a string.
"""

import ast
import collections
import functools
import graphlib
import pathlib
import re

import pytest

import gshard_nmt

PACKAGE = pathlib.Path(gshard_nmt.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

EXAMPLES = sorted(f"../examples/{path.name}" for path in PACKAGE.parent.glob("examples/*.py"))

GROUND = (
    *("errors", "files", "json_shape", "outputs", "paths", "quantities", "ranges", "reading"),
    "terminal",
)
PROGRAMS = (
    *("harvest", "prepare", "check_corpus", "plan_mixture", "show_batches", "translate_corpus"),
    *("train", "add_language", "baselines", "decode", "evaluate", "checkpoints", "export"),
    *("import_model", "inspect_config", "serve"),
)

# The parts of the package that the modules of a folder, or one module, may import. A module with a
# rule of its own may import less or more than its folder. The package itself, for its version, is
# free to all.
ALLOWED: dict[str, tuple[str, ...]] = {
    **{f"{module}.py": GROUND for module in GROUND},
    "data/": ("data", *GROUND),
    "spmd/": ("spmd", *GROUND),
    "model/": ("model", "spmd.sharding", "errors", "ranges"),
    "settings/": ("settings", "data", "model", "spmd", *GROUND),
    "run/": ("run", "settings", "data", "model", "spmd", *GROUND),
    "decoding/": ("decoding", "run", "settings", "data", "model", "spmd", *GROUND),
    "decoding/beam_search.py": ("decoding.ranking", "model.lazy_tensorflow"),
    "exchange/": ("exchange", "decoding", "settings", "data", "model", "spmd", *GROUND),
    "exchange/run_folders.py": ("run", "settings", "data", "model", *GROUND),
    "evaluation/": ("evaluation", "decoding", "run", "settings", "data", "model", "spmd", *GROUND),
    "evaluation/metrics.py": ("data.language_codes", "errors"),
    "evaluation/significance.py": ("evaluation.metrics",),
    "serving/": ("serving", "data", *GROUND),
    "inspection/": ("inspection", "settings", "spmd", *GROUND),
    "inspection/products.py": ("inspection", "settings", "model", "spmd", *GROUND),
    # These two look at a whole run, the others at a program.
    "inspection/doctor.py": ("run", "settings", "data", "model", "spmd", *GROUND),
    "inspection/equivalence.py": ("inspection", "run", "settings", "model", "spmd", *GROUND),
    "cli/": (
        *("cli", *PROGRAMS, "inspection", "decoding", "serving", "run"),
        *("settings", "spmd", "data", *GROUND),
    ),
    "__main__.py": ("cli",),
    "__init__.py": (),
    # A program may use every stage, and no other program.
    **{
        f"{program}.py": (
            *("evaluation", "exchange", "decoding", "inspection", "run", "serving"),
            *("settings", "data", "model", "spmd", *GROUND),
        )
        for program in PROGRAMS
    },
}

# What an example may use: annotations and programs, the loop over equal layers, the cost of a program.
EXAMPLES_MAY_IMPORT = (
    *("gshard_nmt.spmd", "gshard_nmt.model.stack", "gshard_nmt.inspection.program_cost"),
    *("gshard_nmt.errors", "gshard_nmt.files", "gshard_nmt.outputs", "gshard_nmt.quantities"),
)

# These libraries are slow to import. Only these modules import them at their top level; others do
# it inside a function.
EAGER_ONLY_IN = {
    "jax": ("spmd/", "model/"),
    "tensorflow": ("spmd/", "model/", "decoding/beam_search.py"),
    "tensorflow_text": (),
    "matplotlib": (),
    "orbax": (),
}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"))


def is_module(name: str) -> bool:
    path = PACKAGE.parent / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports(module: str, eager: bool = False) -> set[str]:
    """Returns what a module imports (`eager`: on import of it), `from a import b` as both a and a.b."""
    names: set[str] = set()
    for node in tree_of(module).body if eager else ast.walk(tree_of(module)):
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{module} imports relatively; write the full name."
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
                names.add(node.module or "")
            case ast.Constant(value=str(name)) if name.startswith("gshard_nmt.") and is_module(
                name
            ):
                names.add(name)
    return names


def modules_imported(module: str) -> set[str]:
    """Returns the modules of this package that a module imports, as dotted names."""
    names = {name for name in imports(module) if name.split(".")[0] == "gshard_nmt"}
    modules = {name for name in names if is_module(name)}
    # `from gshard_nmt.spmd import sharding` also names the package, which holds nothing.
    packages = {name for name in modules if any(other.startswith(f"{name}.") for other in modules)}
    return modules - packages - {"gshard_nmt"}


def dotted(module: str) -> str:
    return "gshard_nmt." + module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def rule_of(module: str) -> tuple[str, ...]:
    """Returns what a module may import: by its own rule, or else by that of its folder."""
    return ALLOWED[max((start for start in ALLOWED if module.startswith(start)), key=len)]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_folder_may(module):
    allowed = tuple(f"gshard_nmt.{part}" for part in rule_of(module))
    wrong = {name for name in modules_imported(module) if not is_within(name, allowed)}
    assert not wrong, f"{module} may import of gshard_nmt only {rule_of(module)}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_imports_the_public_interface_alone(example):
    wrong = {n for n in modules_imported(example) if not is_within(n, EXAMPLES_MAY_IMPORT)}
    assert not wrong, f"{example} may import only {EXAMPLES_MAY_IMPORT}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_shows_its_help_before_it_loads_tensorflow_or_jax(example):
    assert not {n for n in imports(example, eager=True) if is_within(n, ("jax", "tensorflow"))}


def test_there_is_no_circle():
    graph = {dotted(module): modules_imported(module) - {dotted(module)} for module in MODULES}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) >= len(MODULES)


def test_nothing_but_the_command_line_imports_a_program():
    programs = tuple(f"gshard_nmt.{program}" for program in PROGRAMS)
    importers = {m for m in MODULES if any(is_within(n, programs) for n in modules_imported(m))}
    assert all(module.startswith("cli/") for module in importers), importers


def test_gin_has_one_importer():
    users = [module for module in MODULES if any(is_within(n, ("gin",)) for n in imports(module))]
    assert users == ["settings/gin_reader.py"]


@pytest.mark.parametrize("module", MODULES)
def test_slow_imports_wait_until_they_are_needed(module):
    for library, homes in EAGER_ONLY_IN.items():
        if not (homes and module.startswith(homes)):
            eager = {name for name in imports(module, eager=True) if is_within(name, (library,))}
            assert not eager, f"{module} imports {library} at its top level"


def test_no_console_reads_names_of_the_user_as_markup():
    """rich drops the text in brackets from "run [1]" otherwise."""
    calls = [
        (module, call)
        for module in MODULES
        for call in re.findall(r"\bConsole\(([^)]*)", (PACKAGE / module).read_text())
    ]
    assert not [module for module, call in calls if "markup=False" not in call]


def test_there_is_no_drawer_of_odds_and_ends():
    assert not [module for module in MODULES if "util" in module or "helper" in module]


def test_the_top_of_the_package_holds_programs_and_the_ground_alone():
    top = {module.removesuffix(".py") for module in MODULES if "/" not in module}
    assert top == {*PROGRAMS, *GROUND, "__init__", "__main__"}


def test_the_rules_name_modules_that_exist():
    for start in ALLOWED:
        assert any(module.startswith(start) for module in MODULES), start


ROOT = PACKAGE.parent

# The names under which packages are imported, if they differ from the names that pip knows.
IMPORT_NAMES = {
    "absl-py": "absl",
    "gin-config": "gin",
    "markdown-it-py": "markdown_it",
    "ml-dtypes": "ml_dtypes",
    "orbax-checkpoint": "orbax",
}


def test_every_dependency_is_imported():
    (requires,) = [
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "REQUIRES"
    ]
    packages = {re.split(r"[<>=]", requirement)[0] for requirement in requires}
    imported = {name.split(".")[0] for module in MODULES for name in imports(module)}
    unused = {name for name in packages if IMPORT_NAMES.get(name, name) not in imported}
    # Exported models will use it; see setup.py.
    assert unused == {"tensorflow-text"}


# Upper bounds of size, so that one person can know the whole. A feature enters by making room: lower a
# bound when code leaves, and raise none.
MOST_LINES = {"gshard_nmt": 42_794, "tests": 40_853, "scripts": 2_090, "benchmarks": 3_710}
MOST_FILES = 241
MOST_LINES_OF_DOCS, MOST_WORDS_OF_DOCS = 3_750, 43_500
MOST_LINES_OF_A_FILE = 450
MOST_MODULES = {"": 26, "decoding": 15, "model": 32, "spmd": 19, "inspection": 15}
"""Modules in a row, of folders that have more than 14."""


def lines_of(paths) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


@pytest.mark.parametrize("folder", MOST_LINES)
def test_no_folder_grows(folder):
    paths = [*(ROOT / folder).rglob("*.py")]
    assert lines_of(paths) <= MOST_LINES[folder]
    assert not [path for path in paths if lines_of([path]) > MOST_LINES_OF_A_FILE]


def test_the_package_has_few_small_files_and_short_rows():
    assert len(MODULES) <= MOST_FILES
    rows = collections.Counter(
        m.rpartition("/")[0] for m in MODULES if not m.endswith("__init__.py")
    )
    assert not {row: n for row, n in rows.items() if n > MOST_MODULES.get(row, 14)}


def test_the_pages_stay_short():
    pages = [*(ROOT / "docs").rglob("*.md")]
    assert lines_of(pages) <= MOST_LINES_OF_DOCS
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    assert words <= MOST_WORDS_OF_DOCS
