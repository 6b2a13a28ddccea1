"""The laboratory's commands, one a file; what each is listed as (entry points of ``headstart.commands``)."""

from headstart.cli.commands import ENGINE, MEASURE, MORE, USE, Listed

_REPORT = ("--out", "--json", "--quiet")

BENCH_SERVE = Listed(
    "headstart_lab.commands.bench_serve:bench_serve",
    "Measure a server under load, with speculation and without.",
    MEASURE,
    (*ENGINE, "--url", "--concurrency", "--rates", "--requests", *_REPORT),
)
BENCH = Listed(
    "headstart_lab.commands.bench:bench",
    "Measure drafters against plain decoding.",
    MEASURE,
    ("--model", "--drafters", "--minutes", "--full", "--cells", "--prompts", "--max-tokens", *_REPORT),
    {"serve": BENCH_SERVE},
)
PLAN = Listed(
    "headstart_lab.commands.plan:plan",
    "Predict which drafter, draft length and tree size pay here.",
    MEASURE,
    ("--model", "--drafters", "--prompts", "--batch-sizes", "--check", *_REPORT),
)
ACCEPTANCE = Listed(
    "headstart_lab.commands.acceptance:acceptance",
    "Measure how often guesses are accepted, and where they are not.",
    MEASURE,
    ("--model", "--drafter", "--minutes", "--prompts", "--max-tokens", "--temperatures", *_REPORT),
)
PAPER = Listed(
    "headstart_lab.commands.paper:paper",
    "Repeat the founding paper's experiments with models of yours.",
    MEASURE,
    ("--model", "--drafts", "--gammas", "--prompts", "--max-tokens", *_REPORT),
)
AUDIT = Listed(
    "headstart_lab.commands.audit:audit",
    "Check that speculation changes nothing, here or on any server.",
    MEASURE,
    ("--model", "--drafters", "--samples", "--url", "--against", "--api-key-file", "--budget", *_REPORT),
)
QUALITY = Listed(
    "headstart_lab.commands.quality:quality",
    "Measure what a number format costs in quality.",
    MEASURE,
    ("--model", "--precisions", "--reference", "--text", *_REPORT),
)
THEORY = Listed(
    "headstart_lab.commands.theory:theory",
    "Show the papers' figures and tables, or a point of your own.",
    MORE,
    ("--alpha", "--gamma", "--c", "--target-probs", "--draft-probs", "--out", "--json"),
)
LAB = Listed("headstart_lab.commands.lab:lab", "Write the page that shows speculation at work as files.", USE)
