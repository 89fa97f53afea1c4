"""Reading adapter.toml and methods.toml: a declaration is read, and a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import experiments
from harness.driver import catalog
from harness.driver.declarations import Listed, ReadableBy, Speed, Writes
from harness.run.errors import UsageError

GOOD = """
[framework]
class = "adapters.toy.framework:Toy"
devices = ["cpu", "cuda"]
packages = ["toy"]
[methods.plain]
class = "adapters.toy.plain:Plain"
covers = "full"
format = "zip"
writes = "shares"
readable_by = "any-world"
speed = "fastest-known"
listed = "default"
description = "one file"
[methods.plain.options]
crc = true
level = 3
[methods.broken]
class = "adapters.toy.broken:Broken"
covers = "weights+optimizer"
format = "folder"
asynchronous = true
experiments = ["cost", "resume"]
description = "raises"
[[methods.broken.expected_failures]]
reason = "ValueError.*trackable"
precision = "bf16-mixed"
race = true
"""

ENGINE = """
[methods.engine]
class = "adapters.{framework}.engine:Engine"
covers = "full"
format = "zip"
writes = "shares"
description = "an engine of several frameworks"
"""


def _write(folder: Path, text: str, name: str = "toy") -> Path:
    path = folder / name / "adapter.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def _write_engine(folder: Path, text: str = ENGINE) -> Path:
    path = folder / "engine" / "methods.toml"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_a_declaration_is_read(tmp_path: Path) -> None:
    toy = catalog.read(_write(tmp_path, GOOD))
    assert toy.name == "toy"
    assert toy.class_path == "adapters.toy.framework:Toy"
    assert toy.devices == ("cpu", "cuda")
    assert toy.packages == ("toy",)
    assert not toy.floor
    plain = toy.methods["plain"]
    assert plain.name == "plain"
    assert plain.options == {"crc": True, "level": 3}
    assert plain.expected_failures == ()
    assert plain.writes is Writes.SHARES
    assert plain.readable_by is ReadableBy.ANY_WORLD
    assert plain.speed is Speed.FASTEST_KNOWN
    assert plain.listed is Listed.DEFAULT
    broken = toy.methods["broken"]
    assert broken.covers == "weights+optimizer"
    assert broken.asynchronous
    assert broken.experiments == ("cost", "resume")
    [expected] = broken.expected_failures
    assert expected.reason == "ValueError.*trackable"
    assert expected.experiment is None
    assert expected.precision == "bf16-mixed"
    assert expected.race


def test_a_trait_that_is_not_declared_is_the_usual_one(tmp_path: Path) -> None:
    broken = catalog.read(_write(tmp_path, GOOD)).methods["broken"]
    assert broken.writes is Writes.ONE_RANK
    assert broken.readable_by is ReadableBy.SAME_WORLD
    assert broken.speed is Speed.USUAL
    assert broken.listed is Listed.ALWAYS
    assert not broken.own_process
    assert not broken.store


def test_a_framework_knows_which_of_its_methods_are_stores(tmp_path: Path) -> None:
    text = GOOD.replace('description = "raises"', 'description = "raises"\nstore = true')
    toy = catalog.read(_write(tmp_path, text))
    assert toy.methods["broken"].store
    assert toy.stores == {"broken"}


def test_a_store_cannot_be_the_default_method(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD.replace('listed = "default"', 'listed = "default"\nstore = true'))
    with pytest.raises(UsageError, match=r"methods\.plain: a store cannot be the default method"):
        catalog.read(path)


@pytest.mark.parametrize(
    ("writes", "takes_shards", "writes_parts", "copies", "copies_when_sharded"),
    [
        ("one-rank", False, False, 1, 1),
        ("shares", False, True, 1, 1),
        ("shares", True, True, 1, 1),
        ("every-rank", False, False, 4, 1),
        ("every-rank", True, True, 4, 1),
    ],
)
def test_who_writes_says_how_many_copies_a_checkpoint_holds(
    tmp_path: Path,
    writes: str,
    takes_shards: bool,
    writes_parts: bool,
    copies: int,
    copies_when_sharded: int,
) -> None:
    shards = f"takes_shards = {str(takes_shards).lower()}"
    text = GOOD.replace('writes = "shares"', f'writes = "{writes}"\n{shards}')
    method = catalog.read(_write(tmp_path, text)).methods["plain"]
    assert method.writes_parts is writes_parts
    assert method.copies(4, sharded=False) == copies
    assert method.copies(4, sharded=True) == copies_when_sharded


@pytest.mark.parametrize(
    ("listed", "is_default", "must_be_named"),
    [
        ("default", True, False),
        ("always", False, False),
        ("when-named", False, True),
        ("test-double", False, True),
    ],
)
def test_listed_says_when_a_method_is_taken(
    tmp_path: Path, listed: str, is_default: bool, must_be_named: bool
) -> None:
    other = "default" if listed != "default" else "always"
    text = GOOD.replace('listed = "default"', f'listed = "{other}"').replace(
        'format = "folder"', f'format = "folder"\nlisted = "{listed}"'
    )
    method = catalog.read(_write(tmp_path, text)).methods["broken"]
    assert method.is_default is is_default
    assert method.must_be_named is must_be_named


def test_an_expected_failure_concerns_the_rows_it_names(tmp_path: Path) -> None:
    [expected] = catalog.read(_write(tmp_path, GOOD)).methods["broken"].expected_failures
    assert expected.concerns("cost", "bf16-mixed")
    assert not expected.concerns("cost", "float32")
    only_cost = expected.model_copy(update={"precision": None, "experiment": "cost"})
    assert only_cost.concerns("cost", "float32")
    assert not only_cost.concerns("sizes", "float32")


@pytest.mark.parametrize("name", experiments.names())
def test_any_experiment_may_be_named(tmp_path: Path, name: str) -> None:
    text = GOOD.replace("race = true", f'race = true\nexperiment = "{name}"')
    [expected] = catalog.read(_write(tmp_path, text)).methods["broken"].expected_failures
    assert expected.experiment == name


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'format = "zip"',
            'formt = "zip"',
            r"methods\.plain: unknown key 'formt'; did you mean 'format'\?",
        ),
        (
            'packages = ["toy"]',
            'package = ["toy"]',
            r"framework: unknown key 'package'; did you mean 'packages'\?",
        ),
        ("[framework]", "[frameworks]", r"unknown key 'frameworks'; did you mean 'framework'\?"),
        ('format = "zip"', 'name = "other"', r"methods\.plain: unknown key 'name'"),
        (
            'covers = "full"',
            'covers = "ful"',
            r"methods\.plain\.covers: .*'weights', 'weights\+optimizer' or 'full', not 'ful'",
        ),
        ('"cuda"]', '"gpu"]', r"framework\.devices\.1: .*'cpu' or 'cuda', not 'gpu'"),
        ('["cpu", "cuda"]', "[]", r"framework\.devices: "),
        (
            'writes = "shares"',
            'writes = "share"',
            r"methods\.plain\.writes: .*'one-rank', 'shares' or 'every-rank', not 'share'",
        ),
        (
            '"any-world"',
            "true",
            r"methods\.plain\.readable_by: .*'same-world' or 'any-world', not True",
        ),
        (
            '"fastest-known"',
            '"fast"',
            r"methods\.plain\.speed: .*'usual', 'fastest-known' or 'slow', not 'fast'",
        ),
        (
            'listed = "default"',
            'listed = "never"',
            r"listed: .*'default', 'always', 'when-named' or 'test-double', not 'never'",
        ),
        ("asynchronous = true", 'asynchronous = "yes"', r"broken\.asynchronous: .*not 'yes'"),
        ("asynchronous = true", "asynchronous = 1", r"broken\.asynchronous: .*not 1"),
        ('description = "one file"', "", r"methods\.plain\.description: field required"),
        ('"adapters.toy.plain:Plain"', '"adapters/toy/plain.py"', r"methods\.plain\.class: "),
        (
            '"adapters.toy.plain:Plain"',
            '"adapters.{framework}.plain:Plain"',
            r"methods\.plain\.class: ",
        ),
        (
            '"ValueError.*trackable"',
            '"(unclosed"',
            r"methods\.broken\.expected_failures\.0\.reason: not a regular expression",
        ),
        (
            "race = true",
            'experiment = "costs"',
            r"expected_failures\.0\.experiment: unknown experiment 'costs'; did you mean 'cost'\?",
        ),
        (
            '["cost", "resume"]',
            '["cost", "resum"]',
            r"methods\.broken\.experiments\.1: unknown experiment 'resum'; did you mean 'resume'",
        ),
        (
            'listed = "default"',
            "",
            r'exactly one method must have `listed = "default"`, and 0 have it \(none\)',
        ),
        (
            "asynchronous = true",
            'listed = "default"',
            r"exactly one method .*, and 2 have it \(broken, plain\)",
        ),
        ("[framework]", "[framework", "not valid TOML"),
    ],
)
def test_a_broken_declaration_names_file_and_key(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in GOOD
    path = _write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(UsageError, match=expected) as caught:
        catalog.read(path)
    assert str(path) in str(caught.value)


def test_an_engine_gives_its_methods_to_the_frameworks_that_have_a_file_for_it(
    tmp_path: Path,
) -> None:
    _write_engine(tmp_path)
    _write(tmp_path, GOOD, "with")
    _write(tmp_path, GOOD, "without")
    (tmp_path / "with" / "engine.py").touch()
    known = catalog.frameworks(tmp_path)
    assert list(known) == ["with", "without"]
    assert list(known["with"].methods) == ["plain", "broken", "engine"]
    assert list(known["without"].methods) == ["plain", "broken"]
    engine = known["with"].methods["engine"]
    assert engine.name == "engine"
    assert engine.class_path == "adapters.with.engine:Engine"
    assert engine.writes is Writes.SHARES


def test_a_mistake_in_an_engines_declaration_names_its_file(tmp_path: Path) -> None:
    engine = _write_engine(tmp_path, ENGINE.replace("covers", "cover"))
    path = _write(tmp_path, GOOD)
    (path.parent / "engine.py").touch()
    with pytest.raises(
        UsageError, match=r"methods\.engine: unknown key 'cover'; did you mean"
    ) as e:
        catalog.read(path)
    assert str(engine) in str(e.value)


def test_a_framework_and_its_engine_must_not_declare_the_same_method(tmp_path: Path) -> None:
    engine = _write_engine(tmp_path, ENGINE.replace("methods.engine", "methods.plain"))
    path = _write(tmp_path, GOOD)
    (path.parent / "engine.py").touch()
    with pytest.raises(UsageError, match=r"methods\.plain: .* declares this method too") as caught:
        catalog.read(path)
    assert str(path) in str(caught.value)
    assert str(engine) in str(caught.value)


def test_frameworks_are_the_folders_with_a_declaration(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, "zebra")
    _write(tmp_path, GOOD, "ant")
    (tmp_path / "__pycache__").mkdir()
    assert list(catalog.frameworks(tmp_path)) == ["ant", "zebra"]


def test_floors_are_the_frameworks_that_say_so(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, "ant")
    _write(tmp_path, GOOD.replace("packages", "floor = true\npackages"), "plain-files")
    assert catalog.floors(tmp_path) == {"plain-files"}


def test_a_selection_keeps_the_order_given_and_means_all_when_empty(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        _write(tmp_path, GOOD, name)
    known = catalog.frameworks(tmp_path)
    assert [entry.name for entry in catalog.select(known, ["c", "a", "c"])] == ["c", "a"]
    assert [entry.name for entry in catalog.select(known, [])] == ["a", "b", "c"]


def test_an_unknown_framework_is_named(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, "pytorch")
    with pytest.raises(UsageError, match="unknown framework 'pytorsh'; did you mean 'pytorch'?"):
        catalog.select(catalog.frameworks(tmp_path), ["pytorsh"])


def test_the_declarations_of_this_repository_are_sound() -> None:
    known = catalog.frameworks()
    assert "raw" in known
    for framework in known.values():
        methods = framework.methods.values()
        class_paths = [framework.class_path, *(method.class_path for method in methods)]
        for class_path in class_paths:
            assert class_path.startswith(f"adapters.{framework.name}."), class_path


def test_every_framework_of_this_repository_has_the_methods_of_deepfreeze() -> None:
    for framework in catalog.frameworks().values():
        ours = [name for name in framework.methods if name.startswith("deepfreeze")]
        assert ours == [
            "deepfreeze",
            "deepfreeze-sync",
            "deepfreeze-memory",
            "deepfreeze-store",
            "deepfreeze-store-one",
        ]


# Processes of these experiments save more than once.
SAVE_AGAIN = {"cost", "faults", "sizes", "train"}


def test_a_method_whose_second_save_fails_says_so_for_all_experiments_that_save_again() -> None:
    for framework in catalog.frameworks().values():
        for method in framework.methods.values():
            failures = method.expected_failures
            of_any_precision = [each for each in failures if each.precision is None]
            named = {each.experiment for each in of_any_precision if each.experiment is not None}
            if {"cost", "train"} <= named:
                assert named >= SAVE_AGAIN, method.name
