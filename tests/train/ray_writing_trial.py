"""What Ray's writers say when they cannot write, as a program: a sentence for each trial, as JSON.

python ray_writing_trial.py MODEL
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from headstart_integrations.ray.guarding import guard_cluster

guard_cluster()

from headstart.errors import ConfigError  # noqa: E402
from headstart_train.text.gathering import Order  # noqa: E402
from headstart_train.text.on_ray import RayWriters  # noqa: E402
from headstart_train.text.shards import Shard, Writing  # noqa: E402


def refusal(does: Callable[[], object]) -> str:
    try:
        does()
    except ConfigError as error:
        return str(error)
    return "nothing"


def main() -> None:
    order = Order(sys.argv[1], "fp32", "another digest", Writing(), 4, 64)
    said = {"room": refusal(lambda: RayWriters(None, 99, 1.0, num_cpus=2))}
    writers = RayWriters(None, 1, 1.0, num_cpus=2)
    said["weights"] = refusal(lambda: list(writers.write(order, [Shard(0)])))
    writers.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
