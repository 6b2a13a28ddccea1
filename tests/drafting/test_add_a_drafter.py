"""The page that teaches third parties: what it prints is installed and run."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
from cli_runs import headstart
from drafting_toys import ToySequence, check_tree

from headstart import LLM
from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.drafting.options import NoOptions
from headstart.drafting.registry import create_drafter
from headstart.errors import ConfigError, DrafterError, HeadstartError
from headstart.models.aliases import Alias

PAGE = Path(__file__).parents[2] / "docs" / "add_a_drafter.md"


class Letters:
    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(r"^```(?:python|toml)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.fixture
def installed(blocks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The page's package on the path, with the metadata an installer writes from its pyproject.toml."""
    module, pyproject, *_ = blocks
    project = tomllib.loads(pyproject)["project"]
    (tmp_path / "phrase_drafter.py").write_text(module, encoding="utf-8")
    info = tmp_path / f"phrase_drafter-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\n",
        encoding="utf-8",
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phrases.txt").write_text("kind regards\nsincerely yours\n", encoding="utf-8")
    yield
    sys.modules.pop("phrase_drafter", None)


@pytest.mark.usefixtures("installed")
def test_the_pages_package_works_as_printed(
    blocks: list[str], tiny_model_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Alias, "installed_file", lambda self: tiny_model_dir)
    names: dict[str, object] = {}
    exec(compile(blocks[2], str(PAGE), "exec"), names)
    printed = re.search(r"# (.*)$", blocks[2], flags=re.M)
    assert printed is not None
    assert capsys.readouterr().out.splitlines()[0] == printed.group(1)
    assert names["llm"].drafter_name == "phrases"

    drafter = create_drafter("phrases", DraftContext(128, tokenizer=Letters()), path="phrases.txt")
    sequences = [ToySequence(i, Letters().encode(text)) for i, text in enumerate(("with ki", "well, si", "abc"))]
    budgets = [DraftBudget(30, 30), DraftBudget(5, 3), DraftBudget(4, 4)]
    for sequence in sequences:
        drafter.begin(sequence)
    trees = drafter.propose(sequences, budgets)
    assert ["".join(map(chr, tree.tokens)) for tree in trees] == ["nd regards", "nce", ""]
    for tree, budget in zip(trees, budgets, strict=True):
        check_tree(tree, budget, 128)


@pytest.mark.model
@pytest.mark.usefixtures("installed")
def test_the_pages_guesses_hold_as_it_says(blocks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    phrases = re.search(r"^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    said = re.search(r"acceptance_rate\)  # (.*) \[\.\.\.\] (.*)$", blocks[2], flags=re.M)
    assert phrases is not None
    assert said is not None
    Path("phrases.txt").write_text(phrases[1], encoding="utf-8")
    exec(compile(blocks[2], str(PAGE), "exec"), {})
    printed = capsys.readouterr().out.split("\n", 1)[1]
    assert printed.startswith(said[1])
    assert printed.rstrip().endswith(said[2])


@pytest.mark.usefixtures("installed")
def test_its_options_are_checked(blocks: list[str]) -> None:
    context = DraftContext(128, tokenizer=Letters())
    with pytest.raises(ConfigError, match="'phrases' has no option 'file'; its options are path"):
        create_drafter("phrases", context, file="phrases.txt")
    with pytest.raises(ConfigError, match="'phrases' lacks an option"):
        create_drafter("phrases", context)
    with pytest.raises(ConfigError, match="tokenizer"):
        create_drafter("phrases", DraftContext(128), path="phrases.txt")


FAULTS = {
    "in the code": (
        "self.rest.get(",
        "self.rest.gte(",
        "failed with AttributeError: 'dict' object has no attribute 'gte'",
    ),
    "at its start": ("context.require_tokenizer()", "context.tokeniser()", "failed with AttributeError"),
    "no trees": (
        "DraftTree.chain(guess[: min(budget.nodes, budget.depth)])",
        "guess",
        "gave list in place of a DraftTree",
    ),
    "too many": ("min(budget.nodes, budget.depth)", "99", "nodes; .* were allowed"),
    "a part is missing": ("def observe", "def watch", "has no observe"),
    "not Python": ("def begin(", "def begin)", "cannot be loaded from phrase_drafter"),
    "options": ("@dataclass(frozen=True)", "", "Options of drafter 'phrases' is no dataclass"),
    "layers": ("needs = TargetSignals()", "needs = TargetSignals(taps=(99,))", "of layer 99, and this target has 3"),
    "no signals": ("needs = TargetSignals()", "needs = None", "needs of drafter 'phrases' is None, no TargetSignals"),
    **{
        f"tokens are changed by {change}": (
            "(self, outcomes):\n        pass",
            f"(self, outcomes):\n        tokens = outcomes[0].sequence.tokens\n        {change}",
            "failed with TypeError: the tokens of a sequence are the engine's",
        )
        for change in (
            *("tokens.append(1)", "tokens.extend([1])", "tokens.insert(0, 1)", "tokens.remove(97)", "tokens.pop()"),
            *("tokens.clear()", "tokens.sort()", "tokens.reverse()", "tokens[0] = 1", "tokens[:] = []"),
            *("del tokens[0]", "tokens += [1]", "tokens *= 2"),
        )
    },
    **{
        f"draws from {law}": (
            "guess[: min(budget.nodes, budget.depth)]",
            f"guess[:1] if budget.nodes else [], (lambda torch: {law})(__import__('torch'))",
            "draft_probs are no tensor of rows of float64 probabilities of all 259 tokens",
        )
        for law in (
            *("[[1.0] + 258 * [0.0]]", "torch.full((1, 259), 1 / 259)", "torch.full((1, 258), 1 / 258).double()"),
            *(
                "torch.full((1, 259), float('nan')).double()",
                "torch.zeros(1, 259).double()",
                "torch.zeros(0, 259).double()",
            ),
            *(
                "torch.full((1, 259), 1 / 259).double() * torch.tensor([3, -1, 0] + 256 * [1])",
                "torch.eye(259)[:1].double()",
            ),
        )
    },
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_packages_own_fault_is_called_its_own(
    blocks: list[str], fault: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    right, wrong, said = FAULTS[fault]
    (tmp_path / "phrase_drafter.py").write_text(blocks[0].replace(right, wrong), encoding="utf-8")
    importlib.invalidate_caches()
    (tmp_path / "phrases.txt").write_text("ab" * 200, encoding="utf-8")
    with pytest.raises(HeadstartError, match=said) as raised:
        LLM(str(tiny_model_dir), "phrases", drafter_options={"path": "phrases.txt"}).generate("abab")
    assert "'phrases'" in str(raised.value)
    if isinstance(raised.value, DrafterError):
        assert "of package phrase-drafter 0.1 failed" in str(raised.value)
        assert raised.value.__cause__ is not None


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_fault_amid_an_answer_is_told_on_a_line_of_its_own(
    blocks: list[str], command: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    source = blocks[0].replace("outcomes):\n        pass", "outcomes):\n        del self.rest[len(self.rest) - 4]")
    source = source.replace("self.rest = {", "self.rest = dict(enumerate('abcd')) | {")
    (tmp_path / "phrase_drafter.py").write_text(source, encoding="utf-8")
    importlib.invalidate_caches()
    asked = ("Hello", "--ignore-eos") if command == "generate" else ()
    result = headstart(command, "-m", tiny_model_dir, "-d", "phrases:path=phrases.txt", *asked, stdin="Hello\nHello\n")
    assert result.exit_code == 1
    text, *said = result.output.split("\nError: ")
    assert text.strip()
    assert len(said) == (1 if command == "generate" else 2)
    assert all("'phrases' of package phrase-drafter 0.1 failed with KeyError" in each for each in said)


@pytest.mark.usefixtures("installed")
def test_a_state_for_each_sequence_is_drafted_from_as_printed(blocks: list[str]) -> None:
    names: dict[str, object] = {}
    exec(compile(blocks[3], str(PAGE), "exec"), names)
    drafter = names["RepeatDrafter"](DraftContext(128), NoOptions())  # type: ignore[operator]
    sequence = ToySequence(0, [1, 2, 3])
    drafter.begin(sequence)
    (tree,) = drafter.propose([sequence], [DraftBudget(2, 5)])
    assert tree.tokens.tolist() == [3, 3]


def test_names_on_the_page_exist() -> None:
    for dotted in set(re.findall(r"`(headstart\.[\w.]+)`", PAGE.read_text(encoding="utf-8"))):
        module, _, attribute = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), dotted
