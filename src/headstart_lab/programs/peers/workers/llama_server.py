"""llama.cpp's own server through xllamacpp, the GGUF as it is, plain.

python llama_server.py --model FILE.gguf --port 8002 --threads 2 --users 16 --context 65536
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8002)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--users", type=int, default=64, help="slots: most requests in a batch")
    parser.add_argument("--context", type=int, default=65536, help="tokens of all slots together")
    options = parser.parse_args()
    chosen = xllamacpp.CommonParams()
    chosen.model.path = str(options.model)
    chosen.port = options.port
    chosen.n_parallel = options.users
    chosen.n_ctx = options.context
    # One pool for all slots: a long prompt may take more than its share, as in the other servers.
    chosen.kv_unified = True
    chosen.verbosity = -1
    for team in (chosen.cpuparams, chosen.cpuparams_batch):
        team.n_threads = options.threads
    server = xllamacpp.Server(chosen)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
