"""The training wing's commands, one a file; what each is listed as (entry points of ``headstart.commands``)."""

from headstart.cli.commands import TRAIN, Listed

TRAIN_HEAD = Listed(
    "headstart_train.commands.train:train",
    "Train a draft head or a draft model.",
    TRAIN,
    ("--out", "--model", "--minutes", "--tokens", "--prompts", "--corpus", "--init", "--ray", "--json", "--quiet"),
)
DERIVE = Listed("headstart_train.commands.derive:derive", "Make a draft model of some of a model's layers.", TRAIN)
EXPORT = Listed("headstart_train.commands.export:export", "Write a draft head in the format of another project.", TRAIN)
IMPORT = Listed("headstart_train.commands.import_head:import_", "Read a draft head of another project.", TRAIN)
