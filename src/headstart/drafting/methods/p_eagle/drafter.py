"""P-EAGLE (arXiv:2602.01469): EAGLE-3's layer, which guesses several tokens in one pass.

Behind the last true row stand rows that read a mask token beside a learnt state, in place of a guess and of what the
head made of it. Each says the token in its place.
"""

from __future__ import annotations

from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.draft_vocabulary import DraftVocabulary
from headstart.drafting.head_trees.growing import CalledGrowth
from headstart.drafting.head_trees.head_drafter import HeadDrafter
from headstart.drafting.head_trees.head_source import open_head, run_head
from headstart.drafting.head_trees.one_pass import OnePassGrowth, OnePassOptions
from headstart.drafting.head_trees.read_along import Reader, unread_rows
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES
from headstart.drafting.methods.eagle.head import PARALLEL_KIND, EagleHead
from headstart.drafting.methods.p_eagle import PASSES


class PEagleDrafter(HeadDrafter):
    """One pass over what was not read yet, and masks."""

    Options = OnePassOptions
    grade_rates = CONFIDENCE_RATES

    def __init__(self, context: DraftContext, options: OnePassOptions) -> None:
        head = open_head(context, options.model, PARALLEL_KIND, EagleHead)
        tables, kit = context.require_tables()(), context.require_runner().backend.kit
        running = run_head(context, PASSES, head, tables, options.precision)
        vocabulary = DraftVocabulary.of(
            running, context.vocab_size, tables, head, options.text_vocabulary, head.config.eps_of_said
        )
        window = options.window_of(head, head.config.reach)
        reader = Reader(context, head.config.taps, running, running.read, vocabulary, window=window)
        called = running.growth(options.width, vocabulary.ids)
        growth = OnePassGrowth(
            lambda drafted, slots: running.guess(*unread_rows(drafted), slots),
            head.config.slots,
            vocabulary,
            options,
            kit,
            None if called is None else CalledGrowth(called, reader, options, kit),
        )
        super().__init__(reader, growth)
