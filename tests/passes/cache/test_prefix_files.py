"""Prefixes in files: found after a restart and by others of their salt alone; whatever happens to them is harmless."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from toys import ToyBackend, hashed_logits, run_all, toy_sequence

from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.cache.prefix_files import PrefixFiles
from headstart.passes.runner import ModelRunner

VOCAB, BLOCK = 64, 8
LOGITS = hashed_logits(VOCAB, 5, order=6)
BEGINNING = [(7 * i * i + 3) % VOCAB for i in range(10 * BLOCK)]
PROMPTS = [[*BEGINNING, *ending] for ending in ([1, 2, 3], [4], [*range(11)])]


class Run:
    """An engine of toys over a directory."""

    def __init__(
        self,
        directory: Path | None,
        *,
        states: bool = False,
        most_bytes: int = 1 << 24,
        identity: str = "toy",
        step_bytes: int = 1 << 20,
        cache_tokens: int = 4096,
    ) -> None:
        self.backend = ToyBackend(VOCAB, LOGITS, keeps_states=states)
        runner = ModelRunner(self.backend, cache_tokens, BLOCK, PrefixIndex("toy"))
        cache = runner.cache
        if directory is not None:
            cache.pool.files = PrefixFiles(directory, most_bytes, identity, cache.storage, cache.states)
            cache.pool.files.step_bytes = step_bytes
        context = DraftContext(vocab_size=VOCAB, runner=runner)
        self.engine = Engine(runner, create_drafter("ngram", context), Limits(max_context=4096))
        self.count = 0

    def say(self, prompts: list[list[int]], salt: str = "") -> tuple[list[list[int]], int]:
        """The outputs, together; and tokens that were found."""
        sequences = []
        for prompt in prompts:
            sequence = toy_sequence(self.engine, prompt, sequence_id=self.count)
            sequence.cache_salt = salt
            self.count += 1
            sequences.append(sequence)
        said = run_all(self.engine, sequences)
        return said, sum(sequence.stats.cached_tokens for sequence in sequences)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return [Run(None).say([prompt])[0][0] for prompt in PROMPTS]


def written(directory: Path) -> list[Path]:
    return sorted(directory.glob("prefix-*"))


def fill(directory: Path, plain: list[list[int]], **options: int | bool) -> None:
    """What a process leaves behind that has answered."""
    run = Run(directory, **options)  # type: ignore[arg-type]
    assert run.say(PROMPTS)[0] == plain
    run.engine.close()


@pytest.mark.parametrize("states", [False, True])
def test_a_restart_finds_what_was_read(tmp_path: Path, plain: list[list[int]], states: bool) -> None:
    fill(tmp_path / "kept", plain, states=states)
    again = Run(tmp_path / "kept", states=states)
    said, found = again.say(PROMPTS[:1])
    assert said == plain[:1]
    assert found == len(BEGINNING)
    assert again.backend.rows_seen < len(BEGINNING)
    # What was said is a beginning, too.
    longer = [*PROMPTS[0], *plain[0]]
    assert Run(tmp_path / "kept").say([longer])[1] >= len(longer) - 2 * BLOCK or states


def test_files_are_their_owners_alone(tmp_path: Path, plain: list[list[int]]) -> None:
    fill(tmp_path / "kept", plain)
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in written(tmp_path / "kept")} == {0o600}


def test_other_salts_and_models_find_nothing(tmp_path: Path, plain: list[list[int]]) -> None:
    fill(tmp_path, plain)
    assert Run(tmp_path).say(PROMPTS[:1], salt="other") == (plain[:1], 0)
    assert Run(tmp_path, identity="another model").say(PROMPTS[:1]) == (plain[:1], 0)
    assert Run(tmp_path).say(PROMPTS[:1])[1] > 0


def test_another_process_finds_it_while_the_first_one_runs(tmp_path: Path, plain: list[list[int]]) -> None:
    first, second = Run(tmp_path), Run(tmp_path)
    assert second.say(PROMPTS[:1]) == (plain[:1], 0)
    second.engine.close()
    assert first.say(PROMPTS[1:2]) == (plain[1:2], len(BEGINNING))


@pytest.mark.parametrize("harm", ["cut", "flipped", "emptied", "swapped"])
def test_a_wrong_file_costs_a_log_line(
    tmp_path: Path, plain: list[list[int]], harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, plain)
    files = written(tmp_path)
    for path, other in zip(files, [*files[1:], files[0]], strict=True):
        content = bytearray(path.read_bytes())
        content[-1] ^= harm == "flipped"
        path.write_bytes({"cut": content[:-9], "emptied": b"", "swapped": other.read_bytes()}.get(harm, content))
    with caplog.at_level(logging.WARNING):
        run = Run(tmp_path)
        assert run.say(PROMPTS[:1]) == (plain[:1], 0)
        run.engine.close()
    (record,) = caplog.records
    assert "is damaged or foreign, and is deleted" in record.getMessage()
    # The next one finds what this one has computed.
    assert Run(tmp_path).say(PROMPTS[:1]) == (plain[:1], len(BEGINNING))


def test_what_is_no_file_is_not_read(tmp_path: Path, plain: list[list[int]]) -> None:
    """Reading a pipe would wait for whoever writes to it."""
    fill(tmp_path, plain)
    for path in written(tmp_path):
        path.unlink()
        os.mkfifo(path)
    assert Run(tmp_path).say(PROMPTS[:1]) == (plain[:1], 0)


def test_the_bound_is_kept_and_what_is_used_stays(tmp_path: Path, plain: list[list[int]]) -> None:
    most = 40 * 4096
    for other in range(12):
        run = Run(tmp_path, most_bytes=most)
        assert run.say(PROMPTS[:1])[0] == plain[:1]
        run.say([[(other * i + i * i) % VOCAB for i in range(6 * BLOCK)]])
        run.engine.close()
        files = written(tmp_path)
        assert sum(max(path.stat().st_size, 4096) for path in files) <= most
    assert Run(tmp_path, most_bytes=most).say(PROMPTS[:1]) == (plain[:1], len(BEGINNING))


def test_two_beginnings_take_turns_where_one_has_room(tmp_path: Path, plain: list[list[int]]) -> None:
    """What was used last is found, at least its first blocks, and the bound holds after each turn."""
    most, other = 16 * 4096, [(11 * i + 5) % VOCAB for i in range(10 * BLOCK)]
    wanted = [plain[0], Run(None).say([other])[0][0]]
    for _ in range(3):
        for prompt, said in zip([PROMPTS[0], other], wanted, strict=True):
            for again in range(2):
                run = Run(tmp_path, most_bytes=most)
                text, found = run.say([prompt])
                assert text == [said]
                assert not again or found >= 6 * BLOCK
                run.engine.close()
                assert sum(max(path.stat().st_size, 4096) for path in written(tmp_path)) <= most


def test_two_at_once_share_a_small_directory(tmp_path: Path, plain: list[list[int]]) -> None:
    """Each deletes what the other has just written or is about to read."""

    def work(number: int) -> list[bool]:
        right = []
        for other in range(6):
            run = Run(tmp_path, most_bytes=16 * 4096)
            right += [said == plain[:1] for said in [run.say(PROMPTS[:1])[0]]]
            run.say([[(other * i + number + i * i) % VOCAB for i in range(6 * BLOCK)]])
            run.engine.close()
        return right

    with ThreadPoolExecutor(2) as both:
        assert all(all(right) for right in both.map(work, range(2)))
    assert not [*tmp_path.glob("*.part")]
    assert sum(max(path.stat().st_size, 4096) for path in written(tmp_path)) <= 18 * 4096


@pytest.mark.parametrize("harm", ["full", "not writable", "a file"])
def test_where_nothing_can_be_written_one_sentence_says_so(
    tmp_path: Path, plain: list[list[int]], harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "kept"
    if harm == "a file":
        directory.touch()
    run = Run(Path("/sys") if harm == "not writable" else directory)  # nobody writes there, root neither
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if harm == "full":  # a file that grows beyond this fails, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (32, limit[1]))
        said = run.say(PROMPTS)[0]
        run.engine.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert said == plain
    told = [record.getMessage() for record in caplog.records]
    assert [message for message in told if "cannot be written (" in message] == told[-1:]
    assert told[-1].endswith("prefixes stay in memory.")
    assert harm != "full" or not [*directory.iterdir()]


@pytest.mark.parametrize("blocked", [False, True])
def test_a_directory_may_go_at_any_time(
    tmp_path: Path, plain: list[list[int]], blocked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "kept"
    fill(directory, plain)
    run = Run(directory)
    assert run.say(PROMPTS[:1])[0] == plain[:1]
    while directory.is_dir():  # the last blocks are being written
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(IsADirectoryError):
            _ = blocked and directory.write_text("in the way")
    assert run.say(PROMPTS[1:])[0] == plain[1:]
    assert run.say(PROMPTS[1:], salt="other")[0] == plain[1:]
    run.engine.close()
    # What writing meets depends on how far the directory is gone; each fault is told once.
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(set(told))
    ends = {message.rpartition("; ")[2] for message in told}
    assert ends == ({"prefixes are computed.", "prefixes stay in memory."} if blocked else set())
    assert blocked or Run(directory).say(PROMPTS[1:2], salt="other")[1] == len(BEGINNING)


@pytest.mark.parametrize("states", [False, True])
def test_others_decode_while_a_long_beginning_is_read(tmp_path: Path, plain: list[list[int]], states: bool) -> None:
    """One block a step: reading takes many, and nobody waits for its end."""
    fill(tmp_path, plain, states=states)
    run = Run(tmp_path, states=states, step_bytes=0)
    early = toy_sequence(run.engine, [5, 6, 7], sequence_id=100)
    late = toy_sequence(run.engine, PROMPTS[0], sequence_id=101)
    run.engine.add(early)
    run.engine.step()
    run.engine.add(late)
    before = 0
    while not late.num_output:
        run.engine.step()
        run.engine.check()
        before = early.num_output
    assert before > 5
    assert late.stats.cached_tokens == len(BEGINNING)
    while not run.engine.idle:
        run.engine.step()
    assert late.output == plain[0]


@pytest.mark.parametrize("states", [False, True])
def test_a_cache_that_gives_up_blocks_reads_them_again(tmp_path: Path, plain: list[list[int]], states: bool) -> None:
    """It holds hardly more than one text, so that others take its place, and more at once than fit are put off."""
    run = Run(tmp_path, states=states, step_bytes=0, cache_tokens=18 * BLOCK)
    for _ in range(3):
        for prompt, said in zip(PROMPTS, plain, strict=True):
            assert run.say([prompt])[0] == [said]
            run.say([[3, *prompt[::-1]]])
    assert run.say(PROMPTS)[0] == plain
    run.engine.close()
    assert Run(tmp_path, states=states).say(PROMPTS[:1]) == (plain[:1], len(BEGINNING))
