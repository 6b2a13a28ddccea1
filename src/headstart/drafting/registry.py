"""Drafters by name: the ones that come with Headstart, and those that other packages add.

A package adds a drafter by an entry point in the group ``headstart.drafters``: the entry point's name is the
drafter's, its value the class (``docs/add_a_drafter.md``). A drafter class is called with a ``DraftContext`` and
its options, and names their frozen dataclass in ``Options`` (left out: it has none). Its module is imported when
it is first built, so listing costs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.common.memory import is_lack_of_memory
from headstart.drafting import DEFAULT_DRAFTER
from headstart.drafting.context import DraftContext
from headstart.drafting.options import GuessesForEach, HasOptions, NoOptions, check_files, parse_options
from headstart.errors import ConfigError, DrafterError, HeadstartError, meant

if TYPE_CHECKING:
    from headstart.drafting.base import Drafter

ENTRY_POINT_GROUP = "headstart.drafters"


@dataclass(frozen=True)
class DrafterInfo:
    """One drafter, as listed."""

    name: str
    summary: str
    """One line: how it guesses."""
    source: str
    """The paper, or the project it follows."""
    target: str
    """Where the class is: ``module:Class``."""
    usual: bool = False
    """Pays often enough, as it comes, to be measured where nobody names drafters."""
    runs_others: bool = False
    """Its guesses are those of other drafters."""
    untaught: str = ""
    """What it guesses with where no model is named, if nobody has taught that to guess."""
    from_tokens: bool = False
    """It needs nothing but a sequence's tokens, so that another engine can run it (``headstart.integrations``)."""


_HERE = "headstart.drafting"
_OWN_LAYERS = "some of the target's own layers"

_PARTS = ("needs", "begin", "propose", "observe", "end")
"""Of a drafter."""
_OF_A_MODEL = "draft-model"
"""The simplest drafter that runs a whole model."""
_OF_A_MODULE = "mtp"
"""Runs a multi-token module that was trained by itself."""

HOSTED_DRAFTER = "suffix"
"""Guesses in other engines where nobody is named: the best of those that need nothing but tokens."""

_BUILT_IN = {
    info.name: info
    for info in (
        DrafterInfo("none", "guesses nothing: plain decoding", "Headstart", f"{_HERE}.model_free.none:NoDrafter"),
        DrafterInfo(
            "ngram",
            "the most frequent continuation of the last 3, 2 or 1 tokens, chained",
            "akunu book, speculative decoding with n-grams",
            f"{_HERE}.model_free.ngram:NgramDrafter",
            usual=True,
            from_tokens=True,
        ),
        DrafterInfo(
            "prompt-lookup",
            "what followed the last tokens when they stood in the context before",
            "Saxena 2023, prompt lookup decoding",
            f"{_HERE}.model_free.prompt_lookup:PromptLookupDrafter",
            from_tokens=True,
        ),
        DrafterInfo(
            "suffix",
            "a tree of likely continuations of the longest repeated suffixes, sized by how long they match",
            "Oliaro et al. 2024, SuffixDecoding (arXiv:2411.04975)",
            f"{_HERE}.model_free.suffix:SuffixDrafter",
            usual=True,
            from_tokens=True,
        ),
        DrafterInfo(
            "recycling",
            "a tree over the target's own runner-up tokens, kept from earlier passes and requests",
            "Luo et al. 2024, Token Recycling (arXiv:2408.08696)",
            f"{_HERE}.model_free.recycling:RecyclingDrafter",
            usual=True,
            from_tokens=True,
        ),
        DrafterInfo(
            "rest",
            "a tree of what followed the longest known suffix in a store of texts",
            "He et al. 2023, REST (arXiv:2311.08252)",
            f"{_HERE}.model_free.rest:RestDrafter",
            from_tokens=True,
        ),
        DrafterInfo(
            "copy",
            "the rest of the input from the place the output has reached in it",
            "Sun et al. 2021, Shallow Aggressive Decoding (arXiv:2106.04970)",
            f"{_HERE}.model_free.copying:CopyDrafter",
            from_tokens=True,
        ),
        DrafterInfo(
            "unigram",
            "the most frequent token so far, or draws from the counts",
            "Leviathan et al. 2023, section 4.2 (arXiv:2211.17192)",
            f"{_HERE}.model_free.trivial:UnigramDrafter",
            from_tokens=True,
        ),
        DrafterInfo(
            "bigram",
            "the most frequent successor of the last token, chained, or draws from the counts",
            "Leviathan et al. 2023, section 4.2 (arXiv:2211.17192)",
            f"{_HERE}.model_free.trivial:BigramDrafter",
            from_tokens=True,
        ),
        DrafterInfo(
            "random",
            "uniformly random tokens: the floor that any drafter must beat",
            "Leviathan et al. 2023, section 4.2 (arXiv:2211.17192)",
            f"{_HERE}.model_free.trivial:RandomDrafter",
        ),
        DrafterInfo(
            "synthetic",
            "answers of before, right at chosen rates: for load tests",
            "Headstart; vLLM's synthetic acceptance, but exact",
            f"{_HERE}.model_free.synthetic:SyntheticDrafter",
        ),
        DrafterInfo(
            "draft-model",
            "a chain from a smaller model, or from some of the target's own layers",
            "Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318)",
            f"{_HERE}.draft_models.draft_model:DraftModelDrafter",
            untaught=_OWN_LAYERS,
        ),
        DrafterInfo(
            "multi-draft",
            "a tree of draws from a draft model, or a chain from each of several",
            "Miao et al. 2024, SpecInfer (arXiv:2305.09781); Chen et al. 2024, Sequoia (arXiv:2402.12374)",
            f"{_HERE}.draft_models.multi_draft:MultiDraftDrafter",
            untaught=_OWN_LAYERS,
        ),
        DrafterInfo(
            "hierarchical",
            "a chain from a draft model that has a drafter of its own",
            "Spector & Re 2023, staged speculative decoding (arXiv:2308.04623)",
            f"{_HERE}.draft_models.hierarchical:HierarchicalDrafter",
            runs_others=True,
            untaught=_OWN_LAYERS,
        ),
        DrafterInfo(
            "early-exit",
            "a chain from the target's first layers; pays where the target was trained for that (LayerSkip)",
            "Elhoushi et al. 2024, LayerSkip (arXiv:2404.16710)",
            f"{_HERE}.draft_models.early_exit:EarlyExitDrafter",
            untaught=_OWN_LAYERS,
        ),
        DrafterInfo(
            "eagle3",
            "a confident tree from a trained layer that reads several of the target's layers",
            "Li et al. 2025, EAGLE-3 (arXiv:2503.01840)",
            f"{_HERE}.head_drafters.eagle:Eagle3Drafter",
        ),
        DrafterInfo(
            "dflash",
            "the likeliest paths of a block that a trained head guesses in one pass (also called dspark, jetspec)",
            "Chen et al. 2026, DFlash (arXiv:2602.06036); DDTree (arXiv:2604.12989), DSpark (arXiv:2607.05147)",
            f"{_HERE}.head_drafters.dflash:DFlashDrafter",
        ),
        DrafterInfo(
            "p-eagle",
            "the likeliest paths of what EAGLE-3's layer guesses in one pass, behind masks",
            "P-EAGLE 2026 (arXiv:2602.01469); DDTree (arXiv:2604.12989)",
            f"{_HERE}.head_drafters.p_eagle:PEagleDrafter",
        ),
        DrafterInfo(
            "mtp",
            "a confident tree from the multi-token modules that came with the target's checkpoint",
            "DeepSeek-AI 2024, DeepSeek-V3, section 2.2 (arXiv:2412.19437)",
            f"{_HERE}.head_drafters.mtp:MtpDrafter",
        ),
        DrafterInfo(
            "eagle2",
            "a confident tree from a trained layer that reads the target's last state",
            "Li et al. 2024, EAGLE-2 (arXiv:2406.16858)",
            f"{_HERE}.head_drafters.eagle:Eagle2Drafter",
        ),
        DrafterInfo(
            "eagle",
            "a static tree from a trained layer that reads the target's last state",
            "Li et al. 2024, EAGLE (arXiv:2401.15077)",
            f"{_HERE}.head_drafters.eagle:EagleDrafter",
        ),
        DrafterInfo(
            "medusa",
            "a sparse tree over several trained heads, each of which says one future token",
            "Cai et al. 2024, Medusa (arXiv:2401.10774)",
            f"{_HERE}.head_drafters.medusa:MedusaDrafter",
        ),
        DrafterInfo(
            "blockwise",
            "a chain from one trained layer that says several future tokens",
            "Stern et al. 2018 (arXiv:1811.03115)",
            f"{_HERE}.head_drafters.blockwise:BlockwiseDrafter",
        ),
        DrafterInfo(
            "pass",
            "what the target itself expects after trained look-ahead embeddings, in the pass that verifies",
            "Monea et al. 2023, PaSS (arXiv:2311.13581)",
            f"{_HERE}.head_drafters.lookahead_embeddings:PassDrafter",
        ),
        DrafterInfo(
            "lookahead",
            "n-grams that the target's own passes find on the side, without any training",
            "Fu et al. 2024, lookahead decoding (arXiv:2402.02057)",
            f"{_HERE}.model_free.lookahead:LookaheadDrafter",
        ),
        DrafterInfo(
            "auto",
            "the guesses of several drafters in one tree, as many as pay, none where speculation would lose",
            "Headstart; Leviathan et al. 2023, Theorem 3.8, on trees with measured costs",
            f"{_HERE}.planning.auto:AutoDrafter",
            usual=True,
            runs_others=True,
        ),
    )
}


_OTHER_NAMES = {"dspark": "dflash", "jetspec": "dflash"}
"""Names of a method's kin -> what runs their heads, too."""


def available_drafters() -> dict[str, DrafterInfo]:
    """Every drafter by name, those of other packages after the built-in ones. Imports none of them."""
    return {**_BUILT_IN, **{name: _info(point) for name, point in _entry_points().items()}}


def hosted_drafters() -> list[str]:
    """Names of the drafters that another engine can run; one of another package is taken to be able to."""
    own = [name for name, info in _BUILT_IN.items() if info.from_tokens]
    return own + list(_entry_points())


def chosen_drafter(drafter: str | type[Any] | None, draft_model: str | Path | None) -> str | type[Any]:
    """Who guesses where nobody is named (None): what runs ``draft_model``, if that is a whole model or a multi-token
    module alone, else the default, which runs a head.

    Raises:
        CheckpointError: a file of the draft model is damaged.
    """
    # Imported here: listing drafters takes no PyTorch.
    from headstart.drafting.head_files.loading import is_whole_model, trained_as

    if drafter is None and draft_model is not None and trained_as(str(draft_model)) == _OF_A_MODULE:
        return _OF_A_MODULE
    if drafter is None and draft_model is not None and is_whole_model(str(draft_model)):
        return _OF_A_MODEL
    return DEFAULT_DRAFTER if drafter is None else drafter


def drafter_name(drafter: str | type[Any]) -> str:
    """What a drafter is called here, given by one of its names or its class."""
    return _OTHER_NAMES.get(drafter, drafter) if isinstance(drafter, str) else drafter.__name__


def is_drafter(name: str) -> bool:
    """Whether some drafter has this name."""
    return drafter_name(name) in available_drafters()


def drafter_info(name: str) -> DrafterInfo:
    """A drafter as listed, by any of its names.

    Raises:
        ConfigError: no drafter has this name.
    """
    known = available_drafters()
    if (info := known.get(drafter_name(name))) is None:
        raise ConfigError(f"there is no drafter {name!r:.60}; {meant(name, [*known, *_OTHER_NAMES])}")
    return info


def drafter_options(drafter: str | type[Any]) -> type[Any]:
    """The frozen dataclass of the options of a drafter, given by its name or its class.

    Raises:
        ConfigError: no drafter has this name, its package cannot be imported, or its options are no dataclass.
    """
    found = _drafter_class(drafter)
    options = found.Options if isinstance(found, HasOptions) else NoOptions
    if not is_dataclass(options):
        raise ConfigError(f"Options of drafter {drafter_name(drafter)!r} is no dataclass; see docs/add_a_drafter.md.")
    return options


def checked_options(
    drafter: str | type[Any],
    draft_model: str | Path | None = None,
    draft_tokens: int | None = None,
    more: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """The drafter's options, with the common ones under the names that it knows.

    Whatever can be refused without the target is refused here, before anybody reads it.

    Raises:
        ConfigError: there is no such drafter, ``draft_model`` was given to one that runs no model or left out for one
            that is nothing without it, or it refuses an option.
        CheckpointError: the draft model or head is missing or damaged, as far as it shows without its weights.
    """
    options = dict(more or {})
    name = drafter_name(drafter)
    known = {field.name for field in fields(drafter_options(drafter))}
    if draft_model is not None:
        if "model" not in known:
            raise ConfigError(f"draft_model is {str(draft_model)!r}, but drafter {name!r} runs no model; leave it out.")
        options["model"] = str(draft_model)
    if draft_tokens is not None and "draft_tokens" in known:
        options["draft_tokens"] = draft_tokens
    check_files(parse_options(drafter_options(drafter), name, options))
    return options


def guesses_for_each(drafter: str | type[Any], options: Mapping[str, object]) -> int:
    """Guesses that a drafter wants for every sequence, however many decode together; 0: it makes do with its share.

    Raises:
        ConfigError: as ``create_drafter``, as far as options tell.
    """
    parsed = parse_options(drafter_options(drafter), drafter_name(drafter), options)
    return parsed.guesses_each if isinstance(parsed, GuessesForEach) else 0


def create_drafter(drafter: str | type[Any], context: DraftContext, **options: object) -> Drafter:
    """Build a drafter, given by its name or its class.

    Raises:
        ConfigError: no drafter has this name, its package cannot be imported, or it lacks an option, refuses
            its value, or misses something in the context or of a drafter's parts.
        DrafterError: it is another package's, and fails.
    """
    name = drafter_name(drafter)
    parsed = parse_options(drafter_options(drafter), name, options)
    try:
        created: Drafter = _drafter_class(drafter)(context, parsed)
    except Exception as error:
        raised = blamed(name, error)
        raise raised from raised.__cause__
    lacks = [part for part in _PARTS if not hasattr(created, part)]
    if lacks:
        raise ConfigError(f"drafter {name!r} has no {' and no '.join(lacks)}; see docs/add_a_drafter.md.")
    return created


def blamed(name: str, error: Exception) -> Exception:
    """The error of a drafter as it is raised: of one of another package as a ``DrafterError``, which says so."""
    point = None if name in _BUILT_IN else _entry_points().get(name)
    if point is None or isinstance(error, HeadstartError | OSError) or is_lack_of_memory(error):
        return error
    whose = _info(point).source or point.value
    failed = DrafterError(
        f"drafter {name!r} of {whose} failed with {type(error).__name__}: {' '.join(str(error).split())}. Tell its "
        "authors, or use another drafter."
    )
    failed.__cause__ = error
    return failed


def _drafter_class(name: str | type[Any]) -> Any:
    if not isinstance(name, str):
        return name
    built_in = _BUILT_IN.get(drafter_name(name))
    if built_in is not None:
        module, _, attribute = built_in.target.partition(":")
        return getattr(import_module(module), attribute)
    point = _entry_points().get(name)
    if point is None:
        raise ConfigError(f"there is no drafter {name!r:.60}; {meant(name, [*available_drafters(), *_OTHER_NAMES])}")
    try:
        return point.load()
    except Exception as error:  # whatever a package can raise while it is imported
        raise ConfigError(
            f"drafter {name!r} cannot be loaded from {point.value}: {' '.join(str(error).split())}."
        ) from error


def _entry_points() -> dict[str, EntryPoint]:
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if drafter_name(point.name) in _BUILT_IN or point.name in points:
            warnings.warn(f"drafter {point.name!r} of {point.value} is ignored: the name is taken.", stacklevel=3)
        else:
            points[point.name] = point
    return points


def _info(point: EntryPoint) -> DrafterInfo:
    if point.dist is None:
        return DrafterInfo(point.name, "", "", point.value)
    summary = point.dist.metadata["Summary"] or ""
    return DrafterInfo(point.name, summary, f"package {point.dist.name} {point.dist.version}", point.value)
