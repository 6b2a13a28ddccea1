"""Every number of the planner that somebody chose, with the figure that chose it, where one did
(docs/experiments/planner.md, by its number there). A *round* is the time of a plain round of the same sequences."""

# What may be lost.
SHARE = 0.005
"""Of the time, for guesses that do not pay. A head that loses half a round is then asked every hundredth round, so one
that becomes good is found within some hundred tokens."""
START = 12.0
"""Rounds that may be lost at first by one sequence. A head that gains 0.2 of a round, give or take 1.2, then stops by
mistake once in thirty times (exp(-2 * 0.2 * 12 / 1.2**2)), with 6 rounds once in five: so did two of five starts, and
with 12 none (0147)."""
LEAST_START = 2.0
"""The same where many sequences decode at once, whose guesses tell sooner."""
MOST = 32.0
"""Rounds that what pays can fill an allowance to: a second of a small model, which outlasts a pause of the machine."""
OWN = 2.0
"""Rounds that one drafter may lose at first for one sequence, by its estimates. With 1, heads stopped by mistake in
answers that they made faster by a quarter (0150)."""
PLAIN_SHARE, PLAIN_OFTEN = 0.002, 16
"""What timing plain rounds may take of the time, which is every 250th round at twice their speed; and rounds between
two of them at least."""
PLAIN_TIMINGS, PLAIN_LEAST = 5, 3
"""Timings that a plain round's median is taken of, the lower middle one, and as few as it needs: one is often
disturbed. Of two the lower was once an eighth too low for a whole run (0141)."""
DISTURBED_MOST, DISTURBED_WEIGHT, DISTURBED_MEMORY = 1.5, 8.0, 128.0
"""Times its median that a plain round may take for a mean; as many timings that took just the median count at first;
and as many are remembered. On a shared machine rounds took 1.06 to 1.08 times their median (0147), and what guesses
save was held for so much less."""
NEIGHBOURS = 1.5
"""What numbers of sequences may differ by, as a factor, for a plain round of one between them to be interpolated."""
CONTEXT_LEAST, CONTEXT_CLASSES, CONTEXTS_TOGETHER = 256, 2, 4
"""Contexts up to so many tokens are one class, and there are so many for each doubling beyond: attention, a third of a
pass at 16k, differs by a third within a class, and a request goes through it in thousands of tokens. So many classes
share their allowances."""
WARMTH_STEP, WARMEST = 0.5, 2.0
"""Of temperatures that share allowances and plain timings; and the last that is told from others. Warm requests, whose
guesses seldom hold, would empty an allowance that greedy ones fill. Not tuned."""
FEW = 4
"""Most sequences with which drafters that read the target's states are used (docs/experiments/batches.md, 0023: in
larger batches reading along takes more than their guesses gain)."""

# What passes cost.
STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
"""Rows at which the steps of the cost curve end: few enough to be learnt in some dozens of rounds, fine enough to show
tiles of 16 rows."""
RECENT = 9
"""Timings that a median is taken of: four disturbed ones do no harm."""
COST_MEMORY = 4096
"""Passes after which a step is forgotten that none was on: it may have been disturbed when it was timed last. With 256
a drafter that is asked now and then was asked in vain, since its rows seemed to cost nothing (0141)."""
RENEWED, TRUSTED = 128, 3
"""Passes after which one with a single guess is timed again, or with so many that fewer than three of them were timed:
a disturbed trial made two rows seem twice as dear as they were, and no guess was verified from then on (0141)."""
HOPED_SHARE, HOPED_SLOPE = 1 / 16, 1 / 2
"""What a row beyond the largest known pass is assumed to cost, as a share of that pass's average row, or of its last
rows if that is more. Little on purpose: larger passes are tried, and timed."""
FURTHER, LEAST_FURTHER = 1 / 2, 4
"""How far the curve goes beyond the largest known pass: by this share of its rows, and by at least this many."""
REDRAWN_EVERY = 8
"""Passes after which the curve is drawn anew: drawing takes as long as planning a round."""
MEAN_MEMORY, SLOPE_MEMORY = 64, 256
"""Passes over which a step's means and the slope by context are averaged."""
SLOPE_DOUBT = 1e7
"""Squared row-keys. Before contexts have varied this much (one pass at 3,000 tokens), the slope counts for less than
half of what it seems."""
LEAST_GAIN = 1.03
"""What verified guesses must promise over plain decoding. Of many numbers of rows, each timed to within some per cent,
one seems cheap by chance: where rows cost as much as plain tokens (two AVX2 cores, four users: 0.98) guesses only lose.
"""
UNTIMED_ROWS = 16
"""Rows of a pass, roots included, while nothing is known about costs: one tile."""
TRIED_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
"""Rows of trial passes; the last is about what 16 sequences and the guesses of a default engine take."""
TRIED_OFTEN = 8
"""Rows up to which they are tried four times instead of twice: what these take decides most often."""
TRIED_SECONDS = 1.0
"""Of all trial passes together: where a pass takes long, fewer of them are run."""

# How often guesses hold.
FIRST_RATE = 0.25
"""Of any guess before one was judged, where the drafter says nothing else."""
MEASURED_WEIGHT, UNKNOWN_WEIGHT = 8.0, 1.0
"""Trials that rates measured elsewhere are worth, and those that nobody measured."""
MEMORY = 40.0
"""Trials after which the past counts half (0149)."""
OWN_WEIGHT = 4.0
"""Guesses that are taken to have held as expected when a sequence begins; and trials that the others' rates are worth
to sequences with an adapter. With 8 hard answers behind easy ones lose more to a drafter that has no grades; where it
has any, this matters little (0150)."""
MOST_CERTAIN = 0.995
"""No guess is surer: few trials are remembered, and they show no more. Not tuned."""
LEAST_PROBABLE, MOST_PROBABLE = 0.025, 0.2
"""Bounds of the least probability of a path that drafters look for, which is what a row takes in tokens, on average
over a tree's: less likely ones cost more to look for than they bring, and where rows seem dear a drafter must still be
seen to guess (by work the bound brings 5 %; on a matrix unit 1.94 of plain decoding instead of 1.87, 0060)."""
LEVELS_AHEAD = 8
"""Rows that are looked at for whether they need to be tried again: drafts hardly hold further. Not tuned."""
PACE_MEMORY = 32
"""Rounds over which the tokens of a second are averaged: a fraction of a second of a small model. Not tuned."""

# The target's own weights in few bits, where nothing else guesses.
ITSELF_BITS, ITSELF_SECONDS = 7.5, 0.004
"""Of a target's weight, from which on four are much fewer; and of a pass, from which on what is around it hardly
counts."""
ITSELF_CHANCE, ITSELF_LONGEST, ITSELF_GAIN = 0.8, 8, 1.1
"""That its guess holds where those before it do (less than four bits are known for); its longest chain; and what it
must promise over plain decoding, which it takes memory for."""
